"""Virtual hosts of a file that RabbitMQ exported: each is a prefix of names, and keeps apart what was apart there."""

import json
from typing import Any

import pytest

from qmq.config.definition_values import policy_values, read_permission, read_policy, read_queue
from qmq.definitions.document import read_document
from qmq.definitions.rabbitmq import ImportTarget

MESH = ImportTarget({"user": {"ann": {}, "bob": {}}})


def convert(**parts: Any) -> tuple[Any, list[str]]:
    hosts = [{"name": name} for name in ("/", "shop")]
    return read_document(json.dumps({"rabbit_version": "3.10.8", "vhosts": hosts, **parts}).encode(), MESH)


def queue(name: str, vhost: str = "shop", **arguments: Any) -> dict[str, Any]:
    said = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return {"name": name, "vhost": vhost, "durable": True, "auto_delete": False, "arguments": said}


def exchange(name: str, vhost: str = "shop", **arguments: Any) -> dict[str, Any]:
    said = {key.replace("_", "-"): value for key, value in arguments.items()}
    return {"name": name, "vhost": vhost, "type": "topic", "arguments": said}


def binding(source: str, to: str, vhost: str = "shop", key: str = "") -> dict[str, Any]:
    return {"source": source, "vhost": vhost, "destination": to, "destination_type": "queue", "routing_key": key}


def policy(pattern: str, vhost: str, *, priority: int = 0, **definition: Any) -> dict[str, Any]:
    said = {key.replace("_", "-"): value for key, value in definition.items()}
    return {"vhost": vhost, "name": "p", "pattern": pattern, "definition": said, "priority": priority}


def permission(user: str, vhost: str, configure: str = "", write: str = "", read: str = "") -> dict[str, Any]:
    return {"user": user, "vhost": vhost, "configure": configure, "write": write, "read": read}


def test_queues_exchanges_and_bindings_get_the_prefix_of_their_virtual_host() -> None:
    values, left_out = convert(
        queues=[
            queue("jobs", "/"),
            queue("jobs", dead_letter_exchange="dlx", dead_letter_routing_key="k"),
            queue("bad", dead_letter_exchange="", dead_letter_routing_key="jobs"),
            queue("std", dead_letter_exchange="amq.direct"),
        ],
        exchanges=[
            exchange("", "shop"),
            exchange("amq.topic", "shop"),
            exchange("dlx", alternate_exchange="amq.fanout"),
        ],
        bindings=[binding("dlx", "jobs", key="k"), binding("amq.topic", "jobs", key="a.#"), binding("", "jobs")],
    )

    assert left_out == []
    assert values == {
        "vhost": {"shop": {}},
        "queue": {
            "/queue/jobs": {},
            "/queue/shop~jobs": {"dead_letter": "/exchange/shop~dlx", "dead_letter_routing_key": "k"},
            "/queue/shop~bad": {"dead_letter": "/queue/shop~jobs"},
            "/queue/shop~std": {"dead_letter": "/exchange/shop~amq.direct"},
        },
        "exchange": {"shop~dlx": {"type": "topic", "alternate": "shop~amq.fanout"}},
        "binding": {
            f"/exchange/shop~{source} /queue/shop~jobs {key}": {
                "source": f"/exchange/shop~{source}",
                "queue": "/queue/shop~jobs",
                "key": key,
                "arguments": {},
            }
            for source, key in (("dlx", "k"), ("amq.topic", "a.#"))
        },
    }
    for name, value in values["queue"].items():
        assert read_queue(name, value)[1] == value


def test_exchanges_are_bound_to_each_other_in_their_virtual_host() -> None:
    values, left_out = convert(
        exchanges=[exchange("a"), exchange("b")],
        bindings=[{**binding("a", "b", key="k"), "destination_type": "exchange"}],
    )

    assert left_out == []
    (found,) = values["binding"].values()
    assert (found["source"], found["exchange"]) == ("/exchange/shop~a", "/exchange/shop~b")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("a/b", "vhosts: a/b: a name has 1 to 64 characters, without slashes, blanks, ~, * and #"),
        ("/shop", "vhosts: /shop: is shop here, and that is one, too"),
        (5, "vhosts: 5: has no name"),
    ],
)
def test_a_virtual_host_that_cannot_be_is_left_out_with_all_that_is_in_it(name: Any, line: str) -> None:
    values, left_out = convert(vhosts=[{"name": "shop"}, {"name": name}], queues=[queue("q", name), queue("q")])

    assert values == {"vhost": {"shop": {}}, "queue": {"/queue/shop~q": {}}}
    assert left_out == [line, f"queues: q: its virtual host {name!r} is neither in the file nor in the mesh"]


def test_a_slash_before_the_name_of_a_virtual_host_is_left_out() -> None:
    values, left_out = convert(vhosts=[{"name": "/shop"}], queues=[queue("q", "/shop")])

    assert (values, left_out) == ({"vhost": {"shop": {}}, "queue": {"/queue/shop~q": {}}}, [])


def test_policies_stay_in_their_virtual_host() -> None:
    values, left_out = convert(
        policies=[
            policy(".*", "/", priority=9, max_length=1),
            policy("^jobs", "shop", message_ttl=1000, dead_letter_exchange="dlx"),
        ],
    )

    assert left_out == []
    assert values["policy"] == {
        "/queue/*": {"max_messages": 1, "overflow": "drop-oldest"},
        "/queue/shop~jobs*": {"ttl_seconds": 1.0, "dead_letter": "/exchange/shop~dlx"},
        # Else that of / would be one for all of them.
        "/queue/shop~*": {},
    }
    for name, value in values["policy"].items():
        assert policy_values(read_policy(name, value)) == value


def test_a_policy_for_a_whole_virtual_host_needs_no_other() -> None:
    values, _ = convert(policies=[policy(".*", "/", max_length=1), policy("", "shop", max_length=2)])

    assert {name: value["max_messages"] for name, value in values["policy"].items()} == {
        "/queue/*": 1,
        "/queue/shop~*": 2,
    }


def test_permissions_are_about_names_in_the_virtual_host() -> None:
    values, left_out = convert(permissions=[permission("ann", "shop", "^$", "^(amq\\.default|orders)$", "^jobs")])

    assert left_out == []
    assert {one["destinations"][0]: one["allow"] for one in values["permission"].values()} == {
        "/exchange/shop~amq.default": ["send"],
        "/exchange/shop~amq.default/*": ["send"],
        "/exchange/shop~orders": ["send"],
        "/exchange/shop~orders/*": ["send"],
        "/queue/shop~*": ["send"],
        "/queue/shop~jobs*": ["subscribe"],
        "/exchange/shop~jobs*": ["subscribe"],
    }


@pytest.mark.parametrize(("vhost", "has_topics"), [("/", True), ("shop", False)])
def test_topics_of_stomp_are_in_the_default_virtual_host(vhost: str, has_topics: bool) -> None:
    values, _ = convert(permissions=[permission("ann", vhost, read="^amq\\.topic$", write="^amq\\.topic$")])

    assert any(one["destinations"] == ["/topic/*"] for one in values["permission"].values()) is has_topics


def test_what_the_default_virtual_host_allows_does_not_open_the_others() -> None:
    values, left_out = convert(
        permissions=[
            permission("ann", "/", ".*", ".*", ".*"),
            permission("bob", "/", "", "", "^jobs"),
        ]
    )

    denied = {name: one for name, one in values["permission"].items() if "deny" in one}
    assert left_out == []
    assert [(one["user"], one["deny"], one["destinations"]) for one in denied.values()] == [
        ("ann", ["send", "subscribe", "declare"], ["/queue/shop~*"]),
        ("ann", ["send", "subscribe", "declare"], ["/exchange/shop~*"]),
    ]
    for name, value in denied.items():
        read_permission(name, value)


@pytest.mark.parametrize(
    ("rights", "lines"),
    [
        (("", "", "^jobs$"), ["permissions: ann: what / allows covers all of shop, too"]),
        ((".*", ".*", ".*"), []),
    ],
)
def test_what_cannot_be_kept_apart_is_listed(rights: tuple[str, str, str], lines: list[str]) -> None:
    values, left_out = convert(
        permissions=[permission("ann", "/", ".*", ".*", ".*"), permission("ann", "shop", *rights)]
    )

    assert left_out == lines
    assert not any("deny" in one for one in values["permission"].values())


@pytest.mark.parametrize("name", ["root", "ann"])  # ann is here already
@pytest.mark.parametrize("tags", [["administrator"], "management, administrator"])
def test_an_administrator_is_denied_nothing(name: str, tags: Any) -> None:
    values, _ = convert(users=[{"name": name, "tags": tags}], permissions=[permission(name, "/", ".*", ".*", ".*")])

    assert not any("deny" in one for one in values["permission"].values())


def test_topic_permissions_narrow_only_their_virtual_host() -> None:
    narrow = {"user": "ann", "vhost": "/", "exchange": "amq.topic", "write": "^a", "read": ".*"}

    values, left_out = convert(
        topic_permissions=[narrow],
        permissions=[permission("ann", "/", read="^q$"), permission("ann", "shop", read="^q$")],
    )

    assert {one["destinations"][0] for one in values["permission"].values()} == {
        "/queue/shop~q",
        "/exchange/shop~q",
        "/exchange/shop~q/*",
    }
    assert any("topic_permissions of this user narrow it" in line for line in left_out)


def test_a_name_that_is_one_of_another_virtual_host_is_left_out() -> None:
    values, left_out = convert(
        queues=[queue("orders", max_length=5), queue("shop~orders", "/"), queue("shop-orders", "/")],
        exchanges=[exchange("e", "/"), exchange("shop~e", "/")],
        bindings=[binding("e", "shop~orders", "/"), binding("e", "shop-orders", "/")],
    )

    assert values["queue"]["/queue/shop~orders"] == {"max_messages": 5, "overflow": "drop-oldest"}
    assert list(values["exchange"]) == ["e"]
    assert [one["queue"] for one in values["binding"].values()] == ["/queue/shop-orders"]
    assert [line.partition(": names in / ")[0] for line in left_out] == [
        "queues: shop~orders",
        "exchanges: shop~e",
        "bindings: e",
    ]


@pytest.mark.parametrize("wrong", [{"vhost": []}, {"vhost": {}}, {"user": []}, {"user": {}}])
def test_a_permission_that_is_none_is_left_out(wrong: dict[str, Any]) -> None:
    values, left_out = convert(permissions=[{**permission("ann", "/", ".*", ".*", ".*"), **wrong}])

    assert "permission" not in values
    assert len(left_out) == 1
