"""What travels over a link once both sides are proven: one table, both directions.

Every row is a STOMP destination below `/mesh/`; the body is a msgpack array, except for batches, which travel as they
lie in the journal. SEND goes from the node that dialled (the follower) to the node that serves, MESSAGE back. Arrays
may be longer than this version expects: what is beyond is ignored, so a later version can add to them.

A peer is trusted to be a member of the mesh, not to be free of bugs: every type and range is checked here, and the
only exception that leaves `decode` is MeshError. Names of topics and queues are checked by the broker's own rules.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgpack

from qmq.broker.destination import Kind, check_pattern, is_pattern, kind_of
from qmq.broker.message import Envelope, Message
from qmq.dots import Dot, Origin, Vector
from qmq.errors import MeshError, Refused
from qmq.storage.record import pack_dots

BATCH_TYPE: Final = "application/x-qmq-batch"
MSGPACK_TYPE: Final = "application/msgpack"

ENVELOPES_MAX: Final = 4096
"""Envelopes of forwarded messages that a link remembers; at the bound all are forgotten."""

DESTINATION_BYTES_MAX: Final = 1024
"""The most that any node may allow for a name; each node's own limit is for its own clients."""

_U64_MAX: Final = (1 << 64) - 1
_I63_MAX: Final = (1 << 63) - 1
_NAME_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")


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


class Sender:
    """Who sends on a link, for decoding: its name, and the envelopes it has used lately."""

    __slots__ = ("envelopes", "node")

    def __init__(self, node: str) -> None:
        self.node = node
        self.envelopes: dict[tuple[str, bytes, bool], Envelope] = {}


# Checks of single values. Each returns what it was given, with its type known.


def _number(value: object, low: int = 0, high: int = _I63_MAX) -> int:
    if type(value) is not int or not low <= value <= high:
        raise MeshError("bad-frame", f"a number from {low} to {high} was due, not {_shown(value)}")
    return value


def _array(value: object, length_min: int = 0) -> list[object]:
    if type(value) is not list or len(value) < length_min:
        raise MeshError("bad-frame", f"an array of at least {length_min} was due, not {_shown(value)}")
    return value


def _pairs(value: object, width: int) -> list[object]:
    found = _array(value)
    if len(found) % width:
        raise MeshError("bad-frame", f"an array of groups of {width} was due, not {len(found)} elements")
    return found


def _truth(value: object) -> bool:
    if type(value) is not bool:
        raise MeshError("bad-frame", f"true or false was due, not {_shown(value)}")
    return value


def _bytes(value: object) -> bytes:
    if type(value) is not bytes:
        raise MeshError("bad-frame", f"bytes were due, not {_shown(value)}")
    return value


def _text(value: object) -> str:
    if type(value) is not str:
        raise MeshError("bad-frame", f"text was due, not {_shown(value)}")
    return value


def _map(value: object) -> dict[str, object]:
    if type(value) is not dict:
        raise MeshError("bad-frame", f"a map was due, not {_shown(value)}")
    return value


def _node(value: object) -> str:
    name = _text(value)
    if not 1 <= len(name) <= 32 or not _NAME_CHARACTERS.issuperset(name):
        raise MeshError("bad-frame", f"a node's name was due, not {_shown(name)}")
    return name


def _origin(node: object, incarnation: object) -> Origin:
    return Origin(_node(node), _number(incarnation, 0, _U64_MAX))


def _name_of(value: object, kind: Kind) -> str:
    name = _text(value)
    try:
        if kind_of(name, DESTINATION_BYTES_MAX) is not kind:
            raise MeshError("bad-frame", f"a {kind.name.lower()} was due, not {_shown(name)}")
    except Refused as refused:
        raise MeshError("bad-frame", f"{_shown(name)}: {refused.message}") from refused
    return name


def _shown(value: object) -> str:
    """What is wrong, short enough for a log and free of control characters."""
    text = ascii(value) if isinstance(value, (str, int, bool)) else type(value).__name__
    return text if len(text) <= 60 else text[:60] + "…"


# Values of several fields


def pack_vector(vector: Vector) -> dict[str, list[int]]:
    """node → incarnation, sequence, incarnation, sequence, …"""
    packed: dict[str, list[int]] = {}
    for origin, sequence in vector.items():
        packed.setdefault(origin.node, []).extend((origin.incarnation, sequence))
    return packed


def _vector(value: object) -> Vector:
    vector: Vector = {}
    for node, found in _map(value).items():
        numbers = _pairs(found, 2)
        for index in range(0, len(numbers), 2):
            vector[_origin(node, numbers[index])] = _number(numbers[index + 1])
    return vector


def _packed_dots(dots: Iterable[Dot]) -> object:
    packed: object = msgpack.unpackb(pack_dots(dots))
    return packed


def check_dots(value: object) -> list[Dot]:
    """Dots in the form of a SETTLE record's body (`storage.record.pack_dots`), already unpacked."""
    dots: list[Dot] = []
    for item in _array(value):
        group = _array(item, 3)
        origin = _origin(group[0], group[1])
        for sequence in _array(group[2]):
            dots.append(Dot(origin, _number(sequence, -_I63_MAX)))
    return dots


def _origins(value: object) -> tuple[Origin, ...]:
    numbers = _pairs(value, 2)
    return tuple([_origin(numbers[index], numbers[index + 1]) for index in range(0, len(numbers), 2)])


def pack_messages(messages: list[Message]) -> list[list[object]]:
    """Runs of messages in one envelope: [destination, headers, durable, [five values per message …]]."""
    runs: list[list[object]] = []
    values: list[object] = []
    envelope: Envelope | None = None
    for message in messages:
        if message.envelope is not envelope:
            envelope = message.envelope
            values = []
            runs.append([envelope.destination, envelope.headers, envelope.durable, values])
        values += (
            message.origin.incarnation,
            message.sequence,
            message.timestamp_us,
            message.attempts,
            message.body,
        )
    return runs


def _messages(value: object, sender: Sender, kind: Kind) -> list[Message]:
    """A message belongs to the node that accepted it, so `sender` is the node of every origin here."""
    messages: list[Message] = []
    owner = sender.node if kind is Kind.QUEUE else None
    for item in _array(value):
        run = _array(item, 4)
        envelope = _envelope(run, sender, kind)
        low, high = (1, _I63_MAX) if envelope.durable else (-_I63_MAX, -1)
        values = _pairs(run[3], 5)
        for index in range(0, len(values), 5):
            message = Message(
                envelope,
                _bytes(values[index + 4]),
                Origin(sender.node, _number(values[index], 0, _U64_MAX)),
                _number(values[index + 1], low, high),
                _number(values[index + 2], 0, _U64_MAX),
            )
            message.attempts = _number(values[index + 3])
            message.owner = owner
            messages.append(message)
    return messages


def _envelope(run: list[object], sender: Sender, kind: Kind) -> Envelope:
    key = (_text(run[0]), _bytes(run[1]), _truth(run[2]))
    envelope = sender.envelopes.get(key)
    if envelope is None or envelope.kind is not kind:
        destination, headers, durable = key
        _name_of(destination, kind)
        if headers and (headers[-1] != 10 or headers[0] == 10 or b"\n\n" in headers or b"\0" in headers):
            raise MeshError("bad-frame", "headers are lines that end with LF, none of them empty")
        if len(sender.envelopes) >= ENVELOPES_MAX:
            sender.envelopes.clear()
        envelope = sender.envelopes[key] = Envelope(destination, kind, headers, durable)
    return envelope


# One row per frame: how its fields are packed, and how they are checked.


def _ack(fields: list[object], sender: Sender) -> MeshFrame:
    direct = None if fields[3] is None else _origins(fields[3])
    return Ack(_number(fields[0]), _vector(fields[1]), _vector(fields[2]), direct)


def _interest(fields: list[object], sender: Sender) -> MeshFrame:
    patterns: dict[str, bool] = {}
    for pattern, wanted in _map(fields[0]).items():
        name = _name_of(pattern, Kind.TOPIC)
        if is_pattern(name):
            try:
                check_pattern(name)
            except Refused as refused:
                raise MeshError("bad-frame", f"{_shown(name)}: {refused.message}") from refused
        patterns[name] = _truth(wanted)
    return Interest(patterns)


def _credit(fields: list[object], sender: Sender) -> MeshFrame:
    values = _pairs(fields[0], 2)
    return Credit(
        [(_name_of(values[i], Kind.QUEUE), _number(values[i + 1])) for i in range(0, len(values), 2)],
    )


def _settled(fields: list[object], sender: Sender) -> MeshFrame:
    return Settled(check_dots(fields[0]))


def _returned(fields: list[object], sender: Sender) -> MeshFrame:
    returns: list[tuple[Dot, bool]] = []
    values = _pairs(fields[0], 4)
    for index in range(0, len(values), 4):
        origin = _origin(values[index], values[index + 1])
        dot = Dot(origin, _number(values[index + 2], -_I63_MAX))
        returns.append((dot, _truth(values[index + 3])))
    return Returned(returns)


def _held(fields: list[object], sender: Sender) -> MeshFrame:
    return Held(check_dots(fields[0]), _vector(fields[1]))


def _welcome(fields: list[object], sender: Sender) -> MeshFrame:
    return Welcome(_vector(fields[0]))


def _gap(fields: list[object], sender: Sender) -> MeshFrame:
    return Gap(list(_vector(fields[0]).items()))


def _hole(fields: list[object], sender: Sender) -> MeshFrame:
    return Hole(_origins(fields[0]))


def _topics(fields: list[object], sender: Sender) -> MeshFrame:
    return Topics(_messages(fields[0], sender, Kind.TOPIC))


def _lend(fields: list[object], sender: Sender) -> MeshFrame:
    return Lend(_messages(fields[0], sender, Kind.QUEUE))


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
            return "/mesh/settled", [_packed_dots(dots)]
        case Returned(returns):
            return "/mesh/returned", [[value for dot, seen in returns for value in (*dot.origin, dot.sequence, seen)]]
        case Held(keep, through):
            return "/mesh/held", [_packed_dots(keep), pack_vector(through)]
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
        raise MeshError("bad-frame", f"{_shown(destination)} is not sent in this direction")
    least, check = row
    try:
        fields: object = msgpack.unpackb(body)
    except (ValueError, msgpack.UnpackException) as error:
        raise MeshError("bad-frame", f"the body of {destination} is not msgpack: {error}") from error
    try:
        return check(_array(fields, least), sender)
    except MeshError as error:
        raise MeshError(error.code, f"{destination}: {error.message}") from error
