"""Bytes to frames: what ends a head, what ends a body, and what repeats."""

import pytest

from qmq.wire.stomp import Connection, Frame, HeadCaches, Limits, Version
from tests.wire.support import code, fed, logged_in, pieces_of, value, values


def one(connection: Connection, data: bytes) -> Frame:
    [frame] = connection.receive(data)
    return frame


@pytest.mark.parametrize(
    ("data", "headers", "body"),
    [
        pytest.param(b"SEND\na:1\n\nhello\0", {"a": "1"}, b"hello", id="body ends at NUL"),
        pytest.param(b"SEND\na:1\ncontent-length:5\n\na\0b\0c\0", {"a": "1"}, b"a\0b\0c", id="NUL in a counted body"),
        pytest.param(b"SEND\na:1\ncontent-length:0\n\n\0", {"a": "1"}, b"", id="counted empty body"),
        pytest.param(b"SEND\n\n\0", {}, b"", id="no headers"),
        pytest.param(b"SEND\na:1\n\n\n\nx\0", {"a": "1"}, b"\n\nx", id="body begins with LF"),
        pytest.param(b"SEND\na:1\n\n\r\nx\0", {"a": "1"}, b"\r\nx", id="body begins with CRLF"),
        pytest.param(b"SEND\r\na:1\r\n\r\nx\r\n\0", {"a": "1"}, b"x\r\n", id="CRLF lines"),
        pytest.param(b"SEND\r\na:1\r\n\n\r\nx\0", {"a": "1"}, b"\r\nx", id="CRLF lines, LF blank line"),
        pytest.param(b"SEND\na:1\n\r\n\nx\0", {"a": "1"}, b"\nx", id="LF lines, CRLF blank line"),
        pytest.param(b"SEND\r\ncontent-length:2\r\na:1\r\n\r\n\0\0\0", {"a": "1"}, b"\0\0", id="CRLF and length"),
        pytest.param(b"SEND\na:b:c\n\n\0", {"a": "b:c"}, b"", id="raw colon in a value"),
        pytest.param(b"SEND\na:1\na:2\n\n\0", {"a": "1"}, b"", id="first of repeated headers"),
        pytest.param(b"SEND\na:  1 \n\n\0", {"a": "  1 "}, b"", id="blanks are kept"),
        pytest.param(b"SEND\na:\n\n\0", {"a": ""}, b"", id="empty value"),
        pytest.param("SEND\n\u00e4:\u2603\n\n\0".encode(), {"\u00e4": "\u2603"}, b"", id="UTF-8"),
        pytest.param(b"SEND\na:\\n\\c\\\\\\r\n\n\0", {"a": "\n:\\\r"}, b"", id="four escapes"),
        pytest.param(
            b"SEND\ncontent-length:2\ncontent-length:1\n\nxy\0", {}, b"xy", id="first of repeated content-length"
        ),
        pytest.param(b"\n\r\n\n\nSEND\na:1\n\n\0\n\n\r\n", {"a": "1"}, b"", id="heart-beats around a frame"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_frame_is_read_however_it_is_cut(data: bytes, headers: dict[str, str], body: bytes, size: int) -> None:
    connection = logged_in()

    frames = fed(connection, pieces_of(data, size))

    assert values(frames) == [("SEND", tuple(headers.items()), body, None)]
    assert connection.error is None


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"SEND\na:\\t\n\n\0", "bad-escape"),
        (b"SEND\na:\\\n\n\0", "bad-escape"),
        (b"SEND\nno colon\n\n\0", "bad-header"),
        (b"SEND\n:v\n\n\0", "bad-header"),
        (b"SEND\na:1\n\0", "bad-header"),
        (b"SEND\na:\0\n\n\0", "bad-header"),
        (b"SEND\na:\xff\n\n\0", "bad-utf8"),
        (b"SEND\nreceipt:\xff\n\n\0", "bad-utf8"),
        (b"SEND\nreceipt:\\x\n\n\0", "bad-escape"),
        (b"SEND\ncontent-length:-1\n\n\0", "bad-content-length"),
        (b"SEND\ncontent-length:\n\n\0", "bad-content-length"),
        (b"SEND\ncontent-length:ten\n\n\0", "bad-content-length"),
        (b"SEND\ncontent-length:12345678901\n\n\0", "bad-content-length"),
        (b"SEND\ncontent-length:9999999999\n\n\0", "body-too-large"),
        (b"SEND\ncontent-length:2\n\nabc\0", "missing-nul"),
        (b"SEND\ncontent-length:0\n\nabc\0", "missing-nul"),
        (b"ACK\nid:1\n\nbody\0", "body-not-allowed"),
        (b"ACK\nid:1\ncontent-length:4\n\nbody\0", "body-not-allowed"),
        (b"SUBSCRIBE\nid:1\n\n\n \0", "body-not-allowed"),
        (b"SUBSCRIBE\nid:1\ncontent-length:1\n\n\n\0", "body-not-allowed"),
        (b"FOO\na:1\n\n\0", "unknown-command"),
        (b"send\na:1\n\n\0", "unknown-command"),
        (b" SEND\na:1\n\n\0", "unknown-command"),
        (b"\0", "unknown-command"),
        (b"\xff\xfe\n\n\0", "unknown-command"),
        (b"MESSAGE\na:1\n\n\0", "unknown-command"),
        (b"A" * 33, "unknown-command"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 1000])
def test_broken_rule_is_named_however_it_is_cut(data: bytes, expected: str, size: int) -> None:
    connection = logged_in()

    frames = fed(connection, pieces_of(data, size))

    assert frames == []
    assert code(connection) == expected
    assert connection.error is not None
    assert connection.error.message.isascii() and connection.error.message.isprintable()
    assert connection.error.detail.isascii() and connection.error.detail.isprintable()


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(b"GET / HTTP/1.1\r\n", id="HTTP"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01", id="TLS handshake"),
        pytest.param(b"AMQP\0\0\x09\x01", id="AMQP"),
        pytest.param(b"DISCONNECT\n\0", id="no blank line before NUL"),
    ],
)
def test_what_is_no_stomp_is_refused_without_waiting_for_more(start: bytes) -> None:
    connection = logged_in()

    connection.receive(start)

    assert connection.error is not None


def test_incomplete_frame_is_not_an_error() -> None:
    for cut in range(len(b"SEND\na:1\ncontent-length:2\n\nxy")):
        connection = logged_in()

        assert connection.receive(b"SEND\na:1\ncontent-length:2\n\nxy"[: cut + 1]) == []
        assert connection.error is None


def test_equal_blocks_share_one_head_across_connections() -> None:
    caches = HeadCaches()
    ann = logged_in(caches=caches)
    bob = logged_in(caches=caches)
    send = b"SEND\ndestination:/queue/a\n\nx\0"

    first = one(ann, send)
    first.head.memo = "made once"
    second = one(bob, send)

    assert second.head is first.head
    assert second.head.memo == "made once"


@pytest.mark.parametrize(
    ("one_block", "other_block"),
    [
        (b"SEND\nd:1\nreceipt:1", b"SEND\nd:1\nreceipt:2"),
        (b"SEND\nd:1\nreceipt:1", b"SEND\nreceipt:1\nd:1"),
        (b"SEND\nd:1\ncontent-length:2", b"SEND\nd:1"),
        (b"SEND\nd:1\ncontent-length:02", b"SEND\ncontent-length:2\nd:1"),
        (b"SEND\nd:1\nreceipt:1\ncontent-length:2", b"SEND\nreceipt:1\ncontent-length:02\nd:1"),
    ],
)
def test_blocks_that_differ_in_receipt_and_length_share_one_head(one_block: bytes, other_block: bytes) -> None:
    connection = logged_in()

    frames = connection.receive(one_block + b"\n\nxy\0" + other_block + b"\n\nxy\0")

    assert frames[0].head is frames[1].head
    assert frames[0].head.headers == {"d": "1"}
    assert [frame.body for frame in frames] == [b"xy", b"xy"]


def test_remembered_head_never_swallows_a_receipt_of_another_frame() -> None:
    caches = HeadCaches()
    logged_in(caches=caches).receive(b"SEND\nreceipt:a\nreceipt:b\n\nx\0" * 3)

    frame = one(logged_in(caches=caches), b"SEND\nreceipt:b\n\nx\0")

    assert frame.receipt == "b"


def test_remembered_head_never_swallows_a_length_of_another_frame() -> None:
    caches = HeadCaches()
    logged_in(caches=caches).receive(b"SEND\ncontent-length:1\ncontent-length:3\n\nx\0" * 3)

    frame = one(logged_in(caches=caches), b"SEND\ncontent-length:3\n\nx\0y\0")

    assert frame.body == b"x\0y"


def test_head_with_an_unfinished_line_is_not_taken_for_the_one_it_begins_like() -> None:
    connection = logged_in()
    connection.receive(b"SEND\nd:1\n\nx\0" * 3)

    assert connection.receive(b"SEND\nd:1") == []
    assert values(connection.receive(b"2\n\ny\0")) == [("SEND", (("d", "12"),), b"y", None)]


@pytest.mark.parametrize("beat", [b"", b"\n", b"\r\n", b"\n\n"])
def test_sends_that_count_their_receipts_up_are_read_one_by_one(beat: bytes) -> None:
    connection = logged_in()
    sends = [b"SEND\nd:1\nreceipt:%d\nk:v\n\nbody %d\0" % (number, number) for number in range(20)]

    frames = connection.receive(beat.join(sends))

    assert values(frames) == [
        ("SEND", (("d", "1"), ("k", "v")), b"body %d" % number, str(number)) for number in range(20)
    ]


@pytest.mark.parametrize(
    ("receipt", "expected"),
    [
        (b"", ""),
        (b"a\\cb", "a:b"),
        (b"\xe2\x98\x83", "\u2603"),
        (b"x" * 500, "x" * 500),
        (b"r\r", "r"),
        (b"a:b", "a:b"),
        (b"a\tb", "a\tb"),
    ],
)
def test_unusual_receipt_among_usual_ones(receipt: bytes, expected: str) -> None:
    connection = logged_in()
    usual = [b"SEND\nd:1\nreceipt:%d\nk:v\n\nx\0\n" % number for number in range(5)]
    unusual = b"SEND\nd:1\nreceipt:" + receipt + b"\nk:v\n\nx\0\n"

    frames = connection.receive(b"".join(usual) + unusual + usual[0])

    assert connection.error is None
    assert [frame.receipt for frame in frames] == ["0", "1", "2", "3", "4", expected, "0"]
    assert all(frame.head is frames[0].head for frame in frames)


@pytest.mark.parametrize(
    ("receipt", "expected"),
    [(b"\\t", "bad-escape"), (b"\xff", "bad-utf8"), (b"a\0b", "bad-header")],
)
def test_bad_receipt_among_usual_ones(receipt: bytes, expected: str) -> None:
    connection = logged_in()
    usual = [b"SEND\nd:1\nreceipt:%d\nk:v\n\nx\0\n" % number for number in range(5)]

    frames = connection.receive(b"".join(usual) + b"SEND\nd:1\nreceipt:" + receipt + b"\nk:v\n\nx\0\n")

    assert len(frames) == 5
    assert code(connection) == expected


@pytest.mark.parametrize("beat", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize(
    ("before", "name", "after"),
    [
        (b"ACK\n", "id", b""),
        (b"NACK\n", "id", b""),
        (b"ACK\n", "message-id", b"\nsubscription:0"),
        (b"ACK\nsubscription:0\n", "message-id", b""),
        (b"ACK\ncontent-type:a\n", "id", b"\ncontent-length:0"),
        (b"ACK\nid:same\nsubscription:0\n", "message-id", b""),
    ],
)
def test_acks_are_read_one_by_one(beat: bytes, before: bytes, name: str, after: bytes) -> None:
    connection = logged_in()
    values_sent = [b"1", b"2", b"3", b"a\\cb", b"", b"\xe2\x98\x83", b"x" * 300, b"4", b"a:b"]
    acks = [before + name.encode() + b":" + each + after + b"\n\n\0" for each in values_sent]

    frames = connection.receive(beat.join(acks))

    assert connection.error is None
    assert [frame.head.headers[name] for frame in frames] == [
        "1", "2", "3", "a:b", "", "\u2603", "x" * 300, "4", "a:b",
    ]  # fmt: skip
    fresh = [value(one(logged_in(), ack)) for ack in acks]
    assert values(frames) == fresh


def test_acks_do_not_share_their_headers() -> None:
    connection = logged_in()

    frames = connection.receive(b"".join(b"ACK\nid:%d\n\n\0" % number for number in range(5)))
    frames[3].head.headers["id"] = "changed"

    assert [frame.head.headers["id"] for frame in frames] == ["0", "1", "2", "changed", "4"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r\n\r\n"])
@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("gathers", [False, True])
def test_line_ends_alone_are_no_body_of_a_frame_that_has_none(end: bytes, size: int, gathers: bool) -> None:
    connection = logged_in(gathers=gathers)
    data = b"BEGIN\ntransaction:t\n\n" + end + b"\0" + b"".join(b"ACK\nid:%d\n\n%b\0" % (n, end) for n in range(5))

    frames = fed(connection, pieces_of(data, size))

    assert connection.error is None
    assert values(frames) == [
        ("BEGIN", (("transaction", "t"),), b"", None),
        *[("ACK", (("id", str(number)),), b"", None) for number in range(5)],
    ]


def test_endless_line_ends_in_place_of_a_body_are_refused() -> None:
    connection = logged_in(limits=Limits(body_bytes_max=100))

    connection.receive(b"ACK\nid:1\n\n" + b"\n" * 101)

    assert code(connection) == "body-too-large"


def test_an_undefined_escape_is_shown_as_it_was_sent() -> None:
    connection = logged_in()

    connection.receive(b"SEND\na:\\t\n\n\0")

    assert connection.error is not None
    assert connection.error.message == r"undefined escape '\t'"


def test_body_of_an_ack_is_refused_also_among_usual_ones() -> None:
    connection = logged_in()

    frames = connection.receive(b"ACK\nid:1\n\n\0" * 4 + b"ACK\nid:1\n\nbody\0")

    assert len(frames) == 4
    assert code(connection) == "body-not-allowed"


@pytest.mark.parametrize("known", [1, 2, 5])
def test_body_longer_than_declared_is_refused_also_among_usual_ones(known: int) -> None:
    connection = logged_in()

    frames = connection.receive(
        b"SEND\nd:1\ncontent-length:2\n\nxy\0\n" * known + b"SEND\nd:1\ncontent-length:2\n\nxyz\0\n"
    )

    assert len(frames) == known
    assert code(connection) == "missing-nul"


def test_version_1_0_keeps_backslashes_also_among_usual_acks() -> None:
    connection = logged_in(Version.V10)

    frames = connection.receive(b"".join(b"ACK\nmessage-id:a\\c%d\n\n\0" % number for number in range(4)))

    assert [frame.head.headers["message-id"] for frame in frames] == [f"a\\c{number}" for number in range(4)]


def test_large_body_arrives_in_many_reads_as_one_body() -> None:
    connection = logged_in()
    body = bytes(range(256)) * 2048
    stream = b"SEND\nd:1\ncontent-length:%d\n\n" % len(body) + body + b"\0\nSEND\nd:2\n\nx\0"

    frames = fed(connection, pieces_of(stream, 4096))

    assert [frame.body for frame in frames] == [body, b"x"]
