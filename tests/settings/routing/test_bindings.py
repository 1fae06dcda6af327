"""Exchanges and bindings on whole nodes: requests, what is copied, restarts, and nodes that change them at once."""

import json
from collections.abc import Mapping
from typing import Any

import argon2
import pytest
import trio
from trio.testing import MockClock

from qmq.broker.routing.binding import Binding, read_binding
from qmq.config import PermissionSettings, User
from qmq.definitions.definition import Key
from qmq.node.node import Node
from tests.admin.test_connections import ask
from tests.node.mesh_rig import MeshRig, isolate, rejoin
from tests.node.rig import Client, Rig, eventually, nothing_more, send, subscribe
from tests.settings.definitions.test_definitions_mesh import conditions, until_alike

Q = "/queue/q"
KEEP_OPEN = {"on_error": "keep-open"}


async def request(client: Client, destination: str, body: object = None, **headers: str) -> dict[str, Any]:
    """The JSON response, or the code and message of the refusal."""
    text = "" if body is None else json.dumps(body)
    await client.send(send(f"/control/{destination}", text, reply_to="/temp-queue/r", **headers))
    frame = await client.any()
    if frame.head.command == "ERROR":
        return {"code": frame.head.headers["error-code"], "message": frame.head.headers["message"]}
    found: dict[str, Any] = json.loads(frame.body)
    return found


async def bind(client: Client, source: str, queue: str = Q, key: str = "", **arguments: str) -> dict[str, Any]:
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    return await request(client, f"bind{queue}", named, source=source, key=key)


async def publish(client: Client, destination: str, body: str, **headers: str) -> str:
    """The receipt, or the code of the refusal."""
    await client.send(send(destination, body, "r", **headers))
    frame = await client.any()
    return frame.head.headers.get("error-code", frame.head.command)


async def consumed(client: Client, count: int, queue: str = Q) -> list[bytes]:
    await client.send(subscribe(queue))
    return await client.messages(count)


def state(node: Node) -> tuple[object, ...]:
    """All that a change of definitions changes."""
    routing = node.settings_parts.routing
    return (
        node.settings_parts.definitions.table.digest,
        dict(routing.table.exchanges),
        [one.name for one in routing.bindings()],
        node.broker.next_sequence,
    )


async def test_a_queue_bound_to_a_pattern_of_topics_gets_copies_until_it_is_unbound(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await publish(client, "/topic/prices.eu", "before")

        assert (await bind(client, "/topic/prices.*"))["changed"] == 1
        assert (await bind(client, "/topic/prices.*"))["changed"] == 0
        await publish(client, "/topic/prices.eu", "one")
        await publish(client, "/topic/prices.eu.de", "other")
        assert (await request(client, f"unbind{Q}", source="/topic/prices.*"))["changed"] == 1
        await publish(client, "/topic/prices.eu", "after")

        assert await consumed(client, 1) == [b"one"]
        await nothing_more(client)


async def test_exchanges_and_bindings_are_listed(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await request(client, "declare/exchange/rest", {"type": "fanout"})
        await request(client, "declare/exchange/orders", type="headers", alternate="rest")
        await bind(client, "/exchange/orders", x_match="any", colour="red")

        found = await ask(client, "exchanges")
        assert [(row["name"], row["type"], row["alternate"], row["bindings"]) for row in found["exchanges"]] == [
            ("amq.direct", "direct", "", 0),
            ("amq.fanout", "fanout", "", 0),
            ("amq.headers", "headers", "", 0),
            ("amq.topic", "topic", "", 0),
            ("orders", "headers", "rest", 1),
            ("rest", "fanout", "", 0),
        ]
        assert (await ask(client, "bindings"))["bindings"] == [
            {
                "name": '/exchange/orders /queue/q  {"colour":"red","x-match":"any"}',
                "source": "/exchange/orders",
                "queue": Q,
                "key": "",
                "arguments": {"colour": "red", "x-match": "any"},
                "effective": True,
            }
        ]


async def test_a_restart_keeps_exchanges_and_bindings(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await request(client, "declare/exchange/orders", type="topic")
        await bind(client, "/exchange/orders", key="#.eu")
        await bind(client, "/topic/t")
        before = state(rig.alive)[1:3]

    async with rig.run():
        assert state(rig.alive)[1:3] == before
        client = await rig.connect()
        await publish(client, "/exchange/orders/new.eu", "one")
        await publish(client, "/topic/t", "two")

        assert await consumed(client, 2) == [b"one", b"two"]


async def test_a_policy_gives_exchanges_an_alternate_that_name_none_themselves(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await request(client, "declare/exchange/ae", type="fanout")
        await bind(client, "/exchange/ae")
        await request(client, "declare/exchange/own", type="direct", alternate="amq.fanout")
        await request(client, "declare/exchange/orders", type="direct")
        await publish(client, "/exchange/orders/k", "before")

        await request(client, "definitions/put/policy/exchange/o*", {"alternate": "ae"})
        for body, exchange in [("one", "orders"), ("none", "own"), ("two", "orders")]:
            await publish(client, f"/exchange/{exchange}/k", body)
        assert await consumed(await rig.connect(), 2) == [b"one", b"two"]
        rows = (await request(client, "exchanges"))["exchanges"]
        assert {row["name"]: row["alternate"] for row in rows}["orders"] == "ae"

        await request(client, "definitions/delete/policy/exchange/o*")
        await publish(client, "/exchange/orders/k", "after")
        assert rig.alive.settings_parts.routing.table.queues_of_exchange("orders", "k", {}) == ()


async def test_a_deleted_exchange_takes_its_bindings_with_it(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect(**KEEP_OPEN)
        await request(client, "declare/exchange/orders", type="direct")
        await bind(client, "/exchange/orders", key="a")
        await bind(client, "/exchange/orders", key="b")

        assert (await request(client, "delete/exchange/orders", if_unused="true"))["code"] == "exchange-in-use"
        client = await rig.connect(**KEEP_OPEN)
        done = await request(client, "delete/exchange/orders")

        assert (done["bindings"], done["changed"]) == (2, 3)
        assert (await ask(client, "bindings"))["bindings"] == []
        assert await publish(client, "/exchange/orders/a", "lost") == "unknown-destination"


async def test_a_client_cannot_send_to_an_internal_exchange(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await request(client, "declare/exchange/inner", type="fanout", internal="true")
        await request(client, "declare/exchange/inner", {"type": "fanout", "internal": True})

        (row,) = [one for one in (await ask(client, "exchanges"))["exchanges"] if one["internal"]]
        assert row["name"] == "inner"
        assert await publish(client, "/exchange/inner/a", "lost") == "not-allowed"


REFUSED: list[tuple[str, object, dict[str, str], str, str]] = [
    ("declare/exchange/orders", None, {"type": "topic"}, "exchange-differs", "type is direct, not topic"),
    ("declare/exchange/orders", None, {"type": "direct", "alternate": "amq.topic"}, "exchange-differs", "alternate"),
    (
        "declare/exchange/orders",
        None,
        {"type": "direct", "internal": "true"},
        "exchange-differs",
        "internal is not set",
    ),
    ("declare/exchange/new", None, {}, "bad-definition", "direct, topic, fanout, headers"),
    ("declare/exchange/new", None, {"type": "queue"}, "bad-definition", "direct, topic, fanout, headers"),
    ("declare/exchange/new", {"type": "topic", "durable": True}, {}, "bad-definition", "durable is unknown"),
    ("declare/exchange/new", [], {}, "bad-definition", "JSON object"),
    ("declare/exchange/amq.new", None, {"type": "topic"}, "bad-definition", "amq."),
    ("declare/exchange/orders", None, {"type": "direct", "delayed": "true"}, "exchange-differs", "delayed is not set"),
    ("declare/exchange/amq.topic", None, {"type": "direct"}, "exchange-differs", "type is topic"),
    ("declare/exchange/new", None, {"type": "topic", "alternate": "missing"}, "bad-definition", "no exchange missing"),
    ("declare/exchange/", None, {"type": "topic"}, "bad-destination", "/exchange/NAME"),
    ("declare/topic/t", None, {}, "bad-destination", "declare names one queue"),
    ("delete/exchange/amq.topic", None, {}, "not-supported", "predefined"),
    ("delete/exchange/missing", None, {}, "unknown-destination", "missing"),
    ("delete/exchange/spare", None, {}, "exchange-in-use", "alternate of the exchange orders2"),
    ("bind/queue/q", None, {"source": "/exchange/missing"}, "bad-definition", "no exchange missing"),
    ("bind/queue/q", None, {"source": "/queue/a"}, "bad-definition", "source"),
    ("bind/queue/q*", None, {"source": "/topic/a"}, "bad-definition", "queue"),
    ("bind/queue/q", None, {"source": "/topic/a", "key": "k"}, "bad-definition", "key"),
    ("bind/queue/q", {"x-match": "some"}, {"source": "/exchange/amq.headers"}, "bad-definition", "x-match"),
    ("bind/queue/q", None, {}, "missing-header", "source"),
    ("bind/exchange/missing", None, {"source": "/exchange/orders"}, "bad-definition", "no exchange missing"),
    ("bind/exchange/orders", None, {"source": "/exchange/missing"}, "bad-definition", "no exchange missing"),
    ("bind/exchange/orders", None, {"source": "/topic/t"}, "bad-definition", "/topic/t is none"),
    ("bind/topic/t", None, {"source": "/exchange/orders"}, "bad-definition", "queue"),
    ("unbind/exchange/orders", None, {"source": "/exchange/spare"}, "unknown-definition", "/exchange/spare"),
    ("definitions/delete/exchange/joined", None, {}, "exchange-in-use", "has bindings"),
    ("unbind/queue/q", None, {"source": "/topic/none"}, "unknown-definition", "/topic/none"),
    ("definitions/delete/exchange/orders", None, {}, "exchange-in-use", "has bindings"),
    ("definitions/put/exchange/orders", {"type": "fanout"}, {}, "bad-definition", "type is direct"),
    ("definitions/put/binding/topic/a", {"source": "/topic/b", "queue": Q}, {}, "bad-definition", "/topic/b /queue/q"),
    (
        "definitions/put/binding/any",
        {"source": "/topic/b", "queue": "/queue/a\0b"},
        {},
        "bad-definition",
        "queue must be /queue/NAME",
    ),
    ("exchanges/all", None, {}, "bad-destination", "/control/exchanges"),
]


@pytest.mark.parametrize(("destination", "body", "headers", "code", "text"), REFUSED)
async def test_a_refused_change_says_why_and_changes_nothing(
    autojump_clock: MockClock, destination: str, body: object, headers: dict[str, str], code: str, text: str
) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect(**KEEP_OPEN)
        await request(client, "declare/exchange/orders", type="direct")
        await request(client, "declare/exchange/spare", type="fanout")
        await request(client, "declare/exchange/orders2", type="topic", alternate="spare")
        await request(client, "declare/exchange/joined", type="fanout")
        await request(client, "bind/exchange/joined", source="/exchange/orders", key="b")
        await bind(client, "/exchange/orders", key="a")
        before = state(rig.alive)

        answer = await request(client, destination, body, **headers)

        assert answer.get("code") == code, answer
        assert text in answer["message"]
        assert state(rig.alive) == before


async def test_a_dry_run_says_the_same_and_changes_nothing(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect(**KEEP_OPEN)
        before = state(rig.alive)

        assert (await request(client, "declare/exchange/e", type="topic", dry_run="true"))["dry_run"] is True
        assert (await request(client, f"bind{Q}", source="/topic/t", dry_run="true"))["source"] == "/topic/t"
        assert state(rig.alive) == before


async def test_changes_are_in_the_audit(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client, observer = await rig.connect(), await rig.connect()
        await observer.send(subscribe("/system/audit"))
        await observer.receipt()

        await request(client, "declare/exchange/orders", type="topic")
        await bind(client, "/exchange/orders", key="a.*")

        events = [json.loads((await observer.next("MESSAGE")).body) for _ in range(2)]
        assert [(event["event"], event["destination"], event["count"]) for event in events] == [
            ("declare", "/exchange/orders", 1),
            ("bind", Q, 1),
        ]
        assert (events[1]["source"], events[1]["key"]) == ("/exchange/orders", "a.*")


async def test_an_import_may_have_an_exchange_and_its_bindings_in_any_order(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect(**KEEP_OPEN)
        binding = Binding("/exchange/e", Q, "a.*", {})
        kinds = {"binding": {binding.name: binding.value}, "exchange": {"e": {"type": "topic"}}}

        alone = {"qmq_definitions": 1, "definitions": {"binding": kinds["binding"]}}
        assert (await request(client, "definitions/import", alone))["code"] == "bad-definition"
        client = await rig.connect()
        both = {"qmq_definitions": 1, "definitions": kinds}
        assert (await request(client, "definitions/import", both))["changed"] == 2

        await publish(client, "/exchange/e/a.b", "one")
        assert await consumed(client, 1) == [b"one"]


async def test_exchanges_are_bound_to_exchanges_by_stomp_too(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect(**KEEP_OPEN)
        await request(client, "declare/exchange/orders", type="topic")
        await request(client, "declare/exchange/urgent", type="fanout")
        bound = await request(client, "bind/exchange/urgent", source="/exchange/orders", key="#.urgent")
        await bind(client, "/exchange/urgent")
        await bind(client, "/exchange/orders", key="#")
        await request(client, "bind/exchange/orders", source="/exchange/urgent")

        assert (bound["exchange"], bound["changed"]) == ("/exchange/urgent", 1)
        await publish(client, "/exchange/orders/eu.urgent", "one")
        assert await consumed(client, 1) == [b"one"]
        await nothing_more(client)
        rows = (await ask(client, "bindings"))["bindings"]
        assert [(row["source"], row.get("queue"), row.get("exchange"), row["effective"]) for row in rows] == [
            ("/exchange/orders", None, "/exchange/urgent", True),
            ("/exchange/orders", Q, None, True),
            ("/exchange/urgent", None, "/exchange/orders", True),
            ("/exchange/urgent", Q, None, True),
        ]

        # A binding to it does not make it used, as in RabbitMQ.
        await request(client, f"unbind{Q}", source="/exchange/urgent")
        await request(client, "unbind/exchange/orders", source="/exchange/urgent")
        done = await request(client, "delete/exchange/urgent", if_unused="true")
        assert (done["bindings"], done["changed"]) == (1, 2)
        (row,) = (await ask(client, "bindings"))["bindings"]
        assert row["queue"] == Q


async def test_an_import_is_bounded_in_patterns_as_single_bindings_are(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect(**KEEP_OPEN)
        found = [Binding("/exchange/e", Q, f"#.{number}.#.{number}", {}) for number in range(40)]
        kinds = {"exchange": {"e": {"type": "topic"}}, "binding": {one.name: one.value for one in found}}

        refused = await request(client, "definitions/import", {"qmq_definitions": 1, "definitions": kinds})

        assert refused["code"] == "too-many-patterns"
        assert "e" not in rig.alive.settings_parts.rules.routing.exchanges


async def test_bindings_between_exchanges_are_exported_imported_and_kept(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await request(client, "declare/exchange/orders", type="topic")
        await request(client, "bind/exchange/amq.fanout", source="/exchange/orders", key="a.#")
        await bind(client, "/exchange/amq.fanout")
        exported = (await request(client, "definitions/export"))["document"]
    async with rig.run():
        client = await rig.connect()
        await publish(client, "/exchange/orders/a.b", "one")
        assert await consumed(client, 1) == [b"one"]

    other = Rig()
    async with other.run():
        client = await other.connect()
        assert (await request(client, "definitions/import", exported))["changed"] == 3
        await publish(client, "/exchange/orders/a.b", "two")
        assert await consumed(client, 1) == [b"two"]


# Rights

HASH = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("secret")


def allow(user: str, actions: str, *destinations: str) -> PermissionSettings:
    return PermissionSettings(user=user, allow=tuple(actions.split(",")), destinations=destinations)


async def test_each_request_needs_its_rights(autojump_clock: MockClock) -> None:
    users = tuple(User(name=name, password_hash=HASH) for name in ("owner", "reader", "sender"))
    permissions = (
        allow("owner", "declare", "/exchange/e", Q),
        allow("owner", "send", Q),
        allow("owner", "subscribe", "/exchange/e"),
        allow("reader", "declare", Q),
        allow("sender", "send", "/exchange/e/a.*"),
        allow("reader", "send", "/exchange/e/a.*"),
        allow("reader", "subscribe", "/exchange/amq.topic"),
        allow("owner", "send", "/exchange/amq.fanout/*"),
    )
    rig = Rig(users=users, permissions=permissions)
    async with rig.run():
        owner, reader, sender = [await rig.connect(login=user.name, passcode="secret", **KEEP_OPEN) for user in users]

        async def code(client: Client, destination: str, **headers: str) -> str:
            return str((await request(client, destination, **headers)).get("code", "done"))

        assert await code(reader, "declare/exchange/e", type="topic") == "not-allowed"
        assert await code(owner, "declare/exchange/e", type="topic") == "done"
        assert await code(reader, f"bind{Q}", source="/exchange/e", key="#") == "not-allowed"
        assert await code(owner, f"bind{Q}", source="/topic/t") == "not-allowed"
        assert await code(owner, "bind/queue/other", source="/exchange/e") == "not-allowed"
        assert await code(owner, f"bind{Q}", source="/exchange/e", key="#") == "done"
        # What is bound to an exchange may have any key.
        assert await code(reader, "bind/exchange/e", source="/exchange/amq.topic") == "not-allowed"
        assert await code(owner, "bind/exchange/amq.fanout", source="/exchange/amq.topic") == "not-allowed"
        assert await code(owner, "bind/exchange/amq.fanout", source="/exchange/e") == "done"
        assert await code(reader, "unbind/exchange/amq.fanout", source="/exchange/e") == "not-allowed"
        assert await code(owner, "unbind/exchange/amq.fanout", source="/exchange/e") == "done"
        assert await code(sender, "bindings") == "not-allowed"
        assert await publish(sender, "/exchange/e/a.b", "x") == "RECEIPT"
        assert await publish(sender, "/exchange/e/b", "x") == "not-allowed"
        assert await publish(owner, "/exchange/e/a.b", "x") == "not-allowed"
        assert await code(reader, f"unbind{Q}", source="/exchange/e", key="#") == "not-allowed"
        assert await code(reader, "delete/exchange/e") == "not-allowed"
        assert await code(owner, "delete/exchange/e") == "done"


# Meshes


async def test_a_binding_of_one_node_counts_on_all(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        a, b = await mesh.connect("a"), await mesh.connect("b")
        await request(a, "declare/exchange/orders", type="topic")
        await bind(a, "/exchange/orders", key="eu.#")
        await bind(a, "/topic/t")
        await until_alike(mesh)

        await publish(b, "/exchange/orders/eu.new", "one")
        await publish(b, "/topic/t", "two")
        await publish(a, "/topic/t", "three")

        assert sorted(await consumed(a, 3)) == [b"one", b"three", b"two"]
        await nothing_more(a)


async def test_a_binding_between_exchanges_counts_on_all_nodes_and_waits_for_its_target(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        a, c = await mesh.connect("a", **KEEP_OPEN), await mesh.connect("c", **KEEP_OPEN)
        await request(a, "declare/exchange/orders", type="fanout")
        await bind(a, "/exchange/orders")
        await until_alike(mesh)
        isolate(mesh, "c")
        assert (await request(c, "bind/exchange/orders", source="/exchange/amq.topic", key="#"))["changed"] == 1
        assert (await request(a, "delete/exchange/orders"))["changed"] == 2
        rejoin(mesh, "c")
        await until_alike(mesh)

        (row,) = (await ask(a, "bindings"))["bindings"]
        assert row["effective"] is False
        for node in mesh.nodes.values():
            await eventually(lambda node=node: "bindings-unfit" in conditions(node))  # type: ignore[misc]
        assert await publish(a, "/exchange/amq.topic/k", "nowhere") == "RECEIPT"

        await request(c, "declare/exchange/orders", type="fanout")
        await bind(c, "/exchange/orders")
        await until_alike(mesh)
        assert not any("bindings-unfit" in conditions(node) for node in mesh.nodes.values())
        await publish(a, "/exchange/amq.topic/k", "here")
        assert await consumed(c, 1) == [b"here"]


async def test_a_node_that_was_away_has_the_bindings_when_it_is_back(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        isolate(mesh, "a")
        b = await mesh.connect("b")
        await bind(b, "/topic/t")
        a = await mesh.connect("a")
        assert await publish(a, "/topic/t", "not copied") == "RECEIPT"

        rejoin(mesh, "a")
        await until_alike(mesh)
        await publish(a, "/topic/t", "copied")

        assert await consumed(b, 1) == [b"copied"]
        await nothing_more(b)


async def test_copies_that_were_confirmed_survive_the_death_of_their_node(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        a = await mesh.connect("a")
        await request(a, "declare/exchange/orders", type="fanout")
        await bind(a, "/exchange/orders", "/queue/one")
        await bind(a, "/exchange/orders", "/queue/two")
        assert await publish(a, "/exchange/orders", "kept") == "RECEIPT"

        await mesh.kill("a")
        await mesh.start("a")
        await mesh.until_linked()

        c = await mesh.connect("c")
        assert await consumed(c, 1, "/queue/one") == [b"kept"]
        c = await mesh.connect("c")
        assert await consumed(c, 1, "/queue/two") == [b"kept"]
        assert [one.queue for one in mesh.nodes["a"].settings_parts.routing.bindings()] == ["/queue/one", "/queue/two"]


async def test_a_binding_whose_exchange_the_other_side_deletes_has_no_effect(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        a, c = await mesh.connect("a", **KEEP_OPEN), await mesh.connect("c", **KEEP_OPEN)
        await request(a, "declare/exchange/orders", type="topic")
        await until_alike(mesh)
        isolate(mesh, "c")
        assert (await bind(c, "/exchange/orders", key="#"))["changed"] == 1
        assert (await request(a, "delete/exchange/orders"))["changed"] == 1

        rejoin(mesh, "c")
        await until_alike(mesh)

        for node in mesh.nodes.values():
            await eventually(lambda node=node: "bindings-unfit" in conditions(node))  # type: ignore[misc]
        (found,) = [one for one in mesh.nodes["b"].conditions.present() if one.code == "bindings-unfit"]
        assert "binding /exchange/orders /queue/q #" in found.message
        assert await publish(c, "/exchange/orders/key", "nowhere") == "unknown-destination"
        (row,) = (await ask(a, "bindings"))["bindings"]
        assert row["effective"] is False

        await mesh.stop("a")
        await mesh.start("a")
        assert "bindings-unfit" in conditions(mesh.nodes["a"])

        # Declared again, it has its binding; and the condition is over.
        await request(c, "declare/exchange/orders", type="fanout")
        await until_alike(mesh)
        assert not any("bindings-unfit" in conditions(node) for node in mesh.nodes.values())
        await publish(c, "/exchange/orders/key", "here")
        assert await consumed(c, 1) == [b"here"]


@pytest.mark.parametrize("destination", ["/topic/t", "/exchange/amq.direct/k"])
async def test_a_send_that_is_repeated_on_another_node_is_copied_once(
    autojump_clock: MockClock, destination: str
) -> None:
    async with MeshRig("a", "b").run() as mesh:
        a, b = await mesh.connect("a"), await mesh.connect("b")
        await bind(a, "/topic/t")
        await bind(a, "/exchange/amq.direct", key="k")
        await until_alike(mesh)
        assert await publish(a, destination, "once", dedup_id="7") == "RECEIPT"

        await b.send(send(destination, "once", "again", dedup_id="7", redelivered="true"))

        assert (await b.next("RECEIPT")).head.headers["duplicate"] == "true"
        assert await consumed(b, 1) == [b"once"]
        await nothing_more(b)


async def test_a_message_that_expires_does_so_in_each_queue(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await bind(client, "/exchange/amq.fanout", "/queue/one")
        await bind(client, "/exchange/amq.fanout", "/queue/two")
        await publish(client, "/exchange/amq.fanout", "short", ttl="1000")
        await publish(client, "/exchange/amq.fanout", "long")

        await trio.sleep(2)

        assert await consumed(client, 1, "/queue/one") == [b"long"]
        await client.send(subscribe("/queue/two", "two"))
        assert await client.messages(1) == [b"long"]


async def while_it_waits(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, asked: str, changes: Mapping[Key, Any], **headers: str
) -> dict[str, Any]:
    """The response to a request whose change waits for its turn while others make `changes`."""
    client, definitions = await rig.connect(), rig.alive.settings_parts.definitions
    change = definitions.change

    async def late(*args: Any, **more: Any) -> object:
        monkeypatch.undo()
        await change(changes)
        return await change(*args, **more)

    monkeypatch.setattr(definitions, "change", late)
    return await request(client, asked, **headers)


async def test_an_exchange_is_deleted_with_the_bindings_that_it_has_then(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await request(client, "declare/exchange/e", type="fanout")
        await bind(client, "/exchange/e")
        more = read_binding({"source": "/exchange/e", "queue": "/queue/more"})
        changes = {Key("binding", f"/exchange/e {Q}"): None, Key("binding", more.name): more.value}

        found = await while_it_waits(rig, monkeypatch, "delete/exchange/e", changes)

        assert found["bindings"] == 1 and rig.alive.settings_parts.routing.bindings() == []
        assert "e" not in rig.alive.settings_parts.routing.table.exchanges


async def test_of_two_declarations_that_differ_the_second_is_refused(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    async with rig.run():
        changes = {Key("exchange", "e"): {"type": "topic"}}

        found = await while_it_waits(rig, monkeypatch, "declare/exchange/e", changes, type="topic", internal="true")

        assert found["code"] == "exchange-differs"
        assert not rig.alive.settings_parts.routing.table.exchanges["e"].internal


async def test_no_binding_to_a_queue_that_is_deleted_stays_behind(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await request(client, f"declare{Q}")
        binding = read_binding({"source": "/topic/t", "queue": Q})

        found = await while_it_waits(rig, monkeypatch, f"bind{Q}", {Key("queue", Q): None}, source="/topic/t")
        assert found["code"] == "unknown-destination" and rig.alive.settings_parts.routing.bindings() == []

        await request(client, f"declare{Q}")
        changes = {Key("binding", binding.name): binding.value}
        found = await while_it_waits(rig, monkeypatch, f"delete{Q}", changes)
        assert found["bindings"] == 1 and rig.alive.settings_parts.routing.bindings() == []
