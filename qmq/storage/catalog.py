"""The catalog on SQLite, through sqlite-utils and its migrations: an operator can open it with `sqlite-utils`.

A handful of small tables, written some tens of times per second at most. Each change is one transaction that is
durable on return (`sqlite`). The commit of `commit_checkpoint` is the commit point of a checkpoint.
"""

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import sqlite_utils
from sqlite_utils.migrations import Migrations

from qmq.dots import Origin, Vector, parse_origin
from qmq.storage.ports import CheckpointState, FanoutExtent, Identity
from qmq.storage.sqlite import medium, open_migrated, vector_from_json, vector_to_json

migrations = Migrations("qmq-catalog")


@migrations()
def m001_first(database: sqlite_utils.Database) -> None:
    """`positions` has two rows: `checkpoint`, and `base` for the start of the kept journal."""
    database.table("identity").create({"node": str, "uuid": str, "format_version": int}, pk="node", not_null={"uuid"})
    database.table("positions").create({"name": str, "position": int, "vector": str}, pk="name", not_null={"position"})
    database.table("fanouts").create(
        {
            "destination": str,
            "name": str,
            "start": int,
            "end": int,
            "records": int,
            "first_us": int,
            "last_us": int,
        },
        pk="destination",
    )
    database.table("peers").create({"node": str, "vector": str}, pk="node")
    database.table("incarnations").create({"origin": str, "started_us": int}, pk="origin")


KNOWN_MIGRATIONS: Final = frozenset({"m001_first"})


class SqliteCatalog:
    """See `ports.Catalog`. Calls from several threads wait for each other."""

    def __init__(self, path: Path) -> None:
        """Open or make the file, brought to this version. Raises FutureVersion, LogBroken."""
        self._lock = threading.Lock()
        self._database = open_migrated(path, migrations, KNOWN_MIGRATIONS)

    def identity(self) -> Identity | None:
        with self._lock, medium():
            for row in self._database.table("identity").rows:
                return Identity(row["node"], row["uuid"], row["format_version"])
            return None

    def set_identity(self, identity: Identity) -> None:
        self._replace("identity", identity._asdict())

    def checkpoint(self) -> CheckpointState:
        return self._position("checkpoint")

    def fanouts(self) -> dict[str, FanoutExtent]:
        with self._lock, medium():
            return {
                row.pop("destination"): FanoutExtent(**row)
                for row in [dict(r) for r in self._database.table("fanouts").rows]
            }

    def commit_checkpoint(self, state: CheckpointState, fanouts: Mapping[str, FanoutExtent]) -> None:
        with self._lock, medium(), self._database.atomic():
            self._put_position("checkpoint", state)
            self._database.table("fanouts").insert_all(
                ({"destination": destination, **extent._asdict()} for destination, extent in fanouts.items()),
                replace=True,
                pk="destination",
            )

    def base(self) -> CheckpointState:
        return self._position("base")

    def set_base(self, state: CheckpointState) -> None:
        with self._lock, medium(), self._database.atomic():
            self._put_position("base", state)

    def peers(self) -> dict[str, Vector]:
        with self._lock, medium():
            return {
                row["node"]: vector_from_json(json.loads(row["vector"])) for row in self._database.table("peers").rows
            }

    def set_peer(self, node: str, vector: Vector) -> None:
        self._replace("peers", {"node": node, "vector": json.dumps(vector_to_json(vector))})

    def incarnations(self) -> dict[Origin, int]:
        with self._lock, medium():
            rows = self._database.table("incarnations").rows_where(order_by="rowid")
            return {parse_origin(row["origin"]): row["started_us"] for row in rows}

    def add_incarnation(self, origin: Origin, started_us: int) -> None:
        self._replace("incarnations", {"origin": str(origin), "started_us": started_us})

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def _replace(self, table: str, row: dict[str, str | int]) -> None:
        with self._lock, medium(), self._database.atomic():
            self._database.table(table).insert(row, replace=True)

    def _position(self, name: str) -> CheckpointState:
        with self._lock, medium():
            for row in self._database.table("positions").rows_where("name = ?", [name]):
                return CheckpointState(row["position"], vector_from_json(json.loads(row["vector"])))
            return CheckpointState(0, {})

    def _put_position(self, name: str, state: CheckpointState) -> None:
        row = {"name": name, "position": state.position, "vector": json.dumps(vector_to_json(state.vector))}
        self._database.table("positions").insert(row, replace=True)
