"""Which bindings of one exchange match a message: one class for each type of exchange, as in AMQP 0-9-1.

The cost of a match does not grow with the number of bindings that do not match: keys are dictionary look-ups, patterns
a trie by words, and arguments are indexed by header. Nothing here knows queues.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from qmq.broker.routing.binding import DIRECT, FANOUT, HEADERS, TOPIC, Binding
from qmq.broker.topics.word_trie import NODE_COST, WordNode, ascend, descend, walk
from qmq.model.routing_names import MATCH, WITH_X

REMEMBERED_MAX: Final = 16_384
"""Keys whose match a topic exchange remembers; at the bound all are forgotten and found again."""
REMEMBERED_VALUES_MAX: Final = 1 << 20
"""Bindings in all remembered matches together; likewise."""

COMPARED_COST: Final = 2
"""What looking at one binding of a headers exchange costs, in the unit of `Outcome.cost`, besides its arguments."""

NOT_COMPARED: Final = "x-"
"""Arguments that begin so are for the broker."""


Place = tuple[str, str | None]
"""A header and its value, None for any, which leads to bindings."""


class Matcher:
    """The bindings of one exchange. `compares_keys`: what matches depends on the routing key. `cost` is what the last
    match has cost, in the unit of `Outcome.cost`.
    """

    compares_keys = True

    def __init__(self) -> None:
        self.cost = 0

    def add(self, binding: Binding) -> None:
        """From now on `binding` counts."""
        raise NotImplementedError

    def remove(self, binding: Binding) -> None:
        """Undo `add`."""
        raise NotImplementedError

    def match(self, key: str, headers: Mapping[str, str], cost_max: int) -> tuple[Binding, ...]:
        """The bindings that match a message. If `cost` is more than `cost_max` after it, not all were compared."""
        raise NotImplementedError


class FanoutMatcher(Matcher):
    """All bindings match."""

    compares_keys = False

    def __init__(self) -> None:
        super().__init__()
        self._bindings: dict[Binding, None] = {}

    def add(self, binding: Binding) -> None:
        self._bindings[binding] = None

    def remove(self, binding: Binding) -> None:
        del self._bindings[binding]

    def match(self, key: str, headers: Mapping[str, str], cost_max: int) -> tuple[Binding, ...]:
        self.cost = len(self._bindings)
        return tuple(self._bindings)


class DirectMatcher(Matcher):
    """Bindings with the key of the message match."""

    def __init__(self) -> None:
        super().__init__()
        self._by_key: dict[str, dict[Binding, None]] = {}

    def add(self, binding: Binding) -> None:
        self._by_key.setdefault(binding.key, {})[binding] = None

    def remove(self, binding: Binding) -> None:
        discard(self._by_key, binding.key, binding)

    def match(self, key: str, headers: Mapping[str, str], cost_max: int) -> tuple[Binding, ...]:
        found = tuple(self._by_key.get(key, ()))
        self.cost = 1 + len(found)
        return found


class TopicMatcher(Matcher):
    """Keys are words with dots between. In the key of a binding `*` is any one word, `#` any number of words.

    As at RabbitMQ, an empty key has no word, and words may be empty: `a.` has two.
    """

    def __init__(self) -> None:
        super().__init__()
        self._root: WordNode[Binding] = WordNode()
        # Key → what matches it, and what finding that has cost: the cost of a message does not depend on others.
        self._remembered: dict[str, tuple[tuple[Binding, ...], int]] = {}
        self._remembered_values = 0

    @property
    def visits(self) -> int:
        """How many nodes of the trie the match of one key can visit."""
        return self._root.visits

    def add(self, binding: Binding) -> None:
        node = descend(self._root, _words(binding.key))
        if node.values is None:
            node.values = {}
        node.values[binding] = None
        self._remembered = {}

    def remove(self, binding: Binding) -> None:
        words = _words(binding.key)
        node = descend(self._root, words)
        assert node.values is not None
        del node.values[binding]
        if not node.values:
            node.values = None
            ascend(self._root, words)
        self._remembered = {}

    def match(self, key: str, headers: Mapping[str, str], cost_max: int) -> tuple[Binding, ...]:
        known = self._remembered.get(key)
        if known is None:
            matched: dict[Binding, None] = {}
            visited = walk(self._root, _words(key), matched)
            known = tuple(matched), NODE_COST * visited + len(matched)
            self._remembered_values = len(matched) + (self._remembered_values if self._remembered else 0)
            if len(self._remembered) >= REMEMBERED_MAX or self._remembered_values > REMEMBERED_VALUES_MAX:
                self._remembered = {}
                self._remembered_values = len(matched)
            self._remembered[key] = known
        found, self.cost = known
        return found


class HeadersMatcher(Matcher):
    """Bindings whose arguments the headers of the message have: all of them, or with `x-match` `any` one at least.

    Each binding is found by one of its arguments (all), which few others are found by, or by each of them (any).
    """

    compares_keys = False

    def __init__(self) -> None:
        super().__init__()
        self._by_header: dict[Place, dict[Binding, None]] = {}
        self._places: dict[Binding, list[Place]] = {}
        # Bindings that compare nothing, and so match all messages.
        self._always: dict[Binding, None] = {}

    def add(self, binding: Binding) -> None:
        places = _compared(binding)
        if _needs_all(binding):
            places = sorted(places, key=lambda at: len(self._by_header.get(at, ())))[:1]
            if not places:
                self._always[binding] = None
        self._places[binding] = places
        for at in places:
            self._by_header.setdefault(at, {})[binding] = None

    def remove(self, binding: Binding) -> None:
        for at in self._places.pop(binding):
            bindings = self._by_header[at]
            del bindings[binding]
            if not bindings:
                del self._by_header[at]
        self._always.pop(binding, None)

    def match(self, key: str, headers: Mapping[str, str], cost_max: int) -> tuple[Binding, ...]:
        found = dict(self._always)
        cost = len(found) + len(headers)
        for name, value in headers.items():
            for at in ((name, value), (name, None)):
                for binding in self._by_header.get(at, ()):
                    cost += COMPARED_COST
                    if not _needs_all(binding):
                        found[binding] = None
                    else:
                        cost += len(binding.arguments)
                        if _has_all(binding, headers):
                            found[binding] = None
                    if cost > cost_max:
                        self.cost = cost
                        return tuple(found)
        self.cost = cost
        return tuple(found)


def matcher_of(type: str) -> Matcher:
    """An exchange of this type, without bindings."""
    if type == DIRECT:
        return DirectMatcher()
    if type == TOPIC:
        return TopicMatcher()
    if type == HEADERS:
        return HeadersMatcher()
    assert type == FANOUT, type
    return FanoutMatcher()


def match_any(
    matcher: Matcher, key: str, headers: Mapping[str, str], further_keys: Sequence[str], cost_max: int
) -> tuple[tuple[Binding, ...], int]:
    """The bindings that match a message with several routing keys, each once, and what that has cost. If this is more
    than `cost_max`, not all were compared."""
    found = matcher.match(key, headers, cost_max)
    cost = matcher.cost
    if not further_keys or not matcher.compares_keys:
        return found, cost
    matched = dict.fromkeys(found)
    for one in further_keys:
        if cost > cost_max:
            break
        matched.update(dict.fromkeys(matcher.match(one, headers, cost_max - cost)))
        cost += matcher.cost
    return tuple(matched), cost


def _words(key: str) -> list[str]:
    return key.split(".") if key else []


def discard(bindings_of: dict[str, dict[Binding, None]], at: str, binding: Binding) -> None:
    """Remove a binding from those at `at`, and these when they are empty."""
    bindings = bindings_of[at]
    del bindings[binding]
    if not bindings:
        del bindings_of[at]


def _needs_all(binding: Binding) -> bool:
    return (binding.arguments.get(MATCH) or "all").startswith("all")


def _compared(binding: Binding) -> list[Place]:
    return [one for one in binding.arguments.items() if _is_compared(binding, one[0])]


def _is_compared(binding: Binding, name: str) -> bool:
    if (binding.arguments.get(MATCH) or "").endswith(WITH_X):
        return name != MATCH
    return not name.startswith(NOT_COMPARED)


def _has_all(binding: Binding, headers: Mapping[str, str]) -> bool:
    for name, value in binding.arguments.items():
        if not _is_compared(binding, name):
            continue
        has = headers.get(name)
        if has is None or (value is not None and has != value):
            return False
    return True
