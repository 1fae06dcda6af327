"""Publishers: bursts to all kinds of destinations, some in transactions; every message once, with a receipt."""

import random

import trio

from qmq.wire.stomp import encode_frame
from tests.simulation.cluster import Member
from tests.simulation.ledger import Sent
from tests.simulation.stage import Stage
from tests.simulation.workloads.client import Client, GoneError, connected
from tests.simulation.workloads.names import FANOUTS, QUEUES, TOPICS, VALUE

RECEIPT_SECONDS = 1.5
"""An answer that takes longer is given up; the outcome is unknown then."""

GROUPS = 3

LEVELS = {"": 0, "accepted": 0, "fsync": 1, "replicas=1": 2, "replicas=2": 3}
"""On how many disks a message of a level is, when its receipt does not say otherwise."""

COPIED_FROM_NODES = 3
"""A mesh of so many nodes promises two disks by default."""


async def publish(stage: Stage, name: str) -> None:
    """Send for as long as the phase of faults lasts, to one node after the other."""
    rng = random.Random(f"{stage.plan.seed}/{name}")
    until = trio.current_time() + stage.plan.seconds
    number = 0
    while trio.current_time() < until:
        member = rng.choice([*stage.in_reach, *stage.forgetful])
        try:
            async with connected(stage, name, member) as client:
                connected_at = trio.current_time()
                while trio.current_time() < until and rng.random() > 0.06:
                    burst: list[Sent] = []
                    for _ in range(rng.randint(1, 6)):
                        number += 1
                        destination = draw_destination(rng)
                        burst.append(stage.ledger.send(name, number, member.name, destination, rng))
                    at_once = rng.random() < 0.2
                    for message in burst:
                        message.connected_at = connected_at
                        # In a transaction the strongest level of all counts.
                        # A level beyond what a mesh that changes has for a while would be refused then.
                        is_plain = at_once or stage.plan.newcomer or stage.forgetful
                        message.level = "" if is_plain else draw_level(rng)
                    await _send_burst(stage, name, member, client, burst, at_once)
                    await trio.sleep(rng.uniform(0.02, 0.7))
        except GoneError as gone:
            stage.trace.note(f"{name} lost {member.name}: {gone}")
        await trio.sleep(rng.uniform(0.01, 0.2))


async def _send_burst(
    stage: Stage, name: str, member: Member, client: Client, burst: list[Sent], at_once: bool
) -> None:
    """Send and wait for all receipts. `at_once`: in a transaction, so that all of them count or none."""
    waiting = {message.id: message for message in burst}
    stage.trace.note(f"{name} sends {burst[0].id}..{burst[-1].number} to {member.name}")
    frames: list[bytes] = []
    for message in burst:
        headers = [("destination", message.destination), ("receipt", message.id), ("x-id", message.id)]
        if message.destination == QUEUES[1]:
            headers.append(("JMSXGroupID", f"g{message.number % GROUPS}"))
        elif message.destination == QUEUES[0]:
            headers.append(("priority", str(message.number % 10)))
        if message.destination == VALUE:
            headers.append(("retain", "set"))
        if message.level:
            headers.append(("receipt-level", message.level))
        if at_once:
            message.transaction = burst[0].number
            headers.append(("transaction", "t"))
        frames.append(encode_frame("SEND", headers, message.body))
    if at_once:
        transaction = [("transaction", "t")]
        frames = [encode_frame("BEGIN", transaction), *frames, encode_frame("COMMIT", transaction)]
    with trio.move_on_after(RECEIPT_SECONDS):
        await client.send(*frames)
        while waiting:
            for frame in await client.read():
                if frame.head.command == "RECEIPT":
                    message = waiting.pop(frame.head.headers["receipt-id"])
                    assert member.node is not None
                    promised = LEVELS[message.level] or default_copies(stage)
                    copies = int(frame.head.headers.get("copies", promised))
                    level = frame.head.headers.get("receipt-level", message.level)
                    stage.ledger.receipt(message, member.node.origin, 0 if level == "accepted" else copies)
                    stage.trace.note(f"{name} has the receipt of {message.id}")
    if waiting:
        raise GoneError(f"{len(waiting)} outcomes unknown")


def default_copies(stage: Stage) -> int:
    """What a receipt means that says nothing more: three nodes or more promise two disks, where there always are."""
    if stage.plan.newcomer:
        return 1
    return 2 if len(stage.members) - len(stage.forgetful) >= COPIED_FROM_NODES else 1


def draw_level(rng: random.Random) -> str:
    """Mostly what the mesh has decided."""
    return rng.choice(list(LEVELS)) if rng.random() < 0.15 else ""


def draw_destination(rng: random.Random) -> str:
    """Mostly what must not be lost."""
    kinds = (FANOUTS, FANOUTS, FANOUTS, FANOUTS, FANOUTS, QUEUES, QUEUES, QUEUES, QUEUES, QUEUES, TOPICS, (VALUE,))
    return rng.choice(rng.choice(kinds))
