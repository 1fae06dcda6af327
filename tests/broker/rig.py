"""A broker with clients, as short as the tests need it.

`Node` runs one decision at a time through an Outcome, as a server would, and keeps what followed: records in `journal`,
deliveries in the inbox of each Client, effects for peers in the Outcome that every call returns.
"""

from collections.abc import Callable

from qmq.broker.broker import Broker
from qmq.broker.destination import kind_of
from qmq.broker.message import Envelope, Message, Settle
from qmq.broker.outcome import Outcome
from qmq.broker.queue import Queue
from qmq.broker.session import Held
from qmq.broker.subscription import Ack, Delivery, Subscription
from qmq.dots import Dot, Origin

NOW_US = 1_000_000
JOBS = "/queue/jobs"


def envelope(destination: str = JOBS, *, durable: bool = True) -> Envelope:
    return Envelope(destination, kind_of(destination), b"", durable)


def message_of(
    origin: Origin, sequence: int, body: bytes = b"m", destination: str = JOBS, *, owner: str | None = None
) -> Message:
    """A message as it comes in from a store or a peer."""
    message = Message(envelope(destination, durable=sequence > 0), body, origin, sequence, NOW_US)
    message.owner = owner
    return message


class Node:
    """One broker; `a` of incarnation 1 unless told otherwise."""

    def __init__(
        self,
        name: str = "a",
        incarnation: int = 1,
        *,
        bounds: Callable[[str], tuple[int, int]] = lambda name: (0, 0),
        subscriptions_max: int = 100,
        transactions_max: int = 10,
        transaction_frames_max: int = 1000,
    ) -> None:
        self.name = name
        self.origin = Origin(name, incarnation)
        self.broker = Broker(
            self.origin,
            1,
            bounds=bounds,
            subscriptions_max=subscriptions_max,
            transactions_max=transactions_max,
            transaction_frames_max=transaction_frames_max,
        )
        self.queues = self.broker.queues
        self.lending = self.broker.lending
        self.journal: list[Message | Settle] = []
        self.clients: dict[int, Client] = {}

    def decide(self, action: Callable[[Outcome], object]) -> Outcome:
        """Run `action`, record and tell what follows."""
        out = Outcome()
        action(out)
        self.broker.finish(out, NOW_US)
        self.journal += out.records
        for told in (out.deliveries_now, out.deliveries_after):
            for subscription, deliveries in told.items():
                self.clients[subscription.session].inbox += deliveries
        for run in out.topic_runs:
            for subscription in run.subscriptions:
                self.clients[subscription.session].heard += run.messages
        return out

    def client(self) -> "Client":
        return Client(self)

    def send(self, body: bytes = b"m", destination: str = JOBS, *, durable: bool = True) -> Outcome:
        kind = envelope(destination, durable=durable)
        self.broker.check_send(kind, len(body))
        return self.decide(lambda out: self.broker.send(kind, body, NOW_US, out))

    def borrow(self, *messages: Message) -> Outcome:
        return self.decide(lambda out: [self.lending.borrow(message, out) for message in messages])

    def offer(self, peer: str, limit: int, queue: str = JOBS) -> Outcome:
        return self.decide(lambda out: self.lending.offer(peer, queue, limit, out))

    def ready(self, queue: str = JOBS) -> list[bytes]:
        """Bodies that wait, in the order in which they will go."""
        if queue not in self.queues.by_name:
            return []
        return [message.body for message in self.queues.by_name[queue].ready if not message.settled]

    def depth(self, queue: str = JOBS) -> int:
        return self.queues.by_name[queue].depth if queue in self.queues.by_name else 0

    def settled_dots(self) -> list[Dot]:
        """Every dot in a settle record of this node."""
        return [dot for record in self.journal if isinstance(record, Settle) for dot in record.dots]


class Client:
    """One session. `inbox` is what queues gave it, `heard` what topics did; neither shrinks."""

    ids = 0

    def __init__(self, node: Node) -> None:
        Client.ids += 1
        self.id = Client.ids
        self.node = node
        self.inbox: list[Delivery] = []
        self.heard: list[Message] = []
        self.open = True
        node.clients[self.id] = self
        node.broker.open_session(self.id)

    def subscribe(
        self, destination: str = JOBS, *, id: str = "s", ack: Ack = Ack.CLIENT_INDIVIDUAL, credit: int = 10
    ) -> Subscription:
        subscription = Subscription(self.id, id, destination, ack, credit, b"")
        self.node.decide(lambda out: self.node.broker.subscribe(subscription, out))
        return subscription

    def unsubscribe(self, id: str = "s") -> Outcome:
        return self.node.decide(lambda out: self.node.broker.unsubscribe(self.id, id, out))

    def leave(self) -> Outcome:
        self.open = False
        return self.node.decide(lambda out: self.node.broker.close_session(self.id, out))

    def ack(self, delivery: Delivery) -> Outcome:
        broker = self.node.broker
        found = broker.find_delivery(self.id, delivery.tag)
        return self.node.decide(lambda out: broker.acknowledge(found, out))

    def nack(self, delivery: Delivery) -> Outcome:
        broker = self.node.broker
        found = broker.find_delivery(self.id, delivery.tag)
        return self.node.decide(lambda out: broker.refuse(found, out))

    def ack_all(self) -> None:
        """Settle everything in flight, and what comes in return, until nothing comes."""
        while held := [delivery for delivery in self.inbox if delivery.tag in self.node.queues.deliveries]:
            for delivery in held:
                if delivery.tag in self.node.queues.deliveries:
                    self.ack(delivery)

    def begin(self, name: str = "t") -> None:
        self.node.broker.begin(self.id, name)

    def hold(self, held: Held, name: str = "t") -> None:
        self.node.broker.hold(self.id, name, held)

    def commit(self, name: str = "t") -> Outcome:
        return self.node.decide(lambda out: self.node.broker.commit(self.id, name, NOW_US, out))

    @property
    def bodies(self) -> list[bytes]:
        return [delivery.message.body for delivery in self.inbox]

    @property
    def attempts(self) -> list[int]:
        return [delivery.message.attempts for delivery in self.inbox]


def check_accounts(node: Node) -> None:
    """What must hold on one node after every decision."""
    queues = node.queues
    for queue in queues.by_name.values():
        check_queue(node, queue)
    in_flight = [
        d for c in node.broker.sessions.values() for s in c.subscriptions.values() for d in s.in_flight.values()
    ]
    assert {d.tag for d in in_flight} == set(queues.deliveries), "deliveries and subscriptions disagree"
    unsettled = sum(len(messages) for messages in queues.owned.values())
    waiting = sum(1 for lent in queues.lent.values() for message in lent.values() if not message.envelope.durable)
    waiting += sum(1 for d in in_flight if _is_own(d.message) and not d.message.envelope.durable)
    waiting += sum(1 for q in queues.by_name.values() for m in q.ready if not m.settled and not m.envelope.durable)
    assert unsettled + waiting == sum(queue.depth for queue in queues.by_name.values()), "owned and depths disagree"


def check_queue(node: Node, queue: Queue) -> None:
    lent = [m for by_dot in node.queues.lent.values() for m in by_dot.values() if m.envelope.destination == queue.name]
    assert not any(m.settled for m in lent), "a settled message is still lent"
    in_flight = [d.message for s in queue.subscriptions for d in s.in_flight.values()]
    ready = [m for m in queue.ready if not m.settled]
    owned = ready + lent + [m for m in in_flight if _is_own(m)]
    assert queue.depth == len(owned), "ready + in flight + lent is not depth"
    assert queue.body_bytes == sum(len(m.body) for m in owned)
    assert len({m.dot for m in owned}) == len(owned), "one message stands in two places"
    assert queue.free == sum(s.free for s in queue.subscriptions)
    for subscription in queue.subscriptions:
        assert 0 <= len(subscription.in_flight) <= subscription.credit, "credit exceeded"
        assert subscription.waiting == (subscription.free > 0), "a consumer with room is not in line"
    assert set(queue.in_line) == {s for s in queue.subscriptions if s.waiting}
    assert len(queue.in_line) == len(set(queue.in_line))
    for borrower in queue.borrowers.values():
        assert borrower.waiting == (borrower.limit > borrower.sent), "a peer with room is not in line"
    assert set(queue.peers_in_line) == {b for b in queue.borrowers.values() if b.waiting}
    assert len(queue.peers_in_line) == len(set(queue.peers_in_line))
    if ready and not node.queues.held:
        assert not queue.in_line and not queue.peers_in_line, "a ready message waits beside idle credit"
    assert not queue.idle, "an idle queue is kept"


def check_empty(node: Node) -> None:
    """Nothing is left of anything: for the end of a test that settled and closed everything."""
    broker = node.broker
    assert not broker.sessions
    assert not broker.wanted
    assert not broker.fanouts
    assert not broker.queues.by_name
    assert not broker.queues.deliveries
    assert not any(broker.queues.owned.values())
    assert not any(broker.queues.lent.values())
    assert not any(broker.queues.settled_here.values())
    assert not broker.queues.settled_early


def _is_own(message: Message) -> bool:
    return message.owner is None and not message.settled
