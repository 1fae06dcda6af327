"""Settled messages that the queue store may still return, each until a checkpoint has applied the record of its settle.

Pure. Messages are kept as numbers, because a busy queue settles tens of thousands of them during one checkpoint.
"""

from collections.abc import Iterable, Iterator

from qmq.model.dots import Dot, Origin, Vector

Record = int | Dot
"""What settled a message: an own record's sequence, another node's dot, or 0 while the record has not come."""


class PendingDeletes:
    """Queue → origin → sequence → record. `len` counts the messages."""

    def __init__(self) -> None:
        self._count = 0
        self._queues: dict[str, dict[Origin, dict[int, Record]]] = {}

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[str, Origin, int, Record]]:
        for queue, origins in self._queues.items():
            for origin, records in origins.items():
                for sequence, record in records.items():
                    yield queue, origin, sequence, record

    def add(self, queue: str, origin: Origin, sequence: int, record: Record) -> None:
        """Remember it; a record that is known already is replaced."""
        origins = self._queues.get(queue)
        if origins is None:
            origins = self._queues[queue] = {}
        records = origins.get(origin)
        if records is None:
            records = origins[origin] = {}
        if sequence not in records:
            self._count += 1
        records[sequence] = record

    def record(self, queue: str, origin: Origin, sequence: int) -> Record | None:
        """What settled it; None when it is not remembered."""
        return self._queues.get(queue, {}).get(origin, {}).get(sequence)

    def has(self, queue: str, dot: Dot) -> bool:
        """Whether `dot` is remembered."""
        return self.record(queue, dot.origin, dot.sequence) is not None

    def awaits_records(self) -> bool:
        """Whether some were settled by the word of a peer only, whose record may be lost with its disk."""
        return any(0 in records.values() for origins in self._queues.values() for records in origins.values())

    def recorded(self, queue: str, dots: Iterable[Dot], record: int) -> None:
        """Those of `dots` that are remembered were settled by this own record."""
        origins = self._queues.get(queue)
        if origins is None:
            return
        known: Origin | None = None
        records: dict[int, Record] = {}
        for origin, sequence in dots:
            if origin is not known:
                known = origin
                records = origins.get(origin, {})
            if sequence in records:
                records[sequence] = record

    def forget(self, queue: str, origin: Origin, sequence: int) -> None:
        """It cannot come from the store any more. KeyError when it was not remembered."""
        origins = self._queues[queue]
        records = origins[origin]
        del records[sequence]
        self._count -= 1
        if not records:
            del origins[origin]
            if not origins:
                del self._queues[queue]

    def covered(self, queue: str, vector: Vector) -> int:
        """How many of one queue `vector` covers."""
        count = 0
        for origin, records in self._queues.get(queue, {}).items():
            have = vector.get(origin, 0)
            count += sum([sequence <= have for sequence in records])
        return count

    def taken(self, vector: Vector, own: Origin) -> None:
        """A checkpoint has taken every record that `vector` covers: what those settled is forgotten.

        So is what was settled by an own record that comes later, if the message is of this life and comes later, too:
        the next checkpoint takes both, or neither.
        """
        have = vector.get(own, 0)
        left: dict[str, dict[Origin, dict[int, Record]]] = {}
        self._count = 0
        for queue, origins in self._queues.items():
            for origin, records in origins.items():
                together = have if origin == own else max(records)
                kept: dict[int, Record] = {}
                for sequence, record in records.items():
                    if isinstance(record, int):
                        stays = record == 0 or (record > have and sequence <= together)
                    else:
                        stays = record.sequence > vector.get(record.origin, 0)
                    if stays:
                        kept[sequence] = record
                if kept:
                    left.setdefault(queue, {})[origin] = kept
                    self._count += len(kept)
        self._queues = left
