"""What a node put aside because of damage, and what has to be appended so that it counts again.

A damaged stretch of the journal is quarantined, and with it every later batch of an origin that no longer continues:
valid, but of no use until the stretch is there again. With peers it comes back by itself
(`qmq.server.repair.quarantine`). Without them somebody has to say that it never will: then something else stands for
what is damaged (`snapshot_batch`), a GONE record says so, and the valid batches behind it are appended anew
(`release`), or go with it (`drop`).

These two work on a store that nobody else has open. Nothing is removed: what was put aside stays in `quarantine/`.
Repeated, they find that everything is here already.
"""

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from qmq.dots import Origin, Vector
from qmq.errors import CorruptLog
from qmq.storage.format.batch import BatchHead, encode_batch, verify_batch
from qmq.storage.format.interfaces import Disk
from qmq.storage.format.lost_record import LostRange, pack_lost
from qmq.storage.format.record import RecordKind, pack_envelope, pack_record
from qmq.storage.log.recovery import Quarantined, quarantined_bytes
from qmq.storage.repair.range_snapshot import nothing_left, snapshot_batch
from qmq.storage.store import Store


class QuarantinedRange(NamedTuple):
    """What is to become of one origin: records `gone` (first, last) are nowhere, `batches` come back behind them.

    More than one step where damage hit the origin in several places.
    """

    origin: Origin
    gone: tuple[int, int] | None
    batches: tuple[bytes, ...]
    first: int
    last: int
    """Of `batches`."""

    @property
    def records(self) -> int:
        """In `batches`."""
        return self.last - self.first + 1


def valid_quarantined(disk: Disk, have: Vector, start: int) -> dict[Origin, list[tuple[int, int]]]:
    """First and last sequences of the batches that are aside and not here, ascending. Reads and verifies all.

    `start`: of the journal. An incarnation of which nothing is here, and that had its place before it, is forgotten.
    """
    found: dict[Origin, list[tuple[int, int]]] = {}
    for head, _ in _valid(disk, have, start, None):
        found.setdefault(head.origin, []).append((head.first, head.last))
    return {origin: sorted(batches) for origin, batches in found.items()}


def quarantined_ranges(
    disk: Disk, have: Vector, start: int = 0, origins: Collection[Origin] | None = None
) -> list[QuarantinedRange]:
    """The steps that bring back all that is valid, in order; none when it is here already, or cannot be read.

    `start` as above. Only of these `origins`, if any are named. Where what is here ends in the midst of a batch nothing
    comes back: batches are taken whole, and what is valid is not given up.
    """
    valid: dict[Origin, dict[int, tuple[int, bytes]]] = {}
    for head, data in _valid(disk, have, start, origins):
        valid.setdefault(head.origin, {})[head.first] = (head.last, data)
    steps: list[QuarantinedRange] = []
    for origin in sorted(valid):
        known = have.get(origin, 0)
        for first, (last, data) in sorted(valid[origin].items()):
            if last <= known:
                continue
            if first <= known:
                break
            if first == known + 1 and steps and steps[-1].origin == origin:
                before = steps.pop()
                steps.append(before._replace(batches=(*before.batches, data), last=last))
            else:
                gone = (known + 1, first - 1) if first > known + 1 else None
                steps.append(QuarantinedRange(origin, gone, (data,), first, last))
            known = last
    return steps


def _valid(
    disk: Disk, have: Vector, start: int, origins: Collection[Origin] | None
) -> Iterator[tuple[BatchHead, bytes]]:
    def is_wanted(entry: Quarantined) -> bool:
        origin = entry.origin
        if origin is None or entry.last <= have.get(origin, 0) or origin not in have and entry.start < start:
            return False
        return origins is None or origin in origins

    for _, data in quarantined_bytes(disk, is_wanted):
        try:
            head = verify_batch(data)
        except CorruptLog:
            continue  # The quarantine itself has rotted.
        yield head, data


def release(store: Store, steps: list[QuarantinedRange], draw: Callable[[], int], now_us: int) -> None:
    """Go on behind what is gone and append the rest, durable on return; the next start takes it into the stores.

    `draw` gives the number of an incarnation. Raises what `Journal.append` raises.
    """
    _append(store, [(step.origin, step.gone, step.batches) for step in steps], draw, now_us)


def drop(store: Store, steps: list[QuarantinedRange], draw: Callable[[], int], now_us: int) -> None:
    """Go on behind all of it, also what is valid; durable on return."""
    gone = [(step.origin, (step.gone[0] if step.gone else step.first, step.last), ()) for step in steps]
    _append(store, gone, draw, now_us)


def _append(
    store: Store,
    steps: Collection[tuple[Origin, tuple[int, int] | None, tuple[bytes, ...]]],
    draw: Callable[[], int],
    now_us: int,
) -> None:
    writer = store.begin_incarnation(draw(), now_us)
    sequence = store.journal.vector()[writer]
    for origin, gone, batches in steps:
        todo = list(batches)
        if gone is not None:
            sequence += 1
            body = pack_lost(LostRange(origin, *gone))
            record = pack_record(sequence, now_us, RecordKind.GONE, 0, pack_envelope("", b""), body)
            told = encode_batch(writer, [record], sequence, sequence, now_us, now_us, 0)
            todo = [told, snapshot_batch(origin, gone[0] - 1, nothing_left(gone[1])), *todo]
        store.journal.append(todo, settle_only=True)
    store.journal.sync()
