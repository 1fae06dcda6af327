"""Topic messages: which local subscribers and which peers get each, and what evaluating the selectors costs.

Surprising: a message of a peer goes to local subscribers only, so that no topic message is delivered twice.
"""

from typing import TypeVar

from qmq.broker.consumers.light_subscriptions import Subscriber
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.limits import BrokerLimits
from qmq.broker.messages.message import Envelope, Message, Retain
from qmq.broker.messages.sent_run import SentRun
from qmq.broker.selectors import SelectorCosts
from qmq.broker.topics.patterns import VISITS_MAX, PatternTable
from qmq.broker.topics.retained import RetainedValues
from qmq.broker.topics.sequence_filter import SequenceFilter

T = TypeVar("T")


class TopicRouter:
    """`topics` are the subscribers of this node, `interest` the peers that have some, by pattern."""

    def __init__(self, limits: BrokerLimits) -> None:
        self.topics: PatternTable[Subscriber] = PatternTable(VISITS_MAX, limits.pattern_words_max)
        self.interest: PatternTable[str] = PatternTable()
        self.sequence_filter = SequenceFilter()
        self.retained = RetainedValues(limits.retained_topics_max, limits.retained_bytes_max)
        self.selecting = 0
        """How many topic subscriptions have a selector."""
        # The subscribers matched last, and what their selectors cost together.
        self._matched: tuple[Subscriber, ...] = ()
        self._matched_costs = SelectorCosts()

    def limit(self, limits: BrokerLimits) -> None:
        """From now on there may be this much; what is more than that stays."""
        self.retained.topics_max = limits.retained_topics_max
        self.retained.bytes_max = limits.retained_bytes_max
        self.topics.words_max = limits.pattern_words_max

    # Subscribers

    def add(self, pattern: str, subscriber: Subscriber, out: Outcome) -> None:
        """From now on `subscriber` gets what matches. Raises Refused, with nothing changed, for a pattern too many."""
        is_new = pattern not in self.topics
        self.topics.add(pattern, subscriber)
        if is_new:
            _changed(pattern, True, out)

    def remove(self, pattern: str, subscriber: Subscriber, out: Outcome) -> None:
        """`subscriber` gets nothing under `pattern` any more."""
        self.topics.remove(pattern, subscriber)
        self._matched = ()
        if pattern not in self.topics:
            _changed(pattern, False, out)

    # Messages

    def look_up(self, name: str, out: Outcome) -> None:
        """Match the topic `name` of a message that a COMMIT sends later: then its match is remembered."""
        _match(self.topics, name, out)
        _match(self.interest, name, out)

    def publish(self, message: Message, out: Outcome) -> None:
        """A client of this node sends `message`."""
        name = message.envelope.destination
        self._deliver(message, out)
        peers = _match(self.interest, name, out)
        if message.envelope.retain:
            self.retained.put(message)
            peers = self.retained.audience(peers, name)
        for peer in peers:
            run = out.peer_topics.get(peer)
            if run is None:
                out.peer_topics[peer] = [message]
            else:
                run.append(message)

    def publish_run(self, sent: SentRun, out: Outcome, *, is_alike: bool = True) -> None:
        """As `publish`, for messages to one topic that leave its last value alone. `is_alike`: see the Outcome."""
        name = sent.envelope.destination
        subscribers = _match(self.topics, name, out)
        if subscribers:
            out.publish_topic_run(subscribers, sent, is_alike=is_alike)
            if self.selecting:
                out.selector_cost += self._cost_of(subscribers, sent.envelope)
        for peer in _match(self.interest, name, out):
            out.peer_topics.setdefault(peer, []).extend(sent.messages)

    def _deliver(self, message: Message, out: Outcome) -> None:
        subscribers = _match(self.topics, message.envelope.destination, out)
        if subscribers:
            out.publish_topic(subscribers, message)
            if self.selecting:
                out.selector_cost += self._cost_of(subscribers, message.envelope)

    def _cost_of(self, subscribers: tuple[Subscriber, ...], envelope: Envelope) -> int:
        """What it costs to evaluate the selectors of all of these for a message with this envelope."""
        # Messages to one topic mostly come one after the other, and its subscribers are one object until they change.
        if subscribers is not self._matched:
            self._matched = subscribers
            self._matched_costs = SelectorCosts([one.selector for one in subscribers])
        return self._matched_costs.of(len(envelope.headers))

    # Peers

    def accept_all(self, messages: list[Message], out: Outcome) -> None:
        """Topic messages of one other node, in its order; what came before or is late is dropped."""
        for message in self.sequence_filter.unseen(messages):
            self.accept(message, out)

    def accept(self, message: Message, out: Outcome) -> None:
        """A peer forwards a topic message."""
        if not message.envelope.retain or self.retained.hear(message):
            self._deliver(message, out)

    def accept_value(self, message: Message, peer: str, out: Outcome) -> None:
        """`peer` sends what it knows of the last value of a topic; subscribers that missed it get it."""
        if self.retained.learn(message, peer) and message.envelope.retain is Retain.SET:
            subscribers = _match(self.topics, message.envelope.destination, out)
            if subscribers:
                out.publish_value(subscribers, message)
                if self.selecting:
                    out.selector_cost += self._cost_of(subscribers, message.envelope)


def _match(table: PatternTable[T], name: str, out: Outcome) -> tuple[T, ...]:
    """The values that want the topic `name`; `out` counts what it costs to find them."""
    found = table.match(name)
    if table.cost:
        out.cost += table.cost
        table.cost = 0
    return found


def _changed(pattern: str, wanted: bool, out: Outcome) -> None:
    """Record it for the peers. What is added and removed in one decision is no change."""
    if out.interest_changes.pop(pattern, None) is None:
        out.interest_changes[pattern] = wanted
