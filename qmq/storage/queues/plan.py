"""Plans a change of the queue store before any SQL: rows by partition, settles by queue and origin.

A **partition** holds the rows of one queue, level and origin; rows with a due time are in a partition of their own.
So ready rows can be read in order without skipping delayed ones, and one small row per partition holds its counts.
Shared by the stores (`sqlite_store`, `postgres_store`, and the fake of the tests).

Surprising: settles name the queue but not the level, so a settle is searched for in every partition of its queue and
origin; there is seldom more than one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Final, NamedTuple, TypeVar

from qmq.model.dots import Dot, Origin
from qmq.model.levels import delivery_order
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.format.queue_store import ANY_BYTES, QueueHead, QueueRow, RowDamage, RowRun
from qmq.storage.format.row_checksum import partition_checksum

SIGN: Final = 1 << 63
_WRAP: Final = 1 << 64
RUN_MIN: Final = 32
"""The smallest run of sequences without a hole that gets a statement of its own."""


Key = TypeVar("Key")

by_sequence: Final = attrgetter("dot.sequence")


class PartitionKey(NamedTuple):
    """`rank` is the level with its sign turned."""

    queue: str
    rank: int
    delayed: bool
    origin: Origin


class PartitionRow:
    """A partition, from its columns: `id` and `number` name it and its origin in the database.

    `checksum` is part of the checksums of its rows. It is computed from the other columns, unless it is given.
    """

    __slots__ = ("id", "queue", "rank", "delayed", "number", "origin", "checksum", "has_runs")

    def __init__(
        self,
        id: int,
        queue: str,
        rank: int,
        delayed: int,
        number: int,
        node: str,
        incarnation: int,
        checksum: int | None = None,
        has_runs: int = True,
    ) -> None:
        self.id = id
        self.queue = queue
        self.rank = rank
        self.delayed = bool(delayed)
        self.number = number
        self.origin = Origin(node, unsigned(incarnation))
        self.checksum = partition_checksum(queue, rank, self.delayed, self.origin) if checksum is None else checksum
        self.has_runs = bool(has_runs)

    def missing(self, sequence: int) -> MissingRange:
        """What a damaged row of this message may have been."""
        return MissingRange(self.origin, sequence - 1, sequence, sequence, self.queue)


def missing_columns(missing: MissingRange) -> tuple[str, int, int, int, int, str]:
    """As a database holds it; `missing_of` is the inverse."""
    through = min(missing.through, SIGN - 1)
    return (*origin_columns(missing.origin), signed(missing.after), through, signed(missing.sequence), missing.queue)


def missing_key(missing: MissingRange) -> tuple[str, int, int, int, str]:
    """Its key in a database. The range may become shorter at its end."""
    return (*origin_columns(missing.origin), signed(missing.after), signed(missing.sequence), missing.queue)


def missing_of(node: str, incarnation: int, after: int, through: int, sequence: int, queue: str) -> MissingRange:
    return MissingRange(Origin(node, unsigned(incarnation)), after, through, unsigned(sequence), queue)


DAMAGE_REPORTED_MAX: Final = 20
"""Damaged rows that are reported one by one: fewer than the conditions that are shown."""


def note_damage(damage: RowDamage, missing: MissingRange) -> None:
    """Count a damaged row, and add it to the text for the operator."""
    damage.met += 1
    if len(damage.lines) < DAMAGE_REPORTED_MAX:
        damage.lines.append(
            f"the queue store's row of {Dot(missing.origin, missing.sequence)} in {missing.queue} is damaged"
        )


def by_partition(runs: Iterable[RowRun]) -> dict[PartitionKey, list[RowRun]]:
    """`runs` by partition, in the given order."""
    partitions: dict[PartitionKey, list[RowRun]] = {}
    for run in runs:
        key = PartitionKey(run.queue, -run.priority, run.due_us > 0, run.origin)
        partitions.setdefault(key, []).append(run)
    return partitions


def settles_by_origin(deletes: Mapping[str, Sequence[Dot]]) -> dict[tuple[str, Origin], list[int]]:
    """(queue, origin) → sequences as databases hold them (`signed`), sorted, each once."""
    found: dict[tuple[str, Origin], list[int]] = {}
    for queue, dots in deletes.items():
        last_origin: Origin | None = None
        sequences: list[int] = []
        for origin, sequence in dots:
            if origin is not last_origin:
                last_origin = origin
                sequences = found.setdefault((queue, origin), [])
            sequences.append(sequence if sequence < SIGN else sequence - _WRAP)
    return {key: sorted(set(sequences)) for key, sequences in found.items()}


def settled_missing(missing_ranges: Iterable[MissingRange], deletes: Mapping[str, Sequence[Dot]]) -> list[MissingRange]:
    """The missing ranges of single messages that are among those settled: they are no longer missing."""
    single = {Dot(missing.origin, missing.sequence): missing for missing in missing_ranges if missing.is_of_one}
    if not single:
        return []
    return [single[dot] for dots in deletes.values() for dot in set(dots) if dot in single]


def missing_among(dots: Iterable[Dot], missing_ranges: Iterable[MissingRange]) -> set[Dot]:
    """Those of `dots` that lie in a missing range."""
    stretches: dict[Origin, set[tuple[int, int]]] = {}
    for missing in missing_ranges:
        stretches.setdefault(missing.origin, set()).add((missing.after, missing.through))
    return {
        dot
        for dot in dots
        if dot.origin in stretches and any(after < dot.sequence <= through for after, through in stretches[dot.origin])
    }


def attempts_by_origin(attempts: Mapping[str, Mapping[Dot, int]]) -> dict[tuple[str, Origin], list[tuple[int, int]]]:
    """(queue, origin) → sequences as databases hold them, each with its count."""
    found: dict[tuple[str, Origin], list[tuple[int, int]]] = {}
    for queue, counts in attempts.items():
        for (origin, sequence), count in counts.items():
            found.setdefault((queue, origin), []).append((signed(sequence), count))
    return found


def runs(sequences: Sequence[int]) -> tuple[list[tuple[int, int]], list[int]]:
    """Sorted `sequences` as long runs without a hole (first, last), and the others one by one."""
    long: list[tuple[int, int]] = []
    remainder: list[int] = []
    start = 0
    count = len(sequences)
    while start < count:
        end = start + 1
        # The next RUN_MIN have no hole if the last of them is where it should be.
        while end + RUN_MIN <= count and sequences[end + RUN_MIN - 1] == sequences[start] + end + RUN_MIN - 1 - start:
            end += RUN_MIN
        while end < count and sequences[end] == sequences[end - 1] + 1:
            end += 1
        if end - start >= RUN_MIN:
            long.append((sequences[start], sequences[end - 1]))
        else:
            remainder.extend(sequences[start:end])
        start = end
    return long, remainder


def within(sizes: Iterable[int], bytes_max: int) -> int:
    """How many of `sizes` are needed to reach `bytes_max`; all, if they do not."""
    totals = list(accumulate(sizes))
    return min(bisect_left(totals, bytes_max) + 1, len(totals))


def row_bytes(row: QueueRow) -> int:
    """Its headers and body."""
    return len(row.headers) + len(row.body)


def rows_within(rows: list[QueueRow], limit: int, bytes_max: int) -> list[QueueRow]:
    """The first `limit` rows, up to the first with which they come to `bytes_max`."""
    rows = rows[:limit]
    return rows if bytes_max >= ANY_BYTES else rows[: within(map(row_bytes, rows), bytes_max)]


def is_page_full(rows: list[QueueRow], limit: int, bytes_max: int) -> bool:
    """Whether more may come after `rows`, which were asked for with these bounds."""
    return len(rows) >= limit or (bytes_max < ANY_BYTES and sum(map(row_bytes, rows)) >= bytes_max)


def first_within(rows: list[QueueRow], through: int, limit: int, bytes_max: int) -> tuple[list[QueueRow], int]:
    """The first of these rows up to `through`, by sequence, within these bounds; up to where others may be missing."""
    rows.sort(key=by_sequence)
    del rows[bisect_right(rows, through, key=by_sequence) :]
    rows = rows_within(rows, limit, bytes_max)
    return rows, rows[-1].dot.sequence if is_page_full(rows, limit, bytes_max) else through


def expired_within(
    rows: list[QueueRow], limit: int, bytes_max: int, expiry: Callable[[QueueRow], int] = attrgetter("expires_us")
) -> list[QueueRow]:
    """The result of `QueueStore.expired` for these rows."""
    return rows_within(sorted(rows, key=expiry), limit, bytes_max)


def signed(value: int) -> int:
    """An unsigned 64-bit integer as a database can hold it; `unsigned` is the inverse.

    Those from 2**63 on sort before all others then. No sequence or time gets there, only incarnations do.
    """
    return value - _WRAP if value >= SIGN else value


def unsigned(value: int) -> int:
    return value + _WRAP if value < 0 else value


def origin_columns(origin: Origin) -> tuple[str, int]:
    return origin.node, signed(origin.incarnation)


NO_HEAD: Final = QueueHead(0, 0, (), 0)


def sum_of(one: QueueHead, other: QueueHead) -> QueueHead:
    return QueueHead(
        one.messages + other.messages,
        one.body_bytes + other.body_bytes,
        tuple(sorted({*one.priorities, *other.priorities}, key=delivery_order, reverse=True)),
        min(one.next_due_us or other.next_due_us, other.next_due_us or one.next_due_us),
    )
