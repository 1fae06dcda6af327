"""Consumers that keep what they are given for seconds before they acknowledge it, and a publisher for them."""

import random
from dataclasses import dataclass

import trio

from qmq.wire.stomp import encode_frame
from tests.simulation.cluster import Member
from tests.simulation.stage import Stage
from tests.simulation.workloads.client import Client, GoneError, connected
from tests.simulation.workloads.names import HELD

PREFETCH = 10
RECEIPT_SECONDS = 1.5


async def supply(stage: Stage, name: str) -> None:
    """Send for as long as the phase of faults lasts."""
    rng = random.Random(f"{stage.plan.seed}/{name}")
    until = trio.current_time() + stage.plan.seconds
    number = 0
    while trio.current_time() < until:
        member = rng.choice(stage.in_reach)
        try:
            async with connected(stage, name, member) as client:
                for _ in range(rng.randint(2, 6)):
                    number += 1
                    await _send(stage, name, number, member, client, rng)
        except GoneError as gone:
            stage.trace.note(f"{name} lost {member.name}: {gone}")
        await trio.sleep(rng.uniform(0.2, 1.0))


async def _send(stage: Stage, name: str, number: int, member: Member, client: Client, rng: random.Random) -> None:
    message = stage.ledger.send(name, number, member.name, HELD, rng)
    with trio.move_on_after(RECEIPT_SECONDS):
        await client.send(encode_frame("SEND", [("destination", HELD), ("receipt", message.id)], message.body))
        while True:
            for frame in await client.read():
                assert member.node is not None
                stage.ledger.receipt(message, member.node.origin, int(frame.head.headers.get("copies", 1)))
                return
    raise GoneError("outcome unknown")


async def hold(stage: Stage, name: str) -> None:
    """Consume, at one node after the other; for ever."""
    rng = random.Random(f"{stage.plan.seed}/{name}")
    while True:
        member = rng.choice(stage.in_reach)
        mine: set[str] = set()
        try:
            async with connected(stage, name, member) as client:
                who = Holder(name, member, member.lives)
                await _hold(stage, who, client, mine, rng, rng.uniform(6, 10))
        except* GoneError as gone:
            stage.trace.note(f"{name} lost {member.name}: {gone.exceptions[0]}")
        finally:
            for message_id in mine:
                stage.ledger.outstanding.pop(message_id, None)
        await trio.sleep(rng.uniform(0.01, 0.3))


@dataclass(frozen=True, slots=True)
class Holder:
    """A consumer at one life of a node."""

    name: str
    member: Member
    life: int

    def __str__(self) -> str:
        return f"{self.name} at {self.member.name}"

    @property
    def is_gone(self) -> bool:
        """Its node is, although nobody may have told it."""
        return not self.member.is_alive or self.member.lives != self.life


async def _hold(stage: Stage, who: Holder, client: Client, mine: set[str], rng: random.Random, stay: float) -> None:
    headers = [("destination", HELD), ("id", "h"), ("ack", "client-individual"), ("prefetch-count", str(PREFETCH))]

    async def settle(message_id: str, ack: str, after: float) -> None:
        await trio.sleep(after)
        mine.discard(message_id)
        stage.ledger.outstanding.pop(message_id, None)
        stage.ledger.consumed.add(message_id)
        await client.send(encode_frame("ACK", [("id", ack)]))

    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.deadline = trio.current_time() + stay
        await client.send(encode_frame("SUBSCRIBE", headers))
        while True:
            for frame in await client.read():
                message_id = stage.ledger.match(str(who), HELD, frame.body)
                if message_id is None:
                    continue
                stage.trace.note(f"{who} is given {message_id}")
                stage.ledger.note_mark(frame.head.headers)
                other = stage.ledger.outstanding.get(message_id)
                if isinstance(other, Holder) and other.is_gone:
                    del stage.ledger.outstanding[message_id]
                stage.ledger.take_in_hand(message_id, who)
                mine.add(message_id)
                after = 0.05 if stage.settling else rng.uniform(1, 4)
                nursery.start_soon(settle, message_id, frame.head.headers["ack"], after)
