"""A message and what it shares with its neighbours.

An **Envelope** is everything that messages with the same destination and the same header block have in common; the
gateway makes one per distinct header block and remembers it, so the cost of parsing and packing is paid once and
not per message. A **Message** is one body in such an envelope, with its dot. Both are plain slotted classes, not
dataclasses, because hundreds of thousands of them are made in a second.

Surprising: `tail`, `packed` and `wire…` are caches that other layers fill in (the gateway's encoded MESSAGE frame and
the journal's packed envelope). The broker never reads them; they live here so that they die with their message.
"""

from qmq.broker.destination import Kind
from qmq.dots import Dot, Origin


class Envelope:
    """Destination and headers of a message, as they travel unchanged through the mesh.

    `headers` is a raw block of STOMP 1.2 header lines, each ended by LF, without `destination`, `content-length`
    and the headers that were meant for the broker alone. `durable` says whether messages in it are journalled.
    """

    __slots__ = ("destination", "durable", "headers", "kind", "packed", "wire", "wire_lead", "wire_origin")

    def __init__(self, destination: str, kind: Kind, headers: bytes, durable: bool) -> None:
        self.destination = destination
        self.kind = kind
        self.headers = headers
        self.durable = durable
        self.packed = b""
        self.wire = b""
        self.wire_lead = b""
        self.wire_origin: Origin | None = None


class Message:
    """One message. Its dot is given at the decision and never changes; `body` is exactly the sender's bytes.

    Memory-only messages are numbered -1, -2, … by a counter of their own, so that journal sequences stay dense.
    `owner` is None for a message of this node, else the name of the peer that lent it to us for delivery.
    `attempts` counts the deliveries that came back; `settled` is set once and makes every queue skip it. `place` is
    its queue's: where in its order a message that comes back belongs.
    """

    __slots__ = (
        "attempts",
        "body",
        "envelope",
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
        self.tail = b""

    @property
    def dot(self) -> Dot:
        return Dot(self.origin, self.sequence)

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


class Gap:
    """A record of this node: records of `origin` up to and including `through` will never come here."""

    __slots__ = ("origin", "sequence", "through", "timestamp_us")

    def __init__(self, origin: Origin, through: int, sequence: int, timestamp_us: int) -> None:
        self.origin = origin
        self.through = through
        self.sequence = sequence
        self.timestamp_us = timestamp_us
