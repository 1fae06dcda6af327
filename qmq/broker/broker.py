"""The rules of one node: every question a client, a peer or the journal can ask, and what follows.

Pure and synchronous: callers bring the time and an Outcome, the broker changes its state and adds to the Outcome what
must be recorded and told. It either does the whole of what was asked or raises `Refused` with nothing changed.
Callers make the calls of one chunk without an await between them, then `finish` the Outcome and commit it.

Sequences are given here, at the decision; the commit path appends records in exactly the order of decisions, so
journal and broker agree without a second look. What a queue, a lent message and a transaction mean is in their own
modules; this one knows sessions and subscriptions, and is where each kind of destination gets its part.

Long for one module: it is the one door to the rules, a method for each question, most of them a few lines to the
module that answers.
"""

from collections.abc import Callable, Collection, Mapping

from qmq.broker.abilities import BURIALS, Abilities
from qmq.broker.admission import RECORD_OVERHEAD_BYTES, Admission
from qmq.broker.consumers.light_subscriptions import LightSubscriptions, Subscriber
from qmq.broker.consumers.outcome import LETTERS_BYTES_MAX, Outcome
from qmq.broker.consumers.replies import Replies
from qmq.broker.consumers.session import ClientState
from qmq.broker.consumers.subscription import Ack, Delivery, Subscription, covered
from qmq.broker.fanouts.durable_subscriptions import DurableSubscriptions, taken_over
from qmq.broker.messages.dedup import Dedup, is_dead_letter, is_retry
from qmq.broker.messages.destination import SYSTEM_DESTINATIONS, DestinationKind, check_pattern, is_pattern, kind_of
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.limits import DEFAULT_LIMITS, BrokerLimits
from qmq.broker.messages.message import Attempts, DeadLetter, Deleted, Envelope, Fact, Gap, Message, Retain, Settle
from qmq.broker.messages.receipt_levels import QUORUM, disks_of, strongest, with_quorum
from qmq.broker.messages.rules import DEFAULT_RULES, QueueRules
from qmq.broker.queues.lending.lending import Lending
from qmq.broker.queues.queues import Queues
from qmq.broker.queues.state.stored_names import StoredNames
from qmq.broker.selectors import Selector
from qmq.broker.topics.patterns import VISITS_MAX, PatternTable
from qmq.broker.topics.retained import RetainedValues
from qmq.broker.topics.sequence_filter import SequenceFilter
from qmq.broker.transactions import NOWHERE, Transactions
from qmq.cursors import Name
from qmq.deletions import DELETIONS_MAX, Deletion, Deletions
from qmq.dots import Dot, Origin, Vector
from qmq.errors import Refused

TOPIC, QUEUE, FANOUT = DestinationKind.TOPIC, DestinationKind.QUEUE, DestinationKind.FANOUT
"""Asked about for every message: a name of the module is found faster than a member of an enumeration."""


def stopping() -> Refused:
    """Why a node that ends serves a client no more."""
    return Refused("stopping", "This node is stopping; the others of its mesh go on.")


class Broker:
    """State and rules of one node.

    `origin` is this incarnation; `next_sequence` the first free sequence of its journal. `rules_of` gives the
    rules of a queue by its name, `defaults_of` the headers that a message of it gets where its sender did not say.
    """

    def __init__(
        self,
        origin: Origin,
        next_sequence: int,
        *,
        rules_of: Callable[[str], QueueRules] = lambda name: DEFAULT_RULES,
        defaults_of: Callable[[str], Mapping[str, str]] = lambda name: {},
        limits: BrokerLimits = DEFAULT_LIMITS,
    ) -> None:
        self.origin = origin
        self.next_sequence = next_sequence
        self.memory_sequence = 0
        self.is_stopping = False
        self.sessions: dict[int, ClientState] = {}
        self.topics: PatternTable[Subscriber] = PatternTable(VISITS_MAX, limits.pattern_words_max)
        self.interest: PatternTable[str] = PatternTable()
        self.once = SequenceFilter()
        # Patterns that local topic subscribers began to want, or want no more, since the peers were last told.
        self.wanted_changes: dict[str, bool] = {}
        # Who hears what the node tells of itself; apart from topics, whose patterns must not match it.
        self.watchers: dict[str, dict[Subscription, None]] = {name: {} for name in SYSTEM_DESTINATIONS}
        self.watchers_new: list[Subscription] = []
        """Those of them that began since the node last looked."""
        self.fanouts: dict[str, dict[Subscription, None]] = {}
        # What the selectors of a fanout's subscriptions cost together; where it has any.
        self._fanout_cost: dict[str, int] = {}
        # The selectors of subscriptions by their text, each with how many have it; and what they cost together.
        self._selectors: dict[str, tuple[Selector, int]] = {}
        self._parts = 0
        # How many topic subscriptions have a selector, and what those cost of the subscribers asked about last.
        self._selecting = 0
        self._hearers: tuple[Subscriber, ...] = ()
        self._subscribers_cost = 0
        # Fanout subscriptions that ended since whoever tells them was last told.
        self.left: list[Subscription] = []
        # Of fanouts; the store's readers go by the same. And those that the node has not reported yet.
        self.deletions = Deletions()
        self.deletions_new: list[Deletion] = []
        self.dedup = Dedup()
        self.queues = Queues(
            self.dedup, origin, rules_of, self._accept_letter, lambda: self.admission.disk_full, defaults_of
        )
        self.queues.stored_names = StoredNames(limits.destinations_max)
        self.retained = RetainedValues(limits.retained_topics_max, limits.retained_bytes_max)
        # What this node has of every origin; filled in by the node.
        self.received: Callable[[], Vector] = dict
        self.forgotten: Collection[Origin] = ()
        """Dead incarnations of which nothing is left in the mesh (`qmq.storage.catalog.incarnations`)."""
        # Whether a session is told nothing any more; likewise.
        self.is_leaving: Callable[[int], bool] = lambda session: False
        self.durable_subscriptions = DurableSubscriptions(origin, self.queues.deliveries)
        self.clocks = self.queues.shared.clocks
        self.lending = Lending(self.queues)
        self.abilities = Abilities()
        self.replies = Replies(origin, limits.subscriptions_max)
        self.admission = Admission(self.queues, self.retained, self.fanouts, self.topics, limits)
        self.transactions = Transactions(self.sessions, self.queues, self.dedup, self.admission)
        self.limit(limits)

    def limit(self, limits: BrokerLimits) -> None:
        """From now on clients may have this much. Whoever has more keeps it."""
        self.limits = self.admission.limits = limits
        self.replies.subscriptions_max = limits.subscriptions_max
        self.retained.topics_max = limits.retained_topics_max
        self.retained.bytes_max = limits.retained_bytes_max
        self.durable_subscriptions.durables_max = limits.durable_subscriptions_max
        self.topics.words_max = limits.pattern_words_max

    # Sessions

    def open_session(self, session_id: int, key: int = 0) -> ClientState:
        """A client has logged in; ids are never reused. `key`: 64 random bits, for its reply addresses."""
        session = self.sessions[session_id] = ClientState(session_id, key)
        return session

    def close_session(self, session_id: int, out: Outcome, why: Back = Back.RELEASED) -> None:
        """A client is gone, or is about to: its transactions end, its messages go back, its subscriptions end.

        `why` is LEFT where the client has said so itself. Nothing happens for one that is closed already.
        """
        session = self.sessions.pop(session_id, None)
        if session is None:
            return
        # All before any: what one of them gives back must not go to another one of the same dead client.
        for subscription in session.subscriptions.values():
            subscription.closed = True
        for subscription in session.subscriptions.values():
            self._end_subscription(subscription, out, why)
        listener = session.listener
        if listener is not None:
            for topic in listener.ids:
                self._want_no_more(topic, listener)
            listener.end()

    def cease(self, out: Outcome) -> None:
        """From now on no consumer here is given anything; what they have they may still settle. No subscription begins
        any more."""
        self.is_stopping = True
        for session in self.sessions.values():
            for subscription in session.subscriptions.values():
                if subscription.durable is not None:
                    subscription.credit = 0
                elif kind_of(subscription.destination) is QUEUE and not subscription.is_browser:
                    self.queues.cease(subscription, out)

    # Messages

    def send(self, envelope: Envelope, body: bytes, now_us: int, out: Outcome) -> None:
        """Accept one message and decide who gets it. Call `Admission.check_send` first."""
        kind = envelope.kind
        if kind is QUEUE and self.queues.any_overflows and not self._has_room(envelope, body, out):
            return
        if envelope.durable:
            sequence = self.next_sequence
            self.next_sequence = sequence + 1
            message = Message(envelope, body, self.origin, sequence, now_us)
            out.records.append(message)
            out.record_bytes += len(body) + len(envelope.headers) + RECORD_OVERHEAD_BYTES
        else:
            self.memory_sequence += 1
            message = Message(envelope, body, self.origin, -self.memory_sequence, now_us)
        if envelope.key is not None:
            self._learn(message, now_us)
        if kind is TOPIC:
            self._publish_topic(message, out)
        elif kind is QUEUE:
            self.queues.intake.push(message, out)
        elif kind is FANOUT:
            out.publish_fanout(envelope.destination, message)
            if self._fanout_cost:
                out.selector_cost += self._fanout_cost.get(envelope.destination, 0)
            for copy in envelope.copies:
                self.send(copy, body, now_us, out)
        else:
            self.replies.send(message, out)

    def send_run(self, envelope: Envelope, bodies: list[bytes], out: Outcome) -> bool:
        """`Admission.check_send` and `send` for many messages to one destination at once, accepted at `out.now_us`.

        False, with nothing changed, when a bound is so near that one of them might be refused or sent elsewhere.
        `envelope` is of a queue, fanout or topic, and has no dedup key, no copies, and nothing to do with a last value.
        """
        durable = envelope.durable
        kind = envelope.kind
        body_bytes = sum(map(len, bodies))
        if durable and self.admission.disk_full:
            return False
        if kind is QUEUE and not self.queues.intake.may_push_run(
            envelope, len(bodies), body_bytes, self.limits.queue_memory_bytes_max
        ):
            return False
        now_us = out.now_us
        origin = self.origin
        messages: list[Message] = []
        if durable:
            sequence = self.next_sequence
            for body in bodies:
                messages.append(Message(envelope, body, origin, sequence, now_us))
                sequence += 1
            self.next_sequence = sequence
            out.records.extend(messages)
            out.record_bytes += body_bytes + len(bodies) * (len(envelope.headers) + RECORD_OVERHEAD_BYTES)
        else:
            sequence = self.memory_sequence
            for body in bodies:
                sequence += 1
                messages.append(Message(envelope, body, origin, -sequence, now_us))
            self.memory_sequence = sequence
        if kind is QUEUE:
            self.queues.intake.push_run(messages, out)
        elif kind is TOPIC:
            self._publish_topic_run(messages, out)
        else:
            out.publish_fanout_run(envelope.destination, messages)
            out.selector_cost += self._fanout_cost.get(envelope.destination, 0)
        return True

    def _has_room(self, envelope: Envelope, body: bytes, out: Outcome) -> bool:
        """Whether a queue takes a message that was not refused. If not, it has gone where its policy says."""
        queues = self.queues
        queue = queues.by_name.get(envelope.destination)
        rules = queues.rules_of(envelope.destination) if queue is None else queue.rules
        if rules.overflow == "refuse":
            return True
        # What would not fit into an empty queue must not empty it.
        if not rules.bytes_max or len(body) <= rules.bytes_max:
            if queue is None or queue.fits(1, len(body)):
                return True
            if rules.overflow == "drop-oldest" and queues.redelivery.make_room(queue, 1, len(body), out):
                return True
        queues.redelivery.drop_newest(envelope, body, self.origin, out)
        return False

    def _accept_letter(self, envelope: Envelope, body: bytes, out: Outcome, queue: str, dot: Dot | None) -> int:
        """A dead letter: accepted without being asked for, so no bound holds it up.

        Returns the sequence of the record that settles the message `dot` of `queue`, too; 0 when there is no such one.
        """
        if dot is None or not envelope.durable or not self.abilities.have_all(BURIALS):
            self.send(envelope, body, out.now_us, out)
            return 0
        if self.queues.any_overflows and not self._has_room(envelope, body, out):
            return 0
        sequence = self.next_sequence
        self.next_sequence = sequence + 1
        letter = Message(envelope, body, self.origin, sequence, out.now_us)
        out.records.append(DeadLetter(letter, queue, dot))
        names = len(envelope.destination) + len(queue)
        out.record_bytes += len(body) + len(envelope.headers) + names + 2 * RECORD_OVERHEAD_BYTES
        self.queues.intake.push(letter, out)
        return sequence

    def new_memory_sequence(self) -> int:
        """Numbers one more message of this node that is in no journal."""
        self.memory_sequence += 1
        return self.memory_sequence

    def _publish_topic(self, message: Message, out: Outcome) -> None:
        name = message.envelope.destination
        subscriptions = self.topics.match(name)
        if subscriptions:
            out.publish_topic(subscriptions, message)
            if self._selecting:
                out.selector_cost += self._cost_of(subscriptions)
        peers = self.interest.match(name)
        if message.envelope.retain:
            self.retained.put(message)
            peers = self.retained.audience(peers, name)
        for peer in peers:
            run = out.peer_topics.get(peer)
            if run is None:
                out.peer_topics[peer] = [message]
            else:
                run.append(message)

    def _publish_topic_run(self, messages: list[Message], out: Outcome) -> None:
        """As `_publish_topic`, for messages to one topic that leave its last value alone."""
        name = messages[0].envelope.destination
        subscriptions = self.topics.match(name)
        if subscriptions:
            out.publish_topic_run(subscriptions, messages)
            if self._selecting:
                out.selector_cost += self._cost_of(subscriptions)
        for peer in self.interest.match(name):
            out.peer_topics.setdefault(peer, []).extend(messages)

    def _cost_of(self, subscriptions: tuple[Subscriber, ...]) -> int:
        """What it costs to ask all of these whether they want a message."""
        # Messages to one topic mostly come one after the other, and its subscribers are one object until they change.
        if subscriptions is not self._hearers:
            self._hearers = subscriptions
            self._subscribers_cost = sum([one.selector.cost for one in subscriptions if one.selector is not None])
        return self._subscribers_cost

    # Subscriptions

    def subscribe(self, subscription: Subscription, out: Outcome) -> None:
        """Begin a subscription. Raises Refused for a duplicate id, too many, or a pattern that means nothing."""
        session = self.sessions[subscription.session]
        destination = subscription.destination
        kind = kind_of(destination)
        if kind is DestinationKind.TEMP:
            self.subscribe_replies(subscription)
            return
        self._check_subscriber(session, subscription.id)
        if is_pattern(destination):
            if kind is not DestinationKind.TOPIC:
                raise Refused("bad-pattern", "Only topics can be subscribed to by a pattern.")
            check_pattern(destination)
        if kind is DestinationKind.CONTROL or kind is DestinationKind.REPLY:
            raise Refused("bad-destination", "Nobody subscribes to control destinations and reply addresses.")
        if kind is DestinationKind.SYSTEM and destination not in SYSTEM_DESTINATIONS:
            raise Refused("bad-destination", f"The node tells of itself at {', '.join(SYSTEM_DESTINATIONS)}.")
        if not (
            destination in self.topics
            or destination in self.queues.by_name
            or destination in self.fanouts
            or destination in self.admission.logged_fanouts
        ):
            self.admission.check_room(destination)
        if subscription.selector is not None:
            self._check_selector(subscription.selector)
        if kind is DestinationKind.TOPIC:
            self._want(destination, subscription)
        if subscription.selector is not None:
            subscription.selector = self._share_selector(subscription.selector)
        session.subscriptions[subscription.id] = subscription
        session.asked_bytes += subscription.memory_bytes
        if kind is DestinationKind.TOPIC:
            self._selecting += subscription.selector is not None
            if self.retained.values:
                out.retained_delivery.append((subscription, self.retained.change))
        elif subscription.is_browser:
            out.browsers.append(subscription)
        elif kind is DestinationKind.QUEUE:
            self.queues.subscribe(subscription, out)
        elif kind is DestinationKind.SYSTEM:
            self.watchers[destination][subscription] = None
            self.watchers_new.append(subscription)
        else:
            self.fanouts.setdefault(destination, {})[subscription] = None
            if subscription.selector is not None:
                self._fanout_cost[destination] = self._fanout_cost.get(destination, 0) + subscription.selector.cost
            subscription.since = self.next_sequence - 1
            out.joined.append(subscription)

    def listen(self, session_id: int, topic: str, id: str) -> bool:
        """Begin a subscription that asks for nothing, to one topic by its name. Raises Refused as `subscribe`.

        False, with nothing changed, when it needs an object of its own: `subscribe` then.
        """
        session = self.sessions[session_id]
        listener = session.listener
        if self.retained.values or (listener is not None and topic in listener.ids):
            return False
        self._check_subscriber(session, id)
        if topic not in self.topics:
            self.admission.check_room()
        if listener is None:
            listener = session.listener = LightSubscriptions(session_id)
        listener.join(topic, id)
        self._want(topic, listener)
        return True

    def _check_selector(self, selector: Selector) -> None:
        most = self.limits.selector_parts_max
        if selector.text not in self._selectors and self._parts + selector.cost > most:
            raise Refused("too-many-selectors", f"Different selectors have at most {most} parts together.")

    def _share_selector(self, selector: Selector) -> Selector:
        """The selector itself, or the one that others have with the same text: a large one is a thousand objects."""
        known, count = self._selectors.get(selector.text, (selector, 0))
        if not count:
            self._parts += known.cost
        self._selectors[known.text] = (known, count + 1)
        return known

    def _leave_selector(self, selector: Selector) -> None:
        known, count = self._selectors.pop(selector.text)
        if count > 1:
            self._selectors[known.text] = (known, count - 1)
        else:
            self._parts -= known.cost

    def _check_subscriber(self, session: ClientState, subscription_id: str) -> None:
        if self.is_stopping:
            raise stopping()
        if session.is_taken(subscription_id):
            raise Refused("duplicate-subscription", "This connection already has a subscription with that id.")
        if session.subscribed >= self.limits.subscriptions_max:
            raise Refused(
                "too-many-subscriptions", f"A connection has at most {self.limits.subscriptions_max} subscriptions."
            )

    def _want(self, pattern: str, subscriber: Subscriber) -> None:
        """Raises Refused, with nothing changed, when the pattern is one too many."""
        is_new = pattern not in self.topics
        self.topics.add(pattern, subscriber)
        if is_new:
            self._wanted_changed(pattern, True)

    def _want_no_more(self, pattern: str, subscriber: Subscriber) -> None:
        self.topics.remove(pattern, subscriber)
        if pattern not in self.topics:
            self._wanted_changed(pattern, False)

    def subscribe_durable(self, subscription: Subscription, name: Name, now_us: int, out: Outcome) -> None:
        """Begin a subscription of a fanout that continues at the cursor of `name`, and end the one that has it.

        Raises Refused as `subscribe`.
        """
        durable_subscriptions = self.durable_subscriptions
        durable_subscriptions.check_attach(name, subscription.session, may_create=not self.queues.is_starting)
        self.subscribe(subscription, out)
        before = durable_subscriptions.attached.get(name)
        if before is not None:
            self.unsubscribe(before.subscription.session, before.subscription.id, out)
            # One whose client has heard its last frame is perhaps this very client, which came back.
            if not self.is_leaving(before.subscription.session):
                durable_subscriptions.ended.append(
                    (before.subscription, taken_over(name, "another connection of this node"))
                )
        # A slow one waits for its credit, so nothing is ever dropped.
        subscription.buffer = None
        have = {**self.received(), self.origin: self.next_sequence - 1}
        durable_subscriptions.attach(subscription, name, have, now_us, out)

    def subscribe_replies(self, subscription: Subscription, *, is_implicit: bool = False) -> str:
        """Begin a subscription to a temporary queue; returns its reply address. Raises Refused."""
        if is_pattern(subscription.destination):
            raise Refused("bad-pattern", "Only topics can be subscribed to by a pattern.")
        session = self.sessions[subscription.session]
        return self.replies.subscribe(session, subscription, is_implicit=is_implicit).address

    def unsubscribe(self, session_id: int, subscription_id: str, out: Outcome) -> None:
        """End a subscription; what it has in flight goes back. Raises Refused when there is none."""
        session = self.sessions[session_id]
        listener = session.listener
        if listener is not None and subscription_id in listener.topics:
            self._want_no_more(listener.leave(subscription_id), listener)
            return
        subscription = session.subscriptions.pop(subscription_id, None)
        if subscription is None:
            raise Refused("unknown-subscription", "This connection has no subscription with that id.")
        self._end_subscription(subscription, out, Back.LEFT)

    def _end_subscription(self, subscription: Subscription, out: Outcome, why: Back) -> None:
        subscription.closed = True
        destination = subscription.destination
        kind = kind_of(destination)
        if subscription.selector is not None and kind is not DestinationKind.TEMP:
            self._leave_selector(subscription.selector)
        session = self.sessions.get(subscription.session)
        if session is not None and kind is not DestinationKind.TEMP:
            session.asked_bytes -= subscription.memory_bytes
        if kind is DestinationKind.TOPIC:
            self._want_no_more(destination, subscription)
            self._selecting -= subscription.selector is not None
            self._hearers = ()
        elif subscription.is_browser:
            pass
        elif kind is DestinationKind.QUEUE:
            self.queues.unsubscribe(subscription, out, why)
        elif kind is DestinationKind.TEMP:
            self.replies.end(subscription)
        elif kind is DestinationKind.SYSTEM:
            del self.watchers[destination][subscription]
        else:
            self.left.append(subscription)
            if subscription.durable is not None:
                self.durable_subscriptions.detach(subscription, out)
            followers = self.fanouts.get(destination, {})
            followers.pop(subscription, None)
            if not followers:
                self.fanouts.pop(destination, None)
                self._fanout_cost.pop(destination, None)
            elif subscription.selector is not None:
                self._fanout_cost[destination] -= subscription.selector.cost

    def _wanted_changed(self, destination: str, wanted: bool) -> None:
        """Note it for the peers. What has come and gone again since they were told is no change."""
        if self.wanted_changes.pop(destination, None) is None:
            self.wanted_changes[destination] = wanted

    # Settling

    def find_delivery(self, session_id: int, tag: int) -> Delivery:
        """The delivery that `tag` names. Raises Refused when it is not in flight to this session."""
        delivery = self.queues.deliveries.get(tag)
        if delivery is None or delivery.subscription.session != session_id:
            raise Refused("unknown-ack", f"No message with the id {tag} waits for an ACK on this connection.")
        return delivery

    def find_run(self, session_id: int, tags: list[int]) -> list[Delivery] | None:
        """The deliveries that `tags` name; None unless all are in flight to one subscription of this session whose
        ACKs settle one message each, and none is named twice."""
        in_flight = self.queues.deliveries
        first = in_flight.get(tags[0])
        if first is None:
            return None
        subscription = first.subscription
        if subscription.session != session_id or subscription.ack is not Ack.CLIENT_INDIVIDUAL:
            return None
        found: list[Delivery] = []
        for tag in tags:
            delivery = in_flight.get(tag)
            if delivery is None or delivery.subscription is not subscription:
                return None
            found.append(delivery)
        return found if len(set(tags)) == len(tags) else None

    def acknowledge(self, delivery: Delivery, out: Outcome) -> None:
        """The client has processed the message (and, in `client` mode, all before it)."""
        self.settle(covered(delivery), out)

    def settle_for_good(self, delivery: Delivery, out: Outcome) -> None:
        """What is about to be acknowledged with `delivery` must never be handed out again: QUORUM."""
        if delivery.subscription.durable is None:
            out.settles_for_good(covered(delivery))

    def settle(self, deliveries: list[Delivery], out: Outcome) -> None:
        """These deliveries, all of one subscription, are done."""
        if deliveries and deliveries[0].subscription.durable is not None:
            self.durable_subscriptions.settle(deliveries, out)
        else:
            self.queues.settlement.settle(deliveries, out)

    def refuse(self, delivery: Delivery, out: Outcome, why: Back = Back.FAILED) -> None:
        """NACK: a failed delivery; what becomes of a queue's message is in `life`."""
        if delivery.subscription.durable is not None:
            self.durable_subscriptions.give_back(covered(delivery))
        else:
            self.queues.redelivery.give_back(covered(delivery), why, out)

    def commit(
        self,
        session_id: int,
        name: str,
        now_us: int,
        out: Outcome,
        level: int | None = None,
        elsewhere: Mapping[bytes, bool] = NOWHERE,
        *,
        is_quorum: bool | None = None,
    ) -> int:
        """Apply a transaction in one batch: all of it or, when Refused, none of it. Nothing may follow in `out`.

        Messages with a dedup id that is known here, or held `elsewhere`, are left out: they are appended already.

        Returns the level of its receipts: `level` and `is_quorum`, or the strongest that one of the frames asks for.
        """
        transactions = self.transactions
        frames, known, letters_bytes = transactions.close(session_id, name, now_us, elsewhere)
        out.letters_left = LETTERS_BYTES_MAX - letters_bytes
        asked = strongest([held.level for held in frames])
        level = disks_of(asked) if level is None else level
        if asked >= QUORUM if is_quorum is None else is_quorum:
            level = with_quorum(level)
        for held in frames:
            if id(held) in known or transactions.is_appended(held, now_us, elsewhere):
                out.repeats = True
            elif held.envelope is not None:
                self.send(held.envelope, held.body, now_us, out)
            elif held.delivery is not None and held.delivery.tag in self.queues.deliveries:
                if held.is_ack:
                    if level >= QUORUM:
                        self.settle_for_good(held.delivery, out)
                    self.acknowledge(held.delivery, out)
                else:
                    self.refuse(held.delivery, out, held.why)
            if held.receipt is not None:
                out.receipt(held.receipt, level)
        return level

    def tick(self, out: Outcome) -> None:
        """Obey the deadlines that have come by `out.now_us`. Late ACKs for what is taken back will be ignored."""
        for delivery in self.queues.tick(out):
            session = self.sessions.get(delivery.subscription.session)
            if session is not None:
                session.remember_late(delivery)

    def written(self, deliveries: list[Delivery], out: Outcome) -> None:
        """Messages of an `auto` subscription are with the operating system: they count as settled."""
        in_flight = self.queues.deliveries
        self.settle([delivery for delivery in deliveries if delivery.tag in in_flight], out)

    # The journal and the peers

    def accept(self, message: Message, out: Outcome) -> None:
        """A durable message of another origin came in over a link (or of an older life of this node)."""
        if message.envelope.key is not None:
            known = self._learn(message, out.now_us)
            if known is not None:
                self.queues.settlement.retry_came(known, out)
        if message.envelope.kind is DestinationKind.FANOUT:
            if self.deletions.covers(message.envelope.destination, message.origin, message.sequence):
                return
            out.publish_fanout(message.envelope.destination, message)
            if self._fanout_cost:
                out.selector_cost += self._fanout_cost.get(message.envelope.destination, 0)
        elif message.envelope.kind is DestinationKind.QUEUE:
            owned = self.queues.owned
            if message.origin.node in owned.serves:
                self.queues.intake.take_in(message, out)
            elif message.origin.node in owned.gathering:
                owned.gathering[message.origin.node].messages.append(message)

    def _learn(self, message: Message, now_us: int) -> Dot | None:
        """Remember the dedup id of `message`; the dot that had it before, if `message` is a retry in a queue."""
        envelope = message.envelope
        key = envelope.key
        assert key is not None
        known = self.dedup.find(key, now_us)
        self.dedup.learn(key, message.dot, now_us)
        if envelope.kind is not DestinationKind.QUEUE or not envelope.durable or not is_retry(envelope.headers):
            return None
        if is_dead_letter(envelope.headers):
            return None
        self.dedup.learn_retry(key, message.origin.node, message.timestamp_us)
        return known

    def accept_settles(self, queue: str, dots: list[Dot], have: Vector, record: Dot) -> None:
        """The settle record `record` of another origin came in; `have` is what is known here of every origin."""
        for dot in dots:
            if dot.origin not in self.forgotten:
                self.queues.settlement.settled_elsewhere(queue, dot, have.get(dot.origin, 0), record)

    def topics_from_peer(self, messages: list[Message], out: Outcome) -> None:
        """Topic messages of one other node came in, in its order: those that are told neither twice nor late."""
        for message in self.once.fresh(messages):
            self.topic_from_peer(message, out)

    def topic_from_peer(self, message: Message, out: Outcome) -> None:
        """A peer forwards a topic message: local subscribers only, so that nothing is told twice."""
        if message.envelope.retain and not self.retained.hear(message):
            return
        subscriptions = self.topics.match(message.envelope.destination)
        if subscriptions:
            out.publish_topic(subscriptions, message)
            if self._selecting:
                out.selector_cost += self._cost_of(subscriptions)

    def value_from_peer(self, message: Message, peer: str, out: Outcome) -> None:
        """`peer` says what it knows of the last value of a topic; whoever has missed it here is told."""
        if self.retained.learn(message, peer) and message.envelope.retain is Retain.SET:
            subscriptions = self.topics.match(message.envelope.destination)
            if subscriptions:
                out.publish_value(subscriptions, message)
                if self._selecting:
                    out.selector_cost += self._cost_of(subscriptions)

    def note_gap(self, origin: Origin, through: int, now_us: int, out: Outcome) -> None:
        """Records of `origin` up to `through` were given up by every peer that could be asked."""
        out.records.append(Gap(origin, through, self.next_sequence, now_us))
        out.has_gap = True
        self.next_sequence += 1

    def note_fact(self, kind: int, body: bytes, now_us: int, out: Outcome) -> None:
        """Record something about the mesh; its meaning is the node's business."""
        out.records.append(Fact(kind, body, self.next_sequence, now_us))
        out.record_bytes += RECORD_OVERHEAD_BYTES + len(body)
        self.next_sequence += 1

    def delete_fanout(self, destination: str, now_us: int, out: Outcome) -> None:
        """Delete all messages of the fanout that this node has, and its durable subscriptions, on every node.

        What this node does not have yet, and what is sent from now on, stays. Current subscribers are disconnected.
        Raises Refused when too many deletions are remembered.
        """
        if self.deletions.count >= DELETIONS_MAX:
            raise Refused("too-many-deletions", f"The node remembers its most of {DELETIONS_MAX} deletions; try later.")
        before = {origin: last for origin, last in self.received().items() if last}
        before[self.origin] = self.next_sequence - 1
        deletion = Deletion(destination, Dot(self.origin, self.next_sequence), now_us, before)
        out.records.append(Deleted(destination, before, self.next_sequence, now_us))
        out.record_bytes += RECORD_OVERHEAD_BYTES * (2 + len(before))
        self.next_sequence += 1
        self.durable_subscriptions.delete_all(destination, now_us, out)
        self.accept_deletion(deletion)

    def accept_deletion(self, deletion: Deletion) -> None:
        """A fanout was deleted, here or on another node. `deletions_new` says so to the node."""
        if not self.deletions.add(deletion):
            return
        destination = deletion.destination
        self.admission.logged_fanouts.discard(destination)
        why = Refused(
            "destination-deleted", f"{destination} was deleted. Subscribe again for what is sent from now on."
        )
        self.durable_subscriptions.ended += [(subscription, why) for subscription in self.fanouts.get(destination, ())]
        self.deletions_new.append(deletion)

    def finish(self, out: Outcome, now_us: int) -> None:
        """Turn collected settles into records, one per queue. Call once, just before the Outcome is committed."""
        if self.queues.shared.dirty_queues:
            out.now_us = out.now_us or now_us
            self.queues.rounds.finish(out)
        for moved in self.durable_subscriptions.records(out, self.next_sequence, now_us):
            out.records.append(moved)
            out.record_bytes += RECORD_OVERHEAD_BYTES * (2 + len(moved.move.done) + len(moved.move.start or ()))
            self.next_sequence += 1
        for queue, counts in out.attempts.items():
            out.records.append(Attempts(queue, counts, self.next_sequence, now_us))
            out.record_bytes += RECORD_OVERHEAD_BYTES + 12 * len(counts)
            self.next_sequence += 1
        out.attempts = {}
        if not out.settles:
            return
        for queue, dots in out.settles.items():
            sequence = self.next_sequence
            self.next_sequence = sequence + 1
            out.records.append(Settle(queue, dots, sequence, now_us))
            out.record_bytes += RECORD_OVERHEAD_BYTES + 10 * len(dots)
            self.queues.paging.gone.recorded(queue, dots, sequence)
            if not out.borrowed_settled:
                continue
            for dot in dots:
                owner = out.borrowed_settled.get(dot)
                if owner is not None:
                    self.queues.owned.settled_here.setdefault(owner, {})[dot] = sequence
        out.settles = {}
