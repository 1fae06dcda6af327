"""What a damaged queue store lacks comes back: from the own journal, and what that has dropped from peers.

A damaged row is met when it is read, and never answered; its queue goes on without it. What it may have been is looked
for here: in the journal, then at one peer after the other, in the same questions as for a gap (`repairs`). What a peer
accounts for without a record is done. When every member was heard, and none knows of it, never had it, or has it aside
behind damage, it is lost, and told so with its dot; while one is away it may be the one that has it. A node without
peers goes by its journal alone.

A whole file that was put aside is the same at a larger scale: all that the journal has dropped may be lacking. Until
the peers that can be reached were asked for it, nothing of the queues is handed out (`is_behind`).
"""

import logging
from collections.abc import Collection
from functools import partial
from math import inf
from typing import Final, Protocol

import trio

from qmq.broker.broker import Broker
from qmq.broker.outcome import Outcome
from qmq.dots import Dot, Origin, Vector
from qmq.errors import CorruptLog, DiskFull
from qmq.replication.gaps import Want
from qmq.server.clerk import Clerk
from qmq.server.repairs import ask_rest
from qmq.storage.ports import Lack
from qmq.storage.store import Store
from qmq.world import World

RETRY_SECONDS: Final = 1.0
"""Until peers that could not help, or be reached, are asked again, while the queues wait for that."""

PATIENT_SECONDS: Final = 30.0
"""While they do not."""

ROUNDS_MAX: Final = 10
"""So often peers that can be reached are asked for what went with a file, before the queues go on without it."""

log = logging.getLogger("qmq.rows")


class Links(Protocol):
    """What links know of it; see `qmq.replication.mesh.Mesh`."""

    def reachable(self) -> list[str]: ...
    def has_none_beyond(self, peer: str, origin: Origin, last: int) -> bool: ...


class RowDesk(Protocol):
    """What row repairs need of the node."""

    origin: Origin
    broker: Broker
    clerk: Clerk
    store: Store
    world: World

    @property
    def member_names(self) -> Collection[str]: ...
    def alarm(self, code: str, message: str) -> None: ...
    def submit(self, out: Outcome) -> None: ...
    def repair_soon(self) -> None: ...
    async def ask_one(self, peer: str, question: bytes) -> bytes | None: ...
    async def aside_anywhere(self, after: Vector) -> Vector | None:
        """See `Releasing.anywhere`."""

    async def commit_slot(self) -> None: ...


class RowRepairs:
    """See the module's opening. `links` is None on a node without peers."""

    def __init__(self, desk: RowDesk) -> None:
        self.links: Links | None = None
        self.mended = 0
        """Damaged rows, or stretches of a lost file, that were accounted for, since the start."""
        self.lost = 0
        """Those that nobody had."""
        self._desk = desk
        self._stirred = trio.Event()
        self._rounds = 0
        self._is_open = any(not lack.sequence for lack in desk.store.lacks())
        # What is left of lacks that the journal was searched for.
        self._searched: set[Lack] = set()
        self._has_changed = False
        # Whether somebody who can be reached may know more soon.
        self._is_impatient = False

    @property
    def is_behind(self) -> bool:
        """Whether peers are still to be asked for what went with a file."""
        return self._is_open and self._rounds < ROUNDS_MAX

    def soon(self) -> None:
        """A damaged row was met, or there is another peer to ask."""
        self._stirred.set()

    def lacking_behind(self, origin: Origin, after: int) -> int:
        """Up to where this node, whose journal was searched, knows nothing of what comes behind `after`; 0: it may."""
        lacking = (lack for lack in self._searched if lack.origin == origin and lack.after <= after < lack.through)
        return max((lack.through for lack in lacking), default=0)

    async def run(self) -> None:
        """Mend whatever turns up; for ever."""
        desk = self._desk
        while True:
            self._stirred = trio.Event()
            self._is_impatient = False
            lacks = await desk.world.run_blocking(desk.store.lacks)
            try:
                open_ = [lack for lack in lacks if not await self._mend(lack)]
            except DiskFull as error:
                desk.alarm("damage", f"no room to put back what the queue store lacks: {error}")
                open_ = lacks
            if self._has_changed:
                self._has_changed = False
                await self._read_anew()
            was_behind = self.is_behind
            self._rounds += bool(self.links is not None and self.links.reachable())
            self._is_open = any(not lack.sequence for lack in open_)
            if was_behind and not self.is_behind:
                desk.repair_soon()
            patience = RETRY_SECONDS if self.is_behind or self._is_impatient else PATIENT_SECONDS
            with trio.move_on_after(patience if open_ else inf):
                await self._stirred.wait()

    async def _mend(self, lack: Lack) -> bool:
        """Whether `lack` is one no more."""
        desk = self._desk
        left: Lack | None = lack
        if lack not in self._searched:
            left = await desk.world.run_blocking(partial(desk.store.mend_by_journal, lack))
            self._has_changed = True
        knows_all = True
        if left is not None and self.links is not None:
            peers = self.links.reachable()
            knows_all = set(peers) >= set(desk.member_names)
            for peer in peers:
                left, has_answered = await self._ask(peer, left)
                knows_all = knows_all and has_answered
                if left is None:
                    break
        self._searched.discard(lack)
        if left is None:
            self.mended += 1
            return True
        through = await self._nowhere_up_to(left) if knows_all else left.after
        if through > left.after:
            await self._give_up(left, through)
            left = left._replace(after=through)
        if left.after < left.through:
            self._searched.add(left)
            return False
        return True

    async def _ask(self, peer: str, lack: Lack) -> tuple[Lack | None, bool]:
        """What is still lacking when `peer` was asked, and whether that is all it will ever know."""
        assert self.links is not None
        desk = self._desk
        left: Lack | None = lack
        after = lack.after
        while left is not None and after < left.through:
            rest = await ask_rest(desk, Want(peer, left.origin, after, left.through), is_for_rows=True)
            if rest is not None and rest.lost > after:
                # It may have what comes behind that.
                after = rest.lost
                continue
            if rest is None or rest.through <= after:
                # It has less of this origin; not more that its stores have not taken yet.
                is_all = rest is not None and self.links.has_none_beyond(peer, left.origin, after)
                self._is_impatient = self._is_impatient or not is_all
                return left, is_all
            try:
                left = await desk.world.run_blocking(partial(desk.store.mend_by_rest, left, after, rest))
                self._has_changed = True
            except (CorruptLog, ValueError) as error:
                log.error("! what %s has left of %s cannot be taken: %s", peer, lack.origin, error)
                return left, False
            after = rest.through
        return left, True

    async def _nowhere_up_to(self, left: Lack) -> int:
        """Every member was heard: up to where nobody has put aside either what is lacking, which may come back."""
        if self.links is None or left.origin == self._desk.origin:
            return left.through
        firsts = await self._desk.aside_anywhere({left.origin: left.after})
        if firsts is None:
            self._is_impatient = True
            return left.after
        return min(firsts.get(left.origin, left.through + 1) - 1, left.through)

    async def _give_up(self, lack: Lack, through: int) -> None:
        """Nobody has it up to there."""
        desk = self._desk
        self._has_changed = True
        if not await desk.world.run_blocking(partial(desk.store.give_up_rows, lack, through)):
            return
        self.lost += 1
        left = lack._replace(through=through)
        if left.sequence:
            what = f"the message {Dot(left.origin, left.sequence)} of {left.queue}"
        else:
            what = f"unsettled messages of {left.origin} after {left.after} up to {left.through}, if there were any,"
        desk.alarm("lost", f"{what} cannot be brought back: it was damaged here, and no member of the mesh has it")

    async def _read_anew(self) -> None:
        """Rows have come back that the queues had passed over, or gone that they had counted."""
        desk = self._desk
        await desk.commit_slot()
        async with desk.clerk.errand:
            out = Outcome(now_us=desk.world.now_us())
            desk.broker.queues.handover.rows_changed(out)
            desk.submit(out)
        desk.clerk.sweep_at(desk.world.now_us())
