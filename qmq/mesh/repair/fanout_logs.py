"""Repairs a damaged fanout log from the own journal, and from peers for records that the journal does not have.

`storage.repair.fanout_logs` knows what the log is missing, searches the journal, and rewrites the log. The engine asks
peers for the remainder (`engine`). A range that no node knows, or of which retention has dropped a part on the peers,
is given up only after every member has answered. Then subscribers are notified of exactly what is missing, as after any
retention. A node without peers uses its journal alone and gives up nothing.

Until a log is repaired, its readers are refused where it is damaged. A node checks when a reader has found damage or a
peer has come back. While something is left to do, it checks again after `RETRY_SECONDS`.
"""

import logging
from math import inf
from typing import Final

import trio

from qmq.engine.parts import EngineParts
from qmq.environment import Environment
from qmq.errors import DiskFull
from qmq.mesh.peers.rpc import PeerRpc
from qmq.mesh.repair.engine import RepairTask, Sink, Taken, repair
from qmq.model.dots import merge
from qmq.replication.mesh import Mesh
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.repair.fanout_logs import FoundRange, records_of
from qmq.storage.repair.range_snapshot import RangeSnapshot, snapshot_batch

RETRY_SECONDS: Final = 60.0
"""Until peers that could not help, or be reached, are asked again."""

log = logging.getLogger("qmq.fanout_repair")


class FanoutRepair(RepairTask):
    def __init__(self, engine: EngineParts, mesh: Mesh, rpc: PeerRpc) -> None:
        super().__init__()
        self.repaired = 0
        """Repaired logs, since the start."""
        self._engine = engine
        self._mesh = mesh
        self._rpc = rpc

    async def _round(self) -> float:
        for destination in self._engine.store.damaged_fanouts():
            await self._repair(destination)
        return RETRY_SECONDS if self._engine.store.damaged_fanouts() else inf

    async def _repair(self, destination: str) -> None:
        engine = self._engine
        given_up = dict(engine.broker.durable_subscriptions.given_up)
        try:
            found = await engine.environment.run_blocking(engine.store.begin_repair, destination, given_up)
        except DiskFull as error:
            log.info("= the log of %s cannot be repaired yet: %s", destination, error)
            return
        if found is None:
            return
        try:
            if not self._mesh.is_alone:
                for index, missing in enumerate(found.left):
                    sink = _LogRange(engine.environment, self._mesh, self._rpc, destination, found, index)
                    await repair(self._rpc, self._mesh, sink, [missing])
            if not found.is_complete:
                log.info("= the log of %s cannot be repaired yet: %d ranges are missing", destination, found.missing)
            elif await engine.environment.run_blocking(engine.store.finish_repair, destination, found):
                self.repaired += 1
                log.info("= the log of %s is repaired", destination)
        except DiskFull as error:
            log.info("= the log of %s cannot be repaired yet: %s", destination, error)
        finally:
            with trio.CancelScope(shield=True):
                await engine.environment.run_blocking(found.close)


class _LogRange(Sink):
    def __init__(
        self, environment: Environment, mesh: Mesh, rpc: PeerRpc, destination: str, found: FoundRange, index: int
    ) -> None:
        self.fanout = destination
        self._environment = environment
        self._mesh = mesh
        self._rpc = rpc
        self._found = found
        self._index = index
        # Whether every member has answered: then what the retention of a peer has left is taken.
        self._is_last = False

    async def search(self, missing: MissingRange) -> MissingRange | None:
        """`begin_repair` has searched the journal."""
        left = self._found.left[self._index]
        return left if left.after < left.through else None

    async def take(self, peer: str, missing: MissingRange, after: int, snapshot: RangeSnapshot) -> Taken:
        """Take what `peer` has, if that is all that there was of it; in the end also a part."""
        origin, _, through = missing[:3]
        if snapshot.lost or (snapshot.dropped > after and not self._is_last):
            return missing, through
        records = records_of(self.fanout, snapshot_batch(origin, after, snapshot), after, snapshot.through)
        if snapshot.dropped > after:
            merge(self._found.lost, {origin: min(snapshot.dropped, through)})
        await self._environment.run_blocking(self._found.add, self._index, snapshot.through, records)
        return await self.search(missing), snapshot.through

    def has_answered(self, peer: str, missing: MissingRange, after: int) -> bool:
        return True

    async def give_up(self, missing: MissingRange) -> MissingRange | None:
        if not self._is_last:
            self._is_last = True
            return next(iter(await repair(self._rpc, self._mesh, self, [missing])), None)
        self._found.give_up(self._index)
        return None
