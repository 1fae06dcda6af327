"""A message and what it shares with its neighbours.

An **Envelope** is everything that messages with the same destination and the same header block have in common; the
gateway makes one per distinct header block and remembers it, so the cost of parsing and packing is paid once and
not per message. A **Message** is one body in such an envelope, with its dot. Both are plain slotted classes, not
dataclasses, because hundreds of thousands of them are made in a second.

Surprising: `tail`, `packed` with `flags`, and `wire…` are caches that other layers fill in (the gateway's encoded
MESSAGE frame and the journal's packed envelope). The broker never reads them; they live here so that they die with
their message.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from qmq.broker.messages.dedup import dedup_key
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.send_options import SendOptions, options_of
from qmq.model.cursors import Move
from qmq.model.dots import Dot, Origin, Vector

KEPT_KINDS = (DestinationKind.QUEUE, DestinationKind.FANOUT)
"""Whose messages are known by their dedup ids."""


SEEN: Final = -1
"""In place of a number of failed deliveries: there was none, and yet a client may have seen the message."""


MAYBE_SEEN: Final = -2
"""As SEEN, for what a node has not handed out itself: an earlier life of it may have, or the node it serves for."""


class Retain(IntEnum):
    """What a topic message does to the last value of its topic (`qmq.broker.topics.retained`)."""

    NO = 0
    SET = 1
    REMOVE = 2


class Envelope:
    """Destination and headers of a message, as they travel unchanged through the mesh.

    `headers` is a raw block of STOMP 1.2 header lines, each ended by LF, without `destination`, `content-length`
    and the headers that were meant for the broker alone. `durable` says whether messages in it are journalled, `retain`
    what they do to the last value of their topic, `options` what the headers ask of a queue, None when nothing, `key`
    that of their dedup id (`dedup`), None when they have none. `copies` are the envelopes of the queues that get one:
    only the gateway of the node that accepts a message fills them in, so a message that comes from a peer is not copied
    again. A topic or an exchange keeps nothing, so the `key` of its messages is that of the first copy.
    """

    __slots__ = (
        "answers",
        "copies",
        "destination",
        "durable",
        "flags",
        "headers",
        "key",
        "kind",
        "packed",
        "properties",
        "retain",
        "options",
        "wire",
        "wire_lead",
        "wire_origin",
    )

    def __init__(self, destination: str, kind: DestinationKind, headers: bytes, durable: bool) -> None:
        self.destination = destination
        self.kind = kind
        self.headers = headers
        self.durable = durable
        self.options: SendOptions | None = options_of(headers) if kind is DestinationKind.QUEUE and headers else None
        self.key = dedup_key(destination, headers) if headers and kind in KEPT_KINDS else None
        self.retain = Retain.NO
        # Filled in when a selector first looks: see qmq.broker.selectors.properties.
        self.properties: dict[str, str] | None = None
        self.answers: dict[str, bool] | None = None
        self.copies: tuple[Envelope, ...] = ()
        self.packed = b""
        self.flags = 0
        self.wire = b""
        self.wire_lead = b""
        self.wire_origin: Origin | None = None

    def to(self, destination: str) -> "Envelope":
        """The same headers, which name no dedup id, to another destination of this kind, kept in the same way."""
        copy = Envelope(destination, self.kind, b"", self.durable)
        copy.headers = self.headers
        copy.options = self.options
        copy.retain = self.retain
        return copy

    def with_copies(self, copies: Sequence["Envelope"]) -> "Envelope":
        """The same, with only these of its copies."""
        left = Envelope(self.destination, self.kind, self.headers, self.durable)
        left.retain, left.copies = self.retain, tuple(copies)
        if self.kind in KEPT_KINDS:
            left.key = self.key
        else:
            left.key = copies[0].key if copies else None
        return left


class Message:
    """One message. Its dot is given at the decision and never changes; `body` is exactly the sender's bytes.

    Memory-only messages are numbered -1, -2, … by a counter of their own, so that journal sequences stay dense.
    `owner` is None for a message of this node, else the name of the peer that lent it to us for delivery; `lent_as` is
    the class of consumers that it is lent to (`consumer_class`).
    `attempts` counts the deliveries that failed, or is SEEN or MAYBE_SEEN; `settled` is set once and makes every queue
    skip it.
    `place` is its queue's: where in its order a message that comes back belongs.
    """

    __slots__ = (
        "attempts",
        "body",
        "envelope",
        "lent_as",
        "origin",
        "owner",
        "place",
        "sequence",
        "settled",
        "tail",
        "timestamp_us",
    )

    def __init__(self, envelope: Envelope, body: bytes, origin: Origin, sequence: int, timestamp_us: int) -> None:
        self.envelope = envelope
        self.body = body
        self.origin = origin
        self.sequence = sequence
        self.timestamp_us = timestamp_us
        self.attempts = 0
        self.place = 0
        self.settled = False
        self.owner: str | None = None
        self.lent_as = ""
        self.tail = b""

    @property
    def dot(self) -> Dot:
        return Dot(self.origin, self.sequence)

    def copy(self) -> "Message":
        """The same message as another object, distinguished by identity."""
        copy = Message(self.envelope, self.body, self.origin, self.sequence, self.timestamp_us)
        copy.attempts, copy.place, copy.settled = self.attempts, self.place, self.settled
        copy.owner, copy.lent_as, copy.tail = self.owner, self.lent_as, self.tail
        return copy

    @property
    def message_id(self) -> str:
        """What a client sees as `message-id`: the dot, with an `m` before the number of a memory-only message."""
        if self.sequence < 0:
            return f"{self.origin}-m{-self.sequence}"
        return f"{self.origin}-{self.sequence}"


class Settle:
    """A record of this node: these messages of `queue` need no consumer any more."""

    __slots__ = ("dots", "queue", "sequence", "timestamp_us")

    def __init__(self, queue: str, dots: list[Dot], sequence: int, timestamp_us: int) -> None:
        self.queue = queue
        self.dots = dots
        self.sequence = sequence
        self.timestamp_us = timestamp_us


class Attempts:
    """A record of this node: so often have these messages of `queue` come back."""

    __slots__ = ("counts", "queue", "sequence", "timestamp_us")

    def __init__(self, queue: str, counts: dict[Dot, int], sequence: int, timestamp_us: int) -> None:
        self.queue = queue
        self.counts = counts
        self.sequence = sequence
        self.timestamp_us = timestamp_us


class DeadLetter:
    """A record of this node: `dead_letter` is accepted, and the message `dot` of `queue`, which it is of, is
    settled."""

    __slots__ = ("dot", "dead_letter", "queue", "sequence", "timestamp_us")

    def __init__(self, dead_letter: Message, queue: str, dot: Dot) -> None:
        self.dead_letter = dead_letter
        self.queue = queue
        self.dot = dot
        self.sequence = dead_letter.sequence
        self.timestamp_us = dead_letter.timestamp_us


class Gap:
    """A record of this node: records of `origin` up to and including `through` will never come here."""

    __slots__ = ("origin", "sequence", "through", "timestamp_us")

    def __init__(self, origin: Origin, through: int, sequence: int, timestamp_us: int) -> None:
        self.origin = origin
        self.through = through
        self.sequence = sequence
        self.timestamp_us = timestamp_us


class Fact:
    """A record of this node about the mesh and no message; `kind` and `body` as the storage knows them."""

    __slots__ = ("body", "kind", "sequence", "timestamp_us")

    def __init__(self, kind: int, body: bytes, sequence: int, timestamp_us: int) -> None:
        self.kind = kind
        self.body = body
        self.sequence = sequence
        self.timestamp_us = timestamp_us


class Moved:
    """A record of this node: the cursor of a durable subscription began, moved, or was deleted."""

    __slots__ = ("move", "sequence", "timestamp_us")

    def __init__(self, move: Move, sequence: int, timestamp_us: int) -> None:
        self.move = move
        self.sequence = sequence
        self.timestamp_us = timestamp_us


class Deleted:
    """A record of this node: the fanout `destination` is deleted, up to the vector `before`."""

    __slots__ = ("before", "destination", "sequence", "timestamp_us")

    def __init__(self, destination: str, before: Vector, sequence: int, timestamp_us: int) -> None:
        self.destination = destination
        self.before = before
        self.sequence = sequence
        self.timestamp_us = timestamp_us


OwnRecord = Message | Settle | DeadLetter | Attempts | Gap | Moved | Fact | Deleted
"""What this node's journal says by itself."""
