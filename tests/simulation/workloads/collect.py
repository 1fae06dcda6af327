"""A consumer that comes late: when every node has the records of all others. It counts the records of each message."""

import random
from collections.abc import Callable

import trio

from qmq.model.dots import Vector, covers, merge
from qmq.wire.stomp import encode_frame
from tests.simulation.ledger import Ledger
from tests.simulation.stage import Stage
from tests.simulation.workloads.client import Client, GoneError, connected
from tests.simulation.workloads.names import INSISTED_QUEUE

LOOK_SECONDS = 0.1


async def collect(stage: Stage, name: str) -> None:
    """Consume what `insist` has sent to its queue, at one node after the other; for ever."""
    rng = random.Random(f"{stage.plan.seed}/{name}")
    await _until_known_everywhere(stage)
    while True:
        member = rng.choice(stage.in_reach)
        try:
            async with connected(stage, name, member) as client:
                await _collect(stage, name, client)
        except GoneError as gone:
            stage.trace.note(f"{name} lost {member.name}: {gone}")
        await trio.sleep(rng.uniform(0.01, 0.3))


async def _until_known_everywhere(stage: Stage) -> None:
    """Wait until all is confirmed, and what was recorded until then is on every node."""
    await _until(lambda: stage.settling and all(member.up for member in stage.members))
    await _until(lambda: _is_confirmed(stage.ledger))
    needs: Vector = {}
    for member in stage.members:
        merge(needs, member.vector())
    await _until(lambda: all(covers(member.vector(), needs) for member in stage.members))


def _is_confirmed(ledger: Ledger) -> bool:
    return all(sent.receipted_by is not None for sent in ledger.sent.values() if sent.destination == INSISTED_QUEUE)


async def _until(condition: Callable[[], bool]) -> None:
    while True:
        if condition():
            return
        await trio.sleep(LOOK_SECONDS)


async def _collect(stage: Stage, name: str, client: Client) -> None:
    headers = [("destination", INSISTED_QUEUE), ("id", "q"), ("ack", "client-individual"), ("prefetch-count", "5")]
    await client.send(encode_frame("SUBSCRIBE", headers))
    ledger = stage.ledger
    while True:
        for frame in await client.read():
            head = frame.head.headers
            message_id = ledger.match(name, INSISTED_QUEUE, frame.body)
            if message_id is None:
                continue
            stage.trace.note(f"{name} is given {message_id} as {head['message-id']}")
            ledger.note_mark(head)
            ledger.records_given.setdefault(message_id, {})[head["message-id"]] = "dedup-retry" in head
            ledger.consumed.add(message_id)
            await client.send(encode_frame("ACK", [("id", head["ack"])]))
