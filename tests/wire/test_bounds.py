"""Each limit: exactly that much passes, one more is refused, and refused before it is buffered."""

import pytest

from qmq.wire.stomp import Connection, Limits, Role, State
from tests.wire.support import code, fed, greeted, logged_in, pieces_of

SIZES = [1, 7, 100_000]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_header_count(size: int, line_end: bytes) -> None:
    limits = Limits(header_count_max=5)
    lines = [b"SEND", b"receipt:1"] + [b"h%d:v" % number for number in range(4)]

    fits = logged_in(limits=limits)
    assert len(fed(fits, pieces_of(line_end.join([*lines, b"", b"\0"]), size))) == 1

    over = logged_in(limits=limits)
    assert fed(over, pieces_of(line_end.join([*lines, b"x:y", b"", b"\0"]), size)) == []
    assert code(over) == "too-many-headers"
    assert "5" in str(over.error)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", [b"k", b"receipt", b"content-type"])
def test_header_line(size: int, name: bytes) -> None:
    limits = Limits(header_line_bytes_max=50)
    value = b"v" * (50 - len(name) - 1)

    fits = logged_in(limits=limits)
    assert len(fed(fits, pieces_of(b"SEND\na:1\n" + name + b":" + value + b"\nz:1\n\n\0", size))) == 1

    over = logged_in(limits=limits)
    assert fed(over, pieces_of(b"SEND\na:1\n" + name + b":" + value + b"v\nz:1\n\n\0", size)) == []
    assert code(over) == "header-line-too-long"
    assert "50" in str(over.error)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_header_block(size: int, line_end: bytes) -> None:
    block = line_end.join([b"SEND", b"a:" + b"v" * 30, b"b:" + b"v" * 30]) + line_end[:-1]
    limits = Limits(header_bytes_max=len(block))

    fits = logged_in(limits=limits)
    assert len(fed(fits, pieces_of(block + b"\n" + line_end + b"\0", size))) == 1

    over = logged_in(limits=limits)
    assert fed(over, pieces_of(block.replace(b"b:", b"b:+") + b"\n" + line_end + b"\0", size)) == []
    assert code(over) == "headers-too-large"
    assert str(len(block)) in str(over.error)


@pytest.mark.parametrize("size", SIZES)
def test_repeated_sends_do_not_slip_past_the_header_limits(size: int) -> None:
    limits = Limits(header_bytes_max=60, header_line_bytes_max=30)
    usual = b"SEND\nd:1\nreceipt:%d\n\nx\0\n"
    connection = logged_in(limits=limits)

    frames = fed(connection, pieces_of(b"".join(usual % 10**digits for digits in range(40)), size))

    assert len(frames) == 30 - len("receipt:")
    assert code(connection) == "header-line-too-long"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("length", [b"", b"content-length:%d\n"])
def test_body(size: int, length: bytes) -> None:
    limits = Limits(body_bytes_max=100)

    def send(count: int) -> bytes:
        return b"SEND\nd:1\n" + (length % count if length else b"") + b"\n" + b"x" * count + b"\0"

    fits = logged_in(limits=limits)
    assert len(fed(fits, pieces_of(send(100) * 5, size))) == 5

    over = logged_in(limits=limits)
    assert len(fed(over, pieces_of(send(100) * 5 + send(101), size))) == 5
    assert code(over) == "body-too-large"
    assert "100" in str(over.error)


def test_declared_body_is_refused_with_its_head() -> None:
    connection = logged_in(limits=Limits(body_bytes_max=100))

    connection.receive(b"SEND\nd:1\ncontent-length:101\n\n")

    assert code(connection) == "body-too-large"


def test_undeclared_body_is_refused_with_the_byte_that_is_too_much() -> None:
    connection = logged_in(limits=Limits(body_bytes_max=100))

    connection.receive(b"SEND\nd:1\n\n" + b"x" * 60)
    connection.receive(b"x" * 40)
    assert connection.error is None

    connection.receive(b"x")
    assert code(connection) == "body-too-large"


def test_head_that_never_ends_is_refused_at_its_limits() -> None:
    limits = Limits(header_line_bytes_max=100, header_count_max=10, header_bytes_max=500)

    line = logged_in(limits=limits)
    line.receive(b"SEND\nk:" + b"v" * 98)
    assert line.error is None
    line.receive(b"v")
    assert code(line) == "header-line-too-long"

    block = logged_in(limits=limits)
    block.receive(b"SEND\n" + b"k:%s\n" % (b"v" * 90) * 5)
    assert block.error is None
    block.receive(b"k:" + b"v" * 50)
    assert code(block) == "headers-too-large"

    count = logged_in(limits=limits)
    count.receive(b"SEND\n" + b"k:v\n" * 10)
    assert count.error is None
    count.receive(b"k:v\n")
    assert code(count) == "too-many-headers"


@pytest.mark.parametrize("size", SIZES)
def test_login(size: int) -> None:
    start = b"\n\nCONNECT\naccept-version:1.2\npasscode:"
    limits = Limits(login_bytes_max=100)
    padding = b"p" * (100 - len(start) - len(b"\n\n\0"))

    fits = Connection(Role.SERVER, limits)
    assert len(fed(fits, pieces_of(start + padding + b"\n\n\0\n\n" + b"SEND\nd:1\n\n" + b"x" * 500 + b"\0", size))) == 2
    assert fits.state is State.OPEN

    over = Connection(Role.SERVER, limits)
    assert fed(over, pieces_of(start + padding + b"p\n\n\0", size)) == []
    assert code(over) == "login-too-large"


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(b"\n" * 100, id="line feeds"),
        pytest.param(b"CONNECT\n" + b"k:v\n" * 23, id="headers"),
        pytest.param(b"CONNECT\nk:" + b"v" * 90, id="one line"),
        pytest.param(b"CONNECT\ncontent-length:80\n\n", id="declared body"),
    ],
)
def test_login_that_cannot_fit_any_more_is_refused_at_once(stream: bytes) -> None:
    connection = Connection(Role.SERVER, Limits(login_bytes_max=100))

    connection.receive(stream)

    assert code(connection) in ("login-too-large", "body-not-allowed")


def test_server_may_say_more_before_connected_than_a_client() -> None:
    connection = Connection(Role.CLIENT, Limits(login_bytes_max=100))

    frames = connection.receive(b"ERROR\nmessage:no\n\n" + b"x" * 500 + b"\0")

    assert len(frames) == 1


def test_limits_bind_the_client_side_too() -> None:
    connection = greeted(limits=Limits(body_bytes_max=10))

    connection.receive(b"MESSAGE\ncontent-length:11\n\n")

    assert code(connection) == "body-too-large"


@pytest.mark.parametrize("command", [b"X" * 33, b"SENDSENDSENDSENDSENDSENDSENDSENDS\n\n\0"])
def test_command_line_is_bounded(command: bytes) -> None:
    connection = logged_in()

    connection.receive(command)

    assert code(connection) == "unknown-command"


def test_shortest_possible_headers_are_counted_too() -> None:
    fits = logged_in()
    assert len(fits.receive(b"SEND\n" + b"a:\n" * 100 + b"\n\0")) == 1

    over = logged_in()
    assert over.receive(b"SEND\n" + b"a:\n" * 101 + b"\n\0") == []
    assert code(over) == "too-many-headers"


@pytest.mark.parametrize("start", [b"SEND\nd:1\nreceipt:", b"ACK\nsubscription:0\nid:"])
def test_long_value_among_usual_ones_is_refused(start: bytes) -> None:
    connection = logged_in()

    frames = connection.receive(b"".join(start + b"%d\n\n\0\n" % number for number in range(5)))
    assert len(frames) == 5

    assert connection.receive(b"\n" + start + b"x" * 8193 + b"\n\n\0\n") == []
    assert code(connection) == "header-line-too-long"
