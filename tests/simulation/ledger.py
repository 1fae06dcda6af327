"""What clients did and saw, as the checks need it. Clients write, nobody else.

Every message is sent once and has an id of its own at the start of its body, so what comes back can be matched without
trusting a header. A publisher never sends again what had no answer: its outcome stays unknown.
"""

import random
from dataclasses import dataclass, field

import trio

from qmq.dots import Dot, Origin, Vector, parse_origin


@dataclass(slots=True)
class Sent:
    """One message as its publisher sent it."""

    id: str
    publisher: str
    number: int
    destination: str
    body: bytes
    at: float
    """Virtual seconds."""
    transaction: int = 0
    """Which of its publisher's transactions it belongs to; 0: none."""
    receipted_by: Origin | None = None
    """The incarnation whose receipt the publisher has."""


@dataclass(slots=True)
class Stream:
    """What one fanout subscriber has been told, over all its connections."""

    subscriber: str
    destination: str
    seen: dict[Dot, str] = field(default_factory=dict)
    vector: Vector = field(default_factory=dict)


@dataclass(slots=True)
class Ledger:
    """The whole of it. `wrongs` are broken promises that a client noticed by itself."""

    sent: dict[str, Sent] = field(default_factory=dict)
    streams: list[Stream] = field(default_factory=list)
    listeners: dict[str, set[str]] = field(default_factory=dict)
    """What those got that listen to the topics without moving."""
    delivered: dict[str, int] = field(default_factory=dict)
    """Queue message → how often a consumer was given it."""
    consumed: set[str] = field(default_factory=set)
    """Queue messages that a consumer has worked on and sent an ACK for."""
    ack_receipted: dict[str, set[str]] = field(default_factory=dict)
    """Queue message → the nodes that have receipted an ACK of it."""
    redelivered_after_ack: list[str] = field(default_factory=list)
    again_at_same_node: list[tuple[str, str]] = field(default_factory=list)
    """(node, message): given again by the very node that had receipted the ACK."""
    wrongs: list[str] = field(default_factory=list)

    def send(self, publisher: str, number: int, destination: str, chance: random.Random) -> Sent:
        """A new message with a body that nothing else has; some hold NULs, some are larger than a segment."""
        message_id = f"{publisher}.{number}"
        size = chance.choice((0, 10, 10, 100, 100, 700, 6000))
        body = message_id.encode() + b"\0" + chance.randbytes(size)
        message = self.sent[message_id] = Sent(message_id, publisher, number, destination, body, trio.current_time())
        return message

    def match(self, where: str, destination: str, body: bytes) -> str | None:
        """The id of what was delivered, or None when nobody ever sent that; then it is noted as wrong."""
        message_id = id_of(body)
        sent = self.sent.get(message_id)
        if sent is None:
            self.wrongs.append(f"I2 invented: {where} got {body[:40]!r}, which nobody sent")
            return None
        if sent.body != body or sent.destination != destination:
            self.wrongs.append(f"I2 changed: {where} got {message_id} with another body or destination")
            return None
        return message_id

    def follow(self, stream: Stream, dot: Dot, message_id: str) -> None:
        """A fanout subscriber is told a message."""
        last = stream.vector.get(dot.origin, 0)
        if dot in stream.seen:
            self.wrongs.append(f"I5 twice: {stream.subscriber} got {dot} ({message_id}) again")
        elif dot.sequence <= last:
            self.wrongs.append(f"I4 order: {stream.subscriber} got {dot} ({message_id}) after {last}")
        stream.vector[dot.origin] = max(last, dot.sequence)
        stream.seen[dot] = message_id

    def give(self, message_id: str, node: str) -> None:
        """A consumer is given a queue message by `node`."""
        self.delivered[message_id] = self.delivered.get(message_id, 0) + 1
        if message_id in self.ack_receipted:
            self.redelivered_after_ack.append(message_id)
            if node in self.ack_receipted[message_id]:
                self.again_at_same_node.append((node, message_id))

    def receipt_of_ack(self, message_id: str, node: str) -> None:
        """A consumer hears from `node` that its ACK is recorded."""
        self.ack_receipted.setdefault(message_id, set()).add(node)

    @property
    def receipted(self) -> list[Sent]:
        return [message for message in self.sent.values() if message.receipted_by is not None]


def id_of(body: bytes) -> str:
    """The id at the start of a body; what comes before the first NUL."""
    return body.partition(b"\0")[0].decode("utf-8", "replace")


def dot_of(message_id: str) -> Dot:
    """The dot that a `message-id` header tells."""
    origin, _, sequence = message_id.rpartition("-")
    return Dot(parse_origin(origin), int(sequence))


def resume_header(vector: Vector) -> str:
    """`qmq-resume` for what has been seen."""
    return ",".join(f"{origin}={sequence}" for origin, sequence in vector.items())
