"""Which queue store a node has, and how a backlog moves when the operator chooses another one.

A copy gives the new store its position last: until then it counts as empty. What an interrupted copy has left there is
deleted first, because the old store may have gone on without it. The old store stays as it is.
"""

from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Final

from qmq.errors import StorageError
from qmq.model.dots import Dot
from qmq.storage.format.interfaces import SEQUENCE_MAX
from qmq.storage.format.queue_store import QueueRow, QueueStore
from qmq.storage.queues.rescue import open_sqlite
from qmq.storage.queues.rows import put_rows

SQLITE: Final = "sqlite"
QUEUES_FILE: Final = "queues.sqlite"

FOREVER_US: Final = (1 << 63) - 1
"""No due time is later."""
PAGE_ROWS: Final = 1000
_SLICE_BYTES: Final = 4 * 1024 * 1024


def open_queue_store(
    directory: Path, choice: str, node: str, *, last: str = SQLITE, seconds_max: float = 30.0
) -> QueueStore:
    """The queue store of `node`: `sqlite` for a file in `directory`, else the URL of a PostgreSQL database.

    What waits in the file goes along when a database is used for the first time; `last` is the kind of store that was
    used before. A call of a database may take `seconds_max`.

    Raises:
        StorageError: psycopg is missing, the database cannot be used, or it belongs to another node.
        DirectoryInUse: another process uses the database.
        FutureVersion: written by later software.
        LogBroken: the medium failed.
    """
    path = directory / QUEUES_FILE
    if choice == SQLITE:
        return open_sqlite(path)
    # psycopg is an extra, which only a URL needs.
    try:
        from qmq.storage.queues.postgres_store import PostgresQueueStore
    except ImportError as error:
        raise StorageError("a queue store on PostgreSQL needs psycopg: pip install 'qmq[postgres]'") from error
    chosen = PostgresQueueStore(choice, node, seconds_max)
    try:
        if last == SQLITE and chosen.position() == 0 and path.exists():
            with closing(open_sqlite(path)) as old:
                copy(old, chosen)
    except BaseException:
        chosen.close()
        raise
    return chosen


def stored_rows(queues: QueueStore, node: str) -> Iterator[QueueRow]:
    """Every message that `node` accepted and the queue store holds: by queue, priority and order of acceptance."""
    name = None
    while listed := queues.listing(node, name, PAGE_ROWS):
        for name, _, _ in listed:
            for priority in queues.heads(node, [name], FOREVER_US)[name].priorities:
                after, exact = None, 0
                while rows := queues.page(node, name, priority, after, FOREVER_US, PAGE_ROWS, exact, _SLICE_BYTES):
                    yield from rows
                    after, exact = rows[-1].dot, rows[-1].exact


def copy(old: QueueStore, new: QueueStore) -> int:
    """Put everything of `old` into `new`, which has no position yet. Returns how many messages. Raises LogBroken."""
    _clear(new)
    nodes = sorted({origin.node for origin in old.origins()})
    count = put_rows(new, chain.from_iterable(stored_rows(old, node) for node in nodes), 0)
    new.apply([], {}, old.tombstones(), [], 0)
    new.missing(old.missing_ranges(), old.position())
    return count


def _clear(queues: QueueStore) -> None:
    """Delete all messages and tombstones."""
    for origin in queues.origins():
        while found := queues.unsettled(origin, 0, SEQUENCE_MAX, PAGE_ROWS):
            deletes: dict[str, list[Dot]] = {}
            for row in found:
                deletes.setdefault(row.queue, []).append(row.dot)
            queues.apply([], deletes, [], [], 0)
    queues.apply([], {}, [], queues.tombstones(), 0)
