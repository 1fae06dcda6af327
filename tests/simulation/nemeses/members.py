"""Harm that operators do: a node joins a mesh at work, and one that is dead leaves it for good."""

import trio

from qmq.errors import Refused
from tests.simulation.cluster import Member
from tests.simulation.evidence import held_by
from tests.simulation.faults import Fault, nemesis
from tests.simulation.stage import Stage

TRY_SECONDS = 0.5
"""Between two requests of an operator after a refusal."""


@nemesis("join")
async def join(stage: Stage, fault: Fault) -> None:
    """The newcomer's line is put into the peers file, nodes are signalled one after the other, and it starts."""
    await stage.grow(stage.chance_of(fault), fault.seconds)


@nemesis("retire", loses_disk=True)
async def retire(stage: Stage, fault: Fault) -> None:
    """A node dies and does not come back; an operator retires it as soon as some node obeys."""
    member = stage.by_name[fault.node]
    if stage.leaving is None and member.is_alive:
        stage.allowed_losses.lost(member, stage.members, held_by(member, stage.members))
        stage.leave(member)
        await member.crash(silently=stage.chance_of(fault).random() < 0.5)
        await until_retired(stage, member)


async def until_retired(stage: Stage, member: Member) -> None:
    """Ask one node after the other."""
    while not stage.is_retired:
        for other in list(stage.members):
            if other.is_alive and other.node is not None and not other.is_stopping:
                other.node.spawn(_Word(stage, other, member.name).say)
                await trio.sleep(TRY_SECONDS)
            if stage.is_retired:
                break
        else:
            await trio.sleep(TRY_SECONDS)


class _Word:
    """What an operator says to one node; it dies with it."""

    def __init__(self, stage: Stage, at: Member, name: str) -> None:
        self._stage = stage
        self._node = at.node
        self._name = name

    async def say(self) -> None:
        assert self._node is not None
        try:
            await self._node.mesh_parts.decommission.retire(self._name, force=False)
        except Refused as refused:
            if refused.code != "already-retired":
                return
        self._stage.is_retired = True
