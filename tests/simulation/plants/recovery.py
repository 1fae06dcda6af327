"""Mistakes with what a disk still has when a node comes back, and with what left the others meanwhile."""

from collections.abc import Collection, Iterator
from unittest.mock import patch

from qmq.broker.messages.message import Message
from qmq.broker.queues.paging.pager import Pager
from qmq.mesh.repair.catch_up import CatchUp
from qmq.mesh.repair.quarantine_restore import QuarantineRestore
from qmq.mesh.repair.requests import RepairResponder, SettledReply
from qmq.model.dots import Dot, Origin
from qmq.replication.mesh import Mesh
from qmq.storage.checkpoints.compaction import Compaction
from qmq.storage.format.failure_records import pack_attempts
from qmq.storage.format.segment import BatchSpan, scan
from qmq.storage.store import Store
from tests.simulation.plan import Family
from tests.simulation.plants.registry import seeded_bug

RELEASED = "tests/mesh/repair/test_quarantine_restore.py"


@seeded_bug(Family.DAMAGE, "I1", "I3", "I9", "I13", seed=3)
def incarnations_are_counters() -> Iterator[None]:
    """An incarnation is the number after the last one that the disk knows; an old copy of the disk repeats it."""
    reset = Store.begin_incarnation

    def begin_incarnation(store: Store, incarnation: int, timestamp_us: int) -> Origin:
        own = store.recovered.identity.node
        lives = [origin.incarnation for origin in store.journal.vector() if origin.node == own]
        return reset(store, max(lives, default=0) + 1, timestamp_us)

    with patch.object(Store, "begin_incarnation", begin_incarnation):
        yield


@seeded_bug(Family.DAMAGE, "I1", found_by="tests/storage/log/test_recovery.py")
def damage_taken_for_torn_tail() -> Iterator[None]:
    """Everything behind unreadable bytes is taken for a torn tail."""

    def scan_until_damage(data: bytes) -> Iterator[BatchSpan]:
        for found in scan(data):
            if found.head is None:
                yield BatchSpan(found.start, len(data), None)
                return
            yield found

    with patch("qmq.storage.log.recovery.scan", scan_until_damage):
        yield


@seeded_bug(Family.ALL, "I1", found_by=RELEASED)
def never_restored_from_quarantine() -> Iterator[None]:
    """Batches behind damage stay in quarantine, also when no member ever had them."""

    async def run(quarantine_restore: QuarantineRestore) -> None:
        pass

    with patch.object(QuarantineRestore, "run", run):
        yield


@seeded_bug(Family.ALL, "I1", "I3", found_by=RELEASED)
def lost_before_all_answered() -> Iterator[None]:
    """A damaged range counts as lost although a member that is away may have it."""
    all_have = Mesh.all_have

    def those_in_reach_have(links: Mesh, peers: Collection[str], origin: Origin, last: int) -> bool:
        return all_have(links, set(peers).intersection(links.reachable()), origin, last)

    with patch.object(Mesh, "all_have", those_in_reach_have):
        yield


@seeded_bug(Family.AWAY, "I8", found_by="tests/mesh/repair/test_catch_up.py")
def stale_rows_delivered() -> Iterator[None]:
    """A node that was away for longer than journals last delivers what it held, and asks no peer about settles."""

    async def check(catch_up: CatchUp, peer: str) -> bool:
        return True

    with patch.object(CatchUp, "_check", check):
        yield


@seeded_bug(Family.AWAY, "I8", found_by="tests/mesh/repair/test_catch_up.py")
def settles_lost_with_their_segment() -> Iterator[None]:
    """A node forgets that a message is settled when its journal has dropped the settle."""

    async def answer_settled(responder: RepairResponder, dots: list[Dot]) -> SettledReply:
        return SettledReply([], pack_attempts([]))

    with patch.object(RepairResponder, "_answer_settled", answer_settled):
        yield


@seeded_bug(Family.ALL, "I8", found_by="tests/storage/checkpoints/test_checkpoint.py")
def tombstones_collected_early() -> Iterator[None]:
    """A settle that comes before its message is forgotten by the next checkpoint: a tombstone collected too early."""

    def tombstones(reduction: Compaction) -> set[Dot]:
        return set()

    with patch.object(Compaction, "tombstones", tombstones):
        yield


@seeded_bug(Family.CRASHES, "I25", seed=34)
def redelivered_flag_lost() -> Iterator[None]:
    """A node that comes back takes every message that it finds for one that no consumer has seen."""

    def is_of_before(paging: Pager, message: Message) -> bool:
        return False

    with patch.object(Pager, "_is_of_before", is_of_before):
        yield
