"""Definitions that RabbitMQ exported, in the words of QMQ."""

import json
from typing import Any

import pytest

from qmq.config import DestinationPolicy, policy_values, read_policy
from qmq.definitions.document import read_document
from qmq.definitions.rabbitmq import _pattern


def convert(**parts: Any) -> tuple[Any, list[str]]:
    return read_document(json.dumps({"rabbit_version": "3.10.8", **parts}).encode())


def policy(pattern: str, **definition: Any) -> dict[str, Any]:
    named = {key.replace("_", "-"): value for key, value in definition.items()}
    return {"vhost": "/", "name": "p", "pattern": pattern, "apply-to": "queues", "definition": named, "priority": 0}


def test_a_policy_and_a_queue_with_arguments_are_policies() -> None:
    values, left_out = convert(
        policies=[policy(r"^jobs\.", max_length=10, overflow="reject-publish", ha_mode="all")],
        queues=[
            {"name": "q", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {"x-message-ttl": 1500}},
            {"name": "plain", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}},
            {
                "name": "d",
                "vhost": "/",
                "durable": False,
                "arguments": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "bad"},
            },
        ],
    )

    assert left_out == []
    assert values == {
        "policy": {
            "/queue/jobs.*": {"max_messages": 10, "overflow": "refuse"},
            "/queue/q": {"ttl_seconds": 1.5},
            "/queue/d": {"dead_letter": "/queue/bad", "durable": False},
        }
    }
    for name, value in values["policy"].items():
        assert policy_values(read_policy(name, value)) == value


def test_each_part_without_a_counterpart_is_listed() -> None:
    _, left_out = convert(
        users=[{"name": "ann", "password_hash": "x"}],
        permissions=[{"user": "ann", "vhost": "/", "configure": ".*"}],
        exchanges=[{"name": "x", "vhost": "/", "type": "x-random"}],
        bindings=[{"source": "x", "vhost": "/", "destination": "q"}],
        queues=[{"name": "q", "vhost": "other"}, {"name": "a", "vhost": "/", "auto_delete": True}],
        policies=[
            policy("jobs", max_length=1),
            policy("^x", expires=1),
            policy("^y$", dead_letter_exchange="dlx"),
            {**policy("^z"), "apply-to": "exchanges"},
        ],
    )

    assert [line.partition(":")[0] for line in left_out] == [
        "users",
        "permissions",
        "policies",
        "policies",
        "policies",
        "policies",
        "queues",
        "queues",
        "exchanges",
        "bindings",
    ]
    assert "password" not in " ".join(left_out)


@pytest.mark.parametrize(
    ("expression", "pattern"),
    [
        ("", "/queue/*"),
        (".*", "/queue/*"),
        (r"^jobs\.", "/queue/jobs.*"),
        ("^jobs.*", "/queue/jobs*"),
        ("^jobs-x$", "/queue/jobs-x"),
        (r"^a\.b$", "/queue/a.b"),
        ("jobs", None),
        ("^a.b$", None),
        ("^(a|b)", None),
        ("^[ab]", None),
        (r"^\d+", None),
        ("^a+", None),
    ],
)
def test_only_a_name_or_a_prefix_has_a_counterpart(expression: str, pattern: str | None) -> None:
    assert _pattern(expression) == pattern


def test_values_survive_the_way_through_json() -> None:
    one = DestinationPolicy(pattern="/fanout/f", children=("/queue/a",), retention_bytes=5, locked=True)

    values = json.loads(json.dumps(policy_values(one)))

    assert values == {"children": ["/queue/a"], "retention_bytes": 5}
    assert read_policy("/fanout/f", values) == one.model_copy(update={"locked": False})


@pytest.mark.parametrize("number", [1e400, 10**400, -1e400])
def test_a_number_without_a_counterpart_is_listed(number: float) -> None:
    text = json.dumps({"rabbit_version": "3", "policies": [policy("^a", message_ttl=number, max_length=3)]})

    values, left_out = read_document(text.encode())

    assert values == {"policy": {"/queue/a*": {"max_messages": 3}}}
    assert [line.partition(" = ")[0] for line in left_out] == ["policies: p: message-ttl"]


def test_what_is_no_object_is_listed() -> None:
    values, left_out = convert(
        queues=[{"name": "a", "arguments": 5}, {"name": {}, "durable": False}, {"durable": False}, 7],
        policies=[{"name": "p", "pattern": "^a", "definition": "x"}],
    )

    assert values == {}
    assert left_out == [
        "policies: p: definition = 'x' is not an object",
        "queues: a: arguments = 5 is not an object",
        "queues: {'name': {}, 'durable': False}: has no name",
        "queues: {'durable': False}: has no name",
        "queues: 7: is not an object",
    ]
