"""Message groups under faults: bursts at all nodes, and consumers with some credit that stay at a node for a moment.

Some have a selector. So groups are always on their way somewhere when a node pauses or a consumer goes.
"""

import random

import trio

from qmq.wire.stomp import encode_frame
from tests.simulation.cluster import Member
from tests.simulation.stage import Stage
from tests.simulation.workloads.client import Client, GoneError, connected
from tests.simulation.workloads.names import SHARED

BURST = 25
GROUPS = 4
PREFETCHES = (1, 5, 20)
RECEIPT_SECONDS = 1.5
SELECTORS = ("", "", "\"x-id\" LIKE '%3%'")
"""As of `consume`: a check knows which messages it divides."""


async def supply_groups(stage: Stage, name: str) -> None:
    """Send bursts, each to one node, for as long as the phase of faults lasts."""
    rng = random.Random(f"{stage.plan.seed}/{name}")
    until = trio.current_time() + stage.plan.seconds
    number = 1
    while trio.current_time() < until:
        member = rng.choice(stage.in_reach)
        try:
            async with connected(stage, name, member) as client:
                await _send(stage, name, number, member, client, rng)
        except GoneError as gone:
            stage.trace.note(f"{name} lost {member.name}: {gone}")
        number += BURST
        await trio.sleep(rng.uniform(0.1, 0.4))


async def _send(stage: Stage, name: str, first: int, member: Member, client: Client, rng: random.Random) -> None:
    burst = [stage.ledger.send(name, first + at, member.name, SHARED, rng) for at in range(BURST)]
    frames = []
    for message in burst:
        headers = [("destination", SHARED), ("receipt", message.id), ("x-id", message.id)]
        headers.append(("JMSXGroupID", f"g{rng.randrange(GROUPS)}"))
        frames.append(encode_frame("SEND", headers, message.body))
    waiting = {message.id: message for message in burst}
    with trio.move_on_after(RECEIPT_SECONDS):
        await client.send(*frames)
        while waiting:
            for frame in await client.read():
                assert member.node is not None
                message = waiting.pop(frame.head.headers["receipt-id"])
                stage.ledger.receipt(message, member.node.origin, int(frame.head.headers.get("copies", 1)))
        return
    raise GoneError(f"{len(waiting)} outcomes unknown")


async def share_groups(stage: Stage, name: str) -> None:
    """Consume, at one node after the other; for ever."""
    rng = random.Random(f"{stage.plan.seed}/{name}")
    while True:
        member = rng.choice(stage.in_reach)
        stay = rng.uniform(0.5, 3) * (4 if stage.settling else 1)
        try:
            async with connected(stage, name, member) as client:
                with trio.move_on_after(stay):
                    await _work(stage, name, member, client, rng)
        except GoneError as gone:
            stage.trace.note(f"{name} lost {member.name}: {gone}")
        await trio.sleep(rng.uniform(0.01, 0.3))


async def _work(stage: Stage, name: str, member: Member, client: Client, rng: random.Random) -> None:
    selector = "" if stage.settling else rng.choice(SELECTORS)
    headers = [("destination", SHARED), ("id", "g"), ("ack", "client-individual")]
    headers += [("prefetch-count", str(rng.choice(PREFETCHES)))]
    await client.send(encode_frame("SUBSCRIBE", [*headers, *([("selector", selector)] if selector else [])]))
    stage.trace.note(f"{name} shares groups at {member.name}")
    while True:
        for frame in await client.read():
            head = frame.head.headers
            message_id = stage.ledger.match(name, SHARED, frame.body)
            if message_id is None:
                continue
            stage.trace.note(f"{name} is given {message_id} of {head['JMSXGroupID']}")
            stage.ledger.note_mark(head)
            stage.ledger.consumed.add(message_id)
            if rng.random() < 0.3:
                await trio.sleep(rng.uniform(0, 0.02))
            await client.send(encode_frame("ACK", [("id", head["ack"])]))
