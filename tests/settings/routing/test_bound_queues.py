"""Durable subscriptions of topics, and subscriptions of exchanges, in the words of RabbitMQ's STOMP."""

from typing import Any

import pytest
from trio.testing import MockClock

from qmq.config import PermissionSettings, User
from qmq.definitions.definition import Key
from qmq.errors import Refused
from tests.node.mesh_rig import MeshRig, isolate
from tests.node.rig import Client, Rig, eventually, nothing_more, send, subscribe
from tests.settings.definitions.test_definitions_mesh import unnoticed_cut, until_alike
from tests.settings.routing.test_bindings import HASH, publish, request

T = "/topic/prices.eu"


def unsubscribe(id: str, **headers: str) -> str:
    lines = [f"{name.replace('_', '-')}:{value}\n" for name, value in headers.items()]
    return f"UNSUBSCRIBE\nid:{id}\nreceipt:u\n{''.join(lines)}\n"


async def follow(client: Client, destination: str = T, id: str = "audit", **headers: str) -> str:
    """The receipt, or the code of the refusal."""
    await client.send(subscribe(destination, id, **headers))
    frame = await client.any()
    return frame.head.headers.get("error-code", frame.head.command)


async def queues(client: Client) -> list[str]:
    found: list[dict[str, Any]] = (await request(client, "bindings"))["bindings"]
    return [one["queue"] for one in found]


async def test_a_durable_subscription_of_a_topic_gets_what_was_sent_while_its_client_was_away(
    autojump_clock: MockClock,
) -> None:
    rig = Rig()
    async with rig.run():
        client, publisher = await rig.connect(), await rig.connect()
        assert await follow(client, durable="true") == "RECEIPT"
        await publish(publisher, T, "one")
        assert await client.messages(1) == [b"one"]
        client.pipe.close()

        await publish(publisher, T, "two")

        again = await rig.connect()
        assert await follow(again, durable="true") == "RECEIPT"
        assert await again.messages(1) == [b"two"]
        message_of_a_topic_only = await rig.connect()
        await follow(message_of_a_topic_only, durable="false")
        await publish(publisher, T, "three")
        assert await message_of_a_topic_only.messages(1) == await again.messages(1) == [b"three"]


async def test_a_durable_subscription_of_a_pattern_survives_a_restart_and_continues_on_another_node(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        client = await mesh.connect("a")
        assert await follow(client, "/topic/prices.*", durable="true") == "RECEIPT"
        client.pipe.close()
        await eventually(lambda: all(mesh.nodes[name].settings_parts.routing.bindings() for name in "abc"))
        await mesh.kill("c")
        await mesh.start("c")

        publisher = await mesh.connect("c")
        assert await publish(publisher, T, "kept") == "RECEIPT"

        again = await mesh.connect("b")
        assert await follow(again, "/topic/prices.*", durable="true") == "RECEIPT"
        assert await again.messages(1) == [b"kept"]


BOUND = {
    "topic": (T, {"durable": "true"}),
    "exchange": ("/exchange/amq.topic/prices", {"durable": "true"}),
    "virtual-topic": ("/queue/Consumer.A.VirtualTopic.prices", {}),
}


def defined_of(mesh: MeshRig) -> tuple[Key, ...]:
    """What node a has of the one bound queue: its declaration, and its binding."""
    a = mesh.nodes["a"].settings_parts
    return tuple(a.declared_queues.definitions_of(*a.declared_queues.texts))


def assert_bound(mesh: MeshRig, queue: Key, binding: Key) -> None:
    for node in mesh.nodes.values():
        assert [*node.settings_parts.declared_queues.texts] == [queue.name]
        assert [one.name for one in node.settings_parts.routing.bindings()] == [binding.name]


@pytest.mark.parametrize("is_bound", [True, False], ids=["bound", "unbound"])
@pytest.mark.parametrize(("destination", "words"), BOUND.values(), ids=BOUND)
async def test_one_that_is_bound_again_behind_an_unnoticed_cut_wins_over_an_earlier_deletion(
    autojump_clock: MockClock, destination: str, words: dict[str, str], is_bound: bool
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        client = await mesh.connect("c")
        assert await follow(client, destination, **words) == "RECEIPT"
        client.pipe.close()
        await until_alike(mesh)
        queue, binding = defined_of(mesh)
        if not is_bound:
            await mesh.nodes["a"].settings_parts.definitions.change({binding: None})
            await until_alike(mesh)
        async with unnoticed_cut(mesh, {queue: None, **({binding: None} if is_bound else {})}):
            assert await follow(await mesh.connect("c"), destination, **words) == "RECEIPT"

        assert_bound(mesh, queue, binding)


@pytest.mark.parametrize(("destination", "words"), BOUND.values(), ids=BOUND)
async def test_one_that_is_bound_again_where_the_record_of_its_deletion_is_late_is_bound(
    autojump_clock: MockClock, destination: str, words: dict[str, str]
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        client = await mesh.connect("c")
        assert await follow(client, destination, **words) == "RECEIPT"
        client.pipe.close()
        await until_alike(mesh)
        queue, binding = defined_of(mesh)
        # Records of definitions take long: only a question finds them.
        mesh.nodes["c"].engine.replay.follow(definitions=lambda change: None)
        await mesh.nodes["a"].settings_parts.definitions.change({queue: None, binding: None})

        assert await follow(await mesh.connect("c"), destination, **words) == "RECEIPT"
        await until_alike(mesh)

        assert_bound(mesh, queue, binding)


async def test_one_that_all_members_know_is_continued_without_a_change(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        for destination, words in BOUND.values():
            assert await follow(await mesh.connect("c"), destination, **words) == "RECEIPT"
        await until_alike(mesh)
        table = mesh.nodes["c"].settings_parts.definitions.table
        before = table.by_key.copy()

        for destination, words in BOUND.values():
            assert await follow(await mesh.connect("c"), destination, **words) == "RECEIPT"

        assert table.by_key == before


async def test_a_client_that_may_only_consume_continues_one_behind_an_unnoticed_cut_and_changes_nothing(
    autojump_clock: MockClock,
) -> None:
    users = (User(name="app", password_hash=HASH, groups=("client",)), User(name="ann", password_hash=HASH))
    allowed = PermissionSettings(user="ann", allow=("subscribe",), destinations=("/topic/*", "/queue/*"))
    async with MeshRig("a", "b", "c", users=users, permissions=(allowed,)).run() as mesh:
        words = {"durable": "true", "x_queue_name": "mine"}
        assert await follow(await mesh.connect("c", login="app", passcode="secret"), **words) == "RECEIPT"
        await until_alike(mesh)
        written = mesh.nodes["c"].settings_parts.definitions.table.by_key.copy()
        isolate(mesh, "c")
        await mesh.nodes["a"].settings_parts.definitions.change(dict.fromkeys(defined_of(mesh)))

        assert await follow(await mesh.connect("c", login="ann", passcode="secret"), **words) == "RECEIPT"

        assert mesh.nodes["c"].settings_parts.definitions.table.by_key == written


async def test_the_id_and_the_destination_name_the_queue(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client, other = await rig.connect(), await rig.connect()
        await follow(client, T, "1", durable="true")
        await follow(other, T, "2", durable="true")
        await follow(other, "/topic/prices.us", "1", durable="true")
        await follow(client, "/topic/prices.jp", "named", durable="true", x_queue_name="mine")

        names = await queues(await rig.connect())

        assert len(set(names)) == 4
        assert "/queue/mine" in names
        assert sum(name.startswith("/queue/subscription.1.") for name in names) == 2


async def test_the_words_of_activemq_name_it_by_client_and_name(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect(client_id="shop")
        assert await follow(client, T, "0", durable_subscription_name="x") == "RECEIPT"
        await client.send(subscribe(T, "9", durable_subscription_name="orders"))
        assert (await client.any()).head.command == "RECEIPT"
        client.pipe.close()
        publisher = await rig.connect()
        await publish(publisher, T, "kept")

        again = await rig.connect(client_id="shop")
        assert await follow(again, T, "another id", durable_subscription_name="orders") == "RECEIPT"

        assert await again.messages(1) == [b"kept"]


async def test_unsubscribe_with_its_words_deletes_the_queue_and_without_them_keeps_it(
    autojump_clock: MockClock,
) -> None:
    rig = Rig()
    async with rig.run():
        client, publisher = await rig.connect(), await rig.connect()
        await follow(client, durable="true")
        await client.send(unsubscribe("audit"))
        assert await client.receipt() == "u"
        await publish(publisher, T, "kept")
        await follow(client, durable="true")
        assert await client.messages(1) == [b"kept"]

        await client.send(unsubscribe("audit", durable="true"))

        assert await client.receipt() == "u"
        assert await queues(publisher) == []
        await publish(publisher, T, "to no queue")
        await follow(client, durable="true")
        await nothing_more(client)


async def test_one_that_no_connection_uses_is_deleted_by_its_id_and_destination(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await follow(client, durable="true")
        client.pipe.close()
        other = await rig.connect()

        await other.send(unsubscribe("audit", durable="true", destination=T))

        assert await other.receipt() == "u"
        assert await queues(other) == []
        await other.send(unsubscribe("audit", durable="true", destination=T))
        assert (await other.any()).head.headers["error-code"] == "unknown-subscription"


async def test_an_auto_delete_subscription_goes_with_its_last_client(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        node = rig.node
        client = await rig.connect()
        await follow(client, durable="true", auto_delete="true")
        assert len(node.settings_parts.routing.bindings()) == 1

        client.pipe.close()

        await eventually(lambda: not node.settings_parts.routing.bindings())


async def test_a_subscription_of_an_exchange_gets_what_its_key_matches_and_ends_with_its_connection(
    autojump_clock: MockClock,
) -> None:
    rig = Rig()
    async with rig.run():
        node = rig.node
        client, publisher = await rig.connect(), await rig.connect()
        assert await follow(client, "/exchange/amq.topic/stock.#") == "RECEIPT"
        assert await follow(client, "/exchange/amq.topic/stock.#", "second") == "RECEIPT"

        assert await publish(publisher, "/exchange/amq.topic/stock.eu", "both") == "RECEIPT"
        await publish(publisher, "/exchange/amq.topic/bonds", "neither")

        assert await client.messages(2) == [b"both", b"both"]
        await nothing_more(client)
        client.pipe.close()
        await eventually(lambda: not node.settings_parts.routing.bindings())


@pytest.mark.parametrize(
    ("source", "words", "sent_to"),
    [
        ("/exchange/amq.topic/stock.#", {}, "/exchange/amq.topic/stock.eu:1"),
        ("/exchange/amq.topic/#", {"durable": "true"}, "/exchange/amq.topic/a/b"),
        ("/exchange/amq.fanout", {"x_queue_name": "q"}, "/exchange/amq.fanout"),
        (T, {"durable": "true"}, T),
        ("/topic/prices.*", {"durable": "true"}, T),
    ],
)
@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
@pytest.mark.parametrize("ack", ["auto", "client-individual"])
async def test_a_message_has_the_destination_of_its_send_and_names_the_queue(
    autojump_clock: MockClock, source: str, words: dict[str, str], sent_to: str, version: str, ack: str
) -> None:
    rig = Rig()
    async with rig.run():
        client, publisher = await rig.dial(), await rig.connect()
        await client.send(f"CONNECT\naccept-version:{version}\nhost:x\n\n")
        await client.next("CONNECTED")
        assert await follow(client, source, ack=ack, **words) == "RECEIPT"

        forged = {"original_destination": "/topic/x", "exchange": "x", "routing_key": "x", "queue": "/queue/x"}
        await publisher.send(send(sent_to.replace(":", "\\c"), "one", "r", **forged))

        headers = (await client.next("MESSAGE")).head.headers
        (queue,) = rig.alive.broker.queues.by_name
        if version == "1.0":  # It has no escapes.
            assert headers["destination"].replace("\\c", ":") == sent_to
        else:
            assert headers["destination"] == sent_to
        assert (headers["queue"], headers["subscription"]) == (queue, "audit")


async def test_a_message_that_was_sent_to_the_queue_itself_or_came_as_a_dead_letter_says_so(
    autojump_clock: MockClock,
) -> None:
    rig = Rig()
    async with rig.run():
        client, other = await rig.connect(), await rig.connect()
        assert await follow(client, "/exchange/amq.topic/#", x_queue_name="mine") == "RECEIPT"
        await request(other, "declare/queue/work", {"dead_letter": "/exchange/amq.topic", "delivery_limit": 1})
        await request(other, "bind/queue/work", source="/exchange/amq.direct", key="k")

        await publish(other, "/queue/mine", "by name")
        await publish(other, "/exchange/amq.direct/k", "refused")
        await other.send(subscribe("/queue/work", "w", "client-individual"))
        (refused,) = [await other.next("MESSAGE")]
        await other.send(f"NACK\nid:{refused.head.headers['ack']}\nrequeue:false\n\n")

        found = [await client.next("MESSAGE") for _ in range(2)]
        assert [(one.body, one.head.headers["destination"]) for one in found] == [
            (b"by name", "/queue/mine"),
            (b"refused", "/exchange/amq.topic/k"),
        ]
        assert refused.head.headers["destination"] == "/queue/work"


@pytest.mark.parametrize(
    ("destination", "headers", "code"),
    [
        ("/exchange/none/key", {}, "bad-definition"),
        (T, {"durable": "true", "selector": "a = 1"}, "bad-selector"),
        (T, {"durable": "true", "filter": "a=1"}, "bad-selector"),
        (T, {"durable": "true", "x_queue_name": "a*"}, "bad-definition"),
        ("/topic/a.*b", {"durable": "true"}, "bad-definition"),
        ("/exchange/amq.topic/k", {"prefetch_count": "many"}, "bad-prefetch"),
        ("/exchange/amq.topic/k", {"ack": "sometimes"}, "bad-ack-mode"),
        ("/exchange/amq.topic/k", {"ack_timeout": "x"}, "bad-header"),
        (T, {"durable": "true", "buffer_bytes": "7"}, "bad-buffer"),
        (T, {"durable": "true", "dead_letter": "/topic/none"}, "bad-dead-letter"),
    ],
)
async def test_what_cannot_be_bound_is_refused_and_nothing_is_declared(
    autojump_clock: MockClock, destination: str, headers: dict[str, str], code: str
) -> None:
    rig = Rig()
    async with rig.run():
        node = rig.node
        client = await rig.connect(on_error="keep-open")
        before = node.settings_parts.definitions.table.digest

        assert await follow(client, destination, **headers) == code

        assert node.settings_parts.definitions.table.digest == before


async def test_it_needs_the_rights_to_read_the_topic_and_to_declare_fill_and_consume_the_queue(
    autojump_clock: MockClock,
) -> None:
    def user(name: str) -> User:
        return User(name=name, password_hash=HASH)

    allowed = [
        PermissionSettings(
            user="all", allow=("send", "subscribe", "declare"), destinations=("/topic/*", "/queue/subscription.*")
        ),
        PermissionSettings(
            user="consumer",
            allow=("subscribe", "declare"),
            destinations=("/topic/*", "/queue/subscription.*", "/exchange/amq.topic"),
        ),
        PermissionSettings(user="reader", allow=("subscribe",), destinations=("/topic/*", "/queue/subscription.*")),
        PermissionSettings(user="worker", allow=("subscribe", "declare"), destinations=("/queue/subscription.*",)),
    ]
    rig = Rig(users=tuple(map(user, ("all", "consumer", "reader", "worker"))), permissions=tuple(allowed))
    async with rig.run():
        node = rig.node
        for name, answer in (
            ("reader", "not-allowed"),
            ("worker", "not-allowed"),
            ("consumer", "not-allowed"),
            ("all", "RECEIPT"),
            ("all", "RECEIPT"),
        ):
            client = await rig.connect(login=name, passcode="secret")
            assert await follow(client, durable="true") == answer, name
        assert len(node.settings_parts.routing.bindings()) == 1
        # Into a queue that is exclusive to the connection nothing is sent to another client.
        client = await rig.connect(login="consumer", passcode="secret")
        assert await follow(client, "/exchange/amq.topic/k") == "RECEIPT"


async def test_frames_behind_a_durable_subscribe_wait_for_it(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()

        await client.send(subscribe(T, "audit", durable="true"), send(T, "at once", "s"))

        frames = [await client.any() for _ in range(3)]
        assert {frame.head.command for frame in frames} == {"RECEIPT", "MESSAGE"}
        assert [frame.body for frame in frames if frame.head.command == "MESSAGE"] == [b"at once"]


async def test_the_end_of_a_later_subscription_with_its_id_deletes_nothing_of_the_first(
    autojump_clock: MockClock,
) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect(on_error="keep-open")
        await follow(client, durable="true")
        (session,) = rig.alive.sessions.values()
        # As when its user may not subscribe any more.
        rig.alive.session_parts.login_path.access._end(session, "audit", Refused("not-allowed", "From now on."))
        assert (await client.any()).head.headers["error-code"] == "not-allowed"
        await follow(client, "/queue/other")

        await client.send(unsubscribe("audit", durable="true"))
        await client.any()

        assert len(await queues(client)) == 1


async def test_to_delete_a_queue_by_its_binding_needs_the_rights_to_consume_and_to_declare_it(
    autojump_clock: MockClock,
) -> None:
    names = ("all", "maker", "reader")
    allowed = [
        PermissionSettings(user="all", allow=("subscribe", "declare", "send"), destinations=("/*",)),
        PermissionSettings(user="maker", allow=("declare",), destinations=("/queue/*",)),
        PermissionSettings(user="reader", allow=("subscribe",), destinations=("/*",)),
    ]
    rig = Rig(users=tuple([User(name=name, password_hash=HASH) for name in names]), permissions=tuple(allowed))
    async with rig.run():
        owner = await rig.connect(login="all", passcode="secret")
        await follow(owner, durable="true", x_queue_name="archive")
        for name, answer in (("maker", "ERROR"), ("reader", "ERROR"), ("all", "RECEIPT")):
            assert len(rig.alive.settings_parts.routing.bindings()) == 1
            client = await rig.connect(login=name, passcode="secret")
            await client.send(unsubscribe("x", durable="true", destination=T, x_queue_name="archive"))
            assert (await client.any()).head.command == answer, name
        assert rig.alive.settings_parts.routing.bindings() == []


async def test_a_queue_that_is_exclusive_to_another_connection_is_neither_bound_nor_deleted(
    autojump_clock: MockClock,
) -> None:
    rig = Rig()
    async with rig.run():
        owner, other = await rig.connect(), await rig.connect(on_error="keep-open")
        await request(owner, "declare/queue/mine", {"exclusive_to_connection": True})
        await request(owner, "bind/queue/mine", source=T)

        assert await follow(other, "/topic/more", durable="true", x_queue_name="mine") == "resource-locked"
        assert await queues(owner) == ["/queue/mine"]

        other = await rig.connect()
        await other.send(unsubscribe("x", durable="true", destination=T, x_queue_name="mine"))
        assert (await other.any()).head.headers["error-code"] == "resource-locked"
        assert await queues(owner) == ["/queue/mine"]


@pytest.mark.parametrize("meanwhile", [None, {"max_messages": 5}])
async def test_the_queue_is_as_another_client_leaves_it_while_the_declaration_waits(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, meanwhile: dict[str, Any] | None
) -> None:
    rig = Rig()
    async with rig.run():
        client, definitions = await rig.connect(), rig.alive.settings_parts.definitions
        if meanwhile is None:
            await request(client, "declare/queue/mine")
        change = definitions.change

        async def late(*args: Any, **more: Any) -> object:
            monkeypatch.undo()
            await change({Key("queue", "/queue/mine"): meanwhile})
            return await change(*args, **more)

        monkeypatch.setattr(definitions, "change", late)

        assert await follow(client, durable="true", x_queue_name="mine") == "RECEIPT"

        assert rig.alive.settings_parts.declared_queues.value_of("/queue/mine") == (meanwhile or {})
        assert await queues(client) == ["/queue/mine"]


async def test_a_queue_of_its_own_ends_with_its_connection_if_the_subscription_is_refused(
    autojump_clock: MockClock,
) -> None:
    rig = Rig(limits={"subscriptions_max": 1})
    async with rig.run():
        client = await rig.connect(on_error="keep-open")
        assert await follow(client, "/queue/first", "first") == "RECEIPT"
        assert await follow(client, "/exchange/amq.topic/k") == "too-many-subscriptions"
        assert rig.alive.settings_parts.declared_queues.texts

        client.pipe.close()

        await eventually(
            lambda: (
                not rig.alive.settings_parts.declared_queues.texts and not rig.alive.settings_parts.routing.bindings()
            )
        )


@pytest.mark.parametrize("source", ["/exchange/amq.topic/stock.eu", T])
async def test_a_commit_puts_nothing_into_the_queue_of_a_subscription_that_has_ended(
    autojump_clock: MockClock, source: str
) -> None:
    words = {"durable": "true"} if source == T else {}
    rig = Rig()
    async with rig.run():
        node = rig.alive
        client, publisher = await rig.connect(), await rig.connect()
        assert await follow(client, source, **words) == "RECEIPT"
        (queue,) = node.broker.queues.by_name
        await publisher.send(
            "BEGIN\ntransaction:t\n\n", send(source, "too late", "r", transaction="t"), "BEGIN\ntransaction:other\n\n"
        )
        state = node.broker.sessions[max(node.broker.sessions)]
        await eventually(lambda: len(state.transactions) == 2)
        await client.send(unsubscribe("audit", **words))
        assert await client.receipt() == "u"
        await eventually(lambda: not node.settings_parts.routing.bindings() and queue not in node.broker.queues.by_name)

        await publisher.send("COMMIT\ntransaction:t\nreceipt:c\n\n")

        assert [await publisher.receipt(), await publisher.receipt()] == ["r", "c"]
        assert queue not in node.broker.queues.by_name
        assert state.held_bytes == 0  # As much as the other transaction holds.
        await publisher.send("ABORT\ntransaction:other\nreceipt:a\n\n")
        assert await publisher.receipt() == "a"
