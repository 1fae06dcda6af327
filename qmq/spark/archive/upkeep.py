"""What keeps an archive quick to read: files sorted and put together, unused ones removed. Needs no node.

A commit writes what came since the last one, in the order of the logs: many small files, in which each queue is
everywhere. Here they are rewritten as files of some size (`sorted-…`). Within each `RUN_BYTES` of rows these are sorted
by destination, origin and sequence, in small row groups: a reader of one queue skips most of them.

A sorted file joins later ones only when these weigh as much as it does. So each row is rewritten a few times, however
long a day is, and a day that is over has few files.
"""

import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from qmq.spark.archive.files import PARTITION, DayFile
from qmq.spark.archive.live_files import SORTED, LiveFile, live_files
from qmq.spark.archive.storage import files_of, place_of, remove
from qmq.spark.archive.table import Overtaken, open_table, replace

TARGET_BYTES: Final = 256 << 20
"""Of a file. Sorted ones of at least half of it are left alone."""
STEP_BYTES: Final = 32 << 20
"""Of files that one step of a service rewrites, unless one alone is larger: it goes on with its work between steps."""
RUN_BYTES: Final = 56 << 20
"""Of rows that are sorted together, in memory. Sorting takes twice as much."""
ROWS_PER_GROUP: Final = 8_192
"""A reader of one destination takes whole groups: few rows make it read little more than it needs."""
ORDER: Final = ("destination", "origin", "sequence")


class Rewritten(NamedTuple):
    """Files of the table, before and after."""

    removed: int = 0
    added: int = 0


def compact(table: str, *, target_bytes: int = TARGET_BYTES) -> Rewritten:
    """Sort files and put small ones together, to about `target_bytes`. Readers of the old ones are not disturbed until
    `vacuum`.

    Raises ArchiveError when there is no archive, and Overtaken when another one does the same.
    """
    removed = added = 0
    for files in by_day(live_files(open_table(table))).values():
        chosen = [file for file in files if not file.is_sorted or file.size < target_bytes // 2]
        if len(chosen) > 1 or any(not file.is_sorted for file in chosen):
            done = rewrite(place_of(table), chosen, target_bytes=target_bytes)
            removed, added = removed + done.removed, added + done.added
    return Rewritten(removed, added)


def compact_step(table: str, least: int) -> Rewritten:
    """Rewrite some files of one day, if there is one that needs it; see `due`. Raises as `compact`."""
    for files in due(by_day(live_files(open_table(table))), least):
        return rewrite(place_of(table), files, target_bytes=2 * STEP_BYTES)
    return Rewritten()


def vacuum(table: str, *, hours: int = 168, dry_run: bool = False, full: bool = True) -> list[str]:
    """Remove files that no version of the last `hours` needs, and those of runs that died; returns their names.

    Unless `full`, only files that the table has had: a run that writes at this moment loses nothing.
    """
    removed: list[str] = open_table(table).vacuum(
        retention_hours=hours, dry_run=dry_run, enforce_retention_duration=hours >= 168, full=full
    )
    return removed


def by_day(files: Sequence[LiveFile]) -> dict[str, list[LiveFile]]:
    """The files of each day."""
    found: dict[str, list[LiveFile]] = defaultdict(list)
    for file in files:
        found[file.day].append(file)
    return found


def due(days: dict[str, list[LiveFile]], least: int) -> Iterator[list[LiveFile]]:
    """What should be rewritten together: of the newest day if it has `least` files that are not sorted, and of an
    earlier one if it has any, which only late messages add to.
    """
    for day, found in sorted(days.items()):
        unsorted = [file for file in found if not file.is_sorted]
        if len(unsorted) >= (least if day == max(days) else 1):
            yield joined(unsorted, [file for file in found if file.is_sorted])


def joined(unsorted: Sequence[LiveFile], others: Sequence[LiveFile]) -> list[LiveFile]:
    """As many of `unsorted` as make a step, with those of the `others` that weigh no more than they do together."""
    chosen: list[LiveFile] = []
    weight = 0
    for file in sorted(unsorted, key=lambda file: file.modified_ms):
        if chosen and weight + file.size > STEP_BYTES:
            break
        chosen.append(file)
        weight += file.size
    for file in sorted(others, key=lambda file: file.size):
        if file.size > min(weight, STEP_BYTES):
            break
        chosen.append(file)
        weight += file.size
    return chosen


def rewrite(
    table: str, files: Sequence[LiveFile], *, target_bytes: int = TARGET_BYTES, without: pa.Array | None = None
) -> Rewritten:
    """Files of one day as sorted ones, `without` the rows with these ids, in one commit. After an error it may be in
    the table: its files stay, unless it was overtaken. Raises as `table.replace`.
    """
    columns = pa.schema(field for field in pa.schema(open_table(table).schema()) if field.name != PARTITION)
    made = list(_sorted_files(table, files, columns, target_bytes, without))
    try:
        replace(table, files, made, is_change=without is not None)
    except Overtaken:
        # Of what was erased meanwhile nothing is left, unless it was this commit that came first after all.
        kept = {file.path for file in live_files(open_table(table))}
        for entry in made:
            if entry["path"] not in kept:
                remove(table, entry["path"])
        raise
    return Rewritten(len(files), len(made))


def has_id(rows: pa.RecordBatch | pa.Table, ids: pa.Array) -> Any:
    """For each row, whether its message is one of `ids`."""
    return pc.is_in(pc.binary_join_element_wise(rows["origin"], pc.cast(rows["sequence"], pa.string()), "-"), ids)


def _sorted_files(
    table: str, files: Sequence[LiveFile], columns: pa.Schema, target_bytes: int, without: pa.Array | None
) -> Iterator[dict[str, Any]]:
    """The rows of `files` in sorted files, and what a commit must know of each."""
    made: DayFile | None = None
    try:
        for rows in _runs(table, files, columns, without):
            made = made or DayFile(table, files[0].day, f"{SORTED}{uuid.uuid4().hex}", columns)
            _write_sorted(rows, made)
            del rows  # or it is there while the next ones are gathered
            if made.size() >= target_bytes:
                yield made.finish()
                made = None
        if made is not None:
            yield made.finish()
    except BaseException:
        if made is not None:
            made.abandon()
        raise


def _runs(table: str, files: Sequence[LiveFile], columns: pa.Schema, without: pa.Array | None) -> Iterator[pa.Table]:
    """The rows of `files`, so many at a time as are sorted together."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for live in files:
        with pq.ParquetFile(live.path, filesystem=files_of(table)) as file:
            for found in file.iter_batches(batch_size=ROWS_PER_GROUP):
                batch = found if without is None else found.filter(pc.invert(has_id(found, without)))
                if batch.num_rows:
                    waiting.append(_with(columns, batch))
                    size += batch.nbytes
                if size >= RUN_BYTES:
                    yield _together(waiting)
                    size = 0
    if waiting:
        yield _together(waiting)


def _with(columns: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with the columns of the table: it may have got some since they were written."""
    found = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(len(batch), field.type)
        for field in columns
    ]
    return pa.RecordBatch.from_arrays(found, schema=columns)


def _together(waiting: list[pa.RecordBatch]) -> pa.Table:
    """The batches in one piece: rows are taken out of it several times as fast. Empties `waiting`."""
    rows = pa.Table.from_batches(waiting).combine_chunks()
    waiting.clear()
    return rows


def _write_sorted(rows: pa.Table, file: DayFile) -> None:
    order = pc.sort_indices(rows.select(ORDER), sort_keys=[(name, "ascending") for name in ORDER])
    for first in range(0, len(order), ROWS_PER_GROUP):
        for batch in rows.take(order.slice(first, ROWS_PER_GROUP)).to_batches():
            file.add(batch)
        file.write()
