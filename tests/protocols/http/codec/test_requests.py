"""What a request of HTTP/1.1 and HTTP/1.0 becomes, one at a time."""

import pytest

from qmq.errors import LocalProtocolError
from qmq.protocols.http.codec import HttpConnection, HttpLimits, HttpRefusal
from tests.protocols.http.codec.support import SMALL, chunked, connection, only, post, refused, request


def test_request_has_its_parts() -> None:
    got = only(post(b"one", "Content-Type: text/plain", target="/v1/queues/a%2Fb/messages?x=1&y=a+b&x=2"))

    assert (got.method, got.version, got.body, got.keep_alive) == ("POST", "1.1", b"one", True)
    assert got.path == ("v1", "queues", "a/b", "messages")
    assert got.query == {"x": "1", "y": "a b"}
    assert got.query_pairs == (("x", "1"), ("y", "a b"), ("x", "2"))
    assert got.headers == {"host": "a", "content-length": "3", "content-type": "text/plain"}


def test_repeated_header_that_is_a_list_is_joined() -> None:
    got = only(request("GET / HTTP/1.1", "Accept: text/plain", "ACCEPT: text/html"))

    assert got.headers["accept"] == "text/plain, text/html"


@pytest.mark.parametrize(("sent", "read"), [("grün".encode(), "grün"), ("grün".encode("latin-1"), "grün")])
def test_header_value_is_utf_8_or_else_latin_1(sent: bytes, read: str) -> None:
    assert only(b"GET / HTTP/1.1\r\nHost: a\r\nx: " + sent + b"\r\n\r\n").headers["x"] == read


@pytest.mark.parametrize(
    ("line", "header", "keeps"),
    [
        ("GET / HTTP/1.1", "x: 1", True),
        ("GET / HTTP/1.1", "Connection: keep-alive", True),
        ("GET / HTTP/1.1", "Connection: x, Close", False),
        ("GET / HTTP/1.0", "x: 1", False),
    ],
)
def test_connection_is_kept_as_the_request_says(line: str, header: str, keeps: bool) -> None:
    reader = connection(request(line, header))
    got = reader.next_request()
    reply = reader.respond(200)

    assert got is not None and got.keep_alive is keeps
    assert reader.must_close is not keeps
    assert (b"connection: close" in reply) is not keeps


def test_http_1_0_needs_no_host() -> None:
    assert only(request("GET /x HTTP/1.0", host=False)).path == ("x",)


def test_chunks_are_joined_and_extensions_ignored() -> None:
    body = b'3;a=b\r\nabc\r\nA \t;q="x"\r\n0123456789\r\n0\r\n\r\n'

    assert only(request("POST / HTTP/1.1", "Transfer-Encoding: Chunked", body=body)).body == b"abc0123456789"


def test_pipelined_requests_come_one_at_a_time() -> None:
    reader = connection(post(b"one") + chunked(b"t", b"wo") + request("GET /three HTTP/1.1"))
    bodies = []
    for _ in range(3):
        got = reader.next_request()
        assert got is not None
        assert reader.next_request() is None
        bodies.append(got.body)
        reader.respond(200)

    assert bodies == [b"one", b"two", b""]
    assert reader.next_request() is None
    assert reader.is_idle


def test_one_read_ahead_is_kept_and_no_more() -> None:
    reader = connection(request(), SMALL)
    assert reader.next_request() is not None

    reader.receive(b"x" * SMALL.unread_bytes_max)

    assert reader.unfinished_bytes == SMALL.unread_bytes_max
    with pytest.raises(LocalProtocolError):
        reader.receive(b"x")


def test_blank_line_after_a_body_is_skipped_once() -> None:
    reader = connection(post(b"one") + b"\r\n" + request("GET /two HTTP/1.1") + b"\r\n\r\n" + request())
    reader.next_request()
    reader.respond(200)
    second = reader.next_request()
    reader.respond(200)

    assert second is not None and second.path == ("two",)
    with pytest.raises(HttpRefusal):
        reader.next_request()


def test_heads_that_differ_in_their_length_have_bodies_of_their_own() -> None:
    reader = connection()
    for body in (b"one", b"two", b"", b"x" * 1000, b"12", b"two"):
        reader.receive(post(body, "x: 1"))
        got = reader.next_request()
        assert got is not None and got == only(post(body, "x: 1"))
        reader.respond(200)


@pytest.mark.parametrize(
    "second", ["", "+3", "3 3", "3, 3", "-3", "9" * 21, "3\r\nContent-Length: 3", "\xb2", "16777217"]
)
def test_length_after_an_equal_head_is_checked_as_every_other(second: str) -> None:
    first = request("POST / HTTP/1.1", "Content-Length: 3", "x: 1", body=b"abc")
    data = request("POST / HTTP/1.1", f"Content-Length: {second}", "x: 1", body=b"abc")
    reader = connection(first)
    reader.next_request()
    reader.respond(200)
    reader.receive(data)
    with pytest.raises(HttpRefusal) as refusal:
        reader.next_request()

    assert refusal.value.status == refused(data).status


def test_length_may_come_last_or_go() -> None:
    reader = connection()
    for data in (
        request("GET / HTTP/1.1"),
        request("GET / HTTP/1.1", "Content-Length:3 ", body=b"abc"),
        request("GET / HTTP/1.1", "Content-Length: 4 ", body=b"abcd"),
        request("GET / HTTP/1.1", "Content-Length:4 ", body=b"abcd"),
        request("GET / HTTP/1.1"),
    ):
        reader.receive(data)
        assert reader.next_request() == only(data)
        reader.respond(200)


@pytest.mark.parametrize("length", [0, 1, 300])
def test_what_it_holds_is_counted(length: int) -> None:
    whole = post(b"x" * 300)
    reader = connection(whole[: len(whole) - 300 + length][:-1])

    assert reader.next_request() is None
    assert reader.is_amid_request
    assert reader.unfinished_bytes == (len(whole) - 301 if length == 0 else length - 1)


@pytest.mark.parametrize("trailers", [b"x: 1\r\n", b"Content-MD5:\r\nHost: b\r\nx:\t\xff \r\n", b"x:1\r\n" * 1600])
@pytest.mark.parametrize("piece_bytes", [1, 7, 100_000])
def test_trailers_are_dropped(trailers: bytes, piece_bytes: int) -> None:
    # Go's Request.Trailer, and checksums of SDKs (RFC 9110, 6.5.1).
    data = chunked(b"one", end=b"0\r\n" + trailers + b"\r\n") + request("GET /two HTTP/1.1")
    reader = connection()

    found = []
    for start in range(0, len(data), piece_bytes):
        reader.receive(data[start : start + piece_bytes])
        if (got := reader.next_request()) is not None:
            found.append((got.path, got.body, got.headers["host"]))
            reader.respond(204)

    if (got := reader.next_request()) is not None:
        found.append((got.path, got.body, got.headers["host"]))
    assert found == [((), b"one", "a"), (("two",), b"", "a")]


def test_chunks_that_wait_for_the_end_are_counted() -> None:
    reader = connection(chunked(b"x" * 300, end=b""))

    assert reader.next_request() is None
    assert reader.unfinished_bytes == 300


def test_states_between_requests() -> None:
    reader = connection()
    assert reader.is_idle and not reader.is_amid_request and not reader.must_close
    reader.receive(b"G")
    assert reader.is_amid_request and not reader.is_idle
    reader.receive(request()[1:])
    reader.next_request()
    assert not reader.is_amid_request and not reader.is_idle
    reader.respond(200)
    assert reader.is_idle
    reader.receive(b"")
    assert reader.next_request() is None
    assert reader.must_close


def test_end_of_the_client_s_half_lets_its_request_be_answered_last() -> None:
    reader = connection(request())
    reader.receive(b"")
    assert reader.next_request() is not None
    assert not reader.must_close

    assert b"connection: close" in reader.respond(200)
    assert reader.must_close


def test_body_is_asked_for_once_when_it_waits_for_that() -> None:
    whole = post(b"one", "Expect: 100-Continue")
    reader = connection(whole[:-3])

    assert reader.next_request() is None
    assert reader.interim() == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert reader.interim() == b""
    reader.receive(b"one")
    got = reader.next_request()
    assert got is not None and got.body == b"one"


@pytest.mark.parametrize(
    "whole", [post(b"one", "Expect: 100-continue"), request("POST / HTTP/1.0", "Expect: 100-continue")]
)
def test_nothing_is_asked_for_when_the_body_is_there(whole: bytes) -> None:
    reader = connection(whole)

    assert reader.next_request() is not None
    assert reader.interim() == b""


def test_head_shows_a_request_before_its_body() -> None:
    reader = connection(post(b"one", target="/x")[:-1])

    assert reader.head is None
    assert reader.next_request() is None
    assert reader.head is not None and reader.head.path == ("x",)
    reply = reader.respond(401)
    assert b"connection: close" in reply
    assert reader.must_close
    reader.receive(b"e" + request())
    assert reader.next_request() is None
    assert reader.unfinished_bytes == 0


def test_what_stands_for_a_head_is_the_same_while_only_the_length_differs() -> None:
    http = HttpConnection(HttpLimits())
    seen = []
    for body, path in ((b"a", "/x"), (b"bcd", "/x"), (b"e", "/y")):
        http.receive(b"POST %b HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n%b" % (path.encode(), len(body), body))
        assert http.next_request() is not None
        seen.append(http.known)
        http.respond(200)

    assert seen[0] is not None and seen[1] is seen[0]
    assert seen[2] is not None and seen[2] is not seen[0]
