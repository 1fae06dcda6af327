"""Definitions that RabbitMQ exported, in the words of QMQ.

Each part of the file without a counterpart gets a line that says why; nothing is dropped in silence. An entry is
imported as a whole, but for single keys that a line names.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from qmq.definitions.rabbitmq_patterns import NamePattern, parts_of
from qmq.definitions.rabbitmq_queues import drop_cycles, read_queue, values_of
from qmq.definitions.rabbitmq_routing import drop_alternates, read_binding, read_exchange
from qmq.definitions.rabbitmq_users import narrowed_users, permissions_of, user_of

Named = dict[str, dict[str, Any]]
Values = dict[str, Named]

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
"""In this order: bindings need to know the queues and exchanges."""

NAMELESS: Final = ("cluster_name", "internal_cluster_id")
"""Global parameters that say which mesh this was."""


def is_rabbitmq(found: Any) -> bool:
    """Whether this is a file that RabbitMQ exported."""
    return isinstance(found, dict) and ("rabbit_version" in found or "rabbitmq_version" in found)


def convert(found: Mapping[str, Any], present_users: Collection[str]) -> tuple[Values, list[str]]:
    """The definitions that have a counterpart, and a line for each other part. `present_users` stay as they are."""
    values: Values = {kind: {} for kind in ("user", "permission", "policy", "queue", "exchange", "binding")}
    left_out: list[str] = []
    narrowed = narrowed_users(found.get("topic_permissions"))
    policies: list[tuple[float, NamePattern]] = []
    for part in PARTS:
        entries = found.get(part, [])
        for entry in _in_order(part, entries if isinstance(entries, list) else [entries]):
            if not isinstance(entry, dict):
                left_out.append(f"{part}: {entry!r}: is not an object")
                continue
            label = f"{part}: {entry.get('name') or entry.get('user') or entry.get('source') or entry}"
            if entry.get("vhost", "/") != "/":
                left_out.append(f"{label}: only the virtual host / is read, not {entry['vhost']}")
            elif part == "users":
                user_of(entry, label, values["user"], present_users, left_out)
            elif part == "permissions":
                users = {*values["user"], *present_users}
                why = permissions_of(entry, label, users, narrowed, values["permission"])
                left_out += [why] if why else []
            elif part == "policies":
                _policy(entry, label, values["policy"], policies, left_out)
            elif part == "queues":
                read_queue(entry, label, values["queue"], left_out)
            elif part == "exchanges":
                read_exchange(entry, label, values["exchange"], left_out)
            elif part == "bindings":
                read_binding(entry, label, values["exchange"], values["queue"], values["binding"], left_out)
            elif part != "global_parameters" or entry.get("name") not in NAMELESS:
                left_out.append(f"{label}: has no counterpart")
    drop_alternates(values["exchange"], left_out)
    drop_cycles(values["queue"], left_out)
    return {kind: of_kind for kind, of_kind in values.items() if of_kind}, left_out


def _in_order(part: str, entries: list[Any]) -> list[Any]:
    """Policies with the highest priority first: of several that match a queue, RabbitMQ applies that one."""
    return sorted(entries, key=lambda entry: -_priority(entry)) if part == "policies" else entries


def _priority(entry: Any) -> float:
    found = entry.get("priority", 0) if isinstance(entry, dict) else 0
    return found if isinstance(found, int | float) else 0


def _policy(
    entry: Mapping[str, Any], label: str, policies: Named, taken: list[tuple[float, NamePattern]], left_out: list[str]
) -> None:
    """Of several policies that match a queue, QMQ applies that with the longest prefix."""
    if entry.get("apply-to", "all") not in ("all", "queues", "classic_queues", "quorum_queues"):
        left_out.append(f"{label}: has no counterpart, because it applies to {entry['apply-to']}")
        return
    expression = entry.get("pattern", "")
    parts = parts_of(expression) if isinstance(expression, str) else None
    if not parts:
        left_out.append(f"{label}: the pattern {expression!r} means no list of names and prefixes")
        return
    definition = entry.get("definition") or {}
    if not isinstance(definition, dict):
        left_out.append(f"{label}: definition = {definition!r} is not an object")
        return
    values = values_of(definition, label, left_out, is_policy=True)
    for part in parts if values else ():
        priority = _priority(entry)
        wider = [one for higher, one in taken if higher > priority and one.is_prefix and one.matches(part.text)]
        pattern = f"/queue/{part.pattern}"
        if pattern in policies:
            left_out.append(f"{label}: {pattern} has a policy already, and QMQ applies one")
        elif wider:
            left_out.append(f"{label}: {pattern}: the policy of /queue/{wider[0].pattern} has a higher priority")
        else:
            policies[pattern] = dict(values)
            taken.append((priority, part))
