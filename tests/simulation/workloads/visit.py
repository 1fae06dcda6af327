"""Clients whose queues end with them, or after them; one with a durable subscription of a topic; and a guest.

They come and go at one node after the other while the faults last. `checks.lifetimes` says what must be left of them.
"""

import json
import random

import trio

from qmq.definitions.definition import Key
from qmq.wire.stomp import encode_frame
from tests.simulation.cluster import Member
from tests.simulation.ledger import dot_of
from tests.simulation.operations import GUEST, VISITED, Given
from tests.simulation.routing import FOLLOWED, SENDS, SOURCE
from tests.simulation.stage import Stage
from tests.simulation.workloads.client import GoneError, connected
from tests.simulation.workloads.serve_operated import version_of

ANSWER_SECONDS = 1.5

RIGHT_SECONDS = 1.0
"""In which a node obeys a definition that it has."""

STAY_SECONDS = 2.0
"""At most: far less than a node may be silent before its consumers count as gone."""

LIVES = (
    {"exclusive_to_connection": True},
    {"exclusive_to_connection": True, "durable": False},
    {"auto_delete": True},
    {"expires_seconds": 1},
)

FOLLOWER = [
    ("id", "followed"),
    ("destination", SOURCE),
    ("durable", "true"),
    ("x-queue-name", FOLLOWED.removeprefix("/queue/")),
]


async def visit(stage: Stage, name: str) -> None:
    """Declare a queue that is not to stay, use it, and leave."""
    rng = random.Random(f"{stage.plan.seed}/{name}")
    number = 0
    while not stage.settling:
        member = rng.choice(stage.in_reach)
        number += 1
        try:
            await _use(stage, f"{VISITED}{name}-{number}", name, number, member, rng)
        except GoneError as gone:
            stage.trace.note(f"{name} lost {member.name}: {gone}")
        await trio.sleep(rng.uniform(0.1, 1.0))


async def _use(stage: Stage, queue: str, name: str, number: int, member: Member, rng: random.Random) -> None:
    life = rng.choice(LIVES)
    async with connected(stage, name, member) as client:
        with trio.move_on_after(ANSWER_SECONDS + STAY_SECONDS):
            stage.trace.note(f"{name} declares {queue} at {member.name}: {life}")
            asked = [("destination", f"/control/declare{queue}"), ("receipt", "declared")]
            await client.send(encode_frame("SEND", asked, json.dumps(life).encode()))
            await client.receipt()
            if "expires_seconds" not in life:
                await client.send(encode_frame("SUBSCRIBE", [("destination", queue), ("id", "q"), ("receipt", "in")]))
                await client.receipt()
                stage.ledger.operations.consumed_at[queue] = member.name, trio.current_time()
            message = stage.ledger.send(name, number, member.name, queue, rng)
            await client.send(encode_frame("SEND", [("destination", queue)], message.body))
            await trio.sleep(rng.uniform(0, STAY_SECONDS))
            if "expires_seconds" not in life:
                # An ERROR, if the queue does not exist any more.
                asked = [("destination", f"/control/declare{queue}"), ("receipt", "still"), ("passive", "true")]
                await client.send(encode_frame("SEND", asked))
                await client.receipt()
            if rng.random() < 0.5:
                await client.send(encode_frame("DISCONNECT", [("receipt", "left")]))
                await client.receipt()


async def follow_durably(stage: Stage, name: str) -> None:
    """Read some of a durable subscription, and sometimes delete it."""
    rng = random.Random(f"{stage.plan.seed}/{name}")
    while not stage.settling:
        member = rng.choice(stage.in_reach)
        try:
            async with connected(stage, name, member) as client:
                since = trio.current_time()
                await client.send(
                    encode_frame("SUBSCRIBE", [*FOLLOWER, ("ack", "client-individual"), ("prefetch-count", "3")])
                )
                stage.trace.note(f"{name} follows at {member.name}")
                with trio.move_on_after(rng.uniform(0.2, STAY_SECONDS)):
                    while True:
                        for frame in await client.read():
                            head = frame.head.headers
                            message_id = stage.ledger.match_moved(name, SENDS, frame.body)
                            if frame.head.command != "MESSAGE" or message_id is None:
                                continue
                            stage.ledger.note_mark(head)
                            given = Given(message_id, FOLLOWED, dot_of(head["message-id"]), member.name, since, False)
                            stage.ledger.operations.given.append(given)
                            await client.send(encode_frame("ACK", [("id", head["ack"])]))
                if rng.random() < 0.3:
                    stage.trace.note(f"{name} deletes its subscription at {member.name}")
                    await client.send(encode_frame("UNSUBSCRIBE", [*FOLLOWER, ("receipt", "deleted")]))
                    with trio.move_on_after(2 * ANSWER_SECONDS):
                        await client.receipt()
        except GoneError as gone:
            stage.trace.note(f"{name} lost {member.name}: {gone}")
        await trio.sleep(rng.uniform(0.1, 1.5))


async def log_in_as_guest(stage: Stage, name: str) -> None:
    """Come as the user that operators add and delete."""
    rng = random.Random(f"{stage.plan.seed}/{name}")
    while not stage.settling:
        member = rng.choice(stage.in_reach)
        began = trio.current_time()
        try:
            refusals = ("login-failed", "user-removed")
            async with connected(stage, name, member, user=GUEST, refusals=refusals) as client:
                _judge(stage, name, member, began, is_in=True)
                await trio.sleep(rng.uniform(0, STAY_SECONDS))
                asked_at = trio.current_time()
                asked = [("destination", "/topic/guest"), ("id", "v"), ("receipt", "in")]
                await client.send(encode_frame("SUBSCRIBE", asked))
                with trio.move_on_after(ANSWER_SECONDS):
                    await client.receipt()
                    _judge(stage, name, member, asked_at, is_in=True)
        except GoneError as gone:
            if str(gone) in refusals:
                # It may have been removed at any time since it came: it did not read meanwhile.
                _judge(stage, name, member, began, is_in=False)
        await trio.sleep(rng.uniform(0.05, 0.6))


def _judge(stage: Stage, name: str, member: Member, began: float, *, is_in: bool) -> None:
    """P3, where the node has had the same definition of the user for a while before `began` and until now."""
    operations = stage.ledger.operations
    operations.invite(member.name, version_of(member, Key("user", GUEST)))
    version, since = operations.guests[member.name]
    is_certain = since + RIGHT_SECONDS < began and member.is_alive and member.node is not None
    if is_certain and member.born_at + RIGHT_SECONDS < began and (version is not None) is not is_in:
        is_so = "in" if is_in else "refused"
        stage.ledger.wrongs.append(f"P3 guest: {name} is {is_so} at {member.name}, which has {version} since {since}")
