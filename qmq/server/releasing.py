"""What was put aside behind damage comes back by itself, as soon as it is known what becomes of the stretch before it.

A stretch of the journal that cannot be read parts what follows it of the same incarnation from its beginning, so all
of that is put aside, valid as it is (`storage.recovery`). As a rule peers have the stretch and bring it. What continues
the records that are here is then appended anew. What no peer ever had would wait for ever: therefore, when every member
tells over a link of now that it has exactly as much of the incarnation as this node, the stretch is given up by a GAP
record, and what stands behind it counts again and goes to the peers.

That members agree has to hold for `AGREED_SECONDS`: one of them may be about to bring back the very stretch, from what
it has put aside itself. A node without peers waits for its operator (`qmq log release`), who may have a copy.

Surprising: an incarnation that the mesh has sealed stays as it is, although valid records of it may be put aside here.
That takes two disks: this one, and that of the node whose incarnation it is, which else would have had them itself.
"""

import logging
from collections.abc import Collection, Iterator
from functools import partial
from typing import Protocol

import trio

from qmq.broker.outcome import Outcome
from qmq.dots import Origin, Vector
from qmq.errors import MeshError
from qmq.server.sealing import Sealing
from qmq.storage.release import Aside, what_is_aside
from qmq.storage.store import Store
from qmq.world import World

AGREED_SECONDS = 2.0
"""How long all members must have the same records before those that nobody has are given up."""

BYTES_AT_ONCE = 1 << 20
"""Of batches in one commit, about; at least one batch."""

log = logging.getLogger("qmq.releasing")


class Links(Protocol):
    """What links know of it; see `qmq.replication.mesh.Mesh`."""

    def all_have(self, peers: Collection[str], origin: Origin, last: int) -> bool: ...
    def present(self) -> Collection[Origin]: ...
    def take_aside(self, batches: bytes, out: Outcome) -> None: ...


class ReleasingDesk(Protocol):
    """What it needs of the node."""

    store: Store
    world: World
    sealing: Sealing

    @property
    def member_names(self) -> Collection[str]: ...
    def submit(self, out: Outcome) -> None: ...
    async def all_told(self) -> None: ...
    async def commit_slot(self) -> None: ...
    def received_vector(self) -> Vector: ...
    def durable_vector(self) -> Vector: ...
    def accept_gap(self, origin: Origin, through: int) -> None: ...


class Releasing:
    """See the module's opening. `links` is None on a node without peers."""

    def __init__(self, desk: ReleasingDesk) -> None:
        self.links: Links | None = None
        # Batches put aside that are not here: first and last sequence, ascending.
        self._aside: dict[Origin, list[tuple[int, int]]] = {}
        self._desk = desk
        self._stirred = trio.Event()
        recovered = desk.store.recovered
        for entry in (*recovered.quarantined_before, *recovered.quarantined):
            if entry.origin is not None:
                self._aside.setdefault(entry.origin, []).append((entry.first, entry.last))
        for batches in self._aside.values():
            batches.sort()

    def look(self) -> None:
        """Records came, a peer has told what it has, or the members are others."""
        if self._aside:
            self._stirred.set()

    def awaits(self, origin: Origin) -> bool:
        """Whether valid records of `origin` are put aside: its end is not yet what members have."""
        known = self._desk.received_vector().get(origin, 0)
        return any(first > known for first, _ in self._aside.get(origin, ()))

    async def run(self) -> None:
        """Bring back what can be, until nothing is aside."""
        links = self.links
        while links is not None and self._forget_what_is_here():
            self._stirred = trio.Event()
            if not await self._step(links):
                await self._stirred.wait()

    def _forget_what_is_here(self) -> bool:
        seals = self._desk.sealing.seals
        for origin in list(self._aside):
            if origin in seals.last or origin in seals.forgotten or not self.awaits(origin):
                del self._aside[origin]
        return bool(self._aside)

    async def _step(self, links: Links) -> bool:
        """Bring back what can be; False when that was nothing."""
        desk = self._desk
        due = self._due(links)
        if any(gap for _, gap in due.values()):
            await trio.sleep(AGREED_SECONDS)
            still = self._due(links)
            due = {origin: what for origin, what in due.items() if still.get(origin) == what}
        if not due:
            return False
        have = {origin: known for origin, (known, _) in due.items()}
        steps = await desk.world.run_blocking(partial(what_is_aside, desk.store.disk, have, have.keys()))
        done = False
        for origin, (known, gap) in due.items():
            step = next((step for step in steps if step.origin == origin), None)
            if step is not None and (gap or step.gone is None):
                done = await self._bring_back(links, step) or done
            else:
                # The quarantine has rotted, too: what should have been there next is not.
                self._aside[origin] = [batch for batch in self._aside[origin] if batch[0] > known + 1 and not gap]
                done = True
        return done

    def _due(self, links: Links) -> dict[Origin, tuple[int, bool]]:
        """What can be brought back now: per incarnation how much of it is here, and whether a gap comes next.

        The node of a living incarnation sends what follows by itself.
        """
        desk = self._desk
        have, durable, present = desk.received_vector(), desk.durable_vector(), links.present()
        found: dict[Origin, tuple[int, bool]] = {}
        for origin, batches in self._aside.items():
            known = have.get(origin, 0)
            if origin in present or not self.awaits(origin):
                continue
            if any(first == known + 1 for first, _ in batches):
                found[origin] = known, False
            elif durable.get(origin, 0) == known and links.all_have(desk.member_names, origin, known):
                found[origin] = known, True
        return found

    async def _bring_back(self, links: Links, step: Aside) -> bool:
        desk = self._desk
        origin = step.origin
        await desk.commit_slot()
        if desk.received_vector().get(origin, 0) != step.first - 1:
            return False  # Somebody was quicker.
        if step.gone is not None:
            desk.accept_gap(origin, step.gone[1])
            # Own records come first in a group: a second gap would else be in the journal before these batches.
            await desk.all_told()
        for part in _parts(step.batches):
            await desk.commit_slot()
            out = Outcome(now_us=desk.world.now_us())
            try:
                links.take_aside(part, out)
            except MeshError as error:
                log.error("! what was put aside of %s cannot be taken back: %s", origin, error.message)
                del self._aside[origin]
                return True
            finally:
                desk.submit(out)
        await desk.all_told()
        log.info("= %d records of %s that stood behind damage are back", step.records, origin)
        return True


def _parts(batches: tuple[bytes, ...]) -> Iterator[bytes]:
    part = bytearray()
    for batch in batches:
        if part and len(part) + len(batch) > BYTES_AT_ONCE:
            yield bytes(part)
            part.clear()
        part += batch
    yield bytes(part)
