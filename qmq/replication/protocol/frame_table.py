"""The frame tables: a row of fields for each kind of frame, from which encoding, decoding, checks and bounds follow.

A row has a STOMP destination below `/mesh/`. The body is a msgpack array of the row's fields (`fields`); batches travel
as they lie in the journal. SEND goes from the pulling side, which dialled, to the serving side, MESSAGE back. Arrays
may be longer than this version expects: later elements are ignored, so a later version can add to them.

A peer is trusted to be a member of the mesh, not to be free of bugs: every type and range is checked, and the only
exception that leaves `decode` is MeshError.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgpack

from qmq.broker.consumers.subscription import Asks
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Message
from qmq.broker.takeover.leases import Beat, Bid, Term
from qmq.errors import MeshError
from qmq.model.members import Listing, Standing
from qmq.replication.interest.interest import NEVER
from qmq.replication.protocol import frames, values
from qmq.replication.protocol.fields import (
    BYTES,
    DOTS,
    NODE,
    NUMBER,
    ORIGIN,
    TRUTH,
    VECTOR,
    Field,
    from_to,
    groups,
    layout_of,
    list_of,
    map_of,
    optional,
    set_of,
    spread,
    struct,
    text_of,
)
from qmq.replication.protocol.frames import MeshFrame, Passed
from qmq.replication.protocol.values import Sender, array, shown
from qmq.storage.format.record import unpack
from qmq.wire.stomp.limits import BODY_BYTES_CEILING

BATCH_TYPE: Final = "application/x-qmq-batch"
MSGPACK_TYPE: Final = "application/msgpack"

NAMES_MAX: Final = 1000
"""Of one list, and of retired nodes: far beyond what a mesh has in its life, and a bound all the same."""

DISK_CHARACTERS_MAX: Final = 100

KIND_CHARACTERS_MAX: Final = 32

# Fields of these frames alone


def _messages(kind: DestinationKind) -> Field:
    """Runs of messages; those that are lent name their owner where it is not the frame's sender."""
    is_lent = kind is DestinationKind.QUEUE
    return Field(
        lambda sender, runs: values.messages_of(runs, sender, kind),
        lambda messages, frame: values.pack_messages(messages, frame.sender if is_lent else None),
        is_of_link=True,
    )


def _passed_of(sender: Sender, node: object, runs: object, are_replies: object) -> list[Message]:
    kind = DestinationKind.REPLY if values.truth(are_replies) else DestinationKind.TOPIC
    return values.messages_of(runs, sender.on_behalf_of(values.node_name(node)), kind)


def _pack_passed(messages: list[Message], frame: Passed) -> list[object]:
    are_replies = messages[0].envelope.kind is DestinationKind.REPLY
    return [messages[0].origin.node, values.pack_messages(messages), are_replies]


PASSED: Final = Field(_passed_of, _pack_passed, 3, is_of_link=True)
"""The node that accepted the messages, runs of them, whether they are replies."""
RETAINED: Final = Field(values.value_of, values.pack_value, 8)
GAPS: Final = Field(lambda value: list(values.vector_of(value).items()), lambda gaps: values.pack_vector(dict(gaps)))
OFFER: Final = Field(values.offer_of)
ORIGINS: Final = list_of(ORIGIN, tuple)
DOT: Final = Field(values.dot_of, values.pack_dot, 3)
TERM: Final = from_to(1)
TERMS: Final = map_of(NODE, NUMBER)
LENT: Final = _messages(DestinationKind.QUEUE)
LENT_TERMS: Final = TERMS._replace(is_omitted=True)
VERSION: Final = from_to(NEVER)
OFFERS: Final = Field(values.offers_of, values.pack_offers)
PATTERN: Final = Field(values.pattern_of)
REASON: Final = Field(values.back_of)
RELEASED: Final = struct(Term, number=NUMBER, server=NODE)
HOPS: Final = map_of(NODE, from_to(1), NAMES_MAX)
"""Behind an element in which earlier versions reported their policies."""
STANDING: Final = spread(
    Standing,
    listing=spread(Listing, version=NUMBER, names=set_of(NODE, NAMES_MAX)),
    disk=text_of(DISK_CHARACTERS_MAX),
    is_learner=TRUTH,
    retired=list_of(Field(values.retirement_of, values.pack_retirement, 3), tuple, NAMES_MAX),
    heard_of=Field(lambda _, hops: HOPS.check(hops), lambda hops: [None, dict(hops)], 2),
)
REQUEST: Final = spread(frames.PeerRequest, kind=text_of(KIND_CHARACTERS_MAX), body=BYTES)
BEAT: Final = spread(
    Beat, stamp_us=NUMBER, echo_us=NUMBER, asks_echo=TRUTH, in_contact=TRUTH, claims=TERMS, promises=TERMS
)
ASKS: Final = struct(
    Asks,
    delivery_limit=optional(NUMBER),
    redelivery_us=optional(NUMBER),
    dead_letter=optional(Field(values.dead_letter_of)),
)


class Bound(NamedTuple):
    """How much one frame may be."""

    body_bytes_max: int
    elements_max: int
    """In all its arrays and maps together: an empty array is one byte here, and 64 in memory."""


MESSAGES: Final = Bound(18 << 20, 100_000)
"""One message of the most that a node takes (16 MiB and 1 MiB of headers), behind a quarter of a MiB of others."""
LISTS: Final = Bound(16 << 20, 1_000_000)
"""Grows with queues, topics and messages under way; an outbox holds no more of it (`outbox.SMALL_BYTES_MAX`)."""
OPAQUE: Final = Bound(BODY_BYTES_CEILING, 10)
"""Bytes that another part bounds; a response may hold a batch."""
FEW: Final = Bound(4 << 20, 100_000)
"""Grows with nodes, their incarnations and policies."""


class FrameKind(NamedTuple):
    """One row."""

    destination: str
    kind: type
    bound: Bound
    fields_min: int
    check: Callable[[list[object], Sender], Any]
    pack: Callable[[Any], list[Any]]


def _row(destination: str, kind: type, bound: Bound, **fields: Field) -> FrameKind:
    layout = layout_of(kind, fields)
    return FrameKind(destination, kind, bound, layout.elements_min, layout.check, layout.pack)


def _table(*rows: FrameKind) -> Mapping[str, FrameKind]:
    return {row.destination: row for row in rows}


JOURNAL: Final = "/mesh/journal"
"""Destination of Batches, and of the SUBSCRIBE that begins a link."""

COMMON_FRAMES: Final = _table(
    _row("/mesh/replies", frames.Replies, MESSAGES, messages=_messages(DestinationKind.REPLY)),
    _row("/mesh/question", frames.RequestFrame, OPAQUE, number=NUMBER, request=REQUEST),
    _row("/mesh/answer", frames.ResponseFrame, OPAQUE, number=NUMBER, body=BYTES),
    _row("/mesh/members", frames.MembershipFrame, FEW, standing=STANDING),
    _row("/mesh/reach", frames.Reach, FEW, number=NUMBER, origins=set_of(ORIGIN)),
    _row(
        "/mesh/wants",
        frames.InterestPart,
        LISTS,
        origin=ORIGIN,
        base=VERSION,
        version=NUMBER,
        whole=NUMBER,
        part=NUMBER,
        is_last=TRUTH,
        patterns=map_of(PATTERN, TRUTH),
    ),
    _row("/mesh/heard", frames.Heard, FEW, versions=groups(ORIGIN, VERSION)),
    _row("/mesh/passed", Passed, MESSAGES, target=NODE, messages=PASSED),
    _row("/mesh/beat", frames.HeartbeatFrame, FEW, beat=BEAT),
    _row(
        "/mesh/bid",
        frames.Ask,
        FEW,
        bid=spread(Bid, owner=NODE, term=TERM, candidate=NODE, released=optional(RELEASED)),
    ),
    _row("/mesh/vote", frames.Vote, FEW, owner=NODE, number=TERM, has=VECTOR),
    _row(
        "/mesh/release", frames.Release, LISTS, owner=NODE, number=NUMBER, has=optional(VECTOR), lent=map_of(NODE, DOTS)
    ),
    _row("/mesh/holds", frames.Holds, LISTS, owner=NODE, number=TERM, dots=DOTS),
)
FROM_PULLING_SIDE: Final = _table(
    *COMMON_FRAMES.values(),
    _row(
        "/mesh/ack",
        frames.Ack,
        FEW,
        frames=NUMBER,
        received=VECTOR,
        durable=VECTOR,
        direct=optional(ORIGINS),
        sent_us=NUMBER,
    ),
    _row("/mesh/credit", frames.Credit, LISTS, offers=OFFERS),
    _row("/mesh/settled", frames.Settled, LISTS, dots=DOTS),
    _row("/mesh/returned", frames.Returned, LISTS, returns=groups(DOT, REASON, optional(ASKS))),
    _row("/mesh/held", frames.Held, LISTS, keep=DOTS, through=VECTOR),
)
FROM_SERVING_SIDE: Final = _table(
    *COMMON_FRAMES.values(),
    _row("/mesh/welcome", frames.Welcome, FEW, vector=VECTOR, sent_us=NUMBER),
    _row("/mesh/gap", frames.Gap, FEW, gaps=GAPS),
    _row("/mesh/hole", frames.Hole, FEW, origins=ORIGINS),
    _row("/mesh/topics", frames.Topics, MESSAGES, messages=_messages(DestinationKind.TOPIC)),
    _row("/mesh/lend", frames.Lend, MESSAGES, messages=LENT, sent_us=NUMBER, terms=LENT_TERMS),
    _row("/mesh/retained", frames.Retained, MESSAGES, values=list_of(RETAINED)),
    _row("/mesh/forgotten", frames.Forgotten, LISTS, names=list_of(OFFER)),
    _row("/mesh/waiting", frames.Waiting, LISTS, queues=map_of(OFFER, TRUTH)),
)
_PACKS: Final = {
    row.kind: (row.destination, row.pack) for row in (*FROM_PULLING_SIDE.values(), *FROM_SERVING_SIDE.values())
}


def pack(frame: MeshFrame) -> tuple[str, bytes]:
    """(destination, body) of `frame`, which is not Batches; the inverse of `decode`."""
    destination, fields = _fields(frame)
    body: bytes = msgpack.packb(fields)
    return destination, body


def _fields(frame: MeshFrame) -> tuple[str, list[Any]]:
    destination, pack_fields = _PACKS[type(frame)]
    return destination, pack_fields(frame)


def decode(table: Mapping[str, FrameKind], destination: str, body: bytes, sender: Sender) -> MeshFrame:
    """The frame that `sender` sent. Raises MeshError, code `bad-frame`, for anything that the table does not list."""
    row = table.get(destination)
    if row is None:
        raise MeshError("bad-frame", f"{shown(destination)} is not sent in this direction")
    _, _, (body_bytes_max, elements_max), fields_min, check, _ = row
    if len(body) > body_bytes_max:
        raise MeshError("bad-frame", f"{destination} of {len(body)} bytes is over {body_bytes_max}")
    try:
        fields: object = unpack(body, elements_max)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise MeshError("bad-frame", f"the body of {destination} is not msgpack: {error}") from error
    try:
        frame: MeshFrame = check(array(fields, fields_min), sender)
    except MeshError as error:
        raise MeshError(error.code, f"{destination}: {error.message}") from error
    except (TypeError, OverflowError) as error:
        # What no check has looked at meets its annotation in compiled code: bytes as the name of a node, for example.
        raise MeshError("bad-frame", f"{destination}: a value is of another type") from error
    return frame
