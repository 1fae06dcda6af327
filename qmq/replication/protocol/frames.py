"""What travels over a link once both sides are proven: one table, both directions.

Every row is a STOMP destination below `/mesh/`; the body is a msgpack array, except for batches, which travel as they
lie in the journal. SEND goes from the node that dialled (the follower) to the node that serves, MESSAGE back. Arrays
may be longer than this version expects: what is beyond is ignored, so a later version can add to them.

A peer is trusted to be a member of the mesh, not to be free of bugs: every type and range is checked (`values`), and
the only exception that leaves `decode` is MeshError.

Long for one module: it is the protocol, a class, a row and two functions for each frame, and nothing else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgpack

from qmq.broker.consumers.subscription import Asks
from qmq.broker.messages.destination import DestinationKind, check_pattern, is_pattern
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import Message
from qmq.dots import Dot, Origin, Vector
from qmq.errors import MeshError, Refused
from qmq.replication.interest.interest import NEVER
from qmq.replication.protocol.membership_frame import MembershipFrame, check_standing, pack_standing
from qmq.replication.protocol.takeover_frames import (
    Terms,
    ask_of,
    heartbeats_of,
    holds_of,
    numbers_of,
    pack_terms,
    release_of,
    vote_of,
)
from qmq.replication.protocol.values import (
    SEQUENCE_MAX,
    Sender,
    array,
    check_dots,
    mapping,
    messages_of,
    name_of,
    node_name,
    number,
    octets,
    offer_of,
    origin_of,
    origins_of,
    pack_dot_groups,
    pack_messages,
    pack_values,
    pack_vector,
    pairs,
    shown,
    truth,
    values_of,
    vector_of,
)
from qmq.storage.format.record import unpack
from qmq.wire.stomp.limits import BODY_BYTES_CEILING

BATCH_TYPE: Final = "application/x-qmq-batch"
MSGPACK_TYPE: Final = "application/msgpack"

# Both ways


@dataclass(frozen=True, slots=True)
class Replies:
    """Messages for temporary queues of the other side's sessions."""

    messages: list[Message]


@dataclass(frozen=True, slots=True)
class Question:
    """Something that the other side's node is asked; what it means is the nodes' business. `number` is the asker's."""

    number: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to the Question with that number. It may come late, over another link, or never."""

    number: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Reach:
    """Whom the sender has a link with now, the other side left out: it can pass on messages to them.

    `number` grows with every one: they may come over two connections, and an older one counts no more.
    """

    number: int
    origins: frozenset[Origin]


@dataclass(frozen=True, slots=True)
class WantsPart:
    """What the subscribers of `origin` want, in its `version`: a difference from the version `base` on, or a part of
    all of it (`base` is NEVER). `whole` tells apart which parts belong together; they are numbered from 0."""

    origin: Origin
    base: int
    version: int
    whole: int
    part: int
    is_last: bool
    patterns: dict[str, bool]


@dataclass(frozen=True, slots=True)
class Heard:
    """(origin, version of what it wants that is in force here), and wherever the sender passes it on; NEVER asks for
    all of it."""

    versions: list[tuple[Origin, int]]


@dataclass(frozen=True, slots=True)
class Passed:
    """Topic messages or replies of one origin for the node `target`: the other side, or one that it has a link with."""

    target: str
    messages: list[Message]


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
    sent_us: int = field(default=0, compare=False)
    """The follower's clock."""


@dataclass(frozen=True, slots=True)
class Credit:
    """(queue and class of consumers, how many messages may be lent for it in all over this link).

    -1: none any more. The other side forgets what it has lent and answers with Forgotten. Less than that is -2 minus
    the limit, and a question besides; the answer is `Waiting` or a message.
    """

    offers: list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Waiting:
    """Queue → whether messages wait here for plain consumers of the follower, which has asked."""

    queues: dict[str, bool]


@dataclass(frozen=True, slots=True)
class Settled:
    """Lent messages that a consumer has settled; where they are durable, so is that."""

    dots: list[Dot]


@dataclass(frozen=True, slots=True)
class Returned:
    """Lent messages given back, in their order: why, and what their consumer asked for in that case."""

    returns: list[tuple[Dot, Back, Asks | None]]


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
    sent_us: int = field(default=0, compare=False)
    """The serving node's clock."""


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
    """Queue messages that the serving node serves, lent against the follower's credit.

    `terms`: for owners among them that it does not serve in term 0, the term. An owner without one that is not the
    serving node is served by it no more: the follower lets such messages go.
    """

    messages: list[Message]
    sent_us: int = field(default=0, compare=False)
    """The serving node's clock."""
    terms: Mapping[str, int] = field(default_factory=dict)
    sender: str = field(default="", compare=False)
    """The serving node; messages of others name their node."""


@dataclass(frozen=True, slots=True)
class Retained:
    """Last values of topics, and marks of removed ones, whoever set them."""

    values: list[Message]


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Offers that were withdrawn and are forgotten: nothing is on its way that was lent against them."""

    names: list[str]


Both = Replies | Question | Answer | MembershipFrame | Terms
Paths = Reach | WantsPart | Heard | Passed
"""What links tell each other of who wants what, and how it gets there (`routes`)."""

Follows = Ack | Credit | Settled | Returned | Held | Both
Serves = Welcome | Gap | Hole | Batches | Topics | Lend | Forgotten | Waiting | Retained | Both
MeshFrame = Follows | Serves | Paths


# One row per frame: how its fields are packed, and how they are checked.


def _replies(fields: list[object], sender: Sender) -> MeshFrame:
    return Replies(messages_of(fields[0], sender, DestinationKind.REPLY))


def _question(fields: list[object], sender: Sender) -> MeshFrame:
    return Question(number(fields[0]), octets(fields[1]))


def _answer(fields: list[object], sender: Sender) -> MeshFrame:
    return Answer(number(fields[0]), octets(fields[1]))


def _reach(fields: list[object], sender: Sender) -> MeshFrame:
    return Reach(number(fields[0]), frozenset(origins_of(fields[1])))


def _wants(fields: list[object], sender: Sender) -> MeshFrame:
    return WantsPart(
        origin_of(fields[0], fields[1]),
        number(fields[2], NEVER),
        number(fields[3]),
        number(fields[4]),
        number(fields[5]),
        truth(fields[6]),
        _patterns(fields[7]),
    )


def _heard(fields: list[object], sender: Sender) -> MeshFrame:
    values = pairs(fields[0], 3)
    return Heard(
        [(origin_of(values[i], values[i + 1]), number(values[i + 2], NEVER)) for i in range(0, len(values), 3)]
    )


def _passed(fields: list[object], sender: Sender) -> MeshFrame:
    kind = DestinationKind.REPLY if truth(fields[3]) else DestinationKind.TOPIC
    return Passed(node_name(fields[0]), messages_of(fields[2], sender.on_behalf_of(node_name(fields[1])), kind))


def _ack(fields: list[object], sender: Sender) -> MeshFrame:
    direct = None if fields[3] is None else origins_of(fields[3])
    return Ack(number(fields[0]), vector_of(fields[1]), vector_of(fields[2]), direct, number(fields[4]))


def _patterns(value: object) -> dict[str, bool]:
    patterns: dict[str, bool] = {}
    for pattern, wanted in mapping(value).items():
        name = name_of(pattern, DestinationKind.TOPIC)
        if is_pattern(name):
            try:
                check_pattern(name)
            except Refused as refused:
                raise MeshError("bad-frame", f"{shown(name)}: {refused.message}") from refused
        patterns[name] = truth(wanted)
    return patterns


def _credit(fields: list[object], sender: Sender) -> MeshFrame:
    values = pairs(fields[0], 2)
    return Credit(
        [(offer_of(values[i]), number(values[i + 1], -SEQUENCE_MAX)) for i in range(0, len(values), 2)],
    )


def _settled(fields: list[object], sender: Sender) -> MeshFrame:
    return Settled(check_dots(fields[0]))


def _returned(fields: list[object], sender: Sender) -> MeshFrame:
    returns: list[tuple[Dot, Back, Asks | None]] = []
    values = pairs(fields[0], 5)
    for index in range(0, len(values), 5):
        origin = origin_of(values[index], values[index + 1])
        dot = Dot(origin, number(values[index + 2], -SEQUENCE_MAX))
        why = Back(number(values[index + 3], 0, max(Back)))
        returns.append((dot, why, None if values[index + 4] is None else _asks(values[index + 4])))
    return Returned(returns)


def _asks(value: object) -> Asks:
    limit, pause_us, target = array(value, 3)[:3]
    return Asks(
        delivery_limit=None if limit is None else number(limit),
        redelivery_us=None if pause_us is None else number(pause_us),
        dead_letter=None if target is None else name_of(target, DestinationKind.QUEUE) if target else "",
    )


def _held(fields: list[object], sender: Sender) -> MeshFrame:
    return Held(check_dots(fields[0]), vector_of(fields[1]))


def _welcome(fields: list[object], sender: Sender) -> MeshFrame:
    return Welcome(vector_of(fields[0]), number(fields[1]))


def _gap(fields: list[object], sender: Sender) -> MeshFrame:
    return Gap(list(vector_of(fields[0]).items()))


def _hole(fields: list[object], sender: Sender) -> MeshFrame:
    return Hole(origins_of(fields[0]))


def _topics(fields: list[object], sender: Sender) -> MeshFrame:
    return Topics(messages_of(fields[0], sender, DestinationKind.TOPIC))


def _lend(fields: list[object], sender: Sender) -> MeshFrame:
    terms = numbers_of(fields[2]) if len(fields) > 2 else {}
    return Lend(messages_of(fields[0], sender, DestinationKind.QUEUE), number(fields[1]), terms)


def _retained(fields: list[object], sender: Sender) -> MeshFrame:
    return Retained(values_of(fields[0]))


def _forgotten(fields: list[object], sender: Sender) -> MeshFrame:
    return Forgotten([offer_of(name) for name in array(fields[0])])


def _waiting(fields: list[object], sender: Sender) -> MeshFrame:
    return Waiting({offer_of(name): truth(is_waiting) for name, is_waiting in mapping(fields[0]).items()})


def _members(fields: list[object], sender: Sender) -> MeshFrame:
    return check_standing(fields)


Check = Callable[[list[object], Sender], MeshFrame]

JOURNAL: Final = "/mesh/journal"
"""Destination of Batches, and of the SUBSCRIBE that begins a link."""

COMMON_FRAMES: Final[Mapping[str, tuple[int, Check]]] = {
    "/mesh/replies": (1, _replies),
    "/mesh/question": (2, _question),
    "/mesh/answer": (2, _answer),
    "/mesh/members": (7, _members),
    "/mesh/reach": (2, _reach),
    "/mesh/wants": (8, _wants),
    "/mesh/heard": (1, _heard),
    "/mesh/passed": (4, _passed),
    "/mesh/beat": (6, lambda fields, sender: heartbeats_of(fields)),
    "/mesh/bid": (4, lambda fields, sender: ask_of(fields)),
    "/mesh/vote": (3, lambda fields, sender: vote_of(fields)),
    "/mesh/release": (4, lambda fields, sender: release_of(fields)),
    "/mesh/holds": (3, lambda fields, sender: holds_of(fields)),
}
# What a follower may send, and what it may be sent: destination → (fields at least, check).
FROM_FOLLOWER: Final[Mapping[str, tuple[int, Check]]] = {
    "/mesh/ack": (5, _ack),
    "/mesh/credit": (1, _credit),
    "/mesh/settled": (1, _settled),
    "/mesh/returned": (1, _returned),
    "/mesh/held": (2, _held),
    **COMMON_FRAMES,
}
TO_FOLLOWER: Final[Mapping[str, tuple[int, Check]]] = {
    "/mesh/welcome": (2, _welcome),
    "/mesh/gap": (1, _gap),
    "/mesh/hole": (1, _hole),
    "/mesh/topics": (1, _topics),
    "/mesh/lend": (2, _lend),
    "/mesh/retained": (1, _retained),
    "/mesh/forgotten": (1, _forgotten),
    "/mesh/waiting": (1, _waiting),
    **COMMON_FRAMES,
}


class Bound(NamedTuple):
    """How much one frame may be."""

    body_bytes_max: int
    elements_max: int
    """In all its arrays and maps together: an empty array is one byte here, and 64 in memory."""


MESSAGES: Final = Bound(17 << 20, 100_000)
"""One message of the most that a node takes (16 MiB) and its headers, or about a quarter of a MiB."""
LISTS: Final = Bound(16 << 20, 1_000_000)
"""What grows with queues, topics and messages under way; an outbox holds no more of it (`outbox.SMALL_BYTES_MAX`)."""
OPAQUE: Final = Bound(BODY_BYTES_CEILING, 10)
"""Bytes for somebody else, who has a bound of his own; an answer may hold a batch."""
FEW: Final = Bound(4 << 20, 100_000)
"""What grows with nodes, their lives and policies."""

BOUNDS: Final[Mapping[str, Bound]] = {
    **dict.fromkeys(("/mesh/replies", "/mesh/passed", "/mesh/topics", "/mesh/lend", "/mesh/retained"), MESSAGES),
    **dict.fromkeys(("/mesh/wants", "/mesh/credit", "/mesh/waiting", "/mesh/forgotten"), LISTS),
    **dict.fromkeys(("/mesh/settled", "/mesh/returned", "/mesh/held", "/mesh/holds"), LISTS),
    **dict.fromkeys(("/mesh/question", "/mesh/answer"), OPAQUE),
}
"""Of frames that are no batches; all others are FEW."""


def pack(frame: MeshFrame) -> tuple[str, bytes]:
    """(destination, body) of `frame`; the inverse of `decode`."""
    if isinstance(frame, Batches):
        return JOURNAL, frame.body
    destination, fields = _fields(frame)
    body: bytes = msgpack.packb(fields)
    return destination, body


def _fields(
    frame: Follows | Welcome | Gap | Hole | Topics | Lend | Forgotten | Waiting | Retained | Both | Paths,
) -> tuple[str, list[object]]:
    match frame:
        case Ack(frames, received, durable, direct, sent_us):
            named = None if direct is None else [value for origin in direct for value in origin]
            return "/mesh/ack", [frames, pack_vector(received), pack_vector(durable), named, sent_us]
        case Credit(offers):
            return "/mesh/credit", [[value for offer in offers for value in offer]]
        case Settled(dots):
            return "/mesh/settled", [pack_dot_groups(dots)]
        case Returned(returns):
            return "/mesh/returned", [
                [value for dot, why, asks in returns for value in (*dot.origin, dot.sequence, why, _pack_asks(asks))]
            ]
        case Held(keep, through):
            return "/mesh/held", [pack_dot_groups(keep), pack_vector(through)]
        case Welcome(vector, sent_us):
            return "/mesh/welcome", [pack_vector(vector), sent_us]
        case Gap(gaps):
            return "/mesh/gap", [pack_vector(dict(gaps))]
        case Hole(origins):
            return "/mesh/hole", [[value for origin in origins for value in origin]]
        case Topics(messages):
            return "/mesh/topics", [pack_messages(messages)]
        case Lend(messages, sent_us, terms, sender):
            runs = pack_messages(messages, sender)
            return "/mesh/lend", [runs, sent_us, dict(terms)] if terms else [runs, sent_us]
        case Retained(values):
            return "/mesh/retained", [pack_values(values)]
        case Forgotten(names):
            return "/mesh/forgotten", [names]
        case Waiting(queues):
            return "/mesh/waiting", [queues]
        case Replies(messages):
            return "/mesh/replies", [pack_messages(messages)]
        case Question(mark, body):
            return "/mesh/question", [mark, body]
        case Answer(mark, body):
            return "/mesh/answer", [mark, body]
        case MembershipFrame(standing):
            return "/mesh/members", pack_standing(standing)
        case Reach(mark, origins):
            return "/mesh/reach", [mark, [value for origin in sorted(origins) for value in origin]]
        case WantsPart(origin, base, version, whole, part, is_last, patterns):
            return "/mesh/wants", [*origin, base, version, whole, part, is_last, patterns]
        case Heard(versions):
            return "/mesh/heard", [[value for origin, version in versions for value in (*origin, version)]]
        case Passed(target, messages):
            are_replies = messages[0].envelope.kind is DestinationKind.REPLY
            return "/mesh/passed", [target, messages[0].origin.node, pack_messages(messages), are_replies]
        case _:
            return pack_terms(frame)


def _pack_asks(asks: Asks | None) -> list[object] | None:
    return None if asks is None else [asks.delivery_limit, asks.redelivery_us, asks.dead_letter]


def decode(table: Mapping[str, tuple[int, Check]], destination: str, body: bytes, sender: Sender) -> MeshFrame:
    """The frame that `sender` sent. Raises MeshError, code `bad-frame`, for anything that the table does not list."""
    row = table.get(destination)
    if row is None:
        raise MeshError("bad-frame", f"{shown(destination)} is not sent in this direction")
    least, check = row
    bound = BOUNDS.get(destination, FEW)
    if len(body) > bound.body_bytes_max:
        raise MeshError("bad-frame", f"{destination} of {len(body)} bytes is over {bound.body_bytes_max}")
    try:
        fields: object = unpack(body, bound.elements_max)
    except (ValueError, msgpack.UnpackException) as error:
        raise MeshError("bad-frame", f"the body of {destination} is not msgpack: {error}") from error
    try:
        return check(array(fields, least), sender)
    except MeshError as error:
        raise MeshError(error.code, f"{destination}: {error.message}") from error
