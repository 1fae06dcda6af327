"""Definitions that RabbitMQ exported, in the words of QMQ."""

import json
from typing import Any

import pytest

from qmq.config import DestinationPolicy
from qmq.config.definition_values import policy_values, read_policy, read_queue
from qmq.definitions.document import read_document


def convert(**parts: Any) -> tuple[Any, list[str]]:
    return read_document(json.dumps({"rabbit_version": "3.10.8", **parts}).encode())


def policy(pattern: str, **definition: Any) -> dict[str, Any]:
    named = {key.replace("_", "-"): value for key, value in definition.items()}
    return {"vhost": "/", "name": "p", "pattern": pattern, "apply-to": "queues", "definition": named, "priority": 0}


def queue(name: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}, **more}


def arguments(**named: Any) -> dict[str, Any]:
    return {f"x-{key.replace('_', '-')}": value for key, value in named.items()}


def test_a_policy_is_a_policy_and_a_queue_a_declaration() -> None:
    values, left_out = convert(
        policies=[policy(r"^jobs\.", max_length=10, overflow="reject-publish", ha_mode="all")],
        queues=[
            queue("plain"),
            queue("q", arguments=arguments(message_ttl=1500, max_priority=9, queue_type="quorum")),
            queue("d", durable=False, arguments=arguments(dead_letter_exchange="", dead_letter_routing_key="bad")),
            queue("one", auto_delete=True, arguments=arguments(expires=60_000, single_active_consumer=True)),
            queue("x", arguments=arguments(dead_letter_exchange="dlx", dead_letter_routing_key="")),
            queue("own", arguments=arguments(dead_letter_exchange="dlx")),
        ],
    )

    assert left_out == []
    assert values == {
        "policy": {"/queue/jobs.*": {"max_messages": 10, "overflow": "refuse"}},
        "queue": {
            "/queue/plain": {},
            "/queue/q": {"ttl_seconds": 1.5},
            "/queue/d": {"dead_letter": "/queue/bad", "durable": False},
            "/queue/one": {"auto_delete": True, "expires_seconds": 60.0, "exclusive": True},
            "/queue/x": {"dead_letter": "/exchange/dlx", "dead_letter_routing_key": ""},
            "/queue/own": {"dead_letter": "/exchange/dlx"},
        },
    }
    for name, value in values["policy"].items():
        assert policy_values(read_policy(name, value)) == value
    for name, value in values["queue"].items():
        assert read_queue(name, value)[1] == value


def test_a_bounded_queue_drops_its_oldest_message_unless_it_says_otherwise_as_in_rabbitmq() -> None:
    values, _ = convert(
        queues=[
            queue("a", arguments=arguments(max_length=1)),
            queue("b", arguments=arguments(max_length_bytes=1, overflow="reject-publish")),
        ],
        policies=[policy("^c", max_length=1)],
    )

    found = {**values["queue"], **values["policy"]}
    assert [one["overflow"] for one in found.values()] == ["drop-oldest", "refuse", "drop-oldest"]


def test_a_queue_of_one_connection_is_imported_for_all_and_that_is_listed() -> None:
    values, left_out = convert(queues=[queue("a", exclusive=True), queue("b", exclusive=False)])

    assert set(values["queue"]) == {"/queue/a", "/queue/b"}
    assert [line for line in left_out if "exclusive" in line] == left_out
    assert len(left_out) == 1


def test_each_part_without_a_counterpart_is_listed() -> None:
    _, left_out = convert(
        parameters=[{"name": "shovel", "vhost": "/"}],
        global_parameters=[{"name": "cluster_name", "value": "x"}, {"name": "other", "value": "x"}],
        exchanges=[{"name": "x", "vhost": "/", "type": "x-random"}],
        bindings=[{"source": "x", "vhost": "/", "destination": "q"}],
        queues=[queue("q", vhost="other"), queue("s", type="stream")],
        policies=[
            policy("jobs", max_length=1),
            policy("^x", expires=1),
            policy("^y$", dead_letter_exchange="a/b"),
            {**policy("^z", max_length=1), "apply-to": "exchanges"},
        ],
    )

    assert [line.partition(":")[0] for line in left_out] == [
        "parameters",
        "global_parameters",
        "policies",
        "policies",
        "policies",
        "policies",
        "queues",
        "queues",
        "exchanges",
        "bindings",
    ]


@pytest.mark.parametrize(
    ("named", "line"),
    [
        ({"max_length": 0}, "max-length = 0"),
        ({"message_ttl": 0}, "message-ttl = 0"),
        ({"max_length": True}, "max-length = True"),
        ({"single_active_consumer": False}, "single-active-consumer = False"),
        ({"unknown": 1}, "unknown = 1"),
        ({"dead_letter_exchange": ""}, "dead-letter-exchange '' with dead-letter-routing-key None"),
        ({"dead_letter_routing_key": "k"}, "dead-letter-exchange None"),
        ({"dead_letter_exchange": "", "dead_letter_routing_key": "a.*"}, "'a.*'"),
        ({"dead_letter_exchange": "", "dead_letter_routing_key": "q"}, "come back to it"),
    ],
)
def test_an_argument_of_a_queue_without_a_counterpart_is_listed(named: dict[str, Any], line: str) -> None:
    values, left_out = convert(queues=[queue("q", arguments=arguments(**named))])

    assert values == {"queue": {"/queue/q": {}}}
    assert len(left_out) == 1 and line in left_out[0], left_out


def test_queues_that_retry_through_the_default_exchange_keep_both_steps() -> None:
    to = {name: arguments(dead_letter_exchange="", dead_letter_routing_key=name) for name in ("work", "work.retry")}

    values, left_out = convert(
        queues=[queue("work", arguments=to["work.retry"]), queue("work.retry", arguments=to["work"])]
    )

    assert values["queue"] == {
        "/queue/work": {"dead_letter": "/queue/work.retry"},
        "/queue/work.retry": {"dead_letter": "/queue/work"},
    }
    assert left_out == []


def test_of_policies_for_one_queue_that_with_the_highest_priority_counts() -> None:
    values, left_out = convert(
        policies=[
            {**policy("^a$", max_length=1), "priority": 0},
            {**policy("^a", max_length=2), "priority": 5},
            {**policy("^b$", max_length=3), "priority": 9},
            {**policy("^b", max_length=4), "priority": 5},
            {**policy("^b$", max_length=5), "priority": 1},
        ]
    )

    found = {pattern: value["max_messages"] for pattern, value in values["policy"].items()}
    assert found == {"/queue/b": 3, "/queue/a*": 2, "/queue/b*": 4}
    assert [line.partition(": ")[2] for line in left_out] == [
        "p: /queue/b has a policy already, and QMQ applies one",
        "p: /queue/a: the policy of /queue/a* has a higher priority",
    ]


def test_a_policy_gives_exchanges_an_alternate_and_queues_the_rest() -> None:
    everything = policy("^orders", alternate_exchange="ae", max_length=5, dead_letter_exchange="dlx")

    values, left_out = convert(
        policies=[
            {**everything, "apply-to": "all"},
            {**policy("^x$", alternate_exchange="ae"), "apply-to": "exchanges", "priority": 2},
            {**policy("^x", alternate_exchange="other"), "apply-to": "exchanges", "priority": 1},
            {**policy("^q", max_length=5), "apply-to": "all"},
        ]
    )

    assert values["policy"] == {
        "/exchange/x": {"alternate": "ae"},
        "/exchange/x*": {"alternate": "other"},
        "/queue/orders*": {"max_messages": 5, "overflow": "drop-oldest", "dead_letter": "/exchange/dlx"},
        "/exchange/orders*": {"alternate": "ae"},
        "/queue/q*": {"max_messages": 5, "overflow": "drop-oldest"},
    }
    assert left_out == []
    for name, value in values["policy"].items():
        assert policy_values(read_policy(name, value)) == value


@pytest.mark.parametrize(
    ("applies_to", "named", "line"),
    [
        ("queues", {"alternate_exchange": "ae"}, "alternate-exchange = 'ae' has no counterpart"),
        ("exchanges", {"alternate_exchange": "a/b"}, "alternate-exchange = 'a/b' has no counterpart"),
        ("exchanges", {"federation_upstream": "u"}, "federation-upstream = 'u' has no counterpart for exchanges"),
    ],
)
def test_a_key_of_a_policy_that_does_not_count_for_what_it_applies_to_is_listed(
    applies_to: str, named: dict[str, str], line: str
) -> None:
    values, left_out = convert(policies=[{**policy("^x", **named), "apply-to": applies_to}])

    assert (values, left_out) == ({}, [f"policies: p: {line}"])


def test_a_policy_with_alternatives_is_one_for_each() -> None:
    values, _ = convert(policies=[policy(r"^(a|b\.c)$", max_length=1), policy("^c$|^d", max_length=1)])

    assert list(values["policy"]) == ["/queue/a", "/queue/b.c", "/queue/c", "/queue/d*"]


def test_values_survive_the_way_through_json() -> None:
    one = DestinationPolicy(pattern="/fanout/f", children=("/queue/a",), retention_bytes=5)

    values = json.loads(json.dumps(policy_values(one)))

    assert values == {"children": ["/queue/a"], "retention_bytes": 5}
    assert read_policy("/fanout/f", values) == one


@pytest.mark.parametrize("number", [1e400, 10**400, -1e400])
def test_a_number_without_a_counterpart_is_listed(number: float) -> None:
    text = json.dumps({"rabbit_version": "3", "policies": [policy("^a", message_ttl=number, max_length=3)]})

    values, left_out = read_document(text.encode())

    assert values == {"policy": {"/queue/a*": {"max_messages": 3, "overflow": "drop-oldest"}}}
    assert [line.partition(" = ")[0] for line in left_out] == ["policies: p: message-ttl"]


def test_what_is_no_object_is_listed() -> None:
    values, left_out = convert(
        queues=[{"name": "a", "arguments": 5}, {"name": {}}, {"durable": False}, 7],
        policies=[{"name": "p", "pattern": "^a", "definition": "x"}],
    )

    assert values == {}
    assert left_out == [
        "policies: p: definition = 'x' is not an object",
        "queues: a: arguments = 5 is not an object",
        "queues: an entry without a name: has no name",
        "queues: an entry without a name: has no name",
        "queues: 7: is not an object",
    ]
