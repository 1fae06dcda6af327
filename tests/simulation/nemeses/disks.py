"""Harm to disks: gone, failing, slow, full, damaged, set back."""

from collections.abc import Collection

import trio

from tests.simulation.cluster import RESERVE_BYTES, Member
from tests.simulation.evidence import batches_of, destroyed, held_by
from tests.simulation.faults import Fault, nemesis
from tests.simulation.nemeses.links import both_ways, cut_off
from tests.simulation.stage import Stage
from tests.support.disks import DiskImage, spoil

SLOW_SECONDS = (0.4, 1.0, 3.0)
"""How long a call takes at most on a disk that has become slow: one of these."""


@nemesis("wipe", loses_disk=True)
async def wipe(stage: Stage, fault: Fault) -> None:
    """A crash whose disk comes back empty."""
    member = stage.by_name[fault.node]
    if member.is_alive:
        stage.allowed_losses.lost(member, stage.members, held_by(member, stage.members))
        await member.crash(silently=stage.chance_of(fault).random() < 0.5, wipe=True)
        await stage.start_after(member, fault.seconds)


@nemesis("wipe with memory", loses_disk=True)
async def wipe_with_memory(stage: Stage, fault: Fault) -> None:
    """One node is alone with that without a disk, which ends. Then the disk of the one is gone, too."""
    pair = (stage.by_name[fault.node], *stage.forgetful)
    member, forgetful = pair
    apart = ((one.host, other.host) for one in pair for other in stage.members if other not in pair)
    with cut_off(stage, both_ways(apart)):
        await trio.sleep(fault.seconds)
        await forgetful.crash(silently=False)
        if member.is_alive:
            stage.allowed_losses.lost(member, stage.members, held_by(member, stage.members))
            await member.crash(silently=False, wipe=True)
    stage.start(forgetful)
    stage.start(member)


@nemesis("disk")
async def disk(stage: Stage, fault: Fault) -> None:
    """A disk operation fails and all later ones too: the node must stop by itself."""
    member = stage.by_name[fault.node]
    await member.fail_disk()
    await stage.start_after(member, fault.seconds)


@nemesis("slow disk")
async def slow_disk(stage: Stage, fault: Fault) -> None:
    """Every call takes up to some seconds."""
    await _slow_down(stage, fault, [stage.by_name[fault.node]])


@nemesis("slow disks")
async def slow_disks(stage: Stage, fault: Fault) -> None:
    """Every node's disk is slow, as on storage that they share: what is received is not durable for long anywhere."""
    await _slow_down(stage, fault, stage.members)


async def _slow_down(stage: Stage, fault: Fault, members: Collection[Member]) -> None:
    seconds = stage.chance_of(fault).choice(SLOW_SECONDS)
    for member in members:
        member.slow_disk(seconds)
    try:
        await trio.sleep(fault.seconds)
    finally:
        for member in members:
            member.slow_disk(None)


@nemesis("full disk")
async def full_disk(stage: Stage, fault: Fault) -> None:
    """Only the reserve is left, or only its file: SENDs are refused, and consumers go on. Or neither is left, and what
    is decided waits for room."""
    member = stage.by_name[fault.node]
    member.set_full_disk(stage.chance_of(fault).choice((RESERVE_BYTES, member.disk.reserved_bytes, 0)))
    try:
        await trio.sleep(fault.seconds)
    finally:
        member.set_full_disk(None)


@nemesis("damage", loses_disk=True, minority=True)
async def damage(stage: Stage, fault: Fault) -> None:
    """A crash, and while the node is down bytes of its journal change, or go missing at an end."""
    member = stage.by_name[fault.node]
    if member.is_alive:
        batches = [batch for _, batch in batches_of(member)]
        await member.crash(silently=True)
        before = member.disk.contents()
        path = spoil(member.disk, "journal", stage.chance_of(fault))
        stage.trace.note(f"{member.name}: {path} is damaged")
        if path:
            gone = destroyed(batches, before[path], member.disk.contents()[path])
            stage.allowed_losses.lost(member, stage.members, gone)
            member.lose(gone)
            member.damaged |= gone.keys()
        await stage.start_after(member, fault.seconds)


@nemesis("old image", loses_disk=True, minority=True)
async def old_image(stage: Stage, fault: Fault) -> None:
    """A backup of the disk of a node at work is taken now; later the machine is restored from it."""
    member = stage.by_name[fault.node]
    if not member.is_alive:
        return
    image, then = DiskImage(member.disk), held_by(member, stage.members)
    await trio.sleep(fault.seconds)
    if member.is_alive:
        now = held_by(member, stage.members)
        gone = {dot: message_id for dot, message_id in now.items() if dot not in then}
        stage.allowed_losses.lost(member, stage.members, gone)
        await member.crash(silently=True)
        image.restore(member.disk)
        member.lose(gone)
        stage.trace.note(f"{member.name} is restored from a backup of {fault.seconds:.3f} s ago")
        stage.start(member)
