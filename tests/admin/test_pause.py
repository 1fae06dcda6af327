"""Pausing delivery or acceptance of a queue: on all nodes, over restarts, and until it is resumed."""

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.definitions.definition import Key
from tests.admin.test_bulk_jobs import OTHER, Q, contents, fill, refusal, until_alike
from tests.admin.test_connections import ask
from tests.node.mesh_rig import MeshRig, isolate, rejoin
from tests.node.rig import Client, Rig, eventually, nothing_more, send, subscribe
from tests.settings.definitions.test_definitions_mesh import write


async def parts(client: Client, verb: str, **headers: str) -> tuple[bool, bool]:
    """Ask for `verb`; whether delivery and acceptance are paused then."""
    facts: dict[str, Any] = await ask(client, f"{verb}{Q}", **headers)
    return facts["delivery"], facts["acceptance"]


async def consumer(client: Client, **headers: str) -> Client:
    await client.send(subscribe(Q, ack="client-individual", **headers))
    await client.receipt()
    return client


async def silence(client: Client, seconds: float = 5.0) -> None:
    with trio.move_on_after(seconds):
        message = await client.next("MESSAGE")
        raise AssertionError(f"{message.body!r} was delivered")


async def test_a_paused_queue_delivers_nothing_until_it_is_resumed(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client, worker = await rig.connect(), await rig.connect()
        assert await parts(client, "pause") == (True, False)
        await fill(client, "1", "2")

        await consumer(worker)
        await silence(worker)

        assert await parts(client, "resume") == (False, False)
        assert await worker.messages(2) == [b"1", b"2"]


@pytest.mark.parametrize("headers", [{}, {"selector": "colour = 'red'"}, {"exclusive": "true"}])
async def test_a_pause_stops_consumers_of_every_kind(autojump_clock: MockClock, headers: dict[str, str]) -> None:
    rig = Rig()
    async with rig.run():
        client, worker = await rig.connect(), await rig.connect()
        await consumer(worker, **headers)
        await parts(client, "pause")

        await fill(client, "1", colour="red")
        await silence(worker)
        await parts(client, "resume")

        assert await worker.messages(1) == [b"1"]


async def test_what_is_in_flight_may_be_settled_during_a_pause(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client, worker = await rig.connect(), await rig.connect()
        await consumer(worker, prefetch_count="1")
        await fill(client, "1", "2")
        message = await worker.next("MESSAGE")
        await parts(client, "pause")

        await worker.send(f"ACK\nid:{message.head.headers['ack']}\nreceipt:a\n\n")
        await worker.receipt()

        await silence(worker)
        assert await contents(client) == ["2"]


async def test_a_paused_acceptance_refuses_clients_and_moves(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await fill(client, "old")
        await fill(client, "other", queue=OTHER)
        assert await parts(client, "pause", part="acceptance") == (False, True)

        sender = await rig.connect(on_error="keep-open")
        await sender.send(*(send(Q, body, body) for body in ("1", "2")))
        for _ in range(2):
            error = await sender.any()
            assert error.head.headers["error-code"] == "queue-paused"
        facts = await ask(client, f"move{OTHER}", to=Q)
        assert (facts["messages"], facts["reason"].partition(":")[0]) == (0, "queue-paused")
        worker = await consumer(await rig.connect())
        assert await worker.messages(1) == [b"old"]

        assert await parts(client, "resume", part="acceptance") == (False, False)
        await fill(client, "new")


async def test_parts_are_paused_and_resumed_one_by_one(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()

        assert await parts(client, "pause", part="both", dry_run="true") == (True, True)
        assert await parts(client, "pause") == (True, False)
        assert await parts(client, "pause", part="acceptance") == (True, True)
        assert await parts(client, "resume", part="delivery") == (False, True)
        assert await parts(client, "resume") == (False, False)
        assert await parts(client, "resume") == (False, False)
        assert await refusal(client, f"pause{Q}", part="nose") == "bad-part"


async def test_a_pause_survives_a_restart_and_is_in_the_list_of_queues(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await fill(client, "1")
        await parts(client, "pause", part="both")
    async with rig.run():
        client = await rig.connect()
        worker = await consumer(await rig.connect())
        await silence(worker)
        (row,) = (await ask(client, "list/queue"))["destinations"]
        assert row["paused"] == "delivery,acceptance"
        await parts(client, "resume")
        assert await worker.messages(1) == [b"1"]


async def test_a_paused_queue_without_messages_is_in_the_list_of_queues(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await parts(client, "pause")

        (row,) = (await ask(client, "list/queue"))["destinations"]
        assert (row["destination"], row["messages"], row["paused"]) == (Q, 0, "delivery")
        assert (await ask(client, "list/queue/other*"))["destinations"] == []
        await parts(client, "resume")
        assert (await ask(client, "list/queue"))["destinations"] == []


async def test_the_pause_of_a_deleted_queue_is_deleted(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await fill(client, "1")
        await parts(client, "pause")

        await ask(client, f"delete{Q}")

        assert rig.alive.settings_parts.paused_queues.parts(Q) == ""


@pytest.mark.parametrize("other", [("pause", "delivery,acceptance"), ("resume", "delivery")])
async def test_two_operators_change_one_part_each_on_nodes_that_do_not_reach_each_other(
    other: tuple[str, str], autojump_clock: MockClock
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        here, there = await mesh.connect("a"), await mesh.connect("c")
        verb, expected = other
        if verb == "resume":
            await parts(here, "pause", part="acceptance")
            await eventually(lambda: mesh.nodes["c"].settings_parts.paused_queues.parts(Q) == "acceptance")
        isolate(mesh, "c")
        await parts(here, "pause")
        await parts(there, verb, part="acceptance")

        rejoin(mesh, "c")

        await eventually(
            lambda: {node.settings_parts.paused_queues.parts(Q) for node in mesh.nodes.values()} == {expected}
        )


async def restarted_with_old_pause(mesh: MeshRig, delivery: bool, acceptance: bool) -> Client:
    """Write what builds wrote that had one definition for both parts."""
    text = json.dumps({"acceptance": acceptance, "delivery": delivery}, separators=(",", ":"))
    write(mesh.nodes["a"], "pause", Q, text)
    await mesh.stop("a")
    await mesh.start("a")
    return await mesh.connect("a")


@pytest.mark.parametrize(
    ("old", "verb", "part", "then"),
    [
        ((True, False), "resume", "delivery", (False, False)),
        ((True, False), "pause", "acceptance", (True, True)),
        ((False, True), "resume", "both", (False, False)),
        ((True, True), "resume", "delivery", (False, True)),
        ((True, True), "resume", "acceptance", (True, False)),
    ],
)
async def test_the_next_request_replaces_the_pause_of_an_earlier_build(
    autojump_clock: MockClock, old: tuple[bool, bool], verb: str, part: str, then: tuple[bool, bool]
) -> None:
    async with MeshRig("a").run() as mesh:
        client = await restarted_with_old_pause(mesh, *old)
        assert mesh.nodes["a"].settings_parts.paused_queues.of(Q) == old
        assert mesh.nodes["a"].settings_parts.paused_queues.names() == {Q}

        assert await parts(client, verb, part=part, dry_run="true") == then
        assert await parts(client, verb, part=part) == then

        assert mesh.nodes["a"].settings_parts.definitions.get(Key("pause", Q)) is None
        await mesh.kill("a")
        await mesh.start("a")
        assert mesh.nodes["a"].settings_parts.paused_queues.of(Q) == then


async def test_two_requests_at_once_about_the_pause_of_an_earlier_build_both_count(autojump_clock: MockClock) -> None:
    async with MeshRig("a").run() as mesh:
        await restarted_with_old_pause(mesh, True, True)
        paused_queues = mesh.nodes["a"].settings_parts.paused_queues

        async with trio.open_nursery() as nursery:
            for part in ("delivery", "acceptance"):
                nursery.start_soon(paused_queues.set, Q, {part: False}, None)

        assert paused_queues.parts(Q) == ""


async def test_a_queue_that_an_earlier_build_has_paused_delivers_nothing(autojump_clock: MockClock) -> None:
    async with MeshRig("a").run() as mesh:
        client = await restarted_with_old_pause(mesh, True, False)
        await fill(client, "1")
        worker = await consumer(await mesh.connect("a"))
        await silence(worker)

        await parts(client, "resume")

        assert await worker.messages(1) == [b"1"]


async def test_every_node_pauses_what_it_owns_also_one_that_was_away(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        isolate(mesh, "c")
        client = await mesh.connect("a")
        await parts(client, "pause")
        rejoin(mesh, "c")
        await mesh.until_linked()
        await until_alike(mesh)
        worker = await consumer(await mesh.connect("b"))

        for name in "abc":
            await fill(await mesh.connect(name), f"of {name}")
        await silence(worker)
        await parts(client, "resume")

        assert sorted(await worker.messages(3)) == [b"of a", b"of b", b"of c"]
        await nothing_more(worker)


async def test_a_definition_of_a_pause_that_makes_no_sense_is_refused(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        for path, value in (
            ("pause-delivery/queue/q", '{"delivery": true}'),
            ("pause-delivery/queue/q.*", "{}"),
            ("pause-acceptance/topic/t", "{}"),
            ("pause/queue/q", '{"delivery": "yes"}'),
            ("pause/queue/q", '{"delivery": false}'),
            ("pause/queue/q", '{"delivery": true, "colour": true}'),
            ("pause/queue/q", "{}"),
            ("pause/queue/q.*", '{"delivery": true}'),
            ("pause/topic/t", '{"delivery": true}'),
        ):
            client = await rig.connect()
            await client.send(send(f"/control/definitions/put/{path}", value, "r"))
            assert (await client.any()).head.headers["error-code"] == "bad-definition", path
        await eventually(lambda: not rig.alive.settings_parts.paused_queues.parts(Q))
