"""Deleting a fanout: on all nodes, for good, and with a new fanout of the same name possible at once."""

import json

import argon2
import pytest
from trio.testing import MockClock

from qmq.config import User
from tests.mesh.repair.test_catch_up import F, followed, forget_the_past, publish, short_lived
from tests.node.mesh_rig import MeshRig, isolate, rejoin
from tests.node.rig import Client, Rig, eventually, send, subscribe

DELETE_F = "/control/delete/fanout/f"


async def delete(client: Client, **headers: str) -> dict[str, str]:
    """Delete the fanout, or answer what would be; the headers of the answer, without `receipt-id`."""
    await client.send(send(DELETE_F, "", "deleted", **headers))
    found = (await client.next("RECEIPT")).head.headers
    return {name: value for name, value in found.items() if name != "receipt-id"}


async def delete_at(mesh: MeshRig, name: str) -> None:
    client = await mesh.connect(name)
    await delete(client)
    client.pipe.close()


async def everything(mesh: MeshRig, name: str) -> list[bytes]:
    """All that the fanout has on this node, read up to a message that is sent behind it."""
    reader = await followed(mesh, name, **{"x-stream-offset": "first"})
    await publish(mesh, name, F, "the end")
    found: list[bytes] = []
    while not found or found[-1] != b"the end":
        found += await reader.messages(1)
    reader.pipe.close()
    return found[:-1]


async def until_alike(mesh: MeshRig) -> None:
    """Until every node has every record."""
    nodes = mesh.nodes.values()
    await eventually(
        lambda: all(
            one.engine.path.durable_vector() == two.engine.path.durable_vector() for one in nodes for two in nodes
        )
    )


async def test_a_deleted_fanout_is_empty_on_every_node_and_its_log_is_removed(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await publish(mesh, "a", F, "1", "2")
        await publish(mesh, "b", F, "3")
        await until_alike(mesh)
        await mesh.nodes["c"].engine.checkpoints.checkpoint()
        assert mesh.nodes["c"].store.fanouts() == [F]

        answer = await delete(await mesh.connect("a"))

        assert answer == {
            "destination": F,
            "messages": "3",
            "subscribers": "0",
            "durable-subscriptions": "0",
            "changed": "1",
            "dry-run": "false",
        }
        await until_alike(mesh)
        for node in mesh.nodes.values():
            assert node.store.fanout_info(F).records == 0
            await eventually(lambda node=node: not node.store.fanouts())  # type: ignore[misc]
            assert F not in node.broker.send_limits.logged_fanouts


async def test_a_message_that_is_sent_afterwards_begins_a_new_fanout(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        await publish(mesh, "a", F, "old")
        await until_alike(mesh)
        await delete_at(mesh, "b")

        await publish(mesh, "b", F, "new")
        await until_alike(mesh)

        for name in "ab":
            assert [body for body in await everything(mesh, name) if body != b"the end"] == [b"new"]


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_what_was_sent_on_the_other_side_of_a_cut_stays(autojump_clock: MockClock, checkpointed: bool) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await publish(mesh, "a", F, "deleted")
        await until_alike(mesh)
        isolate(mesh, "c")
        await publish(mesh, "c", F, "unknown to a")
        if checkpointed:
            await mesh.nodes["c"].engine.checkpoints.checkpoint()

        await delete_at(mesh, "a")
        await publish(mesh, "a", F, "new")
        rejoin(mesh, "c")
        await mesh.until_linked()
        await until_alike(mesh)

        for name in "abc":
            assert mesh.nodes[name].store.fanout_info(F).records == 2, name
        assert sorted(await everything(mesh, "c")) == [b"new", b"unknown to a"]


async def test_a_node_that_is_cut_from_the_sender_deletes_what_came_another_way(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        mesh.cut("b", "c")
        await publish(mesh, "b", F, "deleted")
        await eventually(
            lambda: mesh.nodes["a"].engine.path.durable_vector() == mesh.nodes["b"].engine.path.durable_vector()
        )
        await delete_at(mesh, "a")
        mesh.heal("b", "c")
        await mesh.until_linked()
        await until_alike(mesh)

        assert mesh.nodes["c"].store.fanout_info(F).records == 0
        await mesh.stop("c")
        await mesh.start("c")
        await mesh.until_linked()
        assert mesh.nodes["c"].store.fanouts() == []


@pytest.mark.parametrize("name", ["a", "b"])
async def test_a_killed_node_remembers_the_deletion(autojump_clock: MockClock, name: str) -> None:
    async with MeshRig("a", "b").run() as mesh:
        await publish(mesh, "a", F, "deleted")
        await until_alike(mesh)
        await mesh.nodes[name].engine.checkpoints.checkpoint()
        await delete_at(mesh, "a")
        await until_alike(mesh)

        await mesh.kill(name)
        await mesh.start(name)
        await mesh.until_linked()

        assert await everything(mesh, name) == []
        assert mesh.nodes[name].broker.deletions.count == 1


async def test_a_node_that_was_away_hears_of_a_deletion_that_has_left_the_journal(autojump_clock: MockClock) -> None:
    async with short_lived().run() as mesh:
        await publish(mesh, "a", F, "deleted")
        await publish(mesh, "b", F, "deleted, too")
        await until_alike(mesh)
        await mesh.stop("b")
        await delete_at(mesh, "a")
        await publish(mesh, "a", F, "new")
        await forget_the_past(mesh, "a")

        await mesh.start("b")
        await mesh.until_linked()
        await until_alike(mesh)

        assert await everything(mesh, "b") == [b"new"]
        assert mesh.nodes["b"].broker.deletions.count == 1


async def test_subscribers_on_every_node_are_disconnected_with_a_code(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        live = await followed(mesh, "b")
        durable = await mesh.connect("b")
        await durable.send(subscribe(F, id="mine", durable="true", ack="client-individual"))
        await durable.receipt()
        await publish(mesh, "a", F, "1")
        await live.messages(1)
        await durable.messages(1)
        await until_alike(mesh)

        answer = await delete(await mesh.connect("a"))

        assert (answer["subscribers"], answer["durable-subscriptions"]) == ("0", "1")
        for client in (live, durable):
            error = (await client.until_closed())[-1]
            assert (error.head.command, error.head.headers["error-code"]) == ("ERROR", "destination-deleted")


async def test_durable_subscriptions_are_deleted_and_begin_again_as_new_ones(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        client = await mesh.connect("b", client_id="c")
        await client.send(subscribe(F, id="mine", durable="true", ack="client-individual"))
        await client.receipt()
        client.pipe.close()
        await publish(mesh, "a", F, "1")
        await until_alike(mesh)
        await delete_at(mesh, "a")
        await until_alike(mesh)
        assert not [one for one in mesh.nodes["b"].broker.durable_subscriptions.by_name.values() if one.created_us]
        await publish(mesh, "a", F, "sent while there is no subscription")
        await until_alike(mesh)

        client = await mesh.connect("b", client_id="c")
        await client.send(subscribe(F, id="mine", durable="true", ack="client-individual"))
        await client.receipt()
        await publish(mesh, "a", F, "2")

        assert await client.messages(1) == [b"2"]


async def test_a_dry_run_gives_the_same_answer_and_changes_nothing(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(send(F, "1", "r"))
        await client.receipt()

        answer = await delete(client, dry_run="true")

        assert (answer["messages"], answer["dry-run"]) == ("1", "true")
        assert rig.alive.store.fanout_info(F).records == 1
        assert rig.alive.broker.deletions.count == 0


async def test_the_event_says_which_node_has_deleted(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        await publish(mesh, "a", F, "1")
        await until_alike(mesh)
        watcher = await mesh.connect("b")
        await watcher.send(subscribe("/system/events", id="e"))
        await watcher.receipt()

        await delete_at(mesh, "a")

        events = [json.loads(body) for body in await watcher.messages(1)]
        assert [(one["event"], one["destination"], one["by"]) for one in events] == [("fanout-deleted", F, "a")]


@pytest.mark.parametrize(
    ("destination", "code"),
    [
        ("/control/delete/fanout/unknown", "unknown-destination"),
        ("/control/delete/temp-queue/q", "not-supported"),
        ("/control/delete/queue/q.*", "bad-pattern"),
        ("/control/delete/topic/t", "unknown-destination"),
        ("/control/delete/nonsense", "bad-destination"),
    ],
)
async def test_what_cannot_be_deleted_is_refused(autojump_clock: MockClock, destination: str, code: str) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()

        await client.send(send(destination, "", "r"))

        error = (await client.until_closed())[-1]
        assert (error.head.command, error.head.headers["error-code"]) == ("ERROR", code)


@pytest.mark.parametrize(("group", "command"), [("observer", "ERROR"), ("operator", "RECEIPT")])
async def test_deleting_needs_the_right_of_an_administrator(
    autojump_clock: MockClock, group: str, command: str
) -> None:
    password_hash = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("secret")
    user = User(name="ann", password_hash=password_hash, groups=(group, "client"))
    async with Rig(users=(user,)).run() as rig:
        client = await rig.connect(login="ann", passcode="secret")
        await client.send(send(F, "1", "r"))
        await client.receipt()

        await client.send(send(DELETE_F, "", "r"))

        assert (await client.any()).head.command == command


async def test_no_more_deletions_than_can_be_remembered(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qmq.broker.fanout_deletion.DELETIONS_MAX", 0)
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(send(F, "1", "r"))
        await client.receipt()

        await client.send(send(DELETE_F, "", "r"))

        error = (await client.until_closed())[-1]
        assert error.head.headers["error-code"] == "too-many-deletions"
