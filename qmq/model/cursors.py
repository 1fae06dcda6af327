"""Cursors: which messages of a fanout a durable subscription is done with, and how nodes merge what they know.

Like `dots`, every layer may import it. A **name** identifies a durable subscription: destination, client, and the
client's own name for it. A **cursor** is the vector at which it began and, per origin, the ranges of sequences that are
done since. A range means "all messages of this fanout after this sequence, up to that one". When a message is
delivered, the node knows which message preceded it. So the sparse sequences of a fanout make few ranges, even if one
message stays unacknowledged for long.

A **move** is what one journal record adds to a cursor. Moves may come in any order and more than once. Done ranges are
united. If two nodes create the same name without knowing of each other, the earlier beginning counts, so that neither
loses a message. A deletion removes everything that was created up to its stamp, and nothing later. Stamps are µs of
wall clock time, and each is greater than all stamps that its node knows. So a clock decides only between concurrent
moves.

The **holder** of a name is the node that uses it, with a stamp of the same kind. The greatest holder has the name. So a
name is never shared silently, and two nodes that did not know of each other agree afterwards.

The **owner** is the user that began the name, with the stamp of that beginning; of a name without one, the first user
that used it. The earliest owner counts, so that all nodes agree.

Surprising: `delivered_up_to` and `credit` are only hints, for `redelivered:true`. The last writer wins.
"""

import heapq
from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import KW_ONLY, dataclass, field
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from qmq.model.dots import Origin, Vector

DELETIONS_MAX: Final = 10_000
"""Deletions that are remembered, so that a late record restores nothing. Beyond it, the oldest is forgotten."""

Range = tuple[int, int]
"""(after, through): the sequences above `after`, up to and including `through`."""


Holder = tuple[int, Origin]
"""(stamp, node): the node that uses a name."""

Owner = tuple[int, str]
"""(stamp, user): the user that a name belongs to."""


class Name(NamedTuple):
    """Names a durable subscription in the mesh. `client` is empty where only the subscription is named."""

    destination: str
    client: str
    name: str

    @property
    def text(self) -> str:
        """The name as shown to operators."""
        return f"{self.client}/{self.name}" if self.client else self.name


def add_range(ranges: list[Range], after: int, through: int) -> None:
    """Unite `ranges` (sorted, disjoint, not touching) with one more, in place."""
    if through <= after:
        return
    if not ranges or ranges[-1][1] < after:
        ranges.append((after, through))
        return
    low = bisect_left(ranges, after, key=itemgetter(1))
    high = low
    while high < len(ranges) and ranges[high][0] <= through:
        after = min(after, ranges[high][0])
        through = max(through, ranges[high][1])
        high += 1
    ranges[low:high] = [(after, through)]


@dataclass(slots=True, eq=False)
class Move:
    """What one record adds. `start` is set only in a snapshot (see `Cursor.snapshot`).

    `deleted_us`: the last deletion that the writer knows. `credit`: attached from here on, with that much in flight.
    `delivered_up_to`: detached, and this much was delivered. Records between those two have neither. `holder`:
    attached from here on, and by which node. `owner`: belongs to that user from here on, unless to an earlier one.
    """

    name: Name
    created_us: int
    deleted_us: int = 0
    _: KW_ONLY
    start: Vector | None = None
    done: dict[Origin, list[Range]] = field(default_factory=dict)
    credit: int = 0
    delivered_up_to: Vector | None = None
    holder: Holder | None = None
    owner: Owner | None = None


@dataclass(slots=True, eq=False)
class Cursor:
    """What is known of one name. `created_us` is 0 while there is no subscription, only its deletion."""

    name: Name
    created_us: int = 0
    deleted_us: int = 0
    start: Vector | None = None
    """Messages up to here are not wanted. None: the beginning is unknown so far, and nothing is left out."""
    done: dict[Origin, list[Range]] = field(default_factory=dict)
    credit: int = 0
    """Above 0: attached, or its node died; so many messages of each origin may have been delivered."""
    delivered_up_to: Vector = field(default_factory=dict)
    """With `credit` 0: per origin the last sequence that was ever delivered, where that is beyond `done`."""
    holder: Holder | None = None
    """The greatest holder; None before the first. It may be detached."""
    owner: Owner | None = None
    """The least owner; None: no user that has a name has used it."""

    def apply(self, move: Move) -> bool:
        """Apply one move; True when it ended the subscription."""
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
        if move.delivered_up_to is not None:
            self.delivered_up_to = dict(move.delivered_up_to)
            self.credit = 0
        elif move.credit:
            self.delivered_up_to = {}
            self.credit = move.credit
        if move.holder is not None and (self.holder is None or move.holder > self.holder):
            self.holder = move.holder
        if move.owner is not None and (self.owner is None or move.owner < self.owner):
            self.owner = move.owner
        return ended

    def _forget(self) -> None:
        self.created_us = self.credit = 0
        self.start = self.holder = self.owner = None
        self.done = {}
        self.delivered_up_to = {}

    def forget_origins(self, forgotten: Collection[Origin]) -> bool:
        """Remove these origins, of which no member has a message. True when any of them was known."""
        found = False
        for known in (self.done, self.delivered_up_to, self.start or {}):
            for origin in [origin for origin in known if origin in forgotten]:
                del known[origin]
                found = True
        return found

    def copy(self) -> "Cursor":
        """An independent copy."""
        copied = Cursor(self.name)
        copied.created_us = self.created_us
        copied.deleted_us = self.deleted_us
        copied.start = None if self.start is None else dict(self.start)
        copied.done = {origin: list(ranges) for origin, ranges in self.done.items()}
        copied.credit = self.credit
        copied.delivered_up_to = dict(self.delivered_up_to)
        copied.holder = self.holder
        copied.owner = self.owner
        return copied

    def is_done(self, origin: Origin, sequence: int) -> bool:
        """Whether this message must not be delivered, or not again."""
        if self.start is not None and sequence <= self.start.get(origin, 0):
            return True
        ranges = self.done.get(origin)
        if not ranges:
            return False
        index = bisect_left(ranges, sequence, key=itemgetter(1))
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
        """Per origin, the sequence up to which everything is done."""
        return {origin: self.done_up_to(origin) for origin in {**(self.start or {}), **self.done}}

    def new_holder(self, node: Origin, now_us: int) -> Holder:
        """A holder for `node` that is greater than all known ones."""
        return (now_us if self.holder is None else max(now_us, self.holder[0] + 1), node)

    def snapshot(self, *, credit: int = 0, holder: Holder | None = None) -> Move:
        """A snapshot of the cursor as one move, so that the records of one origin are complete by themselves."""
        done = {origin: list(ranges) for origin, ranges in self.done.items()}
        # An unknown beginning must stay unknown: an empty vector would move it to the first message on every node.
        start = None if self.start is None else dict(self.start)
        return Move(
            self.name,
            self.created_us,
            self.deleted_us,
            start=start,
            done=done,
            credit=credit,
            holder=holder,
            owner=self.owner,
        )


def _earlier(one: Vector, other: Vector) -> Vector:
    """Pointwise minimum; an origin that one of them does not name is 0 there."""
    return {origin: min(last, other[origin]) for origin, last in one.items() if origin in other}


def surplus_deletions(cursors: Iterable[Cursor]) -> list[Cursor]:
    """The oldest deletions, as many as there are beyond DELETIONS_MAX."""
    deleted = [cursor for cursor in cursors if not cursor.created_us]
    return heapq.nsmallest(max(0, len(deleted) - DELETIONS_MAX), deleted, key=attrgetter("deleted_us"))
