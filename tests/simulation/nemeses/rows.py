"""Harm to queue stores: rows whose bits have flipped, and a file that was damaged beyond rescue."""

from collections.abc import Callable

from qmq.model.dots import Dot
from tests.fakes.queue_store import MemoryQueueStore
from tests.fakes.sqlite_store import SimulatedSqliteStore
from tests.fakes.store import simulated_queue_store
from tests.simulation.evidence import batches_of, held_by, records_of
from tests.simulation.faults import Fault, nemesis
from tests.simulation.stage import Stage

ROTTEN_ROWS_MAX = 4
SEQUENCE_MAX = 1 << 62

Queues = MemoryQueueStore | SimulatedSqliteStore


@nemesis("rotten rows", loses_disk=True, minority=True)
async def rotten_rows(stage: Stage, fault: Fault) -> None:
    """A crash, and while the node is down bits flip in some rows of its queue store."""

    def spoil(store: Queues, standing: list[Dot]) -> list[Dot]:
        rng = stage.chance_of(fault)
        dots = rng.sample(standing, min(len(standing), rng.randint(1, ROTTEN_ROWS_MAX)))
        dots = store.spoil(dots)
        stage.trace.note(f"{fault.node}: {len(dots)} rows are damaged")
        return dots

    await _crash_and(stage, fault, spoil)


@nemesis("lost rows", loses_disk=True, minority=True)
async def lost_rows(stage: Stage, fault: Fault) -> None:
    """A crash, and the next start finds a queue store of which nothing can be read, or one without any commit."""

    def lose(store: Queues, standing: list[Dot]) -> list[Dot]:
        position = stage.chance_of(fault).choice((-1, 0))
        store.reset(position)
        stage.trace.note(f"{fault.node}: its queue store is lost, and begins at {position}")
        return standing

    await _crash_and(stage, fault, lose)


async def _crash_and(stage: Stage, fault: Fault, harm: Callable[[Queues, list[Dot]], list[Dot]]) -> None:
    """`harm` gets the store of a node that is down and its rows, and returns which of them are gone."""
    member = stage.by_name[fault.node]
    if member.is_alive:
        held = held_by(member, stage.members)
        journal = {dot for _, batch in batches_of(member) for dot, _ in records_of(batch)}
        await member.crash(silently=True)
        store = simulated_queue_store(member.disk)
        gone = harm(store, _standing(store))
        store.close()
        records = {dot: held[dot] for dot in gone if dot in held and dot not in journal}
        stage.allowed_losses.lost(member, stage.members, records)
        stage.allowed_losses.hide(
            member, stage.members, {dot: held[dot] for dot in gone if dot in held and dot in journal}
        )
        member.lose(records)
        await stage.start_after(member, fault.seconds)


def _standing(store: Queues) -> list[Dot]:
    return [row.dot for origin in store.origins() for row in store.unsettled(origin, 0, SEQUENCE_MAX, 1000)]
