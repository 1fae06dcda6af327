"""Repairs a damaged fanout log: from the own journal, and for what that does not have, from peers.

`storage.repair.fanout_logs` knows what the log is missing and rewrites it. This decides which peers are asked, and when
a range is lost. Peers are asked one after the other, for each range until one accounts for all of it. A range that
every other node has dropped by retention, or that no node knows, is given up only after every member has responded.
Then subscribers are notified exactly what is missing, as for any retention. A node without peers uses its journal alone
and gives up nothing.

Until a log is repaired, its readers are refused where it is damaged. A node checks when a reader has found damage or a
peer has come back. It checks again after `RETRY_SECONDS` while something is left to do.
"""

import logging
from functools import partial
from math import inf
from typing import Final, Protocol

import trio

from qmq.dots import merge
from qmq.errors import CorruptLog, DiskFull
from qmq.replication.anti_entropy.gaps import WantedRange
from qmq.server.repair.catch_up import ask_snapshot
from qmq.server.runtime.contexts import Engine, Links, MeshPeers
from qmq.storage.repair.fanout_logs import FoundRange, records_of
from qmq.storage.repair.range_snapshot import snapshot_batch

RETRY_SECONDS: Final = 60.0
"""Until peers that could not help, or be reached, are asked again."""

log = logging.getLogger("qmq.fanout_repair")


class FanoutRepairContext(Engine, MeshPeers, Protocol):
    """What repairing fanout logs needs of the node."""


class FanoutRepair:
    """See the module's opening. `links` is None on a node without peers."""

    def __init__(self, context: FanoutRepairContext) -> None:
        self.links: Links | None = None
        self.mended = 0
        """Repaired logs, since the start."""
        self._context = context
        self._wake = trio.Event()

    def schedule(self) -> None:
        """A reader has found damage, or there is another peer to ask."""
        self._wake.set()

    async def run(self) -> None:
        """Repair what is damaged, until cancelled."""
        while True:
            damaged = self._context.store.damaged_fanouts()
            for destination in damaged:
                await self._repair(destination)
            left = self._context.store.damaged_fanouts()
            with trio.move_on_after(RETRY_SECONDS if left else inf):
                await self._wake.wait()
                self._wake = trio.Event()

    async def _repair(self, destination: str) -> None:
        context = self._context
        given_up = dict(context.broker.durable_subscriptions.given_up)
        found = await context.environment.run_blocking(partial(context.store.begin_repair, destination, given_up))
        if found is None:
            return
        try:
            if not found.is_complete:
                await self._ask(destination, found)
            if not found.is_complete:
                log.info("= the log of %s cannot be repaired yet: %d ranges are missing", destination, found.missing)
            elif await context.environment.run_blocking(partial(context.store.finish_repair, destination, found)):
                self.mended += 1
                log.info("= the log of %s is repaired", destination)
        except DiskFull as error:
            log.info("= the log of %s cannot be repaired yet: %s", destination, error)
        finally:
            with trio.CancelScope(shield=True):
                await context.environment.run_blocking(found.close)

    async def _ask(self, destination: str, found: FoundRange) -> None:
        if self.links is None:
            return
        peers = self.links.reachable()
        silent = set(self._context.member_names) - set(peers)
        for index in range(len(found.left)):
            for peer in peers:
                if not await self._ask_peer(peer, destination, found, index, is_last=False):
                    silent.add(peer)
            if silent:
                continue  # A member that could not be asked may have it.
            for peer in peers:
                await self._ask_peer(peer, destination, found, index, is_last=True)
            gap = found.left[index]
            if gap.after < gap.through:
                found.give_up(index)

    async def _ask_peer(self, peer: str, destination: str, found: FoundRange, index: int, *, is_last: bool) -> bool:
        """Take what `peer` has of one range, if that is all that there was of it; with `is_last` also where its
        retention had dropped some. False: no response.
        """
        while (gap := found.left[index]).after < gap.through:
            snapshot = await ask_snapshot(
                self._context, WantedRange(peer, gap.origin, gap.after, gap.through), destination
            )
            if snapshot is None:
                return False
            if snapshot.lost or snapshot.through <= gap.after or (snapshot.dropped > gap.after and not is_last):
                return True
            try:
                records = records_of(
                    destination, snapshot_batch(gap.origin, gap.after, snapshot), gap.after, snapshot.through
                )
            except (CorruptLog, ValueError) as error:
                log.error("! the snapshot that %s sent of %s cannot be applied: %s", peer, gap.origin, error)
                return False
            if snapshot.dropped > gap.after:
                merge(found.lost, {gap.origin: min(snapshot.dropped, gap.through)})
            await self._context.environment.run_blocking(partial(found.add, index, snapshot.through, records))
        return True
