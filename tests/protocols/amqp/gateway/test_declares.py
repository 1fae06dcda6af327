"""What AMQP declares is what the broker is asked to declare; what it does not do is refused by name."""

from typing import Any

import pytest

from qmq.protocols.amqp.codec.refusals import AmqpRefusal, ReplyCode
from qmq.protocols.amqp.gateway.declares import exchange_value, queue_value
from qmq.protocols.amqp.gateway.names import (
    DEFAULT_VHOST,
    Vhost,
    exchange_name,
    publish_destination,
    queue_destination,
    queue_name,
)

SHOP = Vhost("shop", "shop~")


def declared(arguments: dict[str, Any] | None = None, **flags: bool) -> dict[str, Any]:
    said = {"durable": True, "exclusive": False, "auto_delete": False, **flags}
    return queue_value(arguments=arguments, **said)


def test_a_plain_durable_queue_declares_nothing_special() -> None:
    assert declared() == {}


def test_flags_are_keys() -> None:
    assert declared(durable=False, exclusive=True, auto_delete=True) == {
        "durable": False,
        "exclusive_to_connection": True,
        "auto_delete": True,
    }


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ({"x-message-ttl": 1500}, {"ttl_seconds": 1.5}),
        ({"x-expires": 60000}, {"expires_seconds": 60.0}),
        ({"x-max-length": 5}, {"max_messages": 5, "overflow": "drop-oldest"}),
        ({"x-max-length": 5, "x-overflow": "reject-publish"}, {"max_messages": 5, "overflow": "refuse"}),
        ({"x-max-length-bytes": 99}, {"max_bytes": 99, "overflow": "drop-oldest"}),
        ({"x-max-priority": 10}, {"priority": 0}),
        ({"x-max-priority": 0}, {}),
        ({"x-single-active-consumer": True}, {"exclusive": True}),
        ({"x-delivery-limit": 3}, {"delivery_limit": 3}),
        ({"x-consumer-timeout": 2000}, {"ack_timeout_seconds": 2.0}),
        ({"x-queue-type": "quorum"}, {}),
        ({"x-queue-mode": "lazy", "my-own": 1}, {}),
        ({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}, {"dead_letter": "/queue/dead"}),
        ({"x-dead-letter-exchange": "dlx"}, {"dead_letter": "/exchange/dlx"}),
        (
            {"x-dead-letter-exchange": "amq.match", "x-dead-letter-routing-key": "a.b"},
            {"dead_letter": "/exchange/amq.headers", "dead_letter_routing_key": "a.b"},
        ),
    ],
)
def test_arguments_are_keys(arguments: dict[str, Any], value: dict[str, Any]) -> None:
    assert declared(arguments) == value


@pytest.mark.parametrize(
    ("arguments", "reply"),
    [
        ({"x-message-ttl": "5"}, ReplyCode.PRECONDITION_FAILED),
        ({"x-message-ttl": -1}, ReplyCode.PRECONDITION_FAILED),
        ({"x-overflow": "explode"}, ReplyCode.PRECONDITION_FAILED),
        ({"x-max-priority": 256}, ReplyCode.PRECONDITION_FAILED),
        ({"x-single-active-consumer": 1}, ReplyCode.PRECONDITION_FAILED),
        ({"x-dead-letter-routing-key": "dead"}, ReplyCode.PRECONDITION_FAILED),
        ({"x-queue-type": "stream"}, ReplyCode.NOT_IMPLEMENTED),
        ({"x-queue-type": "wooden"}, ReplyCode.PRECONDITION_FAILED),
        ({"x-expires": 0}, ReplyCode.PRECONDITION_FAILED),
        ({"x-max-length": 0}, ReplyCode.PRECONDITION_FAILED),
        ({"x-queue-mode": "bad"}, ReplyCode.PRECONDITION_FAILED),
        ({"x-dead-letter-exchange": 5}, ReplyCode.PRECONDITION_FAILED),
        ({"x-dead-letter-exchange": ""}, ReplyCode.NOT_IMPLEMENTED),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments: dict[str, Any], reply: ReplyCode) -> None:
    with pytest.raises(AmqpRefusal) as caught:
        declared(arguments)
    assert caught.value.reply is reply
    assert any(name in caught.value.message for name in arguments)


def test_exchanges_have_a_type_and_an_alternate() -> None:
    assert exchange_value("e", "topic", internal=False, arguments={"alternate-exchange": "f"}) == {
        "type": "topic",
        "alternate": "f",
    }


def test_an_exchange_for_delayed_messages_routes_as_its_argument_says() -> None:
    arguments = {"x-delayed-type": "topic"}

    assert exchange_value("e", "x-delayed-message", internal=False, arguments=arguments) == {
        "type": "topic",
        "delayed": True,
    }
    for bad in ("x-delayed-message", "list", 1):
        with pytest.raises(AmqpRefusal) as caught:
            exchange_value("e", "x-delayed-message", internal=False, arguments={"x-delayed-type": bad})
        assert caught.value.reply is ReplyCode.PRECONDITION_FAILED


def test_an_exchange_may_be_internal() -> None:
    assert exchange_value("e", "topic", internal=True, arguments=None) == {"type": "topic", "internal": True}


@pytest.mark.parametrize(
    ("name", "kind", "reply"),
    [
        ("", "direct", ReplyCode.ACCESS_REFUSED),
        ("e", "x-modulus-hash", ReplyCode.COMMAND_INVALID),
        ("e", "x-delayed-message", ReplyCode.PRECONDITION_FAILED),
    ],
)
def test_exchanges_that_cannot_be_are_refused(name: str, kind: str, reply: ReplyCode) -> None:
    with pytest.raises(AmqpRefusal) as caught:
        exchange_value(name, kind, internal=False, arguments=None)
    assert caught.value.reply is reply


@pytest.mark.parametrize(
    ("exchange", "key", "destination", "in_shop"),
    [
        ("", "jobs", "/queue/jobs", "/queue/shop~jobs"),
        ("", "/reply-queue/a-1.2", "/reply-queue/a-1.2", "/reply-queue/a-1.2"),
        ("", "/queue/answers", "/queue/answers", "/queue/answers"),
        ("e", "a.b", "/exchange/e/a.b", "/exchange/shop~e/a.b"),
        ("e", "", "/exchange/e", "/exchange/shop~e"),
        ("amq.match", "", "/exchange/amq.headers", "/exchange/shop~amq.headers"),
    ],
)
def test_a_publish_goes_to_a_destination(exchange: str, key: str, destination: str, in_shop: str) -> None:
    assert publish_destination(exchange, key, DEFAULT_VHOST) == destination
    assert publish_destination(exchange, key, SHOP) == in_shop


@pytest.mark.parametrize("name", ["", "a*", "#", "a\0"])
def test_names_that_no_queue_can_have_are_refused(name: str) -> None:
    with pytest.raises(AmqpRefusal, match="name of a queue"):
        queue_destination(name, DEFAULT_VHOST)


def test_amq_match_is_another_name_of_amq_headers() -> None:
    assert [exchange_name(name, DEFAULT_VHOST) for name in ("amq.match", "e")] == ["amq.headers", "e"]


def test_what_is_declared_in_a_virtual_host_names_what_is_in_there() -> None:
    letters = {"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "k"}
    to_queue = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}

    values = [
        queue_value(durable=True, exclusive=False, auto_delete=False, arguments=one, vhost=SHOP)
        for one in (letters, to_queue)
    ]
    exchange = exchange_value("e", "topic", internal=False, arguments={"alternate-exchange": "amq.match"}, vhost=SHOP)

    assert values == [
        {"dead_letter": "/exchange/shop~dlx", "dead_letter_routing_key": "k"},
        {"dead_letter": "/queue/shop~dead"},
    ]
    assert exchange == {"type": "topic", "alternate": "shop~amq.headers"}


def test_a_name_outside_of_the_virtual_host_is_shown_whole() -> None:
    assert queue_name("/queue/shop~jobs", SHOP) == "jobs"
    assert queue_name("/queue/jobs", SHOP) == "jobs"
    assert queue_name("/queue/bank~jobs", SHOP) == "bank~jobs"
    assert queue_name("/queue/shop~jobs", DEFAULT_VHOST) == "shop~jobs"
