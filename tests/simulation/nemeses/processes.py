"""Harm to processes and their machines: killed, without power, stopped in order, paused, with a wrong clock."""

import trio

from qmq.mesh.peers.dedup_query import WAKING_SECONDS
from tests.simulation.faults import Fault, nemesis
from tests.simulation.nemeses.links import both_ways, cut_off
from tests.simulation.plan import Family
from tests.simulation.stage import Stage

CLOCK_STEP_SECONDS_MAX = 3600.0

BOOT_DAYS = (8.0, 30.0)
"""How far the clock of a machine is off at its start: more than fanouts are kept."""

QUICK_SECONDS = 0.1
LATE_SECONDS_MAX = 2.0

STALE_SECONDS_MAX = 2.0

CAUGHT_AT_WORK = 0.7
"""How often a node dies while its disk is busy for it, because that is where bugs are."""

JOB_SECONDS_MAX = 2.0
JOB_CALLS_MAX = 8
"""For how long a fault waits for a job of an operator, and after how many uses of the disk the job is hit at most."""


@nemesis("crash")
async def crash(stage: Stage, fault: Fault) -> None:
    """The process is killed: connections are reset, unsynced bytes are lost or torn."""
    await _end(stage, fault, silently=False)


@nemesis("power")
async def power(stage: Stage, fault: Fault) -> None:
    """As crash, but no peer notices at once."""
    await _end(stage, fault, silently=True)


@nemesis("restart", takes_two=True)
async def restart(stage: Stage, fault: Fault) -> None:
    """The process is killed and at once back, and one of its links comes late."""
    here, there = stage.by_name[fault.node], stage.by_name[fault.other].host
    await here.crash(silently=False)
    with cut_off(stage, both_ways([(here.host, there)])):
        await stage.start_after(here, QUICK_SECONDS)
        await trio.sleep(min(fault.seconds, LATE_SECONDS_MAX))


@nemesis("power of all")
async def power_of_all(stage: Stage, fault: Fault) -> None:
    """Every node loses its power in one instant; they come back one after the other."""
    await stage.by_name[fault.node].be_caught_at_work()
    for member in stage.members:
        await member.crash(silently=True)
    for member in stage.members:
        await stage.start_after(member, fault.seconds / 4)


@nemesis("stop")
async def stop(stage: Stage, fault: Fault) -> None:
    """An orderly end."""
    member = stage.by_name[fault.node]
    await member.stop()
    await stage.start_after(member, fault.seconds)


@nemesis("pause")
async def pause(stage: Stage, fault: Fault) -> None:
    """The process does nothing for a while and does not know it: SIGSTOP, a suspended machine, a long collection."""
    host = stage.by_name[fault.node].host
    stage.pauses.begin(host)
    try:
        await trio.sleep(fault.seconds)
    finally:
        stage.pauses.end(host)


@nemesis("stale sockets")
async def stale_sockets(stage: Stage, fault: Fault) -> None:
    """A process is paused while its clients leave and try again elsewhere. It wakes up with what they sent unread, and
    its links come so late that it cannot ask about that."""
    member = stage.by_name[fault.node]
    with cut_off(stage, both_ways((member.host, other.host) for other in stage.others(member))):
        stage.pauses.begin(member.host)
        try:
            await trio.sleep(min(fault.seconds, STALE_SECONDS_MAX))
        finally:
            stage.pauses.end(member.host)
        await trio.sleep(WAKING_SECONDS + STALE_SECONDS_MAX)


@nemesis("clock")
async def clock(stage: Stage, fault: Fault) -> None:
    """The wall clock steps, by up to an hour either way, and then half-way back."""
    member = stage.by_name[fault.node]
    seconds = stage.chance_of(fault).uniform(-CLOCK_STEP_SECONDS_MAX, CLOCK_STEP_SECONDS_MAX)
    member.step_clock(seconds)
    await trio.sleep(fault.seconds)
    member.step_clock(-seconds / 2)


@nemesis("boot clock")
async def boot_clock(stage: Stage, fault: Fault) -> None:
    """A machine starts with its clock days off, either way; then an operator sets it right and starts it again."""
    member = stage.by_name[fault.node]
    rng = stage.chance_of(fault)
    seconds = rng.choice((-1, 1)) * rng.uniform(*BOOT_DAYS) * 86_400
    await member.crash(silently=rng.random() < 0.5)
    member.step_clock(seconds)
    try:
        stage.start(member)
        await trio.sleep(fault.seconds)
        await member.crash(silently=False)
    finally:
        member.step_clock(-seconds)
    stage.start(member)


async def _end(stage: Stage, fault: Fault, *, silently: bool) -> None:
    member = stage.by_name[fault.node]
    rng = stage.chance_of(fault)
    if rng.random() < CAUGHT_AT_WORK:
        if stage.plan.family is Family.OPERATORS:
            # A job uses the disk for each of its pages, and it may be in the midst of any of them.
            with trio.move_on_after(JOB_SECONDS_MAX):
                member = stage.by_name[await stage.ledger.operations.until_job()]
                for _ in range(rng.randrange(1, JOB_CALLS_MAX)):
                    await member.be_caught_at_work()
        await member.be_caught_at_work()
    await member.crash(silently=silently)
    await stage.start_after(member, fault.seconds)
