"""Random files of RabbitMQ, as exported and as people write and split them."""

import random
from typing import Any

VHOSTS = ("/", "shop", "/bank", "v" * 60, "a/b", "elsewhere", "there", 5)
NAMES = (
    *(
        "a",
        "b",
        "c",
        "orders",
        "orders.eu",
        "by hand",
        "ünïcode",
        "there",
        "shop~a",
        "",
        "x/y",
        "q*",
        "q.#",
        "two\nlines",
    ),
    *(
        "amq.topic",
        "amq.direct",
        "amq.mine",
        "amq.rabbitmq.trace",
        "q" * 248,
        "q" * 249,
        "q" * 2000,
        "é" * 125,
        None,
        5,
        {},
    ),
)
USERS = ("ann", "bob", "here", "two words", "u" * 300, None)
FLAGS = (True, True, True, False, "true", "false", None, 1, "yes")
KEYS = ("", "a", "orders.#", "k" * 255, "k" * 2000, "% " * 300, "a\nb", None)
EXPRESSIONS = (".*", "", "^$", "^orders", "^(a|b)$", "^" + "l" * 300, "[0-9]", "^(?!amq).*", "\\.dead$", 7)
QUEUE_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "message-ttl": (1500, 0, "60000", 1e400, True),
    "max-length": (5, 0, -1, "x"),
    "overflow": ("drop-head", "reject-publish", "other", []),
    "dead-letter-exchange": ("", "dlx", "a/b", "e" * 120, 5),
    "dead-letter-routing-key": ("dead", "d" * 249, "d" * 256, "a.*", None),
    "consumer-timeout": (60000, 0, "soon"),
    "delivery-limit": (3, -1),
    "expires": (1000, 0),
    "single-active-consumer": (True, False, "true"),
    "queue-type": ("classic", "quorum", "stream"),
    "max-priority": (9, 255),
    "mine": ("1", [1], {"a": 1}),
}
TYPES = ("direct", "topic", "fanout", "headers", "x-delayed-message", "x-consistent-hash", None, 5)
BINDING_ARGUMENTS = (
    {},
    {"x-match": "any", "a": 1},
    {"x-match": "odd"},
    {"a": [1]},
    {"a": "undefined"},
    {"b": "v" * 2000},
    5,
)


def entry(rng: random.Random, part: str) -> Any:
    """One entry of a part; now and then with a key left out, or no object at all."""
    if rng.random() < 0.03:
        return rng.choice([None, 5, "text", []])
    found = _whole(rng, part)
    if rng.random() < 0.15:
        found.pop(rng.choice(list(found)))
    return found


def _whole(rng: random.Random, part: str) -> dict[str, Any]:
    name, vhost, choice = rng.choice(NAMES), rng.choice(VHOSTS), rng.choice
    some = {key: choice(values) for key, values in QUEUE_ARGUMENTS.items() if rng.random() < 0.3}
    match part:
        case "vhosts":
            metadata = {"description": choice(["", "ours"]), "default_queue_type": choice(["classic", "stream"])}
            return {"name": vhost, "metadata": metadata, "protected_from_deletion": choice([True, False])}
        case "users":
            secret = choice(
                [{"password": "secret"}, {"password": ""}, {"password_hash": "abcd"}, {"password_hash": ""}, {}]
            )
            return {"name": choice(USERS), "tags": choice([[], "administrator", ["monitoring", "odd"], 5]), **secret}
        case "permissions":
            rights = {right: choice(EXPRESSIONS) for right in ("configure", "write", "read")}
            return {"user": choice(USERS), "vhost": vhost, **rights}
        case "topic_permissions":
            return {"user": choice(USERS), "vhost": vhost, "exchange": name, "write": choice(EXPRESSIONS), "read": ".*"}
        case "policies":
            applies = choice(["all", "queues", "exchanges", "quorum_queues", "streams", None])
            said = {**some, **choice([{}, {"ha-mode": "all"}, {"alternate-exchange": choice(NAMES)}])}
            said = choice([said, said, said, 5])
            return {
                **{"name": name, "vhost": vhost, "pattern": choice(EXPRESSIONS), "apply-to": applies},
                **{"priority": choice([0, 1, "x"]), "definition": said},
            }
        case "queues":
            arguments = choice([{f"x-{key}": value for key, value in some.items()}, {}, [], 5])
            flags = {"durable": choice(FLAGS), "auto_delete": choice(FLAGS)}
            return {"name": name, "vhost": vhost, **flags, "arguments": arguments}
        case "exchanges":
            flags = {key: choice(FLAGS) for key in ("durable", "auto_delete", "internal")}
            arguments = choice([{}, {"alternate-exchange": choice(NAMES)}, {"x-delayed-type": "direct"}, [], 5])
            return {"name": name, "vhost": vhost, "type": choice(TYPES), **flags, "arguments": arguments}
        case "bindings":
            kind = choice(["queue", "queue", "exchange", "stream"])
            ends = {"source": choice(NAMES), "destination": choice(NAMES), "destination_type": kind}
            return {**ends, "vhost": vhost, "routing_key": choice(KEYS), "arguments": choice(BINDING_ARGUMENTS)}
    return {"name": choice([name, "cluster_name"]), "vhost": vhost, "value": "x"}


PARTS = (
    *("vhosts", "users", "permissions", "topic_permissions", "policies", "queues", "exchanges", "bindings"),
    *("parameters", "global_parameters", "operator_policies"),
)


def file(seed: int) -> dict[str, Any]:
    """With a version or without, with all parts or some."""
    rng = random.Random(seed)
    parts = [part for part in PARTS if rng.random() < 0.8] or ["queues"]
    found: dict[str, Any] = {part: [entry(rng, part) for _ in range(rng.randrange(8))] for part in parts}
    # Most entries are in a virtual host that is there.
    for part in parts:
        for one in found[part]:
            if isinstance(one, dict) and "vhost" in one and rng.random() < 0.7:
                one["vhost"] = rng.choice(["/", "shop", "there"])
    if rng.random() < 0.5:
        found["rabbit_version"] = "3.12.0"
    return found
