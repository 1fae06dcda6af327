"""What travels over a link once both sides are proven: one table, both directions.

Every row is a STOMP destination below `/mesh/`; the body is a msgpack array, except for batches, which travel as they
lie in the journal. SEND goes from the node that dialled (the follower) to the node that serves, MESSAGE back. Arrays
may be longer than this version expects: what is beyond is ignored, so a later version can add to them.

A peer is trusted to be a member of the mesh, not to be free of bugs: every type and range is checked (`values`), and
the only exception that leaves `decode` is MeshError.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgpack

from qmq.broker.destination import Kind, check_pattern, is_pattern
from qmq.broker.message import Message
from qmq.dots import Dot, Origin, Vector
from qmq.errors import MeshError, Refused
from qmq.replication.values import (
    SEQUENCE_MAX,
    Sender,
    array,
    check_dots,
    mapping,
    messages_of,
    name_of,
    number,
    origin_of,
    origins_of,
    pack_dot_groups,
    pack_messages,
    pack_vector,
    pairs,
    shown,
    truth,
    vector_of,
)

BATCH_TYPE: Final = "application/x-qmq-batch"
MSGPACK_TYPE: Final = "application/msgpack"

# From the follower


@dataclass(frozen=True, slots=True)
class Ack:
    """What the follower has. Vectors hold what changed since its last Ack; the first one of a link holds all.

    `frames` is the number of the last Batches frame it has taken. `direct` names the origins it follows at their own
    node and so need not be sent here; None when that has not changed.
    """

    frames: int
    received: Vector
    durable: Vector
    direct: tuple[Origin, ...] | None


@dataclass(frozen=True, slots=True)
class Interest:
    """Topic patterns the follower wants from now on (True) or no more (False). A link begins with none."""

    patterns: dict[str, bool]


@dataclass(frozen=True, slots=True)
class Credit:
    """(queue, how many of its messages may be lent in all over this link)."""

    offers: list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Settled:
    """Lent messages that a consumer has settled; where they are durable, so is that."""

    dots: list[Dot]


@dataclass(frozen=True, slots=True)
class Returned:
    """Lent messages given back, in their order; True where a client has seen the message."""

    returns: list[tuple[Dot, bool]]


@dataclass(frozen=True, slots=True)
class Held:
    """Once per link, before any Credit: the lent messages that the follower's consumers still have.

    Whatever else was lent to it is either settled in its records up to `through` (of its own origins), or lost.
    """

    keep: list[Dot]
    through: Vector


# From the node that serves


@dataclass(frozen=True, slots=True)
class Welcome:
    """What the serving node has durably when the link begins; having all of it is being caught up."""

    vector: Vector


@dataclass(frozen=True, slots=True)
class Gap:
    """Retention gave these up here: (origin, last sequence that will not come)."""

    gaps: list[tuple[Origin, int]]


@dataclass(frozen=True, slots=True)
class Hole:
    """Records of these origins are damaged here and cannot be sent now: the follower must get them elsewhere."""

    origins: tuple[Origin, ...]


@dataclass(frozen=True, slots=True)
class Batches:
    """Whole journal batches, one after the other. Frames are numbered from 1 over the life of the link."""

    number: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Topics:
    """Topic messages that the serving node accepted and the follower wants."""

    messages: list[Message]


@dataclass(frozen=True, slots=True)
class Lend:
    """Queue messages of the serving node, lent against the follower's credit."""

    messages: list[Message]


Follows = Ack | Interest | Credit | Settled | Returned | Held
Serves = Welcome | Gap | Hole | Batches | Topics | Lend
MeshFrame = Follows | Serves


# One row per frame: how its fields are packed, and how they are checked.


def _ack(fields: list[object], sender: Sender) -> MeshFrame:
    direct = None if fields[3] is None else origins_of(fields[3])
    return Ack(number(fields[0]), vector_of(fields[1]), vector_of(fields[2]), direct)


def _interest(fields: list[object], sender: Sender) -> MeshFrame:
    patterns: dict[str, bool] = {}
    for pattern, wanted in mapping(fields[0]).items():
        name = name_of(pattern, Kind.TOPIC)
        if is_pattern(name):
            try:
                check_pattern(name)
            except Refused as refused:
                raise MeshError("bad-frame", f"{shown(name)}: {refused.message}") from refused
        patterns[name] = truth(wanted)
    return Interest(patterns)


def _credit(fields: list[object], sender: Sender) -> MeshFrame:
    values = pairs(fields[0], 2)
    return Credit(
        [(name_of(values[i], Kind.QUEUE), number(values[i + 1])) for i in range(0, len(values), 2)],
    )


def _settled(fields: list[object], sender: Sender) -> MeshFrame:
    return Settled(check_dots(fields[0]))


def _returned(fields: list[object], sender: Sender) -> MeshFrame:
    returns: list[tuple[Dot, bool]] = []
    values = pairs(fields[0], 4)
    for index in range(0, len(values), 4):
        origin = origin_of(values[index], values[index + 1])
        dot = Dot(origin, number(values[index + 2], -SEQUENCE_MAX))
        returns.append((dot, truth(values[index + 3])))
    return Returned(returns)


def _held(fields: list[object], sender: Sender) -> MeshFrame:
    return Held(check_dots(fields[0]), vector_of(fields[1]))


def _welcome(fields: list[object], sender: Sender) -> MeshFrame:
    return Welcome(vector_of(fields[0]))


def _gap(fields: list[object], sender: Sender) -> MeshFrame:
    return Gap(list(vector_of(fields[0]).items()))


def _hole(fields: list[object], sender: Sender) -> MeshFrame:
    return Hole(origins_of(fields[0]))


def _topics(fields: list[object], sender: Sender) -> MeshFrame:
    return Topics(messages_of(fields[0], sender, Kind.TOPIC))


def _lend(fields: list[object], sender: Sender) -> MeshFrame:
    return Lend(messages_of(fields[0], sender, Kind.QUEUE))


Check = Callable[[list[object], Sender], MeshFrame]

JOURNAL: Final = "/mesh/journal"
"""Destination of Batches, and of the SUBSCRIBE that begins a link."""

# What a follower may send, and what it may be sent: destination → (fields at least, check).
FROM_FOLLOWER: Final[Mapping[str, tuple[int, Check]]] = {
    "/mesh/ack": (4, _ack),
    "/mesh/interest": (1, _interest),
    "/mesh/credit": (1, _credit),
    "/mesh/settled": (1, _settled),
    "/mesh/returned": (1, _returned),
    "/mesh/held": (2, _held),
}
TO_FOLLOWER: Final[Mapping[str, tuple[int, Check]]] = {
    "/mesh/welcome": (1, _welcome),
    "/mesh/gap": (1, _gap),
    "/mesh/hole": (1, _hole),
    "/mesh/topics": (1, _topics),
    "/mesh/lend": (1, _lend),
}


def pack(frame: MeshFrame) -> tuple[str, bytes]:
    """(destination, body) of `frame`; the inverse of `decode`."""
    if isinstance(frame, Batches):
        return JOURNAL, frame.body
    destination, fields = _fields(frame)
    body: bytes = msgpack.packb(fields)
    return destination, body


def _fields(frame: Follows | Welcome | Gap | Hole | Topics | Lend) -> tuple[str, list[object]]:
    match frame:
        case Ack(frames, received, durable, direct):
            named = None if direct is None else [value for origin in direct for value in origin]
            return "/mesh/ack", [frames, pack_vector(received), pack_vector(durable), named]
        case Interest(patterns):
            return "/mesh/interest", [patterns]
        case Credit(offers):
            return "/mesh/credit", [[value for offer in offers for value in offer]]
        case Settled(dots):
            return "/mesh/settled", [pack_dot_groups(dots)]
        case Returned(returns):
            return "/mesh/returned", [[value for dot, seen in returns for value in (*dot.origin, dot.sequence, seen)]]
        case Held(keep, through):
            return "/mesh/held", [pack_dot_groups(keep), pack_vector(through)]
        case Welcome(vector):
            return "/mesh/welcome", [pack_vector(vector)]
        case Gap(gaps):
            return "/mesh/gap", [pack_vector(dict(gaps))]
        case Hole(origins):
            return "/mesh/hole", [[value for origin in origins for value in origin]]
        case Topics(messages):
            return "/mesh/topics", [pack_messages(messages)]
        case Lend(messages):
            return "/mesh/lend", [pack_messages(messages)]


def decode(table: Mapping[str, tuple[int, Check]], destination: str, body: bytes, sender: Sender) -> MeshFrame:
    """The frame that `sender` sent. Raises MeshError, code `bad-frame`, for anything that the table does not list."""
    row = table.get(destination)
    if row is None:
        raise MeshError("bad-frame", f"{shown(destination)} is not sent in this direction")
    least, check = row
    try:
        fields: object = msgpack.unpackb(body)
    except (ValueError, msgpack.UnpackException) as error:
        raise MeshError("bad-frame", f"the body of {destination} is not msgpack: {error}") from error
    try:
        return check(array(fields, least), sender)
    except MeshError as error:
        raise MeshError(error.code, f"{destination}: {error.message}") from error
