"""Where the messages of each group wait, so that none of them passes another.

Each consumer's search continues where its last one ended (`Seen`), so it may begin behind the first message that waits
in its group. Such a search takes nothing of the group: the first one goes before.

A message that no consumer matches does not count: the others pass it.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable

Seen = dict[tuple[int, object], int]
"""Priority and consumer class or consumer → the place up to which it was offered the messages of that level."""


class GroupOrder:
    """`seen` is lowered where a consumer has looked past what is its next one now."""

    __slots__ = ("_aims", "_began", "_seen", "_stopped", "_waiting")

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        # Level and group → the places of messages that wait though some consumer matches them, in order.
        self._waiting: dict[tuple[int, bytes], deque[int]] = {}
        # Priority and consumer -> places behind which its search has gone on, in order.
        self._aims: dict[tuple[int, object], list[int]] = {}
        # Of the present dispatch: behind which place the search of each level began, and groups of which one waits.
        self._began: dict[int, int] = {}
        self._stopped: set[bytes] = set()

    def begin(self) -> None:
        """A dispatch begins."""
        self._began.clear()
        self._stopped.clear()

    def search(self, priority: int, after: int) -> None:
        """The search of a level goes on behind this place."""
        self._began[priority] = after

    def is_next(self, group: bytes) -> bool:
        """Whether nothing of `group` waits that is before the place of the search."""
        if group in self._stopped:
            return False
        if self._waiting:
            for priority, after in self._began.items():
                waiting = self._waiting.get((priority, group))
                if waiting is not None and waiting[0] <= after:
                    self._stopped.add(group)
                    return False
        return True

    def waits(self, group: bytes, priority: int, place: int) -> None:
        """A message that some consumer matches stays where it is, and what is behind it in its group."""
        self._stopped.add(group)
        waiting = self._waiting.get((priority, group))
        if waiting is None:
            self._waiting[priority, group] = deque((place,))
        elif place > waiting[-1]:
            waiting.append(place)

    def knows(self, group: bytes, priority: int, place: int) -> bool:
        """Whether the search has been here, and the first that waits is not behind this."""
        waiting = self._waiting.get((priority, group))
        if waiting is None or not waiting[0] <= place <= waiting[-1]:
            return False
        self._stopped.add(group)
        return True

    def first(self, group: bytes, priority: int) -> int:
        """The place of the first that waits in this level; 0: none is known."""
        waiting = self._waiting.get((priority, group))
        return 0 if waiting is None else waiting[0]

    def leaves(self, group: bytes, priority: int, place: int) -> bool:
        """A message is in line no more: it is given to a consumer, or gone. True when it was the first that waited."""
        waiting = self._waiting.get((priority, group))
        if waiting is None or not waiting[0] <= place <= waiting[-1]:
            return False
        if place > waiting[0]:
            if place in waiting:
                waiting.remove(place)
            return False
        waiting.popleft()
        if not waiting:
            del self._waiting[priority, group]
        return True

    def aim(self, priority: int, taker: object, place: int) -> None:
        """What is at `place` may be the next one of this consumer, or of this name of a peer's class."""
        key = (priority, taker)
        if self._seen.get(key, 0) >= place:
            aims = self._aims.setdefault(key, [])
            index = bisect_left(aims, place)
            if index == len(aims) or aims[index] != place:
                aims.insert(index, place)

    @property
    def has_aims(self) -> bool:
        """Whether some consumer is to get what it has looked past."""
        return bool(self._aims)

    def take_aim(self, keys: list[tuple[int, object]]) -> int:
        """The first place that one of these is to look at, once; 0: there is none."""
        found = [(self._aims[key][0], at) for at, key in enumerate(keys) if key in self._aims]
        if not found:
            return 0
        place, at = min(found)
        aims = self._aims[keys[at]]
        del aims[0]
        if not aims:
            del self._aims[keys[at]]
        return place

    def forget(self, group: bytes, priorities: Iterable[int]) -> None:
        """A message of `group` stands again where searches have been, and all of them are to begin before it.

        `priorities`: of all levels. Very many groups may wait in them, and only this one is looked up.
        """
        for priority in priorities:
            waiting = self._waiting.pop((priority, group), None)
            if waiting is not None:
                self.restart_from(priority, waiting[0])

    def restart(self, priority: int) -> None:
        """All searches of a level begin at its first message."""
        for key in [key for key in self._waiting if key[0] == priority]:
            del self._waiting[key]
        self.restart_from(priority, 1)

    def restart_from(self, priority: int, place: int) -> None:
        """All searches of a level begin at `place` at the latest."""
        for key, seen in self._seen.items():
            if key[0] == priority and seen >= place:
                self._seen[key] = place - 1

    def clear(self) -> None:
        """All searches begin at the first message."""
        self._waiting.clear()
        self._aims.clear()
        self._seen.clear()
