"""Harm to queue stores: rows whose bits have flipped, and a file that was damaged beyond rescue."""

from qmq.dots import Dot
from qmq.storage.memory_stores import MemoryQueueStore
from tests.simulation.faults import Fault, nemesis
from tests.simulation.stage import Stage

ROTTEN_ROWS_MAX = 4
SEQUENCE_MAX = 1 << 62


@nemesis("rotten rows", loses_disk=True, minority=True)
async def rotten_rows(stage: Stage, fault: Fault) -> None:
    """A crash, and while the node is down bits flip in some rows of its queue store."""
    member = stage.by_name[fault.node]
    if member.is_alive:
        stage.excuses.losing(member, stage.members)
        await member.crash(silently=True)
        store = MemoryQueueStore(member.disk)
        standing = [
            Dot(origin, row[0]) for origin in store.origins() for row in store.standing(origin, 0, SEQUENCE_MAX, 1000)
        ]
        chance = stage.chance_of(fault)
        dots = chance.sample(standing, min(len(standing), chance.randint(1, ROTTEN_ROWS_MAX)))
        store.spoil(dots)
        stage.trace.note(f"{member.name}: {len(dots)} rows are damaged")
        await stage.start_after(member, fault.seconds)


@nemesis("lost rows", loses_disk=True, minority=True)
async def lost_rows(stage: Stage, fault: Fault) -> None:
    """A crash, and the next start finds a queue store of which nothing can be read."""
    member = stage.by_name[fault.node]
    if member.is_alive:
        stage.excuses.losing(member, stage.members)
        await member.crash(silently=True)
        MemoryQueueStore(member.disk).begin_anew()
        stage.trace.note(f"{member.name}: its queue store is lost")
        await stage.start_after(member, fault.seconds)
