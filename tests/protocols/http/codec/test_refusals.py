"""Requests that break a rule: each gets its status, and the connection ends."""

import pytest

from qmq.protocols.http.codec import HttpLimits, HttpRefusal
from qmq.protocols.http.codec.chunked import TRAILER_BYTES_MAX
from tests.protocols.http.codec.support import SMALL, chunked, connection, only, post, refused, request


@pytest.mark.parametrize(
    ("data", "status"),
    [
        pytest.param(request("GET / HTTP/1.1", host=False), 400, id="no host"),
        pytest.param(request("GET / HTTP/1.1", "Host: a"), 400, id="host twice"),
        pytest.param(request("GET / HTTP/1.0", "Host: b"), 400, id="host twice in 1.0"),
        pytest.param(request("GET / HTTP/1.1", "Host: a/b", host=False), 400, id="host with path"),
        pytest.param(request("GET / HTTP/1.1", "Host: a b", host=False), 400, id="host with blank"),
        pytest.param(
            request("POST / HTTP/1.1", "Content-Length: 3", "Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
            400,
            id="both framings",
        ),
        pytest.param(request("POST / HTTP/1.0", "Transfer-Encoding: chunked", body=b"0\r\n\r\n"), 400, id="chunks 1.0"),
        pytest.param(request("POST / HTTP/1.1", "Transfer-Encoding: gzip, chunked"), 501, id="two codings"),
        pytest.param(request("POST / HTTP/1.1", "Transfer-Encoding: xchunked"), 501, id="unknown coding"),
        pytest.param(
            request("POST / HTTP/1.1", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
            501,
            id="coding twice",
        ),
        pytest.param(request("POST / HTTP/1.1", "Transfer-Encoding : chunked"), 400, id="blank before colon"),
        pytest.param(
            request("POST / HTTP/1.1", "Content-Length: 3", "Content-Length: 3", body=b"abc"), 400, id="length twice"
        ),
        pytest.param(
            request("POST / HTTP/1.1", "Content-Length: 3", "Content-Length: 4", body=b"abcd"), 400, id="two lengths"
        ),
        pytest.param(request("POST / HTTP/1.1", "Content-Length: 3, 3", body=b"abc"), 400, id="list of lengths"),
        pytest.param(request("POST / HTTP/1.1", "Content-Length: +3", body=b"abc"), 400, id="signed length"),
        pytest.param(request("POST / HTTP/1.1", "Content-Length: 0x3", body=b"abc"), 400, id="hexadecimal length"),
        pytest.param(request("POST / HTTP/1.1", "Content-Length: -1"), 400, id="negative length"),
        pytest.param(request("POST / HTTP/1.1", "Content-Length: " + "9" * 30), 400, id="length of 30 digits"),
        pytest.param(request("GET / HTTP/1.1", "x: 1\r\n 2"), 400, id="folded line"),
        pytest.param(request("GET / HTTP/1.1", "x: 1\r\n\t2"), 400, id="folded line with tab"),
        pytest.param(request("GET / HTTP/1.1\r\n x: 1"), 400, id="folded first header"),
        pytest.param(request("GET / HTTP/1.1", "x: 1\rContent-Length: 3"), 400, id="bare CR"),
        pytest.param(request("GET / HTTP/1.1", "x: 1\nContent-Length: 3"), 400, id="bare LF"),
        pytest.param(b"GET / HTTP/1.1\nHost: a\n\n", 400, id="only LF"),
        pytest.param(request("GET / HTTP/1.1", "x: a\0b"), 400, id="NUL"),
        pytest.param(request("GET / HTTP/1.1", "x: a\x0bb"), 400, id="control character"),
        pytest.param(request("GET / HTTP/1.1", "no colon"), 400, id="no colon"),
        pytest.param(request("GET / HTTP/1.1", ": no name"), 400, id="no name"),
        pytest.param(request("GET / HTTP/1.1", "authorization: a", "Authorization: b"), 400, id="login twice"),
        pytest.param(request("GET / HTTP/1.1", "origin: a", "Origin: b"), 400, id="origin twice"),
        pytest.param(request("GET / HTTP/1.1", "content-type: a", "Content-Type: b"), 400, id="type twice"),
        pytest.param(request("GET / HTTP/1.1", "Expect: 200-ok"), 417, id="other expectation"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, id="HTTP/2"),
        pytest.param(request("GET / HTTP/1.2"), 505, id="HTTP/1.2"),
        pytest.param(request("GET / HTTP/0.9"), 505, id="HTTP/0.9"),
        pytest.param(b"GET /\r\n\r\n", 400, id="no version"),
        pytest.param(request("GET  / HTTP/1.1"), 400, id="two blanks"),
        pytest.param(request(" GET / HTTP/1.1"), 400, id="blank at the beginning"),
        pytest.param(request("G(T / HTTP/1.1"), 400, id="method that is no token"),
        pytest.param(b"\r\n\r\n\r\n", 400, id="blank lines"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, id="TLS"),
        pytest.param(b"CONNECT\naccept-version:1.2\nhost:a\n\n\0\n", 400, id="STOMP"),
        pytest.param(b"A" * 33, 400, id="no method"),
        pytest.param(request("GET http://b/ HTTP/1.1"), 400, id="absolute target of another host"),
        pytest.param(request("GET http://a:81/ HTTP/1.1"), 400, id="absolute target of another port"),
        pytest.param(request("GET http://a@b/ HTTP/1.1"), 400, id="absolute target with a user"),
        pytest.param(request("GET http://a/ HTTP/1.0", host=False), 400, id="absolute target without host"),
        pytest.param(request("CONNECT a:80 HTTP/1.1"), 501, id="CONNECT"),
        pytest.param(request("GET a HTTP/1.1"), 400, id="relative target"),
        pytest.param(request("GET * HTTP/1.1"), 400, id="asterisk"),
        pytest.param(request("GET /#x HTTP/1.1"), 400, id="fragment"),
        pytest.param(request("GET /%4 HTTP/1.1"), 400, id="broken escape"),
        pytest.param(request("GET /?a=%zz HTTP/1.1"), 400, id="broken escape in query"),
        pytest.param(request("GET /%ff HTTP/1.1"), 400, id="path not UTF-8"),
        pytest.param(request("GET /?%ff HTTP/1.1"), 400, id="query not UTF-8"),
        pytest.param(request("GET /a%00b HTTP/1.1"), 400, id="NUL in path"),
        pytest.param(request("GET /a%0Ab HTTP/1.1"), 400, id="line end in path"),
        pytest.param(request("GET /a/../b HTTP/1.1"), 400, id="dots"),
        pytest.param(request("GET /a/%2e%2E/b HTTP/1.1"), 400, id="encoded dots"),
        pytest.param(request("GET /. HTTP/1.1"), 400, id="dot"),
    ],
)
def test_request_is_refused(data: bytes, status: int) -> None:
    assert refused(data).status == status


@pytest.mark.parametrize(
    ("data", "status"),
    [
        pytest.param(b"GET /" + b"x" * 40, 414, id="target, incomplete"),
        pytest.param(request("GET /" + "x" * 40 + " HTTP/1.1"), 414, id="target"),
        pytest.param(request("GET / HTTP/1.1", "x: " + "x" * 200), 431, id="head"),
        pytest.param(request("GET / HTTP/1.1", "x: " + "x" * 200)[:201], 431, id="head, incomplete"),
        pytest.param(request("GET / HTTP/1.1", *(f"x{n}: 1" for n in range(5))), 431, id="count"),
        pytest.param(post(b"x" * 1001)[:-1001], 413, id="declared body"),
        pytest.param(chunked(b"x" * 500, b"x" * 501), 413, id="chunks"),
        pytest.param(chunked(b"x" * 999, end=b"2\r\n"), 413, id="chunk that only begins"),
        pytest.param(chunked(end=b"fffffff\r\n"), 413, id="large chunk"),
    ],
)
def test_limit_is_kept(data: bytes, status: int) -> None:
    assert refused(data, SMALL).status == status


@pytest.mark.parametrize(
    "data",
    [
        request("GET /" + "x" * 39 + " HTTP/1.1"),
        request("GET / HTTP/1.1", "x: " + "x" * (200 - len(request()) - 5)),
        request("GET / HTTP/1.1", *(f"x{n}: 1" for n in range(4))),
        post(b"x" * 1000),
        chunked(b"x" * 500, b"x" * 500),
    ],
)
def test_request_at_a_limit_is_taken(data: bytes) -> None:
    only(data, SMALL)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"1\r\nabc", id="longer than its size"),
        pytest.param(b"1\r\na\n0\r\n\r\n", id="LF after the data"),
        pytest.param(b"1\na\r\n0\r\n\r\n", id="LF after the size"),
        pytest.param(b"1\rxa\r\n0\r\n\r\n", id="CR alone after the size"),
        pytest.param(b"1;\n\r\na\r\n0\r\n\r\n", id="LF in the extension"),
        pytest.param(b"1;\rx\r\na\r\n0\r\n\r\n", id="CR in the extension"),
        pytest.param(b"1;" + b"x" * 200 + b"\r\n", id="long extension"),
        pytest.param(b"1;" + b"x" * 200, id="long extension, incomplete"),
        pytest.param(b" 1\r\n", id="blank before the size"),
        pytest.param(b"-1\r\n", id="negative size"),
        pytest.param(b"0x1\r\n", id="prefix"),
        pytest.param(b"1_0\r\n", id="underscore"),
        pytest.param(b"\r\n", id="no size"),
        pytest.param(b"000000001\r\n", id="size of nine digits"),
        pytest.param(b"0\r\nx\r\n\r\n", id="trailer without a colon"),
        pytest.param(b"0\r\nx : 1\r\n\r\n", id="blank before the colon of a trailer"),
        pytest.param(b"0\r\n x: 1\r\n\r\n", id="blank before a trailer"),
        pytest.param(b"0\r\nx: 1\n\r\n", id="LF after a trailer"),
        pytest.param(b"0\r\nx: 1\n\n", id="LF only after trailers"),
        pytest.param(b"0\r\nx: \0\r\n\r\n", id="NUL in a trailer"),
        pytest.param(b"0\r\nx: 1\rx: 2\r\n\r\n", id="CR in a trailer"),
        pytest.param(b"0\r\nx: " + b"x" * TRAILER_BYTES_MAX, id="long trailer, incomplete"),
        pytest.param(b"0\r\n" + b"x:1\r\n" * (TRAILER_BYTES_MAX // 5 + 1), id="many trailers"),
        pytest.param(b"0\r\n\n", id="LF at the end"),
    ],
)
def test_chunks_are_decoded_strictly(body: bytes) -> None:
    assert refused(request("POST / HTTP/1.1", "Transfer-Encoding: chunked", body=body)).status == 400


def test_very_small_chunks_are_bounded() -> None:
    assert len(only(chunked(*[b"x"] * 250)).body) == 250
    assert len(only(chunked(*[b"x" * 16] * 5000)).body) == 80000
    assert refused(chunked(*[b"x"] * 300)).status == 400


@pytest.mark.parametrize(
    "data", [b"G", request()[:-1], post(b"one")[:-1], chunked(b"one", end=b""), chunked(b"one", end=b"0\r\n\r")]
)
def test_end_within_a_request_is_refused(data: bytes) -> None:
    assert refused(data, ends=True).status == 400


def test_refusal_is_answered_and_nothing_more_is_read() -> None:
    reader = connection(request("GET / HTTP/1.1", host=False) + request())
    try:
        reader.next_request()
    except Exception:
        pass
    assert reader.must_close
    assert reader.unfinished_bytes == 0

    reply = reader.respond(400, (), b"why")

    assert reply.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert reply.endswith(b"connection: close\r\n\r\nwhy")
    reader.receive(request())
    assert reader.next_request() is None
    assert reader.unfinished_bytes == 0


def test_refusal_does_not_repeat_what_was_sent() -> None:
    for data in (
        request("GET / HTTP/1.1", "secret<>"),
        request("secret<> / HTTP/1.1"),
        request("GET /secret# HTTP/1.1"),
    ):
        refusal = refused(data)
        assert "secret" not in f"{refusal} {refusal.message} {refusal.detail}"


def test_body_is_refused_before_the_client_is_asked_for_it() -> None:
    reader = connection(post(b"x" * 1001, "Expect: 100-continue")[:-1001], SMALL)
    with pytest.raises(Exception, match="body-too-large"):
        reader.next_request()
    assert reader.interim() == b""


@pytest.mark.parametrize(
    "wrong", [{"target_bytes_max": 0}, {"head_bytes_max": 63}, {"body_bytes_max": -1}, {"body_bytes_max": 1 << 40}]
)
def test_limits_that_let_nothing_through_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        HttpLimits(**wrong)


@pytest.mark.parametrize("data", [post(b"x" * 20), chunked(b"x" * 10, b"x" * 10)], ids=["length", "chunks"])
def test_a_body_that_was_handed_out_has_the_bound_of_its_request(data: bytes) -> None:
    reader = connection(data)
    assert reader.next_request() is not None

    reader.bound_body(20)
    with pytest.raises(HttpRefusal, match="19 bytes"):
        reader.bound_body(19)
