"""What a seed will be, drawn before anything runs: a mesh, its clients, and a script of faults.

A plan can be printed and read; it is what a failing seed shows first. A fifth of the seeds have no faults at all,
because what a healthy mesh promises is more (no message again after a receipted ACK). `kept` replays a part of the
script: the faults keep their numbers, times and chance, whatever is left out.
"""

import random
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum

from tests.simulation.faults import NEMESES, Fault

FIRST_FAULT_SECONDS = 0.8

SHORT_SHARE = 0.15
"""How often journals are too short for nodes that are away."""

PACES = (0.3, 0.8, 2.0)
"""Seconds between two faults, on average; one of these."""

LENGTHS = (0.05, 0.4, 1.5, 4.0)
"""About so many seconds a fault lasts, unless the phase of faults ends before."""

OPERATOR_LENGTHS = (0.05, 0.2, 0.8, 2.0)
"""Mostly short, because jobs wait for the nodes that are missing, and most faults hit a job."""

TAKEOVER_PACES = (2.0, 3.0)
TAKEOVER_LENGTHS = (3.0, 5.0)
TAKEOVER_SECONDS = 3.0
"""The phase of faults is so much longer in their family."""

STALE_SECONDS = 6.0
"""As TAKEOVER_SECONDS, on top of it, for nodes that wake up long before their links come."""

LONG_SHARE = 0.3
"""How often faults of all kinds are few and long, as in the family of takeovers."""

CHANGE_SHARE = 0.25
"""How often nodes join and leave, where faults of all kinds are mixed, or operators are at work."""

CORE_SHARE = 0.25
"""How often only a majority is healed at first."""

SIZES = (3, 3, 3, 4, 5, 5)
"""How many nodes a mesh has: one of these."""


class Family(Enum):
    """Which faults a seed draws from: how often each, relative to the others."""

    ALL = {
        "cut": 4,
        "cut one way": 3,
        "isolate": 3,
        "isolate one way": 2,
        "halves": 2,
        "ring": 2,
        "partial": 2,
        "flap": 2,
        "swizzle": 1,
        "break": 3,
        "break clients": 2,
        "slow link": 1,
        "dribble": 1,
        "crash": 6,
        "power": 4,
        "power of all": 1,
        "stop": 2,
        "freeze": 1,
        "pause": 3,
        "stale sockets": 1,
        "clock": 2,
        "boot clock": 1,
        "disk": 2,
        "slow disk": 1,
        "slow disks": 1,
        "full disk": 1,
        "wipe": 3,
        "damage": 2,
        "old image": 2,
        "rotten rows": 1,
        "lost rows": 1,
        "join": 3,
        "restart": 1,
        "retire": 3,
    }
    """Everything there is. A minority of the disks may be lost, and in a part of the seeds nodes join and leave."""
    WIPES = {"wipe": 3, "crash": 3, "cut": 2, "slow disks": 3, "stop": 1, "disk": 1}
    DAMAGE = {
        "damage": 3,
        "old image": 2,
        "rotten rows": 2,
        "lost rows": 1,
        "crash": 3,
        "cut": 2,
        "isolate": 3,
        "clock": 1,
    }
    CRASHES = {"crash": 4, "power": 4, "power of all": 3, "isolate": 4}
    CUTS = {
        "cut": 4,
        "cut one way": 3,
        "isolate": 3,
        "isolate one way": 3,
        "halves": 3,
        "ring": 3,
        "partial": 3,
        "flap": 2,
        "swizzle": 2,
        "break": 2,
        "pause": 2,
    }
    SLOW = {
        "slow link": 3,
        "dribble": 2,
        "slow disk": 3,
        "slow disks": 1,
        "full disk": 2,
        "pause": 3,
        "freeze": 2,
        "crash": 2,
    }
    CHANGES = {"join": 4, "retire": 3, "crash": 3, "power": 2, "cut": 3, "isolate": 2, "stop": 1, "break": 1}
    """The mesh begins without its last node."""
    TAKEOVERS = {
        "isolate": 3,
        "isolate one way": 3,
        "halves": 2,
        "partial": 1,
        "pause": 3,
        "crash": 3,
        "power": 2,
        "break": 1,
    }
    """Few faults, long enough for another node to serve the one that they meet, and perhaps for its return."""
    AWAY = {"crash": 3, "power": 3, "isolate": 3, "isolate one way": 1, "pause": 1, "cut": 2, "stop": 1}
    """Few and long ones, and journals too short for nodes that are away."""
    CLOCKS = {"boot clock": 4, "crash": 2, "isolate": 1, "wipe": 1}
    """A node starts with its clock days off."""
    RESTARTS = {"restart": 1}
    """Few, and consumers that keep what they have in hand over them."""
    STALE = {"stale sockets": 3, "isolate": 2, "crash": 2}
    """Few and long ones, and a queue whose messages are tried again until they are confirmed."""
    OPERATORS = {
        "cut": 3,
        "cut one way": 1,
        "isolate": 2,
        "halves": 2,
        "partial": 1,
        "break": 1,
        "break clients": 1,
        "crash": 8,
        "power": 4,
        "power of all": 1,
        "stop": 1,
        "clock": 1,
        "wipe": 2,
        "pause": 2,
        "slow link": 1,
        "slow disks": 1,
        "join": 3,
        "retire": 2,
    }
    """Operators change definitions, declare queues and exchanges, purge, move, redrive, delete and pause meanwhile."""
    GATEWAYS = {
        "cut": 4,
        "cut one way": 2,
        "isolate": 3,
        "halves": 2,
        "partial": 1,
        "break": 1,
        "break clients": 3,
        "crash": 6,
        "power": 4,
        "power of all": 1,
        "stop": 2,
        "disk": 1,
        "pause": 2,
        "slow disks": 1,
    }
    """Clients of AMQP and beanstalkd are there, too."""
    MEMORY = {
        "crash": 6,
        "power": 4,
        "stop": 2,
        "cut": 3,
        "isolate": 3,
        "cut one way": 1,
        "pause": 2,
        "slow disks": 1,
        "wipe": 2,
        "wipe with memory": 3,
    }
    """The last node has no disk: it forgets everything each time it ends. A minority of the others may lose theirs."""
    NONE = dict[str, int]()


SHARES = {
    Family.ALL: 9,
    Family.STALE: 1,
    Family.WIPES: 1,
    Family.DAMAGE: 1,
    Family.CRASHES: 2,
    Family.CUTS: 1,
    Family.SLOW: 1,
    Family.CHANGES: 1,
    Family.TAKEOVERS: 2,
    Family.AWAY: 1,
    Family.CLOCKS: 1,
    Family.RESTARTS: 1,
    Family.NONE: 6,
    Family.OPERATORS: 2,
    Family.GATEWAYS: 0,
    Family.MEMORY: 0,
}
"""How many of thirty seeds draw from each. Those of the last two are asked for, and other seeds stay what they were."""

CALM_SHARE = 0.2
"""How often nothing goes wrong in GATEWAYS."""

MEMBERSHIP = frozenset({"join", "retire"})


@dataclass(frozen=True, slots=True)
class Plan:
    """One simulation. Times are virtual seconds."""

    seed: int
    family: Family
    size: int
    """How many nodes were asked for; 0: as many as the seed draws."""
    nodes: tuple[str, ...]
    seconds: float
    """Length of the phase with faults and publishers."""
    faults: tuple[Fault, ...]
    core: tuple[str, ...]
    """The majority that has to finish alone before the others come back; empty when all come back at once."""
    newcomer: str
    """The node that joins later; "" when the mesh begins with all of them."""
    kept: tuple[int, ...]
    """Which of `faults` happen, by number from 0; all of them, unless a part is replayed."""
    latency_seconds: float
    disk_seconds: float
    skews_us: tuple[int, ...]
    segment_bytes: int
    checkpoint_bytes: int
    journal_keep_bytes: int
    journal_bytes_max: int
    """Of each journal, also when a member lacks what goes."""
    buffer_bytes: int
    """Of one direction of a connection."""
    subscriber_buffer_bytes: int
    """What a follower may lag behind before its node reads the log for it."""
    commit_pending_bytes: int
    """What waits for the disk before clients are not read any more."""
    publishers: int
    followers: int
    consumers: int
    prefetch: int

    @property
    def script(self) -> tuple[Fault, ...]:
        """The faults that happen."""
        return tuple(self.faults[number] for number in self.kept)

    @property
    def quiet(self) -> bool:
        """Whether nothing goes wrong."""
        return not self.kept and not self.core and not self.newcomer

    @property
    def forgetful(self) -> str:
        """The node without a disk; "" for none."""
        return self.nodes[-1] if self.family is Family.MEMORY else ""

    @property
    def founders(self) -> tuple[str, ...]:
        """The nodes that the mesh begins with."""
        return tuple(name for name in self.nodes if name != self.newcomer)

    def count(self, *names: str) -> int:
        """How many faults of these names happen."""
        return sum(fault.name in names for fault in self.script)

    @property
    def replay(self) -> str:
        """The command that shows this plan again."""
        command = f"python -m tests.simulation --seeds 1 --start {self.seed} --family {self.family.name.lower()}"
        if self.size:
            command += f" --nodes {self.size}"
        if len(self.kept) < len(self.faults):
            command += " --faults " + (",".join(map(str, self.kept)) or "none")
        return command

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {len(self.nodes)} nodes, {self.seconds:.1f} s, {self.publishers} publishers, "
            f"{self.followers} followers, {self.consumers} consumers with credit {self.prefetch}",
            f"latency {self.latency_seconds * 1000:.2f} ms, disk {self.disk_seconds * 1000:.1f} ms, segments of "
            f"{self.segment_bytes}, checkpoints each {self.checkpoint_bytes}, journal kept {self.journal_keep_bytes} "
            f"to {self.journal_bytes_max}",
            f"buffers: network {self.buffer_bytes}, followers {self.subscriber_buffer_bytes}, commits "
            f"{self.commit_pending_bytes}",
        ]
        if self.core:
            lines.append(f"after the faults {', '.join(self.core)} must finish without the others")
        return "\n".join(lines + [f"  {number:2} {self.faults[number]}" for number in self.kept])


def draw_plan(seed: int, family: Family | None = None, kept: Collection[int] | None = None, size: int = 0) -> Plan:
    """The plan of `seed`: the same on every machine. `family` and `size` (of the mesh) replace what the seed draws."""
    rng = random.Random(f"plan/{seed}")
    drawn_size = rng.choice(SIZES)
    seconds = rng.uniform(4, 6.5)
    drawn = rng.choices(list(SHARES), list(SHARES.values()))[0]
    family = family or drawn
    is_long = family in (Family.TAKEOVERS, Family.AWAY, Family.RESTARTS, Family.STALE) or (
        family is Family.ALL and rng.random() < LONG_SHARE
    )
    if family is Family.MEMORY:
        is_long = random.Random(f"long/{seed}").random() < LONG_SHARE
    is_mixed = family in (Family.ALL, Family.OPERATORS)
    changes = family is Family.CHANGES or (is_mixed and rng.random() < CHANGE_SHARE)
    nodes = tuple(f"n{number}" for number in range(1, (size or drawn_size) + 1))
    if changes and len(nodes) == 3:
        nodes += ("n4",)  # of two nodes none can be retired
    newcomer = nodes[-1] if changes else ""
    if is_long:
        seconds += TAKEOVER_SECONDS
    if family is Family.STALE:
        seconds += STALE_SECONDS
    faults = _Draw(rng, family, nodes, newcomer, is_long).faults(seconds)
    plan = Plan(
        seed=seed,
        family=family,
        size=size,
        nodes=nodes,
        newcomer=newcomer,
        seconds=seconds,
        faults=faults,
        kept=tuple(range(len(faults))),
        latency_seconds=rng.choice((0.0002, 0.001, 0.005)),
        disk_seconds=rng.choice((0.001, 0.005, 0.03)),
        skews_us=tuple(rng.choice((0, 0, rng.randint(-3600, 3600) * 1_000_000)) for _ in nodes),
        segment_bytes=rng.choice((4096, 16384, 1 << 20)),
        checkpoint_bytes=rng.choice((3000, 12000, 1 << 20)),
        # A member whose disk is gone needs what the others dropped, and only retention may have done that.
        journal_keep_bytes=1 << 30 if _loses_disks(faults) else rng.choice((8192, 1 << 30)),
        journal_bytes_max=1 << 40,
        buffer_bytes=rng.choice((3000, 16384, 1 << 16)),
        subscriber_buffer_bytes=rng.choice((2000, 4 << 20)),
        commit_pending_bytes=rng.choice((2000, 16 << 20)),
        publishers=rng.randint(1, 3),
        followers=rng.randint(1, 3),
        consumers=rng.randint(1, 3),
        prefetch=rng.choice((1, 2, 5, 20)),
        core=_draw_core(rng, nodes) if faults and not changes else (),
    )
    if family in (Family.STALE, Family.OPERATORS):
        # What a node knows by its dedup id it has from its journal after a start, and checks of administration read
        # all journals; and late consumers need all nodes.
        plan = replace(plan, journal_keep_bytes=1 << 30, core=(), kept=_kept(plan, kept))
        # Operators have clients of their own.
        return plan if family is Family.STALE else replace(plan, publishers=1, followers=1, consumers=1)
    if family is Family.GATEWAYS:
        calm = random.Random(f"calm/{seed}").random() < CALM_SHARE
        plan = replace(plan, publishers=1, followers=1, consumers=1, core=(), kept=() if calm else plan.kept)
    if family is Family.MEMORY:
        # What it forgets, its peers have in their journals.
        return replace(plan, journal_keep_bytes=1 << 30, core=(), kept=_kept(plan, kept))
    if family is Family.AWAY or (faults and random.Random(f"short/{seed}").random() < SHORT_SHARE):
        plan = replace(
            plan, segment_bytes=4096, checkpoint_bytes=3000, journal_keep_bytes=4096, journal_bytes_max=12288
        )
    return replace(plan, kept=_kept(plan, kept))


def _kept(plan: Plan, kept: Collection[int] | None) -> tuple[int, ...]:
    return plan.kept if kept is None else tuple(sorted(set(kept) & set(plan.kept)))


def _loses_disks(faults: tuple[Fault, ...]) -> bool:
    return any(NEMESES[fault.name].loses_disk for fault in faults)


def _draw_core(rng: random.Random, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """Mostly none."""
    if rng.random() > CORE_SHARE:
        return ()
    return tuple(sorted(rng.sample(nodes, len(nodes) // 2 + 1)))


class _Draw:
    """The script of one seed."""

    def __init__(
        self, rng: random.Random, family: Family, nodes: tuple[str, ...], newcomer: str, is_long: bool
    ) -> None:
        self._rng = rng
        self._nodes = nodes
        self._is_long = is_long
        self._weights = {name: weight for name, weight in family.value.items() if newcomer or name not in MEMBERSHIP}
        few = (len(nodes) - bool(newcomer or family is Family.MEMORY) - 1) // 2
        self._lengths = OPERATOR_LENGTHS if family is Family.OPERATORS else LENGTHS
        self._mixed = family in (Family.ALL, Family.OPERATORS)
        if family is Family.MEMORY and not few:
            self._weights = {name: one for name, one in self._weights.items() if not NEMESES[name].loses_disk}
        self._has_minority = self._mixed or family is Family.MEMORY
        self._minority = rng.sample(nodes[: len(nodes) - bool(newcomer)], few) if self._mixed else list(nodes[:few])

    def faults(self, seconds: float) -> tuple[Fault, ...]:
        """In the order of their times, all before `seconds`."""
        if not self._weights:
            return ()
        rng = self._rng
        faults: list[Fault] = []
        at = FIRST_FAULT_SECONDS
        pace = rng.choice(TAKEOVER_PACES if self._is_long else PACES)
        while True:
            at += rng.uniform(0.1, 2 * pace)
            if at >= seconds:
                return tuple(faults)
            faults.append(self._fault(at))

    def _fault(self, at: float) -> Fault:
        rng = self._rng
        nemesis = NEMESES[rng.choices(list(self._weights), list(self._weights.values()))[0]]
        node, other = rng.sample(self._nodes, 2)
        if nemesis.minority or (self._has_minority and nemesis.loses_disk):
            node = rng.choice(self._minority)
        lasts = rng.choice(TAKEOVER_LENGTHS if self._is_long else self._lengths) * rng.uniform(0.5, 1.5)
        return Fault(at, nemesis.name, node, other if nemesis.takes_two else "", lasts)
