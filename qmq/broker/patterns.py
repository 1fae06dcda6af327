"""Which values (subscriptions, peers) want a topic: exact names, prefixes and dotted wildcards.

The cost of a match does not grow with the number of subscriptions: exact names and prefixes are dictionary
look-ups, one per distinct prefix length; dotted wildcards walk a trie by words. Matches are remembered until any
pattern or the name itself changes.

A value that matches through several patterns is returned once per pattern added under a different key; callers that
want it once (peers) pass the same value under many patterns and get it de-duplicated here.
"""

from typing import Generic, TypeVar

from qmq.broker.destination import is_pattern

T = TypeVar("T")

REMEMBERED_MAX = 16_384
"""Topics whose match is remembered; at the bound all are forgotten and found anew."""


class _Node(Generic[T]):
    """One word of the trie of dotted wildcards."""

    __slots__ = ("children", "values")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.values: dict[T, None] = {}


class PatternTable(Generic[T]):
    """Pattern → values; `match` gives the values for one concrete topic, in the order they were added."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[T, None]] = {}
        self._prefixes: dict[str, dict[T, None]] = {}
        self._prefix_lengths: dict[int, int] = {}
        self._root: _Node[T] = _Node()
        self._remembered: dict[str, tuple[T, ...]] = {}

    def add(self, pattern: str, value: T) -> None:
        """From now on `value` matches `pattern`. Adding it again changes nothing."""
        if not is_pattern(pattern):
            self._exact.setdefault(pattern, {})[value] = None
            self._remembered.pop(pattern, None)
            return
        self._remembered.clear()
        prefix = _prefix_of(pattern)
        if prefix is None:
            node = self._root
            for word in _words(pattern):
                node = node.children.setdefault(word, _Node())
            node.values[value] = None
            return
        values = self._prefixes.get(prefix)
        if values is None:
            values = self._prefixes[prefix] = {}
            self._prefix_lengths[len(prefix)] = self._prefix_lengths.get(len(prefix), 0) + 1
        values[value] = None

    def remove(self, pattern: str, value: T) -> None:
        """Undo `add`; unknown pairs are ignored."""
        if not is_pattern(pattern):
            values = self._exact.get(pattern)
            if values is not None:
                values.pop(value, None)
                if not values:
                    del self._exact[pattern]
            self._remembered.pop(pattern, None)
            return
        self._remembered.clear()
        prefix = _prefix_of(pattern)
        if prefix is None:
            _remove_words(self._root, _words(pattern), 0, value)
            return
        values = self._prefixes.get(prefix)
        if values is None:
            return
        values.pop(value, None)
        if not values:
            del self._prefixes[prefix]
            left = self._prefix_lengths[len(prefix)] - 1
            if left:
                self._prefix_lengths[len(prefix)] = left
            else:
                del self._prefix_lengths[len(prefix)]

    def match(self, name: str) -> tuple[T, ...]:
        """The values that want the topic `name`; the same tuple object while nothing changes."""
        found = self._remembered.get(name)
        if found is None:
            found = self._find(name)
            if len(self._remembered) >= REMEMBERED_MAX:
                self._remembered.clear()
            self._remembered[name] = found
        return found

    def _find(self, name: str) -> tuple[T, ...]:
        found: dict[T, None] = dict(self._exact.get(name, {}))
        for length in self._prefix_lengths:
            if length <= len(name):
                found.update(self._prefixes.get(name[:length], {}))
        if self._root.children:
            _walk(self._root, _words(name), 0, found, set())
        return tuple(found)


def _prefix_of(pattern: str) -> str | None:
    """The prefix that `pattern` stands for, or None for a dotted wildcard (`*` as a word after a dot is one)."""
    before = pattern[:-1]
    if not pattern.endswith("*") or is_pattern(before) or before.endswith("."):
        return None
    return before


def _words(name: str) -> list[str]:
    """The dotted words after the kind: `/topic/a.b` has a and b."""
    return name[name.find("/", 1) + 1 :].split(".")


def _walk(node: _Node[T], words: list[str], index: int, found: dict[T, None], seen: set[tuple[int, int]]) -> None:
    """Collect what matches `words[index:]` below `node`.

    `seen` keeps patterns with many `#` from costing more than nodes times words: without it a subscriber could send
    one whose match takes years.
    """
    if (id(node), index) in seen:
        return
    seen.add((id(node), index))
    rest = node.children.get("#")
    if rest is not None:
        for skip in range(index, len(words) + 1):
            _walk(rest, words, skip, found, seen)
    if index == len(words):
        found.update(node.values)
        return
    for word in (words[index], "*"):
        child = node.children.get(word)
        if child is not None:
            _walk(child, words, index + 1, found, seen)


def _remove_words(node: _Node[T], words: list[str], index: int, value: T) -> None:
    if index == len(words):
        node.values.pop(value, None)
        return
    child = node.children.get(words[index])
    if child is None:
        return
    _remove_words(child, words, index + 1, value)
    if not child.values and not child.children:
        del node.children[words[index]]
