"""Forms and helps show each key of a definition as its section declares it."""

from typing import Any

import pytest

from qmq.config.definition_values import READERS, read_policy
from qmq.config.destinations.declared import QUEUE_KEYS
from qmq.config.keys import TYPES, keys_of

TYPE_NAMES = {*TYPES.values(), "size", "list"}


def by_name(kind: str) -> dict[str, dict[str, Any]]:
    return {key["name"]: key for key in keys_of(kind)}


@pytest.mark.parametrize("kind", READERS)
def test_each_key_of_a_kind_has_a_type_and_says_what_it_means(kind: str) -> None:
    keys = keys_of(kind)

    assert keys
    assert [key["name"] for key in keys if not key["help"] or key["type"] not in TYPE_NAMES] == []


def test_keys_have_the_bounds_values_and_defaults_of_the_section() -> None:
    policy = by_name("policy")

    assert (policy["priority"]["at_least"], policy["priority"]["at_most"], policy["priority"]["default"]) == (0, 9, 4)
    assert policy["ttl_seconds"]["type"] == "number"
    assert policy["max_bytes"]["type"] == "size"
    assert policy["overflow"]["values"] == ["refuse", "drop-oldest", "drop-newest"]
    assert policy["receipt"]["values"][:3] == ["accepted", "fsync", "replicas=1"]
    assert (policy["children"]["type"], policy["children"]["under"]) == ("list", ["/fanout/"])
    assert (policy["durable"]["type"], policy["durable"]["default"]) == ("truth", True)
    assert by_name("permission")["destinations"]["required"]
    assert "send" in by_name("permission")["allow"]["values"]


def test_what_names_a_definition_is_no_key_of_it() -> None:
    assert "pattern" not in by_name("policy")
    assert "name" not in by_name("user")
    assert not {"user", "group"} & by_name("limit").keys()
    assert by_name("queue").keys() == set(QUEUE_KEYS)


def test_a_default_is_a_value_that_a_policy_may_set() -> None:
    for key in keys_of("policy"):
        for prefix in key["under"]:
            values = [key["default"]] if key["default"] is not None else key.get("values", [])[:1]
            for value in values:
                read_policy(f"{prefix}x", {key["name"]: value})


def test_a_kind_whose_value_is_no_section_has_no_keys() -> None:
    assert keys_of("schema") == []
