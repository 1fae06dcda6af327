"""Reads of a queue store on a database: the part that SQLite and PostgreSQL share, so that they cannot disagree.

It pages, counts and lists rows, and handles damaged rows that it finds; `run_reads` does so for runs. Each database has
its own statements (`sqlite_sql`, `postgres_sql`).

Surprising: a damaged row is remembered in memory, and the next change deletes it. It is read again before that,
because a row that an older snapshot showed as damaged may have been settled meanwhile.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import groupby, islice
from operator import attrgetter

from qmq.model.dots import Dot, Origin
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.format.queue_store import ANY_BYTES, UNSETTLED_BYTES, QueueHead, QueueRow
from qmq.storage.format.row_checksum import is_in_place
from qmq.storage.queues.plan import (
    NO_HEAD,
    SIGN,
    PartitionRow,
    by_sequence,
    expired_within,
    first_within,
    is_page_full,
    missing_of,
    origin_columns,
    row_bytes,
    rows_within,
    signed,
    sum_of,
    unsigned,
    within,
)
from qmq.storage.queues.rows import Raw, position_of, rows_of, tombstones_of
from qmq.storage.queues.run_reads import C, Place, RunReads


class DatabaseReads(RunReads[C]):
    """The reads of `interfaces.QueueStore`."""

    def position(self) -> int:
        with self._snapshot() as reader, self._legible():
            return position_of(*reader.execute(self.statements.POSITION).fetchone())

    def tombstones(self) -> set[Dot]:
        with self._snapshot() as reader, self._legible():
            return tombstones_of(reader.execute(self.statements.TOMBSTONES).fetchall())

    def origins(self) -> list[Origin]:
        with self._snapshot() as reader:
            found = reader.execute(self.statements.ORIGINS).fetchall()
            return sorted(Origin(node, unsigned(incarnation)) for node, incarnation in found)

    def is_empty(self, node: str) -> bool:
        with self._snapshot() as reader:
            return reader.execute(self.statements.ANY_ROW, (node,)).fetchone() is None

    def listing(self, node: str | None, after: str | None, limit: int) -> list[tuple[str, int, int]]:
        with self._snapshot() as reader:
            found = reader.execute(self.statements.LISTING, (after or "", node, limit)).fetchall()
            return [tuple(row) for row in found]

    def deepest(self, node: str, limit: int) -> list[str]:
        with self._snapshot() as reader:
            return [row[0] for row in reader.execute(self.statements.DEEPEST, (node, limit)).fetchall()]

    def total(self, node: str) -> int:
        with self._snapshot() as reader:
            (messages,) = reader.execute(self.statements.TOTAL, (node,)).fetchone()
            return int(messages)

    def heads(self, node: str, queues: Sequence[str], now_us: int) -> dict[str, QueueHead]:
        found: dict[str, QueueHead] = {}
        with self._snapshot() as reader:
            for queue, partition, rank, delayed, messages, size in self._head_rows(reader, node, queues):
                due_us = 0
                if delayed:
                    due_us = reader.execute(self.statements.NEXT_DUE, (partition, now_us)).fetchone()[0] or 0
                found[queue] = sum_of(found.get(queue, NO_HEAD), QueueHead(messages, size, (-rank,), due_us))
        return {queue: found[queue] for queue in queues if queue in found}

    def page(
        self,
        node: str,
        queue: str,
        priority: int,
        after: Dot | None,
        now_us: int,
        limit: int,
        exact: int = 0,
        bytes_max: int = ANY_BYTES,
    ) -> list[QueueRow]:
        rows: list[QueueRow] = []
        with self._snapshot() as reader:
            begin = self._origin_number(reader, after.origin) if after is not None else 0
            if begin is None:
                return []
            if priority < 0:
                partitions = self._partitions(
                    reader, self.statements.BY_PRIORITY, node, queue, (queue, node, -priority, 0)
                )
                begins = (exact, begin, -SIGN if after is None else signed(after.sequence))
                return self._exact_page(reader, partitions, begins, now_us, limit, bytes_max)
            wanted = (queue, node, -priority, begin)
            partitions = self._partitions(reader, self.statements.BY_PRIORITY, node, queue, wanted)
            for number, of_origin in groupby(partitions, lambda partition: partition.number):
                beyond = signed(after.sequence) if after is not None and number == begin else -SIGN
                found: list[QueueRow] = []
                for partition in of_origin:
                    is_late = partition.delayed
                    statement = self.statements.OVERDUE if is_late else self.statements.READY
                    bounds = (partition.id, now_us, beyond) if is_late else (partition.id, beyond)
                    rows_of = partial(self._intact, reader, partition)
                    found += self._sound(reader, statement, bounds, rows_of, limit - len(rows), bytes_max)
                    if partition.has_runs:
                        found += self._in_runs(reader, partition, beyond, limit - len(rows), bytes_max)
                found.sort(key=by_sequence)
                # In this order: where one partition was cut, the other may reach further.
                rows = rows_within(rows + found, limit, bytes_max)
                if is_page_full(rows, limit, bytes_max):
                    break
        return rows

    def _exact_page(
        self,
        reader: C,
        partitions: Sequence[PartitionRow],
        after: tuple[int, int, int],
        now_us: int,
        limit: int,
        bytes_max: int,
    ) -> list[QueueRow]:
        """The first rows after `after`: exact number, number of the origin, sequence. That is their order."""
        exact, begin, sequence = after
        numbers = {partition.origin: partition.number for partition in partitions}
        rows: list[QueueRow] = []
        for partition in partitions:
            # Of this number, an earlier origin has no more rows, and a later one has all of its rows.
            beyond = sequence if partition.number == begin else SIGN - 1 if partition.number < begin else -SIGN
            is_late = partition.delayed
            statement = self.statements.OVERDUE_EXACT if is_late else self.statements.READY_EXACT
            bounds = (partition.id, now_us, exact, beyond) if is_late else (partition.id, exact, beyond)
            rows += self._sound(reader, statement, bounds, partial(self._intact, reader, partition), limit, bytes_max)
            # Cut each time: never more than two pages are held, however many origins there are.
            rows.sort(key=lambda row: (row.exact, numbers[row.dot.origin], row.dot.sequence))
            rows = rows_within(rows, limit, bytes_max)
        return rows

    def skip(self, node: str, queue: str, priority: int, count: int) -> tuple[Dot | None, int, int]:
        last: Dot | None = None
        skipped = 0
        if priority < 0:
            return self._skip_exact(node, queue, priority, count)
        with self._snapshot() as reader:
            held = {partition: messages for _, partition, _, _, messages, _ in self._head_rows(reader, node, [queue])}
            wanted = (queue, node, -priority, 0)
            partitions = self._partitions(reader, self.statements.BY_PRIORITY, node, queue, wanted)
            for _, of_origin in groupby(partitions, lambda partition: partition.number):
                both = list(of_origin)
                messages = sum(held.get(partition.id, 0) for partition in both)
                left = count - skipped
                if left <= 0:
                    break
                last, skipped = Dot(both[0].origin, SIGN - 1), skipped + min(left, messages)
                if left < messages:
                    found = self._nth(reader, both, left)
                    last = last if found is None else Dot(both[0].origin, found)
        return last, 0, skipped

    def _skip_exact(self, node: str, queue: str, priority: int, count: int) -> tuple[Dot | None, int, int]:
        with self._snapshot() as reader:
            heads = self._head_rows(reader, node, [queue])
            skipped = min(count, sum(messages for _, _, rank, _, messages, _ in heads if rank == -priority))
            if not skipped:
                return None, 0, 0
            bounds = (queue, node, -priority, skipped - 1)
            found = reader.execute(self.statements.NTH_EXACT, bounds).fetchone()
            if found is None:
                return None, 0, skipped
            exact, name, incarnation, sequence = found
            return Dot(Origin(name, unsigned(incarnation)), unsigned(sequence)), exact, skipped

    def due(self, node: str, queue: str, after_us: int, until_us: int, limit: int) -> list[QueueRow]:
        rows: list[QueueRow] = []
        with self._snapshot() as reader:
            for partition in self._partitions(reader, self.statements.DELAYED, node, queue, (queue, node)):
                bounds = (partition.id, after_us, until_us)
                rows_of = partial(self._intact, reader, partition)
                rows += self._sound(reader, self.statements.DUE, bounds, rows_of, limit)
                rows = sorted(rows, key=attrgetter("due_us"))[:limit]  # Cut each time, as in `_exact_page`.
        return rows

    def expired(self, node: str, until_us: int, limit: int, bytes_max: int) -> list[QueueRow]:
        rows: list[QueueRow] = []
        with self._snapshot() as reader:
            partitions: dict[int, PartitionRow] = {}

            def rows_of(raws: Sequence[Raw]) -> list[QueueRow]:
                found: list[QueueRow] = []
                for raw in raws:
                    partition = partitions.get(raw[0]) or partitions.setdefault(raw[0], self._partition(reader, raw[0]))
                    found += self._intact(reader, partition, [raw])
                return found

            for (number,) in reader.execute(self.statements.ORIGINS_OF, (node,)).fetchall():
                rows += self._sound(reader, self.statements.EXPIRED, (number, until_us), rows_of, limit, bytes_max)
                rows = expired_within(rows, limit, bytes_max)
        return rows

    def missing_ranges(self) -> list[MissingRange]:
        # In this order: a change that is under way may store them.
        met = list(self._met.values())
        with self._snapshot() as reader:
            return list(dict.fromkeys([*self._lost(reader), *met]))

    def unsettled(
        self, origin: Origin, after: int, through: int, limit: int, bytes_max: int = UNSETTLED_BYTES
    ) -> list[QueueRow]:
        with self._snapshot() as reader:
            number = self._origin_number(reader, origin)
            if number is None:
                return []
            after, through = min(after, SIGN - 1), min(through, SIGN - 1)
            rows, through = self._rows_of_runs(reader, (number, origin, after, through), limit, bytes_max)
            left = bytes_max
            for row in islice(self._single_rows(reader, origin, (number, after, through), limit), limit):
                rows.append(row)
                left -= row_bytes(row)
                if left <= 0:
                    break
            return first_within(rows, through, limit, bytes_max)[0]

    def _single_rows(self, reader: C, origin: Origin, span: tuple[int, int, int], limit: int) -> Iterator[QueueRow]:
        """Read one by one: their bodies may be large."""
        number, after, through = span
        while keys := reader.execute(self.statements.UNSETTLED, (number, after, through, limit)).fetchall():
            for after, id, queue, rank, delayed, _ in keys:
                partition = PartitionRow(id, queue, rank, delayed, number, *origin_columns(origin))
                raw = self._one(reader, (partition.id, after))
                if raw is None:
                    raise self._broken(f"row {after} of partition {partition.id} is in one place and not in another")
                yield from self._intact(reader, partition, [raw])
            if len(keys) < limit:
                return

    def _origin_number(self, reader: C, origin: Origin) -> int | None:
        found = reader.execute(self.statements.ORIGIN, origin_columns(origin)).fetchone()
        return None if found is None else found[0]

    def _partitions(
        self, reader: C, statement: str, node: str, queue: str, parameters: tuple[object, ...]
    ) -> list[PartitionRow]:
        """The partitions of a queue that `statement` finds, by origin."""
        found = sorted(reader.execute(statement, parameters).fetchall())
        return [
            PartitionRow(id, queue, rank, delayed, number, node, incarnation, None, runs)
            for number, id, incarnation, rank, delayed, runs in found
        ]

    def _partition(self, reader: C, number: int) -> PartitionRow:
        """Its checksum is the stored one. Raises `_broken` when there is none."""
        found = reader.execute(self.statements.PARTITION, (number,)).fetchone()
        if found is None:
            raise self._broken(f"partition {number} is missing")
        return PartitionRow(*found)

    def _lost(self, connection: C) -> list[MissingRange]:
        """The stored missing ranges."""
        return [missing_of(*found) for found in connection.execute(self.statements.MISSING_RANGES).fetchall()]

    def _sound(
        self,
        reader: C,
        statement: str,
        parameters: tuple[int, ...],
        rows_of: Callable[[Sequence[Raw]], list[QueueRow]],
        limit: int,
        bytes_max: int = ANY_BYTES,
    ) -> list[QueueRow]:
        """The first rows that `statement` finds, within these bounds. `rows_of` makes rows of the sound ones. Damaged
        rows count for nothing: if there are any, the read begins again, and goes further.
        """
        damaged = damaged_bytes = 0
        while True:
            wanted = limit + damaged
            size: int | None = None
            if bytes_max < ANY_BYTES:
                sizes = self._sizes(reader, statement, (*parameters, wanted))
                wanted = within(sizes, bytes_max + damaged_bytes)
                size = sum(sizes[:wanted])
            raws = self._rows(reader, statement, (*parameters, wanted), size)
            rows = rows_of(raws)
            if len(raws) - len(rows) == damaged:
                return rows
            damaged = len(raws) - len(rows)
            damaged_bytes = sum(len(raw[-2]) + len(raw[-1]) for raw in raws) - sum(map(row_bytes, rows))

    def _intact(self, reader: C, partition: PartitionRow, raws: Sequence[Raw]) -> list[QueueRow]:
        """The sound ones of these rows. The others are among the `missing_ranges` from now on."""
        rows, damaged = rows_of(partition, raws)
        for row, raw in damaged:
            if (partition.id, raw[1]) not in self._met:
                if self._partition(reader, partition.id).checksum != partition.checksum:
                    raise self._broken(f"the row of partition {partition.id} is damaged")
                if not is_in_place(partition.checksum, row, raw[8]):
                    raise self._broken(f"a row of partition {partition.id} is not in its place")
                self._meet(partition, [row.dot.sequence])
        return rows

    @abstractmethod
    def _snapshot(self) -> AbstractContextManager[C]:
        """One reader at a time; everything read inside is of one moment."""

    @abstractmethod
    def _rows(self, reader: C, statement: str, parameters: tuple[int, ...], size: int | None = None) -> Sequence[Raw]:
        """What `statement` selects, in its order. `size`: the bytes of headers and bodies, if they are known."""

    @abstractmethod
    def _one(self, connection: C, place: Place) -> Raw | None: ...

    @abstractmethod
    def _head_rows(self, reader: C, node: str, queues: Sequence[str]) -> Iterable[tuple[str, int, int, bool, int, int]]:
        """Queue, partition, rank, delayed or not, messages, bytes of all partitions of these queues."""

    @abstractmethod
    def _sizes(self, reader: C, statement: str, parameters: tuple[int, ...]) -> list[int]:
        """Bytes of headers and body of each row that `statement` selects, in its order; no body is read."""
