"""What will go wrong, drawn from the seed before anything runs: a plan of the mesh and a list of faults.

A plan can be printed and read; it is what a failing seed shows first. A fifth of the seeds have no faults at all,
because what a healthy mesh promises is more (no message again after a receipted ACK).
"""

import random
from dataclasses import dataclass
from enum import Enum

FIRST_FAULT_SECONDS = 0.8


class Kind(Enum):
    CUT = "cut"
    """Nothing passes between two nodes."""
    CUT_ONE_WAY = "cut one way"
    ISOLATE = "isolate"
    """Nothing passes between one node and the others; its clients still reach it."""
    BREAK = "break"
    """Every connection between two nodes is reset."""
    BREAK_CLIENTS = "break clients"
    """Every connection between one node and its clients is reset."""
    CRASH = "crash"
    """The process is killed: connections are reset, unsynced bytes are lost or torn."""
    POWER = "power"
    """As crash, but nobody is told."""
    POWER_ALL = "power of all"
    WIPE = "wipe"
    """A crash whose disk comes back empty."""
    STOP = "stop"
    """An orderly end."""
    FREEZE = "freeze"
    """Nothing gets in or out for a while, and nothing is lost: a paused process, as others see it."""
    DISK = "disk"
    """A disk operation fails and all later ones too: the node must stop by itself."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`seconds` is how long it lasts: until healed, until started again."""

    at: float
    kind: Kind
    node: str
    other: str
    seconds: float

    def __str__(self) -> str:
        other = f" {self.other}" if self.other else ""
        return f"{self.at:6.3f} {self.kind.value} {self.node}{other} for {self.seconds:.3f} s"


@dataclass(frozen=True, slots=True)
class Plan:
    """One simulation. Times are virtual seconds."""

    seed: int
    nodes: tuple[str, ...]
    seconds: float
    """Length of the phase with faults and publishers."""
    faults: tuple[Fault, ...]
    latency_seconds: float
    disk_seconds: float
    skews_us: tuple[int, ...]
    segment_bytes: int
    checkpoint_bytes: int
    journal_keep_bytes: int
    buffer_bytes: int
    """Of one direction of a connection."""
    subscriber_buffer_bytes: int
    """What a follower may lag behind before its node reads the log for it."""
    commit_pending_bytes: int
    """What waits for the disk before clients are not read any more."""
    publishers: int
    subscribers: int
    consumers: int
    prefetch: int

    @property
    def quiet(self) -> bool:
        """Whether nothing goes wrong."""
        return not self.faults

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {len(self.nodes)} nodes, {self.seconds:.1f} s, {self.publishers} publishers, "
            f"{self.subscribers} subscribers, {self.consumers} consumers with credit {self.prefetch}",
            f"latency {self.latency_seconds * 1000:.2f} ms, disk {self.disk_seconds * 1000:.1f} ms, segments of "
            f"{self.segment_bytes}, checkpoints each {self.checkpoint_bytes}, journal kept {self.journal_keep_bytes}",
            f"buffers: network {self.buffer_bytes}, followers {self.subscriber_buffer_bytes}, commits "
            f"{self.commit_pending_bytes}",
        ]
        return "\n".join(lines + [f"  {fault}" for fault in self.faults])


class Family(Enum):
    """Which faults a seed draws from: how often each, relative to the others."""

    ALL = {
        Kind.CUT: 4,
        Kind.CUT_ONE_WAY: 3,
        Kind.ISOLATE: 3,
        Kind.BREAK: 3,
        Kind.BREAK_CLIENTS: 2,
        Kind.CRASH: 6,
        Kind.POWER: 4,
        Kind.POWER_ALL: 1,
        Kind.STOP: 2,
        Kind.FREEZE: 3,
        Kind.DISK: 2,
    }
    WIPES = {Kind.WIPE: 3, Kind.CRASH: 3, Kind.CUT: 2, Kind.STOP: 1, Kind.DISK: 1}
    CRASHES = {Kind.CRASH: 4, Kind.POWER: 4, Kind.POWER_ALL: 3, Kind.ISOLATE: 4}
    CUTS = {Kind.CUT: 4, Kind.CUT_ONE_WAY: 3, Kind.ISOLATE: 3, Kind.BREAK: 3, Kind.FREEZE: 2}
    NONE = {}


FAMILIES = (Family.ALL,) * 8 + (Family.WIPES,) * 3 + (Family.CRASHES,) * 3 + (Family.CUTS,) * 2 + (Family.NONE,) * 4


def draw_plan(seed: int, family: Family | None = None) -> Plan:
    """The plan of `seed`: the same on every machine. `family` replaces the one that the seed draws."""
    chance = random.Random(f"plan/{seed}")
    nodes = tuple(f"n{number}" for number in range(1, chance.choice((3, 3, 3, 3, 3, 3, 3, 4, 5)) + 1))
    seconds = chance.uniform(5, 8)
    drawn = chance.choice(FAMILIES)
    faults = _draw_faults(chance, nodes, seconds, (family or drawn).value)
    wipes = any(fault.kind is Kind.WIPE for fault in faults)
    return Plan(
        seed=seed,
        nodes=nodes,
        seconds=seconds,
        faults=faults,
        latency_seconds=chance.choice((0.0002, 0.001, 0.005)),
        disk_seconds=chance.choice((0.001, 0.005, 0.03)),
        skews_us=tuple(chance.choice((0, 0, chance.randint(-3600, 3600) * 1_000_000)) for _ in nodes),
        segment_bytes=chance.choice((4096, 16384, 1 << 20)),
        checkpoint_bytes=chance.choice((3000, 12000, 1 << 20)),
        # A member whose disk is gone needs what the others dropped, and only retention may have done that.
        journal_keep_bytes=1 << 30 if wipes else chance.choice((8192, 1 << 30)),
        buffer_bytes=chance.choice((3000, 16384, 1 << 16)),
        subscriber_buffer_bytes=chance.choice((2000, 4 << 20)),
        commit_pending_bytes=chance.choice((2000, 16 << 20)),
        publishers=chance.randint(2, 3),
        subscribers=chance.randint(1, 3),
        consumers=chance.randint(1, 3),
        prefetch=chance.choice((1, 2, 5, 20)),
    )


def _draw_faults(
    chance: random.Random, nodes: tuple[str, ...], seconds: float, weights: dict[Kind, int]
) -> tuple[Fault, ...]:
    faults: list[Fault] = []
    if not weights:
        return ()
    kinds = list(weights)
    at = FIRST_FAULT_SECONDS
    pace = chance.choice((0.3, 0.8, 2.0))
    while True:
        at += chance.uniform(0.1, 2 * pace)
        if at >= seconds:
            return tuple(faults)
        kind = chance.choices(kinds, list(weights.values()))[0]
        node, other = chance.sample(nodes, 2)
        if kind not in (Kind.CUT, Kind.CUT_ONE_WAY, Kind.BREAK):
            other = ""
        faults.append(Fault(at, kind, node, other, chance.choice((0.05, 0.4, 1.5, 4.0)) * chance.uniform(0.5, 1.5)))
