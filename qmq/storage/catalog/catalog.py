"""The catalog on SQLite, through sqlite-utils and its migrations: an operator can open it with `sqlite-utils`.

A handful of small tables, written some tens of times per second at most. Each change is one transaction that is
durable on return (`sqlite`). The commit of `commit_checkpoint` is the commit point of a checkpoint.
"""

import json
import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from qmq.definitions.definition import Definition, Key
from qmq.errors import LogBroken
from qmq.model.cursors import Cursor, Name
from qmq.model.dots import Dot, Origin, Vector, parse_origin
from qmq.storage.disk.sqlite import closed_by_an_error, medium, open_migrated, vector_from_json, vector_to_json
from qmq.storage.disk.sqlite_import import Database, Migrations
from qmq.storage.format.definition_record import version_fields, version_of
from qmq.storage.format.interfaces import CheckpointState, DirectoryIdentity, FanoutExtent
from qmq.storage.format.term_record import TermNote

Row = dict[str, Any]
KEYS: Final[Mapping[str, str | tuple[str, ...]]] = {
    "fanouts": "destination",
    "durable_subscriptions": ("destination", "client", "name"),
    "given_up": "origin",
    "terms": ("owner", "is_vote"),
    "facts": "name",
    "definitions": ("kind", "name"),
}
"""Of tables that are written many rows at a time."""

CATALOG_FILE: Final = "catalog.sqlite"

migrations = Migrations("qmq-catalog")


@migrations()
def m001_first(database: Database) -> None:
    """Each row has a CRC-32 of itself (`row_checksum`).

    `positions` has two rows: `checkpoint`, and `base` for the start of the kept journal. `facts`: see `mesh_facts`.
    Of a durable subscription `start`, `done`, `told` and `holder` are JSON; a row with `created_us` 0 remembers a
    deletion. `terms` has one row per owner for the term, and one for this node's vote.
    """

    def create(table: str, key: str, integers: str = "", texts: str = "") -> None:
        columns = {**dict.fromkeys(integers.split(), int), **dict.fromkeys(texts.split(), str), "checksum": int}
        database.table(table).create(columns, pk=tuple(key.split()), not_null=set(columns))

    create("identity", "node", texts="node uuid", integers="format_version")
    create("positions", "name", texts="name vector", integers="position")
    create(
        "fanouts",
        "destination",
        texts="destination name dropped",
        integers="start end records first_us last_us dropped_records",
    )
    create("incarnations", "origin", texts="origin", integers="started_us")
    create("given_up", "origin", texts="origin", integers="through")
    create(
        "durable_subscriptions",
        "destination client name",
        texts="destination client name start done told holder",
        integers="created_us deleted_us credit",
    )
    create("facts", "name", texts="name value")
    create("terms", "owner is_vote", texts="owner server", integers="is_vote number")


@migrations()
def m002_definitions(database: Database) -> None:
    """`value` is JSON, empty for a tombstone; `version` and `replaced` are JSON (`definition_record`)."""
    columns = {**dict.fromkeys(("kind", "name", "value", "version", "replaced"), str), "checksum": int}
    database.table("definitions").create(columns, pk=("kind", "name"), not_null=set(columns))


TABLES: Final = (
    "identity",
    "positions",
    "fanouts",
    "incarnations",
    "given_up",
    "durable_subscriptions",
    "facts",
    "terms",
    "definitions",
)

KNOWN_MIGRATIONS: Final = frozenset({"m001_first", "m002_definitions"})


class SqliteCatalog:
    """See `interfaces.Catalog`. Calls from several threads wait for each other."""

    def __init__(self, path: Path | None) -> None:
        """Open or make the file, brought to this version, and look at all of it. Raises FutureVersion, LogBroken.

        Without a `path` it is in memory.
        """
        self._lock = threading.Lock()
        try:
            self._database = open_migrated(path, migrations, KNOWN_MIGRATIONS)
            with medium(), closed_by_an_error(self._database.conn):
                found = self._database.conn.execute("PRAGMA integrity_check(1)").fetchone()[0]
                if found != "ok":
                    raise sqlite3.DatabaseError(found)
                for table in TABLES:
                    rows = list(self._rows(table))
                # There can be many, and a start needs them next: they are not read and checked twice.
                assert table == "definitions"
                self._opened_with: list[Definition] | None = _definitions_of(rows)
        except (LogBroken, LookupError, TypeError, ValueError) as error:
            what = f"{path.name if path else CATALOG_FILE} cannot be used (see docs/operations.md, A damaged disk)"
            raise LogBroken(f"{what}: {error}") from error

    def identity(self) -> DirectoryIdentity | None:
        with self._lock, medium():
            for row in self._rows("identity"):
                return DirectoryIdentity(row["node"], row["uuid"], row["format_version"])
            return None

    def set_identity(self, identity: DirectoryIdentity) -> None:
        self._replace("identity", identity._asdict())

    def checkpoint(self) -> CheckpointState:
        return self._position("checkpoint")

    def fanouts(self) -> dict[str, FanoutExtent]:
        with self._lock, medium():
            return {row.pop("destination"): _extent(row) for row in self._rows("fanouts")}

    def cursors(self) -> dict[Name, Cursor]:
        with self._lock, medium():
            found = [_cursor(row) for row in self._rows("durable_subscriptions")]
            return {cursor.name: cursor for cursor in found}

    def given_up(self) -> Vector:
        with self._lock, medium():
            return {parse_origin(row["origin"]): row["through"] for row in self._rows("given_up")}

    def terms(self) -> list[TermNote]:
        with self._lock, medium():
            return [
                TermNote(row["owner"], row["number"], row["server"], bool(row["is_vote"]))
                for row in self._rows("terms")
            ]

    def commit_checkpoint(
        self,
        state: CheckpointState,
        fanouts: Mapping[str, FanoutExtent],
        cursors: Sequence[Cursor] = (),
        given_up: Vector | None = None,
        terms: Sequence[TermNote] = (),
        deleted: Collection[str] = (),
        definitions: Sequence[Definition] = (),
    ) -> None:
        with self._change():
            self._put_position("checkpoint", state)
            self._put("fanouts", [_extent_row(destination, extent) for destination, extent in fanouts.items()])
            for destination in deleted:
                self._database.table("fanouts").delete_where("destination = ?", [destination])
            durable_subscriptions = self._database.table("durable_subscriptions")
            kept = [cursor for cursor in cursors if cursor.created_us or cursor.deleted_us]
            self._put("durable_subscriptions", [_cursor_row(cursor) for cursor in kept])
            for cursor in cursors:
                if not (cursor.created_us or cursor.deleted_us):
                    durable_subscriptions.delete_where("destination = ? and client = ? and name = ?", list(cursor.name))
            given = [{"origin": str(origin), "through": through} for origin, through in (given_up or {}).items()]
            self._put("given_up", given)
            self._put("terms", [{**note._asdict(), "is_vote": int(note.is_vote)} for note in terms])
            self._put("definitions", [_definition_row(one) for one in definitions])
            self._opened_with = None

    def base(self) -> CheckpointState:
        return self._position("base")

    def set_base(self, state: CheckpointState) -> None:
        with self._change():
            self._put_position("base", state)

    def incarnations(self) -> dict[Origin, int]:
        with self._lock, medium():
            rows = self._rows("incarnations", "ORDER BY rowid")
            return {parse_origin(row["origin"]): row["started_us"] for row in rows}

    def add_incarnation(self, origin: Origin, started_us: int) -> None:
        self._replace("incarnations", {"origin": str(origin), "started_us": started_us})

    def facts(self) -> dict[str, str]:
        with self._lock, medium():
            return {row["name"]: row["value"] for row in self._rows("facts")}

    def set_facts(self, facts: Mapping[str, str | None]) -> None:
        with self._change():
            table = self._database.table("facts")
            self._put("facts", [{"name": name, "value": value} for name, value in facts.items() if value is not None])
            for name, value in facts.items():
                if value is None:
                    table.delete_where("name = ?", [name])

    def definitions(self) -> list[Definition]:
        with self._lock, medium():
            found, self._opened_with = self._opened_with, None
            return found if found is not None else _definitions_of(list(self._rows("definitions")))

    def remove_definitions(self, keys: Iterable[Key]) -> None:
        with self._change():
            self._opened_with = None
            for key in keys:
                self._database.table("definitions").delete_where("kind = ? and name = ?", list(key))

    def close(self) -> None:
        with self._lock:
            self._database.close()

    @contextmanager
    def _change(self) -> Iterator[None]:
        """One transaction."""
        with self._lock, medium(), self._database.atomic():
            yield

    def _replace(self, table: str, row: dict[str, str | int]) -> None:
        with self._change():
            self._put(table, [row])

    def _put(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Put `rows` in the places of those with the same key."""
        if rows:
            marked = [{**row, "checksum": row_checksum(row)} for row in rows]
            self._database.table(table).insert_all(marked, replace=True, pk=KEYS.get(table))

    def _rows(self, table: str, remainder: str = "", *values: str) -> Iterator[Row]:
        """Those of `table`; `clause` is the rest of the statement. Raises sqlite3.DatabaseError when a row is not what
        was written."""
        # Not `rows_where`: a table whose name a flipped bit has made upper case would have no rows for it.
        for row in self._database.query(f"SELECT * FROM {table} {remainder}", values):
            if row.pop("checksum") != row_checksum(row):
                raise sqlite3.DatabaseError(f"a row of {table} is damaged")
            yield row

    def _position(self, name: str) -> CheckpointState:
        with self._lock, medium():
            for row in self._rows("positions", "WHERE name = ?", name):
                return CheckpointState(row["position"], vector_from_json(json.loads(row["vector"])))
            return CheckpointState(0, {})

    def _put_position(self, name: str, state: CheckpointState) -> None:
        row = {"name": name, "position": state.position, "vector": json.dumps(vector_to_json(state.vector))}
        self._put("positions", [row])


def row_checksum(row: Mapping[str, Any]) -> int:
    """Of everything else in it; never 0."""
    return crc32(json.dumps([[name, row[name]] for name in sorted(row) if name != "checksum"]).encode()) or 1


def _extent_row(destination: str, extent: FanoutExtent) -> dict[str, str | int]:
    row = {"destination": destination, **extent._asdict()}
    row["dropped"] = json.dumps(vector_to_json(dict(extent.dropped)))
    return row


def _extent(row: dict[str, Any]) -> FanoutExtent:
    dropped = vector_from_json(json.loads(row.pop("dropped")))
    return FanoutExtent(**row, dropped=tuple(Dot(origin, last) for origin, last in dropped.items()))


def _definition_row(one: Definition) -> dict[str, str]:
    return {
        **one.key._asdict(),
        "value": one.text or "",
        "version": json.dumps(version_fields(one.version)),
        "replaced": json.dumps(version_fields(one.replaced)),
    }


def _definitions_of(rows: Sequence[Mapping[str, Any]]) -> list[Definition]:
    """Raises ValueError or TypeError for rows that no version has written."""
    # As one text: a call of the parser for each of ten thousand versions costs more than what it parses.
    versions = json.loads(f"[{','.join([row['version'] for row in rows])}]")
    replaced = json.loads(f"[{','.join([row['replaced'] for row in rows])}]")
    found = []
    for row, fields, before in zip(rows, versions, replaced, strict=True):
        version = version_of(fields)
        if version is None:
            raise ValueError("a definition without version")
        key = Key(row["kind"], row["name"])
        found.append(Definition(key, version, row["value"] or None, version_of(before)))
    return found


def _cursor_row(cursor: Cursor) -> dict[str, str | int]:
    # The owner is behind the holder, because a name that has one was used.
    holder = None if cursor.holder is None else [cursor.holder[0], str(cursor.holder[1]), *(cursor.owner or ())]
    return {
        **cursor.name._asdict(),
        "created_us": cursor.created_us,
        "deleted_us": cursor.deleted_us,
        "start": json.dumps(None if cursor.start is None else vector_to_json(cursor.start)),
        "done": json.dumps({str(origin): ranges for origin, ranges in cursor.done.items()}),
        "credit": cursor.credit,
        "told": json.dumps(vector_to_json(cursor.delivered_up_to)),
        "holder": json.dumps(holder),
    }


def _cursor(row: Mapping[str, Any]) -> Cursor:
    cursor = Cursor(Name(row["destination"], row["client"], row["name"]))
    cursor.created_us = row["created_us"]
    cursor.deleted_us = row["deleted_us"]
    start = json.loads(row["start"])
    cursor.start = None if start is None else vector_from_json(start)
    done = json.loads(row["done"])
    cursor.done = {parse_origin(text): [(after, through) for after, through in ranges] for text, ranges in done.items()}
    cursor.credit = row["credit"]
    cursor.delivered_up_to = vector_from_json(json.loads(row["told"]))
    holder = json.loads(row["holder"])
    if holder is not None:
        stamp, node, *owner = holder
        cursor.holder = (stamp, parse_origin(node))
        cursor.owner = (owner[0], owner[1]) if owner else None
    return cursor
