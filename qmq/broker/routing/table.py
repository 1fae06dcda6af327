"""The routing table of a node: the exchanges and bindings that count here, and the queues that a message goes to.

A message goes to a queue once at most, however many bindings match. Names of queues are returned in order, so that all
nodes and all lives of a node copy alike.

Surprising: two sides of a cut may declare a binding and delete its exchange. Such a binding stays in the table, without
effect, until the exchange is declared again; `without_effect` names it. So the order in which changes arrive has no
effect either.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from qmq.broker.messages.destination import DestinationKind, kind_of
from qmq.broker.routing.binding import PREDEFINED, TOPIC, Binding, Exchange
from qmq.broker.routing.matchers import Matcher, TopicMatcher, discard, matcher_of
from qmq.broker.topics.patterns import VISITS_MAX, Pattern, PatternTable
from qmq.errors import Refused

Bindings = dict[Binding, None]

NO_QUEUES: Final[tuple[str, ...]] = ()
NO_BINDINGS: Final[Mapping[Binding, None]] = {}


class RoutingTable:
    """Follows the definitions of one node."""

    def __init__(self) -> None:
        self.exchanges: dict[str, Exchange] = {}
        self._names: set[str] = set()
        self._matchers: dict[str, Matcher] = {}
        self._of_exchange: dict[str, Bindings] = {}
        self._topics: PatternTable[Binding] = PatternTable()
        self.has_topics = False
        """Whether any binding has a topic as its source: nearly all SENDs ask only this."""
        self._fanouts: dict[str, Bindings] = {}
        for exchange in PREDEFINED:
            self.put_exchange(exchange)

    # Changes

    def put_exchange(self, exchange: Exchange) -> None:
        """Declare an exchange, or change one. Bindings that have waited for it count from now on."""
        known = self.exchanges.get(exchange.name)
        self.exchanges[exchange.name] = exchange
        if known is not None and known.type == exchange.type:
            return
        matcher = self._matchers[exchange.name] = matcher_of(exchange.type)
        for binding in self._of_exchange.get(exchange.name, ()):
            matcher.add(binding)

    def remove_exchange(self, name: str) -> None:
        """Delete an exchange. Its bindings have no effect from now on."""
        if self.exchanges.pop(name, None) is not None:
            del self._matchers[name]

    def add(self, binding: Binding) -> None:
        """From now on `binding` copies."""
        self._names.add(binding.name)
        if binding.exchange:
            self._of_exchange.setdefault(binding.exchange, {})[binding] = None
            matcher = self._matchers.get(binding.exchange)
            if matcher is not None:
                matcher.add(binding)
        elif kind_of(binding.source) is DestinationKind.TOPIC:
            self._topics.add(binding.source, binding)
            self.has_topics = True
        else:
            self._fanouts.setdefault(binding.source, {})[binding] = None

    def remove(self, binding: Binding) -> None:
        """Undo `add`."""
        self._names.discard(binding.name)
        if binding.exchange:
            discard(self._of_exchange, binding.exchange, binding)
            matcher = self._matchers.get(binding.exchange)
            if matcher is not None:
                matcher.remove(binding)
        elif kind_of(binding.source) is DestinationKind.TOPIC:
            self._topics.remove(binding.source, binding)
            self.has_topics = len(self._topics) > 0
        else:
            discard(self._fanouts, binding.source, binding)

    def check_cost(self, binding: Binding) -> None:
        """Refuse a pattern with which the match of one name could take too long. Nothing changes."""
        if binding.exchange:
            exchange = self.exchanges.get(binding.exchange)
            if exchange is None or exchange.type != TOPIC:
                return
            alone = TopicMatcher()
            alone.add(binding)
            matcher = self._matchers[binding.exchange]
            assert isinstance(matcher, TopicMatcher)
            visits = alone.visits + matcher.visits
        else:
            visits = Pattern(binding.source).visits + self._topics.visits
        if visits > VISITS_MAX:
            raise Refused("too-many-patterns", "This pattern and the others could match one name in too many ways.")

    # Questions

    def queues_of_topic(self, topic: str) -> tuple[str, ...]:
        """The queues that get a copy of a message to `topic`."""
        found = self._topics.match(topic) if self.has_topics else ()
        return _queues(found) if found else NO_QUEUES

    def queues_of_fanout(self, fanout: str) -> tuple[str, ...]:
        """The queues that get a copy of a message to `fanout`."""
        found = self._fanouts.get(fanout)
        return _queues(found) if found else NO_QUEUES

    def queues_of_exchange(self, name: str, key: str, headers: Mapping[str, str]) -> tuple[str, ...]:
        """The queues that a message to the exchange goes to; none: it is unroutable.

        What no binding matches goes to the alternate exchange, and from there to the next one.
        """
        asked: set[str] = set()
        while name and name not in asked:
            matcher = self._matchers.get(name)
            if matcher is None:
                break
            found = matcher.match(key, headers)
            if found:
                return _queues(found)
            asked.add(name)
            name = self.exchanges[name].alternate
        return NO_QUEUES

    def has_binding(self, name: str) -> bool:
        """Whether there is a binding of this name (`binding_name`)."""
        return name in self._names

    def bindings_of(self, exchange: str) -> Iterable[Binding]:
        """The bindings of an exchange, also of one that does not exist."""
        return self._of_exchange.get(exchange, NO_BINDINGS)

    def without_effect(self) -> list[str]:
        """What has no effect: bindings whose exchange is missing, and alternates that are missing."""
        found = [
            f"binding {binding.name}"
            for exchange, bindings in self._of_exchange.items()
            if exchange not in self.exchanges
            for binding in bindings
        ]
        for exchange in self.exchanges.values():
            if exchange.alternate and exchange.alternate not in self.exchanges:
                found.append(f"alternate {exchange.alternate} of exchange {exchange.name}")
        return sorted(found)


def alternate_cycle(exchanges: Mapping[str, Exchange], name: str) -> list[str]:
    """The way along alternates from `name` back to an exchange on it; empty if there is none."""
    path: list[str] = []
    while name:
        path.append(name)
        if name in path[:-1]:
            return path
        exchange = exchanges.get(name)
        name = "" if exchange is None else exchange.alternate
    return []


def _queues(bindings: Iterable[Binding]) -> tuple[str, ...]:
    return tuple(sorted({binding.queue for binding in bindings}))
