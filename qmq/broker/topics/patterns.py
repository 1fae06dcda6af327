"""Which values (subscriptions, peers) want a topic: exact names, prefixes and dotted wildcards.

The cost of a match does not grow with the number of subscriptions: exact names and prefixes are dictionary
look-ups, one per distinct prefix length; dotted wildcards walk a trie by words. A table can bound the trie: its nodes,
and how many of them the match of any name can visit (`WordNode.visits`). A pattern that breaks a bound is refused.

Matches are remembered until the name itself changes or a pattern that matches it.

A value added under several patterns (a peer) is returned once, however many of them match.
"""

from collections.abc import Iterator
from typing import Generic, NoReturn, TypeVar

from qmq.broker.messages.destination import is_pattern
from qmq.broker.topics.word_trie import NODE_COST, WordNode, ascend, descend, walk
from qmq.errors import Refused

T = TypeVar("T")

REMEMBERED_MAX = 16_384
"""Topics whose match is remembered; at the bound all are forgotten and found again."""

REMEMBERED_VALUES_MAX = 1 << 20
"""Values in all remembered matches together; likewise."""

CHANGES_MAX = 16
"""Changes of patterns that remembered matches may be older than; beyond it the oldest are forgotten."""

VISITS_MAX = 5_000
"""Nodes of the trie that the match of one name may visit, some 3 ms."""


class _Several(Generic[T]):
    """Values of one exact name, in the order in which they came."""

    __slots__ = ("values",)

    def __init__(self, first: T, second: T) -> None:
        self.values: dict[T, None] = {first: None, second: None}


class PatternTable(Generic[T]):
    """Pattern → values; `match` gives the values for one concrete topic: exact names, then prefixes, then wildcards.

    As a collection it is the patterns that have a value. `visits_max` and `words_max` bound its wildcards, 0 for no
    bound.
    """

    def __init__(self, visits_max: int = 0, words_max: int = 0) -> None:
        self.visits_max = visits_max
        self.words_max = words_max
        # A million subscribers to a topic each must not cost a dictionary each: a lone value stands by itself.
        self._exact: dict[str, T | _Several[T]] = {}
        self._prefixes: dict[str, dict[T, None]] = {}
        self._prefix_lengths: dict[int, int] = {}
        self._root: WordNode[T] = WordNode()
        self.cost = 0
        """What matches have cost that were not remembered, in the unit of `Outcome.cost`, since it was set to 0."""
        # Patterns that are no exact names -> how many values they have.
        self._counts: dict[str, int] = {}
        self._remembered: dict[str, tuple[T, ...]] = {}
        self._remembered_values = 0
        # Patterns that came or went, and what was remembered before each: it holds for names that they do not match.
        self._changes: list[tuple[Pattern, dict[str, tuple[T, ...]]]] = []

    @property
    def words(self) -> int:
        """Words of all dotted wildcards; those that begin alike share theirs."""
        return self._root.size - 1

    @property
    def visits(self) -> int:
        """How many nodes of the trie the match of one name can visit."""
        return self._root.visits

    def __len__(self) -> int:
        return len(self._exact) + len(self._counts)

    def __iter__(self) -> Iterator[str]:
        yield from self._exact
        yield from self._counts

    def __contains__(self, pattern: object) -> bool:
        return pattern in self._exact or pattern in self._counts

    def count(self, pattern: str) -> int:
        """How many values `pattern` has."""
        held = self._exact.get(pattern)
        if held is None:
            return self._counts.get(pattern, 0)
        return len(held.values) if isinstance(held, _Several) else 1

    def add(self, pattern: str, value: T) -> None:
        """From now on `value` matches `pattern`. Adding it again changes nothing.

        Raises Refused, with nothing changed, when the pattern is one too many.
        """
        if not is_pattern(pattern):
            held = self._exact.get(pattern)
            if held is None:
                self._exact[pattern] = value
            elif isinstance(held, _Several):
                held.values[value] = None
            elif held != value:
                self._exact[pattern] = _Several(held, value)
            self._forget(pattern)
            return
        prefix = _prefix_of(pattern)
        if prefix is None:
            values = self._values_of(pattern)
        elif prefix in self._prefixes:
            values = self._prefixes[prefix]
        else:
            values = self._prefixes[prefix] = {}
            self._prefix_lengths[len(prefix)] = self._prefix_lengths.get(len(prefix), 0) + 1
        if value not in values:
            values[value] = None
            self._counts[pattern] = len(values)
            self._changed(pattern)

    def _values_of(self, pattern: str) -> dict[T, None]:
        """The values of a dotted wildcard; its nodes are made when they are missing. Raises Refused."""
        words = _words(pattern)
        node = descend(self._root, words)
        if self.words_max and self.words > self.words_max:
            self._refuse(words, f"The node holds patterns of at most {self.words_max} words in all.")
        if self.visits_max and self._root.visits > self.visits_max:
            self._refuse(words, "This pattern and those that the node has could match one topic in too many ways.")
        if node.values is None:
            node.values = {}
        return node.values

    def _refuse(self, words: list[str], why: str) -> NoReturn:
        ascend(self._root, words)
        raise Refused("too-many-patterns", why)

    def remove(self, pattern: str, value: T) -> None:
        """Undo `add`; unknown pairs are ignored."""
        if not is_pattern(pattern):
            held = self._exact.get(pattern)
            if isinstance(held, _Several):
                held.values.pop(value, None)
                if not held.values:
                    del self._exact[pattern]
            elif held is not None and held == value:
                del self._exact[pattern]
            self._forget(pattern)
            return
        prefix = _prefix_of(pattern)
        if prefix is None:
            is_known = self._remove_words(_words(pattern), value)
        else:
            is_known = self._remove_prefix(prefix, value)
        if is_known:
            self._changed(pattern)
            self._counts[pattern] -= 1
            if not self._counts[pattern]:
                del self._counts[pattern]

    def _remove_words(self, words: list[str], value: T) -> bool:
        node: WordNode[T] | None = self._root
        for word in words:
            if node is not None:
                node = node.children.get(word)
        if node is None or node.values is None or value not in node.values:
            return False
        del node.values[value]
        if not node.values:
            node.values = None
            ascend(self._root, words)
        return True

    def _remove_prefix(self, prefix: str, value: T) -> bool:
        values = self._prefixes.get(prefix)
        if values is None or value not in values:
            return False
        del values[value]
        if not values:
            del self._prefixes[prefix]
            left = self._prefix_lengths[len(prefix)] - 1
            if left:
                self._prefix_lengths[len(prefix)] = left
            else:
                del self._prefix_lengths[len(prefix)]
        return True

    def match(self, name: str) -> tuple[T, ...]:
        """The values that want the topic `name`; the same tuple object while nothing changes."""
        found = self._remembered.get(name)
        if found is None:
            found = self._recalled(name) if self._changes else None
            if found is None:
                found = self._find(name)
                self._remembered_values += len(found)
            if len(self._remembered) >= REMEMBERED_MAX or self._remembered_values > REMEMBERED_VALUES_MAX:
                self._remembered.clear()
                self._changes.clear()
                self._remembered_values = len(found)
            self._remembered[name] = found
        return found

    def _changed(self, pattern: str) -> None:
        """What is remembered of the names that `pattern` matches does not hold any more."""
        if self._remembered or self._changes:
            self._changes.append((Pattern(pattern), self._remembered))
            self._remembered = {}
            if len(self._changes) > CHANGES_MAX:
                _, oldest = self._changes.pop(0)
                self._remembered_values -= sum(map(len, oldest.values()))

    def _recalled(self, name: str) -> tuple[T, ...] | None:
        """What was remembered of `name` before patterns changed that do not match it; None when that is nothing."""
        for pattern, before in reversed(self._changes):
            self.cost += pattern.visits
            if pattern.matches(name):
                return None
            found = before.pop(name, None)
            if found is not None:
                return found
        return None

    def _forget(self, name: str) -> None:
        """The name itself has other values now."""
        self._remembered.pop(name, None)
        for _, before in self._changes:
            before.pop(name, None)

    def _find(self, name: str) -> tuple[T, ...]:
        found: dict[T, None] = {}
        held = self._exact.get(name)
        if isinstance(held, _Several):
            found.update(held.values)
        elif held is not None:
            found[held] = None
        for length in self._prefix_lengths:
            if length <= len(name):
                found.update(self._prefixes.get(name[:length], {}))
        if self._root.children:
            self.cost += NODE_COST * walk(self._root, _words(name), found)
        self.cost += len(self._prefix_lengths) + len(found)
        return tuple(found)


class Pattern:
    """One pattern, to be asked about many names. Every name that it matches begins with `literal`.

    `visits` bounds what one answer costs, in nodes that are visited.
    """

    __slots__ = ("_prefix", "_root", "literal", "visits")

    def __init__(self, pattern: str) -> None:
        self._prefix = _prefix_of(pattern)
        self._root: WordNode[bool] = WordNode()
        self.visits = 1
        if self._prefix is not None:
            self.literal = self._prefix
            return
        descend(self._root, _words(pattern)).values = {True: None}
        self.visits = self._root.visits
        beginning, wildcard = min((pattern.partition(sign)[:2] for sign in "*#"), key=lambda parts: len(parts[0]))
        # `a.#` matches `a` too.
        self.literal = beginning.removesuffix(".") if wildcard == "#" else beginning

    def matches(self, name: str) -> bool:
        """Whether the topic `name` is one of those that the pattern stands for."""
        if self._prefix is not None:
            return name.startswith(self._prefix)
        found: dict[bool, None] = {}
        walk(self._root, _words(name), found)
        return bool(found)


def _prefix_of(pattern: str) -> str | None:
    """The prefix that `pattern` stands for, or None for a dotted wildcard (`*` as a word after a dot is one)."""
    before = pattern[:-1]
    if not pattern.endswith("*") or is_pattern(before) or before.endswith("."):
        return None
    return before


def _words(name: str) -> list[str]:
    """The dotted words after the kind: `/topic/a.b` has a and b."""
    return name[name.find("/", 1) + 1 :].split(".")
