"""Answers of the node as responses: statuses, rows, headers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from qmq.broker.messages.destination import kind_of
from qmq.broker.messages.message import Envelope, Message
from qmq.errors import Refused
from qmq.model.dots import Origin
from qmq.protocols.http.codec import HttpConnection, HttpLimits, HttpRefusal
from qmq.protocols.http.gateway.responses import STATUSES, HttpEncoder, encode_refusal, status_of
from qmq.wire.stomp import Version, encode_headers

ORIGIN = Origin("a", 1)

PAGE = Path(__file__).parents[4] / "docs" / "http.md"


def message(sequence: int, body: bytes = b"x", destination: str = "/queue/q", **headers: str) -> Message:
    block = encode_headers(list(headers.items()), Version.V12)
    return Message(Envelope(destination, kind_of(destination, 255), block, sequence > 0), body, ORIGIN, sequence, 0)


def encoder() -> HttpEncoder:
    """That of a connection whose request was read."""
    http = HttpConnection(HttpLimits())
    http.receive(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    http.next_request()
    found = HttpEncoder(http)
    found.begin()
    return found


def parts(response: bytes) -> tuple[int, dict[str, str], Any]:
    head, _, body = response.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), dict(line.split(": ", 1) for line in lines), json.loads(body or b"null")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("login-required", 401),
        ("login-failed", 401),
        ("token-expired", 401),
        ("not-allowed", 403),
        ("kicked", 403),
        ("unknown-destination", 404),
        ("unknown-ack", 400),
        ("resource-locked", 409),
        ("exchange-in-use", 409),
        ("vhost-in-use", 409),
        ("user-full", 429),
        ("body-too-large", 413),
        ("transaction-too-large", 413),
        ("unroutable", 422),
        ("queue-full", 429),
        ("too-many-connections", 429),
        ("too-many-headers", 431),
        ("headers-too-large", 431),
        ("stopping", 503),
        ("authentication-unavailable", 503),
        ("too-few-copies", 503),
        ("disk-full", 507),
        ("memory-full", 507),
        ("bad-selector", 400),
        ("anything-else", 400),
    ],
)
def test_each_error_has_its_status(code: str, status: int) -> None:
    said, _, facts = parts(encoder().error(Refused(code, "why", "how")))

    assert said == status == status_of(code)
    assert facts == {"code": code, "message": "why", "detail": "how"}


def test_the_page_has_the_status_of_each_code() -> None:
    rows = re.findall(r"^\| ([45]\d\d) \| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    documented = {code: int(status) for status, codes in rows for code in re.findall(r"`([a-z-]+[a-z])`", codes)}

    assert {code: documented.get(code) for code in STATUSES} == STATUSES


def test_headers_of_errors_say_what_to_do_next() -> None:
    assert parts(encoder().error(Refused("login-required", "")))[1]["www-authenticate"].startswith("Basic realm=")
    assert parts(encoder().error(Refused("queue-full", "")))[1]["retry-after"] == "1"
    assert parts(encoder().error(Refused("stopping", "")))[1]["retry-after"] == "1"
    refusal = HttpRefusal(405, "bad-method", "", headers=[("allow", "GET")])
    assert parts(encoder().error(refusal))[1]["allow"] == "GET"


def test_every_response_is_kept_out_of_caches() -> None:
    one = encoder()
    one.cors = (("vary", "origin"),)
    _, headers, _ = parts(one.respond(200, {}))

    assert headers.items() >= {("cache-control", "no-store"), ("x-content-type-options", "nosniff"), ("vary", "origin")}


def test_a_request_has_one_response() -> None:
    one = encoder()
    calls: list[int] = []
    one.on_response = lambda: calls.append(1)

    assert one.error(Refused("kicked", "")) != b""
    assert one.respond(200, {}) == one.receipts(["r"]) == one.error(Refused("stopping", "")) == b""
    assert calls == [1]


def test_rows_are_in_the_order_of_the_sends() -> None:
    one = encoder()
    one.sent += [(message(5), False), (None, True), (None, False), (message(-7), False)]

    status, _, facts = parts(one.receipts(["r"], [("copies", "2")]))

    assert status == 201
    assert facts["messages"] == [
        {"id": f"{ORIGIN}-5", "copies": 2, "duplicate": False},
        {"id": None, "copies": 2, "duplicate": True},
        {"id": None, "copies": 0, "duplicate": False},
        {"id": f"{ORIGIN}-m7", "copies": 0, "duplicate": False},
    ]


def test_a_message_by_itself_that_was_sent_before_is_a_duplicate() -> None:
    _, _, facts = parts(encoder().receipts(["r"], [("duplicate", "true"), ("copies", "1")]))

    assert facts["messages"] == [{"id": None, "copies": 1, "duplicate": True}]


def test_a_receipt_of_nothing_is_no_response() -> None:
    one = encoder()
    assert one.receipts([]) == b""
    assert one.is_due


def test_a_connection_that_is_refused_gets_a_whole_response() -> None:
    status, headers, facts = parts(encode_refusal(Refused("too-many-connections", "full")))

    assert (status, facts["code"]) == (503, "too-many-connections")
    assert headers["connection"] == "close"
