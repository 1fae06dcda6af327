"""Bodies of receives and of requests about deliveries; ack tokens."""

import json
from typing import Any

import pytest

from qmq.broker.consumers.subscription import Ack
from qmq.broker.messages.lifecycle import Back
from qmq.errors import Refused
from qmq.protocols.http.codec import HttpRefusal
from qmq.protocols.http.gateway.bodies import ACKS_MAX, RECEIVE_MAX, Receive
from qmq.protocols.http.gateway.control import control_of
from qmq.protocols.http.gateway.pulls import (
    AckRequest,
    AckToken,
    acks_of,
    receive_of,
    subscription_of,
)
from tests.protocols.http.gateway.support import request_of

TOKEN = AckToken("a", 5, "00ff", 77)


def receive(**body: Any) -> Receive:
    return receive_of(request_of("POST", "/", json.dumps(body).encode()))


def acks(*rows: Any) -> list[AckRequest]:
    return acks_of(request_of("POST", "/", json.dumps({"acks": rows}).encode()))


def test_an_empty_body_receives_one_message_at_once() -> None:
    assert (
        receive_of(request_of("POST", "/"))
        == Receive(max=1, wait_seconds=0.0, ack_timeout_seconds=30.0, selector=None)
        == receive()
    )


def test_a_receive_is_a_subscription_with_a_time() -> None:
    wanted = receive(max=RECEIVE_MAX, wait_seconds=60, ack_timeout_seconds=43_200, selector="a = 1")

    made = subscription_of(wanted, 5, "/queue/q", "r1")

    assert (made.session, made.id, made.destination, made.ack) == (5, "r1", "/queue/q", Ack.CLIENT_INDIVIDUAL)
    assert made.is_pull and made.credit == 0
    assert made.ack_timeout_us == 43_200_000_000
    assert made.selector is not None
    assert subscription_of(receive(), 5, "/queue/q", "r1").selector is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"max": 0},
        {"max": RECEIVE_MAX + 1},
        {"max": "1"},
        {"max": True},
        {"max": 1.5},
        {"wait_seconds": -0.1},
        {"wait_seconds": 60.5},
        {"wait_seconds": float("nan")},
        {"wait_seconds": None},
        {"wait_seconds": True},
        {"ack_timeout_seconds": 0},
        {"ack_timeout_seconds": 43_201},
        {"selector": 1},
        {"selector": "\ud800"},
        {"wait": 1},
    ],
)
def test_a_receive_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Refused) as refused:
        receive(**wrong)
    assert refused.value.code == "bad-body"


@pytest.mark.parametrize("node", ["a", "node-1.example", "x" * 64])
def test_a_token_says_where_its_delivery_is(node: str) -> None:
    token = TOKEN._replace(node=node)

    (ack,) = acks({"ack_token": token.text})

    assert ack == AckRequest(token.text, token, "ack", True)
    assert token.text.isascii() and "=" not in token.text and "/" not in token.text


@pytest.mark.parametrize(
    "text", ["", "x", "!!", "YQ", "YS8x", "\u20ac", "A" * 10_000, TOKEN.text[:-1], "YS94L2svNQ", TOKEN.text + "===="]
)
def test_a_text_that_is_no_token_names_no_delivery(text: str) -> None:
    (ack,) = acks({"ack_token": text})

    assert ack.token is None or ack.token != TOKEN
    assert ack.text == text


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        5,
        {},
        {"ack_token": 5},
        {"ack_token": TOKEN.text, "action": "eat"},
        {"ack_token": TOKEN.text, "action": None},
        {"ack_token": TOKEN.text, "action": ["ack"]},
        {"ack_token": TOKEN.text, "requeue": 1},
        {"ack_token": TOKEN.text, "why": "x"},
    ],
)
def test_an_ack_that_makes_no_sense_is_named(wrong: Any) -> None:
    with pytest.raises(Refused) as refused:
        acks({"ack_token": TOKEN.text}, wrong)
    assert refused.value.message.startswith("acks[1]")


def test_a_request_has_at_least_one_and_not_too_many_acks() -> None:
    assert len(acks(*[{"ack_token": "x"}] * ACKS_MAX)) == ACKS_MAX
    for count in (0, ACKS_MAX + 1):
        with pytest.raises(Refused):
            acks(*[{"ack_token": "x"}] * count)
    with pytest.raises(Refused):
        acks_of(request_of("POST", "/", b'{"acks": {}}'))


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xdf", b'"\xdf"', b"[" * 100_000, b"nul"])
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(Refused) as refused:
        receive_of(request_of("POST", "/", body))
    assert refused.value.code == "bad-body"


@pytest.mark.parametrize(
    ("action", "requeue", "why", "result"),
    [
        ("ack", True, None, "acknowledged"),
        ("nack", True, Back.FAILED, "requeued"),
        ("nack", False, Back.REJECTED, "rejected"),
    ],
)
def test_settling_is_an_ack_or_a_nack(action: str, requeue: bool, why: Back | None, result: str) -> None:
    ack = AckRequest(TOKEN.text, TOKEN, action, requeue)

    assert (ack.why, ack.result) == (why, result)


# Control requests


def test_a_query_has_the_headers_of_a_control_request() -> None:
    request = request_of("GET", "/v1/control/list/queue?limit=5&dry_run=true&access_token=secret")

    assert control_of(request, "/control/list/queue") == {
        "destination": "/control/list/queue",
        "limit": "5",
        "dry-run": "true",
    }


@pytest.mark.parametrize("name", ["destination", "receipt", "transaction", "reply-to", "reply_to", "correlation_id"])
def test_a_query_sets_no_header_of_the_frame(name: str) -> None:
    with pytest.raises(HttpRefusal) as refused:
        control_of(request_of("POST", f"/?{name}=x"), "/control/purge/queue/q")
    assert refused.value.code == "bad-query"


@pytest.mark.parametrize(
    "verb", ["purge", "move", "kick", "pause", "delete", "retire", "definitions/put", "definitions"]
)
def test_what_changes_something_needs_post(verb: str) -> None:
    with pytest.raises(HttpRefusal) as refused:
        control_of(request_of("GET", "/"), f"/control/{verb}/x")
    assert refused.value.status == 405
    assert control_of(request_of("POST", "/"), f"/control/{verb}/x")


SHOWS = (
    "status conditions list list-subscribers count-msgs count-subscribers connections links exchanges bindings".split()
)
SHOWS += "overview history rights audit trace peek get".split()


@pytest.mark.parametrize("verb", [*SHOWS, "definitions/list", "definitions/get", "definitions/export"])
def test_what_only_shows_may_be_asked_with_get(verb: str) -> None:
    assert control_of(request_of("GET", "/"), f"/control/{verb}/x") == {"destination": f"/control/{verb}/x"}
