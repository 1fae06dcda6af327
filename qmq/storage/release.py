"""What a node put aside because of damage, for the operator of one that has no peers to fetch it from again.

A damaged stretch of the journal is quarantined, and with it every later batch of an origin that no longer continues:
valid, but of no use until the stretch is there again. With peers it comes back by itself. Without them somebody has to
say that it never will: then a GAP record gives up what is damaged, and the valid batches behind it are appended anew
(`release`), or are given up too (`drop`).

Works on a store that nobody else has open. Nothing is removed: what was put aside stays in `quarantine/`. Repeated, it
finds that everything is here already.
"""

from collections.abc import Callable
from typing import NamedTuple

from qmq.dots import Origin, Vector
from qmq.errors import CorruptLog
from qmq.storage.batch import GAPS, encode_batch, verify_batch
from qmq.storage.ports import Disk
from qmq.storage.record import Kind, pack_envelope, pack_gap, pack_record
from qmq.storage.recovery import quarantined_bytes
from qmq.storage.store import Store


class Aside(NamedTuple):
    """What is to become of one origin: records `gone` (first, last) are given up, `batches` come back behind them.

    More than one step where damage hit the origin in several places.
    """

    origin: Origin
    gone: tuple[int, int] | None
    batches: tuple[bytes, ...]
    records: int


def what_is_aside(disk: Disk, have: Vector) -> list[Aside]:
    """The steps that bring back all that is valid, in order; none when it is here already, or cannot be read."""
    valid: dict[Origin, dict[int, tuple[int, bytes]]] = {}
    for entry, data in quarantined_bytes(disk):
        if entry.origin is None:
            continue
        try:
            head = verify_batch(data)
        except CorruptLog:
            continue  # The quarantine itself has rotted.
        valid.setdefault(head.origin, {})[head.first] = (head.last, data)
    steps: list[Aside] = []
    for origin in sorted(valid):
        known = have.get(origin, 0)
        for first, (last, data) in sorted(valid[origin].items()):
            if first <= known:
                continue
            count = last - first + 1
            if first == known + 1 and steps and steps[-1].origin == origin:
                before = steps.pop()
                steps.append(before._replace(batches=(*before.batches, data), records=before.records + count))
            else:
                gone = (known + 1, first - 1) if first > known + 1 else None
                steps.append(Aside(origin, gone, (data,), count))
            known = last
    return steps


def release(store: Store, steps: list[Aside], draw: Callable[[], int], now_us: int) -> None:
    """Give up what is gone and append the rest, durable on return; the next start takes it into the stores.

    `draw` gives the number of an incarnation. Raises what `Journal.append` raises.
    """
    _append(store, [(step, step.gone[1] if step.gone else 0, step.batches) for step in steps], draw, now_us)


def drop(store: Store, steps: list[Aside], draw: Callable[[], int], now_us: int) -> None:
    """Give up all of it, also what is valid; durable on return."""
    _append(store, [(step, verify_batch(step.batches[-1]).last, ()) for step in steps], draw, now_us)


def _append(
    store: Store, steps: list[tuple[Aside, int, tuple[bytes, ...]]], draw: Callable[[], int], now_us: int
) -> None:
    writer = store.begin_incarnation(draw(), now_us)
    sequence = store.journal.vector()[writer]
    for step, through, batches in steps:
        todo = list(batches)
        if through:
            sequence += 1
            envelope = pack_envelope("", b"")
            record = pack_record(sequence, now_us, Kind.GAP, 0, envelope, pack_gap(step.origin, through))
            todo.insert(0, encode_batch(writer, [record], sequence, sequence, now_us, now_us, GAPS))
        store.journal.append(todo, settle_only=True)
    store.journal.sync()
