"""Entries of the node file: seeds of a mesh without definitions, and what is locked."""

import json
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from qmq.config import NodeSettings, load_node
from qmq.node.node import Node
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, send, subscribe
from tests.settings.definitions.test_declared_queues import declare, request
from tests.settings.definitions.test_definitions_mesh import ask, conditions, until_alike

HASH = "$argon2id$v=19$m=8,t=1,p=1$v8umVTv/w1PdCilmZO4cww$ekPflGkocKjlthYotI73oOy3diUSJKwUKqr0bCyE9/o"

QUEUE = '[[queues]]\nname = "/queue/q"\nmax_messages = 5\n'
ROUTES = """
[[exchanges]]
name = "e"
type = "topic"
[[bindings]]
source = "/exchange/e"
queue = "/queue/q"
key = "a.#"
"""
LOCKED_ROUTES = ROUTES.replace('type = "topic"', 'type = "topic"\nlocked = true') + "locked = true\n"
USERS = f'[[users]]\nname = "ann"\npassword_hash = "{HASH}"\ngroups = ["administrator"]\n'


@pytest.fixture
def node_file(tmp_path: Path) -> Any:
    def read(text: str) -> NodeSettings:
        path = tmp_path / "a.toml"
        path.write_text(text, "utf-8")
        path.chmod(0o600)
        return load_node(path)

    return read


def bound(node: Node) -> int:
    return node.policies.queue_rules("/queue/q").messages_max


def queues_of(node: Node, key: str = "a.b") -> tuple[str, ...]:
    return node.routing.table.queues_of_exchange("e", key, {})


async def test_queues_and_routes_of_the_file_count_until_the_first_change_and_are_its_seeds(
    autojump_clock: MockClock, node_file: Any
) -> None:
    mesh = MeshRig("a", "b")
    mesh.files["a"] = node_file(QUEUE + ROUTES)
    async with mesh.run():
        a, b = mesh.nodes["a"], mesh.nodes["b"]
        assert (bound(a), queues_of(a), queues_of(b)) == (5, ("/queue/q",), ())
        assert not a.definitions.table.by_key
        client = await mesh.connect("a")
        await client.send(subscribe("/queue/q"), send("/exchange/e/a.b", "routed"))
        assert await client.messages(1) == [b"routed"]

        await declare(mesh, "a", "/queue/r", {"max_messages": 6})
        await request(await mesh.connect("a"), "bind/queue/r", source="/exchange/e", key="b")
        await until_alike(mesh)

        assert (bound(b), queues_of(b), queues_of(b, "b")) == (5, ("/queue/q",), ("/queue/r",))
        assert conditions(b) == []


async def test_a_seed_can_be_deleted_and_does_not_come_back(autojump_clock: MockClock, node_file: Any) -> None:
    mesh = MeshRig("a", "b")
    mesh.files["a"] = node_file(QUEUE + ROUTES)
    async with mesh.run():
        assert (await request(await mesh.connect("a"), "delete/queue/q"))["bindings"] == "1"
        await mesh.kill("a")
        await mesh.start("a")
        await mesh.until_linked()

        assert (bound(mesh.nodes["a"]) == 5, queues_of(mesh.nodes["a"])) == (False, ())
        assert "e" in mesh.nodes["b"].routing.table.exchanges


async def test_what_only_a_file_says_ends_with_the_definitions_of_another_node_and_loses_no_message(
    autojump_clock: MockClock, node_file: Any
) -> None:
    mesh = MeshRig("a", "b")
    mesh.files["a"] = node_file(QUEUE + ROUTES)
    async with mesh.run():
        client = await mesh.connect("a")
        await client.send(send("/exchange/e/a.b", "kept", "r"))
        await client.receipt()

        await declare(mesh, "b", "/queue/r")
        await request(await mesh.connect("b"), "bind/queue/r", source="/topic/t")
        await until_alike(mesh)
        assert (bound(mesh.nodes["a"]) == 5, queues_of(mesh.nodes["a"])) == (False, ())

        await client.send(subscribe("/queue/q"))
        assert await client.messages(1) == [b"kept"]


@pytest.mark.parametrize(
    ("asked", "body", "headers"),
    [
        ("declare/queue/q", {"max_messages": 6}, {"replace": "true"}),
        ("delete/queue/q", "", {}),
        ("delete/exchange/e", "", {}),
        ("unbind/queue/q", "", {"source": "/exchange/e", "key": "a.#"}),
        ("definitions/put/exchange/e", {"type": "topic", "alternate": "amq.fanout"}, {}),
        ("definitions/delete/user/ann", "", {}),
        ("definitions/put/user/ann", {"groups": ["client"]}, {}),
        ("definitions/delete/permission/group:c allow send /queue/x", "", {}),
    ],
)
async def test_what_is_locked_is_not_changed_and_the_refusal_names_the_file(
    asked: str, body: object, headers: dict[str, str], autojump_clock: MockClock, node_file: Any, tmp_path: Path
) -> None:
    permission = '[[permissions]]\ngroup = "c"\nallow = ["send"]\ndestinations = ["/queue/x"]\nlocked = true\n'
    users = USERS.replace('["administrator"]', '["administrator", "c"]') + "locked = true\n"
    mesh = MeshRig("a")
    mesh.files["a"] = node_file(QUEUE + "locked = true\n" + LOCKED_ROUTES + users + permission)
    async with mesh.run():
        client: Client = await mesh.connect("a", login="ann", passcode="secret")
        answer = await request(client, asked, body, **headers)

        assert answer["error-code"] == "locked"
        assert answer["message"].endswith(f"locked = true in {tmp_path / 'a.toml'}")
        assert (bound(mesh.nodes["a"]), queues_of(mesh.nodes["a"])) == (5, ("/queue/q",))


async def test_a_locked_entry_counts_whatever_another_node_changes(autojump_clock: MockClock, node_file: Any) -> None:
    mesh = MeshRig("a", "b")
    mesh.files["a"] = node_file(QUEUE + "locked = true\n" + LOCKED_ROUTES)
    async with mesh.run():
        a, b = mesh.nodes["a"], mesh.nodes["b"]
        await declare(mesh, "b", "/queue/q", {"max_messages": 9})
        await ask(mesh, "b", "put/exchange/e", {"type": "topic"})
        await request(await mesh.connect("b"), "bind/queue/r", source="/exchange/e", key="b")
        await until_alike(mesh)

        assert (bound(a), bound(b)) == (5, 9)
        assert (queues_of(a), queues_of(b), queues_of(a, "b")) == (("/queue/q",), (), ("/queue/r",))
        listed = json.loads((await ask(mesh, "a", "list/queue"))["definitions"])
        assert listed == [{"kind": "queue", "name": "/queue/q", "value": {"max_messages": 5}}]
        assert (await declare(mesh, "a", "/queue/q", {"max_messages": 5}))["destination"] == "/queue/q"

        await request(await mesh.connect("b"), "delete/queue/q")
        await until_alike(mesh)
        assert (bound(a), queues_of(a)) == (5, ("/queue/q",))


async def test_a_locked_user_can_log_in_whatever_another_node_changes(
    autojump_clock: MockClock, node_file: Any
) -> None:
    mesh = MeshRig("a", "b")
    mesh.files["a"] = node_file(USERS + "locked = true\n")
    async with mesh.run():
        await ask(mesh, "b", "put/user/bob", {"groups": ["administrator"], "password_hash": HASH})
        await until_alike(mesh)

        await mesh.connect("a", login="ann", passcode="secret")
        await mesh.connect("a", login="bob", passcode="secret")
        assert [user.name for user in mesh.nodes["b"].settings.users] == ["bob"]


async def test_a_reload_applies_entries_while_the_mesh_has_none_and_locked_ones_later(
    autojump_clock: MockClock, node_file: Any, caplog: pytest.LogCaptureFixture
) -> None:
    mesh = MeshRig("a")
    async with mesh.run():
        a = mesh.nodes["a"]
        mesh.files["a"] = node_file(QUEUE + ROUTES)
        assert await mesh.reload("a", mesh.peers)
        assert (bound(a), queues_of(a)) == (5, ("/queue/q",))

        mesh.files["a"] = node_file("")
        assert await mesh.reload("a", mesh.peers)
        assert (bound(a) == 5, queues_of(a)) == (False, ())

        await declare(mesh, "a", "/queue/r")
        mesh.files["a"] = node_file(QUEUE)
        assert await mesh.reload("a", mesh.peers)
        assert bound(a) != 5
        assert "queues[/queue/q] has no effect, unless it is locked" in caplog.text

        mesh.files["a"] = node_file(QUEUE + "locked = true\n")
        assert await mesh.reload("a", mesh.peers)
        assert bound(a) == 5
