"""`qmq pipeline tables`: a Delta table with a column for each field of bodies, each message in one row, exactly once.

A run makes the commits of an archive (`archive.run`), with other files: what JSON bodies look like, or the schemas of
Avro and Protobuf bodies, makes the columns. The first commit decides; afterwards schemas of Avro add columns, and JSON
does if that is asked for. What fits no column is reported, and not lost: `body` has all of a body as JSON, and
`unparsed` the bytes of one that cannot be decoded.

With a key the table has the last message of each key. The first commit writes files then; later ones merge.
"""

import json
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import CommitProperties

from qmq.model.dots import Vector
from qmq.spark.archive.files import PARTITION, missing_entries, write_rows
from qmq.spark.archive.run import Archived, archive
from qmq.spark.archive.storage import place_of
from qmq.spark.archive.table import TYPED, ArchiveError, Overtaken, choice_of, commit, find_table
from qmq.spark.reading.options import Options
from qmq.spark.reading.partitions import rows_of_part
from qmq.spark.reading.place import Place, open_place
from qmq.spark.reading.plan import Part
from qmq.spark.reading.ranges import Lacking
from qmq.spark.reading.views import arrow_schema
from qmq.spark.typed.avro import AvroBodies, schema_in, schemas_in_log
from qmq.spark.typed.bodies import Bodies, SeenBodies
from qmq.spark.typed.protobuf import protobuf_bodies
from qmq.spark.typed.shapes import fit_of, joined, leaves

OWN: Final = arrow_schema("messages", ("origin", "sequence", "timestamp", "destination"))
BODY: Final = (pa.field("body", pa.string()), pa.field("unparsed", pa.binary()))
OWN_NAMES: Final = frozenset({*OWN.names, *(field.name for field in BODY), PARTITION})
PREFIX: Final = "body_"
"""Of the column of a field that is called as a column of ours."""
ORDER: Final = ("timestamp", "origin", "sequence")
"""By which one message is later than another, whatever node accepted it."""
PARTS_PER_COMMIT: Final = 8
"""Half a gigabyte of log."""
PARTS_PER_MERGE: Final = 1
"""The rows of a commit with a key are in memory."""
ROWS: Final = "table"
"""Of what a commit must know: rows that are merged, in place of a file."""
SCHEMA_PROPERTY: Final = "qmq.schema."
"""Of the table: a schema of Avro that some of its rows have, by its fingerprint."""


@dataclass(slots=True)
class Drift:
    """How bodies differ from the columns: fields by path, with types. `unparsed`: how many are there, by reason."""

    new: dict[str, str] = field(default_factory=dict)
    changed: dict[str, tuple[str, str]] = field(default_factory=dict)
    unparsed: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Tabled:
    """What one run did. `columns`: of fields, with types."""

    done: Archived = field(default_factory=Archived)
    drift: Drift = field(default_factory=Drift)
    added: dict[str, str] = field(default_factory=dict)
    """Columns that this run has added to the table."""
    columns: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {**self.done.as_json(), "drift": asdict(self.drift), "added": self.added, "columns": self.columns}


def tables(
    options: Options,
    table: str,
    *,
    evolve: bool = False,
    key: str = "",
    schemas: Sequence[str] = (),
    protobuf: tuple[str, str] | None = None,
) -> Tabled:
    """Add to `table` the messages that the log holds beyond it. Durable on return.

    `evolve`: new fields of JSON become columns. `key`: a column; the table keeps the last message of each value, and
    all that have none. `schemas`: files with schemas of Avro that the log does not have. `protobuf`: a file of
    descriptors, and the message that all bodies are.

    Raises:
        ArchiveError: as `run.archive`; a file of schemas or descriptors is none; there is no column `key`, or a package
            is missing.
        Overtaken, DataLoss, BadOption, NotConnected, OSError: as `run.archive`.
    """
    with closing(open_place(options)) as place:
        run = _TableRun(place, options, place_of(table), evolve, key)
        for path in schemas:
            run.avro.add(schema_in(path))
        if protobuf is not None:
            run.bodies = Bodies(run.avro, protobuf_bodies(*protobuf))
        return run.go()


class _TableRun:
    def __init__(self, place: Place, options: Options, table: str, evolve: bool, key: str) -> None:
        self._place = place
        self._options = options
        self._table = table
        self._evolve = evolve
        self._key = key
        self._result = Tabled()
        self.avro = AvroBodies()
        self.bodies = Bodies(self.avro)
        self._fields: pa.DataType = pa.struct([])
        self._stored: set[str] = set()
        self._used: set[bytes] = set()
        delta = find_table(table)
        if delta is not None:
            columns = [one for one in pa.schema(delta.schema()) if one.name not in OWN_NAMES]
            self._fields = pa.struct([pa.field(_field_of(one.name), one.type) for one in columns])
            kept = delta.metadata().configuration
            self._stored = {name for name in kept if name.startswith(SCHEMA_PROPERTY)}
            for name in self._stored:
                self.avro.add(json.loads(kept[name]))

    def go(self) -> Tabled:
        self._result.done = archive(
            self._place,
            self._options,
            self._table,
            self._write,
            chosen={**choice_of(self._options, TYPED), "key": self._key},
            make_commit=self._commit,
            parts_per_commit=PARTS_PER_MERGE if self._key else PARTS_PER_COMMIT,
        )
        self._result.columns = {path: str(kind) for path, kind in leaves(self._fields)}
        return self._result

    # Inside

    def _rows(self, parts: Sequence[Part], lacking: Lacking | None = None) -> Iterator[pa.RecordBatch]:
        names = (*OWN.names, "body")
        return (rows for part in parts for rows in rows_of_part(part, self._options, names, lacking))

    def _write(self, parts: Sequence[Part]) -> list[dict[str, Any]]:
        """Files of the parts of one commit, or their rows, if these are to be merged."""
        self._decide(self.bodies.look(body for rows in self._rows(parts) for body in rows["body"].to_pylist()))
        columns = self._columns()
        lacking = Lacking()
        converted = (self._converted(rows, columns) for rows in self._rows(parts, lacking))
        if self._key:
            rows = _last(pa.Table.from_batches(converted, columns), self._key)
            if find_table(self._table) is not None:
                rows = rows.append_column(PARTITION, pc.strftime(rows["timestamp"], "%Y-%m-%d"))
                return [{ROWS: rows, "rows": rows.num_rows, "size": rows.nbytes}, *missing_entries(lacking)]
            converted = iter(rows.to_batches())
        return [*write_rows(converted, columns, self._table, uuid.uuid4().hex), *missing_entries(lacking)]

    def _columns(self) -> pa.Schema:
        return pa.schema([*OWN, *(pa.field(_column_of(field.name), field.type) for field in self._fields), *BODY])

    def _decide(self, seen: SeenBodies) -> None:
        """Which columns there are for bodies like these; reports what has none. Raises ArchiveError."""
        if any(head not in self.avro.schemas for head in seen.heads):
            for schema in schemas_in_log(self._options):
                self.avro.add(schema)
        self._used.update(head for head in seen.heads if head in self.avro.schemas)
        before = self._fields
        for declared in self.bodies.declared(seen):
            self._fields = joined(self._fields, declared)
        if seen.fields is not None and (self._evolve or not before.num_fields):
            self._fields = joined(self._fields, seen.fields)
        # A field that is called as the column of another one is only in `body`.
        self._fields = pa.struct([field for field in self._fields if _field_of(field.name) == field.name])
        if seen.spellings is not None:
            self._note_drift(seen.spellings)
        columns = self._columns()
        if self._key and (self._key not in columns.names or pa.types.is_nested(columns.field(self._key).type)):
            raise ArchiveError(f"the key {self._key} is no column that holds one value; there are: {columns.names}")
        delta = find_table(self._table)
        if delta is None or before == self._fields:
            return
        names = {_column_of(field.name) for field in self._fields if field not in list(before)}
        try:
            delta.alter.add_columns([one for one in Schema.from_arrow(columns).fields if one.name in names])
        except CommitFailedError as error:
            raise Overtaken(f"another process has changed {self._table} meanwhile: {error}") from error
        known = dict(leaves(before))
        self._result.added.update({path: str(kind) for path, kind in leaves(self._fields) if path not in known})

    def _note_drift(self, found: pa.DataType) -> None:
        kept, drift = dict(leaves(self._fields)), self._result.drift
        for path, kind in leaves(found):
            was = kept.get(path)
            if was is None:
                drift.new[path] = str(kind)
            elif kind != was and not (pa.types.is_floating(was) and pa.types.is_integer(kind)):
                drift.changed[path] = (str(was), str(kind))

    def _converted(self, rows: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
        bodies = rows["body"].to_pylist()
        found = [self.bodies.decode(body) for body in bodies]
        self._result.drift.unparsed.update(one.problem for one in found if one.problem)
        values = [one.value if isinstance(one.value, dict) else {} for one in found]
        arrays = [rows[name] for name in OWN.names]
        for one in self._fields:
            fit = fit_of(one.type)
            arrays.append(pa.array([fit(value.get(one.name)) for value in values], one.type))
        arrays.append(pa.array([one.text for one in found], pa.string()))
        unparsed = [body if one.problem else None for body, one in zip(bodies, found, strict=True)]
        return pa.RecordBatch.from_arrays([*arrays, pa.array(unparsed, pa.binary())], schema=columns)

    def _commit(self, table: str, have: Vector, end: Vector, entries: Sequence[Mapping[str, Any]], *more: Any) -> None:
        merged = [entry[ROWS] for entry in entries if ROWS in entry]
        if merged:
            commit(table, have, end, [], *more, add=partial(_merge, merged[0], self._key))
        else:
            commit(table, have, end, entries, *more, columns=self._columns())
        self._keep_schemas()

    def _keep_schemas(self) -> None:
        """So that a journal which drops their definitions does not matter. The next run tries again what fails."""
        names = {f"{SCHEMA_PROPERTY}{head.hex()}": json.dumps(self.avro.schemas[head]) for head in self._used}
        new = {name: text for name, text in names.items() if name not in self._stored}
        delta = find_table(self._table)
        if new and delta is not None:
            with suppress(CommitFailedError):
                delta.alter.set_table_properties(new, raise_if_not_exists=False)
                self._stored.update(new)


def _column_of(field: str) -> str:
    return f"{PREFIX}{field}" if field.lower() in OWN_NAMES else field


def _field_of(column: str) -> str:
    """The inverse."""
    field = column.removeprefix(PREFIX)
    return field if field.lower() in OWN_NAMES else column


def _last(rows: pa.Table, key: str) -> pa.Table:
    """The last row of each key, and all without one."""
    rows = rows.sort_by([(name, "ascending") for name in ORDER])
    keys = rows[key].to_pylist()
    last = {value: index for index, value in enumerate(keys)}
    return rows.take([index for index, value in enumerate(keys) if value is None or last[value] == index])


def _merge(rows: pa.Table, key: str, delta: DeltaTable, properties: CommitProperties) -> None:
    """Rows in place of those with the same key, unless these are later."""
    is_later = ""
    for name in reversed(ORDER):
        further = f" OR s.{name} = t.{name} AND ({is_later})" if is_later else ""
        is_later = f"s.{name} > t.{name}{further}"
    quoted = '"' + key.replace('"', '""') + '"'
    merger = delta.merge(
        rows, f"t.{quoted} = s.{quoted}", source_alias="s", target_alias="t", commit_properties=properties
    )
    merger.when_matched_update_all(predicate=is_later).when_not_matched_insert_all().execute()
