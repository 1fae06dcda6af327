"""Catalog and queue store in memory, committed on a `MemoryDisk`: the twins of `catalog` and `queue_store`.

What they committed survives a crash of their disk and goes with its wipe. A commit happens whole or, when the disk was
told to fail, not at all, and costs what it changes. For tests, simulations and nodes that keep nothing.
"""

from collections.abc import Iterable, Mapping, Sequence

from qmq.dots import Dot, Origin, Vector
from qmq.errors import LogBroken
from qmq.storage.memory import MemoryDisk
from qmq.storage.ports import CheckpointState, FanoutExtent, Identity, PageKey, QueueRow


class _CatalogState:
    __slots__ = ("identity", "checkpoint", "fanouts", "base", "peers", "incarnations")

    def __init__(self) -> None:
        self.identity: Identity | None = None
        self.checkpoint = CheckpointState(0, {})
        self.fanouts: dict[str, FanoutExtent] = {}
        self.base = CheckpointState(0, {})
        self.peers: dict[str, Vector] = {}
        self.incarnations: dict[Origin, int] = {}


class _QueueState:
    __slots__ = ("rows", "tombstones", "origins", "position")

    def __init__(self) -> None:
        self.rows: dict[Dot, QueueRow] = {}
        self.tombstones: set[Dot] = set()
        self.origins: dict[Origin, int] = {}
        self.position = 0


class MemoryCatalog:
    """See `ports.Catalog`."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk
        state = disk.tables.setdefault("catalog", _CatalogState())
        assert isinstance(state, _CatalogState)
        self._state = state

    def identity(self) -> Identity | None:
        return self._state.identity

    def set_identity(self, identity: Identity) -> None:
        _commit(self._disk)
        self._state.identity = identity

    def checkpoint(self) -> CheckpointState:
        return CheckpointState(self._state.checkpoint.position, dict(self._state.checkpoint.vector))

    def fanouts(self) -> dict[str, FanoutExtent]:
        return dict(self._state.fanouts)

    def commit_checkpoint(self, state: CheckpointState, fanouts: Mapping[str, FanoutExtent]) -> None:
        _commit(self._disk)
        self._state.checkpoint = CheckpointState(state.position, dict(state.vector))
        self._state.fanouts.update(fanouts)

    def base(self) -> CheckpointState:
        return CheckpointState(self._state.base.position, dict(self._state.base.vector))

    def set_base(self, state: CheckpointState) -> None:
        _commit(self._disk)
        self._state.base = CheckpointState(state.position, dict(state.vector))

    def peers(self) -> dict[str, Vector]:
        return {node: dict(vector) for node, vector in self._state.peers.items()}

    def set_peer(self, node: str, vector: Vector) -> None:
        _commit(self._disk)
        self._state.peers[node] = dict(vector)

    def incarnations(self) -> dict[Origin, int]:
        return dict(self._state.incarnations)

    def add_incarnation(self, origin: Origin, started_us: int) -> None:
        _commit(self._disk)
        self._state.incarnations[origin] = started_us

    def close(self) -> None:
        """Nothing to give back: the state belongs to the disk."""


class MemoryQueueStore:
    """See `ports.QueueStore`."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk
        state = disk.tables.setdefault("queues", _QueueState())
        assert isinstance(state, _QueueState)
        self._state = state

    def apply(
        self,
        upserts: Sequence[QueueRow],
        deletes: Iterable[Dot],
        tombstones_add: Iterable[Dot],
        tombstones_del: Iterable[Dot],
        position: int,
    ) -> None:
        _commit(self._disk)
        state = self._state
        for row in upserts:
            state.origins.setdefault(row.dot.origin, len(state.origins))
            state.rows[row.dot] = row
        for dot in deletes:
            state.rows.pop(dot, None)
        state.tombstones.update(tombstones_add)
        state.tombstones.difference_update(tombstones_del)
        state.position = position

    def position(self) -> int:
        return self._state.position

    def load(self, node: str, after: PageKey | None, limit: int) -> tuple[list[QueueRow], PageKey | None]:
        rows = [row for row in self._state.rows.values() if row.dot.origin.node == node]
        rows.sort(key=self._key)
        if after is not None:
            rows = [row for row in rows if self._key(row) > after]
        page = rows[:limit]
        return page, self._key(page[-1]) if len(rows) > limit else None

    def queues(self) -> dict[str, int]:
        counted: dict[str, int] = {}
        for row in self._state.rows.values():
            counted[row.queue] = counted.get(row.queue, 0) + 1
        return counted

    def get(self, dots: Iterable[Dot]) -> dict[Dot, QueueRow]:
        rows = self._state.rows
        return {dot: rows[dot] for dot in dots if dot in rows}

    def tombstones(self) -> set[Dot]:
        return set(self._state.tombstones)

    def close(self) -> None:
        """Nothing to give back: the state belongs to the disk."""

    def _key(self, row: QueueRow) -> PageKey:
        return (row.queue, -row.priority, self._state.origins[row.dot.origin], row.dot.sequence)


def _commit(disk: MemoryDisk) -> None:
    if disk.call("commit", 0):
        raise LogBroken(f"commit failed: {disk.error}") from disk.error
