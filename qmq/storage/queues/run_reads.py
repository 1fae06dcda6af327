"""Reads of the runs of a queue store on a database (`stored_run`), and the notes of what is damaged there.

`database_reads` merges what they give with the rows of single messages.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final, Generic, Protocol, TypeVar

from qmq.model.dots import Origin
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.format.queue_store import QueueRow, RowDamage
from qmq.storage.queues.plan import (
    SIGN,
    PartitionRow,
    first_within,
    is_page_full,
    note_damage,
    origin_columns,
    rows_within,
    signed,
)
from qmq.storage.queues.stored_run import RawRun, StoredRun, read_run


class DatabaseCursor(Protocol):
    """What a statement found."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...


class DatabaseConnection(Protocol):
    """A connection to a database."""

    def execute(self, statement: Any, parameters: Any = ..., /) -> DatabaseCursor: ...


C = TypeVar("C", bound=DatabaseConnection)

Place = tuple[int, int]
"""Partition and sequence of a row, as the database has them."""

NO_PARTITION: Final = -1

RUNS_AT_ONCE: Final = 8
"""Runs that are read in one piece: half a MiB."""


class RunReads(ABC, Generic[C]):
    """A partition, where its runs are read."""

    statements: ModuleType
    """`sqlite_sql` or `postgres_sql`."""

    def __init__(self) -> None:
        self.damage = RowDamage()
        # Damaged rows that were met, and what they may have been.
        self._met: dict[Place, MissingRange] = {}

    def _in_runs(self, reader: C, partition: PartitionRow, beyond: int, limit: int, bytes_max: int) -> list[QueueRow]:
        """The first rows after `beyond` that lie in runs, within these bounds."""
        rows: list[QueueRow] = []
        wanted = 2
        while not is_page_full(rows, limit, bytes_max):
            found = self._runs(
                reader, self.statements.RUNS, partition.id, partition.checksum, min(beyond + 1, SIGN - 1), wanted
            )
            for run in found:
                rows += self._intact_run(partition, run, beyond)
                beyond = run.sequences[-1]
            if len(found) < wanted:
                break
            wanted = min(RUNS_AT_ONCE, (limit - len(rows)) // len(found[-1].sequences) + 1)
        return rows_within(rows, limit, bytes_max)

    def _nth(self, reader: C, both: Sequence[PartitionRow], left: int) -> int | None:
        """The sequence of the `left`-th message of one or two partitions of an origin. No body is read."""
        ids = [both[0].id, both[-1].id if len(both) > 1 else NO_PARTITION]
        place = -SIGN
        for partition in both:
            for through, waiting in reader.execute(self.statements.RUN_COUNTS, (partition.id,)).fetchall():
                (single,) = reader.execute(self.statements.COUNT_SPAN, (*ids, place, through)).fetchone()
                if left <= single + waiting:
                    runs = self._runs(reader, self.statements.RUN_PLACES, partition.id, partition.checksum, through, 1)
                    bounds = (ids[0], place, ids[1], place, left, 0)
                    found = [one for (one,) in reader.execute(self.statements.NTH, bounds).fetchall()]
                    inside = [one for run in runs for one in run.waiting_sequences()]
                    return int(sorted(found + inside)[left - 1])
                left, place = left - single - waiting, through
        found = reader.execute(self.statements.NTH, (ids[0], place, ids[1], place, 1, left - 1)).fetchone()
        return None if found is None else int(found[0])

    def _rows_of_runs(
        self, reader: C, span: tuple[int, Origin, int, int], limit: int, bytes_max: int
    ) -> tuple[list[QueueRow], int]:
        """The first rows in runs of an origin, and the sequence up to which these are all.

        Runs of several partitions lie one in another. None is read that begins after what is wanted.
        """
        number, origin, after, through = span
        rows: list[QueueRow] = []
        first, count, size, asked = -1, 0, 0, limit
        while keys := reader.execute(self.statements.RUNS_OF, (number, after, through, first, after, asked)).fetchall():
            for first, id, queue, rank, delayed, _ in keys:
                if first > through:
                    return rows, through
                partition = PartitionRow(id, queue, rank, delayed, number, *origin_columns(origin))
                for run in self._runs(reader, self.statements.RUNS, partition.id, partition.checksum, first, 1):
                    found = self._intact_run(partition, run, after)
                    rows += found
                    count, size = count + len(found), size + run.size
                # Not each time: many runs would be sorted again and again.
                if count >= limit or size >= bytes_max:
                    rows, through = first_within(rows, through, limit, bytes_max)
                    count = size = 0
            if len(keys) < asked:
                break
            asked *= 8
        return rows, through

    def _intact_run(self, partition: PartitionRow, run: StoredRun, beyond: int) -> list[QueueRow]:
        """The waiting messages of a run after `beyond`; if its bytes are damaged, all that wait there are missing."""
        if run.is_sound():
            return run.rows(partition, beyond)
        self._meet(partition, run.waiting_sequences())
        return []

    def _meet(self, partition: PartitionRow, sequences: Sequence[int]) -> None:
        """Note that these messages are damaged."""
        for sequence in sequences:
            place = partition.id, signed(sequence)
            if place not in self._met:
                self._met[place] = partition.missing(sequence)
                note_damage(self.damage, self._met[place])

    def _runs(
        self,
        connection: C,
        statement: str,
        partition: int,
        shared: int,
        sequence: int,
        limit: int,
        through: int = SIGN - 1,
    ) -> list[StoredRun]:
        """The first `limit` runs of a partition that may hold `sequence`, or later ones up to `through`. `shared` is
        its checksum."""
        raws = self._raw_runs(connection, statement, (partition, partition, sequence, sequence, through, limit))
        with self._legible():
            return [read_run(shared, raw) for raw in raws]

    def _runs_over(
        self, connection: C, statement: str, partition: int, shared: int, sequences: Sequence[int]
    ) -> Iterator[StoredRun]:
        """The runs of a partition that may hold one of `sequences`, which are sorted."""
        place = 0
        while place < len(sequences):
            bounds = sequences[place], RUNS_AT_ONCE, sequences[-1]
            found = self._runs(connection, statement, partition, shared, *bounds)
            for run in found:
                yield run
                place = bisect_right(sequences, run.sequences[-1])
            if len(found) < RUNS_AT_ONCE:
                return

    @abstractmethod
    def _raw_runs(self, connection: C, statement: str, parameters: tuple[int, ...]) -> Sequence[RawRun]:
        """What `RUNS` or `RUN_PLACES` finds."""

    @contextmanager
    def _legible(self) -> Iterator[None]:
        """Inside, values that are never written raise `_broken`."""
        try:
            yield
        except (TypeError, ValueError) as error:
            raise self._broken(str(error)) from error

    @abstractmethod
    def _broken(self, what: str) -> Exception:
        """To be raised inside `_snapshot` or `_change` where the database is not what was written to it."""
