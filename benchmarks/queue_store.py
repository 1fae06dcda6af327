"""Measure the queue store alone: µs of processor time per row put, paged in and deleted, and the memory that takes.

    python -m benchmarks.queue_store [--rows 1000000] [--store sqlite | postgresql://…]

Rows come as a checkpoint brings them, in slices, each one transaction. `queue` is one long backlog, in order;
`priorities` deals it out to ten; `queues` has one message per queue; `scattered` deletes in random order.
"""

import argparse
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from qmq.model.dots import Dot, Origin
from qmq.storage.format.queue_store import QueueRow, QueueStore
from qmq.storage.queues.choice import open_queue_store
from qmq.storage.queues.rows import runs_of

ORIGIN = Origin("bench", 1)
QUEUE = "/queue/bench"
BODY = b"x" * 200
HEADERS = b"content-type:text/plain\n"
SLICE_ROWS = 14_000
"""About what a slice of a checkpoint holds at this size."""
PAGE_ROWS = 500
MIB = 1024 * 1024


def slices(rows: int, make: Callable[[int], QueueRow]) -> Iterator[list[QueueRow]]:
    """`rows` rows with sequences from 1, as checkpoints would bring them."""
    for first in range(1, rows + 1, SLICE_ROWS):
        yield [make(sequence) for sequence in range(first, min(first + SLICE_ROWS, rows + 1))]


def plain(sequence: int) -> QueueRow:
    return QueueRow(Dot(ORIGIN, sequence), QUEUE, 1_700_000_000_000_000 + sequence, 0, 4, 0, 0, HEADERS, BODY)


def ten_priorities(sequence: int) -> QueueRow:
    return plain(sequence)._replace(priority=sequence % 10)


def own_queue(sequence: int) -> QueueRow:
    return plain(sequence)._replace(queue=f"/queue/reply-{sequence}")


class Stopwatch:
    """Processor and wall time of this process, for the rows that went through."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0
        self.rows = 0

    def time(self, rows: int, call: Callable[[], object]) -> None:
        cpu, wall = time.process_time(), time.perf_counter()
        call()
        self.cpu += time.process_time() - cpu
        self.wall += time.perf_counter() - wall
        self.rows += rows

    def __str__(self) -> str:
        return f"{self.cpu / self.rows * 1e6:6.2f} µs cpu, {self.wall / self.rows * 1e6:6.2f} µs wall per row"


def measure(store: QueueStore, name: str, rows: int, make: Callable[[int], QueueRow], scattered: bool) -> None:
    """Put, page in and delete `rows` rows, and print what each took."""
    put, page, delete = Stopwatch(), Stopwatch(), Stopwatch()
    position = store.position()
    for part in slices(rows, make):
        position += 1
        runs = runs_of(part)
        put.time(len(part), lambda runs=runs, position=position: store.apply(runs, {}, [], [], position))  # type: ignore[misc]
    print(f"{name:10} put    {put}")
    if make is not own_queue:
        page_in(store, page)
        print(f"{name:10} page   {page}")
    for settled in settles(rows, make, scattered):
        position += 1
        count = sum(map(len, settled.values()))
        delete.time(count, lambda settled=settled, position=position: store.apply([], settled, [], [], position))  # type: ignore[misc]
    print(f"{name:10} delete {delete}")
    assert store.is_empty(ORIGIN.node)


def page_in(store: QueueStore, watch: Stopwatch) -> None:
    """Read the whole backlog, page by page."""
    for priority in store.heads(ORIGIN.node, [QUEUE], 0)[QUEUE].priorities:
        after: Dot | None = None
        while True:
            found: list[QueueRow] = []

            def read(found: list[QueueRow] = found, priority: int = priority, after: Dot | None = after) -> None:
                found += store.page(ORIGIN.node, QUEUE, priority, after, 0, PAGE_ROWS)

            watch.time(PAGE_ROWS, read)
            if len(found) < PAGE_ROWS:
                break
            after = found[-1].dot


def settles(rows: int, make: Callable[[int], QueueRow], scattered: bool) -> Iterator[dict[str, Sequence[Dot]]]:
    """What checkpoints would delete, slice by slice."""
    order = list(range(1, rows + 1))
    if scattered:
        random.Random(1).shuffle(order)
    for start in range(0, rows, SLICE_ROWS):
        settled: dict[str, list[Dot]] = {}
        for sequence in order[start : start + SLICE_ROWS]:
            row = make(sequence)
            settled.setdefault(row.queue, []).append(row.dot)
        yield {queue: dots for queue, dots in settled.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--store", default="sqlite", help="sqlite, or the URL of a database to fill and empty")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qmq-bench-") as directory:
        store = open_queue_store(Path(directory), chosen.store, ORIGIN.node)
        measure(store, "queue", chosen.rows, plain, False)
        measure(store, "priorities", chosen.rows, ten_priorities, False)
        measure(store, "scattered", chosen.rows, plain, True)
        measure(store, "queues", chosen.rows // 5, own_queue, False)
        store.close()
        for path in Path(directory).iterdir():
            print(f"{path.name} {path.stat().st_size // MIB} MiB")
    print(f"highest memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")


if __name__ == "__main__":
    main()
