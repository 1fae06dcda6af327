"""Jobs of one node as clients of another one see them."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.errors import Refused
from qmq.protocols.beanstalk.calls import BeanstalkCall, DeleteJob, KickTube
from tests.node.mesh_rig import isolate
from tests.node.rig import send
from tests.protocols.beanstalk.mesh import BeanstalkMesh
from tests.protocols.beanstalk.rig import BeanstalkClient


async def in_state(client: BeanstalkClient, state: str) -> int:
    """A job that this client puts and brings into a state."""
    job = await client.put(delay=100 if state == "delayed" else 0)
    if state in ("buried", "reserved"):
        assert (await client.reserve())[0] == job
    if state == "buried":
        assert await client.ask(f"bury {job} 7") == b"BURIED"
    return job


async def test_a_job_is_reserved_at_another_node(autojump_clock: MockClock) -> None:
    async with BeanstalkMesh("a", "b", "c").run() as rig:
        sender, worker = await rig.client("a"), await rig.client("b")
        jobs = [await sender.put(b"%d" % number) for number in range(3)]

        assert await worker.reserve() == (jobs[0], b"0")
        assert await worker.reserve(0) == (jobs[1], b"1")
        assert await worker.ask(f"delete {jobs[0]}") == b"DELETED"
        assert await worker.ask(f"release {jobs[1]} 1024 0") == b"RELEASED"

        other = await rig.client("c")
        assert {(await other.reserve())[0] for _ in range(2)} == set(jobs[1:])


async def test_a_job_keeps_its_ttl_at_a_node_whose_clock_is_ahead(autojump_clock: MockClock) -> None:
    rig = BeanstalkMesh("a", "b")
    rig.skews_us["b"] = 1_200_000_000
    async with rig.run():
        worker = await rig.client("b")
        await (await rig.connect("a")).send(send("/queue/default", "job", ttl="600000"))
        job, _ = await worker.reserve()

        assert await worker.ask(f"release {job} 1 0") == b"RELEASED"

        assert await worker.reserve(10) == (job, b"job")


async def test_a_waiting_reserve_gets_a_job_of_another_node(autojump_clock: MockClock) -> None:
    async with BeanstalkMesh("a", "b").run() as rig:
        sender, worker = await rig.client("a"), await rig.client("b")
        for number in range(3):
            await worker.send("reserve")
            await worker.nothing(1)

            job = await sender.put(b"%d" % number)

            assert await worker.reply() == b"RESERVED %d 1\n%d" % (job, number)


async def test_jobs_that_others_are_at_work_on_do_not_keep_a_worker_waiting(autojump_clock: MockClock) -> None:
    async with BeanstalkMesh("a", "b").run() as rig:
        sender = await rig.client("a")
        busy = [await rig.client("b") for _ in range(3)]
        for client in busy:
            await sender.put()
            await client.reserve()
        worker = await rig.client("b")
        await worker.send("reserve")
        await worker.nothing(1)

        job = await sender.put(b"next")

        assert await worker.reply() == b"RESERVED %d 4\nnext" % job


@pytest.mark.parametrize("state", ["ready", "delayed", "buried", "reserved"])
async def test_any_node_finds_a_job_by_its_id(state: str, autojump_clock: MockClock) -> None:
    async with BeanstalkMesh("a", "b").run() as rig:
        client, other = await rig.client("a"), await rig.client("b")
        job = await in_state(client, state)

        assert await other.ask(f"peek {job}") == b"FOUND %d 3\njob" % job
        facts = await other.facts(f"stats-job {job}")
        assert (facts["id"], facts["state"], facts["tube"]) == (str(job), state, "default")
        assert await other.ask(f"peek {job + 1}") == b"NOT_FOUND"


@pytest.mark.parametrize("state", ["ready", "delayed", "buried", "reserved"])
async def test_any_node_deletes_a_job_that_no_client_has_reserved(state: str, autojump_clock: MockClock) -> None:
    async with BeanstalkMesh("a", "b").run() as rig:
        client, other = await rig.client("a"), await rig.client("b")
        job = await in_state(client, state)

        expected = b"NOT_FOUND" if state == "reserved" else b"DELETED"
        assert await other.ask(f"delete {job}") == expected
        assert (await client.ask(f"delete {job}")) == (b"DELETED" if state == "reserved" else b"NOT_FOUND")


@pytest.mark.parametrize("state", ["ready", "delayed", "buried", "reserved"])
async def test_any_node_kicks_a_job(state: str, autojump_clock: MockClock) -> None:
    async with BeanstalkMesh("a", "b").run() as rig:
        client, other = await rig.client("a"), await rig.client("b")
        job = await in_state(client, state)
        expected = b"KICKED" if state in ("delayed", "buried") else b"NOT_FOUND"

        assert await other.ask(f"kick-job {job}") == expected

        if expected == b"KICKED":
            assert await other.reserve() == (job, b"job")


@pytest.mark.parametrize("skew_us", [0, -1_200_000_000])
async def test_a_job_that_was_buried_elsewhere_is_buried_for_all_before_its_owner_knows(
    autojump_clock: MockClock, skew_us: int
) -> None:
    rig = BeanstalkMesh("a", "b", "c")
    rig.skews_us["b"] = skew_us
    async with rig.run():
        sender, worker = await rig.client("a"), await rig.client("b")
        job = await sender.put()
        assert (await worker.reserve())[0] == job
        rig.cut("a", "b")
        rig.slow_disk("c", 1.0, exactly=True)  # so that a does not hear of it through c at once
        assert await worker.ask(f"bury {job} 7") == b"BURIED"

        for _ in range(8):
            assert (await (await rig.client("c")).facts(f"stats-job {job}"))["state"] == "buried"
        assert await (await rig.client("c")).ask(f"kick-job {job}") == b"KICKED"


@pytest.mark.parametrize("state", ["ready", "delayed", "buried", "reserved"])
async def test_any_node_reserves_a_job_by_its_id(state: str, autojump_clock: MockClock) -> None:
    async with BeanstalkMesh("a", "b").run() as rig:
        client, other = await rig.client("a"), await rig.client("b")
        job = await in_state(client, state)

        reply = await other.ask(f"reserve-job {job}")

        if state == "reserved":
            assert reply == b"NOT_FOUND"
        else:
            assert reply == b"RESERVED %d 3\njob" % job
            assert await client.ask(f"reserve-job {job}") == b"NOT_FOUND"
            assert await other.ask(f"delete {job}") == b"DELETED"
            assert await client.ask(f"peek {job}") == b"NOT_FOUND"


async def test_buried_jobs_of_all_nodes_are_kicked(autojump_clock: MockClock) -> None:
    async with BeanstalkMesh("a", "b", "c").run() as rig:
        jobs = [await in_state(await rig.client(name), "buried") for name in ("a", "b", "c")]
        client = await rig.client("a")

        assert await client.ask("kick 2") == b"KICKED 2"
        assert await client.ask("kick 2") == b"KICKED 1"

        assert {(await client.reserve())[0] for _ in jobs} == set(jobs)


@pytest.mark.parametrize("state", ["buried", "delayed"])
@pytest.mark.parametrize("is_at_once", [True, False])
async def test_a_kick_that_is_sent_again_kicks_no_further_jobs(
    state: str, is_at_once: bool, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with BeanstalkMesh("a", "b").run() as rig:
        there = await rig.client("a")
        for _ in range(5):
            await in_state(there, state)
        client, node = await rig.client("b"), rig.nodes["b"]
        ask_one = node.peer_rpc.ask_one

        async def repeated(peer: str, call: BeanstalkCall[Any]) -> Any:
            """A link ends behind the request, before its node has responded or with the response."""
            if is_at_once:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(ask_one, peer, call)
                    return await ask_one(peer, call)
            await ask_one(peer, call)
            return await ask_one(peer, call)

        monkeypatch.setattr(node.peer_rpc, "ask_one", repeated)

        assert await client.ask("kick 2") == b"KICKED 2"
        assert (await there.facts("stats-tube default"))[f"current-jobs-{state}"] == "3"


async def test_a_kick_whose_response_is_lost_is_not_denied(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with BeanstalkMesh("a", "b").run() as rig:
        job = await in_state(await rig.client("a"), "buried")
        client, node = await rig.client("b"), rig.nodes["b"]
        ask_one = node.peer_rpc.ask_one

        async def lost(peer: str, call: BeanstalkCall[Any]) -> Any:
            await ask_one(peer, call)
            return None

        monkeypatch.setattr(node.peer_rpc, "ask_one", lost)

        assert await client.ask("kick 1") == b"INTERNAL_ERROR"
        assert (await client.facts(f"stats-job {job}"))["state"] == "ready"


async def test_no_delayed_job_is_kicked_while_a_node_that_may_have_buried_ones_is_silent(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with BeanstalkMesh("a", "b").run() as rig:
        await in_state(await rig.client("a"), "buried")
        client, node = await rig.client("b"), rig.nodes["b"]
        job = await in_state(client, "delayed")
        ask_one = node.peer_rpc.ask_one

        async def silent(peer: str, call: BeanstalkCall[Any]) -> Any:
            return None if isinstance(call, KickTube) else await ask_one(peer, call)

        monkeypatch.setattr(node.peer_rpc, "ask_one", silent)

        assert await client.ask("kick 1") == b"INTERNAL_ERROR"
        assert (await client.facts(f"stats-job {job}"))["state"] == "delayed"


async def test_tubes_and_counts_are_those_of_the_mesh(autojump_clock: MockClock) -> None:
    async with BeanstalkMesh("a", "b").run() as rig:
        here, there = await rig.client("a"), await rig.client("b")
        await there.ask("use t")
        for state in ("ready", "delayed"):
            await in_state(there, state)
        await there.ask("watch t")
        job, _ = await there.reserve()

        assert await here.names("list-tubes") == ["default", "t"]
        facts = await here.facts("stats-tube t")
        counted = [facts[f"current-jobs-{name}"] for name in ("ready", "reserved", "delayed", "buried")]
        assert counted == ["0", "1", "1", "0"]
        assert (facts["current-using"], facts["current-watching"], facts["total-jobs"]) == ("1", "1", "2")
        assert await here.ask("use t") == b"USING t"
        assert (await here.ask("peek-delayed")).startswith(b"FOUND ")
        assert (await here.facts("stats"))["current-connections"] == "2"
        assert await there.ask(f"delete {job}") == b"DELETED"


async def test_a_pause_counts_on_all_nodes(autojump_clock: MockClock) -> None:
    async with BeanstalkMesh("a", "b").run() as rig:
        here, there = await rig.client("a"), await rig.client("b")
        job = await here.put()

        assert await here.ask("pause-tube default 10") == b"PAUSED"

        assert await there.ask("reserve-with-timeout 5") == b"TIMED_OUT"
        assert (await there.reserve(10))[0] == job


async def test_too_few_copies_of_one_put_end_nothing_else(autojump_clock: MockClock) -> None:
    async with BeanstalkMesh("a", "b", "c", mesh={"receipt_short": "refuse"}).run() as rig:
        client = await rig.client("a")
        job = await client.put(b"in hand")
        assert (await client.reserve())[0] == job
        isolate(rig, "a")

        await client.send("put 0 0 60 1\r\nx", "put 0 0 60 1\r\ny", "use t")

        assert [await client.reply() for _ in range(3)] == [b"INTERNAL_ERROR", b"INTERNAL_ERROR", b"USING t"]
        assert await client.ask(f"touch {job}") == b"TOUCHED"


async def test_nothing_is_lost_with_a_node_that_dies(autojump_clock: MockClock) -> None:
    rig = BeanstalkMesh("a", "b", "c", mesh={"takeover_after_seconds": 10.0})
    async with rig.run():
        sender, worker = await rig.client("a"), await rig.client("a")
        jobs = [await sender.put(b"%d" % number) for number in range(4)]
        reserved, _ = await worker.reserve()
        buried, _ = await worker.reserve()
        await worker.ask(f"bury {buried} 1")

        await rig.kill("a")
        await trio.sleep(30)

        other = await rig.client("b")
        seen = {(await other.reserve())[0] for _ in range(3)}
        assert seen == set(jobs) - {buried}
        assert reserved in seen
        assert await other.ask("kick 5") == b"KICKED 1"
        assert (await other.reserve())[0] == buried
        for job in jobs:
            assert await other.ask(f"delete {job}") == b"DELETED"


@pytest.mark.parametrize("command", ["kick-job {job}", "kick 1", "delete {job}", "reserve-job {job}"])
@pytest.mark.parametrize("name", ["a", "b"])
async def test_a_command_waits_for_a_node_that_may_not_deliver_yet(
    name: str, command: str, autojump_clock: MockClock
) -> None:
    async with BeanstalkMesh("a", "b").run() as rig:
        job = await in_state(await rig.client("a"), "buried")
        client = await rig.client(name)
        rig.nodes["a"].mesh_parts.start_hold.hold_back()
        await client.send(command.format(job=job))
        await client.nothing(3)

        rig.nodes["a"].mesh_parts.start_hold.release()

        assert (await client.reply()).split()[0] in (b"KICKED", b"DELETED", b"RESERVED")


@pytest.mark.parametrize("command", ["kick-job {job}", "kick 1", "delete {job}", "reserve-job {job}"])
@pytest.mark.parametrize("name", ["a", "b"])
async def test_a_command_fails_if_the_node_of_its_job_may_not_deliver_for_long(
    name: str, command: str, autojump_clock: MockClock
) -> None:
    async with BeanstalkMesh("a", "b").run() as rig:
        job = await in_state(await rig.client("a"), "buried")
        client = await rig.client(name)
        rig.nodes["a"].mesh_parts.start_hold.hold_back()

        assert await client.ask(command.format(job=job)) == b"INTERNAL_ERROR"

        rig.nodes["a"].mesh_parts.start_hold.release()
        assert (await client.facts(f"stats-job {job}"))["state"] == "buried"


@pytest.mark.parametrize("fault", ["lost", "repeated"])
async def test_a_job_is_not_lost_when_the_response_of_its_node_is(
    fault: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with BeanstalkMesh("a", "b").run() as rig:
        job = await in_state(await rig.client("a"), "buried")
        worker, node = await rig.client("b"), rig.nodes["b"]
        ask_one = node.peer_rpc.ask_one

        async def faulty(peer: str, call: BeanstalkCall[Any]) -> Any:
            """A link ends behind the request to delete the job: with its response, or so that it is sent again."""
            response = await ask_one(peer, call)
            if not isinstance(call, DeleteJob):
                return response
            return None if fault == "lost" else await ask_one(peer, call)

        monkeypatch.setattr(node.peer_rpc, "ask_one", faulty)

        assert await worker.ask(f"reserve-job {job}") == b"RESERVED %d 3\njob" % job

        assert await worker.ask(f"delete {job}") == b"DELETED"
        assert await worker.ask(f"peek {job}") == b"NOT_FOUND"


@pytest.mark.parametrize("fault", ["none", "evicted", "late"])
async def test_a_job_that_is_deleted_while_it_is_reserved_by_its_id_does_not_come_back(
    fault: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with BeanstalkMesh("a", "b").run() as rig:
        client, worker, node = await rig.client("a"), await rig.client("b"), rig.nodes["b"]
        job = await client.put(delay=1000, ttr=1)
        ask_one = node.peer_rpc.ask_one

        async def deleted_meanwhile(peer: str, call: BeanstalkCall[Any]) -> Any:
            """The reservation may end before the node of the job responds."""
            if isinstance(call, DeleteJob):
                assert await client.ask(f"delete {job}") == b"DELETED"
                if fault == "evicted":
                    next(iter(node.sessions.values())).evict(Refused("memory-exceeded", "too much"))
                elif fault == "late":
                    await trio.sleep(2)
            return await ask_one(peer, call)

        monkeypatch.setattr(node.peer_rpc, "ask_one", deleted_meanwhile)
        await worker.send(f"reserve-job {job}")

        assert await (worker.until_closed() if fault == "evicted" else worker.reply()) != b"RESERVED %d 3\njob" % job
        await trio.sleep(1)
        assert await client.ask(f"peek {job}") == b"NOT_FOUND"


@pytest.mark.parametrize(("fault", "expected"), [("lost", b"INTERNAL_ERROR"), ("repeated", b"DELETED")])
async def test_a_deletion_whose_response_is_lost_is_not_denied(
    fault: str, expected: bytes, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with BeanstalkMesh("a", "b").run() as rig:
        job = await in_state(await rig.client("a"), "ready")
        client, node = await rig.client("b"), rig.nodes["b"]
        ask_one = node.peer_rpc.ask_one

        async def faulty(peer: str, call: BeanstalkCall[Any]) -> Any:
            response = await ask_one(peer, call)
            return None if fault == "lost" else response and await ask_one(peer, call)

        found = await client.facts(f"stats-job {job}")
        monkeypatch.setattr(node.peer_rpc, "ask_one", faulty)

        assert found["state"] == "ready"
        assert await client.ask(f"delete {job}") == expected
        assert await client.ask(f"peek {job}") == b"NOT_FOUND"


async def test_delayed_jobs_are_not_kicked_by_a_node_that_may_not_deliver_any_more(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with BeanstalkMesh("a", "b").run() as rig:
        client, node = await rig.client("a"), rig.nodes["a"]
        job = await client.put(delay=1000)
        run_blocking = node.environment.run_blocking

        async def held_meanwhile(call: Any, *arguments: Any) -> Any:
            """Another node may serve the jobs when the store has answered."""
            found = await run_blocking(call, *arguments)
            if getattr(call, "__name__", "") == "due":
                node.mesh_parts.start_hold.hold_back()
            return found

        monkeypatch.setattr(node.environment, "run_blocking", held_meanwhile)

        assert await client.ask("kick 1") == b"INTERNAL_ERROR"
        monkeypatch.setattr(node.environment, "run_blocking", run_blocking)
        assert (await client.facts(f"stats-job {job}"))["state"] == "delayed"
