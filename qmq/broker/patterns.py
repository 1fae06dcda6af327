"""Which values (subscriptions, peers) want a topic: exact names, prefixes and dotted wildcards.

The cost of a match does not grow with the number of subscriptions: exact names and prefixes are dictionary
look-ups, one per distinct prefix length; dotted wildcards walk a trie by words. Matches are remembered until any
pattern or the name itself changes.

A value added under several patterns (a peer) is returned once, however many of them match.
"""

from collections.abc import Iterator
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


class _Several(Generic[T]):
    """Values of one exact name, in the order in which they came."""

    __slots__ = ("values",)

    def __init__(self, first: T, second: T) -> None:
        self.values: dict[T, None] = {first: None, second: None}


class PatternTable(Generic[T]):
    """Pattern → values; `match` gives the values for one concrete topic: exact names, then prefixes, then wildcards.

    As a collection it is the patterns that have a value.
    """

    def __init__(self) -> None:
        # A million subscribers to a topic each must not cost a dictionary each: a lone value stands by itself.
        self._exact: dict[str, T | _Several[T]] = {}
        self._prefixes: dict[str, dict[T, None]] = {}
        self._prefix_lengths: dict[int, int] = {}
        self._root: _Node[T] = _Node()
        # Patterns that are no exact names -> how many values they have.
        self._counts: dict[str, int] = {}
        self._remembered: dict[str, tuple[T, ...]] = {}

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
        """From now on `value` matches `pattern`. Adding it again changes nothing."""
        if not is_pattern(pattern):
            held = self._exact.get(pattern)
            if held is None:
                self._exact[pattern] = value
            elif isinstance(held, _Several):
                held.values[value] = None
            elif held != value:
                self._exact[pattern] = _Several(held, value)
            self._remembered.pop(pattern, None)
            return
        self._remembered.clear()
        prefix = _prefix_of(pattern)
        if prefix is None:
            values = self._node_of(pattern).values
        elif prefix in self._prefixes:
            values = self._prefixes[prefix]
        else:
            values = self._prefixes[prefix] = {}
            self._prefix_lengths[len(prefix)] = self._prefix_lengths.get(len(prefix), 0) + 1
        if value not in values:
            values[value] = None
            self._counts[pattern] = len(values)

    def _node_of(self, pattern: str) -> _Node[T]:
        """Where the values of a dotted wildcard are; made when it is missing."""
        node = self._root
        for word in _words(pattern):
            child = node.children.get(word)
            if child is None:
                child = node.children[word] = _Node(takes_any=word == "#")
            node = child
        return node

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
            self._remembered.pop(pattern, None)
            return
        self._remembered.clear()
        prefix = _prefix_of(pattern)
        if prefix is None:
            is_known = _remove_words(self._root, _words(pattern), 0, value)
        else:
            is_known = self._remove_prefix(prefix, value)
        if is_known:
            self._counts[pattern] -= 1
            if not self._counts[pattern]:
                del self._counts[pattern]

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
            found = self._find(name)
            if len(self._remembered) >= REMEMBERED_MAX:
                self._remembered.clear()
            self._remembered[name] = found
        return found

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
            _walk(self._root, _words(name), found)
        return tuple(found)


class Pattern:
    """One pattern, to be asked about many names. Every name that it matches begins with `literal`."""

    __slots__ = ("_prefix", "_root", "literal")

    def __init__(self, pattern: str) -> None:
        self._prefix = _prefix_of(pattern)
        self._root: _Node[bool] = _Node()
        if self._prefix is not None:
            self.literal = self._prefix
            return
        node = self._root
        for word in _words(pattern):
            child = node.children[word] = _Node(takes_any=word == "#")
            node = child
        node.values[True] = None
        beginning, wildcard = min((pattern.partition(sign)[:2] for sign in "*#"), key=lambda parts: len(parts[0]))
        # `a.#` matches `a` too.
        self.literal = beginning.removesuffix(".") if wildcard == "#" else beginning

    def matches(self, name: str) -> bool:
        """Whether the topic `name` is one of those that the pattern stands for."""
        if self._prefix is not None:
            return name.startswith(self._prefix)
        found: dict[bool, None] = {}
        _walk(self._root, _words(name), found)
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


def _remove_words(node: _Node[T], words: list[str], index: int, value: T) -> bool:
    """Remove `value` from below `node`, and what is empty then; False when it was not there."""
    if index == len(words):
        is_known = value in node.values
        node.values.pop(value, None)
        return is_known
    child = node.children.get(words[index])
    if child is None:
        return False
    is_known = _remove_words(child, words, index + 1, value)
    if not child.values and not child.children:
        del node.children[words[index]]
    return is_known
