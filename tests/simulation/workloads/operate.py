"""Operators: at one node after the other they change definitions, declare queues and exchanges, and purge, move,
redrive, delete and pause queues.

Each waits for the answer before the next request. When the faults have ended one of them undoes what would keep
messages in their queues.
"""

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

import trio

from qmq.definitions.definition import Key
from qmq.model.dots import Vector, covers, merge
from qmq.node.node import Node
from qmq.settings.definitions.paused_queues import KINDS as PAUSES
from qmq.wire.stomp import encode_frame
from tests.simulation.cluster import Member
from tests.simulation.operations import (
    BURIED,
    DECLARED,
    DEFINED,
    GUARDED,
    GUEST,
    GUEST_HASH,
    OPERATED,
    READER,
    UNKNOWN_SECONDS,
    VISITED,
    Change,
    Declaring,
)
from tests.simulation.routing import BINDINGS, EXCHANGES, Row
from tests.simulation.stage import Stage
from tests.simulation.workloads.client import GoneError, connected

ANSWER_SECONDS = 6.0
"""More than a job waits for the nodes that are missing."""

LOOK_SECONDS = 0.1

REFUSALS = (
    "unknown-definition",
    "not-serving",
    "queue-paused",
    "not-allowed",
    "declared-otherwise",
    "bad-definition",
    "exchange-in-use",
    "unknown-destination",
)

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
    is_routed = False
    actions = (_define, _pause, _settle_in_bulk, _guard, _invite, _route, _declare)
    while trio.current_time() < until:
        member = rng.choice(stage.in_reach)
        number += 1
        try:
            if not is_routed:
                await _route_all(stage, name, member, rng)
                is_routed = True
            await rng.choices(actions, (4, 1, 9, 2, 1, 2, 4))[0](stage, name, member, rng, number)
        except GoneError as gone:
            stage.trace.note(f"{name} lost {member.name}: {gone}")
        await trio.sleep(rng.uniform(0.02, 0.2))


async def _define(stage: Stage, name: str, member: Member, rng: random.Random, number: int) -> None:
    """Change or delete a policy; each value is another one."""
    queue = rng.choice((*DEFINED, OPERATED[0]))
    key = "retention_bytes" if queue.startswith("/fanout/") else "delivery_limit"
    value = {key: 1000 * (1 + int(name[1:])) + number}
    quorum = rng.random() < 0.3
    await _change(stage, name, member, Key("policy", queue), value if rng.random() < 0.6 else None, quorum=quorum)


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


async def _invite(stage: Stage, name: str, member: Member, rng: random.Random, number: int) -> None:
    """Add the guest, or delete it."""
    value = {"password_hash": GUEST_HASH, "groups": ["client"]}
    await _change(stage, name, member, Key("user", GUEST), value if rng.random() < 0.5 else None)


async def _route(stage: Stage, name: str, member: Member, rng: random.Random, number: int) -> None:
    """Bind a queue, or unbind it; declare an exchange, or delete it with its bindings."""
    if rng.random() < 0.2:
        exchange = rng.choice(list(EXCHANGES))
        verb, headers = ("delete", {}) if rng.random() < 0.4 else ("declare", dict(EXCHANGES[exchange]))
        await _request(stage, name, member, f"{verb}/exchange/{exchange}", headers)
    else:
        await _bind(stage, name, member, rng.choice(("bind", "bind", "unbind")), rng.choice(BINDINGS))


async def _route_all(stage: Stage, name: str, member: Member, rng: random.Random) -> None:
    """Declare all exchanges, and bind most of what can be bound."""
    for exchange in EXCHANGES:
        await _request(stage, name, member, f"declare/exchange/{exchange}", dict(EXCHANGES[exchange]))
    for row in rng.sample(BINDINGS, 2 * len(BINDINGS) // 3):
        await _bind(stage, name, member, "bind", row)


async def _bind(stage: Stage, name: str, member: Member, verb: str, row: Row) -> None:
    source, queue, key, arguments = row
    body = json.dumps(arguments).encode() if arguments else b""
    await _request(stage, name, member, f"{verb}{queue}", {"source": source, "key": key}, body)


async def _declare(stage: Stage, name: str, member: Member, rng: random.Random, number: int) -> None:
    """Declare a queue, or delete it with its messages."""
    queue = rng.choice(DECLARED)
    if rng.random() < 0.35:
        await _request(stage, name, member, f"delete{queue}", {})
        return
    body = json.dumps({"delivery_limit": rng.randint(3, 4)}).encode()
    began = trio.current_time()
    declaring = Declaring(queue, began, began + UNKNOWN_SECONDS)
    stage.ledger.operations.declaring.append(declaring)
    headers = {"replace": "true"} if rng.random() < 0.7 else {}
    await _request(stage, name, member, f"declare{queue}", headers, body)
    declaring.ended = trio.current_time()


async def _change(
    stage: Stage, name: str, member: Member, key: Key, value: dict[str, Any] | None, *, quorum: bool = False
) -> None:
    """Define `key`, or delete it; note the version of a change that is confirmed."""
    path = f"{key.kind}{key.name}" if key.name.startswith("/") else f"{key.kind}/{key.name}"
    verb = "delete" if value is None else "put"
    body = b"" if value is None else json.dumps(value).encode()
    headers = {"quorum": "true"} if quorum else {}
    facts = await _request(stage, name, member, f"definitions/{verb}/{path}", headers, body)
    assert member.node is not None
    now = member.node.settings_parts.definitions.table.by_key.get(key)
    if now is not None and now.value == value:
        is_on_majority = facts.get("quorum") == "true"
        stage.ledger.operations.changes.append(Change(key, now.version, member.name, is_on_majority))


async def _request(
    stage: Stage, name: str, member: Member, request: str, headers: dict[str, str], body: bytes = b""
) -> Mapping[str, str]:
    """What the receipt says. Raises GoneError when it is refused, or its outcome is unknown."""
    stage.trace.note(f"{name} asks {member.name}: {request} {headers}")
    async with connected(stage, name, member, refusals=REFUSALS) as client:
        with trio.move_on_after(ANSWER_SECONDS):
            asked = [("destination", f"/control/{request}"), ("receipt", "r"), *headers.items()]
            await client.send(encode_frame("SEND", asked, body))
            said = (await client.receipt()).head.headers
            facts = {key: text for key, text in said.items() if key in ("messages", "nodes-missing", "quorum")}
            stage.trace.note(f"{member.name} has done {request}: {facts}")
            return facts
    raise GoneError(f"the outcome of {request} is unknown")


async def restore(stage: Stage, name: str) -> None:
    """When every node has the records of all others, resume the queues and give the rights back. When the nodes have
    also dropped what deletions take, even of a node that has left, all is done."""
    operations = stage.ledger.operations
    await _until(lambda: stage.settling and all(member.up for member in stage.members))
    await _until_alike(stage)
    rng = random.Random(f"{stage.plan.seed}/{name}")
    pauses = [Key(kind, queue) for kind in PAUSES for queue in OPERATED]
    for key in pauses + [Key("permission", denial) for denial, _ in DENIALS]:
        while any(_has(member, key) for member in stage.members):
            member = rng.choice(stage.in_reach)
            try:
                if _has(member, key):
                    await _change(stage, name, member, key, None)
            except GoneError as gone:
                stage.trace.note(f"{name} lost {member.name}: {gone}")
            await trio.sleep(LOOK_SECONDS)
    await _until_alike(stage)
    for queue in _never_ending(stage):
        while any(_has(member, Key("queue", queue)) for member in stage.members):
            try:
                await _request(stage, name, rng.choice(stage.in_reach), f"delete{queue}", {})
            except GoneError as gone:
                stage.trace.note(f"{name} could not delete {queue}: {gone}")
            await trio.sleep(LOOK_SECONDS)
    await _until_alike(stage)
    await _until(lambda: stage.leaving is None or _is_adopted(stage, stage.leaving.name))
    nodes = [member.node for member in stage.members if member.node is not None]
    await _until(lambda: not any(may_drop(node) for node in nodes))
    operations.is_clock_in_doubt = any(node.mesh_parts.clock_check.in_doubt for node in nodes)
    operations.is_restored = True
    stage.trace.note("operators have restored what they had changed")


def may_drop(node: Node) -> bool:
    """Whether the node may drop messages of deleted queues without another change. One that gets its messages back from
    the node that served them drops what is older only then."""
    queues = node.broker.queues
    if queues.held or not queues.serves_own:
        return True
    return node.settings_parts.deleted_queues.is_running and not node.mesh_parts.clock_check.in_doubt


def _never_ending(stage: Stage) -> list[str]:
    """Queues that are deleted with their last consumer, if that never came or its node has been restarted since. Other
    nodes may not have heard of it."""
    born = {member.name: member.born_at for member in stage.members}
    tables = [member.node.settings_parts.definitions.table for member in stage.members if member.node is not None]
    found = {one.key.name for table in tables for one in table.of_kind("queue") if (one.value or {}).get("auto_delete")}

    def is_forgotten(queue: str) -> bool:
        node, at = stage.ledger.operations.consumed_at.get(queue, ("", 0.0))
        return at <= born.get(node, at)

    return sorted(name for name in found if name.startswith(VISITED) and is_forgotten(name))


def _has(member: Member, key: Key) -> bool:
    return member.node is not None and member.node.settings_parts.definitions.table.get(key) is not None


def _is_adopted(stage: Stage, left: str) -> bool:
    """Whether its adopter has nothing of this node any more: with a deleted queue it drops only what is its own."""
    for node in [member.node for member in stage.members if member.node is not None]:
        if left in node.membership.adopted_by(node.origin.node):
            needs = {origin: last for origin, last in node.engine.path.durable_vector().items() if origin.node == left}
            return covers(node.store.stored_vector, needs) and node.store.queues.is_empty(left)
    return False


async def _until_alike(stage: Stage) -> None:
    """Wait until what was recorded until now is on every node."""
    needs: Vector = {}
    for member in stage.members:
        merge(needs, member.vector())
    await _until(lambda: all(covers(member.vector(), needs) for member in stage.members))


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # looked at rarely
        await trio.sleep(LOOK_SECONDS)
