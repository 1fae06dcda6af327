"""`qmq archive`: one process, without a JVM, that archives again and again.

It keeps its connections to the nodes between runs, reports to them how far it is (`qmq status` shows that), and stands
by while another archiver works on the same table. After an error the next run begins with new connections.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from qmq.model.dots import Origin, Vector
from qmq.model.lag import Behind, Lag, behind
from qmq.spark.archive.files import write_parts
from qmq.spark.archive.run import Archived, archive
from qmq.spark.archive.storage import place_of
from qmq.spark.archive.table import Overtaken, begin, choice_of, find_table, lost_of, open_table, table_vector
from qmq.spark.archive.turn import TAKEOVER_SECONDS, Turn
from qmq.spark.archive.upkeep import Rewritten, compact_step, vacuum
from qmq.spark.reading.options import Options
from qmq.spark.reading.place import Place, open_place
from qmq.spark.reading.plan import Part

if TYPE_CHECKING:
    from qmq.spark.archive.iceberg import IcebergTable

COMMITS_PER_UPKEEP: Final = 50
"""So many small files a day may have; and so often it is looked at, also after a start."""
VACUUM_SECONDS: Final = 24 * 3600.0
REGISTER_SECONDS: Final = 60.0
"""Between registrations in Iceberg: each writes a list of all snapshots, and is a call to a catalog."""
PARTS_PER_COMMIT: Final = 8
"""Half a gigabyte of log: what a kill costs, and how long a stop waits."""


class Archiver:
    """Runs of one table. Used by one thread; `close` it."""

    def __init__(
        self,
        options: Options,
        table: str,
        *,
        every_seconds: float,
        iceberg: "IcebergTable | None" = None,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._options = replace(options, retry_seconds=0.0)  # runs are repeated, and can be stopped in between
        self._table = place_of(table)
        self._is_asked_to_stop = is_stopping
        self._place: Place | None = None
        self._lag = Lag()
        self._turn = Turn(max(TAKEOVER_SECONDS, 3 * every_seconds))
        self._commits_left = 0
        """Until the next look at the files."""
        self._vacuumed_at: float | None = None
        self._registered_at: float | None = None
        self._iceberg = iceberg

    @property
    def is_standby(self) -> bool:
        """Whether another archiver was quicker, and has committed lately."""
        return self._turn.is_standby

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self._is_asked_to_stop()

    def check(self) -> None:
        """Raises ArchiveError when there is something at the table's place that is no archive of these messages."""
        begin(self._table, {}, choice_of(self._options))

    def run(self) -> Archived:
        """One run, or none while another archiver works. Raises as `run.archive`."""
        try:
            if not self._turn.take(self._version(), time.monotonic()):
                return Archived()
            done = archive(
                self._opened(),
                self._options,
                self._table,
                self._write,
                parts_per_commit=PARTS_PER_COMMIT,
                is_stopping=self._is_asked_to_stop,
            )
            self._opened().report(done.vector)
            self._commits_left -= done.commits
            return done
        except Overtaken:
            self._turn.lose(self._version(), time.monotonic())
            raise
        except Exception:
            self.close()
            raise
        finally:
            pa.default_memory_pool().release_unused()

    def keep(self) -> Rewritten:
        """One step of what keeps the table quick to read, if it is time for that: small files are put together, and
        once a day those are removed that no version of a week needs.

        Raises DeltaError, OSError and ArchiveError; it is tried again after as many commits as usual.
        """
        if self.is_standby or self._commits_left > 0 or self._version() < 0:
            return Rewritten()
        self._commits_left = COMMITS_PER_UPKEEP
        done = compact_step(self._table, COMMITS_PER_UPKEEP)
        now = time.monotonic()
        if done.removed:
            self._commits_left = 1  # there may be more to do, after the next commit
        elif self._vacuumed_at is None or now - self._vacuumed_at >= VACUUM_SECONDS:
            if self._iceberg is not None:
                self._iceberg.register()  # or it might need what is removed
                self._iceberg.vacuum()
            self._vacuumed_at = now
            vacuum(self._table)
        pa.default_memory_pool().release_unused()
        return done

    def register(self) -> int:
        """Give the table of Iceberg what the archive has now, at most once in `REGISTER_SECONDS`; returns how many
        files were added and removed. Raises ArchiveError.
        """
        now = time.monotonic()
        if self._iceberg is None or self.is_standby or self._version() < 0:
            return 0
        if self._registered_at is not None and now - self._registered_at < REGISTER_SECONDS:
            return 0
        self._registered_at = now
        return self._iceberg.register()

    def behind(self) -> Behind:
        """What nodes have now that the table does not have. Raises as `run.archive`."""
        have = self._opened().available()
        vector = self._vector(have)
        self._opened().report(vector)  # another one may have committed
        return self._lag.look(time.monotonic(), have, vector)

    def close(self) -> None:
        """Idempotent."""
        if self._place is not None:
            self._place.close()
            self._place = None

    def _opened(self) -> Place:
        if self._place is None:
            self._place = open_place(self._options)
            # Before anything is committed: an archive that cannot grow is one that the nodes know of.
            self._place.report(self._vector(self._place.available()))
        return self._place

    def _vector(self, origins: Iterable[Origin]) -> Vector:
        """How far the table goes; nothing where there is none."""
        delta = find_table(self._table)
        return {} if delta is None else table_vector(delta, origins)

    def _write(self, parts: Sequence[Part]) -> list[dict[str, Any]]:
        return write_parts(parts, self._options, self._table, uuid.uuid4().hex)

    def _version(self) -> int:
        """-1 where there is no table."""
        delta = find_table(self._table)
        return -1 if delta is None else int(delta.version())


def standing(options: Options, table: str) -> dict[str, Any]:
    """How an archive stands to its nodes now: rows, files, version, time of the last commit, records to archive.

    Raises ArchiveError when there is no archive, and as `open_place`.
    """
    delta = open_table(table)
    place = open_place(options)
    try:
        have = place.available()
    finally:
        place.close()
    begin(place_of(table), {}, choice_of(options))
    files = pa.table(delta.get_add_actions(flatten=True))
    (last,) = delta.history(1)
    return {
        "version": delta.version(),
        "rows": sum(files["num_records"].to_pylist()),
        "files": files.num_rows,
        "bytes": sum(files["size_bytes"].to_pylist()),
        "last_commit": datetime.fromtimestamp(last["timestamp"] / 1000, UTC).isoformat(timespec="milliseconds"),
        "lost": [one._asdict() for one in lost_of(delta)],
        "behind_records": behind(have, table_vector(delta, have)),
    }
