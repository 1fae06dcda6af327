"""A run as a database keeps it: many messages of one partition in one row, and beside it what is settled of them.

The row has three parts. **Places** are the sequences, times and lengths of the messages, with a checksum of their own.
**Headers** and **body** are those of all messages in one piece each, with another checksum; headers are there once if
all are equal. So a run whose bytes are damaged still names each message that is missing. What is settled is one byte
for each message, in a row of its own: the bytes of a run are written once and never changed.

Surprising: a damaged database may return anything, so what was read has no types here until its checksum is found to
fit. For the same reason this module is not compiled (see `rows`).
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, compress, groupby, repeat
from operator import lt
from struct import Struct, pack, unpack
from struct import error as StructError  # noqa: N812 (an exception should look like one)
from typing import Any, Final
from zlib import crc32

from qmq.model.dots import Dot
from qmq.storage.format.batch import Unpacked
from qmq.storage.format.queue_store import QueueRow, RowRun
from qmq.storage.queues.plan import SIGN, PartitionRow, signed

RUN_MIN: Final = 8
"""Fewer messages are rows of their own: what a run costs by itself is that of so many rows."""
RUN_MAX: Final = 256
"""Messages of a run at most: about half a page of a queue."""
RUN_BYTES_MAX: Final = 64 * 1024
"""Headers and bodies of a run: what one damaged bit can make a node ask its peers for."""

Value = str | int | bytes

_NUMBERS: Final = Struct(">QQQQQI").pack
_SETTLED: Final = Struct(">QQQ").pack
_CHECKSUM_BYTES: Final = 4
_new: Final = tuple.__new__


def divide(runs: list[RowRun]) -> tuple[list[RowRun], list[RowRun]]:
    """The messages of one partition as runs that become one row each, and those that become a row for each message.

    The first ones are sorted, and no sequence of one lies between two of another.
    """
    whole: list[RowRun] = []
    long = [run for run in runs if len(run.records) >= RUN_MIN]
    if not long:
        return whole, runs
    short = [run for run in runs if len(run.records) < RUN_MIN]
    for run in long if len(long) == 1 and _is_sorted(long[0].records) else _sorted(long):
        for records in _cut(run.records):
            is_whole = len(records) >= RUN_MIN and records[-1][0] < SIGN
            (whole if is_whole else short).append(run._replace(records=records))
    return whole, short


def _is_sorted(records: list[Unpacked]) -> bool:
    sequences = [record[0] for record in records]
    return all(map(lt, sequences, sequences[1:]))


def _sorted(runs: list[RowRun]) -> Iterator[RowRun]:
    """The same messages by sequence, each once, divided where the flags change."""
    every = {record[0]: (record, run) for run in reversed(runs) for record in reversed(run.records)}
    for _, group in groupby((every[sequence] for sequence in sorted(every)), key=lambda one: id(one[1])):
        records, (run, *_) = zip(*group, strict=True)
        yield run._replace(records=list(records))


def _cut(records: list[Unpacked]) -> Iterator[list[Unpacked]]:
    """`records` in pieces within the bounds of a run; a larger message alone."""
    ends = list(accumulate([len(record[4]) + len(record[5]) for record in records]))
    start = before = 0
    while start < len(records):
        end = min(bisect_right(ends, before + RUN_BYTES_MAX, start), start + RUN_MAX)
        end = max(end, start + 1)
        yield records[start:end]
        start, before = end, ends[end - 1]


def run_row(partition: int, shared: int, run: RowRun) -> tuple[Value, ...]:
    """The columns of a run of the partition that has this id and this checksum."""
    sequences, times, _, _, headers, bodies = zip(*run.records, strict=True)
    count = len(sequences)
    sizes = list(map(len, bodies))
    lengths = [] if headers.count(headers[0]) == count else list(map(len, headers))
    places = pack(f">{2 * count}Q{count + len(lengths)}I", *sequences, *times, *sizes, *lengths)
    numbers = sequences[0], sequences[-1], count, sum(sizes), times[0], run.flags
    own = crc32(places, crc32(_NUMBERS(*numbers), shared))
    header, body = b"".join(headers) if lengths else headers[0], b"".join(bodies)
    checksum = crc32(body, crc32(header, own))
    return (
        partition,
        *numbers[:4],
        signed(times[0]),
        run.flags,
        checksum,
        places + own.to_bytes(_CHECKSUM_BYTES, "big"),
        header,
        body,
    )


RawRun = tuple[Any, ...]
"""What a database returns of a run: first and last sequence, messages, bytes of bodies, first timestamp, flags,
checksum; messages and bytes that are settled, the checksum of that (None if nothing is settled); places, which messages
wait (None: all); headers and body, if they were asked for."""

RUN_BLOBS: Final = 4


def split_runs(columns: list[Any], data: bytes) -> list[RawRun]:
    """Runs of which a database has returned the numbers with the lengths of all bytes, and these in one piece.

    Raises TypeError, ValueError when they do not fit.
    """
    runs: list[RawRun] = []
    place = 0
    for numbers in columns:
        blobs: list[bytes | None] = []
        for length in numbers[-RUN_BLOBS:]:
            blobs.append(None if length is None else data[place : place + length])
            place += length or 0
        runs.append((*numbers[:-RUN_BLOBS], *blobs))
    if place != len(data):
        raise ValueError("their lengths are wrong")
    return runs


class StoredRun:
    """A run that was read; `waiting` has one byte for each message, 0 where it is settled."""

    __slots__ = ("sequences", "_times", "_sizes", "_lengths", "waiting", "size", "_flags", "_own", "_data")

    def __init__(self, shared: int, raw: RawRun) -> None:
        """See `read_run`."""
        first, through, count, size, time_us, flags, checksum, done, done_size, settled, places, waiting, *data = raw
        own = crc32(
            places[:-_CHECKSUM_BYTES], crc32(_NUMBERS(first, through, count, size, time_us % (1 << 64), flags), shared)
        )
        if own.to_bytes(_CHECKSUM_BYTES, "big") != places[-_CHECKSUM_BYTES:]:
            raise ValueError(f"the places of the run from {first} on are damaged")
        lengths = (len(places) - _CHECKSUM_BYTES - 20 * count) // 4
        numbers = unpack(f">{2 * count}Q{count + lengths}I", places[:-_CHECKSUM_BYTES])
        self.sequences: tuple[int, ...] = numbers[:count]
        self._times = numbers[count : 2 * count]
        self._sizes = numbers[2 * count : 3 * count]
        self._lengths = numbers[3 * count :]
        self.size: int = size
        self._flags, self._own, self._data = flags, own, (checksum, *data)
        if done is done_size is settled is waiting is None:
            self.waiting = b"\1" * count
        elif settled != _settled_checksum(shared, first, done, done_size, waiting) or len(waiting) != count:
            raise ValueError(f"what is settled of the run from {first} on is damaged")
        else:
            self.waiting = waiting

    def waiting_sequences(self) -> list[int]:
        """Of the messages that are not settled."""
        return list(compress(self.sequences, self.waiting))

    def totals(self, waiting: bytes) -> tuple[int, int]:
        """Messages and bytes of their bodies that wait, if these do."""
        return sum(waiting), sum(compress(self._sizes, waiting))

    def without(self, settled: set[int]) -> bytes:
        """What waits if the messages with these sequences are settled, too."""
        return bytes([waits and one not in settled for waits, one in zip(self.waiting, self.sequences, strict=True)])

    def settled_row(self, partition: int, shared: int, waiting: bytes) -> tuple[Value, ...]:
        """The row beside that of the run."""
        first = self.sequences[0]
        messages, size = self.totals(waiting)
        done = len(waiting) - messages, self.size - size
        return (partition, first, *done, _settled_checksum(shared, first, *done, waiting), waiting)

    def is_sound(self) -> bool:
        """Whether headers and body, which were asked for, are what was written."""
        checksum, headers, body = self._data
        try:
            return bool(checksum == crc32(body, crc32(headers, self._own)))
        except TypeError:
            return False

    def rows(self, partition: PartitionRow, beyond: int = -1) -> list[QueueRow]:
        """The messages of a sound run that wait, with sequences after `beyond`."""
        origin, queue, level, flags = partition.origin, partition.queue, -partition.rank, self._flags
        body = self._data[2]
        past = bisect_right(self.sequences, beyond)
        waiting = bytes(past) + self.waiting[past:]
        bodies = _spans(self._sizes)
        found = compress(zip(self.sequences, self._times, bodies, self._headers(), strict=True), waiting)
        rows: list[Any] = [
            _new(
                QueueRow,
                (_new(Dot, (origin, sequence)), queue, time, flags, level, 0, 0, own, body[start:end], 0, 0),
            )
            for sequence, time, (start, end), own in found
        ]
        return rows

    def _headers(self) -> Iterable[bytes]:
        """Of each message; one object for equal ones, then their hash is computed once."""
        headers: bytes = self._data[1]
        if not self._lengths:
            return repeat(headers, len(self.sequences))
        known: dict[bytes, bytes] = {}
        return [known.setdefault(headers[start:end], headers[start:end]) for start, end in _spans(self._lengths)]


def _spans(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where pieces of these lengths begin and end."""
    ends = list(accumulate(lengths))
    return zip(chain((0,), ends), ends, strict=False)


def read_run(shared: int, raw: RawRun) -> StoredRun:
    """A run of the partition with this checksum. Its headers and body may be damaged.

    Raises ValueError: its places, or what is settled of it, are not what was written.
    """
    try:
        return StoredRun(shared, raw)
    except (TypeError, OverflowError, StructError) as error:
        raise ValueError(f"a run cannot be read: {error}") from error


def _settled_checksum(shared: int, first: int, messages: int, size: int, waiting: bytes) -> int:
    return crc32(waiting, crc32(_SETTLED(first, messages, size), shared)) or 1
