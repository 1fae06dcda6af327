"""Quarantine restore without peers: append what is valid in quarantine, or give all of it up.

A damaged range of the journal is quarantined, and with it every later batch of an origin that no longer continues.
Those batches are valid, but they cannot be used while the range is missing. With peers the node repairs this itself
(`qmq.mesh.repair.quarantine_restore`). Without them an operator must decide that the damaged range is lost. Then an
empty snapshot replaces the range (`snapshot_batch`), and a GONE record notes the loss. The valid batches behind it are
appended again (`release`), or given up as well (`drop`).

Both need a store that no other process has open. They remove nothing: the bytes stay in `quarantine/`. If they are
repeated, they find that nothing is left to do.
"""

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from qmq.errors import CorruptLog
from qmq.model.dots import Origin, Vector
from qmq.storage.format.batch import BatchHead, encode_batch, verify_batch
from qmq.storage.format.interfaces import Disk
from qmq.storage.format.lost_record import LostRange, pack_lost
from qmq.storage.format.record import RecordKind, pack_envelope, pack_record
from qmq.storage.log.quarantine import Quarantined, quarantined_bytes
from qmq.storage.repair.range_snapshot import nothing_left, snapshot_batch
from qmq.storage.store import Store


class QuarantinedRange(NamedTuple):
    """One step for one origin: records `lost` (first, last) have no copy, and `batches` are restored behind them.

    An origin has several steps if damage hit it in several places.
    """

    origin: Origin
    lost: tuple[int, int] | None
    batches: tuple[bytes, ...]
    first: int
    last: int
    """Of `batches`."""

    @property
    def records(self) -> int:
        """In `batches`."""
        return self.last - self.first + 1


def valid_quarantined(disk: Disk, have: Vector, start: int) -> dict[Origin, list[tuple[int, int]]]:
    """First and last sequences of quarantined batches that the journal does not have, ascending. Verifies all.

    `start`: of the journal. An incarnation without a record here whose quarantined bytes lie before it is collected.
    """
    found: dict[Origin, list[tuple[int, int]]] = {}
    for head, _ in _valid(disk, have, start, None):
        found.setdefault(head.origin, []).append((head.first, head.last))
    return {origin: sorted(batches) for origin, batches in found.items()}


def quarantined_ranges(
    disk: Disk, have: Vector, start: int = 0, origins: Collection[Origin] | None = None
) -> list[QuarantinedRange]:
    """The steps that restore all that is valid, in order; none when the journal has it, or it cannot be read.

    `start` as above. Only for these `origins`, if any are named. If the journal ends in the middle of a batch, nothing
    is restored: batches are taken whole, and what is valid is not given up.
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
                lost = (known + 1, first - 1) if first > known + 1 else None
                steps.append(QuarantinedRange(origin, lost, (data,), first, last))
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
    """Record what is lost and append the valid batches, durable on return; the next start takes them into the stores.

    `draw` gives the number of an incarnation. Raises what `Journal.append` raises.
    """
    _append(store, [(step.origin, step.lost, step.batches) for step in steps], draw, now_us)


def drop(store: Store, steps: list[QuarantinedRange], draw: Callable[[], int], now_us: int) -> None:
    """Record all of it as lost, valid batches included; durable on return."""
    lost = [(step.origin, (step.lost[0] if step.lost else step.first, step.last), ()) for step in steps]
    _append(store, lost, draw, now_us)


def _append(
    store: Store,
    steps: Collection[tuple[Origin, tuple[int, int] | None, tuple[bytes, ...]]],
    draw: Callable[[], int],
    now_us: int,
) -> None:
    writer = store.begin_incarnation(draw(), now_us)
    sequence = store.journal.vector()[writer]
    for origin, lost, batches in steps:
        todo = list(batches)
        if lost is not None:
            sequence += 1
            body = pack_lost(LostRange(origin, *lost))
            record = pack_record(sequence, now_us, RecordKind.GONE, 0, pack_envelope("", b""), body)
            notice = encode_batch(writer, [record], sequence, sequence, now_us, now_us, 0)
            todo = [notice, snapshot_batch(origin, lost[0] - 1, nothing_left(lost[1])), *todo]
        store.journal.append(todo, settle_only=True)
    store.journal.sync()
