"""The routing table of a node: the exchanges and bindings that count here, and the queues that a message goes to.

A message goes to a queue once at most, however many bindings match. Names of queues are returned in order, so that all
nodes and all lives of a node copy alike. Exchanges that are bound to exchanges may form a cycle: each routes a message
once.

Surprising: two sides of a cut may declare a binding and delete an exchange of it. Such a binding stays in the table,
without effect, until the exchange is declared again; `without_effect` names it. So the order in which changes
arrive has no effect either.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from qmq.broker.messages.destination import DestinationKind, kind_of
from qmq.broker.routing.binding import PREDEFINED, TOPIC, Binding, Exchange
from qmq.broker.routing.matchers import Matcher, TopicMatcher, discard, match_any, matcher_of
from qmq.broker.topics.patterns import VISITS_MAX, PatternTable
from qmq.broker.topics.word_trie import NODE_COST
from qmq.errors import Refused

Bindings = dict[Binding, None]

ALTERNATES_MAX: Final = 16
"""To which one message goes."""

ROUTE_COST_MAX: Final = NODE_COST * VISITS_MAX
"""What routing one SEND may cost, by all its keys and headers and in all exchanges, some 3 ms."""

NO_MAX: Final = 1 << 62

NO_QUEUES: Final[tuple[str, ...]] = ()
NO_BINDINGS: Final[Mapping[Binding, None]] = {}


class RoutingTable:
    """Follows the definitions of one node. `alternate_by_policy`: of an exchange that names none itself."""

    def __init__(self, alternate_by_policy: Callable[[str], str] = lambda name: "") -> None:
        self._alternate_by_policy = alternate_by_policy
        self.exchanges: dict[str, Exchange] = {}
        self.cost = 0
        """What questions have cost since it was set to 0, in the unit of `Outcome.cost`."""
        self._names: set[str] = set()
        self._matchers: dict[str, Matcher] = {}
        self._of_exchange: dict[str, Bindings] = {}
        self._into_exchange: dict[str, Bindings] = {}
        self._into_queue: dict[str, Bindings] = {}
        self._to_exchanges: dict[str, Bindings] = {}
        """By the exchange that is the source: its bindings to other exchanges."""
        self._topics: PatternTable[Binding] = PatternTable()
        self.has_topics = False
        """Whether any binding has a topic as its source: nearly all SENDs ask only this."""
        self._fanouts: dict[str, Bindings] = {}
        for exchange in PREDEFINED:
            self.put_exchange(exchange)

    # Changes

    def put_exchange(self, exchange: Exchange) -> None:
        """Declare an exchange, or change one. Bindings from and to it that have waited for it count from now on."""
        known = self.exchanges.get(exchange.name)
        self.exchanges[exchange.name] = exchange
        if known is not None and known.type == exchange.type:
            return
        matcher = self._matchers[exchange.name] = matcher_of(exchange.type)
        for binding in self._of_exchange.get(exchange.name, ()):
            if self.is_effective(binding):
                matcher.add(binding)
        if known is None:
            for binding in self._into_exchange.get(exchange.name, ()):
                if binding.exchange in self._matchers and binding.exchange != exchange.name:
                    self._matchers[binding.exchange].add(binding)

    def remove_exchange(self, name: str) -> None:
        """Delete an exchange. Bindings from and to it have no effect from now on."""
        if self.exchanges.pop(name, None) is None:
            return
        del self._matchers[name]
        for binding in self._into_exchange.get(name, ()):
            if binding.exchange in self._matchers:
                self._matchers[binding.exchange].remove(binding)

    def add(self, binding: Binding) -> None:
        """From now on `binding` copies."""
        self._names.add(binding.name)
        if binding.queue:
            self._into_queue.setdefault(binding.queue, {})[binding] = None
        if binding.exchange:
            self._of_exchange.setdefault(binding.exchange, {})[binding] = None
            if binding.target_exchange:
                self._to_exchanges.setdefault(binding.exchange, {})[binding] = None
                self._into_exchange.setdefault(binding.target_exchange, {})[binding] = None
            if self.is_effective(binding):
                self._matchers[binding.exchange].add(binding)
        elif kind_of(binding.source) is DestinationKind.TOPIC:
            self._topics.add(binding.source, binding)
            self.has_topics = True
        else:
            self._fanouts.setdefault(binding.source, {})[binding] = None

    def remove(self, binding: Binding) -> None:
        """Undo `add`."""
        self._names.discard(binding.name)
        if binding.queue:
            discard(self._into_queue, binding.queue, binding)
        if binding.exchange:
            discard(self._of_exchange, binding.exchange, binding)
            if binding.target_exchange:
                discard(self._to_exchanges, binding.exchange, binding)
                discard(self._into_exchange, binding.target_exchange, binding)
            if self.is_effective(binding):
                self._matchers[binding.exchange].remove(binding)
        elif kind_of(binding.source) is DestinationKind.TOPIC:
            self._topics.remove(binding.source, binding)
            self.has_topics = len(self._topics) > 0
        else:
            discard(self._fanouts, binding.source, binding)

    def check_cost(self, bindings: Iterable[Binding], exchanges: Mapping[str, Exchange]) -> None:
        """Refuse new bindings with which the match of one name could take too long, when these are the exchanges.
        Nothing changes."""
        topics: PatternTable[Binding] = PatternTable()
        matchers: dict[str, TopicMatcher] = {}
        joins: dict[str, list[str]] = {}
        for binding in bindings:
            if binding.name in self._names:
                continue
            exchange = exchanges.get(binding.exchange)
            if not binding.exchange:
                topics.add(binding.source, binding)
            elif exchange is not None and exchange.type == TOPIC:
                matchers.setdefault(binding.exchange, TopicMatcher()).add(binding)
            if binding.target_exchange:
                joins.setdefault(binding.exchange, []).append(binding.target_exchange)
                joins.setdefault(binding.target_exchange, []).append(binding.exchange)
        counted: set[str] = set()
        visits = [topics.visits + self._topics.visits if topics else 0]
        visits += [self._visits_around(name, matchers, joins, counted) for name in {**matchers, **joins}]
        if max(visits) > VISITS_MAX:
            raise Refused("too-many-patterns", "This pattern and the others could match one name in too many ways.")

    def _visits_around(
        self, name: str, matchers: Mapping[str, TopicMatcher], joins: Mapping[str, list[str]], counted: set[str]
    ) -> int:
        """What a message can visit in all exchanges that bindings join with `name`, whichever it is sent to: nodes of
        tries, and the exchanges themselves. With new matchers and joins besides those of the table. Counted up to the
        bound, and each exchange once."""
        waiting = [name]
        visits = 0
        while waiting and visits <= VISITS_MAX:
            name = waiting.pop()
            if name in counted:
                continue
            counted.add(name)
            known, new = self._matchers.get(name), matchers.get(name)
            visits += known.visits if isinstance(known, TopicMatcher) else 1
            visits += 0 if new is None else new.visits
            waiting += joins.get(name, ())
            waiting += [one.target_exchange for one in self._to_exchanges.get(name, NO_BINDINGS)]
            waiting += [one.exchange for one in self._into_exchange.get(name, NO_BINDINGS)]
        return visits

    # Questions

    def queues_of_topic(self, topic: str) -> tuple[str, ...]:
        """The queues that get a copy of a message to `topic`."""
        found = self._topics.match(topic) if self.has_topics else ()
        self.cost += self._topics.cost
        self._topics.cost = 0
        return _queues(found) if found else NO_QUEUES

    def queues_of_fanout(self, fanout: str) -> tuple[str, ...]:
        """The queues that get a copy of a message to `fanout`."""
        found = self._fanouts.get(fanout)
        self.cost += len(found or ())
        return _queues(found) if found else NO_QUEUES

    def queues_of_exchange(
        self,
        name: str,
        key: str,
        headers: Mapping[str, str],
        further_keys: Sequence[str] = (),
        cost_max: int = NO_MAX,
    ) -> tuple[str, ...]:
        """The queues that a message to the exchange goes to; none: it is unroutable.

        Each exchange that it reaches routes it once, with the same keys. What no binding of one matches goes to the
        alternate of that one, if it has not gone to ALTERNATES_MAX of them. Raises Refused if it costs more than
        `cost_max`.
        """
        left = cost_max
        asked = {name}
        waiting = [name]
        alternates_left = ALTERNATES_MAX
        queues: set[str] = set()
        while waiting:
            name = waiting.pop()
            matcher = self._matchers.get(name)
            if matcher is None:
                continue
            found, cost = match_any(matcher, key, headers, further_keys, left)
            self.cost += cost
            left -= cost
            if left < 0:
                raise Refused(
                    "too-many-patterns", "The routing keys and headers of this message match in too many ways."
                )
            if not found:
                alternate = self.alternate_of(name)
                if alternate and alternate not in asked and alternates_left:
                    alternates_left -= 1
                    asked.add(alternate)
                    waiting.append(alternate)
            elif name not in self._to_exchanges:
                if not waiting and not queues:
                    return _queues(found)
                queues.update([binding.queue for binding in found])
            else:
                for binding in found:
                    if binding.queue:
                        queues.add(binding.queue)
                    elif binding.target_exchange not in asked:
                        asked.add(binding.target_exchange)
                        waiting.append(binding.target_exchange)
        return tuple(sorted(queues)) if queues else NO_QUEUES

    def route(self, name: str, key: str, headers: Mapping[str, str]) -> tuple[tuple[str, ...], int]:
        """As `queues_of_exchange`, for a dead letter: none beyond ROUTE_COST_MAX. And what it has cost."""
        before = self.cost
        try:
            queues = self.queues_of_exchange(name, key, headers, cost_max=ROUTE_COST_MAX)
        except Refused:
            queues = NO_QUEUES
        return queues, self.cost - before

    def alternate_of(self, name: str) -> str:
        """The alternate of this exchange; "": it has none."""
        return self.exchanges[name].alternate or self._alternate_by_policy(name)

    def is_effective(self, binding: Binding) -> bool:
        """Whether its exchanges exist, so that it counts."""
        return (not binding.exchange or binding.exchange in self._matchers) and (
            not binding.target_exchange or binding.target_exchange in self._matchers
        )

    def has_binding(self, name: str) -> bool:
        """Whether there is a binding of this name (`binding_name`)."""
        return name in self._names

    def is_bound(self, queue: str) -> bool:
        """Whether a binding leads to `queue`."""
        return queue in self._into_queue

    def bindings_of(self, exchange: str) -> Iterable[Binding]:
        """The bindings whose source is this exchange, also if it does not exist."""
        return self._of_exchange.get(exchange, NO_BINDINGS)

    def bindings_to(self, queue: str) -> Iterable[Binding]:
        """The bindings whose target is this queue."""
        return self._into_queue.get(queue, NO_BINDINGS)

    def bindings_with(self, exchange: str) -> list[Binding]:
        """The bindings from this exchange, and those to it."""
        return list({**self._of_exchange.get(exchange, {}), **self._into_exchange.get(exchange, {})})

    def without_effect(self) -> list[str]:
        """What has no effect: bindings of which an exchange is missing, and alternates that are missing."""
        waiting = {
            binding.name
            for side in (self._of_exchange, self._into_exchange)
            for exchange, bindings in side.items()
            if exchange not in self.exchanges
            for binding in bindings
        }
        found = [f"binding {name}" for name in waiting]
        for exchange in self.exchanges.values():
            if exchange.alternate and exchange.alternate not in self.exchanges:
                found.append(f"alternate {exchange.alternate} of exchange {exchange.name}")
        return sorted(found)


def _queues(bindings: Iterable[Binding]) -> tuple[str, ...]:
    return tuple(sorted({binding.queue for binding in bindings}))
