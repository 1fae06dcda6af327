"""Values inside mesh frames: packed for the wire, and checked when they come from it.

Each check takes what msgpack has found and returns it with its type known, or raises MeshError `bad-frame`; nothing
else ever leaves here. Names of topics and queues are checked by the broker's own rules. `frames` puts these values
together.
"""

from collections.abc import Iterable
from typing import Final

import msgpack

from qmq.broker.consumers.consumer_class import read_class, split_offer
from qmq.broker.consumers.replies import check_address
from qmq.broker.messages.destination import DestinationKind, check_pattern, is_pattern, kind_of
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import MAYBE_SEEN, Envelope, Message, Retain
from qmq.errors import MeshError, Refused
from qmq.model.cursors import Move
from qmq.model.dots import Dot, Origin, Vector
from qmq.model.members import Retirement
from qmq.storage.format.record import pack_dots

ENVELOPES_MAX: Final = 4096
"""Envelopes of forwarded messages that a link remembers; at the bound all are forgotten."""

DESTINATION_BYTES_MAX: Final = 1024
"""The most that any node may allow for a name; each node's own limit is for its own clients."""

SEQUENCE_MAX: Final = (1 << 63) - 1
"""No sequence, count or limit is beyond this; memory-only messages are numbered down to its negative."""

RETAIN_MAX: Final = max(Retain)

_U64_MAX: Final = (1 << 64) - 1
_NAME_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")


class Sender:
    """The sender on a link, for decoding: its name, and the envelopes it has used lately."""

    __slots__ = ("envelopes", "node")

    def __init__(self, node: str) -> None:
        self.node = node
        self.envelopes: dict[tuple[str, bytes, bool, int], Envelope] = {}

    def on_behalf_of(self, node: str) -> "Sender":
        """For what the sender passes on of another node."""
        if node == self.node:
            return self
        other = Sender(node)
        other.envelopes = self.envelopes
        return other


# Checks of single values. Each returns what it was given, with its type known.


def number(value: object, low: int = 0, high: int = SEQUENCE_MAX) -> int:
    if type(value) is not int or not low <= value <= high:
        raise MeshError("bad-frame", f"a number from {low} to {high} was expected, not {shown(value)}")
    return value


def array(value: object, length_min: int = 0) -> list[object]:
    if type(value) is not list or len(value) < length_min:
        raise MeshError("bad-frame", f"an array of at least {length_min} was expected, not {shown(value)}")
    return value


def pairs(value: object, width: int) -> list[object]:
    if type(value) is not list:
        raise MeshError("bad-frame", f"an array of groups of {width} was expected, not {shown(value)}")
    if len(value) % width:
        raise MeshError("bad-frame", f"an array of groups of {width} was expected, not {len(value)} elements")
    return value


def truth(value: object) -> bool:
    if type(value) is not bool:
        raise MeshError("bad-frame", f"true or false was expected, not {shown(value)}")
    return value


def octets(value: object) -> bytes:
    if type(value) is not bytes:
        raise MeshError("bad-frame", f"bytes were expected, not {shown(value)}")
    return value


def text(value: object) -> str:
    if type(value) is not str:
        raise MeshError("bad-frame", f"text was expected, not {shown(value)}")
    return value


def mapping(value: object) -> dict[str, object]:
    if type(value) is not dict:
        raise MeshError("bad-frame", f"a map was expected, not {shown(value)}")
    return value


def node_name(value: object) -> str:
    if type(value) is not str or not 1 <= len(value) <= 32 or not _NAME_CHARACTERS.issuperset(value):
        raise MeshError("bad-frame", f"a node's name was expected, not {shown(value)}")
    return value


def origin_of(node: object, incarnation: object) -> Origin:
    return Origin(node_name(node), number(incarnation, 0, _U64_MAX))


def name_of(value: object, kind: DestinationKind) -> str:
    name = text(value)
    try:
        if kind_of(name, DESTINATION_BYTES_MAX) is not kind:
            raise MeshError("bad-frame", f"a {kind.name.lower()} was expected, not {shown(name)}")
        if kind is DestinationKind.REPLY:
            check_address(name)
    except Refused as refused:
        raise MeshError("bad-frame", f"{shown(name)}: {refused.message}") from refused
    return name


def offer_of(value: object) -> str:
    """The name of an offer: a queue, and a class of consumers that this node understands
    (`broker.consumers.consumer_class`)."""
    name = text(value)
    queue, of = split_offer(name)
    name_of(queue, DestinationKind.QUEUE)
    class_of(of)
    return name


def pattern_of(value: object) -> str:
    """The name of a topic, or a pattern of topics."""
    name = name_of(value, DestinationKind.TOPIC)
    if is_pattern(name):
        try:
            check_pattern(name)
        except Refused as refused:
            raise MeshError("bad-frame", f"{shown(name)}: {refused.message}") from refused
    return name


def back_of(value: object) -> Back:
    return Back(number(value, 0, max(Back)))


def dead_letter_of(value: object) -> str:
    """A queue, or nothing."""
    return name_of(value, DestinationKind.QUEUE) if value else ""


def class_of(value: object) -> str:
    of = text(value)
    try:
        read_class(of)
    except Refused as refused:
        raise MeshError("bad-frame", f"{shown(of)}: {refused.message}") from refused
    return of


def shown(value: object) -> str:
    """What is wrong, short enough for a log and free of control characters."""
    text = ascii(value) if isinstance(value, (str, int, bool)) else type(value).__name__
    return text if len(text) <= 60 else text[:60] + "…"


# Values of several fields


def pack_vector(vector: Vector) -> dict[str, list[int]]:
    """node → incarnation, sequence, incarnation, sequence, …"""
    packed: dict[str, list[int]] = {}
    for (node, incarnation), sequence in vector.items():
        packed.setdefault(node, []).extend((incarnation, sequence))
    return packed


def vector_of(value: object) -> Vector:
    vector: Vector = {}
    for node, found in mapping(value).items():
        numbers = pairs(found, 2)
        name = node_name(node) if numbers else ""
        for index in range(0, len(numbers), 2):
            vector[Origin(name, number(numbers[index], 0, _U64_MAX))] = number(numbers[index + 1])
    return vector


def pack_dot_groups(dots: Iterable[Dot]) -> object:
    packed: object = msgpack.unpackb(pack_dots(dots))
    return packed


def check_dots(value: object) -> list[Dot]:
    """Dots in the form of a SETTLE record's body (`storage.format.record.pack_dots`), already unpacked."""
    dots: list[Dot] = []
    for item in array(value):
        group = array(item, 3)
        origin = origin_of(group[0], group[1])
        dots += [Dot(origin, number(sequence, -SEQUENCE_MAX)) for sequence in array(group[2])]
    return dots


def check_vector(vector: Vector) -> None:
    for origin, last in vector.items():
        origin_of(*origin)
        number(last)


def check_move(move: Move) -> None:
    """Types and bounds of what `storage.format.cursor_record` has unpacked: nothing there looks at them again."""
    for name in move.name:
        text(name)
    for value in (move.created_us, move.deleted_us, move.credit):
        number(value)
    for vector in (move.start, move.delivered_up_to):
        check_vector(vector or {})
    for origin, ranges in move.done.items():
        origin_of(*origin)
        for after, through in ranges:
            number(through, number(after))
    if move.holder is not None:
        stamp, holder = move.holder
        number(stamp)
        origin_of(*holder)
    if move.owner is not None:
        stamp, user = move.owner
        number(stamp)
        text(user)


def dot_of(node: object, incarnation: object, sequence: object) -> Dot:
    return Dot(origin_of(node, incarnation), number(sequence, -SEQUENCE_MAX))


def pack_dot(dot: Dot) -> tuple[str, int, int]:
    return *dot.origin, dot.sequence


def offers_of(value: object) -> list[tuple[str, int]]:
    """Offer and limit, offer and limit, …"""
    values = pairs(value, 2)
    return [(offer_of(values[at]), number(values[at + 1], -SEQUENCE_MAX)) for at in range(0, len(values), 2)]


def pack_offers(offers: Iterable[tuple[str, int]]) -> list[object]:
    return [value for offer in offers for value in offer]


def pack_messages(messages: list[Message], sender: str | None = None) -> list[list[object]]:
    """Runs of messages in one envelope: [destination, headers, durable, [five values per message …], retain].

    A sixth element names the class of consumers that they are lent to, when those are not plain; a seventh the node
    that accepted them, where a `sender` is given and it is not that one.
    """
    runs: list[list[object]] = []
    values: list[object] = []
    envelope: Envelope | None = None
    lent_as = owner = ""
    for message in messages:
        if message.envelope is not envelope or message.lent_as != lent_as or message.origin.node != owner:
            envelope = message.envelope
            lent_as = message.lent_as
            owner = message.origin.node
            values = []
            run: list[object] = [envelope.destination, envelope.headers, envelope.durable, values, int(envelope.retain)]
            if sender is not None and owner != sender:
                run += (lent_as, owner)
            elif lent_as:
                run.append(lent_as)
            runs.append(run)
        values += (
            message.origin.incarnation,
            message.sequence,
            message.timestamp_us,
            message.attempts,
            message.body,
        )
    return runs


def messages_of(value: object, sender: Sender, kind: DestinationKind) -> list[Message]:
    """A message belongs to the node that accepted it: that is the sender, unless a run of lent ones names another."""
    messages: list[Message] = []
    server = sender.node if kind is DestinationKind.QUEUE else None
    for item in array(value):
        run = array(item, 5)
        envelope = envelope_of(run, sender, kind)
        lent_as = class_of(run[5]) if len(run) > 5 and kind is DestinationKind.QUEUE else ""
        node = node_name(run[6]) if len(run) > 6 and kind is DestinationKind.QUEUE else sender.node
        low, high = (1, SEQUENCE_MAX) if envelope.durable else (-SEQUENCE_MAX, -1)
        values = pairs(run[3], 5)
        for index in range(0, len(values), 5):
            message = Message(
                envelope,
                octets(values[index + 4]),
                Origin(node, number(values[index], 0, _U64_MAX)),
                number(values[index + 1], low, high),
                number(values[index + 2], 0, SEQUENCE_MAX if envelope.retain else _U64_MAX),
            )
            message.attempts = number(values[index + 3], MAYBE_SEEN)
            message.owner = server
            message.lent_as = lent_as
            messages.append(message)
    return messages


def envelope_of(run: list[object], sender: Sender, kind: DestinationKind) -> Envelope:
    retain = number(run[4], 0, RETAIN_MAX) if kind is DestinationKind.TOPIC else 0
    key = (text(run[0]), octets(run[1]), truth(run[2]), retain)
    envelope = sender.envelopes.get(key)
    if envelope is None or envelope.kind is not kind:
        destination, headers, durable, _ = key
        name_of(destination, kind)
        _check_headers(headers)
        envelope = Envelope(destination, kind, headers, durable)
        envelope.retain = Retain(retain)
        if kind is DestinationKind.REPLY:
            return envelope  # no two replies share one, and remembering them would drive out those that are shared
        if len(sender.envelopes) >= ENVELOPES_MAX:
            sender.envelopes.clear()
        sender.envelopes[key] = envelope
    return envelope


def _check_headers(headers: bytes) -> None:
    if headers and (headers[-1] != 10 or headers[0] == 10 or b"\n\n" in headers or b"\0" in headers):
        raise MeshError("bad-frame", "headers are lines that end with LF, none of them empty")


def pack_value(message: Message) -> tuple[object, ...]:
    """The last value of a topic: destination, headers, node, incarnation, sequence, timestamp, retain, body."""
    envelope = message.envelope
    retain = int(envelope.retain)
    dot = pack_dot(message.dot)
    return envelope.destination, envelope.headers, *dot, message.timestamp_us, retain, message.body


def value_of(*values: object) -> Message:
    """The inverse of `pack_value`. The origin may be any node: peers pass on what others have set."""
    topic, headers, node, incarnation, sequence, timestamp_us, retain, body = values
    name = name_of(topic, DestinationKind.TOPIC)
    if is_pattern(name):
        raise MeshError("bad-frame", f"{shown(name)} is no single topic")
    lines = octets(headers)
    _check_headers(lines)
    envelope = Envelope(name, DestinationKind.TOPIC, lines, False)
    envelope.retain = Retain(number(retain, Retain.SET, RETAIN_MAX))
    origin = origin_of(node, incarnation)
    return Message(envelope, octets(body), origin, number(sequence, -SEQUENCE_MAX, -1), number(timestamp_us))


def retirement_of(node: object, adopter: object, sealed: object) -> Retirement:
    """Of what came in a frame; other nodes' incarnations are left out. Raises MeshError."""
    name = node_name(node)
    vector: Vector = {origin: last for origin, last in vector_of(sealed).items() if origin.node == name}
    return Retirement(node=name, adopter=node_name(adopter), sealed=vector)


def pack_retirement(retirement: Retirement) -> tuple[object, ...]:
    return retirement.node, retirement.adopter, pack_vector(retirement.sealed)
