"""Operators: at one node after the other they change definitions, and purge, move, redrive, delete and pause queues.

Each waits for the answer before the next request. When the faults have ended one of them undoes what would keep
messages in their queues.
"""

import json
import random
from collections.abc import Callable
from typing import Any

import trio

from qmq.definitions.definition import Key
from qmq.dots import Vector, covers, merge
from qmq.wire.stomp import Frame, encode_frame
from tests.simulation.cluster import Member
from tests.simulation.operations import BOUND, BURIED, DEFINED, GUARDED, OPERATED, READER, SOURCE, Change
from tests.simulation.stage import Stage
from tests.simulation.workloads.client import Client, GoneError, connected

ANSWER_SECONDS = 6.0
"""More than a job waits for the nodes that are missing."""

LOOK_SECONDS = 0.1

REFUSALS = ("unknown-definition", "not-serving", "queue-paused", "not-allowed")

DENIALS: tuple[tuple[str, dict[str, Any]], ...] = tuple(
    (f"user:{READER} deny {actions} {GUARDED}", {"user": READER, "deny": actions.split(","), "destinations": [GUARDED]})
    for actions in ("send,subscribe", "subscribe")
)
"""Permissions, by the names of their definitions, that take rights of the user away."""

SELECTOR = "\"x-kind\" = 'k1'"


async def operate(stage: Stage, name: str) -> None:
    """Administer for as long as the phase of faults lasts."""
    rng = random.Random(f"{stage.plan.seed}/{name}")
    until = trio.current_time() + stage.plan.seconds
    number = 0
    while trio.current_time() < until:
        member = rng.choice(stage.in_reach)
        number += 1
        try:
            await rng.choices((_define, _pause, _settle_in_bulk, _guard, _bind), (5, 1, 9, 2, 2))[0](
                stage, name, member, rng, number
            )
        except GoneError as gone:
            stage.trace.note(f"{name} lost {member.name}: {gone}")
        await trio.sleep(rng.uniform(0.02, 0.2))


async def _define(stage: Stage, name: str, member: Member, rng: random.Random, number: int) -> None:
    """Change or delete a policy; each value is another one."""
    queue = rng.choice((*DEFINED, OPERATED[0]))
    key = "retention_bytes" if queue.startswith("/fanout/") else "delivery_limit"
    value = {key: 1000 * (1 + int(name[1:])) + number}
    await _change(stage, name, member, Key("policy", queue), value if rng.random() < 0.6 else None)


async def _guard(stage: Stage, name: str, member: Member, rng: random.Random, number: int) -> None:
    """Take rights away, or give them back."""
    permission, value = rng.choice(DENIALS)
    await _change(stage, name, member, Key("permission", permission), value if rng.random() < 0.5 else None)


async def _pause(stage: Stage, name: str, member: Member, rng: random.Random, number: int) -> None:
    """Pause a part of a queue, and mostly resume it at another node."""
    queue = rng.choice(OPERATED)
    part = rng.choice(("delivery", "delivery", "acceptance"))
    await _request(stage, name, member, f"pause{queue}", {"part": part})
    if part == "acceptance" or rng.random() < 0.5:
        await trio.sleep(rng.uniform(0, 0.3))
        await _request(stage, name, rng.choice(stage.in_reach), f"resume{queue}", {"part": part})


async def _settle_in_bulk(stage: Stage, name: str, member: Member, rng: random.Random, number: int) -> None:
    """Purge, move, redrive or delete."""
    verb = rng.choices(("purge", "move", "redrive", "delete"), (3, 7, 4, 1))[0]
    queue, target = rng.choice((OPERATED, OPERATED[::-1]))
    headers = {"scope": rng.choice(("mesh", "mesh", "node"))}
    if verb == "redrive":
        queue = BURIED
    elif verb == "delete":
        headers["force"] = "true"
    elif verb == "move":
        headers["to"] = target
    if verb in ("purge", "move"):
        if rng.random() < 0.4:
            headers["selector"] = SELECTOR
        if rng.random() < 0.4:
            headers["count"] = str(rng.randint(1, 8))
    await _request(stage, name, member, f"{verb}{queue}", headers)


async def _bind(stage: Stage, name: str, member: Member, rng: random.Random, number: int) -> None:
    """Bind a queue to its source, or unbind it."""
    verb = rng.choice(("bind", "bind", "unbind"))
    await _request(stage, name, member, f"{verb}{rng.choice(BOUND)}", {"source": SOURCE})


async def _change(stage: Stage, name: str, member: Member, key: Key, value: dict[str, Any] | None) -> None:
    """Define `key`, or delete it; note the version of a change that is confirmed."""
    path = f"{key.kind}{key.name}" if key.name.startswith("/") else f"{key.kind}/{key.name}"
    verb = "delete" if value is None else "put"
    body = b"" if value is None else json.dumps(value).encode()
    await _request(stage, name, member, f"definitions/{verb}/{path}", {}, body)
    assert member.node is not None
    now = member.node.definitions.table.by_key.get(key)
    if now is not None and now.value == value:
        stage.ledger.operations.changes.append(Change(key, now.version, member.name))


async def _request(
    stage: Stage, name: str, member: Member, request: str, headers: dict[str, str], body: bytes = b""
) -> None:
    """Returns when it is confirmed. Raises GoneError when it is refused, or its outcome is unknown."""
    stage.trace.note(f"{name} asks {member.name}: {request} {headers}")
    async with connected(stage, name, member, refusals=REFUSALS) as client:
        with trio.move_on_after(ANSWER_SECONDS):
            said = [("destination", f"/control/{request}"), ("receipt", "r"), *headers.items()]
            await client.send(encode_frame("SEND", said, body))
            answer = await _receipt(client)
            facts = {key: text for key, text in answer.head.headers.items() if key in ("messages", "nodes-missing")}
            stage.trace.note(f"{member.name} has done {request}: {facts}")
            return
    raise GoneError(f"the outcome of {request} is unknown")


async def _receipt(client: Client) -> Frame:
    while True:
        for frame in await client.read():
            if frame.head.command == "RECEIPT":
                return frame


async def restore(stage: Stage, name: str) -> None:
    """When every node has the records of all others, resume the queues and give the rights back; then all is done."""
    operations = stage.ledger.operations
    await _until(lambda: stage.settling and all(member.up for member in stage.members))
    await _until_alike(stage)
    rng = random.Random(f"{stage.plan.seed}/{name}")
    for key in [Key("pause", queue) for queue in OPERATED] + [Key("permission", denial) for denial, _ in DENIALS]:
        while any(_has(member, key) for member in stage.members):
            member = rng.choice(stage.in_reach)
            try:
                if _has(member, key):
                    await _change(stage, name, member, key, None)
            except GoneError as gone:
                stage.trace.note(f"{name} lost {member.name}: {gone}")
            await trio.sleep(LOOK_SECONDS)
    await _until_alike(stage)
    operations.is_restored = True
    stage.trace.note("operators have restored what they had changed")


def _has(member: Member, key: Key) -> bool:
    return member.node is not None and member.node.definitions.table.get(key) is not None


async def _until_alike(stage: Stage) -> None:
    """Wait until what was recorded until now is on every node."""
    needs: Vector = {}
    for member in stage.members:
        merge(needs, member.vector())
    await _until(lambda: all(covers(member.vector(), needs) for member in stage.members))


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # looked at rarely
        await trio.sleep(LOOK_SECONDS)
