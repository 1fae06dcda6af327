"""Rows that are to be nowhere in a table any more, and files that have them.

A condition is SQL, as in `replay --where`; DataFusion, which is in deltalake, finds the messages that it is true for.
Their files are rewritten without them by the code that sorts files, in one commit for each day. How far the table goes
stays as it is, so no later run adds them again.

Surprising: deltalake's own `delete` is not used. It fails if messages are added meanwhile that the condition may be
true for, and an archiver adds some every few seconds.
"""

from collections import Counter
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from qmq.spark.archive.live_files import LiveFile, live_files
from qmq.spark.archive.storage import ICEBERG_METADATA, files_of, names_in, place_of
from qmq.spark.archive.table import COMMIT_TRIES, ArchiveError, Overtaken, open_ours
from qmq.spark.archive.upkeep import has_id, rewrite, vacuum

if TYPE_CHECKING:
    from qmq.spark.archive.iceberg import IcebergTable

ID: Final = ("origin", "sequence")


def matching(table: str, condition: str) -> dict[str, int]:
    """For how many rows of each day `condition` is true.

    Raises ArchiveError when there is no table of ours, or `condition` is none.
    """
    found = _select(open_ours(table), "day, count(*) AS messages", condition, "GROUP BY day ORDER BY day")
    return dict(zip(found["day"].to_pylist(), found["messages"].to_pylist(), strict=True))


def erase(table: str, condition: str, *, iceberg: "IcebergTable | None" = None) -> dict[str, int]:
    """Remove the rows for which `condition` is true; returns how many of each day. Durable on return.

    Afterwards no file that the table ever had has them, and no snapshot in `iceberg`: earlier versions cannot be read
    any more. Rows that are added meanwhile are removed as well, until a look finds none. After an error, call it again:
    what is done stays done.

    Raises:
        ArchiveError: as `matching`; the table is registered in Iceberg, and `iceberg` is not given or fails.
        Overtaken: others rewrite or add the same all the time.
    """
    if iceberg is None and ICEBERG_METADATA in names_in(place_of(table)):
        raise ArchiveError(
            f"{table} is registered in Iceberg, which would miss its files: give --iceberg, or remove "
            f"{ICEBERG_METADATA} from it if that table is no more"
        )
    erased: Counter[str] = Counter()
    for _ in range(COMMIT_TRIES):
        found = matching(table, condition)
        for day in found:
            try:
                erased[day] += _erase_day(table, condition, day)
            except Overtaken:
                continue  # an archiver has sorted the same files: look again
        if not found:
            break
    else:
        raise Overtaken(f"there are still such rows in {table} after {COMMIT_TRIES} tries; {erased.total()} are erased")
    if iceberg is not None:
        iceberg.register()  # or it would need what is removed
        iceberg.vacuum(snapshot_hours=0)
    vacuum(table, hours=0, full=False)
    return dict(erased)


def _erase_day(table: str, condition: str, day: str) -> int:
    delta = open_ours(table)
    found = _select(delta, "concat(origin, '-', sequence) AS id", condition, f"AND day = '{day}'")
    ids = pa.array(found["id"].to_pylist(), pa.string())  # DataFusion has another type of texts
    files = [file for file in live_files(delta) if file.day == day and _has(table, file, ids)]
    if files:
        rewrite(place_of(table), files, without=ids)
    return len(ids)


def _has(table: str, file: LiveFile, ids: pa.Array) -> bool:
    with pq.ParquetFile(file.path, filesystem=files_of(place_of(table))) as opened:
        return any(has_id(rows, ids).true_count for rows in opened.iter_batches(columns=ID))


def _select(delta: DeltaTable, what: str, condition: str, more: str) -> pa.Table:
    # A new line: the condition may end with a comment.
    query = f"SELECT {what} FROM messages WHERE ({condition}\n) {more}"
    try:
        return pa.table(QueryBuilder().register("messages", delta).execute(query).read_all())
    except DeltaError as error:
        raise ArchiveError(f"the condition {condition!r}: {' '.join(str(error).split())}") from error
