"""AMQP frames: how reads are cut does not matter, and every bound is checked before bytes are kept."""

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import body, commands, frame, header

from qmq.protocols.amqp.codec.frames import (
    HEARTBEAT,
    LOGIN_FRAME_BYTES_MAX,
    PROTOCOL_HEADER,
    AmqpReader,
    Command,
    content_frames,
    method_frame,
)
from qmq.protocols.amqp.codec.methods import read_publish
from qmq.protocols.amqp.codec.refusals import ReplyCode


def reader(body_bytes_max: int = 1000) -> AmqpReader:
    found = AmqpReader(body_bytes_max)
    found.frame_bytes_max = 4096
    found.channel_max = 10
    return found


def publish(channel: int, content: bytes, key: str = "jobs", frame_bytes: int = 4096) -> bytes:
    """A publish as pamqp writes it."""
    parts = [
        frame.marshal(commands.Basic.Publish(0, "", key), channel),
        frame.marshal(header.ContentHeader(0, len(content), commands.Basic.Properties(content_type="a/b")), channel),
    ]
    most = frame_bytes - 8
    parts += [frame.marshal(body.ContentBody(content[at : at + most]), channel) for at in range(0, len(content), most)]
    return b"".join(parts)


STREAM = (
    PROTOCOL_HEADER
    + frame.marshal(commands.Channel.Open(), 1)
    + publish(1, b"")
    + HEARTBEAT
    + publish(2, b"x" * 900)
    + frame.marshal(commands.Basic.Ack(7, True), 1)
    + publish(1, b"\xce" * 50, frame_bytes=20)
)


def test_commands_of_a_stream_have_their_arguments_and_contents() -> None:
    commands_read = reader().receive(STREAM)

    assert [(one.channel, one.class_id, one.method_id) for one in commands_read] == [
        (1, 20, 10),
        (1, 60, 40),
        (2, 60, 40),
        (1, 60, 80),
        (1, 60, 40),
    ]
    assert [one.body for one in commands_read] == [b"", b"", b"x" * 900, b"", b"\xce" * 50]
    assert read_publish(commands_read[1].arguments) == ("", "jobs", 0)


@given(st.lists(st.integers(1, len(STREAM) - 1), max_size=40))
def test_chunking_does_not_matter(cuts: list[int]) -> None:
    whole = reader().receive(STREAM)
    cut = reader()
    found: list[Command] = []
    edges = [0, *sorted(set(cuts)), len(STREAM)]
    for begin, end in zip(edges, edges[1:], strict=False):
        found += cut.receive(STREAM[begin:end])

    assert found == whole
    assert cut.error is None and cut.unfinished_bytes == 0


@given(st.binary(max_size=300))
def test_any_bytes_are_commands_or_one_error(data: bytes) -> None:
    found = reader()

    found.receive(PROTOCOL_HEADER + data)
    found.receive(data)

    assert found.error is None or found.unfinished_bytes == 0


@given(st.integers(8, len(STREAM) - 1), st.integers(0, 255))
def test_a_changed_byte_breaks_no_bound(at: int, value: int) -> None:
    found = reader()
    data = bytearray(STREAM)
    data[at] = value

    found.receive(bytes(data))

    assert found.unfinished_bytes <= len(STREAM)
    assert found.error is None or isinstance(found.error.reply, ReplyCode)


def test_another_protocol_is_an_error() -> None:
    found = AmqpReader(0)

    found.receive(b"CONNECT\n")

    assert found.error is not None and not found.is_greeted


def test_the_header_of_the_protocol_may_come_byte_by_byte() -> None:
    found = AmqpReader(0)
    for at in range(8):
        assert not found.is_greeted
        found.receive(PROTOCOL_HEADER[at : at + 1])

    assert found.is_greeted and found.error is None


def test_a_frame_that_is_too_long_is_refused_at_its_first_seven_bytes() -> None:
    found = AmqpReader(0)

    found.receive(PROTOCOL_HEADER + struct.pack(">BHI", 1, 0, LOGIN_FRAME_BYTES_MAX))

    assert found.error is not None and found.error.reply is ReplyCode.FRAME_ERROR
    assert found.unfinished_bytes == 0


def test_a_body_that_is_too_long_is_skipped_and_its_command_says_so() -> None:
    found = reader(body_bytes_max=10)

    first, second = found.receive(PROTOCOL_HEADER + publish(1, b"x" * 11) + publish(1, b"y" * 10))

    assert (first.body, first.size) == (None, 11)
    assert second.body == b"y" * 10
    assert found.unfinished_bytes == 0


def test_a_body_that_is_not_complete_counts_as_held() -> None:
    found = reader()
    data = PROTOCOL_HEADER + publish(1, b"x" * 100, frame_bytes=58)

    found.receive(data[:-30])

    assert found.unfinished_bytes > 70


@pytest.mark.parametrize(
    ("data", "reply"),
    [
        (method_frame(11, b"\0\x14\0\x0a\0"), ReplyCode.NOT_ALLOWED),
        (method_frame(1, b"\0\x14"), ReplyCode.FRAME_ERROR),
        (method_frame(1, b"\0\x14\0\x0a")[:-1] + b"\0", ReplyCode.FRAME_ERROR),
        (struct.pack(">BHI", 9, 0, 0) + b"\xce", ReplyCode.FRAME_ERROR),
        (content_frames(1, b"\0\0", b"x", 4096), ReplyCode.UNEXPECTED_FRAME),
        (frame.marshal(commands.Basic.Publish(), 1) + method_frame(1, b"\0\x14\0\x0a\0"), ReplyCode.UNEXPECTED_FRAME),
        (
            frame.marshal(commands.Basic.Publish(), 1) + struct.pack(">BHI", 2, 1, 4) + b"abcd\xce",
            ReplyCode.FRAME_ERROR,
        ),
        (
            frame.marshal(commands.Basic.Publish(), 1)
            + content_frames(1, b"\0\0", b"x", 4096)[:22].replace(b"\x3c", b"\x32"),
            ReplyCode.FRAME_ERROR,
        ),
    ],
)
def test_broken_frames_have_the_right_code(data: bytes, reply: ReplyCode) -> None:
    found = reader()

    found.receive(PROTOCOL_HEADER + data)

    assert found.error is not None and found.error.reply is reply


def test_after_an_error_nothing_is_read() -> None:
    found = reader()
    found.receive(PROTOCOL_HEADER + struct.pack(">BHI", 9, 0, 0) + b"\xce")

    assert found.receive(STREAM) == []


@given(st.binary(max_size=400), st.integers(9, 120))
def test_contents_are_cut_into_frames_that_fit(content: bytes, frame_bytes_max: int) -> None:
    written = content_frames(3, b"\0\0", content, frame_bytes_max)

    kind, channel, size = struct.unpack_from(">BHI", written)
    assert (kind, channel) == (2, 3)
    at = size + 8
    found = b""
    while at < len(written):
        kind, channel, size = struct.unpack_from(">BHI", written, at)
        assert (kind, channel) == (3, 3) and size + 8 <= frame_bytes_max
        found += written[at + 7 : at + 7 + size]
        at += size + 8
    assert found == content


def test_a_body_in_tiny_frames_occupies_about_its_size() -> None:
    found = reader(body_bytes_max=100_000)
    whole = publish(1, b"ab" * 10_000, frame_bytes=10)
    found.receive(PROTOCOL_HEADER)
    tracemalloc.start()
    try:
        begin = tracemalloc.get_traced_memory()[0]
        for at in range(0, len(whole) - 10, 4000):
            found.receive(whole[at : min(at + 4000, len(whole) - 10)])
        held = tracemalloc.get_traced_memory()[0] - begin
    finally:
        tracemalloc.stop()

    assert found.unfinished_bytes > 19_000
    assert held < 3 * found.unfinished_bytes
    (command,) = found.receive(whole[-10:])
    assert command.body == b"ab" * 10_000 and type(command.body) is bytes
