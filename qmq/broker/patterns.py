"""Which values (subscriptions, peers) want a topic: exact names, prefixes and dotted wildcards.

The cost of a match does not grow with the number of subscriptions: exact names and prefixes are dictionary
look-ups, one per distinct prefix length; dotted wildcards walk a trie by words. Matches are remembered until any
pattern or the name itself changes.

A value added under several patterns (a peer) is returned once, however many of them match.
"""

from typing import Generic, TypeVar

from qmq.broker.destination import is_pattern

T = TypeVar("T")

REMEMBERED_MAX = 16_384
"""Topics whose match is remembered; at the bound all are forgotten and found anew."""


class _Node(Generic[T]):
    """One word of the trie of dotted wildcards."""

    __slots__ = ("children", "takes_any", "values")

    def __init__(self, takes_any: bool = False) -> None:
        self.takes_any = takes_any
        """Reached by `#`: any further word leads here again."""
        self.children: dict[str, _Node[T]] = {}
        self.values: dict[T, None] = {}


class PatternTable(Generic[T]):
    """Pattern → values; `match` gives the values for one concrete topic: exact names, then prefixes, then wildcards."""

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
                child = node.children.get(word)
                if child is None:
                    child = node.children[word] = _Node(takes_any=word == "#")
                node = child
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
            _walk(self._root, _words(name), found)
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


def _walk(root: _Node[T], words: list[str], found: dict[T, None]) -> None:
    """Collect what matches `words` below `root`.

    Goes word by word with all nodes reached so far, so no pattern costs more than nodes times words: trying every
    length for every `#` instead, a subscriber could send patterns whose match takes years.
    """
    reached: dict[_Node[T], None] = {}
    _reach(root, reached)
    for word in words:
        following: dict[_Node[T], None] = {}
        for node in reached:
            if node.takes_any:
                _reach(node, following)
            child = node.children.get(word)
            if child is not None:
                _reach(child, following)
            child = node.children.get("*")
            if child is not None:
                _reach(child, following)
        reached = following
    for node in reached:
        found.update(node.values)


def _reach(node: _Node[T], reached: dict[_Node[T], None]) -> None:
    """Add `node`, and what follows it when each `#` takes no word at all."""
    following: _Node[T] | None = node
    while following is not None and following not in reached:
        reached[following] = None
        following = following.children.get("#")


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
