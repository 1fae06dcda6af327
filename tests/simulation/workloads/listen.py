"""Listeners: they subscribe to the topics at one node in the beginning, and stay. For a mesh without faults."""

import trio

from qmq.wire.stomp import encode_frame
from tests.simulation.cluster import Member
from tests.simulation.stage import Stage
from tests.simulation.workloads.client import GoneError, connected
from tests.simulation.workloads.names import TOPICS, VALUE

RETRY_SECONDS = 0.05
"""Nodes open their ports when they know what their peers want, or after a second."""


async def listen(stage: Stage, name: str, member: Member) -> None:
    """Listen for ever."""
    seen = stage.ledger.listeners.setdefault(name, set())
    while True:
        try:
            await _listen(stage, name, member, seen)
        except GoneError as gone:
            if "nobody listens" not in str(gone):
                raise
        await trio.sleep(RETRY_SECONDS)


async def _listen(stage: Stage, name: str, member: Member, seen: set[str]) -> None:
    async with connected(stage, name, member) as client:
        await client.send(*(encode_frame("SUBSCRIBE", [("destination", t), ("id", t)]) for t in (*TOPICS, VALUE)))
        while True:
            for frame in await client.read():
                message_id = stage.ledger.match(name, frame.head.headers["destination"], frame.body)
                if message_id is not None:
                    seen.add(message_id)
