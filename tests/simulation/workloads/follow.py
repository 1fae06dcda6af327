"""Followers: they follow a fanout from node to node with the vector of what they have seen, and topics beside it."""

import random

import trio

from qmq.client.core.feed import GAP_HEADER
from qmq.model.dots import merge
from qmq.wire.stomp import encode_frame
from tests.simulation.cluster import Member
from tests.simulation.ledger import Stream, dot_of, resume_header
from tests.simulation.stage import Stage
from tests.simulation.workloads.client import Client, GoneError, connected
from tests.simulation.workloads.names import TOPICS


async def follow(stage: Stage, name: str, destination: str) -> None:
    """Follow for ever."""
    rng = random.Random(f"{stage.plan.seed}/{name}")
    stream = Stream(name, destination)
    stage.ledger.streams.append(stream)
    while True:
        member = rng.choice(stage.in_reach)
        stay = rng.uniform(0.2, 3) * (4 if stage.settling else 1)
        try:
            async with connected(stage, name, member) as client:
                with trio.move_on_after(stay):
                    await _follow_one(stage, name, member, client, stream, rng)
        except GoneError as gone:
            stage.trace.note(f"{name} lost {member.name}: {gone}")
        await trio.sleep(rng.uniform(0.01, 0.3))


async def _follow_one(
    stage: Stage, name: str, member: Member, client: Client, stream: Stream, rng: random.Random
) -> None:
    ledger = stage.ledger
    headers = [("destination", stream.destination), ("id", "f")]
    if stream.vector:
        headers.append(("qmq-resume", resume_header(stream.vector)))
    topics = [encode_frame("SUBSCRIBE", [("destination", topic), ("id", topic)]) for topic in TOPICS]
    await client.send(encode_frame("SUBSCRIBE", headers), *topics)
    stage.trace.note(f"{name} follows at {member.name} after {sorted(stream.vector.items())}")
    seen_here: set[str] = set()
    last: dict[str, int] = {}
    while True:
        if not stage.settling and rng.random() < 0.02:
            await trio.sleep(rng.uniform(0, 1))  # a client that does not read for a while
        for frame in await client.read():
            head = frame.head.headers
            if GAP_HEADER in head:
                merge(stream.vector, ledger.miss(name, stream.destination, head[GAP_HEADER]))
                continue
            message_id = ledger.match(name, head["destination"], frame.body)
            if message_id is None:
                continue
            stage.trace.note(f"{name} is told {message_id}")
            if head.get("x-id") != message_id:
                ledger.wrongs.append(f"I2 headers: {name} got {message_id} with x-id {head.get('x-id')}")
            if head["subscription"] == "f":
                ledger.follow(stream, dot_of(head["message-id"]), message_id)
                continue
            if message_id in seen_here:
                ledger.wrongs.append(f"topic twice: {name} got {message_id} again at {member.name}")
            seen_here.add(message_id)
            origin, _, number = head["message-id"].rpartition("-m")
            if int(number) < last.get(origin, 0):
                ledger.wrongs.append(f"topic order: {name} got {message_id} after a later one of {origin}")
            last[origin] = int(number)
