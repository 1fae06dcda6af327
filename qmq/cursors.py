"""Cursors: what of a fanout a durable subscription is done with, and how what several nodes know of it comes together.

Like `dots`, open to every layer. A **name** says whose: destination, client, and the client's own name for it. A
**cursor** is the vector it began with and, per origin, the ranges of sequences that are done since. A range says
"everything of this fanout after this sequence, up to that one": what was delivered before a message is known when it is
handed out, so a fanout's sparse sequences make few ranges, however long one message stays unacknowledged.

A **move** is what one journal record adds to a cursor. Moves may come in any order and more than once: done ranges are
united; of two creations that did not know of each other the earlier beginning counts, so that neither loses a message.
A deletion removes everything that was created up to its stamp, and nothing later. Stamps are µs of wall clock, but
each is made greater than all that its node knows, so a clock decides only between things that did not know of each
other.

Who uses a name is its **holder**: a node, with a stamp of the same sort. The greatest one has the name, so it is never
shared silently, and two nodes that did not know of each other agree afterwards.

Surprising: `told` and `credit` are only hints, for `redelivered:true`. Whoever wrote last is believed.
"""

import heapq
from bisect import bisect_left
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from qmq.dots import Origin, Vector

DELETIONS_MAX: Final = 10_000
"""Deletions that are remembered, so that a late record brings nothing back; the oldest is forgotten beyond it."""

Range = tuple[int, int]
"""(after, through): the sequences above `after`, up to and including `through`."""


Holder = tuple[int, Origin]
"""(stamp, node): who uses a name."""


class Name(NamedTuple):
    """Names a durable subscription in the mesh. `client` is empty where only the subscription is named."""

    destination: str
    client: str
    name: str

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.client}/{self.name}" if self.client else self.name


def add_range(ranges: list[Range], after: int, through: int) -> None:
    """Unite `ranges` (sorted, disjoint, not touching) with one more, in place."""
    if through <= after:
        return
    if not ranges or ranges[-1][1] < after:
        ranges.append((after, through))
        return
    low = bisect_left(ranges, after, key=_through)
    high = low
    while high < len(ranges) and ranges[high][0] <= through:
        after = min(after, ranges[high][0])
        through = max(through, ranges[high][1])
        high += 1
    ranges[low:high] = [(after, through)]


def _through(one: Range) -> int:
    return one[1]


class Move:
    """What one record says. `start` only in a whole picture (see `Cursor.picture`); `deleted_us` is the last deletion
    that the writer knows. `credit`: attached from here on with that much in flight; `told`: no longer attached, and
    this much was handed out. Neither, in the records between. `holder`: attached from here on, and where.
    """

    __slots__ = ("created_us", "credit", "deleted_us", "done", "holder", "name", "start", "told")

    def __init__(
        self,
        name: Name,
        created_us: int,
        deleted_us: int = 0,
        *,
        start: Vector | None = None,
        done: dict[Origin, list[Range]] | None = None,
        credit: int = 0,
        told: Vector | None = None,
        holder: Holder | None = None,
    ) -> None:
        self.holder = holder
        self.name = name
        self.created_us = created_us
        self.deleted_us = deleted_us
        self.start = start
        self.done = {} if done is None else done
        self.credit = credit
        self.told = told


class Cursor:
    """All that is known of one name. `created_us` is 0 while there is no subscription, only its deletion."""

    __slots__ = ("created_us", "credit", "deleted_us", "done", "holder", "name", "start", "told")

    def __init__(self, name: Name) -> None:
        self.name = name
        self.created_us = 0
        self.deleted_us = 0
        self.start: Vector | None = None
        """What it does not want; None while only moves were seen and not the beginning: nothing is left out."""
        self.done: dict[Origin, list[Range]] = {}
        self.credit = 0
        """Above 0: attached, or its node died: so many messages of each origin may have been handed out."""
        self.told: Vector = {}
        """With `credit` 0: per origin the last sequence that was ever handed out, where that is beyond `done`."""
        self.holder: Holder | None = None
        """The greatest one; None before the first. It may have left."""

    def apply(self, move: Move) -> bool:
        """Take one move into account; True when it ended the subscription that was there."""
        ended = False
        if move.deleted_us > self.deleted_us:
            self.deleted_us = move.deleted_us
            if self.created_us and self.created_us <= move.deleted_us:
                self._forget()
                ended = True
        if not move.created_us or move.created_us <= self.deleted_us:
            return ended
        self.created_us = min(self.created_us or move.created_us, move.created_us)
        if move.start is not None:
            self.start = dict(move.start) if self.start is None else _earlier(self.start, move.start)
        for origin, ranges in move.done.items():
            known = self.done.setdefault(origin, [])
            for after, through in ranges:
                add_range(known, after, through)
        if move.told is not None:
            self.told = dict(move.told)
            self.credit = 0
        elif move.credit:
            self.told = {}
            self.credit = move.credit
        if move.holder is not None and (self.holder is None or move.holder > self.holder):
            self.holder = move.holder
        return ended

    def _forget(self) -> None:
        self.created_us = self.credit = 0
        self.start = self.holder = None
        self.done = {}
        self.told = {}

    def forget_origins(self, forgotten: Collection[Origin]) -> bool:
        """Of these no message is left anywhere. Whether anything was known of them."""
        found = False
        for known in (self.done, self.told, self.start or {}):
            for origin in [origin for origin in known if origin in forgotten]:
                del known[origin]
                found = True
        return found

    def copy(self) -> "Cursor":
        """An independent one."""
        copied = Cursor(self.name)
        copied.created_us = self.created_us
        copied.deleted_us = self.deleted_us
        copied.start = None if self.start is None else dict(self.start)
        copied.done = {origin: list(ranges) for origin, ranges in self.done.items()}
        copied.credit = self.credit
        copied.told = dict(self.told)
        copied.holder = self.holder
        return copied

    def is_done(self, origin: Origin, sequence: int) -> bool:
        """Whether this message is not to be delivered (any more)."""
        if self.start is not None and sequence <= self.start.get(origin, 0):
            return True
        ranges = self.done.get(origin)
        if not ranges:
            return False
        index = bisect_left(ranges, sequence, key=_through)
        return index < len(ranges) and ranges[index][0] < sequence

    def done_up_to(self, origin: Origin) -> int:
        """The sequence of `origin` up to which everything is done."""
        reached = 0 if self.start is None else self.start.get(origin, 0)
        for after, through in self.done.get(origin, ()):
            if after > reached:
                break
            reached = max(reached, through)
        return reached

    def missing(self, origin: Origin, after: int, through: int) -> Range | None:
        """The first and the last sequence above `after`, up to `through`, that are not done; None when all are."""
        after = max(after, 0 if self.start is None else self.start.get(origin, 0))
        first, last = after + 1, through
        for low, high in self.done.get(origin, ()):
            if low < first <= high:
                first = high + 1
            if low < last <= high:
                last = low
        return (first, last) if first <= last else None

    def vector(self) -> Vector:
        """Up to where everything is done, per origin."""
        return {origin: self.done_up_to(origin) for origin in {**(self.start or {}), **self.done}}

    def new_holder(self, node: Origin, now_us: int) -> Holder:
        """One for `node` that is greater than all that are known."""
        return (now_us if self.holder is None else max(now_us, self.holder[0] + 1), node)

    def picture(self, *, credit: int = 0, holder: Holder | None = None) -> Move:
        """All of it as one move, so that the records of one origin tell of it by themselves."""
        done = {origin: list(ranges) for origin, ranges in self.done.items()}
        # An unknown beginning must stay unknown: told as an empty one, it would move everybody's to the first message.
        start = None if self.start is None else dict(self.start)
        return Move(self.name, self.created_us, self.deleted_us, start=start, done=done, credit=credit, holder=holder)


def _earlier(one: Vector, other: Vector) -> Vector:
    """Pointwise minimum; an origin that one of them does not name is 0 there."""
    return {origin: min(last, other[origin]) for origin, last in one.items() if origin in other}


def surplus_deletions(cursors: Iterable[Cursor]) -> list[Cursor]:
    """The oldest deletions of those beyond DELETIONS_MAX."""
    deleted = [cursor for cursor in cursors if not cursor.created_us]
    return heapq.nsmallest(max(0, len(deleted) - DELETIONS_MAX), deleted, key=_deletion)


def _deletion(cursor: Cursor) -> int:
    return cursor.deleted_us
