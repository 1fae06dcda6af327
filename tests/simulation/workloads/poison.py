"""Messages that no consumer can process, and messages that expire soon, in queues and with consumers of their own.

Poison is refused, or its consumer dies of it, until it is a dead letter. What has a `ttl` is taken as it comes; the
books say how old it was.
"""

import random

import trio

from qmq.broker.queues.dead_letters import EXPIRED
from qmq.wire.stomp import Frame, encode_frame
from tests.simulation.cluster import Member
from tests.simulation.ledger import Sent, dot_of, id_of
from tests.simulation.stage import Stage
from tests.simulation.workloads.client import Client, GoneError, connected
from tests.simulation.workloads.names import DEAD, POISON, TIMED

LIMIT = 4
"""Deliveries of poison, as its consumers ask for."""

TTL_SECONDS = 4.0
RECEIPT_SECONDS = 1.5


async def make_trouble(stage: Stage, name: str) -> None:
    """Send poison and what soon expires, for as long as the phase of faults lasts."""
    rng = random.Random(f"{stage.plan.seed}/{name}")
    until = trio.current_time() + stage.plan.seconds
    number = 0
    while trio.current_time() < until:
        member = rng.choice(stage.in_reach)
        try:
            async with connected(stage, name, member) as client:
                connected_at = trio.current_time()
                for _ in range(rng.randint(1, 4)):
                    number += 1
                    destination = rng.choice((POISON, TIMED))
                    message = stage.ledger.send(name, number, member.name, destination, rng)
                    message.connected_at = connected_at
                    await _send(stage, message, member, client)
                    await trio.sleep(rng.uniform(0.05, 0.5))
        except GoneError as gone:
            stage.trace.note(f"{name} lost {member.name}: {gone}")
        await trio.sleep(rng.uniform(0.05, 0.5))


async def _send(stage: Stage, message: Sent, member: Member, client: Client) -> None:
    headers = [("destination", message.destination), ("receipt", message.id)]
    if message.destination == TIMED:
        headers.append(("ttl", str(int(TTL_SECONDS * 1000))))
        if not stage.plan.quiet:
            stage.ledger.consumed.add(message.id)  # it may expire before anybody can be reached
    with trio.move_on_after(RECEIPT_SECONDS):
        await client.send(encode_frame("SEND", headers, message.body))
        while True:
            for frame in await client.read():
                if frame.head.command == "RECEIPT":
                    assert member.node is not None
                    stage.ledger.receipt(message, member.node.origin, int(frame.head.headers.get("copies", 1)))
                    message.receipted_at = trio.current_time()
                    return
    raise GoneError("outcome unknown")


async def selector_cost(stage: Stage, name: str) -> None:
    """Consume all of it, at one node after the other; for ever."""
    rng = random.Random(f"{stage.plan.seed}/{name}")
    while True:
        member = rng.choice(stage.in_reach)
        try:
            async with connected(stage, name, member) as client:
                with trio.move_on_after(rng.uniform(0.5, 3)):
                    await _toil_at(stage, member, client, rng)
        except GoneError as gone:
            stage.trace.note(f"{name} lost {member.name}: {gone}")
        await trio.sleep(rng.uniform(0.01, 0.2))


async def _toil_at(stage: Stage, member: Member, client: Client, rng: random.Random) -> None:
    asks = [("delivery-limit", str(LIMIT)), ("redelivery-delay", "0.5"), ("prefetch-count", "2")]
    for queue in (POISON, TIMED, DEAD):
        headers = [("destination", queue), ("id", queue), ("ack", "client-individual")]
        await client.send(encode_frame("SUBSCRIBE", [*headers, *(asks if queue == POISON else [])]))
    ledger = stage.ledger
    while True:
        for frame in await client.read():
            if frame.head.command != "MESSAGE":
                raise GoneError("refused")
            destination, message_id = frame.head.headers["destination"], id_of(frame.body)
            sent = ledger.sent.get(message_id)
            if sent is None or sent.body != frame.body:
                ledger.wrongs.append(f"I2 invented: {frame.body[:40]!r} in {destination}, which nobody sent")
                continue
            stage.trace.note(f"{member.name} gives {message_id} of {destination}")
            ledger.consumed.add(message_id)
            ledger.note_mark(frame.head.headers)
            if destination == POISON:
                ledger.tries[message_id] = ledger.tries.get(message_id, 0) + 1
                count = int(frame.head.headers.get("delivery-count", "1"))
                if count < ledger.counts.get(message_id, 0):
                    ledger.rejuvenated.append((message_id, ledger.counts[message_id], count))
                ledger.counts[message_id] = count
                if rng.random() < 0.2:
                    ledger.deaths[message_id] = ledger.deaths.get(message_id, 0) + 1
                    return
                await client.send(encode_frame("NACK", [("id", frame.head.headers["ack"])]))
                continue
            if destination == DEAD:
                ledger.letters.setdefault(message_id, set()).add(frame.head.headers["message-id"])
                is_late = frame.head.headers.get("dead-letter-reason") == EXPIRED
                if is_late and all(node.lives == 1 for node in stage.members):
                    ledger.expired.setdefault(message_id, trio.current_time() - sent.at)
            else:
                _note_age(stage, frame, message_id)
            await client.send(encode_frame("ACK", [("id", frame.head.headers["ack"])]))


def _note_age(stage: Stage, frame: Frame, message_id: str) -> None:
    """How long after its acceptance a message with a `ttl` came, at least; of owners that still live their first life,
    for another one has another clock. So has a server that has never heard the owner, if that is dead."""
    owner = stage.by_name[dot_of(frame.head.headers["message-id"]).origin.node]
    sent = stage.ledger.sent[message_id]
    heard = owner.is_alive or all(member.born_at <= sent.receipted_at for member in stage.members if member.is_alive)
    if owner.lives == 1 and heard and sent.receipted_at:
        age = trio.current_time() - sent.receipted_at
        stage.ledger.ages[message_id] = max(age, stage.ledger.ages.get(message_id, 0.0))
