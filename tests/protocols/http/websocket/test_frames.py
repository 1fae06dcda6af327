"""Frames of a client become payload; control frames are answered; broken ones end the connection with a code."""

import pytest

from qmq.protocols.http.websocket import WebSocketInput, WebSocketLimits
from tests.protocols.http.websocket.support import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    SMALL,
    close_frame,
    frame,
    opened,
    payload_of,
)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65535, 65536, 100000])
@pytest.mark.parametrize("opcode", [1, 2])
def test_message_of_any_size_is_read(size: int, opcode: int) -> None:
    payload = (b"0123456789" * (size // 10 + 1))[:size]
    got = opened(WebSocketLimits()).receive(frame(payload, opcode))

    assert got == WebSocketInput(payload)


def test_messages_of_one_read_are_joined() -> None:
    got = opened().receive(frame(b"one") + frame(b"\xff", BINARY) + frame(b"") + frame(b"t", fin=False))

    assert got == WebSocketInput(b"one\xfft")


def many(sizes: range) -> list[bytes]:
    """Messages of which each has another length, first byte and mask."""
    return [bytes([0x20 + size % 90]) * size for size in sizes]


def frames(payloads: list[bytes]) -> bytes:
    return b"".join([frame(one, mask=(7919 * len(one)).to_bytes(4, "big")) for one in payloads])


def test_many_messages_of_one_read_are_read() -> None:
    payloads = many(range(1, 400))
    got = opened(WebSocketLimits()).receive(frames(payloads) + frame(b"next")[:5])

    assert got == WebSocketInput(b"".join(payloads))


def test_text_that_is_no_text_far_behind_others_ends_the_connection_after_them() -> None:
    payloads = many(range(1, 400))
    got = opened(WebSocketLimits()).receive(frames([*payloads, b"\xff", b"more"]))

    assert (got.payload, got.close_code) == (b"".join(payloads), 1007)


def test_payload_is_passed_on_before_its_message_ends() -> None:
    reader = opened()
    whole = frame(b"0123456789")

    assert reader.receive(whole[:9]) == WebSocketInput(b"012")
    assert reader.receive(whole[9:14]) == WebSocketInput(b"34567")
    assert reader.receive(whole[14:]) == WebSocketInput(b"89")


def test_fragments_are_one_message_also_around_control_frames() -> None:
    reader = opened()
    got = reader.receive(
        frame(b"o", fin=False) + frame(b"ping", PING) + frame(b"n", 0, fin=False) + frame(b"e", 0) + frame(b"two")
    )

    assert got == WebSocketInput(b"onetwo", b"\x8a\x04ping")


def test_character_may_be_cut_between_fragments() -> None:
    text = "grün €".encode()
    reader = opened()
    got = [reader.receive(frame(text[:3], fin=False)), reader.receive(frame(text[3:], 0))]

    assert payload_of(got) == text


def test_last_ping_of_a_read_is_answered() -> None:
    got = opened().receive(frame(b"one", PING) + frame(b"x" * 125, PING))

    assert got == WebSocketInput(reply=b"\x8a\x7d" + b"x" * 125)


def test_pong_is_ignored() -> None:
    assert opened().receive(frame(b"any", PONG)) == WebSocketInput()


@pytest.mark.parametrize(
    ("payload", "code", "reason", "reply"),
    [
        (b"", 1005, "", b"\x88\x00"),
        (b"\x03\xe8", 1000, "", close_frame(1000)),
        (b"\x03\xe9bye", 1001, "bye", close_frame(1001)),
        (b"\x0f\xa0", 4000, "", close_frame(4000)),
    ],
)
def test_close_frame_is_answered_with_its_code(payload: bytes, code: int, reason: str, reply: bytes) -> None:
    reader = opened()
    got = reader.receive(frame(b"last") + frame(payload, CLOSE) + frame(b"after"))

    assert got == WebSocketInput(b"last", reply, code, reason)
    assert reader.is_closed
    assert reader.receive(frame(b"after") + frame(b"", PING)) == WebSocketInput()


def test_close_frame_is_sent_once() -> None:
    reader = opened()

    assert reader.close(1001, "node stops") == close_frame(1001, "node stops")
    assert reader.close(1000) == b""
    assert reader.receive(frame(b"\x03\xe9", CLOSE)) == WebSocketInput(close_code=1001)


def test_reason_is_cut_between_characters() -> None:
    sent = opened().close(1008, "é" * 100)

    assert sent == close_frame(1008, "é" * 61)
    assert len(sent) == 2 + 2 + 122


BROKEN = [
    pytest.param(frame(b"x", mask=None), 1002, id="not masked"),
    pytest.param(frame(b"x", bits=0x40), 1002, id="compressed"),
    pytest.param(frame(b"x", bits=0x10), 1002, id="reserved bit"),
    pytest.param(frame(b"x", PING, bits=0x20), 1002, id="reserved bit of a ping"),
    pytest.param(frame(b"x", 3), 1002, id="unknown opcode"),
    pytest.param(frame(b"x", 11), 1002, id="unknown control opcode"),
    pytest.param(frame(b"x", 0), 1002, id="continuation of nothing"),
    pytest.param(frame(b"x", fin=False) + frame(b"y"), 1002, id="message within a message"),
    pytest.param(frame(b"", fin=False) + frame(b"", 0) + frame(b"", 0), 1002, id="continuation after the end"),
    pytest.param(frame(b"x", PING, fin=False), 1002, id="fragmented ping"),
    pytest.param(frame(b"x" * 126, PING), 1002, id="long ping"),
    pytest.param(b"\x81\xfe\x00\x7d", 1002, id="length of 16 bits for 125"),
    pytest.param(b"\x81\xff" + (65535).to_bytes(8, "big"), 1002, id="length of 64 bits for 65535"),
    pytest.param(frame(b"\xff"), 1007, id="text not UTF-8"),
    pytest.param(frame(b"\xc3"), 1007, id="text that ends within a character"),
    pytest.param(frame(b"\xc3") + frame(b"\xa4"), 1007, id="character that is cut between messages"),
    pytest.param(frame("ä".encode()) + frame(b"\xff", BINARY) + frame(b"\xff"), 1007, id="text behind bytes"),
    pytest.param(frame(b"\xc3", fin=False) + frame(b"", 0), 1007, id="fragments that end within a character"),
    pytest.param(frame(b"\xed\xa0\x80"), 1007, id="surrogate"),
    pytest.param(frame(b"x", CLOSE), 1002, id="close frame of one byte"),
    pytest.param(frame(b"\x03\xe7", CLOSE), 1002, id="close code 999"),
    pytest.param(frame(b"\x03\xed", CLOSE), 1002, id="close code 1005"),
    pytest.param(frame(b"\x03\xf7", CLOSE), 1002, id="close code 1015"),
    pytest.param(frame(b"\x13\x88", CLOSE), 1002, id="close code 5000"),
    pytest.param(frame(b"\x03\xe8\xff", CLOSE), 1007, id="reason not UTF-8"),
    pytest.param(frame(b"x" * 301), 1009, id="large message"),
    pytest.param(frame(b"x" * 301)[:4], 1009, id="large message that only begins"),
    pytest.param(b"\x82\xff" + b"\xff" * 8, 1009, id="message of 2^64 bytes"),
    pytest.param(frame(b"x" * 200, fin=False) + frame(b"x" * 101, 0), 1009, id="large message in fragments"),
]


@pytest.mark.parametrize(("data", "code"), BROKEN)
def test_broken_frame_ends_the_connection_with_its_code(data: bytes, code: int) -> None:
    reader = opened()
    got = reader.receive(frame(b"before") + data)

    assert got.is_broken
    assert got.close_code == code
    assert got.payload[:6] == b"before"
    assert got.reply == close_frame(code, got.reason)
    assert got.reason
    assert reader.receive(frame(b"after")) == WebSocketInput()


@pytest.mark.parametrize("parts", [[300], [200, 100], [100, 100, 100, 0]])
def test_message_at_the_limit_is_taken(parts: list[int]) -> None:
    reader = opened()
    data = b"".join(frame(b"x" * size, 0 if at else 1, fin=at == len(parts) - 1) for at, size in enumerate(parts))

    assert payload_of([reader.receive(data), reader.receive(data)]) == b"x" * 600


def test_little_is_held_of_an_incomplete_frame() -> None:
    reader = opened(WebSocketLimits())
    reader.receive(frame(b"x" * 100000)[:50000])
    assert len(reader._unread) == 0
    reader.receive(frame(b"x" * 100000)[50000:] + frame(b"x" * 125, PING)[:-1])
    assert len(reader._unread) == 130


@pytest.mark.parametrize(("data", "opcode"), [(b"one", 0x81), ("grün".encode(), 0x81), (b"\xff", 0x82), (b"", 0x81)])
def test_text_is_sent_as_text_and_other_bytes_as_binary(data: bytes, opcode: int) -> None:
    assert opened().encode(data) == bytes([opcode, len(data)]) + data
    assert opened(is_text=False).encode(data) == bytes([0x82, len(data)]) + data


def test_close_without_a_code_has_no_payload() -> None:
    assert opened(SMALL).close(1005) == b"\x88\x00"
