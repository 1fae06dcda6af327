"""What this node can say of records and messages when a peer repairs itself.

The readers of `range_snapshot` read the stores as they are. This module takes into account what the stores of this
node are missing themselves, so that a peer never takes a missing row for a settled message.
"""

import threading
from collections.abc import Collection, Sequence
from itertools import islice

from qmq.errors import CorruptLog
from qmq.model.dots import Dot, Origin, Vector
from qmq.storage.checkpoints.checkpoint import Checkpointer
from qmq.storage.format.interfaces import SEQUENCE_MAX
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.format.queue_store import QueueStore, unsettled_rows
from qmq.storage.repair.queue_rows import RowRepairer
from qmq.storage.repair.range_snapshot import Known, RangeSnapshot, SnapshotReader, known_of


class RepairSource:
    """Of one store; any thread may call it."""

    def __init__(
        self, queues: QueueStore, snapshots: SnapshotReader, checkpointer: Checkpointer, row_repairer: RowRepairer
    ) -> None:
        self._queues = queues
        self.snapshots = snapshots
        self._checkpointer = checkpointer
        self._row_repairer = row_repairer
        self._snapshot_lock = threading.Lock()

    def read(
        self,
        origin: Origin,
        after: int,
        through: int,
        given_up: int,
        fanout: str = "",
        lost_ends: Sequence[int] = (),
        searched_for: Collection[MissingRange] | None = None,
    ) -> RangeSnapshot:
        """What the stores still hold of a range, for a peer that is missing it. See `SnapshotReader.read`.

        A part ends where the queue store of this node is missing rows; if that is at its beginning, CorruptLog.

        If a peer repairs damaged rows, `searched_for` names the ranges that this node has not found in its own journal.
        There, and in ranges that it gave up, this node knows only the records that it returns (`RangeSnapshot.lost`).
        A part ends where such a range begins or ends, and no fanout log is read. If a missing range may still be in the
        journal, the answer says nothing new.
        """
        with self._snapshot_lock, self._row_repairer.row_lock:
            known = given_up if searched_for is None else 0
            if not fanout and known <= after:
                # A rebuilt queue store may be behind the logs.
                through = max(after, min(through, self._checkpointer.stored.vector.get(origin, 0)))
            rows_only = searched_for is not None
            snapshot = self.snapshots.read(origin, after, through, known, fanout, lost_ends, rows_only)
            if fanout or snapshot.lost:
                return snapshot
            # Only now: reading may have found damage.
            missing_ranges = [missing for missing in self._row_repairer.missing_ranges() if missing.origin == origin]
            missing_ranges = [one for one in missing_ranges if one.through > after and one.after < snapshot.through]
            if searched_for is not None:
                if not all(missing in searched_for for missing in missing_ranges):
                    return RangeSnapshot(after, 0, 0, [])
                if missing_ranges:
                    first = min(missing_ranges, key=lambda missing: missing.after)
                    is_lost = first.after <= after
                    end = min(first.through if is_lost else first.after, snapshot.through)
                    snapshot = self.snapshots.read(origin, after, end, known, fanout, lost_ends, rows_only)
                    if is_lost:
                        return snapshot._replace(lost=snapshot.through)
                reached = snapshot.through if snapshot.through > after else through
                lost = min(given_up, reached)
                return snapshot._replace(lost=lost) if lost > after else snapshot
            if not missing_ranges:
                return snapshot
            end = min(missing.after for missing in missing_ranges)
            if end > after:
                return self.snapshots.read(origin, after, end, given_up, fanout, lost_ends)
        raise CorruptLog(f"the queue store is damaged behind {end} of {origin}")

    def forget_index(self) -> None:
        """A fanout log was rewritten: the next snapshot builds its index again."""
        with self._snapshot_lock:
            self.snapshots.forget()

    def known_of(self, dots: list[Dot], given_up: Vector, forgotten: Collection[Origin] = ()) -> Known:
        """Which of these messages this node knows to be settled, or to have failed; nothing about those it gave up."""
        vector, tombstones = self._checkpointer.stored
        with self._row_repairer.row_lock:
            known = known_of(self._queues, vector, tombstones, given_up, forgotten, dots)
            missing_ranges = self._row_repairer.missing_ranges()
        for missing in missing_ranges:
            known = known._replace(done=[dot for dot in known.done if not _is_in(dot, missing) or dot in tombstones])
        return known

    def unsettled(self, after: Dot | None, limit: int) -> list[tuple[str, Dot, int]]:
        """See `Store.unsettled`."""
        found: list[tuple[str, Dot, int]] = []
        for origin in self._queues.origins():
            if len(found) < limit and (after is None or origin >= after.origin):
                beyond = after.sequence if after is not None and origin == after.origin else 0
                rows = islice(unsettled_rows(self._queues, origin, beyond, SEQUENCE_MAX), limit - len(found))
                found += [(row.queue, row.dot, row.attempts) for row in rows]
        return found

    def in_doubt(self, after: Dot | None, limit: int) -> list[tuple[str, Dot, int]]:
        """As `unsettled`, with the messages of damaged rows: a peer that does not know of a settle may restore them."""
        with self._row_repairer.row_lock:
            found = self.unsettled(after, limit)
            missing_ranges = [missing for missing in self._row_repairer.missing_ranges() if missing.sequence]
        last = found[-1][1] if len(found) == limit else None
        for missing in missing_ranges:
            dot = Dot(missing.origin, missing.sequence)
            if (after is None or dot > after) and (last is None or dot < last):
                found.append((missing.queue, dot, 0))
        return sorted(found, key=lambda one: one[1])[:limit]


def _is_in(dot: Dot, missing: MissingRange) -> bool:
    return dot.origin == missing.origin and missing.after < dot.sequence <= missing.through
