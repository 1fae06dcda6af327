"""The queue store of a simulated node on a real SQLite database: `python -m tests.simulation --store sqlite`.

It has the surface of `MemoryQueueStore`: a commit fails as the disk of the node does, and what was committed survives a
crash. Runs are short, so that the few messages of a simulation lie in many of them.
"""

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from qmq.model.dots import Dot
from qmq.storage.queues import stored_run
from qmq.storage.queues.plan import origin_columns, signed
from qmq.storage.queues.sqlite_store import SqliteQueueStore
from tests.fakes.disk import MemoryDisk, commit_tables

RUN_MIN, RUN_MAX = 2, 5

_LANES = """SELECT lanes.id, checksum FROM lanes JOIN origins ON origins.id = lanes.origin
    WHERE node = ? AND incarnation = ?"""


class _Place:
    """A file that goes with the last disk that refers to it; a copy of the disk has a copy of it."""

    def __init__(self) -> None:
        self._directory = TemporaryDirectory(prefix="qmq-simulated-")
        self.file = Path(self._directory.name) / "queues.sqlite"

    def __deepcopy__(self, _: object) -> "_Place":
        made = _Place()
        if self.file.exists():
            with closing(sqlite3.connect(self.file)) as old, closing(sqlite3.connect(made.file)) as new:
                old.backup(new)
        return made


class SimulatedSqliteStore(SqliteQueueStore):
    """See the module's opening."""

    def __init__(self, disk: MemoryDisk) -> None:
        vars(stored_run).update(RUN_MIN=RUN_MIN, RUN_MAX=RUN_MAX)
        place = disk.tables.setdefault("sqlite", _Place())
        assert isinstance(place, _Place)
        self._disk = disk
        super().__init__(place.file)
        self._database.conn.execute("PRAGMA synchronous=OFF")

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        commit_tables(self._disk)
        with super()._change() as writer:
            yield writer

    def spoil(self, dots: Collection[Dot]) -> list[Dot]:
        """Flip bits in these messages; return those that are damaged: all that wait in the same run."""
        spoiled: set[Dot] = set()
        writer = self._database.conn
        bent = "SET body = CAST(body || 'x' AS BLOB) WHERE lane = ? AND sequence = ?"
        for dot in set(dots) - spoiled:
            for lane, checksum in writer.execute(_LANES, origin_columns(dot.origin)).fetchall():
                place = signed(dot.sequence)
                if writer.execute(f"UPDATE messages {bent}", (lane, place)).rowcount:
                    spoiled.add(dot)
                for run in self._runs(writer, self.statements.RUN_PLACES, lane, checksum, place, 1, place):
                    if place in run.waiting_sequences():
                        writer.execute(f"UPDATE runs {bent}", (lane, run.sequences[0]))
                        spoiled.update(Dot(dot.origin, sequence) for sequence in run.waiting_sequences())
        return sorted(spoiled)

    def reset(self, position: int = -1) -> None:
        """As `MemoryQueueStore.reset`."""
        for table in ("messages", "runs", "settled", "lanes", "tombstones", "lacks"):
            self._database.conn.execute(f"DELETE FROM {table}")
        self.missing([], position)
