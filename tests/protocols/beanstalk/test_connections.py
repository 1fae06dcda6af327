"""Connections of beanstalkd clients: users, limits, slow and half-finished clients, the stop of a node."""

from typing import Any
from unittest.mock import patch

import pytest
import trio
from trio.testing import MockClock

from qmq.config import (
    Address,
    DestinationPolicy,
    DestinationSettings,
    LimitSettings,
    PermissionSettings,
    User,
    UserLimitSettings,
)
from qmq.protocols.beanstalk.decisions import TOGETHER_MAX, DecidedItem, Decisions
from qmq.protocols.beanstalk.dialogue import BeanstalkDialogue
from qmq.protocols.beanstalk.listener import BeanstalkListenerSettings
from qmq.sessions.frame_loop import FrameLoop
from qmq.wire.stomp import Frame
from tests.config.test_load import HASH
from tests.node.rig import HOST, eventually, send, subscribe
from tests.protocols.beanstalk.rig import BEANSTALK_PORT, BeanstalkRig, running
from tests.settings.definitions.test_declared_queues import request
from tests.support.depths import depths

ANN = User(name="ann", password_hash=HASH)
MAY = PermissionSettings(user="ann", allow=("send", "subscribe"), destinations=("/queue/t", "/queue/t.buried"))


def listener(**settings: Any) -> BeanstalkListenerSettings:
    return BeanstalkListenerSettings(address=Address(HOST, BEANSTALK_PORT), **settings)


async def test_clients_act_as_the_user_of_their_listener(autojump_clock: MockClock) -> None:
    async with running(listener=listener(user="ann"), users=(ANN,), permissions=(MAY,)) as rig:
        client = await rig.client()
        await client.ask("use t")
        await client.ask("watch t")
        await client.ask("ignore default")

        job = await client.put()
        assert (await client.reserve())[0] == job
        assert await client.ask(f"bury {job} 1") == b"BURIED"
        assert await client.ask("kick -1") == b"KICKED 0"
        assert await client.ask("kick 1") == b"KICKED 1"
        assert [session.user for session in rig.alive.sessions.values()] == ["ann"]


async def test_bytes_of_commands_that_put_nothing_are_limited_too(autojump_clock: MockClock) -> None:
    limit = UserLimitSettings(user="ann", bytes_per_second_max=2048)
    limited = listener(user="ann", job_bytes_max=100)
    async with running(listener=limited, users=(ANN,), permissions=(MAY,), user_limits=(limit,)) as rig:
        client = await rig.client()
        began = trio.current_time()

        for _ in range(800):
            assert await client.ask("use t") == b"USING t"
        assert await client.ask("put 1 0 60 20000", bytes(20000)) == b"JOB_TOO_BIG"
        assert await client.ask("use t") == b"USING t"

        assert trio.current_time() - began >= 10


async def test_what_the_user_may_not_do_is_refused_and_noted(autojump_clock: MockClock) -> None:
    async with running(listener=listener(user="ann"), users=(ANN,), permissions=(MAY,)) as rig:
        client = await rig.client()
        stomp = rig.alive
        out_of_reach = "/queue/secret"

        assert await client.ask("use secret") == b"USING secret"
        await client.send("put 1 0 60 1", "a", "use t", "put 1 0 60 1", "b")
        replies = [await client.reply() for _ in range(3)]
        assert replies[0] == b"INTERNAL_ERROR" and replies[2].startswith(b"INSERTED")
        assert depths(stomp) == {"/queue/t": 1}

        assert await client.ask("watch secret") == b"WATCHING 2"
        assert await client.ask("reserve-with-timeout 0") == b"INTERNAL_ERROR"
        assert await client.ask("stats-tube secret") == b"NOT_FOUND"
        assert await client.ask("pause-tube t 60") == b"INTERNAL_ERROR"
        assert await client.ask("use secret") == b"USING secret"
        assert await client.ask("kick 1") == b"INTERNAL_ERROR"
        assert "secret" not in await client.names("list-tubes")
        assert out_of_reach not in depths(rig.alive)


async def test_a_job_of_a_tube_out_of_reach_cannot_be_seen_or_deleted(autojump_clock: MockClock) -> None:
    rows = (MAY, PermissionSettings(user="bob", allow=("send", "subscribe"), destinations=("/queue/*",)))
    users = (ANN, User(name="bob", password_hash=HASH))
    rig = BeanstalkRig(listener=listener(user="bob"), users=users, permissions=rows)
    async with rig.run():
        job = await (await rig.client()).put()
    rig.settings = rig.settings.replace({"beanstalk": (listener(user="ann"),)})
    rig.fabric = type(rig.fabric)(rig.fabric.rng)
    async with rig.run():
        client = await rig.client()

        for line in ("peek", "delete", "stats-job", "reserve-job"):
            assert await client.ask(f"{line} {job}") == b"INTERNAL_ERROR", line
        assert depths(rig.alive) == {"/queue/default": 1}


async def test_buried_jobs_out_of_reach_are_not_kicked(autojump_clock: MockClock) -> None:
    less = PermissionSettings(user="ann", allow=("send", "subscribe"), destinations=("/queue/t",))
    async with running(listener=listener(user="ann"), users=(ANN,), permissions=(MAY,)) as rig:
        client = await rig.client()
        for line in ("use t", "watch t", "ignore default"):
            await client.ask(line)
        job = await client.put()
        await client.reserve()
        await client.ask(f"bury {job} 1")

        rig.alive.session_parts.login_path.access.change((ANN,), (less.permission,))
        for line in ("kick 1", f"kick-job {job}"):
            assert await client.ask(line) == b"INTERNAL_ERROR", line

        assert depths(rig.alive) == {"/queue/t.buried": 1}


async def test_jobs_of_a_queue_that_is_exclusive_to_another_connection_stay(autojump_clock: MockClock) -> None:
    async with running() as rig:
        owner, client = await rig.connect(), await rig.client()
        for queue in ("/queue/default", "/queue/default.buried"):
            await request(owner, f"declare{queue}", {"exclusive_to_connection": True})
        job = await client.put(delay=3600)
        await owner.send(send("/queue/default.buried", "x", "r"))
        await owner.receipt()

        for line in (f"delete {job}", f"kick-job {job}", f"reserve-job {job}", "kick 1"):
            assert await client.ask(line) == b"INTERNAL_ERROR", line

        assert depths(rig.alive) == {"/queue/default": 1, "/queue/default.buried": 1}


@pytest.mark.parametrize("user", [None, "bob"])
async def test_a_listener_without_a_user_serves_no_client_when_there_are_users(
    user: str | None, autojump_clock: MockClock
) -> None:
    async with running(listener=listener(user=user), users=(ANN,)) as rig:
        client = await rig.client()

        assert await client.until_closed() == b"INTERNAL_ERROR\r\n"
        assert not rig.alive.sessions


async def test_connections_are_bounded_per_user(autojump_clock: MockClock) -> None:
    limits = {"connections_per_user_max": 1}
    async with running(listener=listener(user="ann"), users=(ANN,), permissions=(MAY,), limits=limits) as rig:
        first = await rig.client()
        await first.ask("use t")

        assert await (await rig.client()).until_closed() == b"OUT_OF_MEMORY\r\n"

        first.pipe.close()
        await eventually(lambda: not rig.alive.sessions)
        assert await (await rig.client()).ask("use t") == b"USING t"


async def test_a_connection_too_many_is_refused_with_a_reason(autojump_clock: MockClock) -> None:
    async with running(limits={"connections_max": 1}) as rig:
        first = await rig.client()
        await first.ask("use t")

        assert await (await rig.client()).until_closed() == b"OUT_OF_MEMORY\r\n"


async def test_a_job_that_is_too_big_is_refused(autojump_clock: MockClock) -> None:
    async with running(listener=listener(job_bytes_max=100)) as rig:
        client = await rig.client()

        assert await client.ask("put 1 0 60 101", "a" * 101) == b"JOB_TOO_BIG"
        assert await client.put(b"a" * 100)
        assert (await client.facts("stats"))["max-job-size"] == "100"

        await client.send("put 1 0 60 4294967295")
        assert await client.until_closed() == b"JOB_TOO_BIG\r\n"


async def test_a_put_into_a_full_queue_is_refused_by_itself(autojump_clock: MockClock) -> None:
    policy = DestinationPolicy(pattern="/queue/full", max_messages=2)
    async with running(destinations=DestinationSettings(policies=(policy,))) as rig:
        client = await rig.client()
        puts = [
            line for tube in ("full", "full", "full", "free", "full") for line in (f"use {tube}", "put 1 0 60 1", "x")
        ]

        await client.send(*puts)

        words = [(await client.reply()).split(b" ")[0] for _ in range(10)][1::2]
        assert words == [b"INSERTED", b"INSERTED", b"OUT_OF_MEMORY", b"INSERTED", b"OUT_OF_MEMORY"]


async def test_refused_commands_leave_no_receipts_behind(autojump_clock: MockClock) -> None:
    policies = (
        DestinationPolicy(pattern="/queue/full", max_messages=1),
        DestinationPolicy(pattern="/queue/default.buried", max_messages=1),
    )
    async with running(destinations=DestinationSettings(policies=policies)) as rig:
        client = await rig.client()
        jobs = [await client.put() for _ in range(2)]
        for _ in jobs:
            await client.reserve()
        (session,) = rig.alive.sessions.values()
        assert isinstance(session.dialogue, BeanstalkDialogue)

        await client.send(*[f"bury {job} 1" for job in jobs], "use full", *["put 1 0 60 1", "x"] * 100)
        replies = [await client.reply() for _ in range(103)]

        assert replies[1] == replies[-1] == b"OUT_OF_MEMORY"
        assert not session.dialogue._replies._by_receipt


async def test_the_work_for_many_refused_commands_grows_with_their_number_only(autojump_clock: MockClock) -> None:
    policy = DestinationPolicy(pattern="/queue/default", max_messages=1)
    made = 0
    frames_of = Decisions._frames_of

    def counted(decisions: Decisions, item: DecidedItem) -> list[Frame]:
        nonlocal made
        made += 1
        return frames_of(decisions, item)

    async with running(destinations=DestinationSettings(policies=(policy,))) as rig:
        client = await rig.client()
        await client.put()
        with patch.object(Decisions, "_frames_of", counted):
            await client.send(*["put 1 0 60 1", "x"] * 500)
            assert [await client.reply() for _ in range(500)] == [b"OUT_OF_MEMORY"] * 500

    assert made <= 500 * TOGETHER_MAX


async def test_a_bury_that_is_refused_leaves_the_job_reserved(autojump_clock: MockClock) -> None:
    policy = DestinationPolicy(pattern="/queue/default.buried", max_messages=1)
    async with running(destinations=DestinationSettings(policies=(policy,))) as rig:
        client = await rig.client()
        jobs = [await client.put() for _ in range(2)]
        for _ in jobs:
            await client.reserve()

        await client.send(*[f"bury {job} 1" for job in jobs], "put 1 0 60 1", "x")

        assert [(await client.reply()).split(b" ")[0] for _ in range(3)] == [b"BURIED", b"OUT_OF_MEMORY", b"INSERTED"]
        assert (await client.facts(f"stats-job {jobs[1]}"))["state"] == "reserved"
        assert await client.ask(f"delete {jobs[1]}") == b"DELETED"


async def test_the_watch_list_is_bounded(autojump_clock: MockClock) -> None:
    async with running(limits={"subscriptions_max": 3}) as rig:
        client = await rig.client()

        assert await client.ask("watch a") == b"WATCHING 2"
        assert await client.ask("watch b") == b"WATCHING 3"
        assert await client.ask("watch c") == b"OUT_OF_MEMORY"
        await client.put()
        assert (await client.reserve())[1] == b"job"
        assert await client.ask("ignore a") == b"WATCHING 2"
        assert await client.ask("watch c") == b"WATCHING 3"
        assert await client.ask("reserve-with-timeout 0") == b"TIMED_OUT"


async def test_jobs_of_many_tubes_are_reserved_by_their_ids(autojump_clock: MockClock) -> None:
    async with running(limits={"subscriptions_max": 3}) as rig:
        client = await rig.client()

        for number in range(5):
            await client.ask(f"use t{number}")
            job = await client.put()
            assert await client.ask(f"reserve-job {job}") == b"RESERVED %d 3\njob" % job
            assert await client.ask(f"delete {job}") == b"DELETED"


async def test_a_half_line_is_held_and_counted_until_the_client_leaves(autojump_clock: MockClock) -> None:
    async with running() as rig:
        client = await rig.client()
        await client.ask("use t")
        (session,) = rig.alive.sessions.values()
        before = session.held_bytes

        await client.pipe.send_all(b"put 1 0 60 1000\r\n" + b"a" * 500)
        await eventually(lambda: session.held_bytes == before + 500)
        client.pipe.close()

        await eventually(lambda: not rig.alive.sessions)
        assert sum(depths(rig.alive).values()) == 0


async def test_a_client_that_reads_no_replies_is_not_read_further(autojump_clock: MockClock) -> None:
    limits = {"outbox_bytes_max": 1 << 20, "body_bytes_max": 1 << 17}
    async with running(limits=limits) as rig:
        client = await rig.client()
        job = await client.put(b"x" * 60_000)
        with trio.move_on_after(60):
            while True:
                await client.send(*[f"peek {job}"] * 1000)
        (session,) = rig.alive.sessions.values()

        assert session.outbox.size < LimitSettings(**limits).outbox_bytes_max
        other = await rig.client("10.0.0.2")
        assert (await other.reserve(0))[0] == job


async def test_a_waiting_client_that_ends_its_half_is_answered(autojump_clock: MockClock) -> None:
    async with running() as rig:
        client = await rig.client()
        await client.send("reserve")
        await client.nothing()

        client.pipe.end_sending()

        assert await client.until_closed() == b"TIMED_OUT\r\n"
        assert await (await rig.client()).ask("reserve-with-timeout 0") == b"TIMED_OUT"


async def test_a_waiting_client_that_vanishes_takes_no_job(autojump_clock: MockClock) -> None:
    async with running() as rig:
        client, other = await rig.client(), await rig.client()
        await client.send("reserve")
        await client.nothing()

        client.pipe.close()
        await eventually(lambda: len(rig.alive.sessions) == 1)
        job = await other.put()

        assert (await other.reserve(0))[0] == job


async def test_commands_behind_a_waiting_reserve_are_obeyed_after_it(autojump_clock: MockClock) -> None:
    async with running() as rig:
        client, other = await rig.client(), await rig.client()
        await client.send("reserve", "use a")
        await client.send("list-tube-used")
        await client.nothing()

        job = await other.put()

        assert [await client.reply() for _ in range(3)] == [b"RESERVED %d 3\njob" % job, b"USING a", b"USING a"]


async def test_quit_ends_the_connection_behind_all_replies(autojump_clock: MockClock) -> None:
    async with running() as rig:
        client = await rig.client()

        await client.send("put 1 0 60 1", "a", "quit", "put 1 0 60 1", "b")

        assert (await client.until_closed()).startswith(b"INSERTED ")
        assert depths(rig.alive) == {"/queue/default": 1}


async def test_a_node_that_stops_lets_a_worker_finish_its_job(autojump_clock: MockClock) -> None:
    rig = BeanstalkRig(limits={"drain_seconds": 20.0})
    async with rig.run():
        client, waiting = await rig.client(), await rig.client()
        job = await client.put()
        await client.reserve()
        await waiting.send("reserve")
        await waiting.nothing()

        rig.alive.stop()
        await waiting.until_closed()
        assert await client.ask(f"delete {job}") == b"DELETED"
        await client.until_closed()
    rig.fabric = type(rig.fabric)(rig.fabric.rng)
    async with rig.run():
        assert sum(depths(rig.alive).values()) == 0


@pytest.mark.parametrize("command", ["reserve", "reserve-with-timeout 5", "reserve-job {job}"])
async def test_a_reservation_whose_session_ends_before_its_turn_ends_with_it(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, command: str
) -> None:
    async with running() as rig:
        job = await (await rig.client()).put()
        client = await rig.client()
        waits, has_turn = trio.Event(), trio.Event()

        async def turn(loop: FrameLoop) -> None:
            waits.set()
            await has_turn.wait()

        with patch.object(FrameLoop, "slot", turn):
            await client.send(command.format(job=job))
            await waits.wait()
            rig.alive.sessions[max(rig.alive.sessions)].end_in_order()
            has_turn.set()
            assert await client.until_closed() == b""

        assert depths(rig.alive) == {"/queue/default": 1}
    assert "session failed" not in caplog.text


async def test_sessions_are_gone_with_their_connections(autojump_clock: MockClock) -> None:
    async with running() as rig:
        for _ in range(3):
            client = await rig.client()
            await client.put()
            await client.reserve()
            client.pipe.close()
        await eventually(lambda: not rig.alive.sessions)

        stomp = await rig.connect()
        await stomp.send(subscribe("/queue/default", id="q"))

        assert await stomp.messages(3) == [b"job"] * 3
        assert (await (await rig.client()).facts("stats"))["current-connections"] == "1"
