"""A broker with clients, as short as the tests need it.

`Node` runs one decision at a time through an Outcome, as a server would, and keeps what followed: records in `journal`,
deliveries in the inbox of each Client, effects for peers in the Outcome that every call returns.
"""

from collections import Counter
from collections.abc import Callable, Mapping

from qmq.broker.broker import Broker
from qmq.broker.consumers.borrower import Borrower
from qmq.broker.consumers.connection_prefetch import ConnectionPrefetch
from qmq.broker.consumers.consumer_class import key_of
from qmq.broker.consumers.deliveries import find_delivery
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.session import HeldFrame
from qmq.broker.consumers.subscription import Ack, Asks, Delivery, Subscription
from qmq.broker.messages.destination import kind_of
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.limits import DEFAULT_LIMITS, BrokerLimits
from qmq.broker.messages.message import Attempts, DeadLetter, Envelope, Gap, Message, Moved, Settle
from qmq.broker.messages.rules import DEFAULT_RULES, QueueRules
from qmq.broker.queues.dead_letters import Route
from qmq.broker.queues.dispatch.queue import Queue
from qmq.broker.queues.selective.dispatcher import SelectiveDispatcher
from qmq.broker.queues.selective.group_choice import accepts
from qmq.broker.queues.selective.outstanding import group_of
from qmq.broker.selectors import compile_selector
from qmq.model.dots import Dot, Origin

NOW_US = 1_000_000
SECOND_US = 1_000_000
JOBS = "/queue/jobs"
AT_ONCE = QueueRules(redelivery_us_min=0)
"""What fails comes back without a pause, for tests that are about its place and not about its time."""


def envelope(destination: str = JOBS, *, durable: bool = True, headers: bytes = b"") -> Envelope:
    return Envelope(destination, kind_of(destination), headers, durable)


def message_of(
    origin: Origin,
    sequence: int,
    body: bytes = b"m",
    destination: str = JOBS,
    *,
    owner: str | None = None,
    headers: bytes = b"",
) -> Message:
    """A message as it comes in from a store or a peer."""
    of = envelope(destination, durable=sequence > 0, headers=headers)
    message = Message(of, body, origin, sequence, NOW_US)
    message.owner = owner
    return message


class Node:
    """One broker; `a` of incarnation 1 unless told otherwise."""

    def __init__(
        self,
        name: str = "a",
        incarnation: int = 1,
        *,
        rules: QueueRules = DEFAULT_RULES,
        rules_of: Callable[[str], QueueRules] | None = None,
        defaults_of: Callable[[str], Mapping[str, str]] = lambda name: {},
        route: Route = lambda exchange, key, headers: ((), 0),
        limits: BrokerLimits = DEFAULT_LIMITS,
    ) -> None:
        self.name = name
        self.origin = Origin(name, incarnation)
        self.now_us = NOW_US
        self.broker = Broker(
            self.origin,
            1,
            rules_of=rules_of or (lambda name: rules),
            defaults_of=defaults_of,
            route=route,
            limits=limits,
        )
        self.queues = self.broker.queues
        self.lending = self.broker.lending
        self.borrowing = self.broker.borrowing
        self.journal: list[Recorded] = []
        self.clients: dict[int, Client] = {}

    def decide(self, action: Callable[[Outcome], object]) -> Outcome:
        """Run `action`, record and tell what follows."""
        out = Outcome(now_us=self.now_us)
        action(out)
        self.broker.finish(out, self.now_us)
        self.journal += out.records
        for told in (out.deliveries_now, out.deliveries_after):
            for subscription, deliveries in told.items():
                for delivery in self.queues.start_ack_timeouts(deliveries, self.now_us):
                    delivery.sent = True
                self.clients[subscription.session].inbox += deliveries
        for run in out.topic_runs:
            for subscription in run.subscriptions:
                self.clients[subscription.session].heard += run.messages
        return out

    def client(self) -> "Client":
        return Client(self)

    def send(
        self, body: bytes = b"m", destination: str = JOBS, *, durable: bool = True, headers: bytes = b""
    ) -> Outcome:
        kind = envelope(destination, durable=durable, headers=headers)
        self.broker.send_limits.check_send(kind, len(body))
        return self.decide(lambda out: self.broker.send(kind, body, self.now_us, out))

    def later(self, microseconds: int) -> Outcome:
        """Let time pass and obey the deadlines that come with it."""
        self.now_us += microseconds
        return self.decide(self.broker.tick)

    def borrow(self, *messages: Message) -> Outcome:
        return self.decide(lambda out: [self.borrowing.borrow(message, out) for message in messages])

    def offer(self, peer: str, limit: int, queue: str = JOBS) -> Outcome:
        return self.decide(lambda out: self.lending.offer(peer, queue, limit, out))

    def ready(self, queue: str = JOBS) -> list[bytes]:
        """Bodies that wait, in the order in which they will go."""
        if queue not in self.queues.by_name:
            return []
        return [message.body for message in self.queues.by_name[queue].ready]

    def depth(self, queue: str = JOBS) -> int:
        return self.queues.by_name[queue].depth if queue in self.queues.by_name else 0

    def settled_dots(self) -> list[Dot]:
        """Every dot in a settle record of this node."""
        return [dot for found in self.journal for part in parts(found) if isinstance(part, Settle) for dot in part.dots]


Recorded = Message | Settle | DeadLetter | Attempts | Gap | Moved


def parts(record: Recorded) -> list[Recorded]:
    """What a record comes to: one with a letter in it is a message and a settle."""
    if isinstance(record, DeadLetter):
        return [record.dead_letter, Settle(record.queue, [record.dot], record.sequence, record.timestamp_us)]
    return [record]


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
        self,
        destination: str = JOBS,
        *,
        id: str = "s",
        ack: Ack = Ack.CLIENT_INDIVIDUAL,
        credit: int = 10,
        asks: Asks | None = None,
        ack_timeout_us: int = 0,
        selector: str = "",
        exclusive: bool = False,
        priority: int = 0,
        window: ConnectionPrefetch[Subscription] | None = None,
    ) -> Subscription:
        subscription = Subscription(self.id, id, destination, ack, credit, b"")
        subscription.asks = asks
        subscription.ack_timeout_us = ack_timeout_us
        subscription.selector = compile_selector(selector) if selector else None
        subscription.exclusive = exclusive
        subscription.priority = priority
        subscription.window = window
        self.node.decide(lambda out: self.node.broker.subscriptions.subscribe(subscription, out))
        return subscription

    def unsubscribe(self, id: str = "s") -> Outcome:
        return self.node.decide(lambda out: self.node.broker.subscriptions.unsubscribe(self.id, id, out))

    def leave(self) -> Outcome:
        self.open = False
        return self.node.decide(lambda out: self.node.broker.close_session(self.id, out))

    def ack(self, delivery: Delivery) -> Outcome:
        broker = self.node.broker
        found = find_delivery(broker.queues.deliveries, self.id, delivery.tag)
        return self.node.decide(lambda out: broker.acknowledge(found, out))

    def nack(self, delivery: Delivery, why: Back = Back.FAILED) -> Outcome:
        broker = self.node.broker
        found = find_delivery(broker.queues.deliveries, self.id, delivery.tag)
        return self.node.decide(lambda out: broker.refuse(found, out, why))

    def ack_all(self) -> None:
        """Settle everything in flight, and what comes in return, until nothing comes."""
        while held := [delivery for delivery in self.inbox if delivery.tag in self.node.queues.deliveries]:
            for delivery in held:
                if delivery.tag in self.node.queues.deliveries:
                    self.ack(delivery)

    def begin(self, name: str = "t") -> None:
        self.node.broker.transactions.begin(self.id, name)

    def hold(self, held: HeldFrame, name: str = "t") -> None:
        self.node.broker.transactions.hold(self.id, name, held)

    def commit(self, name: str = "t") -> Outcome:
        return self.node.decide(lambda out: self.node.broker.commit(self.id, name, self.node.now_us, out))

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
        assert queues.listed[queue.listed_at] is queue, "the list of queues is wrong"
        assert queues.listed_names[queue.listed_at] == queue.name, "the list of names is wrong"
    assert len(queues.listed) == len(queues.by_name), "the list has a queue that is dropped"
    assert len(queues.listed_names) == len(queues.by_name), "the list of names has a queue that is dropped"
    in_flight = [
        d for c in node.broker.sessions.values() for s in c.subscriptions.values() for d in s.in_flight.values()
    ]
    assert {d.tag for d in in_flight} == set(queues.deliveries), "deliveries and subscriptions disagree"
    unsettled = sum(len(messages) for messages in queues.owned.by_origin.values())
    waiting = sum(1 for lent in queues.owned.lent.values() for message in lent.values() if not message.envelope.durable)
    waiting += sum(1 for d in in_flight if _is_own(d.message) and not d.message.envelope.durable)
    waiting += sum(1 for q in queues.by_name.values() for m in q.waiting() if not m.settled and not m.envelope.durable)
    assert unsettled + waiting == sum(queue.held for queue in queues.by_name.values()), "owned and depths disagree"


def check_queue(node: Node, queue: Queue) -> None:
    lent = [
        m for by_dot in node.queues.owned.lent.values() for m in by_dot.values() if m.envelope.destination == queue.name
    ]
    assert not any(m.settled for m in lent), "a settled message is still lent"
    deliveries = [d for d in node.queues.deliveries.values() if d.subscription.destination == queue.name]
    assert {d.tag for d in queue.in_flight()} == {d.tag for d in deliveries}, "a queue does not know who has what of it"
    in_flight = [d.message for d in deliveries]
    ready = queue.ready
    waiting = [m for m in queue.waiting() if not m.settled]
    owned = waiting + lent + [m for m in in_flight if _is_own(m)]
    assert queue.held == len(owned), "waiting + in flight + lent is not what is held"
    assert queue.held_bytes == sum(len(m.body) for m in owned)
    assert len({m.dot for m in owned}) == len(owned), "one message stands in two places"
    assert queue.free == sum(s.free for s in queue.subscriptions)
    for subscription in queue.subscriptions:
        assert 0 <= len(subscription.in_flight) <= subscription.credit, "credit exceeded"
        window = subscription.window
        is_in_round = window is not None and (subscription in window.round or subscription is window.turn)
        assert (subscription.waiting or is_in_round) == (subscription.free > 0), "a consumer with room is not in line"
    in_line, peers_in_line, borrowers = queue.in_line or (), queue.peers_in_line or (), queue.borrowers or {}
    assert set(in_line) == {s for s in queue.subscriptions if s.waiting}
    assert len(in_line) == len(set(in_line))
    for borrower in borrowers.values():
        assert borrower.waiting == (borrower.limit > borrower.sent), "a peer with room is not in line"
    assert set(peers_in_line) == {b for b in borrowers.values() if b.waiting}
    assert len(peers_in_line) == len(set(peers_in_line))
    is_late = bool(queue.check_us) and queue.check_us <= node.now_us
    if ready and not node.queues.held and not queue.is_loading and not is_late:
        if queue.selective is None:
            assert not in_line and not peers_in_line, "a ready message waits beside idle credit"
        else:
            check_turns(queue, queue.selective)
    if queue.selective is not None:
        check_hands(node, queue, queue.selective)
    assert not queue.idle, "an idle queue is kept"


def check_turns(queue: Queue, selective: SelectiveDispatcher) -> None:
    """No ready message waits for a consumer that wants it, has room, and whose turn it is."""
    takers: list[Subscription | Borrower] = [
        s for s in queue.in_line or () if s.window is None or s.window.room > 0 and not s.closed
    ]
    takers += queue.peers_in_line or ()
    exclusive = [s for s in queue.subscriptions if s.since_us and not s.closed]
    exclusive += [b for b in (queue.borrowers or {}).values() if b.since_us]
    if exclusive:
        node = queue.shared.node
        first = min(exclusive, key=lambda t: (t.since_us, node if isinstance(t, Subscription) else t.peer))
        assert selective.consumers.active is first
        holders = {first if isinstance(first, Subscription) else first.key}
        takers = [first] if first in takers and set(selective.outstanding.out) <= holders else []
    waits: set[bytes] = set()
    for level in queue.levels:
        for message in level.ready:
            group = group_of(message)
            if message.settled or (group in waits and not exclusive):
                continue
            if group and not exclusive:
                if selective.groups.is_wanted(message):
                    waits.add(group)
                    assert selective.groups.holder_of(group, message) not in takers, (
                        "a message of a group waits for nothing"
                    )
            else:
                assert not any(accepts(taker, message) for taker in takers), "a wanted message waits beside idle credit"
        if level.behind:
            return


def check_hands(node: Node, queue: Queue, selective: SelectiveDispatcher) -> None:
    """What a selective dispatcher has noted as in flight is what is in flight."""
    in_flight = [d for d in node.queues.deliveries.values() if d.subscription.destination == queue.name]
    assert set(selective.outstanding.local) == {d.tag for d in in_flight}
    lent = {
        m.dot: (group_of(m), key_of(peer, m.lent_as))
        for peer, by_dot in node.queues.owned.lent.items()
        for m in by_dot.values()
        if m.envelope.destination == queue.name
    }
    assert selective.outstanding.lent == lent
    out = Counter(d.subscription for d in in_flight if d.message.owner is None) + Counter(k for _, k in lent.values())
    assert selective.outstanding.out == out
    groups = Counter(group_of(d.message) for d in in_flight if d.message.owner is None)
    groups += Counter(group for group, _ in lent.values())
    del groups[b""]
    assert {group: held.count for group, held in selective.outstanding.groups.items()} == groups
    borrowed = [(d.message, d.subscription) for d in in_flight if d.message.owner is not None]
    borrowed += [(m, taker) for taker, buffered in selective.ordered_buffer.waiting.items() for m in buffered]
    locks = Counter((m.origin.node, group_of(m)) for m, _ in borrowed if group_of(m))
    assert {key: held.count for key, held in selective.outstanding.borrowed.items()} == locks
    for subscription, buffered in selective.ordered_buffer.waiting.items():
        window = subscription.window
        assert buffered and all(message.owner is not None for message in buffered)
        assert subscription.free <= 0 or (window is not None and window.room <= 0), "parked beside idle credit"


def check_empty(node: Node) -> None:
    """Nothing is left of anything: for the end of a test that settled and closed everything."""
    broker = node.broker
    assert not broker.sessions
    assert not broker.topics
    assert not broker.subscriptions.fanouts
    assert not broker.queues.by_name
    assert not broker.queues.deliveries
    assert not any(broker.queues.owned.by_origin.values())
    assert not any(broker.queues.owned.lent.values())
    assert not any(broker.queues.owned.settled_here.values())
    assert not broker.queues.owned.settled_early


def _is_own(message: Message) -> bool:
    return message.owner is None and not message.settled
