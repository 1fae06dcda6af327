"""The final check of interest: when everything has ended and agreed, does every node still reach every other?

A mesh can forget two things without losing a message: that a node has subscribers of a topic, and the last value of a
topic. So a client listens at every node from the beginning, through all its runs. In the end a message is published at
each node, every listener must get all of them, and all nodes must deliver the same last value to new subscribers.
"""

import trio

from qmq.wire.stomp import encode_frame
from tests.simulation.cluster import Member
from tests.simulation.stage import Stage
from tests.simulation.workloads.client import GoneError, connected
from tests.simulation.workloads.names import ROLL, VALUE

ANSWER_SECONDS = 10.0
"""More than a link takes to be dialled again."""

CALL_SECONDS = 0.5
POLL_SECONDS = 0.1


async def attend(stage: Stage, member: Member) -> None:
    """Listen at one node for ever, and come back at once when it does."""
    name = f"a-{member.name}"
    while True:
        try:
            async with connected(stage, name, member) as client:
                await client.send(encode_frame("SUBSCRIBE", [("destination", ROLL), ("id", "roll")]))
                while True:
                    for frame in await client.read():
                        if frame.head.command == "MESSAGE":
                            stage.ledger.answers.add((frame.body.decode(), member.name))
        except GoneError as gone:
            stage.trace.note(f"{name} lost its node: {gone}")
        await trio.sleep(POLL_SECONDS)


async def call_the_roll(stage: Stage) -> list[str]:
    """Returns who did not hear whom, and whose last value is another one.

    Links may still be on their way back, and topics are not repaired: so everyone calls until all have heard it.
    """
    ledger = stage.ledger
    missing = {(caller.name, subscriber.name) for caller in stage.members for subscriber in stage.members}
    values: dict[str, str] = {}
    with trio.move_on_after(ANSWER_SECONDS):
        async with trio.open_nursery() as callers:
            for member in stage.members:
                callers.start_soon(_call, stage, member, values)
            while not missing <= ledger.answers or len(values) < len(stage.members):  # noqa: ASYNC110  # looked at rarely
                await trio.sleep(POLL_SECONDS)
            callers.cancel_scope.cancel()
    silent = sorted(missing - ledger.answers)
    wrongs = [f"I21 roll: nobody at {subscriber} heard what was published at {caller}" for caller, subscriber in silent]
    if len({values.get(member.name) for member in stage.members}) > 1:
        wrongs.append(f"I13 value: nodes keep different last values: {values}")
    return wrongs


async def _call(stage: Stage, member: Member, values: dict[str, str]) -> None:
    """Ask `member` for the last value, and publish there until cancelled."""
    call = encode_frame("SEND", [("destination", ROLL)], member.name.encode())
    while True:
        try:
            async with connected(stage, f"r-{member.name}", member) as client:
                await client.send(encode_frame("SUBSCRIBE", [("destination", VALUE), ("id", "v")]))
                with trio.move_on_after(CALL_SECONDS):
                    while True:
                        for frame in await client.read():
                            values[member.name] = frame.head.headers["x-id"]
                values.setdefault(member.name, "none")
                while True:
                    await client.send(call)
                    await trio.sleep(CALL_SECONDS)
        except GoneError as gone:
            stage.trace.note(f"the roll call lost {member.name}: {gone}")
        await trio.sleep(POLL_SECONDS)
