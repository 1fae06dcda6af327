"""Insistent publishers: every message has a dedup id and is sent again, at any node, until a node has receipted it.

They are impatient, too: often they leave before the answer and go to another node at once, so that a message is tried
again also where nothing is wrong.
"""

import random

import trio

from qmq.wire.stomp import encode_frame
from tests.simulation.cluster import Member
from tests.simulation.ledger import Sent
from tests.simulation.stage import Stage
from tests.simulation.workloads.client import Client, GoneError, connected
from tests.simulation.workloads.names import INSISTED
from tests.simulation.workloads.publish import default_copies

ANSWER_SECONDS = 4.0
"""Longer than a node asks its peers about a message."""


async def insist(stage: Stage, name: str, destination: str = INSISTED, leaving_share: float = 0.2) -> None:
    """Send for as long as the phase of faults lasts, and then until the last message is receipted."""
    rng = random.Random(f"{stage.plan.seed}/{name}")
    until = trio.current_time() + stage.plan.seconds
    number = 0
    waiting: list[Sent] = []
    while waiting or trio.current_time() < until:
        member = rng.choice(stage.in_reach)
        try:
            async with connected(stage, name, member) as client:
                while waiting or trio.current_time() < until:
                    tried = len(waiting)
                    while len(waiting) < 3 and trio.current_time() < until:
                        number += 1
                        waiting.append(stage.ledger.send(name, number, member.name, destination, rng))
                    leaves = rng.random() < leaving_share and not stage.settling
                    await _try(stage, name, member, client, waiting, tried, leaves)
                    await trio.sleep(rng.uniform(0.02, 0.5))
        except GoneError as gone:
            stage.trace.note(f"{name} lost {member.name}: {gone}")
        await trio.sleep(rng.uniform(0, 0.05))


async def _try(
    stage: Stage, name: str, member: Member, client: Client, waiting: list[Sent], tried: int, leaves: bool
) -> None:
    """Send all that `waiting` holds, the first `tried` of them again; take out what is receipted."""
    frames: list[bytes] = []
    for place, message in enumerate(waiting):
        headers = [("destination", message.destination), ("receipt", message.id), ("x-id", message.id)]
        headers.append(("dedup-id", message.id))
        if place < tried:
            headers.append(("redelivered", "true"))
        frames.append(encode_frame("SEND", headers, message.body))
    stage.trace.note(f"{name} tries {[message.id for message in waiting]} at {member.name}")
    by_id = {message.id: message for message in waiting}
    with trio.move_on_after(ANSWER_SECONDS):
        await client.send(*frames)  # which a node that vanished without a word takes for ever
        if leaves:
            raise GoneError("it does not wait for the answer")
        while by_id:
            for frame in await client.read():
                if frame.head.command != "RECEIPT":
                    raise GoneError("refused")
                head = frame.head.headers
                message = by_id.pop(head["receipt-id"])
                if message is not waiting.pop(0):
                    stage.ledger.wrongs.append(f"I4 receipts: {name} has that of {message.id} too early")
                assert member.node is not None
                stage.ledger.receipt(message, member.node.origin, int(head.get("copies", default_copies(stage))))
                stage.trace.note(f"{name} has the receipt of {message.id} {head.get('duplicate', '')}")
    if by_id:
        raise GoneError("no answer")
