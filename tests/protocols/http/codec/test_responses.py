"""Responses as bytes, in the order that HTTP allows."""

import h11
import pytest

from qmq.errors import LocalProtocolError
from tests.protocols.http.codec.support import connection, post, request


def test_response_is_whole_and_h11_reads_it() -> None:
    reader = connection(request())
    reader.next_request()
    reply = reader.respond(201, [("content-type", "text/plain")], b"body")

    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("host", "a")]))
    client.send(h11.EndOfMessage())
    client.receive_data(reply)
    head, body, end = client.next_event(), client.next_event(), client.next_event()
    assert isinstance(head, h11.Response) and head.status_code == 201 and head.reason == b"Created"
    assert list(head.headers) == [(b"content-type", b"text/plain"), (b"content-length", b"4")]
    assert isinstance(body, h11.Data) and body.data == b"body"
    assert isinstance(end, h11.EndOfMessage)


def test_response_to_head_has_the_length_and_no_body() -> None:
    reader = connection(request("HEAD / HTTP/1.1"))
    reader.next_request()

    assert reader.respond(200, (), b"body") == b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"


@pytest.mark.parametrize("status", [204, 304])
def test_response_without_a_body_has_no_length(status: int) -> None:
    reader = connection(request())
    reader.next_request()
    reply = reader.respond(status, (), b"body")

    assert b"content-length" not in reply and reply.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb", "a\rb", "a\0b"])
def test_header_that_would_end_its_line_is_refused_and_changes_nothing(value: str) -> None:
    reader = connection(request())
    reader.next_request()
    for call in (reader.respond, reader.begin_stream):
        with pytest.raises(LocalProtocolError):
            call(200, [("x", value)])
    with pytest.raises(LocalProtocolError):
        reader.respond(200, [(value, "x")])

    assert reader.respond(500).startswith(b"HTTP/1.1 500 ")


def test_response_needs_a_request() -> None:
    reader = connection(request())
    for _ in range(2):
        with pytest.raises(LocalProtocolError):
            reader.respond(200)
        with pytest.raises(LocalProtocolError):
            reader.begin_stream(200)
        with pytest.raises(LocalProtocolError):
            reader.switch([])
        assert reader.next_request() is not None
        reader.respond(200)
        reader.receive(request())


def test_stream_has_no_length_and_ends_with_the_connection() -> None:
    reader = connection(request())
    reader.next_request()
    reply = reader.begin_stream(200, [("content-type", "text/event-stream")])

    assert reply == b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    assert reader.must_close
    reader.receive(request() * 100)
    assert reader.next_request() is None
    assert reader.unfinished_bytes == 0


def test_switch_hands_over_the_bytes_that_follow() -> None:
    reader = connection(request() + b"\x81\x80")
    reader.next_request()
    reader.receive(b"abcd")
    reply = reader.switch([("upgrade", "websocket"), ("connection", "Upgrade")])

    assert reply == b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\r\n"
    assert reader.take_leftover() == b"\x81\x80abcd"
    assert reader.take_leftover() == b""
    assert reader.unfinished_bytes == 0
    assert reader.next_request() is None
    with pytest.raises(LocalProtocolError):
        reader.receive(b"x")


def test_request_whose_body_is_missing_cannot_switch() -> None:
    reader = connection(post(b"one")[:-1])
    reader.next_request()

    with pytest.raises(LocalProtocolError):
        reader.switch([])
