"""The rules of one node: every question a client, a peer or the journal can ask, and what follows.

Pure and synchronous: callers bring the time and an Outcome, the broker changes its state and adds to the Outcome what
must be recorded and told. It either does the whole of what was asked or raises `Refused` with nothing changed.
Callers make the calls of one chunk without an await between them, then `finish` the Outcome and commit it.

Sequences are given here, at the decision; the commit path appends records in exactly the order of decisions, so
journal and broker agree without a second look. What a topic, a queue and a lent message mean is in their own modules;
this one knows sessions, subscriptions and transactions.
"""

from collections.abc import Callable

from qmq.broker.destination import Kind, check_pattern, is_pattern, kind_of
from qmq.broker.lending import Lending
from qmq.broker.message import Envelope, Gap, Message, Settle
from qmq.broker.outcome import Outcome
from qmq.broker.patterns import PatternTable
from qmq.broker.queues import Queues
from qmq.broker.session import Held, Session
from qmq.broker.subscription import Ack, Delivery, Subscription
from qmq.dots import Dot, Origin, Vector
from qmq.errors import Refused

RECORD_OVERHEAD_BYTES = 64


class Broker:
    """State and rules of one node.

    `origin` is this incarnation; `next_sequence` the first free sequence of its journal. `bounds` gives
    (messages_max, bytes_max) for a queue name, 0 for no bound.
    """

    def __init__(
        self,
        origin: Origin,
        next_sequence: int,
        *,
        bounds: Callable[[str], tuple[int, int]] = lambda name: (0, 0),
        subscriptions_max: int = 100,
        transactions_max: int = 10,
        transaction_frames_max: int = 1000,
        transaction_bytes_max: int = 16 << 20,
        destinations_max: int = 100_000,
    ) -> None:
        self.origin = origin
        self.next_sequence = next_sequence
        self.memory_sequence = 0
        self.disk_full = False
        self.sessions: dict[int, Session] = {}
        self.topics: PatternTable[Subscription] = PatternTable()
        self.interest: PatternTable[str] = PatternTable()
        # Patterns that local topic subscribers want -> how many of them; changes since the peers were last told.
        self.wanted: dict[str, int] = {}
        self.wanted_changes: dict[str, bool] = {}
        self.fanouts: dict[str, dict[Subscription, None]] = {}
        # Fanouts that have a log here, or will have one.
        self.logged_fanouts: set[str] = set()
        # Fanout subscriptions that ended since whoever tells them was last told.
        self.left: list[Subscription] = []
        self.queues = Queues(origin.node, bounds)
        self.lending = Lending(self.queues)
        self._subscriptions_max = subscriptions_max
        self._transactions_max = transactions_max
        self._transaction_frames_max = transaction_frames_max
        self._transaction_bytes_max = transaction_bytes_max
        self._destinations_max = destinations_max

    # Sessions

    def open_session(self, session_id: int) -> Session:
        """A client has logged in; ids are never reused."""
        session = self.sessions[session_id] = Session(session_id)
        return session

    def close_session(self, session_id: int, out: Outcome) -> None:
        """A client is gone: its transactions end, its messages go back, its subscriptions end."""
        session = self.sessions.pop(session_id, None)
        if session is None:
            return
        # All before any: what one of them gives back must not go to another one of the same dead client.
        for subscription in session.subscriptions.values():
            subscription.closed = True
        for subscription in session.subscriptions.values():
            self._end_subscription(subscription, out)

    # Messages

    def check_send(
        self, envelope: Envelope, body_bytes: int, messages_ahead: int = 0, body_bytes_ahead: int = 0
    ) -> None:
        """Refuse what must not be accepted now. Nothing changes.

        What is `ahead` goes into the same queue before it, in the same transaction.
        """
        if envelope.durable and self.disk_full:
            raise Refused("disk-full", "The node has no disk space left for new messages; consuming goes on.")
        if envelope.kind is Kind.QUEUE:
            queue = self.queues.by_name.get(envelope.destination)
            if queue is None:
                self._check_room()
                depth = held_bytes = 0
                messages_max, bytes_max = self.queues.bounds(envelope.destination)
            else:
                depth, held_bytes = queue.depth, queue.body_bytes
                messages_max, bytes_max = queue.messages_max, queue.bytes_max
            if messages_max and depth + messages_ahead >= messages_max:
                raise Refused("queue-full", f"The queue holds its most of {messages_max} messages.")
            if bytes_max and held_bytes + body_bytes_ahead + body_bytes > bytes_max:
                raise Refused("queue-full", f"The queue holds its most of {bytes_max} bytes.")

    def open_fanout(self, destination: str) -> None:
        """Somebody sends to this fanout, so it has a log from now on. Raises Refused when it is one too many."""
        if destination not in self.logged_fanouts:
            self._check_room()
            self.logged_fanouts.add(destination)

    def _check_room(self) -> None:
        """Refuse one more destination when there are too many. Queues and topics live while they are used."""
        fanouts = max(len(self.logged_fanouts), len(self.fanouts))
        if len(self.queues.by_name) + len(self.wanted) + fanouts >= self._destinations_max:
            raise Refused("too-many-destinations", f"The node has its most of {self._destinations_max} destinations.")

    def send(self, envelope: Envelope, body: bytes, now_us: int, out: Outcome) -> None:
        """Accept one message and decide who gets it. Call `check_send` first."""
        if envelope.durable:
            sequence = self.next_sequence
            self.next_sequence = sequence + 1
            message = Message(envelope, body, self.origin, sequence, now_us)
            out.records.append(message)
            out.record_bytes += len(body) + len(envelope.headers) + RECORD_OVERHEAD_BYTES
        else:
            self.memory_sequence += 1
            message = Message(envelope, body, self.origin, -self.memory_sequence, now_us)
        kind = envelope.kind
        if kind is Kind.TOPIC:
            self._publish_topic(message, out)
        elif kind is Kind.QUEUE:
            self.queues.push(message, out)
        else:
            out.publish_fanout(envelope.destination, message)

    def _publish_topic(self, message: Message, out: Outcome) -> None:
        name = message.envelope.destination
        subscriptions = self.topics.match(name)
        if subscriptions:
            out.publish_topic(subscriptions, message)
        for peer in self.interest.match(name):
            run = out.peer_topics.get(peer)
            if run is None:
                out.peer_topics[peer] = [message]
            else:
                run.append(message)

    # Subscriptions

    def subscribe(self, subscription: Subscription, out: Outcome) -> None:
        """Begin a subscription. Raises Refused for a duplicate id, too many, or a pattern that means nothing."""
        session = self.sessions[subscription.session]
        destination = subscription.destination
        kind = kind_of(destination)
        if subscription.id in session.subscriptions:
            raise Refused("duplicate-subscription", "This connection already has a subscription with that id.")
        if len(session.subscriptions) >= self._subscriptions_max:
            raise Refused(
                "too-many-subscriptions", f"A connection has at most {self._subscriptions_max} subscriptions."
            )
        if is_pattern(destination):
            if kind is not Kind.TOPIC:
                raise Refused("bad-pattern", "Only topics can be subscribed to by a pattern.")
            check_pattern(destination)
        if kind is Kind.CONTROL:
            raise Refused("bad-destination", "Control destinations answer a SEND in its RECEIPT; nobody subscribes.")
        if not (
            destination in self.wanted
            or destination in self.queues.by_name
            or destination in self.fanouts
            or destination in self.logged_fanouts
        ):
            self._check_room()
        session.subscriptions[subscription.id] = subscription
        if kind is Kind.TOPIC:
            self.topics.add(destination, subscription)
            count = self.wanted.get(destination, 0)
            self.wanted[destination] = count + 1
            if not count:
                self.wanted_changes[destination] = True
        elif kind is Kind.QUEUE:
            self.queues.subscribe(subscription, out)
        else:
            self.fanouts.setdefault(destination, {})[subscription] = None
            subscription.since = self.next_sequence - 1
            out.joined.append(subscription)

    def unsubscribe(self, session_id: int, subscription_id: str, out: Outcome) -> None:
        """End a subscription; what it has in flight goes back. Raises Refused when there is none."""
        session = self.sessions[session_id]
        subscription = session.subscriptions.pop(subscription_id, None)
        if subscription is None:
            raise Refused("unknown-subscription", "This connection has no subscription with that id.")
        self._end_subscription(subscription, out)

    def _end_subscription(self, subscription: Subscription, out: Outcome) -> None:
        subscription.closed = True
        destination = subscription.destination
        kind = kind_of(destination)
        if kind is Kind.TOPIC:
            self.topics.remove(destination, subscription)
            left = self.wanted[destination] - 1
            if left:
                self.wanted[destination] = left
            else:
                del self.wanted[destination]
                self.wanted_changes[destination] = False
        elif kind is Kind.QUEUE:
            self.queues.unsubscribe(subscription, out)
        else:
            self.left.append(subscription)
            followers = self.fanouts.get(destination, {})
            followers.pop(subscription, None)
            if not followers:
                self.fanouts.pop(destination, None)

    # Settling

    def find_delivery(self, session_id: int, tag: int) -> Delivery:
        """The delivery that `tag` names. Raises Refused when it is not in flight to this session."""
        delivery = self.queues.deliveries.get(tag)
        if delivery is None or delivery.subscription.session != session_id:
            raise Refused("unknown-ack", "No message with that id is waiting for an ACK on this connection.")
        return delivery

    def acknowledge(self, delivery: Delivery, out: Outcome) -> None:
        """The client has processed the message (and, in `client` mode, all before it)."""
        self.queues.settle(_covered(delivery), out)

    def refuse(self, delivery: Delivery, out: Outcome) -> None:
        """NACK: a failed delivery; back to the head of the queue it came from."""
        self.queues.give_back(_covered(delivery), out)

    def written(self, deliveries: list[Delivery], out: Outcome) -> None:
        """Messages of an `auto` subscription are with the operating system: they count as settled."""
        in_flight = self.queues.deliveries
        self.queues.settle([delivery for delivery in deliveries if delivery.tag in in_flight], out)

    # Transactions

    def begin(self, session_id: int, name: str) -> None:
        """Open a transaction. Raises Refused for a name in use or too many open."""
        session = self.sessions[session_id]
        if name in session.transactions:
            raise Refused("transaction-exists", "A transaction with that name is already open.")
        if len(session.transactions) >= self._transactions_max:
            raise Refused("too-many-transactions", f"A connection has at most {self._transactions_max} transactions.")
        session.transactions[name] = []

    def hold(self, session_id: int, name: str, held: Held) -> None:
        """Keep one frame until COMMIT."""
        frames = self._transaction(session_id, name)
        if len(frames) >= self._transaction_frames_max:
            raise Refused("transaction-too-long", f"A transaction has at most {self._transaction_frames_max} frames.")
        session = self.sessions[session_id]
        if session.held_bytes + held.bytes > self._transaction_bytes_max:
            raise Refused(
                "transaction-too-large",
                f"The open transactions of a connection hold at most {self._transaction_bytes_max} bytes.",
            )
        session.held_bytes += held.bytes
        frames.append(held)

    def commit(self, session_id: int, name: str, now_us: int, out: Outcome) -> None:
        """Apply all that was held, in one batch: all of it or, when Refused, none of it.

        A message that went back meanwhile cannot be settled any more, so its ACK refuses the whole: what was made
        out of the message will be made again by its next consumer.
        """
        frames = self._transaction(session_id, name)
        ahead: dict[str, tuple[int, int]] = {}
        for held in frames:
            if held.envelope is not None:
                messages, body_bytes = ahead.get(held.envelope.destination, (0, 0))
                self.check_send(held.envelope, len(held.body), messages, body_bytes)
                ahead[held.envelope.destination] = (messages + 1, body_bytes + len(held.body))
            elif held.delivery is not None and held.delivery.tag not in self.queues.deliveries:
                raise Refused("unknown-ack", "A message of the transaction does not wait for its ACK any more.")
        self.abort(session_id, name)
        for held in frames:
            if held.envelope is not None:
                self.send(held.envelope, held.body, now_us, out)
            elif held.delivery is not None and held.delivery.tag in self.queues.deliveries:
                if held.is_ack:
                    self.acknowledge(held.delivery, out)
                else:
                    self.refuse(held.delivery, out)
            if held.receipt is not None:
                out.receipts.append(held.receipt)

    def abort(self, session_id: int, name: str) -> None:
        """Forget all that was held."""
        frames = self._transaction(session_id, name)
        session = self.sessions[session_id]
        session.held_bytes -= sum(held.bytes for held in frames)
        del session.transactions[name]

    def _transaction(self, session_id: int, name: str) -> list[Held]:
        frames = self.sessions[session_id].transactions.get(name)
        if frames is None:
            raise Refused("unknown-transaction", "No transaction with that name is open.")
        return frames

    # The journal and the peers

    def accept(self, message: Message, out: Outcome) -> None:
        """A durable message of another origin came in over a link (or of an older life of this node)."""
        if message.envelope.kind is Kind.FANOUT:
            out.publish_fanout(message.envelope.destination, message)
        elif message.envelope.kind is Kind.QUEUE and message.origin.node == self.origin.node:
            dot = message.dot
            if dot in self.queues.settled_early:
                self.queues.settled_early.discard(dot)
            else:
                self.queues.push(message, out)

    def accept_settles(self, dots: list[Dot], have: Vector) -> None:
        """A settle record of another origin came in; `have` is what is known here of every origin."""
        for dot in dots:
            self.queues.settled_elsewhere(dot, have.get(dot.origin, 0))

    def topic_from_peer(self, message: Message, out: Outcome) -> None:
        """A peer forwards a topic message: local subscribers only, so that nothing is told twice."""
        subscriptions = self.topics.match(message.envelope.destination)
        if subscriptions:
            out.publish_topic(subscriptions, message)

    def note_gap(self, origin: Origin, through: int, now_us: int, out: Outcome) -> None:
        """Records of `origin` up to `through` were given up by every peer that could be asked."""
        out.records.append(Gap(origin, through, self.next_sequence, now_us))
        out.has_gap = True
        self.next_sequence += 1

    def finish(self, out: Outcome, now_us: int) -> None:
        """Turn collected settles into records, one per queue. Call once, just before the Outcome is committed."""
        if not out.settles:
            return
        for queue, dots in out.settles.items():
            sequence = self.next_sequence
            self.next_sequence = sequence + 1
            out.records.append(Settle(queue, dots, sequence, now_us))
            out.record_bytes += RECORD_OVERHEAD_BYTES + 10 * len(dots)
            for dot in dots:
                owner = out.borrowed_settled.get(dot)
                if owner is not None:
                    self.queues.settled_here.setdefault(owner, {})[dot] = sequence
        out.settles = {}


def _covered(delivery: Delivery) -> list[Delivery]:
    """What an ACK or NACK of `delivery` is about: in `client` mode everything delivered up to it."""
    subscription = delivery.subscription
    if subscription.ack is not Ack.CLIENT:
        return [delivery]
    covered = []
    for tag, other in subscription.in_flight.items():
        if tag > delivery.tag:
            break
        covered.append(other)
    return covered
