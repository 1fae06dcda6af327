"""Rows on their way into a database and out of it: what SQLite and PostgreSQL have in common of both.

A store takes runs (`RowRun`), and returns rows. In between, a database has a row for each message. What differs in the
rows of a run is passed once for each, and what they share is passed with a statement.

Surprising: a damaged database may return anything in place of a number or of bytes. So what was read has no types here
until its checksum is found to fit. For the same reason this module is not compiled. It would not be faster either:
compiled code makes a new tuple each time it passes a typed one on.
"""

from collections.abc import Iterable
from typing import Any, Final

from qmq.model.dots import Dot, Origin
from qmq.storage.format.queue_store import QueueRow, QueueStore, RowRun
from qmq.storage.format.row_checksum import checksum_of, is_sound, number_checksum
from qmq.storage.queues.plan import SIGN, PartitionRow, signed, unsigned

_new: Final = tuple.__new__

_PLAIN_WIDTH: Final = 7
_PUT_ROWS: Final = 10_000
_PUT_BYTES: Final = 4 * 1024 * 1024


Raw = tuple[int, int, int, int, int, int, int, int, int, bytes, bytes]
"""A row as a database returns it: partition, sequence, timestamp, flags, due and expiry time, exact number, failures,
checksum, headers, body. Unsigned numbers are as databases hold them (`signed`). A damaged row may have values of
other types."""


def runs_of(rows: Iterable[QueueRow]) -> list[RowRun]:
    """Rows that were read, as a store takes them."""
    runs: list[RowRun] = []
    shared: dict[tuple[Origin, str, int, int], RowRun] = {}
    for row in rows:
        (origin, sequence), queue, timestamp_us, flags, priority, due_us, expires_us, headers, body, *counts = row
        attempts, exact = counts
        record = (sequence, timestamp_us, flags << 32, queue, headers, body)
        is_alone = bool(due_us or expires_us or attempts or exact)
        run = None if is_alone else shared.get((origin, queue, flags, priority))
        if run is not None:
            run.records.append(record)
            continue
        run = RowRun(origin, queue, flags, priority, [record], due_us, expires_us, attempts, exact)
        runs.append(run)
        if not is_alone:
            shared[origin, queue, flags, priority] = run
    return runs


def put_rows(queues: QueueStore, rows: Iterable[QueueRow], position: int) -> int:
    """Add `rows` to a store that stays at `position`, some at a time; return how many. Raises LogBroken, DiskFull."""
    count = size = 0
    part: list[QueueRow] = []
    for row in rows:
        part.append(row)
        count += 1
        size += len(row.headers) + len(row.body)
        if len(part) >= _PUT_ROWS or size >= _PUT_BYTES:
            queues.apply(runs_of(part), {}, [], [], position)
            part, size = [], 0
    queues.apply(runs_of(part), {}, [], [], position)
    return count


def counts_of(runs: Iterable[RowRun]) -> tuple[int, int]:
    """Messages, and bytes of their bodies."""
    sizes = [len(record[5]) for run in runs for record in run.records]
    return len(sizes), sum(sizes)


def row_values(partition: int, number: int, shared: int, run: RowRun) -> list[int | bytearray]:
    """All columns of the rows of one run, row after row. `shared` is the checksum of the partition.

    Surprising: bytes are passed as bytearrays, which sqlite3 takes as they are. For a bytes object it asks all its
    adapters, which takes several times as long as the copy (`need_adapt` in CPython's Modules/_sqlite/cursor.c).
    """
    origin, queue, flags, level, records, due_us, expires_us, attempts, exact = run
    found: list[int | bytearray] = []
    for sequence, timestamp_us, _, _, headers, body in records:
        dot = _new(Dot, (origin, sequence))
        row: Any = (dot, queue, timestamp_us, flags, level, due_us, expires_us, headers, body, attempts, exact)
        checksum = checksum_of(shared, row)
        if sequence >= SIGN or timestamp_us >= SIGN:
            sequence, timestamp_us = signed(sequence), signed(timestamp_us)
        found += (partition, sequence, number, timestamp_us, flags, due_us, expires_us, exact)
        found += (bytearray(headers), bytearray(body), attempts, checksum)
    return found


def split_rows(columns: list[Any], data: bytes) -> list[Raw]:
    """Rows of which a database has returned the numbers, and all headers and bodies in one piece.

    The numbers of a row are those of a `Raw`, with lengths in place of headers and body. If due and expiry time, exact
    number and failures are all 0, they are left out. Raises TypeError, ValueError when they do not fit `data`.
    """
    rows: list[Raw] = []
    place = 0
    for numbers in columns:
        due_us = expires_us = exact = attempts = 0
        if len(numbers) == _PLAIN_WIDTH:
            partition, sequence, timestamp_us, flags, checksum, headers, body = numbers
        else:
            (
                partition, sequence, timestamp_us, flags, due_us, expires_us, exact, attempts, checksum, headers, body
            ) = numbers  # fmt: skip
        middle = place + headers
        end = middle + body
        own = data[place:middle], data[middle:end]
        rows.append((partition, sequence, timestamp_us, flags, due_us, expires_us, exact, attempts, checksum, *own))
        place = end
    if place != len(data):
        raise ValueError("their lengths are wrong")
    return rows


def rows_of(partition: PartitionRow, raws: Iterable[Any]) -> tuple[list[QueueRow], list[tuple[QueueRow, Raw]]]:
    """The sound rows of one partition among `raws`, and those whose checksum does not fit, each with what was read."""
    sound: list[QueueRow] = []
    damaged: list[tuple[QueueRow, Raw]] = []
    origin, queue, level, shared = partition.origin, partition.queue, -partition.rank, partition.checksum
    known: Any = None
    for raw in raws:
        _, sequence, timestamp_us, flags, due_us, expires_us, exact, attempts, checksum, headers, body = raw
        if sequence < 0 or timestamp_us < 0:
            sequence, timestamp_us = unsigned(sequence), unsigned(timestamp_us)
        # One object for equal headers: then their hash is computed once.
        if headers == known:
            headers = known
        known = headers
        # The classes' own constructors would take longer than the checksum.
        dot = _new(Dot, (origin, sequence))
        row: Any = _new(
            QueueRow,
            (dot, queue, timestamp_us, flags, level, due_us, expires_us, headers, body, attempts, exact),
        )
        if is_sound(shared, row, checksum):
            sound.append(row)
        else:
            damaged.append((row, raw))
    return sound, damaged


def position_of(position: Any, checksum: Any) -> int:
    """The position of a store from its row. Raises ValueError, TypeError."""
    if checksum != number_checksum(position):
        raise ValueError("the position is damaged")
    return int(position)


def tombstones_of(raws: Iterable[Any]) -> set[Dot]:
    """The tombstones in these rows. Raises ValueError, TypeError."""
    found: set[Dot] = set()
    for node, incarnation, sequence, checksum in raws:
        dot = Dot(Origin(node or "", unsigned(incarnation or 0)), unsigned(sequence))
        if checksum != number_checksum(dot.sequence, *dot.origin):
            raise ValueError(f"the tombstone of {dot} is damaged")
        found.add(dot)
    return found
