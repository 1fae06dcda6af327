"""The Delta table of an archive, or of typed bodies: its commits, how far it goes, and what it is a table of.

One commit holds files and, per origin, the last sequence in them, as Delta's application transactions (`qmq:ORIGIN`,
version = sequence). A commit is made only on a table that goes as far as the run believed, so nothing is in it twice.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import (
    AddAction,
    CommitProperties,
    RemoveAction,
    Transaction,
    create_table_with_add_actions,
)

from qmq.errors import QmqError
from qmq.model.dots import Vector
from qmq.spark.archive.files import PARTITION, SCHEMA
from qmq.spark.archive.live_files import LiveFile, live_files
from qmq.spark.archive.losses import Losses, losses_from_json, losses_to_json
from qmq.spark.archive.storage import directory_of, names_in, place_of
from qmq.spark.reading.options import Options, names_to_text, vector_to_json
from qmq.spark.reading.tables import time_of

TABLE_VERSION: Final = 1
ARCHIVE: Final = "qmq archive"
TYPED: Final = "qmq table"
NAMES: Final = {ARCHIVE: "archive", TYPED: "typed table"}
"""Kinds of tables, as their descriptions and errors have them."""
DELTA_LOG: Final = "_delta_log"
LOG_RETENTION: Final = "interval 7 days"
"""Of versions: a service makes thousands of them a day, each a file of the log, until a checkpoint finds it too old."""
LOST: Final = "qmq.lost"
"""Of each commit of ours: `losses`."""
COMMIT_TRIES: Final = 10
"""Of one commit, while others (`compact`, `vacuum`, another run) commit as well."""

EARLIER_STATE: Final = "_qmq.json"
"""What typed tables had instead of a log of Delta."""

Add: TypeAlias = Callable[[DeltaTable, CommitProperties], Any]
"""What makes one commit."""


class ArchiveError(QmqError):
    """The table is not one that this job can go on with."""


class Overtaken(ArchiveError):
    """Another run has added to the table meanwhile: it holds nothing of this run beyond what was reported."""


def find_table(table: str) -> DeltaTable | None:
    """None where there is none. Raises BadOption when it cannot be one."""
    try:
        return DeltaTable(place_of(table))
    except TableNotFoundError:
        return None


def open_table(table: str) -> DeltaTable:
    """The same. Raises ArchiveError when there is none."""
    delta = find_table(table)
    if delta is None:
        raise ArchiveError(f"there is no archive at {table}")
    return delta


def table_vector(delta: DeltaTable, origins: Iterable[Any]) -> Vector:
    """How far the table goes for each of `origins`."""
    found = {origin: delta.transaction_version(f"qmq:{origin}") for origin in origins}
    return {origin: last for origin, last in found.items() if last is not None}


def lost_of(delta: DeltaTable) -> Losses:
    """What the table lacks, although it goes over it: as the last commit says that says so.

    Others make commits, too, and the log is long: the last ones are looked at first.
    """
    for limit in (1, 20, None):
        for made in delta.history(limit):
            if LOST in made:
                return losses_from_json(made[LOST])
    return ()


def archive_choice(delta: DeltaTable, table: str) -> dict[str, str]:
    """Options of `format("qmq")` that choose what the table was started with. Raises ArchiveError."""
    was = _described(delta, table, ARCHIVE)
    said = {
        "subscribe": names_to_text(was["destinations"]) if was["destinations"] is not None else None,
        "subscribePattern": was["pattern"],
        "startingTimestamp": _iso(was["from_us"]),
        "endingTimestamp": _iso(was["to_us"]),
    }
    return {name: text for name, text in said.items() if text is not None}


def _iso(us: int | None) -> str | None:
    return None if us is None else time_of(us).isoformat()


def choice_of(options: Options, kind: str = ARCHIVE) -> dict[str, Any]:
    """What the table is an archive of; stands in its description."""
    return {
        kind: TABLE_VERSION,
        "destinations": sorted(options.destinations) if options.destinations is not None else None,
        "pattern": options.pattern.pattern if options.pattern is not None else None,
        "from_us": options.starting_us,
        "to_us": options.ending_us,
    }


def require_same(delta: DeltaTable, table: str, chosen: Mapping[str, Any]) -> None:
    """Raises ArchiveError when the table is none of ours, or is of something else than `chosen`."""
    was = _described(delta, table, next(iter(chosen)))
    if was != chosen:
        raise ArchiveError(f"{table} was started as {json.dumps(was)}, and this run is {json.dumps(dict(chosen))}")


def begin(table: str, have: Vector, chosen: Mapping[str, Any]) -> Vector | None:
    """How far the table goes of what there is, which may be nothing when all nodes have begun again; None: no table.

    Raises ArchiveError when there is something else.
    """
    directory = directory_of(table)
    if directory is not None and directory.exists() and not directory.is_dir():
        raise ArchiveError(f"{table} is a file; an archive is a directory")
    delta = find_table(table)
    if delta is None:
        _require_room(table)
        return None
    require_same(delta, table, chosen)
    return table_vector(delta, have)


def _require_room(table: str) -> None:
    """Raises ArchiveError when a first run would mix its files with others."""
    # A first run that was killed has left files of days.
    others = [name for name in names_in(table) if not name.startswith((f"{PARTITION}=", DELTA_LOG))]
    if EARLIER_STATE in others:
        raise ArchiveError(
            f"{table} was written by `qmq pipeline tables` of an earlier version, which is not continued: give a new "
            f"directory. The old rows stay in {table}/run=*, as Parquet files"
        )
    if others:
        raise ArchiveError(f"{table} is no archive and not empty, it has {others[0]!r}: give a new directory")


def _described(delta: DeltaTable, table: str, *kinds: str) -> dict[str, Any]:
    """What the table says that it is one of. Raises ArchiveError when it is of none of these kinds."""
    try:
        was = json.loads(delta.metadata().description or "")
    except ValueError:
        was = None
    found = [was[kind] for kind in kinds if kind in was] if isinstance(was, dict) else []
    if not found:
        raise ArchiveError(f"{table} is a Delta table, but no {' or '.join(NAMES[kind] for kind in kinds)} of QMQ")
    if found[0] > TABLE_VERSION:
        raise ArchiveError(f"{table} was written by later software (version {found[0]})")
    return was


def open_ours(table: str) -> DeltaTable:
    """An archive or a typed table. Raises ArchiveError when there is none, and as `open_table`."""
    delta = open_table(table)
    _described(delta, table, *NAMES)
    return delta


def commit(
    table: str,
    have: Vector,
    end: Vector,
    entries: Sequence[Mapping[str, Any]],
    chosen: Mapping[str, Any],
    lost: tuple[Losses, Losses] = ((), ()),
    *,
    columns: pa.Schema = SCHEMA,
    add: Add | None = None,
) -> None:
    """Add files (as `files.write_rows` returns them), and how far the table goes with them, in one commit.

    `have`: how far it goes without them, as this run knows it. Makes the table if there is none, with `columns`. `add`
    puts its rows into one that is there otherwise than by adding files. `lost`: what the table lacks of what it goes
    over, before the commit, as this run knows it, and after it.

    Raises:
        ArchiveError: there is another table.
        Overtaken: the table goes further than `have`, lacks something else, or others commit all the time.
    """
    actions = [_action(entry) for entry in entries]
    add = add or partial(_append, actions)
    _try(lambda: _commit_once(table, have, end, actions, chosen, columns, add, lost), table)


def replace(
    table: str, files: Sequence[LiveFile], entries: Sequence[Mapping[str, Any]], *, is_change: bool = False
) -> None:
    """In place of `files` have those of `entries`, in one commit: the same rows, unless `is_change`. What others add
    stays, and how far the table goes.

    Raises Overtaken when the table does not have all of `files` any more, or others commit all the time.
    """
    now_ms = int(time.time() * 1000)
    actions: list[AddAction | RemoveAction] = [
        RemoveAction(file.path, is_change, now_ms, file.size, {PARTITION: file.day}) for file in files
    ]
    actions += [_action(entry, is_new=is_change) for entry in entries]

    def replace_once() -> None:
        delta = open_table(table)
        if not {file.path for file in files} <= {file.path for file in live_files(delta)}:
            raise Overtaken(f"another one has rewritten files of {table} meanwhile; this one has changed nothing")
        said = {LOST: losses_to_json(lost_of(delta))}
        _append(actions, delta, CommitProperties(custom_metadata=said, max_commit_retries=0))

    _try(replace_once, table)


def _try(make: Callable[[], None], table: str) -> None:
    """`make` a commit. Others may have committed, which may not matter (`compact` only rewrites): look again."""
    for _ in range(COMMIT_TRIES):
        try:
            return make()
        except CommitFailedError as error:
            problem = error
    raise Overtaken(f"{table} could not be changed in {COMMIT_TRIES} tries: {problem}") from problem


def _append(actions: Sequence[AddAction | RemoveAction], delta: DeltaTable, properties: CommitProperties) -> None:
    delta.create_write_transaction(list(actions), "append", delta.schema(), [PARTITION], commit_properties=properties)


def _commit_once(
    table: str,
    have: Vector,
    end: Vector,
    actions: list[AddAction],
    chosen: Mapping[str, Any],
    columns: pa.Schema,
    add: Add,
    lost: tuple[Losses, Losses],
) -> None:
    """Raises CommitFailedError when the table has changed since it was looked at."""
    moved = {origin: last for origin, last in end.items() if last > have.get(origin, 0)}
    properties = CommitProperties(
        custom_metadata={"qmq.vector": json.dumps(vector_to_json({**have, **end})), LOST: losses_to_json(lost[1])},
        app_transactions=[Transaction(f"qmq:{origin}", last) for origin, last in moved.items()],
        max_commit_retries=0,  # one would commit without looking at how far the table goes now
    )
    if not DeltaTable.is_deltatable(table):
        try:
            create_table_with_add_actions(
                table,
                Schema.from_arrow(columns.append(pa.field(PARTITION, pa.string()))),
                actions,
                mode="error",
                partition_by=[PARTITION],
                name="messages",
                description=json.dumps(dict(chosen)),
                # Readers need the bounds of all columns, or of none.
                configuration={"delta.logRetentionDuration": LOG_RETENTION, "delta.dataSkippingNumIndexedCols": "-1"},
                commit_properties=properties,
            )
            return
        except DeltaError:
            if not DeltaTable.is_deltatable(table):
                raise
            # Another first run was quicker.
    delta = DeltaTable(table)
    require_same(delta, table, chosen)
    before = table_vector(delta, moved)
    if any(before.get(origin, 0) != have.get(origin, 0) for origin in moved) or lost_of(delta) != lost[0]:
        raise Overtaken(f"another run has added to {table} meanwhile; this one has added nothing")
    add(delta, properties)


def _action(entry: Mapping[str, Any], *, is_new: bool = True) -> AddAction:
    return AddAction(
        path=entry["path"],
        size=entry["size"],
        partition_values={PARTITION: entry["day"]},
        modification_time=entry["modified_ms"],
        data_change=is_new,
        stats=entry["stats"],
    )
