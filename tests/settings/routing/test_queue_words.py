"""What a SUBSCRIBE says of its queue, in the words of RabbitMQ's STOMP."""

from typing import Any

import pytest
from trio.testing import MockClock

from qmq.config import PermissionSettings, User
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Rig, eventually, nothing_more
from tests.settings.routing.test_bindings import HASH, publish
from tests.settings.routing.test_bound_queues import follow

Q = "/queue/reply-user1"


async def test_an_auto_delete_queue_goes_with_its_last_consumer_and_what_waited_in_it(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b").run() as mesh:
        first, second, publisher = await mesh.connect("a"), await mesh.connect("b"), await mesh.connect("b")
        words = {"auto_delete": "true", "durable": "false", "exclusive": "false"}
        assert await follow(first, Q, prefetch_count="1", ack="client-individual", **words) == "RECEIPT"
        await eventually(lambda: Q in mesh.nodes["b"].settings_parts.declared_queues.texts)
        assert await follow(second, Q, **words) == "RECEIPT"
        first.pipe.close()
        await publish(publisher, Q, "one")
        assert await second.messages(1) == [b"one"]

        second.pipe.close()

        await eventually(lambda: not any(mesh.nodes[name].settings_parts.declared_queues.texts for name in "ab"))
        await publish(publisher, Q, "in an ordinary queue")
        third = await mesh.connect("a")
        assert await follow(third, Q) == "RECEIPT"
        assert await third.messages(1) == [b"in an ordinary queue"]


async def test_what_waits_in_an_auto_delete_queue_at_its_end_is_gone(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client, publisher = await rig.connect(), await rig.connect()
        assert await follow(client, Q, ack="client-individual", prefetch_count="1", auto_delete="true") == "RECEIPT"
        await publish(publisher, Q, "in flight")
        await publish(publisher, Q, "waits")
        client.pipe.close()
        await eventually(
            lambda: not rig.alive.settings_parts.declared_queues.texts and Q not in rig.alive.broker.queues.by_name
        )

        again = await rig.connect()
        assert await follow(again, Q) == "RECEIPT"

        await nothing_more(again)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ({"auto_delete": "true"}, {"auto_delete": True}),
        ({"durable": "false"}, {"durable": False}),
        ({"persistent": "FALSE"}, {"durable": False}),
        ({"durable": "true", "auto_delete": "false"}, None),
        ({"x_message_ttl": "1500"}, {"ttl_seconds": 1.5}),
        ({"x_expires": "60000"}, {"expires_seconds": 60}),
        ({"x_max_length": "7"}, {"max_messages": 7, "overflow": "drop-oldest"}),
        ({"x_max_length_bytes": "7", "x_overflow": "reject-publish"}, {"max_bytes": 7, "overflow": "refuse"}),
        ({"x_single_active_consumer": "true"}, {"exclusive": True}),
        ({"x_delivery_limit": "3"}, {"delivery_limit": 3}),
        ({"x_consumer_timeout": "1000"}, {"ack_timeout_seconds": 1}),
        (
            {"x_dead_letter_exchange": "amq.topic", "x_dead_letter_routing_key": "12"},
            {"dead_letter": "/exchange/amq.topic", "dead_letter_routing_key": "12"},
        ),
        ({"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "d"}, {"dead_letter": "/queue/d"}),
        ({"x_queue_type": "quorum"}, None),
    ],
)
@pytest.mark.parametrize("destination", [Q, f"/amq{Q}"])
async def test_its_words_declare_the_queue(
    autojump_clock: MockClock, destination: str, words: dict[str, str], value: dict[str, Any] | None
) -> None:
    async with Rig().run() as rig:
        client, publisher = await rig.connect(), await rig.connect()

        assert await follow(client, destination, **words) == "RECEIPT"

        assert rig.alive.settings_parts.declared_queues.value_of(Q) == value
        await publish(publisher, Q, "one")
        assert await client.messages(1) == [b"one"]


async def test_the_words_of_a_bound_subscription_declare_its_queue_too(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client, another, other = await rig.connect(), await rig.connect(), await rig.connect()
        words = {"durable": "true", "x_queue_name": "q"}
        assert await follow(client, "/topic/t", **words, x_max_length="2") == "RECEIPT"
        assert rig.alive.settings_parts.declared_queues.value_of("/queue/q") == {
            "max_messages": 2,
            "overflow": "drop-oldest",
        }

        assert await follow(another, "/topic/t", **words, x_max_length="3") == "declared-otherwise"
        assert await follow(other, "/topic/t", **words, x_max_length="2") == "RECEIPT"
        assert await follow(other, "/exchange/amq.topic/k", "own", x_message_ttl="1000") == "RECEIPT"

        own = [
            value
            for value in map(
                rig.alive.settings_parts.declared_queues.value_of, rig.alive.settings_parts.declared_queues.texts
            )
            if value
        ]
        (own_value,) = [value for value in own if "ttl_seconds" in value]
        assert own_value.pop("exclusive_to_connection")
        assert own_value == {"ttl_seconds": 1, "durable": False, "auto_delete": True}


async def test_a_topic_subscription_may_name_its_queue_without_being_durable(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client, publisher = await rig.connect(), await rig.connect()
        assert await follow(client, "/topic/t", x_queue_name="q") == "RECEIPT"

        await publish(publisher, "/queue/q", "to the queue")
        await publish(publisher, "/topic/t", "to the topic")

        assert await client.messages(2) == [b"to the queue", b"to the topic"]
        client.pipe.close()
        await eventually(
            lambda: (
                not rig.alive.settings_parts.declared_queues.texts and not rig.alive.settings_parts.routing.bindings()
            )
        )


async def test_the_queues_of_a_virtual_topic_of_activemq_get_what_is_sent_to_the_topic(
    autojump_clock: MockClock,
) -> None:
    topic, queues = "/topic/VirtualTopic.orders.eu", [f"/queue/Consumer.{one}.VirtualTopic.orders.eu" for one in "AB"]
    async with MeshRig("a", "b").run() as mesh:
        clients = [await mesh.connect(node) for node in "aba"]
        for client, queue in zip(clients, [queues[0], queues[0], queues[1]], strict=True):
            assert await follow(client, queue, ack="client-individual", prefetch_count="1") == "RECEIPT"
        publisher = await mesh.connect("b")
        await eventually(lambda: len(mesh.nodes["b"].settings_parts.routing.bindings()) == 2)
        for body in ("one", "two"):
            assert await publish(publisher, topic, body) == "RECEIPT"

        first, second, other = [await client.next("MESSAGE") for client in clients]

        assert {first.body, second.body} == {b"one", b"two"}
        assert (other.body, other.head.headers["destination"]) == (b"one", queues[1])
        for client in clients:
            await client.send("UNSUBSCRIBE\nid:audit\nreceipt:u\n\n")
            assert await client.receipt() == "u"
        assert len(mesh.nodes["a"].settings_parts.routing.bindings()) == 2
        again = await mesh.connect("b")
        assert await follow(again, queues[1]) == "RECEIPT"
        assert await again.messages(2) == [b"one", b"two"]


async def test_the_queue_of_a_virtual_topic_needs_the_rights_of_its_binding_until_there_is_one(
    autojump_clock: MockClock,
) -> None:
    queue = "/queue/Consumer.A.VirtualTopic.t"
    reader = PermissionSettings(user="reader", allow=("subscribe",), destinations=(queue,))
    maker = PermissionSettings(
        user="maker", allow=("subscribe", "declare", "send"), destinations=(queue, "/topic/VirtualTopic.t")
    )
    users = tuple([User(name=name, password_hash=HASH) for name in ("reader", "maker")])
    async with Rig(users=users, permissions=(reader, maker)).run() as rig:
        for name, answer in (("reader", "not-allowed"), ("maker", "RECEIPT"), ("reader", "RECEIPT")):
            client = await rig.connect(login=name, passcode="secret")
            assert await follow(client, queue) == answer, name


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ({"x_message_ttl": "soon"}, "bad-header"),
        ({"x_max_length": "0"}, "bad-header"),
        ({"x_queue_type": "stream"}, "not-supported"),
        ({"x_queue_type": "list"}, "bad-header"),
        ({"x_overflow": "drop"}, "bad-header"),
        ({"x_dead_letter_routing_key": "k"}, "bad-header"),
        ({"x_dead_letter_exchange": "a b"}, "bad-definition"),
        ({"auto_delete": "true", "ack": "sometimes"}, "bad-ack-mode"),
        ({"auto_delete": "true", "x_max_age": "1h"}, "not-supported"),
    ],
)
async def test_words_that_cannot_be_obeyed_are_refused_and_nothing_is_declared(
    autojump_clock: MockClock, words: dict[str, str], code: str
) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()

        assert await follow(client, Q, **words) == code

        assert not rig.alive.settings_parts.declared_queues.texts


async def test_a_queue_that_is_declared_otherwise_is_not_consumed(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client, other = await rig.connect(), await rig.connect()
        assert await follow(client, Q, auto_delete="true") == "RECEIPT"

        assert await follow(other, Q, x_message_ttl="1000") == "declared-otherwise"

        assert len(rig.alive.broker.queues.by_name[Q].subscriptions) == 1


@pytest.mark.parametrize("destination", ["/topic/t", "/queue/Consumer.A.VirtualTopic.t"])
async def test_a_bound_queue_that_stays_does_not_become_one_that_goes_with_its_consumers(
    autojump_clock: MockClock, destination: str
) -> None:
    words = {"durable": "true"} if destination == "/topic/t" else {}
    async with Rig().run() as rig:
        first, second, third = [await rig.connect() for _ in range(3)]
        assert await follow(first, destination, **words) == "RECEIPT"

        assert await follow(second, destination, **words, auto_delete="true") == "declared-otherwise"
        assert await follow(third, destination, **words, auto_delete="false") == "RECEIPT"


async def test_its_words_need_the_right_to_declare_and_to_send_dead_letters(autojump_clock: MockClock) -> None:
    reader = PermissionSettings(user="reader", allow=("subscribe",), destinations=("/queue/*",))
    maker = PermissionSettings(user="maker", allow=("subscribe", "declare"), destinations=("/queue/*",))
    users = tuple([User(name=name, password_hash=HASH) for name in ("reader", "maker")])
    async with Rig(users=users, permissions=(reader, maker)).run() as rig:
        letters = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "d"}
        for name, words, answer in (
            ("reader", {"auto_delete": "true"}, "not-allowed"),
            ("reader", {"durable": "true"}, "RECEIPT"),
            ("maker", letters, "not-allowed"),
            ("maker", {"auto_delete": "true"}, "RECEIPT"),
        ):
            client = await rig.connect(login=name, passcode="secret")
            assert await follow(client, Q, **words) == answer, (name, words)


async def test_a_queue_that_was_deleted_after_its_declaration_is_declared_again(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        for _ in range(3):
            assert await follow(client, Q, auto_delete="true") == "RECEIPT"
            assert rig.alive.settings_parts.declared_queues.value_of(Q) == {"auto_delete": True}
            await client.send("UNSUBSCRIBE\nid:audit\nreceipt:u\n\n")
            assert await client.receipt() == "u"
            await eventually(lambda: not rig.alive.settings_parts.declared_queues.texts)
