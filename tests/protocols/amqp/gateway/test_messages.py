"""Properties of AMQP and headers of STOMP say the same, in both directions."""

import base64
import datetime
import json

import pytest

from qmq.protocols.amqp.codec.properties import Properties, read_properties, write_properties
from qmq.protocols.amqp.codec.refusals import AmqpRefusal, ReplyCode
from qmq.protocols.amqp.gateway.messages import (
    BLOCK,
    PROPERTIES_BYTES_MAX,
    TEXT_HEADERS_MAX,
    delivered_properties,
    send_headers,
    text_of,
)
from qmq.protocols.amqp.gateway.names import DIRECT_REPLY

WHEN = datetime.datetime(2026, 11, 25, tzinfo=datetime.UTC)


def headers_of(**properties: object) -> dict[str, str]:
    return send_headers("/queue/q", write_properties(Properties(**properties)), None)  # type: ignore[arg-type]


def test_every_property_has_its_header() -> None:
    headers = headers_of(
        content_type="a/b",
        content_encoding="gzip",
        correlation_id="c",
        delivery_mode=2,
        priority=7,
        reply_to="answers",
        expiration="5000",
        message_id="m",
        timestamp=WHEN,
        message_type="kind",
        user_id="ann",
        app_id="app",
    )

    assert {name: value for name, value in headers.items() if name != BLOCK} == {
        "destination": "/queue/q",
        "content-type": "a/b",
        "content-encoding": "gzip",
        "correlation-id": "c",
        "priority": "7",
        "reply-to": "/queue/answers",
        "expiration": "5000",
        "amqp-message-id": "m",
        "timestamp": str(int(WHEN.timestamp())),
        "type": "kind",
        "user-id": "ann",
        "app-id": "app",
    }


def test_a_message_comes_back_with_the_bytes_of_its_publisher() -> None:
    block = write_properties(Properties(headers={"a": 1, "list": [1], "table": {"x": True}}, delivery_mode=2))

    headers = send_headers("/queue/q", block, None)

    assert delivered_properties({**headers, "persistent": "true"}, "q") == block


@pytest.mark.parametrize("ticks", [253_402_300_800_000, 1_700_000_000_000_000, 2**64 - 1])
def test_a_timestamp_that_no_calendar_has_travels_without_a_header(ticks: int) -> None:
    # The flags of content_type, timestamp and type.
    block = b"\x80\x60" + b"\x04text" + ticks.to_bytes(8, "big") + b"\x01k"

    headers = send_headers("/queue/q", block, None)

    assert "timestamp" not in headers
    assert (headers["content-type"], headers["type"]) == ("text", "k")
    assert delivered_properties(headers, "q") == block


def test_a_message_is_transient_unless_its_delivery_mode_is_two() -> None:
    assert headers_of()["persistent"] == "false"
    assert headers_of(delivery_mode=1)["persistent"] == "false"
    assert "persistent" not in headers_of(delivery_mode=2)


@pytest.mark.parametrize(
    ("value", "text"),
    [("a", "a"), (True, "true"), (7, "7"), (1.5, "1.5"), (WHEN, str(int(WHEN.timestamp()))), ([1], None), ({}, None)],
)
def test_values_of_tables_are_texts_where_a_text_says_the_same(value: object, text: str | None) -> None:
    assert text_of(value) == text


def test_headers_that_ask_a_node_for_something_have_no_text_header() -> None:
    asking = {"expires": "2026-11-25T00:00:00", "ttl": "x", "ack": "1", "qmq-copies-left": "9999"}
    headers = headers_of(headers={**asking, "task": "add", "n": 1})

    assert not asking.keys() & headers.keys()
    assert (headers["task"], headers["n"]) == ("add", "1")


def test_options_for_the_node_are_headers_of_the_send() -> None:
    headers = headers_of(headers={"dedup-id": "d1", "delay": 500, "redelivered": True})

    assert (headers["dedup-id"], headers["delay"], headers["redelivered"]) == ("d1", "500", "true")


def test_long_values_odd_names_and_many_headers_have_no_text_header() -> None:
    table: dict[str, object] = {"long": "x" * 2000, "nul": "a\0b", "": "empty"}
    table.update({f"h{number}": number for number in range(100)})

    headers = headers_of(headers=table)

    assert not {"long", "nul", ""} & headers.keys()
    assert len(headers) <= TEXT_HEADERS_MAX + 1


def test_an_expiration_of_zero_is_at_once_and_no_number_is_refused() -> None:
    assert headers_of(expiration="0")["expiration"] == "1"
    for wrong in ("soon", "-1", "1.5"):
        with pytest.raises(AmqpRefusal, match="milliseconds") as caught:
            headers_of(expiration=wrong)
        assert caught.value.reply is ReplyCode.PRECONDITION_FAILED


def test_a_priority_above_nine_is_nine() -> None:
    assert headers_of(priority=200)["priority"] == "9"


def test_another_user_id_than_that_of_the_login_is_refused() -> None:
    block = write_properties(Properties(user_id="bob"))

    with pytest.raises(AmqpRefusal, match="user_id"):
        send_headers("/queue/q", block, "ann")
    assert send_headers("/queue/q", block, "bob")["user-id"] == "bob"


def test_properties_that_are_too_large_are_refused() -> None:
    block = write_properties(Properties(headers={"a": "x" * PROPERTIES_BYTES_MAX}))

    with pytest.raises(AmqpRefusal, match="at most"):
        send_headers("/queue/q", block, None)


class Replies:
    reply_queue = "/temp-queue/amqp-1"


def test_a_direct_reply_goes_to_the_queue_of_its_channel() -> None:
    block = write_properties(Properties(reply_to=DIRECT_REPLY, correlation_id="c"))

    headers = send_headers("/queue/q", block, None, Replies())
    delivered = {**headers, "reply-to": "/reply-queue/a-1.2.3.4", "persistent": "false"}

    assert headers["reply-to"] == "/temp-queue/amqp-1"
    properties = read_properties(delivered_properties(delivered, "q"))
    assert (properties.reply_to, properties.correlation_id) == ("/reply-queue/a-1.2.3.4", "c")


def test_a_direct_reply_without_its_consumer_is_refused() -> None:
    with pytest.raises(AmqpRefusal, match="consumer of direct replies"):
        headers_of(reply_to=DIRECT_REPLY)


def test_a_message_of_another_protocol_has_properties_made_of_its_headers() -> None:
    headers = {
        "destination": "/queue/q",
        "persistent": "true",
        "content-type": "text/plain",
        "priority": "7",
        "reply-to": "/queue/answers",
        "colour": "red",
        "timestamp": "1700000000",
    }

    properties = read_properties(delivered_properties(headers, "q"))

    assert (properties.content_type, properties.priority, properties.delivery_mode) == ("text/plain", 7, 2)
    assert (properties.reply_to, properties.headers) == ("answers", {"colour": "red"})
    assert properties.timestamp == datetime.datetime.fromtimestamp(1700000000, datetime.UTC)


@pytest.mark.parametrize("text", ["no base64!", base64.b64encode(b"\xff\xff\x01").decode(), ""])
def test_properties_that_a_sender_has_made_up_are_not_passed_on(text: str) -> None:
    headers = {"destination": "/queue/q", "persistent": "true", BLOCK: text, "colour": "red"}

    assert read_properties(delivered_properties(headers, "q")).headers == {"colour": "red"}


def test_a_dead_letter_has_the_words_of_rabbitmq() -> None:
    block = write_properties(Properties(headers={"a": 1}, expiration="5", delivery_mode=2))
    headers = send_headers("/queue/q", block, None)
    headers |= {"persistent": "true", "dead-letter-reason": "expired", "dead-letter-from": "/queue/jobs"}

    properties = read_properties(delivered_properties(headers, "dead"))

    assert properties.expiration is None and properties.headers is not None
    assert properties.headers["a"] == 1 and properties.headers["x-first-death-reason"] == "expired"
    assert properties.headers["x-death"] == [
        {
            "count": 1,
            "reason": "expired",
            "queue": "jobs",
            "exchange": "",
            "routing-keys": ["jobs"],
            "original-expiration": "5",
        }
    ]


def test_tables_deeper_than_twenty_are_refused() -> None:
    deep: dict[str, object] = {}
    for _ in range(25):
        deep = {"a": deep}

    with pytest.raises(AmqpRefusal, match="20"):
        headers_of(headers=deep)


def test_further_routing_keys_are_those_of_cc_and_bcc_and_no_consumer_gets_bcc() -> None:
    headers = headers_of(headers={"CC": ["a", 5, "b"], "BCC": ["c"], "n": 1, "routing-keys": "mine"}, priority=3)

    assert json.loads(headers["routing-keys"]) == ["a", "b", "c"]
    properties = read_properties(delivered_properties(headers, "q"))
    assert properties.headers == {"CC": ["a", 5, "b"], "n": 1, "routing-keys": "mine"}
    assert properties.priority == 3
    assert "routing-keys" not in headers_of(headers={"CC": [], "n": 1, "routing-keys": "mine"})


@pytest.mark.parametrize("name", ["CC", "BCC"])
@pytest.mark.parametrize("value", ["a", 5, {"a": "b"}, None, ["a.*"], ["a\0"]])
def test_keys_that_are_none_are_refused(name: str, value: object) -> None:
    with pytest.raises(AmqpRefusal) as caught:
        headers_of(headers={name: value})
    assert caught.value.reply is ReplyCode.PRECONDITION_FAILED


def test_a_header_named_as_the_checked_user_id_is_none_for_other_protocols() -> None:
    block = write_properties(Properties(headers={"user-id": "admin", "app-id": "x"}))

    headers = send_headers("/queue/jobs", block, "eve")

    assert "user-id" not in headers and headers["app-id"] == "x"
