"""Consumers of queues: they work on messages at one node after the other, work first and acknowledge then."""

import random
from collections.abc import Iterable

import trio

from qmq.wire.stomp import encode_frame
from tests.simulation.cluster import Member
from tests.simulation.stage import Stage
from tests.simulation.workloads.client import Client, GoneError, connected
from tests.simulation.workloads.names import QUEUES


async def consume(stage: Stage, name: str) -> None:
    """Work for ever."""
    rng = random.Random(f"{stage.plan.seed}/{name}")
    while True:
        member = rng.choice([*stage.in_reach, *stage.forgetful])
        stay = rng.uniform(0.3, 4) * (4 if stage.settling else 1)
        # While the faults last some queues have no consumer, so that there is a backlog.
        queues = QUEUES if stage.settling else rng.sample(QUEUES, rng.randint(1, len(QUEUES)))
        try:
            async with connected(stage, name, member) as client:
                with trio.move_on_after(stay):
                    await _consume_one(stage, name, member, client, queues, rng)
        except GoneError as gone:
            stage.trace.note(f"{name} lost {member.name}: {gone}")
        await trio.sleep(rng.uniform(0.01, 0.3))


async def _consume_one(
    stage: Stage, name: str, member: Member, client: Client, queues: Iterable[str], rng: random.Random
) -> None:
    wishes = [] if stage.settling else draw_wishes(rng)
    for queue in queues:
        headers = [("destination", queue), ("id", queue), ("ack", "client-individual")]
        headers.append(("prefetch-count", str(stage.plan.prefetch)))
        await client.send(encode_frame("SUBSCRIBE", [*headers, *wishes]))
    stage.trace.note(f"{name} consumes at {member.name}")
    ledger = stage.ledger
    since = trio.current_time()
    while True:
        for frame in await client.read():
            head = frame.head.headers
            if frame.head.command == "RECEIPT":
                if member.is_forgetful:
                    assert head["receipt-level"] == "accepted"
                    continue
                is_full = asked_level(head["receipt-id"]) == "quorum" and "ack-level" not in head
                ledger.receipt_of_ack(head["receipt-id"], member.name, for_good=is_full)
                stage.trace.note(f"{name} has the receipt of its ACK for {head['receipt-id']}")
                continue
            if frame.head.command != "MESSAGE":
                raise GoneError("refused")
            message_id = ledger.match(name, head["destination"], frame.body)
            if message_id is None:
                continue
            stage.trace.note(f"{name} is given {message_id}")
            ledger.give(message_id, member.name, since)
            ledger.note_mark(head)
            if rng.random() < 0.3:
                await trio.sleep(rng.uniform(0, 0.1))
            if rng.random() < 0.03:
                await client.send(encode_frame("NACK", [("id", head["ack"])]))
                continue
            ledger.consumed.add(message_id)
            level = "edge" if member.is_forgetful else asked_level(message_id)
            asked = [("receipt", message_id), ("ack-level", level)]
            await client.send(encode_frame("ACK", [("id", head["ack"]), *asked]))


def asked_level(message_id: str) -> str:
    """What the ACK of this message asks for: every other one must be for good."""
    return "quorum" if int(message_id.rpartition(".")[2]) % 2 else "edge"


def draw_wishes(rng: random.Random) -> list[tuple[str, str]]:
    """What a consumer may want of its queue; mostly everything."""
    return rng.choice([[], [], [], [("exclusive", "true")], [("selector", "\"x-id\" LIKE '%3%'")]])
