"""The life of a job: put, reserve, delete, release, bury, kick, touch; delays, times to run, priorities."""

import random
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.config import DestinationPolicy, DestinationSettings
from qmq.errors import Refused
from qmq.model.levels import EXACT_TOPS
from qmq.protocols.beanstalk import part
from qmq.protocols.beanstalk.gateway.jobs import JobState
from qmq.protocols.beanstalk.jobs import FoundJob
from tests.node.rig import subscribe
from tests.protocols.beanstalk.rig import BeanstalkClient, BeanstalkRig, running
from tests.support.depths import depths

Q = "/queue/default"


async def test_a_job_is_put_reserved_and_deleted(autojump_clock: MockClock) -> None:
    async with running() as rig:
        client = await rig.client()

        job = await client.put(b"one")
        assert await client.reserve() == (job, b"one")
        assert await client.ask(f"delete {job}") == b"DELETED"

        assert depths(rig.alive).get(Q, 0) == 0
        assert await client.ask("reserve-with-timeout 0") == b"TIMED_OUT"
        assert await client.ask(f"delete {job}") == b"NOT_FOUND"


async def test_replies_come_in_the_order_of_the_commands(autojump_clock: MockClock) -> None:
    async with running() as rig:
        client = await rig.client()

        await client.send(
            "put 1 0 60 1", "a", "use other", "put 1 0 60 1", "b", "nonsense", "reserve", "list-tube-used"
        )

        replies = [await client.reply() for _ in range(6)]
        words = [reply.split(b" ")[0] for reply in replies]
        assert words == [b"INSERTED", b"USING", b"INSERTED", b"UNKNOWN_COMMAND", b"RESERVED", b"USING"]
        assert replies[4] == b"RESERVED " + replies[0].split(b" ")[1] + b" 1\na"


async def crashed(rig: BeanstalkRig, work: Callable[[BeanstalkClient], Awaitable[None]]) -> None:
    """Let a client work, and cut the power at once when it has the last reply."""
    with pytest.raises(ExceptionGroup):
        async with rig.run():
            await work(await rig.client())
            raise RuntimeError("the process dies here")
    rig.disk.crash(rig.fabric.rng)
    rig.fabric = type(rig.fabric)(rig.fabric.rng)


async def test_a_job_that_is_inserted_survives_a_crash(autojump_clock: MockClock) -> None:
    rig = BeanstalkRig()
    jobs: list[int] = []

    async def work(client: BeanstalkClient) -> None:
        jobs.extend([await client.put(b"%d" % number) for number in range(3)])

    await crashed(rig, work)

    async with rig.run():
        client = await rig.client()
        assert [await client.reserve() for _ in range(3)] == [(job, b"%d" % n) for n, job in enumerate(jobs)]


async def test_what_was_answered_about_a_job_survives_a_crash(autojump_clock: MockClock) -> None:
    rig = BeanstalkRig()
    jobs: list[int] = []

    async def work(client: BeanstalkClient) -> None:
        jobs.extend([await client.put(b"%d" % number) for number in range(4)])
        for _ in jobs:
            await client.reserve()
        assert await client.ask(f"delete {jobs[0]}") == b"DELETED"
        assert await client.ask(f"bury {jobs[1]} 5") == b"BURIED"
        assert await client.ask(f"release {jobs[2]} 5 100") == b"RELEASED"

    await crashed(rig, work)

    async with rig.run():
        client = await rig.client()
        states = [await client.ask(f"peek {jobs[0]}")]
        states += [(await client.facts(f"stats-job {job}"))["state"].encode() for job in jobs[1:]]
        assert states == [b"NOT_FOUND", b"buried", b"delayed", b"ready"]


async def test_thousands_of_pipelined_puts_are_all_answered_in_order(autojump_clock: MockClock) -> None:
    async with running() as rig:
        client = await rig.client()
        count = 3000

        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, *[line for n in range(count) for line in ("put 1 0 60 4", f"{n:04}")])
            replies = [await client.reply() for _ in range(count)]

        jobs = [int(reply.removeprefix(b"INSERTED ")) for reply in replies]
        assert jobs == sorted(set(jobs))
        assert [await client.reserve() for _ in range(3)] == [(jobs[n], b"%04d" % n) for n in range(3)]


async def test_a_waiting_reserve_gets_the_job_that_another_client_puts(autojump_clock: MockClock) -> None:
    async with running() as rig:
        worker, other, sender = await rig.client(), await rig.client(), await rig.client()
        await worker.send("reserve")
        await worker.nothing()
        await other.send("reserve")
        await other.nothing()

        first = await sender.put(b"first")
        second = await sender.put(b"second")

        assert await worker.reply() == b"RESERVED %d 5\nfirst" % first
        assert await other.reply() == b"RESERVED %d 6\nsecond" % second
        await worker.nothing()


async def test_a_client_that_waits_for_nothing_gets_nothing(autojump_clock: MockClock) -> None:
    async with running() as rig:
        worker, sender = await rig.client(), await rig.client()
        job = await sender.put()
        assert (await worker.reserve())[0] == job
        assert await worker.ask(f"delete {job}") == b"DELETED"

        await sender.put(b"later")

        await worker.nothing(10)
        other = await rig.client()
        assert (await other.reserve(0))[1] == b"later"


async def test_a_reserve_that_waited_in_vain_takes_no_later_job(autojump_clock: MockClock) -> None:
    async with running() as rig:
        worker, sender = await rig.client(), await rig.client()
        began = trio.current_time()
        assert await worker.ask("reserve-with-timeout 3") == b"TIMED_OUT"
        assert 2.9 < trio.current_time() - began < 3.5

        job = await sender.put()

        await worker.nothing()
        assert (await sender.reserve(0))[0] == job


async def test_every_priority_has_its_own_place(autojump_clock: MockClock) -> None:
    async with running() as rig:
        client = await rig.client()
        near = {top + step for top in EXACT_TOPS for step in (-1, 0, 1, 2)}
        numbers = [number for number in near if 0 <= number < 1 << 32] * 2
        random.Random(1).shuffle(numbers)
        put = [(number, await client.put(b"%d" % number, priority=number)) for number in numbers]

        found = [(await client.reserve())[0] for _ in numbers]

        assert found == [job for _, job in sorted(put)]


async def test_exact_priorities_are_in_order_when_most_jobs_are_only_on_disk(autojump_clock: MockClock) -> None:
    rng = random.Random(2)
    rig = BeanstalkRig()
    put: list[tuple[int, int, int]] = []
    turns = count()

    async def put_some(client: BeanstalkClient, jobs: int) -> None:
        for _ in range(jobs):
            number = rng.choice([rng.randrange(1 << 32), 1_700_000_000 + rng.randrange(50)])
            put.append((number, next(turns), await client.put(b"x", priority=number)))

    async def take(client: BeanstalkClient, jobs: int) -> None:
        wanted = sorted(put)[:jobs]
        for one in wanted:
            job = (await client.reserve())[0]
            assert job == one[2]
            assert await client.ask(f"delete {job}") == b"DELETED"
            put.remove(one)

    async with rig.run():
        await put_some(await rig.client(), 1500)
    async with rig.run():
        client = await rig.client()
        await take(client, 100)
        # These belong before, among and behind what has been loaded from the store.
        await put_some(client, 300)
        await take(client, 200)
        released = (await client.reserve())[0]
        assert await client.ask(f"release {released} {sorted(put)[0][0]} 0") == b"RELEASED"
        await put_some(client, 50)
        await take(client, len(put))


async def test_the_lowest_priority_comes_first_and_within_it_the_oldest(autojump_clock: MockClock) -> None:
    async with running() as rig:
        client = await rig.client()
        priorities = [2**31, 1024, 0, 65536, 4, 2**32 - 1, 100, 1024, 1023]

        for priority in priorities:
            await client.put(b"%d" % priority, priority=priority)

        reserved = [int((await client.reserve(0))[1]) for _ in priorities]
        assert reserved == sorted(priorities)


async def test_of_several_tubes_the_most_urgent_job_comes_first(autojump_clock: MockClock) -> None:
    async with running() as rig:
        client = await rig.client()
        for tube, priority in (("a", 5000), ("b", 1), ("c", 200), ("a", 0)):
            await client.ask(f"use {tube}")
            await client.put(tube.encode() + b"%d" % priority, priority=priority)
        for tube in ("a", "b", "c"):
            await client.ask(f"watch {tube}")

        bodies = [(await client.reserve(0))[1] for _ in range(4)]

        assert bodies == [b"a0", b"b1", b"c200", b"a5000"]


async def test_jobs_that_come_from_two_tubes_at_once_are_not_lost(autojump_clock: MockClock) -> None:
    async with running() as rig:
        worker, one, other = await rig.client(), await rig.client(), await rig.client()
        await worker.ask("watch a")
        await worker.ask("watch b")
        await one.ask("use a")
        await other.ask("use b")
        for number in range(20):
            await worker.send("reserve")
            await worker.nothing(1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.put, b"a%d" % number)
                nursery.start_soon(other.put, b"b%d" % number)

            first = await worker.reply()
            second = await worker.reserve()

            assert {first.partition(b"\n")[2], second[1]} == {b"a%d" % number, b"b%d" % number}
            await worker.nothing(1)


async def test_a_delayed_job_is_ready_when_its_time_has_come(autojump_clock: MockClock) -> None:
    async with running() as rig:
        client = await rig.client()
        job = await client.put(delay=10)
        began = trio.current_time()

        assert (await client.facts(f"stats-job {job}"))["state"] == "delayed"
        assert await client.ask("reserve-with-timeout 5") == b"TIMED_OUT"
        assert (await client.reserve(20))[0] == job
        assert 9.9 < trio.current_time() - began < 11


async def test_a_reservation_ends_with_its_time_and_is_warned_of_before(autojump_clock: MockClock) -> None:
    async with running() as rig:
        worker, other = await rig.client(), await rig.client()
        job = await worker.put(ttr=5)
        await worker.reserve()
        began = trio.current_time()

        assert await worker.ask("reserve") == b"DEADLINE_SOON"
        assert 3.9 < trio.current_time() - began < 4.1
        assert await worker.ask("reserve-with-timeout 0") == b"DEADLINE_SOON"

        assert await other.reserve(10) == (job, b"job")
        assert 4.9 < trio.current_time() - began < 5.5
        assert await worker.ask(f"delete {job}") == b"NOT_FOUND"
        assert await worker.ask(f"touch {job}") == b"NOT_FOUND"
        assert (await other.facts(f"stats-job {job}"))["timeouts"] == "1"
        assert await other.ask(f"delete {job}") == b"DELETED"


async def test_a_job_of_another_client_is_given_before_a_warning(autojump_clock: MockClock) -> None:
    async with running() as rig:
        worker = await rig.client()
        first = await worker.put(ttr=1)
        assert (await worker.reserve())[0] == first

        second = await worker.put()

        assert (await worker.reserve())[0] == second


async def test_a_touched_job_has_its_whole_time_again(autojump_clock: MockClock) -> None:
    async with running() as rig:
        worker, other = await rig.client(), await rig.client()
        job = await worker.put(ttr=5)
        await worker.reserve()

        for _ in range(5):
            await trio.sleep(3)
            assert await worker.ask(f"touch {job}") == b"TOUCHED"

        assert await other.ask("reserve-with-timeout 4") == b"TIMED_OUT"
        assert await other.ask(f"touch {job}") == b"NOT_FOUND"
        assert await worker.ask(f"delete {job}") == b"DELETED"


async def test_jobs_of_a_client_that_leaves_are_ready_again(autojump_clock: MockClock) -> None:
    async with running() as rig:
        worker, other = await rig.client(), await rig.client()
        job = await worker.put()
        await worker.reserve()

        worker.pipe.close()

        assert await other.reserve() == (job, b"job")


async def test_a_released_job_keeps_its_id_and_its_place(autojump_clock: MockClock) -> None:
    async with running() as rig:
        client = await rig.client()
        first, second = await client.put(b"1"), await client.put(b"2")
        assert (await client.reserve())[0] == first

        assert await client.ask(f"release {first} 1024 0") == b"RELEASED"

        assert [(await client.reserve())[0] for _ in range(2)] == [first, second]
        assert (await client.facts(f"stats-job {first}"))["releases"] == "1"


@pytest.mark.parametrize(("priority", "delay"), [(1, 0), (1024, 5), (4294967295, 5)])
async def test_a_job_may_be_released_with_another_priority_or_a_delay(
    priority: int, delay: int, autojump_clock: MockClock
) -> None:
    rig = BeanstalkRig()
    async with rig.run():
        client = await rig.client()
        job = await client.put()
        await client.reserve()

        assert await client.ask(f"release {job} {priority} {delay}") == b"RELEASED"

        facts = await client.facts(f"stats-job {job}")
        assert (facts["state"], facts["pri"]) == ("delayed" if delay else "ready", str(priority))
        assert (facts["releases"], facts["reserves"]) == ("1", "1")
    rig.fabric = type(rig.fabric)(rig.fabric.rng)
    async with rig.run():  # It is durable.
        client = await rig.client()
        assert await client.reserve(10) == (job, b"job")
        assert await client.ask(f"delete {job}") == b"DELETED"
        assert await client.ask(f"delete {job}") == b"NOT_FOUND"
        assert depths(rig.alive).get(Q, 0) == 0


async def test_a_buried_job_waits_until_it_is_kicked(autojump_clock: MockClock) -> None:
    rig = BeanstalkRig()
    async with rig.run():
        client = await rig.client()
        job = await client.put()
        await client.reserve()
        assert await client.ask(f"bury {job} 7") == b"BURIED"

        assert await client.ask("reserve-with-timeout 1") == b"TIMED_OUT"
        facts = await client.facts(f"stats-job {job}")
        assert (facts["state"], facts["pri"], facts["buries"], facts["tube"]) == ("buried", "7", "1", "default")
        assert await client.ask("peek-buried") == b"FOUND %d 3\njob" % job
        # STOMP and the console see it as a queue beside the tube.
        assert depths(rig.alive) == {f"{Q}.buried": 1}
    rig.fabric = type(rig.fabric)(rig.fabric.rng)
    async with rig.run():  # Buried is durable.
        client = await rig.client()
        assert await client.ask("reserve-with-timeout 1") == b"TIMED_OUT"

        assert await client.ask("kick 10") == b"KICKED 1"

        assert await client.reserve() == (job, b"job")
        assert await client.ask("kick 10") == b"KICKED 0"
        assert await client.ask(f"delete {job}") == b"DELETED"


async def test_only_as_many_are_kicked_as_are_wanted(autojump_clock: MockClock) -> None:
    async with running() as rig:
        client = await rig.client()
        jobs = [await client.put(b"%d" % number) for number in range(5)]
        for job in jobs:
            await client.reserve()
            assert await client.ask(f"bury {job} 1024") == b"BURIED"
        delayed = await client.put(delay=100)

        assert await client.ask("kick 3") == b"KICKED 3"
        assert await client.ask("kick 3") == b"KICKED 2"
        assert await client.ask("kick 3") == b"KICKED 1"

        assert [(await client.reserve())[0] for _ in range(6)] == [*jobs, delayed]


@pytest.mark.parametrize("state", ["buried", "delayed"])
async def test_one_job_is_kicked(state: str, autojump_clock: MockClock) -> None:
    async with running() as rig:
        client = await rig.client()
        job = await client.put(delay=100 if state == "delayed" else 0)
        if state == "buried":
            await client.reserve()
            await client.ask(f"bury {job} 1")

        assert await client.ask(f"kick-job {job}") == b"KICKED"

        assert await client.ask(f"kick-job {job}") == b"NOT_FOUND"
        assert (await client.facts(f"stats-job {job}"))["state"] == "ready"
        assert (await client.reserve())[0] == job
        assert await client.ask(f"kick-job {job}") == b"NOT_FOUND"


@pytest.mark.parametrize("state", ["ready", "delayed", "buried"])
async def test_any_client_may_delete_a_job_that_is_not_reserved(state: str, autojump_clock: MockClock) -> None:
    async with running() as rig:
        client, other = await rig.client(), await rig.client()
        job = await client.put(delay=100 if state == "delayed" else 0)
        if state == "buried":
            await client.reserve()
            await client.ask(f"bury {job} 1")

        assert await other.ask(f"delete {job}") == b"DELETED"

        assert await other.ask(f"peek {job}") == b"NOT_FOUND"
        assert sum(depths(rig.alive).values()) == 0


async def test_a_reserved_job_belongs_to_its_client(autojump_clock: MockClock) -> None:
    async with running() as rig:
        worker, other = await rig.client(), await rig.client()
        job = await worker.put()
        await worker.reserve()

        for line in (f"delete {job}", f"release {job} 1 0", f"bury {job} 1", f"touch {job}", f"reserve-job {job}"):
            assert await other.ask(line) == b"NOT_FOUND", line

        assert await other.ask(f"peek {job}") == b"FOUND %d 3\njob" % job
        assert await worker.ask(f"reserve-job {job}") == b"NOT_FOUND"
        assert await worker.ask(f"delete {job}") == b"DELETED"


@pytest.mark.parametrize("state", ["ready", "delayed", "buried"])
@pytest.mark.parametrize("is_wanted", [False, True])
async def test_one_job_is_reserved_by_its_id(state: str, is_wanted: bool, autojump_clock: MockClock) -> None:
    async with running() as rig:
        client, other = await rig.client(), await rig.client()
        await client.put(b"before")
        job = await client.put(delay=100 if state == "delayed" else 0, ttr=5)
        before, _ = await client.reserve()
        if state == "buried":
            await client.reserve()
            await client.ask(f"bury {job} 1")
        if not is_wanted:
            await client.ask(f"release {before} 1024 0")
        elif state != "ready":
            await other.send("reserve")
            await other.nothing()

        assert await client.ask(f"reserve-job {job}") == b"RESERVED %d 3\njob" % job

        facts = await client.facts(f"stats-job {job}")
        assert (facts["state"], facts["ttr"]) == ("reserved", "5")
        assert sum(depths(rig.alive).values()) == 2
        # Its time over, it is ready.
        if is_wanted and state != "ready":
            assert (await other.reply()).startswith(b"RESERVED %d " % job)
        else:
            await trio.sleep(6)
            assert (await client.facts(f"stats-job {job}"))["state"] == "ready"


@pytest.mark.parametrize(
    ("command", "reply"),
    [("release {} 7 1", b"RELEASED"), ("bury {} 7", b"BURIED"), ("touch {}", b"TOUCHED"), ("delete {}", b"DELETED")],
)
async def test_a_job_that_is_reserved_in_the_same_read_is_at_hand(
    autojump_clock: MockClock, command: str, reply: bytes
) -> None:
    async with running() as rig:
        client = await rig.client()
        job = await client.put()

        await client.send("put 5000 0 60 1", "x", "reserve", command.format(job))

        assert (await client.reply()).startswith(b"INSERTED")
        assert await client.reply() == b"RESERVED %d 3\njob" % job
        assert await client.reply() == reply


async def test_a_job_under_way_twice_in_one_read_is_done_once(autojump_clock: MockClock) -> None:
    async with running() as rig:
        client = await rig.client()
        job = await client.put()
        await client.reserve()

        await client.send(f"delete {job}", f"delete {job}", f"release {job} 1 0", f"bury {job} 1", f"touch {job}")

        assert [await client.reply() for _ in range(5)] == [b"DELETED", *[b"NOT_FOUND"] * 4]


async def test_jobs_and_messages_meet_in_one_queue(autojump_clock: MockClock) -> None:
    async with running() as rig:
        client, stomp = await rig.client(), await rig.connect()
        await stomp.send("SEND\ndestination:/queue/default\nkind:letter\nreceipt:1\n\nfrom stomp")
        await stomp.receipt()

        job, body = await client.reserve()
        assert body == b"from stomp"
        assert (await client.facts(f"stats-job {job}"))["ttr"] == "120"
        assert await client.ask(f"bury {job} 3") == b"BURIED"
        await stomp.send(subscribe("/queue/default.buried", id="b"))
        message = await stomp.next("MESSAGE")
        assert (message.body, message.head.headers["kind"]) == (b"from stomp", "letter")
        assert message.head.headers["beanstalk-id"] == str(job)

        await stomp.send(subscribe("/queue/default", id="q"))
        await client.put(b"from beanstalk", priority=3, ttr=9)
        message = await stomp.next("MESSAGE")
        headers = message.head.headers
        assert (message.body, headers["beanstalk-priority"], headers["ack-timeout"]) == (b"from beanstalk", "3", "9")


async def test_a_job_that_is_released_may_not_become_more_messages_than_before(autojump_clock: MockClock) -> None:
    async with running() as rig:
        client, stomp = await rig.client(), await rig.connect()
        await stomp.send('SEND\ndestination:/queue/default\nrouting-keys:["other"]\nreceipt:1\n\nx')
        await stomp.receipt()
        job, _ = await client.reserve()

        assert await client.ask(f"release {job} 7 0") == b"RELEASED"

        await stomp.send(subscribe("/queue/default", id="q"))
        assert (await stomp.next("MESSAGE")).head.headers["qmq-copies-left"] == "500"


async def test_a_sender_of_another_protocol_does_not_choose_the_id_of_a_job(autojump_clock: MockClock) -> None:
    """A consumer that sends a message on with all its headers would make two jobs of one id."""
    async with running() as rig:
        client, stomp = await rig.client(), await rig.connect()
        first = await client.put(b"first")
        await client.reserve()
        await client.ask(f"bury {first} 1")
        await stomp.send(f"SEND\ndestination:/queue/default\nbeanstalk-id:{first}\nkind:copy\nreceipt:1\n\nsecond")
        await stomp.receipt()

        second, body = await client.reserve()

        assert body == b"second" and second != first
        assert (await client.facts(f"stats-job {first}"))["state"] == "buried"
        assert await client.ask(f"bury {second} 1") == b"BURIED"
        assert (await client.facts(f"stats-job {second}"))["state"] == "buried"


async def test_a_paused_tube_gives_nothing_until_its_time_is_over(autojump_clock: MockClock) -> None:
    async with running() as rig:
        client, waiting = await rig.client(), await rig.client()
        job = await client.put()
        began = trio.current_time()

        assert await client.ask("pause-tube default 10") == b"PAUSED"
        await waiting.send("reserve")
        assert await client.ask("reserve-with-timeout 3") == b"TIMED_OUT"
        facts = await client.facts("stats-tube default")
        assert (facts["pause"], facts["current-jobs-ready"], facts["current-waiting"]) == ("10", "1", "1")

        assert await waiting.reply() == b"RESERVED %d 3\njob" % job
        assert 9.9 < trio.current_time() - began < 10.5
        assert await client.ask("pause-tube nowhere 10") == b"NOT_FOUND"


async def test_a_pause_of_no_time_ends_one(autojump_clock: MockClock) -> None:
    async with running() as rig:
        client, waiting = await rig.client(), await rig.client()
        job = await client.put()
        await client.ask("pause-tube default 1000")
        await waiting.send("reserve")
        await waiting.nothing()

        assert await client.ask("pause-tube default 0") == b"PAUSED"

        assert await waiting.reply() == b"RESERVED %d 3\njob" % job


async def test_pauses_that_are_over_take_no_place_of_others(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, "TUBES_MAX", 2)
    async with running() as rig:
        client = await rig.client()
        for tube in ("a", "b", "c"):
            await client.ask(f"use {tube}")
            await client.put()
        await client.ask("watch c")
        assert await client.ask("pause-tube a 10") == b"PAUSED"
        assert await client.ask("pause-tube b 20") == b"PAUSED"
        assert await client.ask("pause-tube c 1000") == b"OUT_OF_MEMORY"
        await trio.sleep(11)

        assert await client.ask("pause-tube c 1000") == b"PAUSED"

        assert await client.ask("reserve-with-timeout 0") == b"TIMED_OUT"


async def test_the_watch_list_has_one_tube_at_least(autojump_clock: MockClock) -> None:
    async with running() as rig:
        client = await rig.client()

        assert await client.ask("ignore default") == b"NOT_IGNORED"
        assert await client.ask("watch a") == b"WATCHING 2"
        assert await client.ask("watch a") == b"WATCHING 2"
        assert await client.ask("ignore default") == b"WATCHING 1"
        assert await client.ask("ignore elsewhere") == b"WATCHING 1"
        assert await client.names("list-tubes-watched") == ["a"]
        await client.put()

        assert await client.ask("reserve-with-timeout 1") == b"TIMED_OUT"


async def test_a_job_of_an_ignored_tube_stays_with_its_client(autojump_clock: MockClock) -> None:
    async with running() as rig:
        client = await rig.client()
        job = await client.put()
        await client.reserve()
        await client.ask("watch a")

        assert await client.ask("ignore default") == b"WATCHING 1"

        await client.put(b"another")
        assert await client.ask("reserve-with-timeout 0") == b"TIMED_OUT"
        assert await client.ask(f"delete {job}") == b"DELETED"


async def _peeks(client: BeanstalkClient) -> list[bytes]:
    return [await client.ask(f"peek-{state}") for state in ("ready", "delayed", "buried")]


async def test_the_first_job_in_each_state_can_be_looked_at(autojump_clock: MockClock) -> None:
    async with running() as rig:
        client = await rig.client()
        assert await _peeks(client) == [b"NOT_FOUND"] * 3
        buried = await client.put(b"buried")
        await client.reserve()
        await client.ask(f"bury {buried} 1")
        await client.put(b"late", delay=100)
        soon = await client.put(b"soon", delay=10)
        await client.put(b"second", priority=50_000)
        first = await client.put(b"first")

        found = await _peeks(client)

        assert found == [b"FOUND %d 5\nfirst" % first, b"FOUND %d 4\nsoon" % soon, b"FOUND %d 6\nburied" % buried]
        await client.ask("use elsewhere")
        assert await _peeks(client) == [b"NOT_FOUND"] * 3
        assert await client.ask(f"peek {first}") == b"FOUND %d 5\nfirst" % first


async def test_tubes_are_listed_while_they_have_jobs_or_clients(autojump_clock: MockClock) -> None:
    async with running() as rig:
        client, other = await rig.client(), await rig.client()
        assert await client.names("list-tubes") == ["default"]
        await other.ask("watch w")
        await client.ask("use u")
        await client.put()
        job, _ = await client.put(b"b"), None
        await client.ask("use b")
        await client.put()
        await client.ask("watch b")
        await client.ask("ignore default")
        buried, _ = await client.reserve()
        await client.ask(f"bury {buried} 1")
        await client.ask("use default")
        other.pipe.close()
        await trio.sleep(1)

        assert job
        assert await client.names("list-tubes") == ["default", "b", "u"]
        assert (await client.ask("stats-tube w")) == b"NOT_FOUND"


async def test_statistics_of_a_tube_and_of_the_node(autojump_clock: MockClock) -> None:
    async with running() as rig:
        client = await rig.client()
        for priority, delay in ((1, 0), (1, 0), (5000, 0), (1, 100)):
            await client.put(priority=priority, delay=delay)
        buried, _ = await client.reserve()
        await client.ask(f"bury {buried} 1")
        reserved, _ = await client.reserve()

        tube = await client.facts("stats-tube default")
        server = await client.facts("stats")

        for facts in (tube, server):
            counted = {name: facts[f"current-jobs-{name}"] for name in ("ready", "reserved", "delayed", "buried")}
            assert counted == {"ready": "1", "reserved": "1", "delayed": "1", "buried": "1"}
            assert (facts["current-jobs-urgent"], facts["total-jobs"]) == ("0", "4")
        assert (tube["current-using"], tube["current-watching"], tube["current-waiting"]) == ("1", "1", "0")
        assert (server["cmd-put"], server["cmd-bury"], server["max-job-size"]) == ("4", "1", "65535")
        assert (server["current-producers"], server["current-workers"]) == ("1", "1")
        await client.ask(f"delete {reserved}")
        assert (await client.facts("stats-tube default"))["cmd-delete"] == "1"


async def test_a_job_that_was_reserved_meanwhile_is_not_deleted(autojump_clock: MockClock) -> None:
    async with running() as rig:
        client = await rig.client()
        job = await client.put()
        part = rig.alive.protocols.of("beanstalk").shared
        found = await part.jobs.find(job)
        assert found is not None and found.state is JobState.READY
        await client.reserve()

        assert not await part.changes.delete(found)

        assert await client.ask(f"delete {job}") == b"DELETED"


@pytest.mark.parametrize("is_refused", [False, True])
async def test_a_job_that_another_one_took_is_not_reserved_by_its_id_as_well(
    is_refused: bool, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running() as rig:
        client = await rig.client()
        job = await client.put()

        async def lost(found: FoundJob) -> bool:
            await trio.lowlevel.checkpoint()
            if is_refused:
                raise Refused("not-serving", "The node may not deliver.")
            return False

        with monkeypatch.context() as patch:
            patch.setattr(rig.alive.protocols.of("beanstalk").shared.changes, "delete", lost)
            assert await client.ask(f"reserve-job {job}") == b"NOT_FOUND"

        assert depths(rig.alive) == {Q: 1}
        assert await client.ask(f"delete {job}") == b"DELETED"


@pytest.mark.parametrize("change", ["bury {} 1", "release {} 1 5"])
@pytest.mark.parametrize(
    "settings",
    [
        # The reply to the change comes before that to the put: at once, or while the put waits for the rate.
        {"destinations": DestinationSettings(policies=(DestinationPolicy(pattern="/queue/*", durable=False),))},
        {"limits": {"messages_per_second_per_address_max": 2}},
    ],
    ids=["memory", "rate"],
)
async def test_a_put_behind_a_job_that_is_changed_in_the_same_read_has_an_id_of_its_own(
    autojump_clock: MockClock, settings: dict[str, Any], change: str
) -> None:
    async with running(**settings) as rig:
        client = await rig.client()
        first = await client.put(b"first")
        await client.reserve()

        await client.send(change.format(first), "put 1 0 60 6", "second")
        assert await client.reply() in (b"BURIED", b"RELEASED")
        second = int((await client.reply()).removeprefix(b"INSERTED "))

        assert second != first
        assert await client.reserve() == (second, b"second")
