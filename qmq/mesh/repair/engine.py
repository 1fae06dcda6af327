"""The repair engine: what this node is missing comes from its own disk, else from peers in turn, else it is lost.

Three sinks use it: the journal (`catch_up`), fanout logs (`fanout_logs`) and the rows of the queue store
(`queue_store`). A sink searches its own journal and quarantine for a missing range. The engine asks one peer after the
other for the remainder, part by part, until nothing is missing. If every member has answered, none of them has what
remains, and the sink gives it up. While a member is away, it may have the range.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence

from qmq.engine.runtime.waker import Waker
from qmq.errors import CorruptLog
from qmq.mesh.peers.rpc import PeerRpc
from qmq.mesh.repair.requests import ask_snapshot
from qmq.replication.mesh import Mesh
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.repair.range_snapshot import RangeSnapshot

Taken = tuple[MissingRange | None, int]
"""What is still missing, and after what to ask the peer next."""

log = logging.getLogger("qmq.repair")


class Sink(ABC):
    """Where found records go. The defaults are those of a sink that only peers can help."""

    fanout = ""
    """Peers are asked for this fanout only; empty: for everything."""
    is_rows = False
    """Peers are asked for rows of the queue store; see `ask_snapshot`."""

    async def search(self, missing: MissingRange) -> MissingRange | None:
        """Restore what this node has itself; return what only peers may have."""
        return missing

    @abstractmethod
    async def take(self, peer: str, missing: MissingRange, after: int, snapshot: RangeSnapshot) -> Taken:
        """Store what `peer` has after `after`. Raises CorruptLog and ValueError when the records are invalid."""

    def has_answered(self, peer: str, missing: MissingRange, after: int) -> bool:
        """`peer` accounts for nothing after `after`: whether it can never know more."""
        return False

    def no_answer(self, missing: MissingRange) -> None:  # noqa: B027 (most sinks ask again by themselves)
        """A peer is to be asked again."""

    @abstractmethod
    async def give_up(self, missing: MissingRange) -> MissingRange | None:
        """Every member has answered, and none has `missing`; return what may come back all the same."""


async def repair(rpc: PeerRpc, mesh: Mesh, sink: Sink, missing_ranges: Sequence[MissingRange]) -> list[MissingRange]:
    """Restore what can be, and give up what no member has; return what is still missing."""
    # All of them before the first request: peers may be missing the same, and ask here.
    left = [one for missing in missing_ranges if (one := await sink.search(missing)) is not None]
    still: list[MissingRange] = []
    for missing in left:
        peers = mesh.reachable()
        is_all = set(peers) >= mesh.members
        if (one := await ask_in_turn(rpc, sink, missing, peers, is_all=is_all)) is not None:
            still.append(one)
    return still


async def ask_in_turn(
    rpc: PeerRpc, sink: Sink, missing: MissingRange, peers: Sequence[str], *, is_all: bool
) -> MissingRange | None:
    """Ask `peers` for `missing`, and give up what none of them has if they are all that may have it.

    Returns what is still missing.
    """
    for peer in peers:
        left, has_answered = await _ask(rpc, sink, peer, missing)
        if left is None:
            return None
        missing, is_all = left, is_all and has_answered
    return await sink.give_up(missing) if is_all else missing


async def _ask(rpc: PeerRpc, sink: Sink, peer: str, missing: MissingRange) -> tuple[MissingRange | None, bool]:
    """Take all that `peer` has of `missing`; return what is still missing, and whether `peer` can never know more."""
    after = missing.after
    while after < missing.through:
        row = missing.sequence if sink.is_rows else None
        snapshot = await ask_snapshot(rpc, peer, missing._replace(after=after), sink.fanout, row)
        if snapshot is not None and max(snapshot.lost, snapshot.through) > after:
            try:
                left, after = await sink.take(peer, missing, after, snapshot)
            except (CorruptLog, ValueError) as error:
                log.error("! the snapshot that %s sent of %s cannot be applied: %s", peer, missing.origin, error)
            else:
                if left is None:
                    return None, True
                missing = left
                continue
        elif snapshot is not None and sink.has_answered(peer, missing, after):
            return missing, True
        sink.no_answer(missing)
        return missing, False
    return missing, True


class RepairTask(ABC):
    """Repairs whenever something may have changed."""

    def __init__(self) -> None:
        self._waker = Waker()

    def schedule(self) -> None:
        """Something is missing, or there is another peer to ask."""
        self._waker.wake()

    async def run(self) -> None:
        """Repair what is missing, until cancelled."""
        while True:
            self._waker.clear()
            await self._waker.wait(await self._round())

    @abstractmethod
    async def _round(self) -> float:
        """Repair what can be repaired now; return the seconds until the next round, unless it is scheduled before."""
