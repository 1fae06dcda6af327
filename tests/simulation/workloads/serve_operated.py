"""Publishers and consumers of the queues that operators administer, and the user whose rights change.

While faults last, consumers work on some messages and bury others. Then all messages stay where they are, until every
node has the records of all others and operators have undone what they had changed. Only then the rest is collected, so
each message that is left is given once.
"""

import random
from collections.abc import Mapping, Sequence

import trio

from qmq.definitions.definition import Key, Version
from qmq.wire.stomp import encode_frame
from tests.simulation.cluster import Member
from tests.simulation.ledger import Sent, dot_of
from tests.simulation.operations import BURIED, DECLARED, GUARDED, GUEST, OPERATED, READER, Given
from tests.simulation.routing import COPIED, DECIDING, SENDS, part_of, queues_of, versions_for
from tests.simulation.stage import Stage
from tests.simulation.workloads.client import Client, GoneError, connected
from tests.simulation.workloads.operate import DENIALS
from tests.simulation.workloads.publish import default_copies

RECEIPT_SECONDS = 1.5
LOOK_SECONDS = 0.05

RIGHT_SECONDS = 1.0
"""In which a node obeys a permission that it has."""

ROUTED_SECONDS = 0.5
"""In which a node copies by a binding that it has."""

KINDS = 3
"""Of messages: every third one is of one kind, for selectors."""

URGENT = 5
"""Every fifth message is urgent."""


async def supply_operated(stage: Stage, name: str, destinations: Sequence[str]) -> None:
    """Send for as long as the phase of faults lasts."""
    rng = random.Random(f"{stage.plan.seed}/{name}")
    until = trio.current_time() + stage.plan.seconds
    number = 0
    while trio.current_time() < until:
        member = rng.choice(stage.in_reach)
        try:
            async with connected(stage, name, member, refusals=("queue-paused", "unknown-destination")) as client:
                connected_at = trio.current_time()
                while trio.current_time() < until and rng.random() > 0.1:
                    burst: list[Sent] = []
                    chosen = [rng.choice(destinations) for _ in range(rng.randint(2, 8))]
                    # A refusal of one message takes the rest of its burst with it.
                    for destination in chosen[:1] * len(chosen) if chosen[0] in SENDS else chosen:
                        number += 1
                        message = stage.ledger.send(name, number, member.name, destination, rng)
                        message.connected_at = connected_at
                        burst.append(message)
                    await _send(stage, member, client, burst)
                    await trio.sleep(rng.uniform(0.02, 0.4))
        except GoneError as gone:
            stage.trace.note(f"{name} lost {member.name}: {gone}")
        await trio.sleep(rng.uniform(0.01, 0.2))


async def _send(stage: Stage, member: Member, client: Client, burst: list[Sent]) -> None:
    """Send and wait for all receipts."""
    waiting = {message.id: message for message in burst}
    stage.trace.note(f"{burst[0].id}..{burst[-1].number} are sent to {member.name}")
    frames = [
        encode_frame(
            "SEND", [("destination", one.destination), ("receipt", one.id), *headers_of(one.id).items()], one.body
        )
        for one in burst
    ]
    declared = {queue: version_of(member, Key("queue", queue)) for queue in DECLARED}
    with trio.move_on_after(RECEIPT_SECONDS):
        await client.send(*frames)
        while waiting:
            for frame in await client.read():
                if frame.head.command == "RECEIPT":
                    message = waiting.pop(frame.head.headers["receipt-id"])
                    _confirmed(stage, member, message, frame.head.headers)
                    version = declared.get(message.destination)
                    if version is not None and version == version_of(member, Key("queue", message.destination)):
                        stage.ledger.operations.under[message.id] = version
    if waiting:
        raise GoneError(f"{len(waiting)} outcomes unknown")


def _confirmed(stage: Stage, member: Member, message: Sent, headers: Mapping[str, str]) -> None:
    assert member.node is not None
    stage.ledger.receipt(message, member.node.origin, int(headers.get("copies", default_copies(stage))))
    message.receipted_at = trio.current_time()
    if message.destination in SENDS:
        operations, table = stage.ledger.operations, member.node.settings_parts.definitions.table
        found = queues_of(table, message.destination, headers_of(message.id))
        expected = operations.expected[message.id] = {}
        for queue in COPIED:
            # Of what has changed lately, or since the last look, it is not certain whether the node copied by it.
            decided = part_of(message.destination), queue
            operations.bind(member.name, decided, versions_for(table, decided))
            if operations.bound[member.name, decided][1] + ROUTED_SECONDS < message.at:
                expected[queue] = queue in found


def headers_of(message_id: str) -> dict[str, str]:
    """What the message says of itself."""
    kind, number = kind_of(message_id), int(message_id.rpartition(".")[2])
    return {"x-kind": kind, "kind": kind, **({"urgent": "yes"} if number % URGENT == 0 else {})}


def kind_of(message_id: str) -> str:
    """One of KINDS."""
    return f"k{int(message_id.rpartition('.')[2]) % KINDS}"


async def consume_operated(stage: Stage, name: str) -> None:
    """Work on some messages and bury some, at one node after the other, while the faults last. Then collect the
    rest."""
    rng = random.Random(f"{stage.plan.seed}/{name}")
    while True:
        member = rng.choice(stage.in_reach)
        is_final = stage.ledger.operations.is_restored
        try:
            if is_final or not stage.settling:
                async with connected(stage, name, member, refusals=("not-allowed",)) as client:
                    with trio.move_on_after(rng.uniform(1, 4) if is_final else rng.uniform(0.1, 0.4)):
                        await _consume(stage, name, member, client, rng, is_final=is_final)
        except GoneError as gone:
            stage.trace.note(f"{name} lost {member.name}: {gone}")
        await trio.sleep(rng.uniform(0.05, 0.2) if stage.settling else rng.uniform(0.5, 2.5))


async def _consume(
    stage: Stage, name: str, member: Member, client: Client, rng: random.Random, *, is_final: bool
) -> None:
    ledger = stage.ledger
    since = trio.current_time()
    for queue in (*OPERATED, *COPIED, *DECLARED, BURIED, GUARDED) if is_final else OPERATED:
        headers = [("destination", queue), ("id", queue), ("ack", "client-individual"), ("prefetch-count", "3")]
        await client.send(encode_frame("SUBSCRIBE", [*headers, ("dead-letter", BURIED)]))
    stage.trace.note(f"{name} consumes at {member.name}")
    while is_final or not stage.settling:
        for frame in await client.read():
            head = frame.head.headers
            if frame.head.command != "MESSAGE":
                continue
            message_id = ledger.match_moved(name, (*OPERATED, *DECLARED, GUARDED, *SENDS), frame.body)
            if message_id is None:
                continue
            stage.trace.note(f"{name} is given {message_id} as {head['message-id']}")
            ledger.note_mark(head)
            dot = dot_of(head["message-id"])
            ledger.operations.given.append(Given(message_id, head["destination"], dot, member.name, since, is_final))
            drawn = 1.0 if is_final else rng.random()
            if drawn < 0.4:
                await client.send(encode_frame("NACK", [("id", head["ack"]), ("requeue", "false")]))
            elif drawn > 0.6:
                ledger.consumed.add(message_id)
                await client.send(encode_frame("ACK", [("id", head["ack"])]))


async def use_guarded(stage: Stage, name: str) -> None:
    """Send to the guarded queue and consume it, as the user whose rights change, while the faults last."""
    rng = random.Random(f"{stage.plan.seed}/{name}")
    number = 0
    while not stage.settling:
        member = rng.choice(stage.in_reach)
        try:
            async with connected(stage, name, member, user=READER, refusals=("not-allowed", "login-failed")) as client:
                headers = [("destination", GUARDED), ("id", "g"), ("ack", "client-individual")]
                await client.send(encode_frame("SUBSCRIBE", headers))
                until = trio.current_time() + rng.uniform(1, 5)
                while trio.current_time() < until and not stage.settling:
                    number += 1
                    message = stage.ledger.send(name, number, member.name, GUARDED, rng)
                    await client.send(
                        encode_frame("SEND", [("destination", GUARDED), ("receipt", message.id)], message.body)
                    )
                    with trio.move_on_after(rng.uniform(0.1, 0.4)):
                        await _read_guarded(stage, name, member, client)
        except GoneError as gone:
            stage.trace.note(f"{name} lost {member.name}: {gone}")
        await trio.sleep(rng.uniform(0.02, 0.3))


async def _read_guarded(stage: Stage, name: str, member: Member, client: Client) -> None:
    ledger = stage.ledger
    operations = ledger.operations
    while True:
        frames = await client.read()
        for action in ("send", "subscribe"):
            # The permission may be gone since the last look.
            operations.deny(member.name, action, _denials(member, action))
        for frame in frames:
            head = frame.head.headers
            if frame.head.command == "RECEIPT":
                message = ledger.sent[head["receipt-id"]]
                _confirmed(stage, member, message, head)
                denied = operations.denied_for(member.name, "send") - (trio.current_time() - message.at)
                if denied > RIGHT_SECONDS:
                    ledger.wrongs.append(
                        f"P2 sent: {member.name} took {message.id}, {denied:.3f} s after it was denied"
                    )
            elif frame.head.command == "MESSAGE":
                message_id = ledger.match(name, GUARDED, frame.body)
                if message_id is None:
                    continue
                stage.trace.note(f"{name} is given {message_id} by {member.name}")
                denied = operations.denied_for(member.name, "subscribe")
                if denied > RIGHT_SECONDS:
                    ledger.wrongs.append(
                        f"P1 given: {member.name} gave {message_id}, {denied:.3f} s after it was denied"
                    )
                ledger.note_mark(head)
                ledger.consumed.add(message_id)
                await client.send(encode_frame("ACK", [("id", head["ack"])]))


async def watch_definitions(stage: Stage) -> None:
    """Write down which nodes have definitions that take rights of the user away, the guest, and bindings; for ever."""
    operations = stage.ledger.operations
    while True:
        for member in stage.members:
            for action in ("send", "subscribe"):
                operations.deny(member.name, action, _denials(member, action))
            operations.invite(member.name, version_of(member, Key("user", GUEST)))
            for decided in DECIDING:
                if member.is_alive and member.node is not None:
                    operations.bind(
                        member.name, decided, versions_for(member.node.settings_parts.definitions.table, decided)
                    )
                else:
                    operations.bind(member.name, decided, frozenset())
        await trio.sleep(LOOK_SECONDS)


def version_of(member: Member, key: Key) -> Version | None:
    """Of what the node has of this now; None also while it is down."""
    if not member.is_alive or member.node is None:
        return None
    found = member.node.settings_parts.definitions.table.get(key)
    return None if found is None else found.version


def _denials(member: Member, action: str) -> frozenset[Version]:
    found = [version_of(member, Key("permission", name)) for name, value in DENIALS if action in value["deny"]]
    return frozenset(version for version in found if version is not None)
