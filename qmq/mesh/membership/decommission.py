"""`/control/retire/NODE`: an operator retires members for good.

The node that gets the request becomes the adopter: it serves the retired node's unsettled queue messages from now on.
All conditions are checked before anything is written. A majority of the remaining members can be reached and agrees,
all of them use one peers file, and none of them has a link with the leaving node. The others do not rely on this node's
statement: each checks for itself (`Members.agrees_in`), and obeys a majority.

`force` retires a node that still has links. A request of the operator looks like one of a node under an
intruder's control. So it must be made at as many nodes as make a majority of the remaining ones. The retired node stops
as soon as it learns of it; until then its consumers and the adopter's may get the same messages.

If so many nodes are lost that no majority of the others can be reached, nothing could ever be decided again. Then the
operator states that all unreachable nodes are lost for good (`majority-lost`), in place of the votes. They are retired
together, in one batch. No node can check that statement. If it was wrong, the others are another mesh from then on.
This node refuses their links, and they refuse none.
"""

from collections.abc import Collection
from typing import Any, ClassVar

import trio
from msgspec import Struct

from qmq.engine.parts import EngineParts
from qmq.errors import Refused
from qmq.mesh.membership.members import AGREED_SECONDS, SILENT_SECONDS, LiveMembership
from qmq.mesh.peers.calls import Node, PeerCall
from qmq.mesh.peers.rpc import PeerRpc
from qmq.model.dots import Vector, merge
from qmq.model.members import Retirement, majority
from qmq.replication.mesh import Mesh


class Opinion(Struct, frozen=True):
    """Whether a link with the named node is up, and in how many seconds this one agrees that it has left; None: not."""

    hears: bool
    agrees_in: float | None = None


class OpinionCall(PeerCall[Opinion], frozen=True):
    """What a node says of its link with another one."""

    kind: ClassVar = "links"
    hears: Node


class Decommission:
    """One retirement at a time."""

    def __init__(self, engine: EngineParts, mesh: Mesh, members: LiveMembership, rpc: PeerRpc) -> None:
        self._engine = engine
        self._mesh = mesh
        self._members = members
        self._membership = members.membership
        self._rpc = rpc
        self._one = trio.Lock()

    def answer(self, call: OpinionCall) -> Opinion:
        """The reply of this node to a peer."""
        return Opinion(call.hears in self.linked(), self._members.agrees_in(call.hears))

    def linked(self) -> set[str]:
        """The peers to or from which a link is up."""
        return {peer.name for peer in self._mesh.statistics().peers if "up" in peer.out_state + peer.in_state}

    async def retire(self, name: str, *, force: bool) -> dict[str, Any]:
        """Retire `name`; returns facts for the operator. Raises Refused, and nothing has changed then."""
        async with self._one:
            await self._check(name, force)
            return await self._write([name])

    async def retire_lost(self, names: Collection[str]) -> dict[str, Any]:
        """Retire `names`, all unreachable members: a majority is among them, and they are lost for good. Returns facts
        for the operator. Raises Refused, and nothing has changed then.
        """
        async with self._one:
            await self._check_lost(names)
            return await self._write(sorted(names))

    async def _check(self, name: str, force: bool) -> None:
        membership = self._membership
        self._check_disk()
        self._check_name(name)
        if len(membership.lists) > 1:
            raise Refused("change-under-way", "Not all nodes use the same peers file yet: make one change at a time.")
        reached = {self._mesh.node} | self.linked() - {name}
        if not majority(reached, [names - {name} for names in membership.lists]):
            away = " ".join(sorted(membership.members - reached))
            raise Refused(
                "no-majority",
                f"Only {', '.join(sorted(reached))} can be reached of the members that would remain. "
                f"If all others are lost for good, and only then: "
                f"`qmq mesh retire {away} --majority-lost` (docs/operations.md).",
            )
        if force:
            self._members.force(name)
        while True:
            hearing, agrees_in = await self._opinions(name)
            if hearing and not force:
                raise Refused(
                    "still-reachable", f"{', '.join(hearing)} can reach {name}: stop it first, or force it (`--force`)."
                )
            agreeing = {peer for peer, seconds in agrees_in.items() if seconds == 0}
            stay = [names - {name} for names in membership.lists]
            if majority(agreeing, stay):
                return
            if not majority(agrees_in, stay):
                others = ", ".join(sorted(membership.members - agrees_in.keys() - {name}))
                raise Refused(
                    "not-agreed",
                    f"{', '.join(sorted(agreeing))} agree to retire {name}, which is no majority of the rest: "
                    f"stop it, or force it at {others} as well, within {AGREED_SECONDS / 60:.0f} minutes.",
                )
            await trio.sleep(min(SILENT_SECONDS, max(agrees_in.values())))

    async def _check_lost(self, names: Collection[str]) -> None:
        membership = self._membership
        self._check_disk()
        for name in names:
            self._check_name(name)
        if membership.is_learner:
            raise Refused("bad-node", "The disk of this node began empty: ask a node that has the messages.")
        stay = membership.members.difference(names)
        reached = {self._mesh.node} | self.linked() & stay
        own = membership.lists[0]
        if any(majority(reached, [own - {name}]) for name in names):
            raise Refused("majority-left", f"{', '.join(sorted(reached))} may decide: retire the others one by one.")
        if stay - reached:
            away = " ".join(sorted(membership.members - reached))
            silent = ", ".join(sorted(stay - reached))
            raise Refused("not-all-named", f"{silent} cannot be reached either: name all lost nodes, {away}.")
        for peer in stay - {self._mesh.node}:
            standing = membership.standing_of(peer)
            if standing is None or standing.listing.names - membership.retired.keys() != membership.members:
                raise Refused("change-under-way", f"{peer} uses another peers file: reload this one there first.")
        for name in sorted(names):
            hearing, _ = await self._opinions(name)
            if hearing:
                raise Refused("still-reachable", f"{', '.join(hearing)} can reach {name}: it is not lost.")

    def _check_disk(self) -> None:
        if not self._membership.has_disk:
            raise Refused("bad-node", "This node has no disk to adopt messages: ask another one.")

    def _check_name(self, name: str) -> None:
        membership = self._membership
        if membership.is_retired(name):
            raise Refused("already-retired", f"{name} is retired; {membership.retired[name].adopter} has adopted it.")
        if name == self._mesh.node:
            raise Refused("bad-node", "A node does not retire itself: stop it, and ask another one.")
        if name not in membership.members:
            raise Refused("bad-node", f"{name} is no member; the members are {', '.join(sorted(membership.members))}.")

    async def _opinions(self, name: str) -> tuple[list[str], dict[str, float]]:
        """Of the remaining members: those with a link to `name`, and for each of the others the seconds until it agrees
        that `name` has left.
        """
        found, _ = await self._rpc.ask_all(OpinionCall(name))
        found.pop(name, None)
        hearing = sorted(peer for peer, one in found.items() if one.hears)
        waits = {peer: one.agrees_in for peer, one in found.items()}
        return hearing, {peer: seconds for peer, seconds in waits.items() if seconds is not None and seconds >= 0}

    async def _write(self, names: Collection[str]) -> dict[str, Any]:
        engine = self._engine
        retirements: list[Retirement] = []
        sealed: Vector = {}
        for name in names:
            known: Vector = {}
            for vector in (engine.path.durable_vector(), *engine.checkpoints.members.values()):
                merge(known, {origin: last for origin, last in vector.items() if origin.node == name})
            retirements.append(Retirement(node=name, adopter=self._mesh.node, sealed=known))
            sealed.update(known)
        for retirement in retirements:
            self._members.retired(retirement)
        await self._members.written()
        missing = {
            origin: last for origin, last in sealed.items() if engine.path.durable_vector().get(origin, 0) < last
        }
        return {
            "retired": ",".join(names),
            "changed": len(names),
            "adopter": self._mesh.node,
            "sealed": {str(origin): last for origin, last in sealed.items()},
            "still_on_the_way": {str(origin): last for origin, last in missing.items()},
        }
