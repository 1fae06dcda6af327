"""How the work of one action grows with what a node holds, in the pure middle of a node: from bytes to bytes.

Each Case names what grows, the action, and the order that it may have. An action is what a node does with the bytes of
one read: codec, gateway, broker, records of the journal, and the frames for every recipient. Sockets, the disk
and the loop are not in it; what they add is in the measured times of docs/growth.md.

`tests/broker/test_growth.py` holds the orders for small numbers, `python -m benchmarks.run growth` counts up to a
million.
"""

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from benchmarks.work import REPEATS, Work, work_of
from qmq.access.rights import AccessTable
from qmq.access.rules import ANONYMOUS
from qmq.broker.broker import Broker
from qmq.broker.consumers.light_subscriptions import Subscriber
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Subscription
from qmq.broker.messages.limits import BrokerLimits
from qmq.broker.routing.binding import Binding
from qmq.gateways.encode import encode_deliveries, listener_prefix, tail_of
from qmq.gateways.rules import Rules
from qmq.gateways.stomp import StompGateway
from qmq.model.dots import Origin
from qmq.record_codec import encode_records
from qmq.wire.stomp import Connection, HeadCaches, Limits, Role, Version, encode_frame

LIMITS = Limits(body_bytes_max=16 << 20)
NOW_US = 1_700_000_000_000_000
MANY = 1 << 40
SLACK = 1.1
"""A cost that is the same but for longer numbers in names and ids."""
SLACK_BYTES = 4096
"""Of allocations, which come in pages of the allocator."""


class Order(Enum):
    """How a cost may grow with n."""

    CONSTANT = "O(1)"
    LINEAR = "O(n)"
    COPIED = "O(1), and n bytes copied"

    def allows(self, small: int, large: int, small_work: Work, large_work: Work) -> bool:
        """Whether `large_work` at `large` is within this order of `small_work` at `small`."""
        steps = SLACK * (large / small if self is Order.LINEAR else 1)
        # No share of what is allocated anyhow: a buffer of the journal would hide a copy of thousands.
        allocated = 1 if self is Order.CONSTANT else SLACK * large / small
        return large_work.steps <= small_work.steps * steps and (
            large_work.bytes <= small_work.bytes * allocated + SLACK_BYTES
        )


class Node:
    """One node's pure parts. `bytes_sent` counts bytes for clients, so that no encoding is left out."""

    def __init__(self) -> None:
        self.broker = Broker(
            Origin("a", 1),
            1,
            limits=BrokerLimits(
                subscriptions_max=MANY,
                destinations_max=MANY,
                queue_memory_bytes_max=MANY,
                transaction_frames_max=MANY,
                transaction_bytes_max=MANY,
            ),
        )
        self.rules = Rules(
            policy=lambda name: (True, True), prefetch_default=100, prefetch_max=1000, destination_bytes_max=255
        )
        self.caches = HeadCaches()
        self.clients: list[Client] = []
        self.bytes_sent = 0
        self.by_session: dict[int, Client] = {}

    def client(self) -> "Client":
        client = Client(self, len(self.clients) + 1)
        self.clients.append(client)
        self.by_session[client.session] = client
        return client

    def deliver(self, out: Outcome) -> None:
        """Record and deliver, as the commit path and the effect dispatcher do."""
        self.broker.finish(out, NOW_US)
        if out.records:
            encode_records(self.broker.origin, [out])
        for run in out.topic_runs:
            tails = [tail_of(message) for message in run.messages]
            for subscriber in run.subscriptions:
                prefix = _prefix(subscriber, run.messages[0].envelope.destination)
                self.bytes_sent += len(prefix + prefix.join(tails))
        for ready in (out.deliveries_now, out.deliveries_after):
            for subscription, deliveries in ready.items():
                for delivery in self.broker.queues.start_ack_timeouts(deliveries, NOW_US):
                    delivery.sent = True
                self.bytes_sent += len(encode_deliveries(subscription, deliveries, Version.V12))
                client = self.by_session[subscription.session]
                client.tags += [delivery.tag for delivery in deliveries]


class Client:
    """One logged-in client of a Node."""

    def __init__(self, node: Node, session: int) -> None:
        self.node = node
        self.session = session
        self.tags: list[int] = []
        """Of what it was delivered and has not acknowledged."""
        node.broker.open_session(session)
        self.codec = Connection(Role.SERVER, LIMITS, node.caches)
        self.codec.receive(encode_frame("CONNECT", [("accept-version", "1.2"), ("host", "here")]))
        rights = AccessTable().rights_of(ANONYMOUS)
        self.gateway = StompGateway(session, node.broker, node.rules, Version.V12, False, rights=rights)

    def say(self, data: bytes) -> None:
        """What one read brings, and all that follows from it."""
        out = Outcome(self.session)
        self.gateway.handle([*self.codec.receive(data)], NOW_US, out)
        assert self.codec.error is None and not out.ending, (self.codec.error, out.frames)
        self.node.deliver(out)

    def subscribe(self, destination: str, ack: str = "auto", id: str = "1") -> None:
        self.say(subscribe(destination, ack, id))

    def ack_all(self) -> None:
        tags, self.tags = self.tags, []
        self.say(b"".join(encode_frame("ACK", [("id", str(tag))]) for tag in tags))

    def leave(self) -> None:
        out = Outcome(self.session)
        self.node.broker.close_session(self.session, out)
        self.node.deliver(out)


def _prefix(subscriber: Subscriber, topic: str) -> bytes:
    if isinstance(subscriber, Subscription):
        return subscriber.prefix
    return subscriber.prefixes.get(topic) or listener_prefix(Version.V12, subscriber, topic)


def send(destination: str, body: bytes = b"x" * 100, headers: Iterable[tuple[str, str]] = ()) -> bytes:
    return encode_frame("SEND", [("destination", destination), *headers], body)


def subscribe(destination: str, ack: str, id: str) -> bytes:
    return encode_frame("SUBSCRIBE", [("destination", destination), ("id", id), ("ack", ack)])


def name(kind: str, number: int) -> str:
    """Of equal length for all numbers, so that n changes nothing else."""
    return f"/{kind}/growth-{number:09}"


Action = Callable[[], object]
Setup = Callable[[Node, int], Action]


def _topic_with_one_subscriber(node: Node) -> Action:
    node.client().subscribe(name("topic", 0))
    sender, frame = node.client(), send(name("topic", 0))
    return lambda: sender.say(frame)


def beside_connections(node: Node, n: int) -> Action:
    for _ in range(n):
        node.client()
    return _topic_with_one_subscriber(node)


def connecting(node: Node, n: int) -> Action:
    for _ in range(n):
        node.client()
    sessions = iter(range(n + 1, MANY))

    def come_and_go() -> None:
        client = Client(node, next(sessions))
        client.subscribe(name("topic", 0))
        client.leave()

    return come_and_go


def beside_topics(node: Node, n: int) -> Action:
    client = node.client()
    for number in range(1, n + 1):
        client.subscribe(name("topic", number), id=f"{number:09}")
    return _topic_with_one_subscriber(node)


def beside_patterns(node: Node, n: int) -> Action:
    client = node.client()
    for number in range(1, n + 1):
        client.subscribe(f"{name('topic', number)}.*", id=f"{number:09}")
    return _topic_with_one_subscriber(node)


def beside_bindings(node: Node, n: int) -> Action:
    for number in range(1, n + 1):
        node.rules.routing.add(Binding(f"{name('topic', number)}.*", name("queue", number), "", {}))
    return _topic_with_one_subscriber(node)


def through_an_exchange(node: Node, n: int) -> Action:
    for number in range(1, n + 1):
        node.rules.routing.add(Binding("/exchange/amq.topic", name("queue", number), f"*.{number:09}.#", {}))
    node.rules.routing.add(Binding("/exchange/amq.topic", name("queue", 0), "#.here", {}))
    sender = node.client()
    # Each with a key, and so a header block, that was not sent before.
    keys = (f"/exchange/amq.topic/{number:09}.a.here" for number in range(MANY))
    return lambda: sender.say(send(next(keys)))


def subscribing(node: Node, n: int) -> Action:
    client = node.client()
    for number in range(1, n + 1):
        client.subscribe(name("topic", number), id=f"{number:09}")
    once = subscribe(name("topic", 0), "auto", "0" * 9) + encode_frame("UNSUBSCRIBE", [("id", "0" * 9)])
    return lambda: client.say(once)


def to_many_subscribers(node: Node, n: int) -> Action:
    for _ in range(n):
        node.client().subscribe(name("topic", 0))
    sender, frame = node.client(), send(name("topic", 0))
    return lambda: sender.say(frame)


def leaving(node: Node, n: int) -> Action:
    sessions = iter(range(1, MANY))

    def come_and_go() -> None:
        client = Client(node, next(sessions))
        for number in range(n):
            client.subscribe(name("topic", number), id=f"{number:09}")
        client.leave()

    return come_and_go


def _queue_of_one_consumer(node: Node, destination: str, *headers: tuple[str, str]) -> Action:
    consumer = node.client()
    consumer.subscribe(destination, "client-individual")
    sender, frame = node.client(), send(destination, headers=headers)

    def send_and_ack() -> None:
        sender.say(frame)
        consumer.ack_all()

    return send_and_ack


def beside_queues(node: Node, n: int) -> Action:
    sender = node.client()
    for number in range(1, n + 1):
        sender.say(send(name("queue", number)))
    return _queue_of_one_consumer(node, name("queue", 0))


def in_memory_beside_queues(node: Node, n: int) -> Action:
    sender = node.client()
    for number in range(1, n + 1):
        sender.say(send(name("queue", number)))
    return _queue_of_one_consumer(node, name("queue", 0), ("persistent", "false"))


def first_of_a_queue(node: Node, n: int) -> Action:
    sender = node.client()
    for number in range(1, n + 1):
        sender.say(send(name("queue", number)))
    numbers = iter(range(n + 1, MANY))
    return lambda: sender.say(send(name("queue", next(numbers))))


def onto_a_backlog(node: Node, n: int) -> Action:
    sender, frame = node.client(), send(name("queue", 0))
    for _ in range(n):
        sender.say(frame)
    return lambda: sender.say(frame)


def out_of_a_backlog(node: Node, n: int) -> Action:
    sender, frame = node.client(), send(name("queue", 0))
    for _ in range(n):
        sender.say(frame)
    consumer = node.client()
    consumer.say(
        encode_frame(
            "SUBSCRIBE",
            [
                ("destination", name("queue", 0)),
                ("id", "1"),
                ("ack", "client-individual"),
                ("prefetch-count", "1"),
            ],
        )
    )
    return consumer.ack_all


def past_what_waits_for_others(node: Node, n: int) -> Action:
    sender, of_red = node.client(), send(name("queue", 0), headers=[("colour", "red")])
    for _ in range(n + 4 * REPEATS):
        sender.say(of_red)
    consumers = {colour: node.client() for colour in ("blue", "red")}
    for colour, consumer in consumers.items():
        wishes = [("ack", "client-individual"), ("prefetch-count", "1"), ("selector", f"colour = '{colour}'")]
        consumer.say(encode_frame("SUBSCRIBE", [("destination", name("queue", 0)), ("id", "1"), *wishes]))
    return consumers["red"].ack_all


def with_many_consumers(node: Node, n: int) -> Action:
    consumers = [node.client() for _ in range(n)]
    for consumer in consumers:
        consumer.subscribe(name("queue", 0), "client-individual")
    sender, frame = node.client(), send(name("queue", 0))
    turn = iter(range(MANY))

    def send_and_ack() -> None:
        sender.say(frame)
        consumer = consumers[next(turn) % n]
        assert consumer.tags, "consumers get messages in turn"
        consumer.ack_all()

    return send_and_ack


def of_a_body(node: Node, n: int) -> Action:
    node.client().subscribe(name("topic", 0))
    sender, frame = node.client(), send(name("topic", 0), b"x" * n)
    return lambda: sender.say(frame)


def to_nodes(node: Node, n: int) -> Action:
    for number in range(n):
        node.broker.interest.add(name("topic", 0), f"peer-{number}")
    return _topic_with_one_subscriber(node)


def a_transaction(node: Node, n: int) -> Action:
    sender = node.client()
    begin, commit = (encode_frame(command, [("transaction", "t")]) for command in ("BEGIN", "COMMIT"))
    held = encode_frame("SEND", [("destination", name("topic", 0)), ("transaction", "t")], b"x" * 100)
    whole = begin + held * n + commit
    return lambda: sender.say(whole)


@dataclass(frozen=True, slots=True)
class Case:
    """`axis` is what n counts; `most` how far a benchmark goes."""

    axis: str
    action: str
    order: Order
    setup: Setup
    most: int

    def work(self, n: int) -> Work:
        """Of one action in a node with n of what grows."""
        node = Node()
        gc.collect()
        gc.disable()
        try:
            return work_of(self.setup(node, n), 1 if self.order is Order.LINEAR else REPEATS)
        finally:
            gc.enable()


CONSTANT, LINEAR, COPIED = Order.CONSTANT, Order.LINEAR, Order.COPIED

CASES: Sequence[Case] = (
    Case("connections", "topic message, with n idle connections", CONSTANT, beside_connections, 10_000),
    Case("connections", "connect, subscribe and disconnect, with n other connections", CONSTANT, connecting, 10_000),
    Case("connections", "topic message to n subscribers", LINEAR, to_many_subscribers, 10_000),
    Case("connections", "queue message and its ACK, with n consumers", CONSTANT, with_many_consumers, 10_000),
    Case("subscriptions", "topic message, with n subscriptions to other topics", CONSTANT, beside_topics, 1_000_000),
    Case("subscriptions", "topic message, with n other patterns", CONSTANT, beside_patterns, 10_000),
    Case("subscriptions", "SUBSCRIBE and UNSUBSCRIBE, with n other subscriptions", CONSTANT, subscribing, 1_000_000),
    Case("subscriptions", "n times SUBSCRIBE, then disconnect", LINEAR, leaving, 1_000),
    Case("bindings", "topic message, with n bindings of other topics", CONSTANT, beside_bindings, 10_000),
    Case("bindings", "SEND with a new key, with n other patterns bound", CONSTANT, through_an_exchange, 10_000),
    Case("queues", "queue message and its ACK, with n other queues", CONSTANT, beside_queues, 1_000_000),
    Case(
        "queues",
        "memory-only queue message and its ACK, with n other queues",
        CONSTANT,
        in_memory_beside_queues,
        1_000_000,
    ),
    Case("queues", "first message of a new queue, with n other queues", CONSTANT, first_of_a_queue, 1_000_000),
    Case("backlog", "SEND to a queue of n messages", CONSTANT, onto_a_backlog, 1_000_000),
    Case("backlog", "delivery and ACK from a queue of n messages", CONSTANT, out_of_a_backlog, 1_000_000),
    Case(
        "backlog",
        "delivery and ACK by selector, with n messages that another selector does not want",
        CONSTANT,
        past_what_waits_for_others,
        1_000,
    ),
    Case("body bytes", "topic message with a body of n bytes", COPIED, of_a_body, 10_000_000),
    Case("nodes", "topic message with interest on n other nodes", LINEAR, to_nodes, 8),
    Case("frames", "transaction of n messages", LINEAR, a_transaction, 1_000),
)


def sizes(most: int, least: int = 1) -> list[int]:
    """Powers of ten from `least` to `most`; of few, all."""
    if most <= 10:
        return list(range(1, most + 1))
    found = []
    while least <= most:
        found.append(least)
        least *= 10
    return found
