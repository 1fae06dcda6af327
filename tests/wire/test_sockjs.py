"""The frames of SockJS 0.3.3, and which response gets them."""

import json
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qmq.wire.http import HttpRefusal
from qmq.wire.sockjs import (
    SockJsLimits,
    SockJsResponse,
    SockJsSession,
    SockJsTransport,
    decode_messages,
    encode_info,
    split_route,
)

XHR, STREAMING = SockJsTransport.XHR, SockJsTransport.XHR_STREAMING
LIMITS = SockJsLimits(waiting_bytes_max=100, response_bytes_max=3000)


def opened() -> SockJsSession:
    """A session whose first poll got `o`."""
    session = SockJsSession(LIMITS, 0.0)
    assert poll(session) == b"o\n"
    return session


def poll(session: SockJsSession, now: float = 1.0) -> bytes:
    """A poll that ends with what is there."""
    response = session.attach(XHR)
    body = session.take(response)
    assert response.is_done
    session.detach(response, now)
    return body


@pytest.mark.parametrize(
    ("transport", "expected"),
    [
        (XHR, b"o\n"),
        (STREAMING, b"h" * 2048 + b"\no\n"),
        (SockJsTransport.EVENTSOURCE, b"\r\ndata: o\r\n\r\n"),
        (SockJsTransport.WEBSOCKET, b"o"),
    ],
)
def test_first_response_opens_the_session(transport: SockJsTransport, expected: bytes) -> None:
    session = SockJsSession(LIMITS, 0.0)
    response = session.attach(transport)

    assert session.take(response) == expected
    assert response.is_done is (transport is XHR)
    assert session.take(response) == b""


def test_event_source_escapes_what_its_client_decodes_as_a_uri() -> None:
    session = SockJsSession(LIMITS, 0.0)
    response = session.attach(SockJsTransport.EVENTSOURCE)
    session.take(response)
    session.send("100 % grün".encode())

    assert session.take(response) == b'data: a["100 %25 gr\\u00fcn"]\r\n\r\n'


def test_messages_wait_for_a_response_and_come_in_one_frame() -> None:
    session = opened()
    for data in ("one\0", "grün \u2028", '"\\'):
        assert session.send(data.encode())
    assert session.waiting_bytes == 15

    body = poll(session)

    assert body == b'a["one\\u0000","gr\\u00fcn \\u2028","\\"\\\\"]\n'
    assert json.loads(body[1:]) == ["one\0", "grün \u2028", '"\\']
    assert session.waiting_bytes == 0


def test_poll_waits_for_its_frame() -> None:
    session = opened()
    response = session.attach(XHR)
    assert session.take(response) == b""
    assert not response.is_done
    session.send(b"one")

    assert session.take(response) == b'a["one"]\n'
    assert response.is_done


def test_stream_ends_at_its_limit_and_the_next_one_goes_on() -> None:
    session = SockJsSession(LIMITS, 0.0)
    response = session.attach(STREAMING)
    size, numbers = len(session.take(response)), []
    while not response.is_done:
        numbers.append(f"{len(numbers)}")
        session.send(numbers[-1].encode())
        size += len(session.take(response))
    session.send(b"last")
    assert session.take(response) == b""
    session.detach(response, 1.0)

    assert LIMITS.response_bytes_max <= size < LIMITS.response_bytes_max + 100
    assert session.take(session.attach(STREAMING)) == b"h" * 2048 + b'\na["last"]\n'


def test_heartbeat_ends_a_poll_and_not_a_stream() -> None:
    for transport in (XHR, STREAMING):
        response = SockJsResponse(transport, LIMITS)
        assert response.encode("h").endswith(b"h\n")
        assert response.is_done is (transport is XHR)


def test_second_response_is_refused_and_the_first_goes_on() -> None:
    session = opened()
    first = session.attach(STREAMING)
    second = session.attach(XHR)

    assert session.take(second) == b'c[2010,"Another connection still open"]\n'
    assert second.is_done
    session.detach(second, 1.0)
    session.interrupt(second, 1.0)
    session.send(b"one")
    assert session.take(first).endswith(b'a["one"]\n')
    assert session.deadline == inf


def test_close_follows_what_waits_and_is_repeated() -> None:
    session = opened()
    session.send(b"last")
    session.close(3000, "Go away!")
    session.close(1000, "other")

    assert not session.send(b"late")
    assert poll(session) == b'a["last"]\n'
    assert [poll(session) for _ in range(2)] == [b'c[3000,"Go away!"]\n'] * 2


def test_close_frame_ends_a_stream() -> None:
    session = opened()
    response = session.attach(STREAMING)
    session.close(3000, "Go away!")
    session.take(response)

    assert response.is_done


def test_response_that_breaks_closes_the_session() -> None:
    session = opened()
    response = session.attach(STREAMING)
    session.send(b"lost")
    session.interrupt(response, 7.0)

    assert session.closed == (1002, "Connection interrupted")
    assert session.waiting_bytes == 0
    assert poll(session) == b'c[1002,"Connection interrupted"]\n'


def test_session_without_a_response_expires() -> None:
    session = SockJsSession(LIMITS, 10.0)
    assert session.deadline == 15.0
    assert not session.expire(14.9)
    response = session.attach(STREAMING)
    session.take(response)
    assert not session.expire(1e9)
    session.detach(response, 100.0)
    session.send(b"one")

    assert not session.expire(104.9)
    assert session.expire(105.0)
    assert session.closed == (1002, "Connection interrupted")
    assert session.waiting_bytes == 0


def test_waiting_bytes_are_bounded_but_for_one_large_message() -> None:
    session = opened()
    assert session.has_room(1000)
    session.send(b"x" * 60)
    assert session.has_room(40)
    assert not session.has_room(41)
    poll(session)
    assert session.has_room(1000)


def test_bytes_that_are_not_text_close_the_session() -> None:
    session = opened()
    session.send(b"one")

    assert not session.send(b"\xff")
    assert poll(session) == b'a["one"]\n'
    assert poll(session) == b'c[1003,"SockJS carries only text, and a message is not UTF-8"]\n'


@pytest.mark.parametrize(
    ("body", "payload"),
    [
        (b'["one","two"]', b"onetwo"),
        (b'"one"', b"one"),
        (b"[]", b""),
        (b'["\\u0000gr\\u00fcn", "\xf0\x9f\x98\x80\\ud83d\\ude00"]', "\0grün😀😀".encode()),
    ],
)
def test_messages_of_the_client_are_joined(body: bytes, payload: bytes) -> None:
    assert decode_messages(body) == payload


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "Payload expected."),
        (b"{}", "Payload expected."),
        (b"7", "Payload expected."),
        (b'["one', "Broken JSON encoding."),
        (b'["one",7]', "Broken JSON encoding."),
        (b'["one",["two"]]', "Broken JSON encoding."),
        (b'["\\ud800"]', "Broken JSON encoding."),
        (b'["\xff"]', "Broken JSON encoding."),
        (b"[" * 100_000, "Broken JSON encoding."),
        (json.dumps(["x" * 10] * 10_001).encode(), "Broken JSON encoding."),
        (json.dumps("x" * 100_000)[:-1].encode(), "Broken JSON encoding."),
    ],
)
def test_wrong_body_is_refused_as_the_protocol_demands(body: bytes, message: str) -> None:
    with pytest.raises(HttpRefusal) as refusal:
        decode_messages(body)

    assert (refusal.value.status, refusal.value.message) == (500, message)


def test_a_large_body_of_other_json_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(_: bytes) -> None:
        raise AssertionError("it is parsed")

    monkeypatch.setattr(json, "loads", parse)

    for value in (b"[]", b"{}", b"1", b'["a"]'):
        with pytest.raises(HttpRefusal):
            decode_messages(b"[%b]" % b",".join([value] * 100_000))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(), max_size=5), st.sampled_from(["", " ", "\r\n\t"]), st.booleans())
def test_a_large_body_of_strings_is_read(messages: list[str], blank: str, is_ascii: bool) -> None:
    messages = [*[text.encode("utf-8", "replace").decode() for text in messages], "x" * 70_000]
    body = blank + json.dumps(messages, ensure_ascii=is_ascii, separators=(f"{blank},{blank}", ":")) + blank

    assert decode_messages(body.encode()) == "".join(messages).encode()


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40))
def test_any_body_is_read_or_refused(body: bytes) -> None:
    try:
        decode_messages(body)
    except HttpRefusal:
        pass


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=30), min_size=1, max_size=5))
def test_any_text_comes_back_as_it_was(messages: list[str]) -> None:
    session = opened()
    for message in messages:
        session.send(message.encode())
    body = poll(session)

    assert body.isascii()
    assert decode_messages(body[1:]) == "".join(messages).encode()


@pytest.mark.parametrize(
    ("path", "route"),
    [
        (("000", "abc", "xhr"), ("abc", "xhr")),
        (("000", "abc", "xhr_send"), ("abc", "xhr_send")),
        (("x", "y", "websocket"), ("y", "websocket")),
        (("x", "y", "eventsource"), ("y", "eventsource")),
        (("x", "y", "jsonp"), None),
        (("x", "y", "htmlfile"), None),
        (("", "y", "xhr"), None),
        (("x", "", "xhr"), None),
        (("x.y", "z", "xhr"), None),
        (("x", "y.z", "xhr"), None),
        (("x", "xhr"), None),
        (("x", "y", "xhr", ""), None),
    ],
)
def test_path_names_session_and_transport(path: tuple[str, ...], route: tuple[str, str] | None) -> None:
    assert split_route(path) == route


def test_info_is_as_clients_expect() -> None:
    assert json.loads(encode_info(7, has_websocket=False)) == {
        "websocket": False,
        "origins": ["*:*"],
        "cookie_needed": False,
        "entropy": 7,
    }
    assert json.loads(encode_info(7))["websocket"] is True
