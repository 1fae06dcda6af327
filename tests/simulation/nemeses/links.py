"""Harm to the network: what does not get through, between which nodes, for how long.

A cut is silent; each side must notice it by itself. A break resets connections, and both ends see that.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

import trio

from tests.simulation.cluster import Member
from tests.simulation.faults import Fault, nemesis
from tests.simulation.stage import Stage

FLAP_SECONDS = 0.2
SMALLEST_RING = 4

SLOW_BYTES_PER_SECOND = 10_000
SLOW_PIECE_BYTES = 500
DRIBBLE_BYTES_PER_SECOND = 2_000
DRIBBLE_PIECE_BYTES = 20

Pair = tuple[str, str]
"""(source, target): hosts, one direction."""


@contextmanager
def cut_off(stage: Stage, pairs: Iterable[Pair]) -> Iterator[None]:
    """Nothing passes in these directions for as long as this lasts."""
    pairs = list(pairs)
    for pair in pairs:
        stage.fabric.cut(*pair)
    try:
        yield
    finally:
        for pair in pairs:
            stage.fabric.heal(*pair)


def both_ways(pairs: Iterable[Pair]) -> list[Pair]:
    return [pair for here, there in pairs for pair in ((here, there), (there, here))]


@nemesis("cut", takes_two=True)
async def cut(stage: Stage, fault: Fault) -> None:
    """Nothing passes between two nodes."""
    here, there = stage.by_name[fault.node].host, stage.by_name[fault.other].host
    with cut_off(stage, both_ways([(here, there)])):
        await trio.sleep(fault.seconds)


@nemesis("cut one way", takes_two=True)
async def cut_one_way(stage: Stage, fault: Fault) -> None:
    with cut_off(stage, [(stage.by_name[fault.node].host, stage.by_name[fault.other].host)]):
        await trio.sleep(fault.seconds)


@nemesis("isolate")
async def isolate(stage: Stage, fault: Fault) -> None:
    """Nothing passes between one node and the others; its clients still reach it."""
    member = stage.by_name[fault.node]
    with cut_off(stage, both_ways((member.host, other.host) for other in stage.others(member))):
        await trio.sleep(fault.seconds)


@nemesis("isolate one way")
async def isolate_one_way(stage: Stage, fault: Fault) -> None:
    """One node hears all others and is heard by none, or the other way round."""
    member = stage.by_name[fault.node]
    pairs = [(member.host, other.host) for other in stage.others(member)]
    if stage.chance_of(fault).random() < 0.5:
        pairs = [(there, here) for here, there in pairs]
    with cut_off(stage, pairs):
        await trio.sleep(fault.seconds)


@nemesis("break", takes_two=True)
async def break_links(stage: Stage, fault: Fault) -> None:
    """Every connection between two nodes is reset."""
    stage.fabric.break_between(stage.by_name[fault.node].host, stage.by_name[fault.other].host)


@nemesis("break clients")
async def break_clients(stage: Stage, fault: Fault) -> None:
    """Every connection between one node and its clients is reset."""
    member = stage.by_name[fault.node]
    stage.fabric.break_clients(member.host, {other.host for other in stage.others(member)})


@nemesis("freeze")
async def freeze(stage: Stage, fault: Fault) -> None:
    """Nothing gets in or out of a node for a while, and nothing is lost."""
    host = stage.by_name[fault.node].host
    stage.fabric.freeze(host)
    try:
        await trio.sleep(fault.seconds)
    finally:
        stage.fabric.thaw(host)


# What becomes of the whole mesh. Nodes are taken in a drawn order, so that every node is once in each place.


@nemesis("halves")
async def halves(stage: Stage, fault: Fault) -> None:
    """Two parts that cannot reach each other; clients reach both."""
    members = _shuffled(stage, fault)
    middle = len(members) // 2
    here, there = members[:middle], members[middle:]
    with cut_off(stage, both_ways((one.host, other.host) for one in here for other in there)):
        await trio.sleep(fault.seconds)


@nemesis("ring")
async def ring(stage: Stage, fault: Fault) -> None:
    """Each node reaches only its two neighbours: every one sees a majority, and no two see the same. In small meshes,
    where every node is a neighbour, a line."""
    members = _shuffled(stage, fault)
    size = len(members)
    apart = [
        (members[here].host, members[there].host)
        for here in range(size)
        for there in range(here + 1, size)
        if there - here != 1 and (size < SMALLEST_RING or there - here != size - 1)
    ]
    with cut_off(stage, both_ways(apart)):
        await trio.sleep(fault.seconds)


@nemesis("partial")
async def partial(stage: Stage, fault: Fault) -> None:
    """Some directions between some nodes pass nothing."""
    rng = stage.chance_of(fault)
    pairs = [(one.host, other.host) for one in stage.members for other in stage.others(one)]
    with cut_off(stage, [pair for pair in pairs if rng.random() < 0.4]):
        await trio.sleep(fault.seconds)


@nemesis("flap", takes_two=True)
async def flap(stage: Stage, fault: Fault) -> None:
    """A cut that comes and goes, faster than a link is suspected."""
    here, there = stage.by_name[fault.node].host, stage.by_name[fault.other].host
    for _ in range(max(1, int(fault.seconds / FLAP_SECONDS / 2))):
        with cut_off(stage, both_ways([(here, there)])):
            await trio.sleep(FLAP_SECONDS)
        await trio.sleep(FLAP_SECONDS)


@nemesis("swizzle")
async def swizzle(stage: Stage, fault: Fault) -> None:
    """The links of one node are cut one by one and come back in another order."""
    rng = stage.chance_of(fault)
    member = stage.by_name[fault.node]
    hosts = [other.host for other in stage.others(member)]
    step = fault.seconds / len(hosts) / 2
    with ExitStack() as cuts:
        undo: list[Callable[[], object]] = []
        for host in rng.sample(hosts, len(hosts)):
            cut = cuts.enter_context(ExitStack())
            cut.enter_context(cut_off(stage, both_ways([(member.host, host)])))
            undo.append(cut.close)
            await trio.sleep(step)
        for heal in rng.sample(undo, len(undo)):
            heal()
            await trio.sleep(step)


@nemesis("slow link", takes_two=True)
async def slow_link(stage: Stage, fault: Fault) -> None:
    """A thin wire: batches, questions and beats stand in one queue."""
    await _slow_down(stage, fault, SLOW_BYTES_PER_SECOND, SLOW_PIECE_BYTES)


@nemesis("dribble", takes_two=True)
async def dribble(stage: Stage, fault: Fault) -> None:
    """A few bytes at a time, so that every frame arrives in many reads."""
    await _slow_down(stage, fault, DRIBBLE_BYTES_PER_SECOND, DRIBBLE_PIECE_BYTES)


async def _slow_down(stage: Stage, fault: Fault, bytes_per_second: int, piece_bytes: int) -> None:
    pairs = both_ways([(stage.by_name[fault.node].host, stage.by_name[fault.other].host)])
    for pair in pairs:
        stage.fabric.slow_down(*pair, bytes_per_second, piece_bytes)
    try:
        await trio.sleep(fault.seconds)
    finally:
        for pair in pairs:
            stage.fabric.speed_up(*pair)


def _shuffled(stage: Stage, fault: Fault) -> list[Member]:
    return stage.chance_of(fault).sample(stage.members, len(stage.members))
