"""A queue store on a database: the part that SQLite and PostgreSQL share, so that they cannot disagree.

It has the order of a change, the handling of damaged rows that reads find, and the unsettled rows of an origin. Each
database implements the single steps (`sqlite_store`, `postgres_store`).

Surprising: a damaged row is remembered in memory, not marked in the database. It is read again before it is changed,
because a row that an older snapshot showed as damaged may have been settled or repaired meanwhile.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, Generic, TypeVar

from qmq.dots import Dot, Origin
from qmq.storage.format.interfaces import NO_ATTEMPTS, QueueRow, RowDamage
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.format.row_checksum import is_in_place, is_sound
from qmq.storage.queues.plan import (
    UNSETTLED_ROWS,
    PartitionKey,
    PartitionRow,
    Raw,
    attempts_by_origin,
    by_partition,
    first_sound,
    missing_key,
    missing_of_row,
    note_damage,
    settled_met,
    settled_missing,
    settles_by_origin,
    unsigned,
)

_new: Final = tuple.__new__

C = TypeVar("C")
"""A connection."""

Place = tuple[int, int]
"""Lane and sequence of a row, as the database has them."""

UnsettledRow = tuple[int, int, str, int, bool, int]
"""Sequence, lane, queue, rank, delayed or not, number of the origin."""


class DatabaseQueueStore(ABC, Generic[C]):
    """See the module's opening, and `interfaces.QueueStore`."""

    kind: str

    def __init__(self) -> None:
        self.damage = RowDamage()
        self._ids: dict[Origin, int] = {}
        # Damaged rows that were met, and what they may have been.
        self._met: dict[Place, MissingRange] = {}

    # Writing

    def apply(
        self,
        upserts: Sequence[QueueRow],
        deletes: Mapping[str, Sequence[Dot]],
        tombstones_add: Collection[Dot],
        tombstones_del: Collection[Dot],
        position: int,
        attempts: Mapping[str, Mapping[Dot, int]] = NO_ATTEMPTS,
    ) -> None:
        missing_no_more = settled_met(self._met, deletes)
        added: dict[Origin, int] = {}
        with self._change() as writer:
            self._insert(by_partition(upserts), added)
            self._fail(attempts_by_origin(attempts), added)
            self._delete(settles_by_origin(deletes), added)
            self._drop(missing_no_more)
            for missing in settled_missing(self._lost(writer), deletes):
                self._end_missing(missing)
            self._add_tombstones(tombstones_add, added)
            self._delete_tombstones(tombstones_del, added)
            self._move(position)
        self._changed(added, missing_no_more)

    def missing(self, missing_ranges: Sequence[MissingRange], position: int) -> None:
        with self._change():
            for missing in missing_ranges:
                self._remember(missing)
            self._move(position)

    def repair(self, missing: MissingRange, rows: Sequence[QueueRow], left: MissingRange | None) -> None:
        met = [place for place, one in list(self._met.items()) if missing_key(one) == missing_key(missing)]
        added: dict[Origin, int] = {}
        with self._change() as writer:
            damaged = [place for place in met if self._is_damaged(writer, place)]
            # First: where the damaged row stands there may be the place of the sound one.
            self._drop(damaged)
            stood = self._end_missing(missing)
            if damaged or stood or not missing.is_of_one:
                if left is not None:
                    self._remember(left)
                self._insert(by_partition(rows), added)
        self._changed(added, met)

    def _changed(self, added: dict[Origin, int], repaired: Sequence[Place]) -> None:
        """Only after the transaction: numbers given out in one that failed do not exist."""
        self._ids.update(added)
        for place in repaired:
            self._met.pop(place, None)

    def _drop(self, damaged: Sequence[Place]) -> None:
        """These rows go; who knows what they say of themselves, so their lanes are counted anew."""
        for place in damaged:
            self._delete_row(place)
            self._recount(place[0])

    def _number(self, origin: Origin, added: dict[Origin, int]) -> int:
        """The number of `origin`, given out on first sight, inside the open transaction."""
        number = self._known_number(origin, added)
        if number is None:
            number = added[origin] = self._add_origin(origin)
        return number

    def _known_number(self, origin: Origin, added: dict[Origin, int]) -> int | None:
        return self._ids.get(origin) or added.get(origin)

    @abstractmethod
    def _change(self) -> AbstractContextManager[C]:
        """One transaction on the connection that writes; raises as `ports.QueueStore` says."""

    @abstractmethod
    def _insert(self, partitions: dict[PartitionKey, list[QueueRow]], added: dict[Origin, int]) -> None:
        """Add what is not here already, and the lanes it needs."""

    @abstractmethod
    def _fail(self, attempts: dict[tuple[str, Origin], list[tuple[int, int]]], added: dict[Origin, int]) -> None: ...

    @abstractmethod
    def _delete(self, settles: dict[tuple[str, Origin], list[int]], added: dict[Origin, int]) -> None:
        """And the lanes of which nothing is left."""

    @abstractmethod
    def _delete_row(self, place: Place) -> None: ...

    @abstractmethod
    def _recount(self, partition: int) -> None:
        """Let a lane have the counts of its rows, and go when there are none."""

    @abstractmethod
    def _add_origin(self, origin: Origin) -> int: ...

    @abstractmethod
    def _add_tombstones(self, dots: Collection[Dot], added: dict[Origin, int]) -> None: ...

    @abstractmethod
    def _delete_tombstones(self, dots: Collection[Dot], added: dict[Origin, int]) -> None: ...

    @abstractmethod
    def _remember(self, missing: MissingRange) -> None: ...

    @abstractmethod
    def _end_missing(self, missing: MissingRange) -> int:
        """How many there were."""

    @abstractmethod
    def _move(self, position: int) -> None: ...

    # Reading

    def missing_ranges(self) -> list[MissingRange]:
        with self._snapshot() as reader:
            for place in list(self._met):
                if not self._is_damaged(reader, place):
                    # Met by a reader of an older moment.
                    self._met.pop(place, None)
            return self._lost(reader) + list(self._met.values())

    def unsettled(self, origin: Origin, after: int, through: int, limit: int) -> list[tuple[int, str, int]]:
        found: list[tuple[int, str, int]] = []
        with self._snapshot() as reader:
            while len(found) < limit:
                wanted = limit - len(found)
                keys = self._unsettled(reader, origin, after, through, wanted)
                found += [(row.dot.sequence, row.queue, row.attempts) for row in self._ones(reader, origin, keys)]
                if len(keys) < wanted:
                    break
                after = keys[-1][0]
        return found

    def unsettled_rows(self, origin: Origin, after: int, through: int, bytes_max: int) -> list[QueueRow]:
        rows: list[QueueRow] = []
        with self._snapshot() as reader:
            for row in self._ones(reader, origin, self._unsettled(reader, origin, after, through, UNSETTLED_ROWS)):
                bytes_max -= len(row.headers) + len(row.body)
                if rows and bytes_max < 0:
                    break
                rows.append(row)
        return rows

    def _ones(self, reader: C, origin: Origin, keys: Sequence[UnsettledRow]) -> Iterator[QueueRow]:
        """The sound ones of these rows, read one by one: their bodies may be large."""
        for sequence, partition, queue, rank, delayed, number in keys:
            raw = self._one(reader, (partition, sequence))
            if raw is None:
                raise self._broken(f"row {sequence} of partition {partition} is in one place and not in another")
            row = self._row(reader, PartitionRow(partition, queue, rank, bool(delayed), number, origin), raw)
            if row is not None:
                yield row

    def _sound(
        self, reader: C, partition: PartitionRow, statement: str, parameters: tuple[int, ...], limit: int
    ) -> list[QueueRow]:
        """The first `limit` rows that `statement` finds in `partition`, without the damaged ones among them."""
        return first_sound(
            lambda wanted: self._rows(reader, statement, (*parameters, wanted)),
            lambda raw: self._row(reader, partition, raw),
            limit,
        )

    def _row(self, reader: C, partition: PartitionRow, raw: Raw) -> QueueRow | None:
        """None: it is damaged, and one of the `missing_ranges` from now on."""
        _, sequence, timestamp_us, flags, due_us, expires_us, attempts, checksum, headers, body = raw
        if sequence < 0 or timestamp_us < 0:
            sequence, timestamp_us = unsigned(sequence), unsigned(timestamp_us)
        # The classes' own constructors would take longer than the checksum.
        dot = _new(Dot, (partition.origin, sequence))
        row = _new(
            QueueRow,
            (dot, partition.queue, timestamp_us, flags, -partition.rank, due_us, expires_us, headers, body, attempts),
        )
        if is_sound(partition.checksum, row, checksum):
            return row
        place = (partition.id, raw[1])
        if place not in self._met:
            if self._partition(reader, partition.id).checksum != partition.checksum:
                raise self._broken(f"the row of partition {partition.id} is damaged")
            if not is_in_place(partition.checksum, row, checksum):
                raise self._broken(f"a row of partition {partition.id} is not in its place")
            self._met[place] = missing_of_row(row)
            note_damage(self.damage, self._met[place])
        return None

    def _is_damaged(self, connection: C, place: Place) -> bool:
        """Whether the damaged row still stands that was met there."""
        raw = self._one(connection, place)
        if raw is None:
            return False
        partition = self._partition(connection, place[0])
        partition = PartitionRow(
            partition.id, partition.queue, partition.rank, partition.delayed, partition.number, partition.origin
        )
        return self._row(connection, partition, raw) is None

    @abstractmethod
    def _snapshot(self) -> AbstractContextManager[C]:
        """One reader at a time; everything read inside is of one moment."""

    @abstractmethod
    def _broken(self, what: str) -> Exception:
        """To be raised inside `_snapshot` or `_change` where the database is not what was written to it."""

    @abstractmethod
    def _rows(self, reader: C, statement: str, parameters: tuple[int, ...]) -> list[Raw]: ...

    @abstractmethod
    def _one(self, connection: C, place: Place) -> Raw | None: ...

    @abstractmethod
    def _partition(self, reader: C, number: int) -> PartitionRow:
        """Its checksum is the one that was written down. Raises `_broken` when there is none."""

    @abstractmethod
    def _unsettled(self, reader: C, origin: Origin, after: int, through: int, limit: int) -> list[UnsettledRow]:
        """By sequence."""

    @abstractmethod
    def _lost(self, connection: C) -> list[MissingRange]:
        """What was written down as lacking."""


def by_sequence(row: QueueRow) -> int:
    """A key to sort by."""
    return row.dot.sequence


def by_due_time(row: QueueRow) -> int:
    """A key to sort by."""
    return row.due_us
