"""Queues with a backlog at their consumers' own nodes, in which not everybody may have everything; without faults.

Consumers of one queue are exclusive, those of the other are given groups. They have little room and take their time, so
most of the time they are full with messages of the node that they are at.
"""

import random

import trio

from qmq.wire.stomp import encode_frame
from tests.simulation.ledger import Turns
from tests.simulation.plan import FIRST_FAULT_SECONDS
from tests.simulation.stage import Stage
from tests.simulation.workloads.client import Client, connected
from tests.simulation.workloads.names import EXCLUSIVE, GROUPED

BURST = 40
GROUPS = 3
PREFETCH = 2


async def pile_up(stage: Stage, name: str) -> None:
    """Send bursts, each to one node, for as long as the phase of faults would last."""
    rng = random.Random(f"{stage.plan.seed}/{name}")
    until = trio.current_time() + stage.plan.seconds
    number = 0
    await trio.sleep(FIRST_FAULT_SECONDS)
    while trio.current_time() < until:
        member = rng.choice(stage.in_reach)
        async with connected(stage, name, member) as client:
            for _ in range(BURST):
                number += 1
                queue = rng.choice((EXCLUSIVE, GROUPED))
                message = stage.ledger.send(name, number, member.name, queue, rng)
                headers = [("destination", queue), ("receipt", message.id)]
                if queue == GROUPED:
                    headers.append(("JMSXGroupID", _group_of(message.id)))
                await client.send(encode_frame("SEND", headers, message.body))
            left = BURST
            while left:
                for frame in await client.read():
                    assert member.node is not None
                    copies = int(frame.head.headers.get("copies", 1))
                    stage.ledger.receipt(
                        stage.ledger.sent[frame.head.headers["receipt-id"]], member.node.origin, copies
                    )
                    left -= 1
        await trio.sleep(rng.uniform(0.2, 1.0))


async def take_turns(stage: Stage, name: str) -> None:
    """Consume, at one node after the other; for ever."""
    rng = random.Random(f"{stage.plan.seed}/{name}")
    await trio.sleep(FIRST_FAULT_SECONDS)
    turns = stage.ledger.turns
    while True:
        member = rng.choice(stage.in_reach)
        async with connected(stage, name, member) as client:
            with trio.move_on_after(rng.uniform(2, 4)):
                turns.changed()
                for queue in (EXCLUSIVE, GROUPED):
                    headers = [("destination", queue), ("id", queue), ("ack", "client-individual")]
                    headers += [("prefetch-count", str(PREFETCH)), ("exclusive", str(queue == EXCLUSIVE).lower())]
                    await client.send(encode_frame("SUBSCRIBE", headers))
                await _work(stage, turns, f"{name} at {member.name}", client, rng)
        turns.changed()
        await trio.sleep(rng.uniform(0.5, 1.5))


async def _work(stage: Stage, turns: Turns, who: str, client: Client, rng: random.Random) -> None:
    while True:
        for frame in await client.read():
            head = frame.head.headers
            message_id = stage.ledger.match(who, head["destination"], frame.body)
            if message_id is None:
                continue
            stage.ledger.note_mark(head)
            what = head["destination"] if head["destination"] == EXCLUSIVE else _group_of(message_id)
            turns.give(what, who, stage.ledger.sent[message_id])
            stage.ledger.consumed.add(message_id)
            await trio.sleep(rng.uniform(0.01, 0.05))
            await client.send(encode_frame("ACK", [("id", head["ack"])]))


def _group_of(message_id: str) -> str:
    return f"g{int(message_id.rpartition('.')[2]) % GROUPS}"
