"""What AMQP clients declare at a node that has not heard of a deletion: it is there afterwards, on all nodes."""

from collections.abc import Iterator
from typing import Any

import pytest
from pamqp import base, commands
from trio.testing import MockClock

from qmq.config import PermissionSettings, User
from qmq.definitions.definition import Key
from qmq.node.node import Node
from tests.admin.test_connections import ask
from tests.node.mesh_rig import isolate, rejoin
from tests.protocols.amqp.mesh import AmqpMesh
from tests.protocols.amqp.rig import AmqpClient
from tests.settings.definitions.test_definitions_mesh import unnoticed_cut, until_alike
from tests.settings.definitions.test_users_mesh import HASH

CASES: list[tuple[Key, base.Frame, type[base.Frame]]] = [
    (
        Key("queue", "/queue/jobs"),
        commands.Queue.Declare(0, "jobs", arguments={"x-max-length": 5}),
        commands.Queue.DeclareOk,
    ),
    (Key("exchange", "e"), commands.Exchange.Declare(0, "e", "topic"), commands.Exchange.DeclareOk),
    (
        Key("binding", "/exchange/e /queue/jobs k"),
        commands.Queue.Bind(0, "jobs", "e", "k"),
        commands.Queue.BindOk,
    ),
    (
        Key("binding", "/exchange/amq.topic /exchange/e k"),
        commands.Exchange.Bind(0, "e", "amq.topic", "k"),
        commands.Exchange.BindOk,
    ),
]
IDS = ["queue", "exchange", "binding", "binding-of-exchange"]


def deleted_with(key: Key) -> Iterator[Key]:
    """`key`, and what names it."""
    yield from (other for other, *_ in CASES if other == key or (other.kind == "binding" and key.kind == "exchange"))


async def declare_all(client: AmqpClient) -> None:
    for _, method, answer in CASES:
        await client.call(1, method, answer)


def has(node: Node, key: Key) -> bool:
    return node.settings_parts.definitions.table.get(key) is not None


@pytest.mark.parametrize(("key", "method", "answer"), CASES, ids=IDS)
async def test_what_is_declared_again_behind_an_unnoticed_cut_wins_over_an_earlier_deletion(
    autojump_clock: MockClock, key: Key, method: base.Frame, answer: type[base.Frame]
) -> None:
    async with AmqpMesh("a", "b", "c").run() as mesh:
        client = await mesh.client("c")
        await declare_all(client)
        await until_alike(mesh)
        async with unnoticed_cut(mesh, dict.fromkeys(deleted_with(key))):
            await client.call(1, method, answer)

        assert [has(node, key) for node in mesh.nodes.values()] == [True] * 3


@pytest.mark.parametrize(("key", "method", "answer"), CASES, ids=IDS)
async def test_what_is_declared_again_where_the_record_of_a_deletion_is_late_is_declared(
    autojump_clock: MockClock, key: Key, method: base.Frame, answer: type[base.Frame]
) -> None:
    async with AmqpMesh("a", "b", "c").run() as mesh:
        client = await mesh.client("c")
        await declare_all(client)
        await until_alike(mesh)
        # Records of definitions take long: only a question finds them.
        mesh.nodes["c"].engine.replay.follow(definitions=lambda change: None)
        await mesh.nodes["a"].settings_parts.definitions.change(dict.fromkeys(deleted_with(key)))

        await client.call(1, method, answer)
        await until_alike(mesh)

        assert [has(node, key) for node in mesh.nodes.values()] == [True] * 3


async def test_what_all_members_know_is_declared_again_without_a_change(autojump_clock: MockClock) -> None:
    async with AmqpMesh("a", "b", "c").run() as mesh:
        client = await mesh.client("c")
        await declare_all(client)
        await until_alike(mesh)
        before = mesh.nodes["c"].engine.path.durable_vector()

        await declare_all(client)

        assert mesh.nodes["c"].engine.path.durable_vector() == before


async def test_a_producer_that_may_only_send_declares_behind_an_unnoticed_cut_and_changes_nothing(
    autojump_clock: MockClock,
) -> None:
    users = (User(name="app", password_hash=HASH, groups=("client",)), User(name="ann", password_hash=HASH))
    sends = ("/queue/jobs", "/exchange/e/k", "/exchange/amq.topic/k")
    allowed = PermissionSettings(user="ann", allow=("send",), destinations=sends)
    async with AmqpMesh("a", "b", "c", users=users, permissions=(allowed,)).run() as mesh:
        await declare_all(await mesh.client("c", response="\0app\0secret"))
        producer = await mesh.client("c", response="\0ann\0secret")
        await until_alike(mesh)
        written = mesh.nodes["c"].settings_parts.definitions.table.by_key.copy()
        isolate(mesh, "c")

        for _, method, answer in CASES[:3]:
            await producer.call(1, method, answer)

        assert mesh.nodes["c"].settings_parts.definitions.table.by_key == written


DELETIONS: list[tuple[Key, dict[str, Any], base.Frame, type[base.Frame]]] = [
    (Key("queue", "/queue/jobs"), {}, commands.Queue.Delete(0, "jobs"), commands.Queue.DeleteOk),
    (Key("exchange", "e"), {"type": "topic"}, commands.Exchange.Delete(0, "e"), commands.Exchange.DeleteOk),
    (
        Key("binding", "/exchange/amq.topic /queue/jobs k"),
        {"source": "/exchange/amq.topic", "queue": "/queue/jobs", "key": "k"},
        commands.Queue.Unbind(0, "jobs", "amq.topic", "k"),
        commands.Queue.UnbindOk,
    ),
]
DELETED = pytest.mark.parametrize(
    ("key", "value", "method", "answer"), DELETIONS, ids=[key.kind for key, *_ in DELETIONS]
)


@DELETED
async def test_what_a_stale_node_does_not_know_is_deleted_behind_an_unnoticed_cut(
    autojump_clock: MockClock, key: Key, value: dict[str, Any], method: base.Frame, answer: type[base.Frame]
) -> None:
    async with AmqpMesh("a", "b", "c").run() as mesh:
        client = await mesh.client("c")
        async with unnoticed_cut(mesh, {key: value}):
            await client.call(1, method, answer)

        assert [has(node, key) for node in mesh.nodes.values()] == [False] * 3


@DELETED
async def test_what_all_members_do_not_know_is_deleted_without_a_change(
    autojump_clock: MockClock, key: Key, value: dict[str, Any], method: base.Frame, answer: type[base.Frame]
) -> None:
    async with AmqpMesh("a", "b", "c").run() as mesh:
        client = await mesh.client("c")
        before = mesh.nodes["c"].engine.path.durable_vector()

        await client.call(1, method, answer)

        assert mesh.nodes["c"].engine.path.durable_vector() == before


async def test_a_client_that_may_not_delete_a_queue_that_its_node_does_not_know_is_answered_behind_a_cut(
    autojump_clock: MockClock,
) -> None:
    users = (User(name="root", password_hash=HASH, groups=("administrator",)), User(name="ann", password_hash=HASH))
    allowed = PermissionSettings(user="ann", allow=("send", "declare"), destinations=("/queue/jobs",))
    async with AmqpMesh("a", "b", "c", users=users, permissions=(allowed,)).run() as mesh:
        client = await mesh.client("c", response="\0ann\0secret")
        isolate(mesh, "c")
        before = mesh.nodes["c"].settings_parts.definitions.table.by_key.copy()

        await client.call(1, commands.Queue.Delete(0, "jobs"), commands.Queue.DeleteOk)

        assert mesh.nodes["c"].settings_parts.definitions.table.by_key == before


async def test_a_verb_deletes_a_queue_that_a_stale_node_does_not_know(autojump_clock: MockClock) -> None:
    async with AmqpMesh("a", "b", "c").run() as mesh:
        client = await mesh.connect("c")
        isolate(mesh, "c")
        await mesh.nodes["a"].settings_parts.definitions.change({Key("queue", "/queue/jobs"): {}})

        facts = await ask(client, "delete/queue/jobs")
        rejoin(mesh, "c")
        await mesh.until_linked()
        await until_alike(mesh)

        assert (facts["declared"], facts["changed"]) == (False, 0)
        assert [has(node, Key("queue", "/queue/jobs")) for node in mesh.nodes.values()] == [False] * 3
