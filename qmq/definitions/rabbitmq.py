"""Definitions that RabbitMQ exported, in the words of QMQ.

RabbitMQ's policies match regular expressions, and QMQ's a name or a prefix. So only expressions that mean one of these
are taken. Each part of the file without a counterpart gets a line that says why; nothing is dropped in silence.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from qmq.definitions.rabbitmq_routing import drop_alternates, read_binding, read_exchange

Values = dict[str, dict[str, dict[str, Any]]]

PARTS: Final = (
    "users",
    "permissions",
    "topic_permissions",
    "parameters",
    "global_parameters",
    "policies",
    "queues",
    "exchanges",
    "bindings",
)

OVERFLOW: Final = {"drop-head": "drop-oldest", "reject-publish": "refuse", "reject-publish-dlx": "drop-newest"}

# A key of a policy, or an argument of a queue behind `x-` → our key, and our value of theirs.
KEYS: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "max-length": ("max_messages", int),
    "max-length-bytes": ("max_bytes", int),
    "overflow": ("overflow", OVERFLOW.__getitem__),
    "message-ttl": ("ttl_seconds", lambda ms: int(ms) / 1000),
    "delivery-limit": ("delivery_limit", int),
    "dead-letter-routing-key": ("dead_letter", lambda key: f"/queue/{key}"),
}

# Keys that ask for what every queue of QMQ does.
IMPLIED: Final = ("queue-mode", "queue-type", "ha-mode", "ha-params", "ha-sync-mode", "queue-version")


def is_rabbitmq(found: Any) -> bool:
    """Whether this is a file that RabbitMQ exported."""
    return isinstance(found, dict) and ("rabbit_version" in found or "rabbitmq_version" in found)


def convert(found: Mapping[str, Any]) -> tuple[Values, list[str]]:
    """The definitions that have a counterpart, and a line for each other part."""
    policies: dict[str, dict[str, Any]] = {}
    exchanges: dict[str, dict[str, Any]] = {}
    bindings: dict[str, dict[str, Any]] = {}
    left_out: list[str] = []
    for part in PARTS:
        entries = found.get(part, [])
        for entry in entries if isinstance(entries, list) else [entries]:
            if not isinstance(entry, dict):
                left_out.append(f"{part}: {entry!r}: is not an object")
                continue
            label = f"{part}: {entry.get('name') or entry.get('user') or entry.get('source') or entry}"
            if entry.get("vhost", "/") != "/":
                left_out.append(f"{label}: only the virtual host / is read, not {entry['vhost']}")
            elif part == "policies":
                _policy(entry, label, policies, left_out)
            elif part == "queues":
                _queue(entry, label, policies, left_out)
            elif part == "exchanges":
                read_exchange(entry, label, exchanges, left_out)
            elif part == "bindings":
                read_binding(entry, label, exchanges, bindings, left_out)
            else:
                left_out.append(f"{label}: has no counterpart")
    drop_alternates(exchanges, left_out)
    values = {"policy": policies, "exchange": exchanges, "binding": bindings}
    return {kind: of_kind for kind, of_kind in values.items() if of_kind}, left_out


def _policy(entry: Mapping[str, Any], label: str, policies: dict[str, dict[str, Any]], left_out: list[str]) -> None:
    if entry.get("apply-to", "all") not in ("all", "queues", "classic_queues", "quorum_queues"):
        left_out.append(f"{label}: has no counterpart, because it applies to {entry['apply-to']}")
        return
    pattern = _pattern(str(entry.get("pattern", "")))
    if pattern is None:
        left_out.append(f"{label}: the pattern {entry.get('pattern')!r} is neither a name nor a prefix")
        return
    values = _values(_object(entry, "definition", label, left_out), label, left_out)
    if values and pattern in policies:
        left_out.append(f"{label}: {pattern} has a policy already, and QMQ applies one")
    elif values:
        policies[pattern] = values


def _queue(entry: Mapping[str, Any], label: str, policies: dict[str, dict[str, Any]], left_out: list[str]) -> None:
    """A queue comes to life at its first use; only what differs from the defaults needs a policy."""
    arguments = {key.removeprefix("x-"): value for key, value in _object(entry, "arguments", label, left_out).items()}
    values = _values(arguments, label, left_out)
    if entry.get("durable") is False:
        values["durable"] = False
    if entry.get("auto_delete"):
        left_out.append(f"{label}: auto_delete has no counterpart")
    if values and not isinstance(entry.get("name"), str):
        left_out.append(f"{label}: has no name")
    elif values:
        policies[f"/queue/{entry['name']}"] = values


def _object(entry: Mapping[str, Any], part: str, label: str, left_out: list[str]) -> dict[str, Any]:
    found = entry.get(part) or {}
    if isinstance(found, dict):
        return found
    left_out.append(f"{label}: {part} = {found!r} is not an object")
    return {}


def _values(found: Mapping[str, Any], label: str, left_out: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    keys = dict(found)
    exchange = keys.pop("dead-letter-exchange", "")
    if exchange or ("dead-letter-routing-key" not in keys and exchange is None):
        left_out.append(f"{label}: dead-letter-exchange {exchange!r} has no counterpart")
        keys.pop("dead-letter-routing-key", None)
    for key, value in keys.items():
        if key in IMPLIED:
            continue
        try:
            name, read = KEYS[key]
            values[name] = read(value)
        except (KeyError, TypeError, ValueError, OverflowError):
            left_out.append(f"{label}: {key} = {value!r} has no counterpart")
    return values


def _pattern(expression: str) -> str | None:
    """`^jobs\\.` → `/queue/jobs.*`; None for an expression that is neither a name nor a prefix."""
    if expression in ("", "^", ".*", "^.*", "^.*$"):
        return "/queue/*"
    if not expression.startswith("^"):
        return None
    literal = expression[1:].removesuffix(".*$").removesuffix(".*")
    is_exact = literal == expression[1:] and literal.endswith("$") and not literal.endswith("\\$")
    literal = literal.removesuffix("$") if is_exact else literal
    plain = re.sub(r"\\([.\-_/$^+*?()\[\]{}|])", r"\1", literal)
    if re.search(r"[\\^$*+?()\[\]{}|]", re.sub(r"\\.", "", literal)) or "." in re.sub(r"\\.", "", literal):
        return None
    if "*" in plain or "#" in plain:
        return None
    return f"/queue/{plain}" if is_exact else f"/queue/{plain}*"
