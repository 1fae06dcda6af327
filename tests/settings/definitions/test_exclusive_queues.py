"""Queues that are exclusive to one connection: which clients may use them, and their end with it, also after a kill."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from trio.testing import MockClock

from qmq.definitions.definition import Key
from qmq.errors import Refused
from qmq.node.node import Node
from qmq.settings.definitions.deleted_queues import DeletedQueues
from tests.node.mesh_rig import MeshRig, rejoin
from tests.node.rig import Client, Rig, eventually, send, subscribe
from tests.settings.definitions.test_declared_queues import Q, request
from tests.settings.definitions.test_definitions_mesh import until_alike
from tests.settings.definitions.test_deleted_queues import apart, depth, fill, until_depth

EXCLUSIVE = {"exclusive_to_connection": True}


async def own(mesh: MeshRig, name: str, queue: str = Q, **more: object) -> Client:
    """A client that has declared the queue, of which all nodes know."""
    client = await mesh.connect(name)
    assert (await request(client, f"declare{queue}", {**EXCLUSIVE, **more}))["changed"] == "1"
    await until_alike(mesh)
    return client


def is_declared(node: Node, queue: str = Q) -> bool:
    return queue in node.settings_parts.declared_queues.texts


async def until_gone(mesh: MeshRig, queue: str = Q) -> None:
    await eventually(lambda: not any(is_declared(node, queue) for node in mesh.nodes.values()))


async def test_only_its_connection_consumes_and_every_client_sends(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        owner = await own(mesh, "a")
        await fill(mesh, "b", "1")

        for name in "ab":
            other = await mesh.connect(name)
            await other.send(subscribe(Q))
            assert (await other.any()).head.headers["error-code"] == "resource-locked"
        await owner.send(subscribe(Q))

        assert await owner.messages(1) == [b"1"]


@pytest.mark.parametrize(
    ("asked", "headers"),
    [
        (f"declare{Q}", {}),
        (f"declare{Q}", {"exclusive-to-connection": "true"}),
        (f"declare{Q}", {"passive": "true"}),
        (f"delete{Q}", {}),
        (f"purge{Q}", {}),
        (f"move{Q}", {"to": "/queue/other"}),
        (f"pause{Q}", {}),
        (f"bind{Q}", {"source": "/topic/t"}),
    ],
)
async def test_another_connection_does_not_administer_it(
    autojump_clock: MockClock, asked: str, headers: dict[str, str]
) -> None:
    async with MeshRig("a", "b").run() as mesh:
        owner = await own(mesh, "a")

        answers = [await request(await mesh.connect(name), asked, **headers) for name in "ab"]

        assert {answer["error-code"] for answer in answers} == {"resource-locked"}
        assert (await request(owner, asked, **headers)).get("error-code") != "resource-locked"


async def test_an_administrator_can_delete_it_by_force(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        await own(mesh, "a")

        answer = await request(await mesh.connect("b"), f"delete{Q}", force="true")

        assert answer["declared"] == "true"
        await until_gone(mesh)


async def test_the_same_declaration_of_its_connection_changes_nothing(autojump_clock: MockClock) -> None:
    async with MeshRig("a").run() as mesh:
        owner = await own(mesh, "a", max_messages=5)

        assert (await request(owner, f"declare{Q}", {**EXCLUSIVE, "max_messages": 5}))["changed"] == "0"
        answer = await request(owner, f"declare{Q}", {**EXCLUSIVE, "max_messages": 6})
        assert answer["error-code"] == "declared-otherwise"


@pytest.mark.parametrize("how", ["disconnects", "breaks"])
async def test_it_ends_with_its_connection_and_its_messages_too(autojump_clock: MockClock, how: str) -> None:
    async with MeshRig("a", "b").run() as mesh:
        owner = await own(mesh, "a")
        await request(owner, f"bind{Q}", source="/topic/t")
        await fill(mesh, "a", "1")
        await fill(mesh, "b", "2")

        if how == "disconnects":
            await owner.send("DISCONNECT\nreceipt:bye\n\n")
        else:
            owner.pipe.close()

        await until_gone(mesh)
        for name in "ab":
            await until_depth(mesh, name, 0)
        bindings = [one for node in mesh.nodes.values() for one in node.settings_parts.routing.bindings()]
        assert bindings == []


@pytest.mark.parametrize(("durable", "is_killed"), [(True, False), (True, True), (False, False)])
async def test_what_is_sent_in_the_same_microsecond_as_its_connection_ends_is_dropped(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, durable: bool, is_killed: bool
) -> None:
    async with MeshRig("a", "b").run() as mesh:
        owner = await own(mesh, "a", durable=durable)
        with monkeypatch.context() as patch:
            if is_killed:
                patch.setattr(DeletedQueues, "drop", lambda self, queues: list(queues))
            environment = mesh.nodes["a"].environment
            now_us = environment.now_us()
            patch.setattr(environment, "now_us", lambda: now_us)
            await owner.send(send(Q, "last"), "DISCONNECT\n\n")
            await until_gone(mesh)
            assert await depth(mesh, "a") == 1
        if is_killed:
            await mesh.kill("a")
            await mesh.start("a")
            await mesh.until_linked()

        for name in "ab":
            await until_depth(mesh, name, 0)


async def test_only_the_queues_of_that_connection_end(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        first, _ = await own(mesh, "a"), await own(mesh, "a", "/queue/other")
        await own(mesh, "b", "/queue/there")

        first.pipe.close()
        await until_gone(mesh)

        assert all(
            is_declared(node, queue) for node in mesh.nodes.values() for queue in ("/queue/other", "/queue/there")
        )


async def test_a_node_that_was_killed_deletes_the_queues_of_its_connections_at_its_start(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b").run() as mesh:
        await own(mesh, "a")
        await fill(mesh, "b", "1")

        await mesh.kill("a")
        assert is_declared(mesh.nodes["b"])
        await mesh.start("a")

        await until_gone(mesh)
        await until_depth(mesh, "b", 0)


async def test_a_client_that_moves_to_another_node_declares_it_again_while_the_first_one_is_down(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await own(mesh, "a")
        await fill(mesh, "b", "1")
        refused = await request(await mesh.connect("b"), f"declare{Q}", EXCLUSIVE)
        assert refused["error-code"] == "resource-locked"
        await mesh.kill("a")
        await eventually(lambda: "a" not in mesh.nodes["b"].mesh.followers())

        client = await mesh.connect("b")
        assert (await request(client, f"declare{Q}", EXCLUSIVE))["changed"] == "1"
        await until_depth(mesh, "b", 0)
        await mesh.start("a")
        await until_alike(mesh)

        assert is_declared(mesh.nodes["a"]) and is_declared(mesh.nodes["b"])
        client.pipe.close()
        await until_gone(mesh)


@pytest.mark.parametrize(
    ("value", "headers", "code"),
    [(EXCLUSIVE, {"passive": "true"}, "resource-locked"), ({"max_messages": "many"}, {}, "bad-definition")],
)
async def test_a_declaration_that_is_refused_deletes_no_queue_whose_node_is_down(
    autojump_clock: MockClock, value: dict[str, object], headers: dict[str, str], code: str
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await own(mesh, "a")
        await fill(mesh, "b", "1")
        await mesh.kill("a")
        await eventually(lambda: "a" not in mesh.nodes["b"].mesh.followers())

        answer = await request(await mesh.connect("b"), f"declare{Q}", value, **headers)

        assert answer["error-code"] == code
        assert is_declared(mesh.nodes["b"]) and await depth(mesh, "b") == 1


@pytest.mark.parametrize("value", [EXCLUSIVE, {}])
async def test_another_connection_declares_it_when_the_end_of_its_own_is_confirmed(
    autojump_clock: MockClock, value: dict[str, object]
) -> None:
    async with MeshRig("a", "b").run() as mesh:
        owner = await own(mesh, "a")
        await fill(mesh, "a", "1")
        await owner.send("DISCONNECT\nreceipt:bye\n\n")
        assert await owner.receipt() == "bye"

        other = await mesh.connect("a")
        assert (await request(other, f"declare{Q}", value))["changed"] == "1"
        owner.pipe.close()
        await until_alike(mesh)

        assert await depth(mesh, "a") == 0
        assert all(is_declared(node) for node in mesh.nodes.values())


async def test_it_ends_on_a_node_that_was_away(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        owner = await own(mesh, "a")
        await fill(mesh, "c", "1")
        await apart(mesh, "c")
        owner.pipe.close()
        await eventually(lambda: not is_declared(mesh.nodes["a"]))
        assert is_declared(mesh.nodes["c"])

        rejoin(mesh, "c")

        await until_gone(mesh)
        await until_depth(mesh, "c", 0)


async def test_the_adopter_of_a_retired_node_deletes_its_queues(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await own(mesh, "c")
        await mesh.kill("c")
        await eventually(lambda: not any("c" in mesh.nodes[name].mesh.followers() for name in "ab"))

        await request(await mesh.connect("a"), "retire/c", force="true")

        await eventually(lambda: not any(is_declared(mesh.nodes[name]) for name in "ab"))


async def test_a_connection_that_ends_while_it_declares_leaves_no_queue(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        client = await mesh.connect("a")
        mesh.slow_disk("a", 1.0, exactly=True)
        await client.send(send(f"/control/declare{Q}", json.dumps(EXCLUSIVE), "r"))
        await eventually(lambda: is_declared(mesh.nodes["a"]))
        client.pipe.close()

        await until_gone(mesh)


async def test_a_deletion_that_fails_is_tried_again(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with MeshRig("a").run() as mesh:
        owner = await own(mesh, "a")
        node = mesh.nodes["a"]

        async def refused_once(*args: object, **more: object) -> object:
            monkeypatch.undo()
            raise Refused("too-many-definitions", "There are too many.")

        monkeypatch.setattr(node.settings_parts.definitions, "change", refused_once)
        owner.pipe.close()

        await until_gone(mesh)


async def test_what_changes_while_a_deletion_waits_does_not_hold_it_up(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with MeshRig("a").run() as mesh:
        owner = await own(mesh, "a")
        await request(owner, "declare/queue/other", EXCLUSIVE)
        await request(owner, f"bind{Q}", source="/topic/t")
        node = mesh.nodes["a"]
        change, calls = node.settings_parts.definitions.change, []

        async def late(*args: Any, **more: Any) -> object:
            calls.append(args)
            if len(calls) == 1:
                await change({Key("binding", f"/topic/t {Q}"): None, Key("queue", "/queue/other"): {}})
            return await change(*args, **more)

        monkeypatch.setattr(node.settings_parts.definitions, "change", late)
        owner.pipe.close()

        await until_gone(mesh)
        assert len(calls) == 1
        assert is_declared(node, "/queue/other")


async def test_one_that_cannot_be_deleted_holds_up_no_other(autojump_clock: MockClock) -> None:
    def refuse(changes: Mapping[Key, object]) -> None:
        if changes.get(Key("queue", Q), True) is None:
            raise Refused("not-now", "it cannot be deleted")

    async with Rig().run() as rig:
        rig.alive.settings_parts.definitions.fits.append(refuse)
        owner = await rig.connect()
        for queue in (Q, "/queue/other"):
            assert (await request(owner, f"declare{queue}", EXCLUSIVE))["changed"] == "1"

        owner.pipe.close()

        await eventually(lambda: not is_declared(rig.alive, "/queue/other"))
        assert is_declared(rig.alive)


async def test_a_queue_with_other_consumers_is_not_declared_exclusive(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        other = await mesh.connect("b")
        await other.send(subscribe(Q))
        await other.receipt()
        await eventually(lambda: (known := mesh.nodes["a"].broker.queues.by_name.get(Q)) and known.borrowers)

        for name in "ab":
            answer = await request(await mesh.connect(name), f"declare{Q}", EXCLUSIVE)
            assert answer["error-code"] == "has-consumers"


@pytest.mark.parametrize("said", ["yes", 1, "a-00000000000000aa/7"])
async def test_a_connection_names_no_other_owner(autojump_clock: MockClock, said: object) -> None:
    async with MeshRig("a").run() as mesh:
        answer = await request(await mesh.connect("a"), f"declare{Q}", {"exclusive_to_connection": said})

        assert f"exclusive_to_connection = {json.dumps(said)}: must be true or false" in answer["message"]
        assert not is_declared(mesh.nodes["a"])


async def test_exports_leave_it_out(autojump_clock: MockClock) -> None:
    async with MeshRig("a").run() as mesh:
        owner = await own(mesh, "a")
        await request(owner, f"bind{Q}", source="/topic/t")
        await request(owner, f"pause{Q}")
        await request(owner, "declare/queue/lasting")

        answer = await request(owner, "definitions/export")

        assert json.loads(answer["document"])["definitions"] == {"queue": {"/queue/lasting": {}}}


async def test_its_depth_counts_for_others_too(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        await own(mesh, "a")
        await fill(mesh, "b", "1")

        assert await depth(mesh, "b") == 1
        assert "error-code" not in await request(await mesh.connect("b"), f"peek{Q}")
