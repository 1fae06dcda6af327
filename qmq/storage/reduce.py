"""From journal to stores: what a stretch of the journal comes to, once settles have met their messages.

Pure: fed with batches in log order, it holds the queue messages that are still there at the end, what the queue store
has to forget, and the records of each fanout. Recovery and checkpoint use the same rules, so a replay and an
undisturbed run cannot disagree.

Surprising: whether a settle's message is already known is decided by the vector at that point of the log, not by
looking for the row. That makes the result a function of the log alone, however often it is computed.
"""

from typing import Final, NamedTuple

from qmq.dots import Dot, Origin, Vector
from qmq.storage.batch import GAPS, BatchHead, batch_records, record_slices
from qmq.storage.ports import QueueRow, StorageSettings
from qmq.storage.record import Kind, Record, priority_of, unpack_dots, unpack_gap

NEVER: Final = 1 << 63
"""A position that no journal reaches: that kind of store is left alone."""


class FanoutEntry(NamedTuple):
    """One record on its way into a fanout log, already packed."""

    origin: Origin
    sequence: int
    timestamp_us: int
    packed: bytes


class Reduction:
    """`vector` and `tombstones` describe the point where the stretch begins; `vector` moves with it.

    `queue_position` and `fanout_position` say from where on each kind of store still needs the journal: batches before
    one of them move the vector, but leave that store alone.
    """

    __slots__ = (
        "vector",
        "live",
        "deletes",
        "tombstones_add",
        "tombstones_del",
        "fanouts",
        "_known_tombstones",
        "_settings",
        "_node",
        "_queue_position",
        "_fanout_position",
    )

    def __init__(
        self,
        settings: StorageSettings,
        node: str,
        vector: Vector,
        tombstones: set[Dot],
        *,
        queue_position: int,
        fanout_position: int,
    ) -> None:
        self.vector = vector
        self.live: dict[Dot, Record] = {}
        """Queue messages published here and not settled, in log order."""
        self.deletes: list[Dot] = []
        """Settled messages that were published before this stretch."""
        self.tombstones_add: set[Dot] = set()
        self.tombstones_del: set[Dot] = set()
        self.fanouts: dict[str, list[FanoutEntry]] = {}
        self._known_tombstones = tombstones
        self._settings = settings
        self._node = node
        self._queue_position = queue_position
        self._fanout_position = fanout_position

    def take(self, position: int, head: BatchHead, data: bytes) -> None:
        """The next batch of the log. Raises CorruptLog when its records are not what its head says."""
        origin = head.origin
        queues = position >= self._queue_position
        fanouts = position >= self._fanout_position
        if not queues and not fanouts and not head.attributes & GAPS:
            self.vector[origin] = head.last
            return
        slices: list[bytes] = []
        for record in batch_records(data):
            self.vector[origin] = record.sequence
            if record.kind == Kind.PUBLISH:
                if record.destination.startswith(self._settings.queue_prefix):
                    if queues:
                        self._publish(Dot(origin, record.sequence), record)
                elif fanouts and record.destination.startswith(self._settings.fanout_prefix):
                    slices = slices or record_slices(data)
                    self.fanouts.setdefault(record.destination, []).append(
                        FanoutEntry(origin, record.sequence, record.timestamp_us, slices[record.sequence - head.first])
                    )
            elif record.kind == Kind.SETTLE and queues:
                for dot in unpack_dots(record.body):
                    self._settle(dot)
            elif record.kind == Kind.GAP and head.attributes & GAPS and origin.node == self._node:
                self._give_up(*unpack_gap(record.body), queues)

    def rows(self) -> list[QueueRow]:
        """`live` as the queue store wants it."""
        return [
            QueueRow(
                dot,
                record.destination,
                record.timestamp_us,
                record.flags,
                priority_of(record.flags),
                record.headers,
                record.body,
            )
            for dot, record in self.live.items()
        ]

    def tombstones(self) -> set[Dot]:
        """Settles that still wait for their message at the end of the stretch."""
        return (self._known_tombstones | self.tombstones_add) - self.tombstones_del

    def _publish(self, dot: Dot, record: Record) -> None:
        if dot in self.tombstones_add:
            self.tombstones_add.discard(dot)
        elif dot in self._known_tombstones:
            self.tombstones_del.add(dot)
        else:
            self.live[dot] = record

    def _settle(self, dot: Dot) -> None:
        if dot.sequence > self.vector.get(dot.origin, 0):
            if dot not in self._known_tombstones:
                self.tombstones_add.add(dot)
        elif self.live.pop(dot, None) is None:
            self.deletes.append(dot)

    def _give_up(self, origin: Origin, through: int, queues: bool) -> None:
        """Records that will not come need no tombstone either."""
        self.vector[origin] = max(self.vector.get(origin, 0), through)
        if queues:
            for dot in list(self.tombstones_add):
                if dot.origin == origin and dot.sequence <= through:
                    self.tombstones_add.discard(dot)
            for dot in self._known_tombstones:
                if dot.origin == origin and dot.sequence <= through:
                    self.tombstones_del.add(dot)
