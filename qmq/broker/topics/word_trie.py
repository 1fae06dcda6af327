"""A trie of dotted wildcards: words, where `*` stands for exactly one and `#` for any number.

The cost of a match does not grow with the number of patterns: `walk` goes by words. Each node knows how many nodes the
match of any name can visit from it (`visits`), so that a table can refuse a pattern that costs too much.
"""

from typing import Generic, TypeVar

T = TypeVar("T")

NAME_WORDS = 128
"""Words of the longest name, for the reckoning of `#`."""

NODE_COST = 5
"""What visiting one node costs, in the unit of `Outcome.cost`: some 0.6 microseconds."""

COUNTED_FROM = 16
"""Children of a node whose costs are counted instead of looked at one by one."""


class WordNode(Generic[T]):
    """One word of the trie of dotted wildcards.

    `size` counts the nodes from here on, `visits` how many of them the rest of one name can visit at most: of the
    children that are plain words only one goes on, `*` and `#` go on besides. Behind `#` a name can begin again at each
    of its words, but meets no node twice at the same word.
    """

    __slots__ = ("_costs", "children", "size", "takes_any", "values", "visits")

    def __init__(self, takes_any: bool = False) -> None:
        self.takes_any = takes_any
        """Reached by `#`: any further word leads here again."""
        self.children: dict[str, WordNode[T]] = {}
        self.values: dict[T, None] | None = None
        self.size = 1
        self.visits = NAME_WORDS if takes_any else 1
        # How many children that are plain words have which `visits`; only where there are many.
        self._costs: dict[int, int] | None = None

    def reckon(self, word: str, before: int, after: int) -> None:
        """The child at `word` is new (`before` is 0), gone (`after` is 0), or has other `visits`."""
        if word != "*" and word != "#":
            self._count(before, after)
        star, tail = self.children.get("*"), self.children.get("#")
        visits = 1 + self._most() + (0 if star is None else star.visits) + (0 if tail is None else tail.visits)
        self.visits = NAME_WORDS * min(self.size, visits) if self.takes_any else visits

    def _count(self, before: int, after: int) -> None:
        costs = self._costs
        if costs is None:
            if len(self.children) > COUNTED_FROM:
                self._costs = costs = {}
                for word, child in self.children.items():
                    if word != "*" and word != "#":
                        costs[child.visits] = costs.get(child.visits, 0) + 1
            return
        if before:
            costs[before] -= 1
            if not costs[before]:
                del costs[before]
        if after:
            costs[after] = costs.get(after, 0) + 1
        if not costs:
            self._costs = None

    def _most(self) -> int:
        """The most `visits` of a child that is a plain word."""
        if self._costs is not None:
            return max(self._costs, default=0)
        most = 0
        for word, child in self.children.items():
            if child.visits > most and word != "*" and word != "#":
                most = child.visits
        return most


def walk(root: WordNode[T], words: list[str], found: dict[T, None]) -> int:
    """Collect what matches `words` below `root`; returns how many nodes were visited.

    Goes word by word with all nodes reached so far, so no pattern costs more than nodes times words: trying every
    length for every `#` instead, a subscriber could send patterns whose match takes years.
    """
    reached: dict[WordNode[T], None] = {}
    reach(root, reached)
    visited = len(reached)
    for word in words:
        following: dict[WordNode[T], None] = {}
        for node in reached:
            children = node.children
            if node.takes_any:
                reach(node, following)
            # Most nodes have no `*` and no `#` below them: what is not there costs no call.
            if word in children:
                child = children[word]
                following[child] = None
                if "#" in child.children:
                    reach(child.children["#"], following)
            if "*" in children:
                child = children["*"]
                following[child] = None
                if "#" in child.children:
                    reach(child.children["#"], following)
        reached = following
        visited += len(reached)
    for node in reached:
        if node.values is not None:
            found.update(node.values)
    return visited


def reach(node: WordNode[T], reached: dict[WordNode[T], None]) -> None:
    """Add `node`, and what follows it when each `#` takes no word at all."""
    following: WordNode[T] | None = node
    while following is not None and following not in reached:
        reached[following] = None
        following = following.children.get("#")


def descend(root: WordNode[T], words: list[str]) -> WordNode[T]:
    """The node that `words` lead to; made, with those before it, when it is missing."""
    way = [root]
    made = 0
    for word in words:
        child = way[-1].children.get(word)
        if child is None:
            child = way[-1].children[word] = WordNode(takes_any=word == "#")
            made += 1
        way.append(child)
    if made:
        known = len(words) - made
        after = before = 0
        for index in range(len(words) - 1, -1, -1):
            node = way[index]
            node.size += min(made, len(words) - index)
            after = way[index + 1].visits
            known_before = node.visits
            # A new node is new to the one before it.
            node.reckon(words[index], 0 if index >= known else before, after)
            before = known_before
    return way[-1]


def ascend(root: WordNode[T], words: list[str]) -> None:
    """From the node that `words` lead to up: remove what leads nowhere any more."""
    way = [root]
    for word in words:
        way.append(way[-1].children[word])
    removed = before = 0
    for index in range(len(words), 0, -1):
        node, parent, word = way[index], way[index - 1], words[index - 1]
        known_before = parent.visits
        if not node.children and node.values is None:
            removed += 1
            parent.size -= removed
            del parent.children[word]
            parent.reckon(word, before or node.visits, 0)
        else:
            if not removed:
                return
            parent.size -= removed
            parent.reckon(word, before, node.visits)
        before = known_before
