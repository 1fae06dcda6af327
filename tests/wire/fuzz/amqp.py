"""AMQP connections with mistakes: in arguments, tables and properties, and in the frames themselves.

Most mistakes are in what a frame holds, because one in the frame ends the connection.
"""

import random
import struct
from contextlib import suppress
from warnings import catch_warnings

from pamqp import commands, encode

from qmq.protocols.amqp.codec.frames import (
    HEARTBEAT,
    PROTOCOL_HEADER,
    AmqpReader,
    Command,
    content_frames,
    method_frame,
)
from qmq.protocols.amqp.codec.methods import encode_method, read_ack, read_method, read_nack, read_publish
from qmq.protocols.amqp.codec.properties import read_properties, read_table
from qmq.protocols.amqp.codec.refusals import AmqpRefusal, ReplyCode
from tests.wire.fuzz.figures import Figures, cut

CHANNEL_MAX = 4
FRAME_BYTES_MAX = 4096
BODY_BYTES_MAX = 9000
FRAMES_OF_CONNECTION = 60
HELD_BYTES_MAX = FRAME_BYTES_MAX + (CHANNEL_MAX + 1) * (2 * FRAME_BYTES_MAX + BODY_BYTES_MAX)
"""A frame that is not complete, and on each channel a publish that is not."""

TABLE = {"a": 1, "text": "x" * 40, "in": {"b": [1, True, None, {"c": bytearray(3)}]}, "long": 1 << 40}


def _methods() -> list[bytes]:
    """Each method with its defaults, and some with arguments."""
    found: list[bytes] = []
    for kind in commands.INDEX_MAPPING.values():
        if kind.name != "Basic.Publish":
            # Some are deprecated; a client may send them nevertheless.
            with suppress(TypeError, ValueError), catch_warnings(action="ignore"):
                found.append(encode_method(kind()))
    found += [
        encode_method(commands.Connection.StartOk(TABLE, "PLAIN", "\0guest\0guest", "en_US")),
        encode_method(commands.Queue.Declare(0, "jobs", durable=True, arguments=TABLE)),
        encode_method(commands.Queue.Bind(0, "jobs", "orders", "eu.*", arguments=TABLE)),
        encode_method(commands.Exchange.Declare(0, "orders", "topic", arguments=TABLE)),
        encode_method(commands.Basic.Consume(0, "jobs", "tag", arguments=TABLE)),
        encode_method(commands.Connection.UpdateSecret("t" * 300, "renewed")),
    ]
    return found


METHODS = _methods()
PUBLISHES = [encode_method(commands.Basic.Publish(0, "orders", key)) for key in ("", "jobs", "k" * 200)]
PROPERTIES = [
    commands.Basic.Properties(**properties).marshal()
    for properties in (
        {},
        {"delivery_mode": 2},
        {"headers": TABLE, "priority": 3, "content_type": "a/b", "reply_to": "q", "message_id": "m" * 90},
        {"headers": {"deep": {"deep": {"deep": [[[[1]]]]}}}, "expiration": "60000", "app_id": "é"},
    )
]
TABLES = [encode.field_table(TABLE), encode.field_table({"deep": {"deep": [[[{"deep": 1.5}]]]}})]
SIZES = (0, 0, 1, 20, 20, 100, 100, 100, 700, 700, 4088, 4089, 9000, 9001, 12000)
BODY = bytes(range(256)) * 50
EDGES = (0, 1, 2, 3, 4, 7, 0x7F, 0x80, 0xCE, 0xFE, 0xFF)
LENGTHS = (0, 1, 4, 4088, 4089, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def connection(rng: random.Random, figures: Figures) -> None:
    """One connection until its end, read frame by frame and in other cuts. Raises what breaks a rule."""
    frames = [PROTOCOL_HEADER] if rng.random() < 0.99 else [rng.randbytes(8)]
    while len(frames) < FRAMES_OF_CONNECTION:
        frames += _publish(rng) if rng.random() < 0.35 else [_other(rng)]
    found: list[Command] = []
    reader = _reader()
    for data in frames:
        found += reader.receive(data)
        figures.frames += 1
        figures.hold(reader.unfinished_bytes, HELD_BYTES_MAX)
        if reader.error is not None:
            break
    other, again = _reader(), list[Command]()
    for part in cut(b"".join(frames), rng):
        again += other.receive(part)
        figures.hold(other.unfinished_bytes, HELD_BYTES_MAX)
    assert again == found, "the cuts of reads change the commands"
    assert repr(other.error) == repr(reader.error), (other.error, reader.error)
    assert reader.error is None or (not reader.unfinished_bytes and not other.unfinished_bytes)
    if reader.error is not None:
        assert isinstance(reader.error.reply, ReplyCode)
        figures.results[f"connections ended with {reader.error.reply.name}"] += 1
    for command in found:
        figures.results["commands"] += 1
        _decode(command, figures)
    _decode_table(rng, figures)


def _reader() -> AmqpReader:
    reader = AmqpReader(BODY_BYTES_MAX)
    reader.frame_bytes_max = FRAME_BYTES_MAX
    reader.channel_max = CHANNEL_MAX
    return reader


def _decode(command: Command, figures: Figures) -> None:
    """The arguments, and the properties of a publish: read, or refused with a code."""
    kind = command.class_id, command.method_id
    assert command.body is None or len(command.body) == command.size <= BODY_BYTES_MAX
    try:
        if kind == (60, 40):
            read_publish(command.arguments)
            read_properties(command.properties)
        elif kind == (60, 80):
            read_ack(command.arguments)
        elif kind == (60, 120):
            read_nack(command.arguments)
        else:
            read_method(command)
    except AmqpRefusal as refusal:
        assert len(refusal.text.encode()) < 256
        figures.results[f"arguments refused with {refusal.reply.name}"] += 1


def _decode_table(rng: random.Random, figures: Figures) -> None:
    try:
        read_table(_changed(rng.choice(TABLES), rng))
    except AmqpRefusal:
        figures.results["tables refused"] += 1


def _publish(rng: random.Random) -> list[bytes]:
    """A publish and its content, in as many frames as its client likes; sometimes one of them is wrong."""
    channel = rng.randint(0, CHANNEL_MAX)
    payload, properties = rng.choice(PUBLISHES), rng.choice(PROPERTIES)
    chance = rng.random()
    if chance < 0.2:
        payload = payload[:4] + _changed(payload[4:], rng)
    elif chance < 0.5:
        properties = _changed(properties, rng)
    size = rng.choice(SIZES)
    content = content_frames(channel, properties, BODY[:size], 4096 if size > 1000 else rng.choice((300, 4096)))
    frames = [method_frame(channel, payload)]
    at = 0
    while at < len(content):
        whole = struct.unpack_from(">I", content, at + 3)[0] + 8
        frames.append(content[at : at + whole])
        at += whole
    if rng.random() < 0.03:
        place = rng.randrange(len(frames))
        frames[place] = _broken(frames[place], rng)
    elif rng.random() < 0.02:
        frames.pop(rng.randrange(len(frames)))
    return frames


def _other(rng: random.Random) -> bytes:
    """A method, or a heart-beat, or a frame that is broken."""
    if rng.random() < 0.1:
        return HEARTBEAT
    payload = rng.choice(METHODS)
    chance = rng.random()
    if chance < 0.4:
        payload = payload[:4] + _changed(payload[4:], rng)
    elif chance < 0.45:
        payload = struct.pack(">HH", rng.randrange(100), rng.randrange(130)) + rng.randbytes(rng.randrange(40))
    whole = method_frame(rng.randint(0, CHANNEL_MAX), payload[: FRAME_BYTES_MAX - 8])
    return _broken(whole, rng) if rng.random() < 0.02 else whole


def _changed(data: bytes, rng: random.Random) -> bytes:
    """Other bytes for a few of `data`: values at the edges, lengths, and pieces that are missing or come twice."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(changed) + 1)
        kind = rng.randrange(6)
        if kind == 0:
            changed[at : at + 1] = bytes([rng.choice(EDGES)])
        elif kind == 1:
            changed[at : at + 1] = rng.randbytes(1)
        elif kind == 2:
            changed[at : at + 4] = struct.pack(">I", rng.choice(LENGTHS))
        elif kind == 3:
            del changed[at : at + rng.randint(1, 8)]
        elif kind == 4:
            changed[at:at] = changed[at : at + rng.randint(1, 60)]
        else:
            changed[at:at] = rng.choice((b"F\0\0\0\x06", b"A\0\0\0\x02tt", b"S\xff\xff\xff\xff", b"\xff\xfe", b"D\xff"))
    return bytes(changed[: FRAME_BYTES_MAX // 2])


def _broken(data: bytes, rng: random.Random) -> bytes:
    """A frame that is none any more, or one of another type, channel or size."""
    changed = bytearray(data)
    kind = rng.randrange(6)
    if kind == 0:
        changed[-1] ^= rng.randint(1, 255)
    elif kind == 1:
        changed[0] = rng.randrange(12)
    elif kind == 2:
        struct.pack_into(">H", changed, 1, rng.choice((0, 1, CHANNEL_MAX, CHANNEL_MAX + 1, 0xFFFF)))
    elif kind == 3:
        struct.pack_into(">I", changed, 3, rng.choice(LENGTHS))
    elif kind == 4:
        del changed[rng.randrange(len(changed)) :]
    else:
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)
