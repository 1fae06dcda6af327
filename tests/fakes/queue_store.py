"""The queue store in memory, committed on a `MemoryDisk`: for tests, simulations and nodes that keep nothing.

What it committed survives a crash of its disk and is removed when the disk is wiped. A commit happens whole, or not at
all when the disk is set to fail; it costs what it changes.
"""

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from heapq import nsmallest
from itertools import chain

from qmq.model.dots import Dot, Origin
from qmq.model.levels import delivery_order
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.format.queue_store import (
    ANY_BYTES,
    NO_ATTEMPTS,
    UNSETTLED_BYTES,
    QueueHead,
    QueueRow,
    RowDamage,
    RowRun,
)
from qmq.storage.queues.plan import (
    PartitionKey,
    by_partition,
    expired_within,
    missing_key,
    note_damage,
    rows_within,
    settled_missing,
)
from qmq.storage.queues.rows import runs_of
from tests.fakes.disk import MemoryDisk, commit_tables


def rows_in(run: RowRun) -> list[QueueRow]:
    """The messages of a run, as a store returns them."""
    origin, queue, flags, level, records, due_us, expires_us, attempts, exact = run
    return [
        QueueRow(
            Dot(origin, sequence), queue, sent_us, flags, level, due_us, expires_us, headers, body, attempts, exact
        )
        for sequence, sent_us, _, _, headers, body in records
    ]


def _missing_of(row: QueueRow) -> MissingRange:
    """The missing range of a damaged row: one message."""
    origin, sequence = row.dot
    return MissingRange(origin, sequence - 1, sequence, sequence, row.queue)


class _Partition:
    """Rows of one `PartitionKey`. `order` is sorted. The sequences of deleted rows stay in it until they are the
    majority."""

    __slots__ = ("rows", "order", "body_bytes")

    def __init__(self) -> None:
        self.rows: dict[int, QueueRow] = {}
        self.order: list[int] = []
        self.body_bytes = 0

    def add(self, row: QueueRow) -> None:
        sequence = row.dot.sequence
        if sequence in self.rows:
            return
        place = bisect_left(self.order, sequence)
        if self.order[place : place + 1] != [sequence]:
            self.order.insert(place, sequence)
        self.rows[sequence] = row
        self.body_bytes += len(row.body)

    def remove(self, sequence: int) -> None:
        row = self.rows.pop(sequence, None)
        if row is not None:
            self.body_bytes -= len(row.body)
            if len(self.order) > 2 * len(self.rows) + 16:
                self.order = [known for known in self.order if known in self.rows]

    def beyond(self, sequence: int, due_by_us: int, limit: int) -> list[QueueRow]:
        found: list[QueueRow] = []
        for place in range(bisect_right(self.order, sequence), len(self.order)):
            row = self.rows.get(self.order[place])
            if row is not None and row.due_us <= due_by_us:
                found.append(row)
                if len(found) == limit:
                    break
        return found


class _QueueState:
    __slots__ = ("queues", "expiring", "tombstones", "origins", "position", "reading", "rotten", "missing_ranges")

    def __init__(self) -> None:
        self.queues: dict[str, dict[PartitionKey, _Partition]] = {}
        self.expiring: dict[Dot, QueueRow] = {}
        self.tombstones: set[Dot] = set()
        self.origins: dict[Origin, int] = {}
        self.position = 0
        self.reading = threading.Lock()
        # Dots of rows whose checksum would not fit.
        self.rotten: set[Dot] = set()
        self.missing_ranges: dict[tuple[str, int, int, int, str], MissingRange] = {}


class MemoryQueueStore:
    """See `interfaces.QueueStore`."""

    kind = "memory"

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk
        state = disk.tables.setdefault("queues", _QueueState())
        assert isinstance(state, _QueueState)
        self._state = state
        self._met: dict[Dot, MissingRange] = {}
        self.damage = RowDamage()

    def apply(
        self,
        upserts: Sequence[RowRun],
        deletes: Mapping[str, Sequence[Dot]],
        tombstones_add: Collection[Dot],
        tombstones_del: Collection[Dot],
        position: int,
        attempts: Mapping[str, Mapping[Dot, int]] = NO_ATTEMPTS,
    ) -> None:
        commit_tables(self._disk)
        state = self._state
        with state.reading:
            self._replace_damaged()
            self._insert(upserts)
            for queue, counts in attempts.items():
                for dot, count in counts.items():
                    self._fail(queue, dot, count)
            for queue, dots in deletes.items():
                self._delete(queue, dots)
            for missing in settled_missing(state.missing_ranges.values(), deletes):
                state.missing_ranges.pop(missing_key(missing), None)
            state.tombstones.update(tombstones_add)
            state.tombstones.difference_update(tombstones_del)
            state.position = position

    def _insert(self, upserts: Sequence[RowRun]) -> None:
        state = self._state
        for key, runs in by_partition(upserts).items():
            state.origins.setdefault(key.origin, len(state.origins))
            partition = state.queues.setdefault(key.queue, {}).setdefault(key, _Partition())
            for row in chain.from_iterable(map(rows_in, runs)):
                partition.add(row)
                if row.expires_us:
                    state.expiring.setdefault(row.dot, row)

    def _fail(self, queue: str, dot: Dot, count: int) -> None:
        for key, partition in self._state.queues.get(queue, {}).items():
            row = partition.rows.get(dot.sequence) if key.origin == dot.origin else None
            if row is not None:
                row = partition.rows[dot.sequence] = row._replace(attempts=max(row.attempts, count))
                if row.expires_us:
                    self._state.expiring[dot] = row

    def _delete(self, queue: str, dots: Sequence[Dot]) -> None:
        partitions = self._state.queues.get(queue, {})
        for dot in dots:
            self._state.expiring.pop(dot, None)
            self._state.rotten.discard(dot)
            for key in list(partitions):
                if key.origin == dot.origin:
                    partitions[key].remove(dot.sequence)
                    if not partitions[key].rows:
                        del partitions[key]
        if not partitions:
            self._state.queues.pop(queue, None)

    def missing(self, missing_ranges: Sequence[MissingRange], position: int) -> None:
        commit_tables(self._disk)
        for missing in missing_ranges:
            self._remember(missing)
        self._state.position = position

    def repair(self, missing: MissingRange, rows: Sequence[QueueRow], left: MissingRange | None) -> None:
        state = self._state
        commit_tables(self._disk)
        with state.reading:
            self._replace_damaged()
            if state.missing_ranges.pop(missing_key(missing), None) is not None or not missing.is_of_one:
                if left is not None:
                    self._remember(left)
                self._insert(runs_of(rows))

    def _replace_damaged(self) -> None:
        """Let what was found damaged be stored missing ranges, without their rows."""
        for dot, missing in self._met.items():
            if dot in self._state.rotten:
                self._delete(missing.queue, [dot])
                self._remember(missing)
        self._met = {}

    def _remember(self, missing: MissingRange) -> None:
        known = self._state.missing_ranges.setdefault(missing_key(missing), missing)
        self._state.missing_ranges[missing_key(missing)] = known._replace(through=max(known.through, missing.through))

    def missing_ranges(self) -> list[MissingRange]:
        with self._state.reading:
            return sorted(self._state.missing_ranges.values()) + list(self._met.values())

    def spoil(self, dots: Collection[Dot]) -> list[Dot]:
        """Bits of these rows have flipped: a read finds that the checksum does not fit. Return what is damaged."""
        self._state.rotten.update(dots)
        return list(dots)

    def reset(self, position: int = -1) -> None:
        """As `rescue` does with a file that is wholly damaged; 0: a young one that lost its WAL."""
        self._disk.tables["queues"] = self._state = _QueueState()
        self._state.position = position

    def _sound(self, rows: list[QueueRow]) -> list[QueueRow]:
        """The intact ones of `rows`; the others are among the `missing_ranges` from now on."""
        rotten = self._state.rotten
        if not rotten:
            return rows
        for row in rows:
            if row.dot in rotten and row.dot not in self._met:
                self._met[row.dot] = _missing_of(row)
                note_damage(self.damage, self._met[row.dot])
        return [row for row in rows if row.dot not in rotten]

    def position(self) -> int:
        return self._state.position

    def give_back(self) -> bool:
        return False

    def is_empty(self, node: str) -> bool:
        return not self.listing(node, None, 1)

    def heads(self, node: str, queues: Sequence[str], now_us: int) -> dict[str, QueueHead]:
        found: dict[str, QueueHead] = {}
        with self._state.reading:
            for queue in queues:
                partitions = self._partitions(node, queue)
                if partitions:
                    late = [
                        row.due_us for key, partition in partitions if key.delayed for row in partition.rows.values()
                    ]
                    found[queue] = QueueHead(
                        sum(len(partition.rows) for _, partition in partitions),
                        sum(partition.body_bytes for _, partition in partitions),
                        tuple(sorted({-key.rank for key, _ in partitions}, key=delivery_order, reverse=True)),
                        min((due_us for due_us in late if due_us > now_us), default=0),
                    )
        return found

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
        found: list[QueueRow] = []
        state = self._state
        if priority < 0:
            return rows_within(self._exact_page(node, queue, priority, after, now_us, limit, exact), limit, bytes_max)
        with state.reading:
            first = -1
            if after is not None:
                first = state.origins.get(after.origin, len(state.origins))
            for key, partition in self._partitions(node, queue):
                number = state.origins[key.origin]
                if key.rank == -priority and number >= first:
                    beyond = after.sequence if after is not None and number == first else -1
                    found += self._sound(partition.beyond(beyond, now_us, limit + len(state.rotten)))
            found.sort(key=self._acceptance)
        return rows_within(found, limit, bytes_max)

    def _exact_page(
        self, node: str, queue: str, level: int, after: Dot | None, now_us: int, limit: int, exact: int
    ) -> list[QueueRow]:
        state = self._state
        with state.reading:
            if after is not None and after.origin not in state.origins:
                return []
            begin = (exact,) if after is None else (exact, state.origins[after.origin], after.sequence)
            rows = [
                row
                for key, partition in self._partitions(node, queue)
                if key.rank == -level
                for row in partition.rows.values()
                if row.due_us <= now_us and (row.exact, *self._acceptance(row)) > begin
            ]
            return sorted(self._sound(rows), key=self._exact_order)[:limit]

    def _exact_order(self, row: QueueRow) -> tuple[int, int, int]:
        return row.exact, *self._acceptance(row)

    def skip(self, node: str, queue: str, priority: int, count: int) -> tuple[Dot | None, int, int]:
        with self._state.reading:
            partitions = [partition for key, partition in self._partitions(node, queue) if key.rank == -priority]
            found = sorted((row for one in partitions for row in one.rows.values()), key=self._exact_order)[:count]
        return (found[-1].dot, found[-1].exact, len(found)) if found else (None, 0, 0)

    def due(self, node: str, queue: str, after_us: int, until_us: int, limit: int) -> list[QueueRow]:
        with self._state.reading:
            late = [
                row
                for key, partition in self._partitions(node, queue)
                if key.delayed
                for row in partition.rows.values()
            ]
            late = self._sound(late)
        return sorted((row for row in late if after_us < row.due_us <= until_us), key=_due)[:limit]

    def expired(self, node: str, until_us: int, limit: int, bytes_max: int) -> list[QueueRow]:
        with self._state.reading:
            rows = self._sound(list(self._state.expiring.values()))
        mine = [row for row in rows if row.dot.origin.node == node and row.expires_us <= until_us]
        return expired_within(mine, limit, bytes_max)

    def listing(self, node: str | None, after: str | None, limit: int) -> list[tuple[str, int, int]]:
        found: list[tuple[str, int, int]] = []
        with self._state.reading:
            for queue in sorted(self._state.queues):
                partitions = self._partitions(node, queue)
                if partitions and (after is None or queue > after):
                    messages = sum(len(partition.rows) for _, partition in partitions)
                    found.append((queue, messages, sum(partition.body_bytes for _, partition in partitions)))
                    if len(found) == limit:
                        break
        return found

    def deepest(self, node: str, limit: int) -> list[str]:
        every = self.listing(node, None, len(self._state.queues) + 1)
        return [queue for queue, _, _ in nsmallest(limit, every, key=lambda row: (-row[1], row[0]))]

    def total(self, node: str) -> int:
        return sum([messages for _, messages, _ in self.listing(node, None, len(self._state.queues) + 1)])

    def tombstones(self) -> set[Dot]:
        with self._state.reading:
            return set(self._state.tombstones)

    def origins(self) -> list[Origin]:
        with self._state.reading:
            return sorted({key.origin for partitions in self._state.queues.values() for key in partitions})

    def unsettled(
        self, origin: Origin, after: int, through: int, limit: int, bytes_max: int = UNSETTLED_BYTES
    ) -> list[QueueRow]:
        with self._state.reading:
            rows = [
                row
                for partitions in self._state.queues.values()
                for key, partition in partitions.items()
                if key.origin == origin
                for row in partition.rows.values()
                if after < row.dot.sequence <= through
            ]
            rows = self._sound(rows)
        return rows_within(sorted(rows, key=_dot), limit, bytes_max)

    def close(self) -> None:
        """Nothing to return: the state belongs to the disk."""

    def _partitions(self, node: str | None, queue: str) -> list[tuple[PartitionKey, _Partition]]:
        partitions = self._state.queues.get(queue, {})
        return [(key, partition) for key, partition in partitions.items() if node is None or key.origin.node == node]

    def _acceptance(self, row: QueueRow) -> tuple[int, int]:
        return self._state.origins[row.dot.origin], row.dot.sequence


def _dot(row: QueueRow) -> Dot:
    return row.dot


def _due(row: QueueRow) -> int:
    return row.due_us
