"""Login, versions, order of frames, and what a caller sees after an error."""

import pytest

from qmq.wire.stomp import Connection, HeadCaches, Limits, Role, State, Version
from tests.wire.support import LOGINS, code, fed, greeted, logged_in, pieces_of, value, values


@pytest.mark.parametrize("command", [b"CONNECT", b"STOMP"])
def test_login_settles_the_version_for_the_rest_of_the_same_chunk(command: bytes) -> None:
    connection = Connection(Role.SERVER)
    assert (connection.state, connection.version) == (State.EXPECT_CONNECT, Version.V10)

    frames = connection.receive(command + b"\naccept-version:1.1,1.2\n\n\0\nSEND\ndestination:a\\cb\nk:\\r\n\n\0")

    assert [frame.head.command for frame in frames] == [command.decode(), "SEND"]
    assert frames[1].head.headers == {"destination": "a:b", "k": "\r"}
    assert frames[1].head.version is Version.V12
    assert (connection.state, connection.version, connection.error) == (State.OPEN, Version.V12, None)


def test_login_is_never_unescaped() -> None:
    connection = Connection(Role.SERVER)

    frames = connection.receive(b"CONNECT\naccept-version:1.2\nlogin:DOMAIN\\new\npasscode:a:b\\c\n\n\0")

    assert frames[0].head.headers["login"] == "DOMAIN\\new"
    assert frames[0].head.headers["passcode"] == "a:b\\c"


def test_no_common_version_is_an_error_and_no_frame() -> None:
    connection = Connection(Role.SERVER)

    assert connection.receive(b"CONNECT\naccept-version:2.0\nreceipt:r\n\n\0SEND\n\n\0") == []

    assert code(connection) == "version-unsupported"
    assert connection.error_receipt == "r"
    assert connection.state is State.BROKEN


def test_frames_before_an_error_are_returned_and_nothing_after_it() -> None:
    connection = logged_in()

    frames = connection.receive(b"SEND\na:1\n\n\0SEND\na:\\t\nreceipt:77\n\n\0SEND\na:3\n\n\0")

    assert values(frames) == [("SEND", (("a", "1"),), b"", None)]
    assert code(connection) == "bad-escape"
    assert connection.error_receipt == "77"
    assert connection.state is State.BROKEN
    assert connection.receive(b"SEND\na:4\n\n\0") == []
    assert code(connection) == "bad-escape"


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (b"SEND\nreceipt:a\\cb\nbroken\n\n\0", "a:b"),
        (b"NOPE\r\nreceipt:5\r\n\r\n\0", "5"),
        (b"CONNECT\nreceipt:5\n\n\0", "5"),
        (b"ACK\nid:1\nreceipt:5\n\nbody\0", "5"),
        (b"SEND\nreceipt:5\ncontent-length:2\n\nabc\0", "5"),
        (b"SEND\nreceipt:5\ncontent-length:x\n\nabc\0", "5"),
        (b"SEND\nreceipt:5\nreceipt:6\ncontent-length:x\n\nabc\0", "5"),
        (b"SEND\nreceipt:\\t\n\n\0", None),
        (b"SEND\nreceipt:\xff\n\n\0", None),
        (b"SEND\na:\\t\n\n\0SEND\nreceipt:5\n\n\0", None),
        (b"DISCONNECT\nreceipt:5\n\0SEND\nreceipt:6\n\n\0", "5"),
        (b"DISCONNECT\n\0SEND\nreceipt:6\n\n\0", None),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 1000])
def test_receipt_of_the_offending_frame_is_known_when_it_was_readable(
    frame: bytes, expected: str | None, size: int
) -> None:
    connection = logged_in()

    fed(connection, pieces_of(frame, size))

    assert connection.error is not None
    assert connection.error_receipt == expected


def test_receipt_cut_short_by_the_error_is_not_believed() -> None:
    connection = logged_in()

    connection.receive(b"SEND\nreceipt:12")
    connection.receive(b"3\0")

    assert code(connection) == "bad-header"
    assert connection.error_receipt is None


def test_error_in_a_later_piece_of_a_body_still_knows_the_receipt() -> None:
    connection = logged_in()

    assert connection.receive(b"SEND\nreceipt:r9\ncontent-length:3\n\nab") == []
    assert connection.receive(b"cd\0") == []

    assert code(connection) == "missing-nul"
    assert connection.error_receipt == "r9"


def test_receipt_of_an_earlier_frame_is_not_taken_for_that_of_the_offending_one() -> None:
    connection = logged_in()

    connection.receive(b"SEND\nreceipt:old\n\nabc")
    connection.receive(b"\0ACK\nid:1\n\n\0ACK\nid:\\t\n\n\0")

    assert code(connection) == "bad-escape"
    assert connection.error_receipt is None


@pytest.mark.parametrize("command", ["SEND", "SUBSCRIBE", "ACK", "DISCONNECT", "BEGIN"])
def test_nothing_comes_before_the_login(command: str) -> None:
    connection = Connection(Role.SERVER)

    assert connection.receive(command.encode() + b"\nid:1\n\n\0") == []
    assert code(connection) == "not-connected"


def test_second_login_is_refused() -> None:
    connection = logged_in()

    assert connection.receive(LOGINS[Version.V12]) == []
    assert code(connection) == "already-connected"


def test_nothing_but_line_feeds_comes_after_disconnect() -> None:
    connection = logged_in()

    frames = connection.receive(b"DISCONNECT\nreceipt:bye\n\n\0\n\n\r\n")

    assert values(frames) == [("DISCONNECT", (), b"", "bye")]
    assert (connection.state, connection.error) == (State.CLOSING, None)
    assert connection.receive(b"SEND\ndestination:/queue/a\n\n\0") == []
    assert code(connection) == "after-disconnect"


def test_known_send_after_disconnect_is_refused_although_its_head_is_remembered() -> None:
    connection = logged_in()
    send = b"SEND\ndestination:/queue/a\n\nx\0\n"

    frames = connection.receive(send * 5 + b"DISCONNECT\n\n\0\n" + send)

    assert len(frames) == 6
    assert code(connection) == "after-disconnect"


def test_client_reads_what_servers_say() -> None:
    connection = Connection(Role.CLIENT)

    frames = connection.receive(
        b"CONNECTED\nversion:1.2\nserver:Q:1\\n\n\n\0\n\nMESSAGE\nk:\\n\ncontent-length:3\n\na\0b\0\n"
        b"RECEIPT\nreceipt-id:1\\c2\n\n\0\nERROR\nmessage:no\n\nwhy\0\n"
    )

    assert [value(frame) for frame in frames] == [
        ("CONNECTED", (("version", "1.2"), ("server", "Q:1\\n")), b"", None),
        ("MESSAGE", (("k", "\n"),), b"a\0b", None),
        ("RECEIPT", (("receipt-id", "1:2"),), b"", None),
        ("ERROR", (("message", "no"),), b"why", None),
    ]
    assert (connection.state, connection.version, connection.error) == (State.OPEN, Version.V12, None)


def test_client_whose_login_is_refused_reads_the_error_and_nothing_more() -> None:
    connection = Connection(Role.CLIENT)

    frames = connection.receive(b"ERROR\nmessage:no\n\n\0\n")

    assert values(frames) == [("ERROR", (("message", "no"),), b"", None)]
    assert connection.state is State.CLOSING


def test_client_does_not_obey_clients() -> None:
    connection = greeted()

    assert connection.receive(b"SEND\ndestination:/queue/a\n\n\0") == []
    assert code(connection) == "unknown-command"


def test_one_connection_with_small_limits_is_not_served_by_what_another_was_allowed() -> None:
    caches = HeadCaches()
    send = b"SEND\na:1\nb:2\nc:3\ncontent-length:20\n\n" + b"x" * 20 + b"\0"
    wide = logged_in(caches=caches)
    assert len(wide.receive(send * 5)) == 5

    few_headers = logged_in(limits=Limits(header_count_max=3), caches=caches)
    small_bodies = logged_in(limits=Limits(body_bytes_max=19), caches=caches)
    small_blocks = logged_in(limits=Limits(header_bytes_max=33), caches=caches)

    assert few_headers.receive(send) == [] and code(few_headers) == "too-many-headers"
    assert small_bodies.receive(send) == [] and code(small_bodies) == "body-too-large"
    assert small_blocks.receive(send) == [] and code(small_blocks) == "headers-too-large"
