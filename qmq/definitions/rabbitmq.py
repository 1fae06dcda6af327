"""Definitions that RabbitMQ exported, in the words of QMQ.

Each part of the file without a counterpart gets a line that says why; nothing is dropped in silence. An entry is
imported as a whole, but for single keys that a line names.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from qmq.definitions.rabbitmq_patterns import NamePattern, parts_of
from qmq.definitions.rabbitmq_topology import (
    alternate_of,
    drop_alternates,
    read_binding,
    read_exchange,
    read_queue,
    values_of,
)
from qmq.definitions.rabbitmq_users import administrators, narrowed_users, permissions_of, user_of
from qmq.definitions.rabbitmq_vhosts import is_in_another, keep_policies_apart, keep_users_apart, placed, read_vhosts
from qmq.routing_names import PREFIX, VHOST_DEFAULT

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

QUEUE: Final = "/queue/"

APPLIES: Final[Mapping[str, tuple[str, ...]]] = {
    "all": (QUEUE, PREFIX),
    "queues": (QUEUE,),
    "classic_queues": (QUEUE,),
    "quorum_queues": (QUEUE,),
    "exchanges": (PREFIX,),
}
"""What a policy applies to → the kinds of its patterns."""

Taken = dict[str, list[tuple[float, NamePattern]]]
"""By kind, the patterns that have a policy, with its priority."""

NAMELESS: Final = ("cluster_name", "internal_cluster_id")
"""Global parameters that say which mesh this was."""


def is_rabbitmq(found: Any) -> bool:
    """Whether this is a file that RabbitMQ exported."""
    return isinstance(found, dict) and ("rabbit_version" in found or "rabbitmq_version" in found)


def convert(found: Mapping[str, Any], present_users: Collection[str]) -> tuple[Values, list[str]]:
    """The definitions that have a counterpart, and a line for each other part. `present_users` stay as they are."""
    kinds = ("vhost", "user", "permission", "policy", "queue", "exchange", "binding")
    values: Values = {kind: {} for kind in kinds}
    left_out: list[str] = []
    prefixes = read_vhosts(found.get("vhosts"), values["vhost"], left_out)
    vhosts = values["vhost"]
    narrowed = {vhost: narrowed_users(found.get("topic_permissions"), vhost) for vhost in prefixes}
    policies: dict[str, Taken] = {prefix: {kind: [] for kind in APPLIES["all"]} for prefix in prefixes.values()}
    for part in PARTS:
        entries = found.get(part, [])
        for entry in _in_order(part, entries if isinstance(entries, list) else [entries]):
            if not isinstance(entry, dict):
                left_out.append(f"{part}: {entry!r}: is not an object")
                continue
            label = f"{part}: {entry.get('name') or entry.get('user') or entry.get('source') or entry}"
            vhost = entry.get("vhost", VHOST_DEFAULT)
            prefix = prefixes.get(vhost) if isinstance(vhost, str) else None
            if prefix is None:
                left_out.append(f"{label}: its virtual host {vhost!r} is not in the file, or is left out")
                continue
            if prefix:
                label += f" in {prefix[:-1]}"
            elif is_in_another(part, entry, vhosts):
                left_out.append(
                    f"{label}: names in {VHOST_DEFAULT} that begin so are those of another virtual host here"
                )
                continue
            entry = placed(part, entry, prefix)
            if part == "users":
                user_of(entry, label, values["user"], present_users, left_out)
            elif part == "permissions":
                users = {*values["user"], *present_users}
                why = permissions_of(entry, label, users, narrowed[vhost], values["permission"], prefix)
                left_out += [why] if why else []
            elif part == "policies":
                _policy(entry, label, values["policy"], policies[prefix], left_out, prefix)
            elif part == "queues":
                read_queue(entry, label, values["queue"], left_out)
            elif part == "exchanges":
                read_exchange(entry, label, values["exchange"], left_out)
            elif part == "bindings":
                read_binding(entry, label, values["exchange"], values["queue"], values["binding"], left_out, vhosts)
            elif part != "global_parameters" or entry.get("name") not in NAMELESS:
                left_out.append(f"{label}: has no counterpart")
    drop_alternates(values["exchange"], left_out, vhosts)
    keep_policies_apart(values["policy"], vhosts)
    names = {said: prefix[:-1] or VHOST_DEFAULT for said, prefix in prefixes.items()}
    exempt = administrators(found.get("users"))
    keep_users_apart(found.get("permissions"), exempt, names, values["permission"], left_out)
    return {kind: of_kind for kind, of_kind in values.items() if of_kind}, left_out


def _in_order(part: str, entries: list[Any]) -> list[Any]:
    """Policies with the highest priority first: of several that match a queue, RabbitMQ applies that one."""
    return sorted(entries, key=lambda entry: -_priority(entry)) if part == "policies" else entries


def _priority(entry: Any) -> float:
    found = entry.get("priority", 0) if isinstance(entry, dict) else 0
    return found if isinstance(found, int | float) else 0


def _policy(
    entry: Mapping[str, Any],
    label: str,
    policies: Named,
    taken: Taken,
    left_out: list[str],
    prefix: str,
) -> None:
    """Of several policies that match a queue, QMQ applies that with the longest prefix. `taken` are those before,
    of the same virtual host, whose names begin with `prefix`."""
    kinds = APPLIES.get(str(entry.get("apply-to", "all")), ())
    if not kinds:
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
    for_exchanges, for_queues = {}, dict(definition)
    if PREFIX in kinds:
        for_exchanges = alternate_of(for_queues, label, left_out)
    values = values_of(for_queues, label, left_out, is_policy=True) if QUEUE in kinds else {}
    if QUEUE not in kinds:
        left_out += [f"{label}: {key} = {for_queues[key]!r} has no counterpart for exchanges" for key in for_queues]
    priority = _priority(entry)
    for kind, found in ((QUEUE, values), (PREFIX, for_exchanges)):
        for part in parts if found else ():
            pattern = f"{kind}{prefix}{part.pattern}"
            above = [one for higher, one in taken[kind] if higher > priority]
            wider = [one for one in above if one.is_prefix and one.matches(part.text)]
            if pattern in policies:
                left_out.append(f"{label}: {pattern} has a policy already, and QMQ applies one")
            elif wider:
                left_out.append(
                    f"{label}: {pattern}: the policy of {kind}{prefix}{wider[0].pattern} has a higher priority"
                )
            else:
                policies[pattern] = dict(found)
                taken[kind].append((priority, part))
