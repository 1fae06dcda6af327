"""A queue store on a database: changes, as far as SQLite and PostgreSQL share them; `database_reads` has the reads.

Each database has its own statements (`sqlite_sql`, `postgres_sql`), and its own way to pass many rows
(`sqlite_store`, `postgres_store`).
"""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from qmq.model.dots import Dot, Origin
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.format.queue_store import NO_ATTEMPTS, QueueRow, RowRun
from qmq.storage.format.row_checksum import number_checksum
from qmq.storage.queues.database_reads import C, DatabaseReads, Place
from qmq.storage.queues.plan import (
    PartitionKey,
    attempts_by_origin,
    by_partition,
    missing_columns,
    missing_key,
    runs,
    settled_met,
    settled_missing,
    settles_by_origin,
    signed,
)
from qmq.storage.queues.rows import runs_of

Value = str | int | bytes | bytearray


class DatabaseQueueStore(DatabaseReads[C]):
    """See the module's opening, and `interfaces.QueueStore`."""

    kind: str

    def __init__(self) -> None:
        super().__init__()
        self._ids: dict[Origin, int] = {}
        # The position of the change that is under way, or was the last one.
        self._moving = 0

    def apply(
        self,
        upserts: Sequence[RowRun],
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
            self._drop(writer, missing_no_more)
            for missing in settled_missing(self._lost(writer), deletes):
                self._end_missing(writer, missing)
            tombstones = [
                (self._number(origin, added), signed(sequence), number_checksum(sequence, *origin))
                for origin, sequence in tombstones_add
            ]
            self._run_rows(self.statements.ADD_TOMBSTONES, tombstones)
            removed = [(self._number(origin, added), signed(sequence)) for origin, sequence in tombstones_del]
            self._run_rows(self.statements.DELETE_TOMBSTONES, removed)
            self._move(writer, position)
        self._changed(added, missing_no_more)

    def missing(self, missing_ranges: Sequence[MissingRange], position: int) -> None:
        with self._change() as writer:
            for missing in missing_ranges:
                self._remember(writer, missing)
            self._move(writer, position)

    def repair(self, missing: MissingRange, rows: Sequence[QueueRow], left: MissingRange | None) -> None:
        met = [place for place, one in list(self._met.items()) if missing_key(one) == missing_key(missing)]
        added: dict[Origin, int] = {}
        with self._change() as writer:
            damaged = [place for place in met if self._is_damaged(writer, place)]
            # First: the damaged row may be in the place of the sound one.
            self._drop(writer, damaged)
            stood = self._end_missing(writer, missing)
            if damaged or stood or not missing.is_of_one:
                if left is not None:
                    self._remember(writer, left)
                self._insert(by_partition(runs_of(rows)), added)
        self._changed(added, met)

    def _changed(self, added: dict[Origin, int], repaired: Sequence[Place]) -> None:
        """Call it after the transaction: numbers from one that failed do not exist."""
        self._ids.update(added)
        for place in repaired:
            self._met.pop(place, None)

    def _fail(self, attempts: dict[tuple[str, Origin], list[tuple[int, int]]], added: dict[Origin, int]) -> None:
        keys = list(attempts)
        failed = [
            (partition, sequence, count)
            for index, partition in self._partitions_of(keys, added)
            for sequence, count in attempts[keys[index]]
        ]
        self._run_rows(self.statements.FAIL, failed)

    def _delete(self, settles: dict[tuple[str, Origin], list[int]], added: dict[Origin, int]) -> None:
        """Delete these rows, and the partitions that are empty then."""
        keys = list(settles)
        deleted: list[tuple[int, int, int]] = []
        single: list[tuple[int, int]] = []
        for index, partition in self._partitions_of(keys, added):
            long, remainder = runs(settles[keys[index]])
            for first, last in long:
                deleted += self._delete_run(partition, first, last)
            single += [(partition, sequence) for sequence in remainder]
        deleted += self._delete_rows(single)
        totals: dict[int, tuple[int, int]] = {}
        for partition, count, size in deleted:
            known = totals.get(partition, (0, 0))
            totals[partition] = (known[0] + count, known[1] + size)
        self._run_rows(self.statements.SUBTRACT, [(partition, *total) for partition, total in totals.items()])
        self._run_rows(self.statements.CLOSE_PARTITIONS, [(partition,) for partition in totals])

    def _partitions_of(self, keys: Sequence[tuple[str, Origin]], added: dict[Origin, int]) -> list[Any]:
        """(Index in `keys`, partition) of the partitions that exist."""
        numbers = [(queue, self._known_number(origin, added)) for queue, origin in keys]
        known = [(index, queue, number) for index, (queue, number) in enumerate(numbers) if number is not None]
        return self._ask_rows(self.statements.PARTITIONS_OF, known)

    def _drop(self, writer: C, damaged: Sequence[Place]) -> None:
        """Delete these rows. Their own sizes are not credible, so their partitions are counted again."""
        for place in damaged:
            writer.execute(self.statements.DELETE_ONE, place)
            self._run_rows(self.statements.RECOUNT, [place[:1]])
            self._run_rows(self.statements.CLOSE_PARTITIONS, [place[:1]])

    def _remember(self, writer: C, missing: MissingRange) -> None:
        writer.execute(self.statements.ADD_MISSING, missing_columns(missing))

    def _end_missing(self, writer: C, missing: MissingRange) -> int:
        """Return how many there were."""
        return writer.execute(self.statements.END_MISSING, missing_key(missing)).rowcount

    def _move(self, writer: C, position: int) -> None:
        writer.execute(self.statements.MOVE, (position, number_checksum(position)))
        self._moving = position

    def _number(self, origin: Origin, added: dict[Origin, int]) -> int:
        """The number of `origin`; a new one is given inside the open transaction."""
        number = self._known_number(origin, added)
        if number is None:
            number = added[origin] = self._add_origin(origin)
        return number

    def _known_number(self, origin: Origin, added: dict[Origin, int]) -> int | None:
        return self._ids.get(origin) or added.get(origin)

    @abstractmethod
    def _change(self) -> AbstractContextManager[C]:
        """One transaction on the writing connection; raises as `interfaces.QueueStore` says."""

    @abstractmethod
    def _insert(self, partitions: dict[PartitionKey, list[RowRun]], added: dict[Origin, int]) -> None:
        """Add the rows that are not here already, and their partitions."""

    @abstractmethod
    def _run_rows(self, statement: str, rows: Sequence[tuple[Value, ...]]) -> None:
        """Execute `statement` for `rows`, inside the open transaction; nothing for none."""

    @abstractmethod
    def _ask_rows(self, statement: str, rows: Sequence[tuple[Value, ...]]) -> list[Any]:
        """What `statement` finds for `rows`, inside the open transaction."""

    @abstractmethod
    def _delete_run(self, partition: int, first: int, last: int) -> list[Any]:
        """Delete rows with consecutive sequences; (partition, messages, bytes) of what was there."""

    @abstractmethod
    def _delete_rows(self, places: Sequence[Place]) -> list[Any]:
        """As `_delete_run`."""

    @abstractmethod
    def _add_origin(self, origin: Origin) -> int: ...
