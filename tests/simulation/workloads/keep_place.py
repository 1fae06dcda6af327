"""A durable subscription that hops: one name, two clients that take it from each other at all nodes.

They acknowledge what they were given with a receipt, in any order, some of it late or not at all.
"""

import random

import trio

from qmq.client.core.feed import GAP_HEADER
from qmq.wire.stomp import encode_frame
from tests.simulation.cluster import Member
from tests.simulation.ledger import Place
from tests.simulation.stage import Stage
from tests.simulation.workloads.client import Client, GoneError, connected


async def keep_place(stage: Stage, name: str, place: Place) -> None:
    """Come to one node after the other for ever."""
    rng = random.Random(f"{stage.plan.seed}/{name}")
    while True:
        member = rng.choice(stage.in_reach)
        stay = rng.uniform(0.2, 3) * (4 if stage.settling else 1)
        try:
            async with connected(stage, name, member) as client:
                with trio.move_on_after(stay):
                    await _read_one(stage, name, member, client, place, rng)
        except GoneError as gone:
            stage.trace.note(f"{name} lost {member.name}: {gone}")
        await trio.sleep(rng.uniform(0.01, 0.6))


async def _read_one(stage: Stage, name: str, member: Member, client: Client, place: Place, rng: random.Random) -> None:
    lines = [("destination", place.destination), ("id", "place"), ("ack", "client-individual"), ("durable", "true")]
    lines += [("prefetch-count", str(stage.plan.prefetch)), ("x-stream-offset", "first"), ("receipt", "attached")]
    since = trio.current_time()
    await client.send(encode_frame("SUBSCRIBE", lines))
    stage.trace.note(f"{name} takes {place.destination} at {member.name}")
    while True:
        for frame in await client.read():
            head = frame.head.headers
            if frame.head.command == "RECEIPT":
                if head["receipt-id"] == "attached":
                    place.attached += 1
                else:
                    place.acknowledge(head["receipt-id"], member.name)
                continue
            if frame.head.command != "MESSAGE":
                raise GoneError("refused")
            if GAP_HEADER in head:
                stage.ledger.miss(name, place.destination, head[GAP_HEADER])
                await client.send(encode_frame("ACK", [("id", head["ack"])]))
                continue
            message_id = stage.ledger.match(name, place.destination, frame.body)
            if message_id is None:
                continue
            stage.trace.note(f"{name} is given {message_id}")
            place.give(message_id, member.name, since)
            if rng.random() < 0.2:
                await trio.sleep(rng.uniform(0, 0.1))
            if stage.settling or rng.random() < 0.9:
                await client.send(encode_frame("ACK", [("id", head["ack"]), ("receipt", message_id)]))
