"""A queue store that was written before there were runs, by the software of then: `before_runs.sqlite.gz`."""

import gzip
from pathlib import Path

from qmq.model.dots import Dot, Origin
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.format.queue_store import QueueRow
from qmq.storage.queues.choice import open_queue_store, stored_rows
from qmq.storage.queues.rows import runs_of
from qmq.storage.queues.sqlite_store import SqliteQueueStore
from qmq.storage.verify import verify_queue_store

A, B = Origin("a", 2**63 + 5), Origin("b", 7)
JOBS = "/queue/jobs"


def row(origin: Origin, sequence: int, queue: str = JOBS, due_us: int = 0, expires_us: int = 0) -> QueueRow:
    body = b"body %d " % sequence * (1 + sequence % 7)
    return QueueRow(Dot(origin, sequence), queue, 1000 + sequence, 5 << 20 | 3, 4, due_us, expires_us, b"k:v\n", body)


OF_A = [
    row(A, 1),
    row(A, 3)._replace(attempts=2),
    *[row(A, sequence) for sequence in range(4, 40)],
    *[row(A, sequence, due_us=sequence, expires_us=5000 + sequence) for sequence in range(70, 75)],
]
OF_B = [row(B, sequence, "/queue/other") for sequence in range(1, 13)]


def written_before(directory: Path) -> Path:
    path = directory / "queues.sqlite"
    path.write_bytes(gzip.decompress(Path(__file__).with_name("before_runs.sqlite.gz").read_bytes()))
    return path


def test_rows_of_before_are_read_and_runs_lie_beside_them(tmp_path: Path) -> None:
    written_before(tmp_path)
    more = [row(A, sequence) for sequence in range(100, 400)]

    store = open_queue_store(tmp_path, "sqlite", "a")

    assert isinstance(store, SqliteQueueStore)
    assert (list(stored_rows(store, "a")), list(stored_rows(store, "b"))) == (OF_A, OF_B)
    assert (store.position(), store.tombstones(), store.damage.lines) == (78, {Dot(B, 99)}, [])
    assert store.missing_ranges() == [MissingRange(B, 400, 500)]
    store.apply(runs_of(more + OF_A), {"/queue/other": [one.dot for one in OF_B]}, [], [], 79)
    assert list(stored_rows(store, "a")) == OF_A + more
    assert store.check() is None
    store.apply([], {JOBS: [one.dot for one in more[9:] + OF_A[3:]]}, [], [], 80)
    assert list(stored_rows(store, "a")) == OF_A[:3] + more[:9]
    store.close()


def test_a_file_of_before_is_verified_without_being_changed(tmp_path: Path) -> None:
    path = written_before(tmp_path)
    before = path.read_bytes()

    report = verify_queue_store(tmp_path, path.name)

    assert report is not None and (report.error, report.damaged_rows) == (None, ())
    assert path.read_bytes() == before
