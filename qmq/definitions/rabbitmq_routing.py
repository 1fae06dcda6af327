"""Exchanges and bindings that RabbitMQ exported, in the words of QMQ. Each part without a counterpart gets a line."""

from collections.abc import Collection, Mapping
from typing import Any

from qmq.routing_names import (
    MATCH,
    MATCHES,
    PREFIX,
    TYPES,
    argument_text,
    binding_name,
    is_exchange_name,
    is_predefined,
    is_reserved,
)

Named = dict[str, dict[str, Any]]


def read_exchange(entry: Mapping[str, Any], label: str, exchanges: Named, left_out: list[str]) -> None:
    """Add the exchange of this entry."""
    name, type = entry.get("name"), entry.get("type")
    if not isinstance(name, str) or name == "" or is_reserved(name):
        # The default exchange, and those that are predefined here, too.
        return
    if type not in TYPES:
        left_out.append(f"{label}: the type {type!r} has no counterpart")
    elif not is_exchange_name(name):
        left_out.append(f"{label}: a name has 1 to 127 characters, without slashes, wildcards and blanks")
    else:
        if entry.get("auto_delete"):
            left_out.append(f"{label}: auto_delete has no counterpart")
        exchanges[name] = {"type": type}
        if entry.get("internal"):
            exchanges[name]["internal"] = True
        arguments = entry.get("arguments") or {}
        for key, value in arguments.items() if isinstance(arguments, dict) else ():
            if key == "alternate-exchange" and isinstance(value, str):
                exchanges[name]["alternate"] = value
            else:
                left_out.append(f"{label}: {key} = {value!r} has no counterpart")


def drop_alternates(exchanges: Named, left_out: list[str], vhosts: Collection[str] = ()) -> None:
    """Leave out alternates that the file does not contain, and those that form a cycle."""
    for name, value in exchanges.items():
        alternate = value.get("alternate", "")
        if alternate and not _exists(alternate, exchanges, vhosts):
            left_out.append(f"exchanges: {name}: alternate-exchange {alternate!r} is not in the file")
            del value["alternate"]
    for name, value in exchanges.items():
        passed = {name}
        at = value.get("alternate", "")
        while at and at not in passed:
            passed.add(at)
            at = exchanges.get(at, {}).get("alternate", "")
        if at:
            left_out.append(f"exchanges: {name}: alternate-exchange forms a cycle")
            value.pop("alternate", None)


UNDEFINED = "undefined"
"""What an export says of an argument without value."""


def read_binding(
    entry: Mapping[str, Any],
    label: str,
    exchanges: Named,
    queues: Named,
    bindings: Named,
    left_out: list[str],
    vhosts: Collection[str] = (),
) -> None:
    """Add the binding of this entry, to a queue or another exchange; `exchanges`, `queues` and `vhosts` are those of
    the file that have a counterpart.

    An export has bindings of queues that it does not have, such as those of one connection. With such a binding, a
    queue without consumers would grow.
    """
    source, name, key = entry.get("source"), entry.get("destination"), entry.get("routing_key", "")
    kind = entry.get("destination_type", "queue")
    if source == "":
        # The default exchange: a SEND to /queue/NAME.
        return
    found = entry.get("arguments") or {}
    problem = ""
    if kind not in ("queue", "exchange"):
        problem = f"destination_type = {kind!r} has no counterpart"
    elif not isinstance(source, str) or not _exists(source, exchanges, vhosts):
        problem = "its exchange is not in the file, or is left out"
    elif kind == "exchange" and (not isinstance(name, str) or not _exists(name, exchanges, vhosts)):
        problem = "the exchange that it leads to is not in the file, or is left out"
    elif not isinstance(name, str) or not name or "*" in name or "#" in name:
        problem = f"{name!r} cannot be the name of a queue"
    elif not isinstance(key, str) or not isinstance(found, dict):
        problem = "its routing_key or arguments cannot be read"
    elif kind == "queue" and f"/queue/{name}" not in queues:
        problem = "its queue is not in the file, or is left out"
    else:
        try:
            arguments = {header: argument_text(found[header]) for header in sorted(found)}
        except ValueError as error:
            problem = f"an argument {error}"
        else:
            if arguments.get(MATCH, MATCHES[0]) not in MATCHES:
                problem = f"{MATCH} = {arguments[MATCH]!r} has no counterpart"
            for header in [one for one, value in arguments.items() if value == UNDEFINED and not problem]:
                arguments[header] = None
                left_out.append(f"{label} → {name}: {header} = '{UNDEFINED}': is read as any value of this header")
    if problem:
        left_out.append(f"{label} → {name}: {problem}")
        return
    target = f"/{kind}/{name}"
    value = {"source": f"{PREFIX}{source}", kind: target, "key": key, "arguments": arguments}
    bindings[binding_name(value["source"], target, key, arguments)] = value


def _exists(name: str, exchanges: Named, vhosts: Collection[str]) -> bool:
    return name in exchanges or is_predefined(name, vhosts)
