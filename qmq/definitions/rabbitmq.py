"""Definitions that RabbitMQ exported, in the words of QMQ.

Each part of the file without a counterpart gets a line that says why; nothing is dropped in silence. An entry is
imported as a whole, but for single keys that a line names.
"""

from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from qmq.config.definition_values import read_policy
from qmq.definitions import rabbitmq_vhosts
from qmq.definitions.rabbitmq_patterns import NamePattern, parts_of
from qmq.definitions.rabbitmq_topology import (
    alternate_of,
    drop_alternates,
    read_binding,
    read_exchange,
    read_queue,
    unfit,
    values_of,
)
from qmq.definitions.rabbitmq_users import administrators, narrowed_users, permissions_of, user_of
from qmq.errors import ConfigError
from qmq.model.routing_names import PREFIX, VHOST_DEFAULT

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

MARKS: Final = ("vhosts", *PARTS)
"""By which such a file is known: a version is not in each, least of all in those that people write by hand."""

NAMED_ONCE: Final = ("users", "permissions", "queues", "exchanges")
"""Parts in which a name, or a user, has one entry for each virtual host."""

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


class ImportTarget(NamedTuple):
    """The mesh that an import finds."""

    present: Mapping[str, Mapping[str, Any]] = {}
    """Kind → the names that are defined already. Users of them stay as they are."""
    hashes: Mapping[str, str] = {}
    """Password of the file → its hash, of those that are hashed (`rabbitmq_users.clear_passwords`)."""
    destination_bytes_max: int = 255

    def names(self, kind: str) -> Collection[str]:
        return self.present.get(kind, {}).keys()


def is_rabbitmq(found: Any) -> bool:
    """Whether this is a file of RabbitMQ, exported or written by hand."""
    return isinstance(found, dict) and any(mark in found for mark in ("rabbit_version", "rabbitmq_version", *MARKS))


def convert(found: Mapping[str, Any], target: ImportTarget) -> tuple[Values, list[str]]:
    """The definitions that have a counterpart, and a line for each other part."""
    kinds = ("vhost", "user", "permission", "policy", "queue", "exchange", "binding")
    values: Values = {kind: {} for kind in kinds}
    left_out: list[str] = []
    own = rabbitmq_vhosts.read_vhosts(_entries(found.get("vhosts")), values["vhost"], left_out)
    prefixes = {**rabbitmq_vhosts.prefixes_of(target.names("vhost"), own), **own}
    vhosts = {*values["vhost"], *target.names("vhost")}
    bytes_max = target.destination_bytes_max
    # With those of the file as they are added.
    users, exchanges, queues = (
        ChainMap(values[kind], dict(target.present.get(kind, {}))) for kind in ("user", "exchange", "queue")
    )
    seen: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    left_out += [f"{_label(part, entry)}: has no counterpart" for part, entry in _others(found)]
    narrowed = {vhost: narrowed_users(found.get("topic_permissions"), vhost) for vhost in prefixes}
    policies: dict[str, Taken] = {prefix: {kind: [] for kind in APPLIES["all"]} for prefix in prefixes.values()}
    for part in PARTS:
        for entry in _in_order(part, _entries(found.get(part))):
            label = _label(part, entry)
            if not isinstance(entry, dict):
                left_out.append(f"{label}: is not an object")
                continue
            vhost = entry.get("vhost", VHOST_DEFAULT)
            prefix = prefixes.get(vhost) if isinstance(vhost, str) else None
            if prefix is None:
                left_out.append(f"{label}: its virtual host {vhost!r} is neither in the file nor in the mesh")
                continue
            if prefix:
                label += f" in {prefix[:-1]}"
            elif rabbitmq_vhosts.is_in_another(part, entry, vhosts):
                left_out.append(
                    f"{label}: names in {VHOST_DEFAULT} that begin so are those of another virtual host here"
                )
                continue
            name = entry.get("user" if part == "permissions" else "name")
            if part in NAMED_ONCE and isinstance(name, str):
                first = seen.setdefault((part, prefix, name), entry)
                if first != entry:
                    left_out.append(f"{label}: another entry before it has this name, and counts")
                if first is not entry:
                    continue
            entry = rabbitmq_vhosts.placed(part, entry, prefix)
            if part == "users":
                user_of(entry, label, values["user"], target.names("user"), target.hashes, left_out)
            elif part == "permissions":
                why = permissions_of(entry, label, users, narrowed[vhost], values["permission"], bytes_max, prefix)
                left_out += [why] if why else []
            elif part == "policies":
                _policy(entry, label, values["policy"], policies[prefix], left_out, bytes_max, prefix)
            elif part == "queues":
                read_queue(entry, label, values["queue"], left_out, bytes_max)
            elif part == "exchanges":
                read_exchange(entry, label, values["exchange"], left_out, vhosts)
            elif part == "bindings":
                read_binding(entry, label, exchanges, queues, values["binding"], left_out, bytes_max, vhosts)
            elif part != "global_parameters" or entry.get("name") not in NAMELESS:
                left_out.append(f"{label}: has no counterpart")
    drop_alternates(values["exchange"], target.names("exchange"), left_out, vhosts)
    rabbitmq_vhosts.keep_policies_apart(values["policy"], target.names("policy"), vhosts)
    names = {said: prefix[:-1] or VHOST_DEFAULT for said, prefix in prefixes.items()}
    exempt = administrators(found.get("users"))
    # A user of the mesh may have permissions in virtual hosts of which this file says nothing.
    known = dict.fromkeys(target.names("user"), {names[said] for said in prefixes if said not in own})
    rabbitmq_vhosts.keep_users_apart(found.get("permissions"), exempt, known, names, values["permission"], left_out)
    return {kind: of_kind for kind, of_kind in values.items() if of_kind}, left_out


def _entries(found: Any) -> list[Any]:
    """The entries of a part, which by hand may be one without a list."""
    return found if isinstance(found, list) else [] if found is None else [found]


def _label(part: str, entry: Any) -> str:
    """What lines call this entry. Never all that is in it, which may be a password."""
    if not isinstance(entry, dict):
        return f"{part}: {entry!r:.60}"
    return f"{part}: {entry.get('name') or entry.get('user') or entry.get('source') or 'an entry without a name'}"


def _others(found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Entries of parts that no version of RabbitMQ has had so far."""
    for part, entries in found.items():
        if part not in MARKS and isinstance(entries, list | dict):
            yield from ((part, one) for one in _entries(entries))


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
    bytes_max: int,
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
    values = values_of(for_queues, label, left_out, bytes_max, is_policy=True) if QUEUE in kinds else {}
    if QUEUE not in kinds:
        left_out += [f"{label}: {key} = {for_queues[key]!r} has no counterpart for exchanges" for key in for_queues]
    priority = _priority(entry)
    for kind, found in ((QUEUE, values), (PREFIX, for_exchanges)):
        for part in parts if found else ():
            pattern = f"{kind}{prefix}{part.pattern}"
            above = [one for higher, one in taken[kind] if higher > priority]
            wider = [one for one in above if one.is_prefix and one.matches(part.text)]
            problem = unfit("policy", pattern, found, bytes_max)
            try:
                read_policy(pattern, found)
            except ConfigError as error:
                problem = "; ".join(error.diagnostics)
            if problem:
                left_out.append(f"{label}: {problem}")
            elif pattern in policies:
                left_out.append(f"{label}: {pattern} has a policy already, and QMQ applies one")
            elif wider:
                left_out.append(
                    f"{label}: {pattern}: the policy of {kind}{prefix}{wider[0].pattern} has a higher priority"
                )
            else:
                policies[pattern] = dict(found)
                taken[kind].append((priority, part))
