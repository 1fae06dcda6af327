"""The stage of one simulation: the mesh, its network and the ledger. Nemeses, clients and checks share it.

It starts nodes and heals what is broken; what breaks them is in `nemeses`, what uses them in `workloads`, what judges
them in `checks`.
"""

import random
from collections.abc import Collection
from functools import partial

import trio

from tests.simulation.cluster import Member, peers_of
from tests.simulation.evidence import AllowedLosses, held_by
from tests.simulation.faults import Fault
from tests.simulation.ledger import Ledger
from tests.simulation.lookout import ServingObserver
from tests.simulation.pauses import Pauses
from tests.simulation.plan import Plan
from tests.simulation.reports.trace import Trace
from tests.support.network import Fabric


class Stage:
    """`lives` is the nursery in which nodes live. `in_reach` are the nodes that clients choose from."""

    def __init__(self, plan: Plan, trace: Trace) -> None:
        self.plan = plan
        self.trace = trace
        self.fabric = Fabric(random.Random(f"network/{plan.seed}"))
        self.fabric.latency_seconds = plan.latency_seconds
        self.fabric.buffer_bytes = plan.buffer_bytes
        self.pauses = Pauses()
        peers = peers_of(plan)
        self.by_name = {name: Member(name, plan, peers, self.fabric, self.pauses, trace) for name in plan.nodes}
        self.members = list(self.by_name.values())
        self.in_reach = [member for member in self.members if not member.is_forgetful]
        self.forgetful = [member for member in self.members if member.is_forgetful]
        """Nodes without a disk: only publishers and consumers go there, and count on nothing that these confirm."""
        for member in self.forgetful:
            member.before_it_forgets = partial(self._forgets, member)
        self.observer = ServingObserver(self.members, self.pauses, trace)
        self.ledger = Ledger()
        self.allowed_losses = AllowedLosses()
        self.settling = False
        """The faults are over: clients stay longer where they are."""
        self._lives: trio.Nursery | None = None
        self.leaving: Member | None = None
        """The node that was taken out for good."""
        self.is_retired = False
        """Whether some node has taken an operator's word for it."""

    def _forgets(self, member: Member) -> None:
        self.allowed_losses.lost(member, self.members, held_by(member, self.members))

    def open(self, lives: trio.Nursery) -> None:
        """Start every node for the first time."""
        self._lives = lives
        lives.start_soon(self.observer.run)
        for member in self.members:
            if member.name != self.plan.newcomer:
                self.start(member)

    async def grow(self, rng: random.Random, seconds: float) -> None:
        """Let every node go by the file that names the newcomer, and start that; once."""
        if self.plan.newcomer:
            peers = peers_of(self.plan, is_grown=True)
            for member in rng.sample(list(self.by_name.values()), len(self.by_name)):
                await member.read(peers)
                await trio.sleep(rng.random() * seconds / 2)
            self.start(self.by_name[self.plan.newcomer])

    def leave(self, member: Member) -> None:
        """It does not start again, and nothing counts on it."""
        self.leaving = member
        self.members.remove(member)
        self.in_reach = [other for other in self.in_reach if other is not member]

    def start(self, member: Member) -> None:
        """Begin a life of `member`, unless another fault has begun one meanwhile."""
        if not member.up and member is not self.leaving and self._may_start(member):
            assert self._lives is not None
            member.start(self._lives)

    def _may_start(self, member: Member) -> bool:
        """A newcomer needs a file that names it."""
        return member.name != self.plan.newcomer or member.has_read(2)

    async def start_after(self, member: Member, seconds: float) -> None:
        await trio.sleep(seconds)
        self.start(member)

    def others(self, member: Member) -> list[Member]:
        return [other for other in self.members if other is not member]

    def chance_of(self, fault: Fault) -> random.Random:
        """What `fault` draws from: its own, so that it does the same when other faults are left out."""
        return random.Random(f"fault/{self.plan.seed}/{fault.at}")

    async def heal(self, but: Collection[Member] = ()) -> None:
        """Undo everything that is wrong. On return every node is up, except `but`, and nothing is made to fail."""
        for one in self.members:
            self.pauses.end(one.host)
            self.fabric.thaw(one.host)
            one.slow_disk(None)
            one.set_full_disk(None)
            for other in self.members:
                self.fabric.heal(one.host, other.host)
                self.fabric.speed_up(one.host, other.host)
        for member in self.members:
            if member.disk_is_made_to_fail or member.is_stopping:
                await member.crash(silently=False)
            if member not in but:
                self.start(member)
        self.in_reach = [member for member in self.members if member not in (*but, *self.forgetful)]
        await self.grow(random.Random(f"grow/{self.plan.seed}"), 0.0)
