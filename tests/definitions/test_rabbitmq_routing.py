"""Exchanges and bindings that RabbitMQ exported, in the words of QMQ."""

from typing import Any

import pytest

from qmq.broker.routing.binding import read_binding, read_exchange
from tests.definitions.test_rabbitmq import convert


def exchange(name: str, type: str = "topic", **more: Any) -> dict[str, Any]:
    plain = {"durable": True, "auto_delete": False, "internal": False, "arguments": {}}
    return {"name": name, "vhost": "/", "type": type, **plain, **more}


def binding(source: str, queue: str, key: str = "", **more: Any) -> dict[str, Any]:
    plain = {"destination_type": "queue", "arguments": {}}
    return {"source": source, "vhost": "/", "destination": queue, "routing_key": key, **plain, **more}


def queues(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "vhost": "/", "arguments": {}} for name in names]


def test_exchanges_and_bindings_have_the_names_and_values_that_a_node_gives_them() -> None:
    values, left_out = convert(
        exchanges=[
            exchange("orders", arguments={"alternate-exchange": "rest"}),
            exchange("rest", "fanout"),
            exchange("later", "x-delayed-message", arguments={"x-delayed-type": "direct"}),
            exchange("amq.topic"),
            exchange("", "direct"),
        ],
        queues=queues("eu", "by hand", "red"),
        bindings=[
            binding("orders", "eu", "eu.#"),
            binding("rest", "by hand", "x y"),
            binding("amq.headers", "red", arguments={"x-match": "any", "colour": "red", "n": 5, "size": None}),
            binding("", "eu", "eu"),
            binding("orders", "rest", "us.#", destination_type="exchange"),
        ],
    )

    assert left_out == []
    assert values["exchange"] == {
        "orders": {"type": "topic", "alternate": "rest"},
        "rest": {"type": "fanout"},
        "later": {"type": "direct", "delayed": True},
    }
    assert list(values["binding"]) == [
        "/exchange/orders /queue/eu eu.#",
        "/exchange/rest /queue/by%20hand x%20y",
        '/exchange/amq.headers /queue/red  {"colour":"red","n":"5","size":null,"x-match":"any"}',
        "/exchange/orders /exchange/rest us.#",
    ]
    for name, value in values["exchange"].items():
        assert read_exchange(name, value).value == value
    for name, value in values["binding"].items():
        assert (read_binding(value).name, read_binding(value).value) == (name, value)


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        ({"exchanges": [exchange("x", "x-modulus-hash")]}, "x-modulus-hash"),
        ({"exchanges": [exchange("x", "x-delayed-message")]}, "the type None"),
        ({"exchanges": [exchange("a b")]}, "127 characters"),
        ({"exchanges": [exchange("x", arguments={"alternate-exchange": "none"})]}, "'none' is neither in the file nor"),
        ({"exchanges": [exchange("x", arguments={"x-delayed-type": "direct"})]}, "x-delayed-type"),
        ({"exchanges": [exchange("x", auto_delete=True)]}, "auto_delete"),
        ({"bindings": [binding("none", "q")]}, "its exchange is neither in the mesh nor in the file"),
        (
            {"bindings": [binding("amq.topic", "x", destination_type="exchange")]},
            "the exchange that it leads to is neither",
        ),
        ({"bindings": [binding("amq.topic", "x", destination_type="stream")]}, "destination_type = 'stream'"),
        ({"bindings": [binding("amq.topic", "a*")]}, "'a*' cannot be the name of a queue"),
        ({"bindings": [binding("amq.headers", "q", arguments={"a": [1]})]}, "must be text"),
        ({"bindings": [binding("amq.headers", "q", arguments={"x-match": "most"})]}, "most"),
        ({"bindings": [binding("amq.headers", "q", arguments=[1])]}, "cannot be read"),
        ({"bindings": [binding("amq.topic", "amq.gen-1")]}, "its queue is neither in the mesh nor in the file"),
    ],
)
def test_what_has_no_counterpart_is_listed_and_nothing_is_half_imported(parts: dict[str, Any], line: str) -> None:
    values, left_out = convert(queues=queues("q", "x"), **parts)

    assert len(left_out) == 1 and line in left_out[0], left_out
    assert "binding" not in values
    for name, value in values.get("exchange", {}).items():
        assert read_exchange(name, value).alternate == ""


def test_alternates_that_form_a_cycle_are_kept() -> None:
    values, left_out = convert(
        exchanges=[
            exchange("a", arguments={"alternate-exchange": "b"}),
            exchange("b", arguments={"alternate-exchange": "a"}),
        ]
    )

    assert values["exchange"] == {"a": {"type": "topic", "alternate": "b"}, "b": {"type": "topic", "alternate": "a"}}
    assert left_out == []


def test_an_argument_without_value_which_an_export_calls_undefined_matches_any_value() -> None:
    values, left_out = convert(
        queues=queues("q"), bindings=[binding("amq.headers", "q", arguments={"a": "undefined", "b": "1"})]
    )

    (value,) = values["binding"].values()
    assert value["arguments"] == {"a": None, "b": "1"}
    assert left_out == ["bindings: amq.headers → q: a = 'undefined': is read as any value of this header"]
