"""AMQP clients on three nodes of which one is killed: pika with confirms."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import PATIENCE_SECONDS, eventually

DURABLE = pika.BasicProperties(delivery_mode=2, content_type="text/plain")


@contextlib.contextmanager
def channel(mesh: Cluster, name: str) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", mesh.amqp_port(name)))
    try:
        yield connection.channel()
    finally:
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()


def take(mesh: Cluster, name: str, queue: str, wanted: set[bytes]) -> list[tuple[bytes, bool]]:
    """Consume on one node until all of `wanted` have come, and acknowledge: bodies, and whether they came again."""
    found: list[tuple[bytes, bool]] = []
    until = time.monotonic() + 60
    with channel(mesh, name) as reader:
        reader.basic_qos(prefetch_count=20)
        for method, _, body in reader.consume(queue, inactivity_timeout=0.2):
            if method is not None:
                found.append((body, method.redelivered))
                reader.basic_ack(method.delivery_tag)
            if wanted <= {one for one, _ in found}:
                break
            assert time.monotonic() < until, f"missing: {sorted(wanted - {one for one, _ in found})[:5]}"
        reader.cancel()
    return found


def send_routed(on: Any, exchange: str, key: str, body: bytes) -> int:
    """Publish by a binding that was made on another node. Returns how often it was unknown on this one: a client that
    binds waits for other nodes, but for one second only."""
    unknown = 0

    def is_routed() -> bool:
        nonlocal unknown
        try:
            on.basic_publish(exchange, key, body, DURABLE, mandatory=True)
        except pika.exceptions.UnroutableError:
            unknown += 1
            return False
        return True

    eventually(is_routed, lambda: f"{exchange} {key}: the binding is not known")
    return unknown


def test_what_is_declared_and_sent_on_any_node_is_consumed_on_another(mesh: Cluster) -> None:
    with channel(mesh, "a") as one, channel(mesh, "b") as other:
        other.confirm_delivery()
        for number in range(20):
            one.queue_declare(f"fresh.{number}", durable=True)
            other.basic_publish("", f"fresh.{number}", b"%d" % number, DURABLE, mandatory=True)
        one.exchange_declare("news", "topic")
        late = 0
        for number in range(20):
            one.queue_bind(f"fresh.{number}", "news", f"eu.{number}.#")
            late += send_routed(other, "news", f"eu.{number}.x", b"routed %d" % number) > 0
        assert late < 10

    for number in range(20):
        take(mesh, "c", f"fresh.{number}", {b"%d" % number, b"routed %d" % number})
    with channel(mesh, "b") as one:
        eventually(lambda: not one.queue_declare("fresh.3", passive=True).method.message_count, "messages are left")


def test_what_was_confirmed_is_consumed_once_and_what_was_exclusive_is_free_when_a_node_is_killed(
    mesh: Cluster,
) -> None:
    sent: set[bytes] = set()
    with channel(mesh, "b") as publisher:
        publisher.queue_declare("jobs", durable=True)
    for name in ("a", "b", "c"):
        with channel(mesh, name) as publisher:
            publisher.confirm_delivery()
            for number in range(50):
                body = f"{name}-{number}".encode()
                publisher.basic_publish("", "jobs", body, DURABLE, mandatory=True)
                sent.add(body)

    owner = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", mesh.amqp_port("a")))
    owner.channel().queue_declare("mine", exclusive=True)
    mesh.kill("a")
    first = take(mesh, "b", "jobs", {body for body in sent if not body.startswith(b"a")})
    with channel(mesh, "b") as moved:
        eventually(lambda: is_declared(moved, "mine"), lambda: "the queue of a connection of a is locked")
    mesh.start("a")
    second = take(mesh, "c", "jobs", sent - {body for body, _ in first})

    assert {body for body, _ in first + second} == sent
    assert len(first + second) == len(sent)
    with pytest.raises(pika.exceptions.AMQPError):
        # Reads that its node is gone, and closes its sockets.
        owner.process_data_events(5)


def is_declared(on: Any, name: str) -> bool:
    """Whether this connection has declared an exclusive queue that another one had."""
    with on.connection.channel() as one:
        try:
            one.queue_declare(name, exclusive=True)
        except pika.exceptions.ChannelClosedByBroker as closed:
            assert closed.reply_code == 405
            return False
    return True


def test_a_reply_finds_its_requester_on_another_node(mesh: Cluster) -> None:
    with channel(mesh, "a") as asks, channel(mesh, "c") as answers:
        asks.queue_declare("rpc")
        replies: list[bytes] = []
        asks.basic_consume("amq.rabbitmq.reply-to", lambda *told: replies.append(told[3]), auto_ack=True)
        asks.basic_publish("", "rpc", b"2+2", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
        for method, properties, _ in answers.consume("rpc"):
            answers.basic_publish("", properties.reply_to, b"4")
            answers.basic_ack(method.delivery_tag)
            break
        until = time.monotonic() + PATIENCE_SECONDS
        while not replies and time.monotonic() < until:
            asks.connection.process_data_events(0.1)
        assert replies == [b"4"]


def test_clients_of_a_virtual_host_see_its_names_on_every_node(mesh: Cluster) -> None:
    operator = mesh.client("a")
    receipt = operator.send("/control/definitions/put/vhost/shop", b"{}", receipt=True)
    operator.wait_receipts([receipt])

    def opened(name: str, vhost: str) -> Any:
        return pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", mesh.amqp_port(name), virtual_host=vhost)
        ).channel()

    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="530"):
        opened("b", "nowhere")
    publisher, consumer, other = opened("b", "shop"), opened("c", "shop"), opened("c", "/")
    publisher.confirm_delivery()
    consumer.queue_declare("orders", durable=True)
    other.queue_declare("orders", durable=True)
    consumer.queue_bind("orders", "amq.topic", "eu.#")
    publisher.basic_publish("", "orders", b"one", DURABLE, mandatory=True)
    send_routed(publisher, "amq.topic", "eu.new", b"two")

    found: list[tuple[str, str, bytes]] = []
    for method, _, body in consumer.consume("orders", inactivity_timeout=1):
        if method is not None:
            found.append((method.exchange, method.routing_key, body))
            consumer.basic_ack(method.delivery_tag)
        if len(found) == 2:
            break
    assert sorted(found) == [("", "orders", b"one"), ("amq.topic", "eu.new", b"two")]
    assert other.basic_get("orders")[0] is None
    for one in (publisher, consumer, other):
        one.connection.close()


def test_joined_exchanges_and_carbon_copies_lead_to_queues_from_any_node(mesh: Cluster) -> None:
    with channel(mesh, "a") as one, channel(mesh, "b") as other:
        for queue in ("in", "joined", "copied", "hidden"):
            one.queue_declare(queue, durable=True)
        one.exchange_declare("outer", "topic")
        one.exchange_declare("inner", "fanout")
        one.queue_bind("in", "outer", "a.#")
        one.queue_bind("joined", "inner")
        one.queue_bind("copied", "outer", "copy")
        one.queue_bind("hidden", "outer", "blind")
        one.exchange_bind("inner", "outer", "*.b")
        one.exchange_bind("outer", "inner")
        mesh.wait_until_same()  # a client that binds waits for the other nodes, but for one second only
        other.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=2, headers={"CC": ["copy"], "BCC": ["blind"], "n": 1})

        other.basic_publish("outer", "a.b", b"all", properties, mandatory=True)

        with channel(mesh, "c") as reader:
            for queue in ("in", "joined", "copied", "hidden"):
                found = eventually(lambda queue=queue: got(reader, queue), lambda: "no copy")
                assert found == ("a.b", {"CC": ["copy"], "n": 1}, b"all"), queue
                assert got(reader, queue) is None, f"two copies in {queue}"
        one.exchange_unbind("inner", "outer", "*.b")
        one.exchange_delete("inner")


def got(reader: Any, queue: str) -> tuple[str, object, bytes] | None:
    """The key, the headers and the body of the next message."""
    method, properties, body = reader.basic_get(queue, auto_ack=True)
    return None if method is None else (method.routing_key, properties.headers, body)


def test_a_consumer_with_a_higher_priority_on_another_node_is_served_first(mesh: Cluster) -> None:
    with channel(mesh, "a") as low, channel(mesh, "b") as high:
        low.queue_declare("ranked", durable=True)
        found: list[str] = []
        for reader, name, priority in ((low, "low", 0), (high, "high", 9)):
            reader.basic_qos(prefetch_count=10)
            reader.basic_consume(
                "ranked",
                lambda channel, method, *_, name=name: (found.append(name), channel.basic_ack(method.delivery_tag)),
                arguments={"x-priority": priority},
            )
        low.confirm_delivery()

        def is_known() -> bool:
            """Messages of `a` go to `b`, once `b` has offered credit there."""
            found.clear()
            low.basic_publish("", "ranked", b"x", DURABLE)
            until = time.monotonic() + PATIENCE_SECONDS
            while not found and time.monotonic() < until:
                low.connection.process_data_events(0.02)
                high.connection.process_data_events(0.02)
            return found == ["high"]

        # Ten in a row: b is not known yet at first, and once more when a link was lost.
        eventually(lambda: all(is_known() for _ in range(10)), lambda: f"served: {found}")
