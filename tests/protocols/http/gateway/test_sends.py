"""Requests that send, as the frames of a STOMP client."""

import json
from typing import Any

import pytest

from qmq.broker.consumers.orders import Begin, Commit
from qmq.errors import Refused
from qmq.gateways.copies import further_keys
from qmq.protocols.http.codec import HttpRefusal
from qmq.protocols.http.gateway.bodies import MESSAGES_MAX
from qmq.protocols.http.gateway.sends import OPTIONS, sends_of, single_of
from qmq.wire.stomp import Limits
from tests.protocols.http.gateway.support import request_of

Q = "/queue/q"
LIMITS = Limits()
JSON = "application/json"


def sends(body: bytes = b"", limits: Limits = LIMITS, **headers: str) -> list[Any]:
    return sends_of(request_of("POST", "/", body, **headers), Q, limits)


def batch(*messages: Any, **more: Any) -> list[Any]:
    return sends(json.dumps({"messages": list(messages), **more}).encode(), content_type=JSON)


def refusal(*messages: Any, **more: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        batch(*messages, **more)
    return refused.value


def test_a_raw_body_is_one_send_that_asks_for_a_receipt() -> None:
    (frame,) = sends(
        b"\0\xff", content_type="image/x", qmq_priority="7", qmq_group="g", qmq_retry="true", qmq_header_colour="red"
    )

    assert frame.head.command == "SEND" and frame.body == b"\0\xff" and frame.receipt is not None
    assert frame.head.headers == {
        "destination": Q,
        "content-type": "image/x",
        "priority": "7",
        "JMSXGroupID": "g",
        "redelivered": "true",
        "colour": "red",
    }


def test_each_option_has_a_header_of_requests_and_a_member_of_messages() -> None:
    texts = {name: "1" for name in OPTIONS}
    texts |= {"retain": "set", "mandatory": "true", "persistent": "true", "retry": "true"}
    (raw,) = sends(b"x", **{f"qmq_{name}": text for name, text in texts.items()})
    _, one, _ = batch({"body": "x", **{name: text for name, text in texts.items() if name != "receipt_level"}})

    for name, header in OPTIONS.items():
        assert raw.head.headers[header] == texts[name]
        assert one.head.headers.get(header) == (texts[name] if name != "receipt_level" else None)


BAD_OPTIONS = [
    ("priority", "x", "bad-priority"),
    ("delay", "soon", "bad-header"),
    ("expires", "-1", "bad-header"),
    ("ttl", "5m", "bad-header"),
    ("group", "g" * 256, "bad-header"),
    ("mandatory", "perhaps", "bad-header"),
    ("persistent", "nope", "bad-header"),
    ("retry", "x", "bad-header"),
    ("retain", "x", "bad-retain"),
]


@pytest.mark.parametrize(("option", "value", "code"), BAD_OPTIONS)
def test_an_option_without_a_meaning_is_refused_wherever_the_message_goes(option: str, value: str, code: str) -> None:
    # OpenAPI gives each a type, for each kind of destination.
    with pytest.raises(Refused) as refused:
        sends(b"x", **{f"qmq_{option}": value})
    assert refused.value.code == code

    assert refusal({"body": "x"}, {"body": "x", option: value}).code == code


def test_an_option_that_no_header_can_have_is_refused() -> None:
    assert refusal({"body": "x", "priority": "\0"}).code == "bad-priority"
    assert refusal({"body": "x", "ttl": "1\ud800"}).code == "bad-header"


@pytest.mark.parametrize(
    "body",
    [b'{"messages": [{"body": "one"}, {"bo', b'{"mess', b"", b"{", b"[1,", b'{"a": 1} {"a": 2}', b"\xff\xfe{\0}\0"],
)
def test_a_body_that_is_no_json_as_its_content_type_says_is_refused_unless_it_is_said_to_be_a_message(
    body: bytes,
) -> None:
    with pytest.raises(Refused) as refused:
        sends(body, content_type="application/json; charset=utf-8")

    assert refused.value.code == "bad-body" and "Qmq-Batch: false" in refused.value.detail
    (one,) = sends(body, content_type=JSON, qmq_batch="false")
    assert one.body == body
    (other,) = sends(body, content_type="application/x-json-lines")
    assert other.body == body


@pytest.mark.parametrize("body", [b"1", b'"x"', b" [] ", b'{"a": {}}', b"[" * 5000 + b"]" * 5000])
def test_json_of_another_form_is_a_message(body: bytes) -> None:
    (one,) = sends(body, content_type=JSON)

    assert one.head.command == "SEND" and one.body == body


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("qmq_colour", "bad-header"),
        ("qmq_header_", "bad-header"),
        ("qmq_header_destination", "bad-header"),
        ("qmq_header_transaction", "bad-header"),
        ("qmq_header_message_id", "bad-header"),
        ("qmq_header_dedup_sender", "bad-header"),
        ("qmq_header_qmq_copies_left", "bad-header"),
    ],
)
def test_headers_of_the_node_cannot_be_set(header: str, code: str) -> None:
    with pytest.raises(Refused) as refused:
        sends(b"x", **{header: "1"})
    assert refused.value.code == code


def test_routing_keys_are_a_json_array_in_a_header_and_a_list_in_a_batch() -> None:
    (raw,) = sends(b"x", qmq_routing_keys='["a", "b"]')
    _, listed, text, _ = batch({"body": "x", "routing_keys": ["a", "ü"]}, {"body": "x", "routing_keys": '["a"]'})

    assert further_keys(raw.head.headers) == ("a", "b")
    assert further_keys(listed.head.headers) == ("a", "ü")
    assert further_keys(text.head.headers) == ("a",)


def test_a_batch_is_a_transaction_whose_messages_share_their_heads() -> None:
    begin, one, two, three, commit = batch(
        {"body": "1"}, {"body": "2"}, {"body_base64": "/w==", "headers": {"n": 5, "t": True, "s": ""}}, receipt_level=2
    )

    assert isinstance(begin, Begin) and isinstance(commit, Commit)
    assert commit.receipt is not None and commit.level == "2"
    assert (one.body, two.body, three.body) == (b"1", b"2", b"\xff")
    assert one.head is two.head
    assert three.head.headers.items() >= {("n", "5"), ("t", "true"), ("s", "")}
    transactions = {frame.head.headers["transaction"] for frame in (one, two, three)}
    assert transactions == {begin.transaction, commit.transaction}


def test_the_header_of_a_request_is_the_receipt_level_of_a_batch_that_has_none_itself() -> None:
    body = b'{"messages": [{"body": "1"}]%b}'

    (*_, by_header) = sends(body % b"", content_type=JSON, qmq_receipt_level="replicas=2")
    (*_, by_member) = sends(body % b', "receipt_level": "fsync"', content_type=JSON, qmq_receipt_level="replicas=2")

    assert (by_header.level, by_member.level) == ("replicas=2", "fsync")


@pytest.mark.parametrize("header", ["qmq_priority", "qmq_dedup_id", "qmq_header_colour", "qmq_colour"])
def test_a_batch_has_no_headers_that_would_be_ignored(header: str) -> None:
    with pytest.raises(Refused) as refused:
        sends(b'{"messages": [{"body": "1"}]}', content_type=JSON, **{header: "1"})
    assert refused.value.code == "bad-header"


@pytest.mark.parametrize(
    "message",
    [
        [],
        "x",
        None,
        {"body": 5},
        {"body": None},
        {"body": {"a": 1}},
        {"body": "\ud800"},
        {"body": "x", "body_base64": "eA=="},
        {"body_base64": "!"},
        {"body_base64": "\u20ac"},
        {"body": "x", "colour": "red"},
        {"body": "x", "receipt_level": "fsync"},
        {"body": "x", "headers": []},
        {"body": "x", "headers": {"n": 1.5}},
        {"body": "x", "headers": {"n": None}},
        {"body": "x", "priority": [7]},
    ],
)
def test_a_message_that_is_wrong_is_named(message: Any) -> None:
    refused = refusal({"body": "fine"}, message)

    assert refused.code == "bad-body"
    assert refused.message.startswith("messages[1]: ")


def test_a_batch_has_at_least_one_and_not_too_many_messages() -> None:
    assert refusal().code == "bad-body"
    assert len(batch(*[{"body": "x"}] * MESSAGES_MAX)) == MESSAGES_MAX + 2
    assert refusal(*[{"body": "x"}] * (MESSAGES_MAX + 1)).code == "bad-body"


@pytest.mark.parametrize(
    ("body", "headers", "is_batch"),
    [
        (b'{"messages": [{"body": "x"}]}', {"content_type": JSON}, True),
        (b'{"messages": [{"body": "x"}]}', {"content_type": "APPLICATION/json; charset=utf-8"}, True),
        (b'{"messages": [{"body": "x"}]}', {"content_type": "text/json"}, False),
        (b'{"messages": [{"body": "x"}]}', {"content_type": JSON, "qmq_batch": "false"}, False),
        (b'{"messages": [{"body": "x"}]}', {"content_type": "x/y", "qmq_batch": "true"}, True),
        (b'{"messages": [{"body": "x"}], "other": 1}', {"content_type": JSON}, False),
        (b'{"messages": {"body": "x"}}', {"content_type": JSON}, False),
        (b'{"messages"', {"content_type": JSON, "qmq_batch": "false"}, False),
        (b'["messages"]', {"content_type": JSON}, False),
        (b'{"a": {"messages": []}}', {"content_type": JSON}, False),
        (b"[" * 100_000, {"content_type": JSON}, False),
        (b"", {"content_type": "text/plain"}, False),
    ],
)
def test_json_of_its_own_is_a_message_and_not_a_batch(body: bytes, headers: dict[str, str], is_batch: bool) -> None:
    frames = sends(body, **headers)

    assert (len(frames) == 3) == is_batch
    if not is_batch:
        assert frames[0].body == body


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"messages": 1}', b'{"messages": [], "x": 1}', b"\xff"])
def test_a_body_that_is_said_to_be_a_batch_must_be_one(body: bytes) -> None:
    with pytest.raises(Refused):
        sends(body, content_type=JSON, qmq_batch="true")


def test_the_header_for_a_batch_is_true_or_false() -> None:
    with pytest.raises(HttpRefusal):
        sends(b"x", qmq_batch="yes")


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"body": "x" * 11}, "body-too-large"),
        ({"body_base64": "eHh4eHh4eHh4eHg=", "priority": 1}, "body-too-large"),
        ({"headers": {"a": "x" * 41}}, "header-line-too-long"),
        ({"headers": {str(n): "x" * 30 for n in range(4)}}, "headers-too-large"),
        ({"headers": {str(n): "" for n in range(9)}}, "too-many-headers"),
        ({"headers": {"a": "\u20ac" * 14}}, "header-line-too-long"),
    ],
)
def test_limits_of_frames_are_limits_of_messages(message: dict[str, Any], code: str) -> None:
    limits = Limits(header_line_bytes_max=40, header_count_max=10, header_bytes_max=150, body_bytes_max=10)
    body = json.dumps({"messages": [message]}).encode()

    with pytest.raises(Refused) as refused:
        sends(body, limits, content_type=JSON)

    assert refused.value.code == code


def test_the_head_of_equal_requests_is_made_once() -> None:
    request = request_of("POST", "/", b"x", content_type="a/b")
    first = single_of(request, Q, LIMITS)

    again = single_of(request.with_body(b"y"), Q, LIMITS, first.head)

    assert again.head is first.head and again.body == b"y"
    with pytest.raises(Refused):
        single_of(request.with_body(b"x" * (LIMITS.body_bytes_max + 1)), Q, LIMITS, first.head)


@pytest.mark.parametrize("value", ["[]", "{}", '{"a":[]}', "0.1", '"a"'])
def test_json_of_more_values_than_a_batch_may_have_is_refused_before_it_is_parsed(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b'{"messages":[%b]}' % ",".join([value] * 1_100_000).encode()
    monkeypatch.setattr(json, "loads", None)

    with pytest.raises(Refused) as refused:
        sends(body, content_type=JSON)

    assert refused.value.code == "bad-body" and "values" in refused.value.message


def test_the_largest_batch_may_have_json_in_its_bodies() -> None:
    inside = json.dumps({"list": [[], {}, '"', "\\"] * 30})
    messages = [{"body": inside, "headers": {"a": "b"}}] * MESSAGES_MAX

    assert len(batch(*messages)) == MESSAGES_MAX + 2


def test_json_is_utf_8() -> None:
    body = '{"messages":[{"body":"x"}]}'

    assert len(sends(body.encode(), content_type=JSON)) == 3
    with pytest.raises(Refused) as refused:
        sends(body.encode("utf-16-le"), content_type=JSON, qmq_batch="true")

    assert refused.value.code == "bad-body"
