"""`/control/retire/NODE`: a member leaves for good, by the word of an operator.

The node that is asked writes a RETIRE record and becomes the adopter: the retired node's unsettled queue messages are
served here from now on. Everything that must hold is looked at before anything is written: a majority of those who stay
can be reached, all of them go by one peers file, and nobody of them hears the node that is to leave.

`force` retires a node that is still heard. It stops by itself as soon as it learns of it; until then its consumers and
the adopter's may be handed the same messages.
"""

import json
from typing import TYPE_CHECKING, Any

import trio

from qmq.broker.outcome import Outcome
from qmq.dots import Vector, merge
from qmq.errors import Refused
from qmq.members import Retirement, majority
from qmq.storage.record import Kind
from qmq.storage.retire_record import pack_retirement

if TYPE_CHECKING:
    from qmq.server.node import Node

RETIRE = "/control/retire/"


def is_about_hearing(question: bytes) -> bool:
    """Whether a peer's question is whether this node hears another one."""
    return question.startswith(b'{"hears"')


def answer_hearing(node: "Node", question: bytes) -> bytes:
    """Whether a link with the node that is asked about is up. Raises Refused for nonsense."""
    try:
        name = json.loads(question)["hears"]
    except (ValueError, TypeError, KeyError) as error:
        raise Refused("bad-destination", "a question about a node's links that means nothing") from error
    return json.dumps({"hears": name in linked(node)}).encode()


def linked(node: "Node") -> set[str]:
    """The peers to or from which a link is up."""
    if node.mesh is None:
        return set()
    return {peer.name for peer in node.mesh.statistics().peers if "up" in peer.out_state + peer.in_state}


class Retiring:
    """One retirement at a time."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._one = trio.Lock()

    async def retire(self, name: str, *, force: bool) -> dict[str, Any]:
        """Retire `name`; returns what to tell the operator. Raises Refused, and nothing has changed then."""
        async with self._one:
            await self._check(name, force)
            return await self._write(name)

    async def _check(self, name: str, force: bool) -> None:
        node = self._node
        membership = node.membership
        if membership.is_retired(name):
            raise Refused("already-retired", f"{name} is retired; {membership.retired[name].adopter} has adopted it.")
        if name == node.origin.node:
            raise Refused("bad-node", "A node does not retire itself: stop it, and ask another one.")
        if name not in membership.members:
            raise Refused("bad-node", f"{name} is no member; those are {', '.join(sorted(membership.members))}.")
        if len(membership.lists) > 1:
            raise Refused("change-under-way", "Not all nodes go by the same peers file yet: one change at a time.")
        reached = {node.origin.node} | linked(node) - {name}
        if not majority(reached, [names - {name} for names in membership.lists]):
            raise Refused("no-majority", f"Only {', '.join(sorted(reached))} can be reached of those who would stay.")
        hearing = await self._who_hears(name)
        if hearing and not force:
            raise Refused(
                "still-reachable", f"{', '.join(hearing)} can reach {name}: stop it first, or force it (`--force`)."
            )

    async def _who_hears(self, name: str) -> list[str]:
        node = self._node
        answers = await node.asking.ask(json.dumps({"hears": name}).encode())
        hearing = {peer for peer, answer in answers.items() if peer != name and json.loads(answer).get("hears")}
        if name in linked(node):
            hearing.add(node.origin.node)
        return sorted(hearing)

    async def _write(self, name: str) -> dict[str, Any]:
        node = self._node
        await node.slot()
        sealed: Vector = {}
        for vector in (node.durable_vector(), *node.checkpoints.members.values()):
            merge(sealed, {origin: last for origin, last in vector.items() if origin.node == name})
        retirement = Retirement(node=name, adopter=node.origin.node, sealed=sealed)
        now_us = node.world.now_us()
        out = Outcome(now_us=now_us)
        node.broker.note_fact(Kind.RETIRE, pack_retirement(retirement), now_us, out)
        node.submit(out)
        node.members.retired(retirement)
        await node.all_told()
        missing = {origin: last for origin, last in sealed.items() if node.durable_vector().get(origin, 0) < last}
        return {
            "retired": name,
            "adopter": retirement.adopter,
            "sealed": {str(origin): last for origin, last in sealed.items()},
            "still_on_the_way": {str(origin): last for origin, last in missing.items()},
        }
