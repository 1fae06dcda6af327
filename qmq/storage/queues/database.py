"""A queue store on a database: changes, as far as SQLite and PostgreSQL share them; `database_reads` has the reads.

Each database has its own statements (`sqlite_sql`, `postgres_sql`), and its own way to pass many rows
(`sqlite_store`, `postgres_store`).
"""

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

from qmq.model.dots import Dot, Origin
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.format.queue_store import NO_ATTEMPTS, QueueRow, RowRun
from qmq.storage.format.row_checksum import number_checksum, partition_checksum
from qmq.storage.queues.database_reads import DatabaseReads
from qmq.storage.queues.plan import (
    PartitionKey,
    PartitionRow,
    attempts_by_origin,
    by_partition,
    missing_columns,
    missing_key,
    runs,
    settled_missing,
    settles_by_origin,
    signed,
)
from qmq.storage.queues.rows import counts_of, row_values, runs_of
from qmq.storage.queues.run_reads import C, Place
from qmq.storage.queues.stored_run import divide, run_row

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
        with self._changing() as (writer, added):
            self._insert(writer, by_partition(upserts), added)
            self._fail(writer, attempts_by_origin(attempts), added)
            self._delete(writer, settles_by_origin(deletes), added)
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

    def missing(self, missing_ranges: Sequence[MissingRange], position: int) -> None:
        with self._change() as writer:
            for missing in missing_ranges:
                writer.execute(self.statements.ADD_MISSING, missing_columns(missing))
            self._move(writer, position)

    def repair(self, missing: MissingRange, rows: Sequence[QueueRow], left: MissingRange | None) -> None:
        with self._changing() as (writer, added):
            if self._end_missing(writer, missing) or not missing.is_of_one:
                if left is not None:
                    writer.execute(self.statements.ADD_MISSING, missing_columns(left))
                self._insert(writer, by_partition(runs_of(rows)), added)

    @contextmanager
    def _changing(self) -> Iterator[tuple[C, dict[Origin, int]]]:
        """One transaction, which first replaces what reads have found damaged; and numbers of new origins, to be filled
        inside. Those from a transaction that failed do not exist."""
        met = list(self._met)
        added: dict[Origin, int] = {}
        with self._change() as writer:
            self._replace_damaged(writer, met)
            yield writer, added
        self._ids.update(added)
        for place in met:
            self._met.pop(place, None)

    def _replace_damaged(self, writer: C, met: Sequence[Place]) -> None:
        """Delete the rows in these places that are still damaged, and store as missing ranges what they may have been.

        Of a damaged run, that is all that waits in it. The sizes of other rows are not credible, so partitions are
        counted again.
        """
        missing: list[MissingRange] = []
        for id, group in groupby(sorted(met), itemgetter(0)):
            found = writer.execute(self.statements.PARTITION, (id,)).fetchone()
            if found is None:
                continue  # A settle was the last one there.
            partition = PartitionRow(*found)
            sequences = [sequence for _, sequence in group]
            for place in [(id, sequence) for sequence in sequences]:
                raw = self._one(writer, place)
                if raw is not None and not self._intact(writer, partition, [raw]):
                    writer.execute(self.statements.DELETE_ONE, place)
                    missing.append(self._met[place])
            for run in list(self._runs_over(writer, self.statements.RUNS, id, partition.checksum, sequences)):
                if not run.is_sound():
                    waiting = run.waiting_sequences()
                    missing += [partition.missing(sequence) for sequence in waiting]
                    self._settle(writer, [(id, partition.checksum, waiting)])
            self._run_rows(self.statements.RECOUNT, [(id,)])
            self._run_rows(self.statements.CLOSE_PARTITIONS, [(id,)])
        for one in missing:
            writer.execute(self.statements.ADD_MISSING, missing_columns(one))

    def _insert(self, writer: C, partitions: dict[PartitionKey, list[RowRun]], added: dict[Origin, int]) -> None:
        """Add the messages that are not here already, and their partitions."""
        divided = list(map(divide, partitions.values()))
        counts = list(map(counts_of, partitions.values()))
        numbers = [self._number(key.origin, added) for key in partitions]
        shared = [partition_checksum(*key) for key in partitions]
        wanted = zip(partitions, numbers, counts, shared, strict=True)
        opened = self._open_partitions([(*key[:3], number, *count, one) for key, number, count, one in wanted])
        spans: list[tuple[int, int, int, int]] = []
        for index, (partition, messages) in enumerate(opened):
            if messages > counts[index][0]:
                sequences = [record[0] for run in chain(*divided[index]) for record in run.records]
                spans.append((index, partition, signed(min(sequences)), signed(max(sequences))))
        # There is some of it: the disk has lost synced journal, and peers send it again; or a repair fills a gap.
        overlapping = {index for (index,) in self._ask_rows(self.statements.OVERLAPPING, spans)}
        stored: list[tuple[Value, ...]] = []
        single: list[Value] = []
        recount: set[int] = set()
        for index, (whole, short) in enumerate(divided):
            partition, number, checksum = opened[index][0], numbers[index], shared[index]
            if index in overlapping:
                whole, short = [], self._not_in_runs(writer, partition, checksum, [*whole, *short])
            if (whole or index in overlapping) and counts_of(chain(whole, short))[0] != counts[index][0]:
                recount.add(partition)
            stored += [run_row(partition, checksum, run) for run in whole]
            for run in short:
                single += row_values(partition, number, checksum, run)
        self._run_rows(self.statements.ADD_RUNS, stored)
        if not self._add_rows(single):
            recount.update(partition for partition, _ in opened)
        self._run_rows(self.statements.RECOUNT, [(partition,) for partition in recount])

    def _not_in_runs(self, writer: C, partition: int, shared: int, runs: Sequence[RowRun]) -> list[RowRun]:
        """`runs` without the messages that wait in runs here."""
        sequences = sorted(record[0] for run in runs for record in run.records)
        known: set[int] = set()
        for stored in self._runs_over(writer, self.statements.RUN_PLACES, partition, shared, sequences):
            known.update(stored.waiting_sequences())
        return [run._replace(records=[record for record in run.records if record[0] not in known]) for run in runs]

    def _fail(
        self, writer: C, attempts: dict[tuple[str, Origin], list[tuple[int, int]]], added: dict[Origin, int]
    ) -> None:
        keys = list(attempts)
        failed: list[tuple[int, int, int]] = []
        for index, partition, _, has_runs in self._partitions_of(keys, added):
            if has_runs:
                self._take_out(writer, self._partition(writer, partition), [one for one, _ in attempts[keys[index]]])
            failed += [(partition, sequence, count) for sequence, count in attempts[keys[index]]]
        self._run_rows(self.statements.FAIL, failed)

    def _take_out(self, writer: C, partition: PartitionRow, sequences: Sequence[int]) -> None:
        """Give these messages rows of their own, where their failures can be counted."""
        wanted = set(sequences)
        rows: list[QueueRow] = []
        for run in self._runs_over(writer, self.statements.RUNS, partition.id, partition.checksum, sorted(wanted)):
            # Of a damaged run, the journal and the peers know the failures.
            rows += [row for row in self._intact_run(partition, run, -1) if row.dot.sequence in wanted]
        self._settle(writer, [(partition.id, partition.checksum, sorted(row.dot.sequence for row in rows))])
        single: list[Value] = []
        for one in runs_of(rows):
            single += row_values(partition.id, partition.number, partition.checksum, one)
        self._add_rows(single)

    def _delete(self, writer: C, settles: dict[tuple[str, Origin], list[int]], added: dict[Origin, int]) -> None:
        """Delete these messages, and the partitions that are empty then."""
        every = list(settles.values())
        found: list[tuple[int, int, int, int]] = self._partitions_of(list(settles), added)
        left = [(id, every[index]) for index, id, _, has_runs in found if not has_runs]
        of_runs = [(id, shared, every[index]) for index, id, shared, has_runs in found if has_runs]
        beside, deleted = self._settle(writer, of_runs)
        single: list[tuple[int, int]] = []
        for partition, sequences in left + beside:
            long, remainder = runs(sequences)
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

    def _settle(
        self, writer: C, settles: Iterable[tuple[int, int, list[int]]]
    ) -> tuple[list[tuple[int, list[int]]], list[Any]]:
        """Note beside the runs of partitions that messages are settled, and delete the runs of which all are.

        `settles`: partition, its checksum, sorted sequences. Returns partition and sequences of those that were in no
        run; and partition, messages and bytes of those that were.
        """
        left: list[tuple[int, list[int]]] = []
        deleted: list[tuple[int, int, int]] = []
        changed: list[tuple[Value, ...]] = []
        finished: list[Place] = []
        noted: list[Place] = []
        for partition, shared, sequences in settles:
            wanted = set(sequences)
            for run in self._runs_over(writer, self.statements.RUN_PLACES, partition, shared, sequences):
                waits = run.waiting_sequences()
                settled = wanted.intersection(waits)
                if not settled:
                    continue
                wanted -= settled
                is_finished = len(settled) == len(waits)
                waiting = b"" if is_finished else run.without(settled)
                before, after = run.totals(run.waiting), run.totals(waiting)
                deleted.append((partition, before[0] - after[0], before[1] - after[1]))
                if not is_finished:
                    changed.append(run.settled_row(partition, shared, waiting))
                    continue
                finished.append((partition, run.sequences[0]))
                if len(waits) < len(run.sequences):
                    noted.append(finished[-1])
            left.append((partition, sorted(wanted)))
        self._run_rows(self.statements.SETTLE, changed)
        self._run_rows(self.statements.DELETE_RUNS, finished)
        self._run_rows(self.statements.DELETE_SETTLED, noted)
        return left, deleted

    def _partitions_of(self, keys: Sequence[tuple[str, Origin]], added: dict[Origin, int]) -> list[Any]:
        """(Index in `keys`, partition, its checksum, whether it has runs) of the partitions that exist."""
        numbers = [(queue, self._known_number(origin, added)) for queue, origin in keys]
        known = [(index, queue, number) for index, (queue, number) in enumerate(numbers) if number is not None]
        return self._ask_rows(self.statements.PARTITIONS_OF, known)

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
    def _open_partitions(self, partitions: list[tuple[Value, ...]]) -> list[tuple[int, int]]:
        """Add `messages` and `bytes` to these partitions, or open them: columns of `lanes` without the id. Returns, in
        the same order, id and messages."""

    @abstractmethod
    def _add_rows(self, flat: Sequence[Value]) -> bool:
        """Add rows of single messages (`row_values`); False: some were here already, and stay as they are."""

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
