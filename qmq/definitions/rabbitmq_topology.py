"""Queues, exchanges and bindings that RabbitMQ exported, and the keys of its policies, in the words of QMQ.

Each part without a counterpart gets a line. A number that is 0 has none: to QMQ it means "no bound", and to RabbitMQ
"none at all".
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from qmq.config.definition_values import read_queue as read_declaration
from qmq.config.destinations.policy import too_long
from qmq.definitions.definition import NAME_BYTES_MAX, Key, text_of
from qmq.errors import ConfigError, Refused
from qmq.model.routing_names import (
    DELAYED_TYPE,
    MATCH,
    MATCHES,
    PREFIX,
    RESERVED,
    ROUTES_AS,
    TYPES,
    argument_text,
    binding_name,
    is_exchange_name,
    is_predefined,
    is_reserved,
)

Named = dict[str, dict[str, Any]]

OVERFLOW: Final = {"drop-head": "drop-oldest", "reject-publish": "refuse", "reject-publish-dlx": "drop-newest"}


def _positive(value: Any) -> int:
    number = int(value)
    if number <= 0 or isinstance(value, bool):
        raise ValueError("must be greater than 0")
    return number


def _true(value: Any) -> bool:
    if value is not True:
        raise ValueError("must be true")
    return value


# A key of a policy, or an argument of a queue behind `x-` → our key, and our value of theirs.
KEYS: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "max-length": ("max_messages", _positive),
    "max-length-bytes": ("max_bytes", _positive),
    "overflow": ("overflow", OVERFLOW.__getitem__),
    "message-ttl": ("ttl_seconds", lambda ms: _positive(ms) / 1000),
    "delivery-limit": ("delivery_limit", _positive),
    "consumer-timeout": ("ack_timeout_seconds", lambda ms: _positive(ms) / 1000),
}
# Of a queue only.
ARGUMENTS: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    **KEYS,
    "expires": ("expires_seconds", lambda ms: _positive(ms) / 1000),
    "single-active-consumer": ("exclusive", _true),
}

# Keys that ask for what every queue of QMQ does, or for what it needs no setting for.
IMPLIED: Final = (
    "queue-mode",
    "queue-type",
    "queue-version",
    "queue-master-locator",
    "queue-leader-locator",
    "ha-mode",
    "ha-params",
    "ha-sync-mode",
    "max-priority",
)

EXCHANGE_KEY: Final = "dead-letter-exchange"
ROUTING_KEY: Final = "dead-letter-routing-key"

ALTERNATE: Final = "alternate-exchange"

UNDEFINED = "undefined"
"""What an export says of an argument without value."""


def flag(entry: Mapping[str, Any], key: str, default: bool) -> bool:
    """What an entry says of itself, which by hand may be text. Raises ValueError."""
    value = entry.get(key)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{key} = {value!r} is neither true nor false")
    return default if value is None else value


def unfit(kind: str, name: str, value: Mapping[str, Any], bytes_max: int) -> str:
    """Why no node would take this definition, whatever the mesh has; "" if one would."""
    places = [name.removesuffix("*") if kind in ("queue", "policy") else "", value.get("queue", "")]
    for place in [*places, *value.get("destinations", ())]:
        if why := too_long(place, bytes_max):
            return f"{place:.40}… {why}"
    if not name.isprintable():
        return f"its name here, {name!r:.60}, has characters that cannot be printed"
    if len(name.encode()) > NAME_BYTES_MAX:
        return f"its name here has more than {NAME_BYTES_MAX} bytes"
    try:
        text_of(Key(kind, f"{name:.40}"), value)
    except Refused as refused:
        return refused.message
    return ""


def read_queue(entry: Mapping[str, Any], label: str, queues: Named, left_out: list[str], bytes_max: int) -> None:
    """Add the declaration of this queue."""
    name, arguments = entry.get("name"), entry.get("arguments") or {}
    if not isinstance(name, str) or not name:
        left_out.append(f"{label}: has no name")
    elif "*" in name or "#" in name or not name.isprintable():
        left_out.append(f"{label}: {name!r} cannot be the name of a queue")
    elif not isinstance(arguments, dict):
        left_out.append(f"{label}: arguments = {arguments!r} is not an object")
    elif "stream" in (entry.get("type"), arguments.get("x-queue-type")):
        left_out.append(f"{label}: a stream has no counterpart; a /fanout/ keeps messages for all its subscribers")
    else:
        queue = f"/queue/{name}"
        if problem := unfit("queue", queue, {}, bytes_max):
            left_out.append(f"{label}: {problem}")
            return
        try:
            durable, auto_delete = flag(entry, "durable", True), flag(entry, "auto_delete", False)
        except ValueError as error:
            left_out.append(f"{label}: {error}")
            return
        values = values_of({key.removeprefix("x-"): one for key, one in arguments.items()}, label, left_out, bytes_max)
        if not durable:
            values["durable"] = False
        if auto_delete:
            values["auto_delete"] = True
        if entry.get("exclusive"):
            left_out.append(f"{label}: exclusive has no counterpart: any connection may use it")
        if values.get("dead_letter") == queue:
            del values["dead_letter"]
            left_out.append(f"{label}: its dead letters would come back to it")
        try:
            queues[queue] = read_declaration(queue, values)[1]
        except ConfigError as error:
            left_out.append(f"{label}: {'; '.join(error.diagnostics)}")


def values_of(
    found: Mapping[str, Any], label: str, left_out: list[str], bytes_max: int, *, is_policy: bool = False
) -> dict[str, Any]:
    """The keys of a policy or declaration with the meaning of these of RabbitMQ."""
    known = KEYS if is_policy else ARGUMENTS
    values: dict[str, Any] = {}
    for key, value in found.items():
        if key in IMPLIED or key in (EXCHANGE_KEY, ROUTING_KEY):
            continue
        try:
            name, read = known[key]
            values[name] = read(value)
        except (KeyError, TypeError, ValueError, OverflowError):
            left_out.append(f"{label}: {key} = {value!r} has no counterpart")
    if "overflow" not in values and ("max_messages" in values or "max_bytes" in values):
        values["overflow"] = OVERFLOW["drop-head"]
    dead_letters = _dead_letter(found, label, left_out)
    if why := too_long(dead_letters.get("dead_letter", ""), bytes_max):
        left_out.append(f"{label}: {EXCHANGE_KEY}: {dead_letters['dead_letter']:.40}… {why}")
        dead_letters = {}
    return {**values, **dead_letters}


def alternate_of(found: dict[str, Any], label: str, left_out: list[str]) -> dict[str, Any]:
    """The keys of a policy of exchanges with the meaning of these of RabbitMQ, which are taken out of `found`."""
    alternate = found.pop(ALTERNATE, None)
    if alternate is None:
        return {}
    if not isinstance(alternate, str) or not is_exchange_name(alternate):
        left_out.append(f"{label}: {ALTERNATE} = {alternate!r} has no counterpart")
        return {}
    return {"alternate": alternate}


def _dead_letter(found: Mapping[str, Any], label: str, left_out: list[str]) -> dict[str, Any]:
    """Dead letters that go to the default exchange go to the queue that their routing key names."""
    if EXCHANGE_KEY not in found and ROUTING_KEY not in found:
        return {}
    exchange, key = found.get(EXCHANGE_KEY), found.get(ROUTING_KEY)
    if exchange == "" and isinstance(key, str) and key and "*" not in key and "#" not in key:
        return {"dead_letter": f"/queue/{key}"}
    if isinstance(exchange, str) and is_exchange_name(exchange) and (key is None or isinstance(key, str)):
        return {"dead_letter": f"{PREFIX}{exchange}", **({} if key is None else {"dead_letter_routing_key": key})}
    left_out.append(f"{label}: {EXCHANGE_KEY} {exchange!r} with {ROUTING_KEY} {key!r} has no counterpart")
    return {}


def read_exchange(
    entry: Mapping[str, Any], label: str, exchanges: Named, left_out: list[str], vhosts: Collection[str] = ()
) -> None:
    """Add the exchange of this entry."""
    name, type = entry.get("name"), entry.get("type")
    if name == "" or (isinstance(name, str) and is_predefined(name, vhosts) and name.endswith(f"{RESERVED}{type}")):
        return  # The default exchange, or one that is predefined here, too.
    flags: dict[str, bool] = {}
    problem = ""
    try:
        flags = {key: flag(entry, key, key == "durable") for key in ("durable", "auto_delete", "internal")}
    except ValueError as error:
        problem = str(error)
    arguments = entry.get("arguments") or {}
    delayed = {}
    if type == DELAYED_TYPE and isinstance(arguments, dict):
        arguments = dict(arguments)
        type, delayed = arguments.pop(ROUTES_AS, None), {"delayed": True}
    if not isinstance(name, str):
        left_out.append(f"{label}: has no name")
    elif problem:
        left_out.append(f"{label}: {problem}")
    elif not isinstance(arguments, dict):
        left_out.append(f"{label}: arguments = {arguments!r} is not an object")
    elif is_reserved(name):
        left_out.append(f"{label}: names that begin with {RESERVED} are predefined, and this is none of them")
    elif type not in TYPES:
        left_out.append(f"{label}: the type {type!r} has no counterpart")
    elif not is_exchange_name(name):
        left_out.append(f"{label}: a name has 1 to 127 characters, without slashes, wildcards and blanks")
    else:
        if flags["auto_delete"]:
            left_out.append(f"{label}: auto_delete has no counterpart")
        if not flags["durable"]:
            left_out.append(f"{label}: durable = False has no counterpart: it stays until it is deleted")
        exchanges[name] = {"type": type, **delayed}
        if flags["internal"]:
            exchanges[name]["internal"] = True
        for key, value in arguments.items():
            if key == ALTERNATE and isinstance(value, str):
                exchanges[name]["alternate"] = value
            else:
                left_out.append(f"{label}: {key} = {value!r} has no counterpart")


def drop_alternates(
    exchanges: Named, present: Collection[str], left_out: list[str], vhosts: Collection[str] = ()
) -> None:
    """Leave out alternates that neither the file nor the mesh contains."""
    for name, value in exchanges.items():
        alternate = value.get("alternate", "")
        if alternate and alternate not in present and not _exists(alternate, exchanges, vhosts):
            left_out.append(
                f"exchanges: {name}: alternate-exchange {alternate!r} is neither in the file nor in the mesh"
            )
            del value["alternate"]


def read_binding(
    entry: Mapping[str, Any],
    label: str,
    exchanges: Collection[str],
    queues: Collection[str],
    bindings: Named,
    left_out: list[str],
    bytes_max: int,
    vhosts: Collection[str] = (),
) -> None:
    """Add the binding of this entry, to a queue or another exchange; `exchanges`, `queues` and `vhosts` are those of
    the mesh, and those of the file that have a counterpart.

    An export has bindings of queues that it does not have, such as those of one connection. With such a binding, a
    queue without consumers would grow.
    """
    source, name, key = entry.get("source"), entry.get("destination"), entry.get("routing_key", "")
    kind = entry.get("destination_type", "queue")
    if source == "":
        # The default exchange: a SEND to /queue/NAME.
        if kind != "queue" or not isinstance(name, str) or not isinstance(key, str) or not name.endswith(key):
            left_out.append(f"{label} → {name}: to the default exchange, each queue is bound by its own name only")
        return
    found = entry.get("arguments") or {}
    problem = ""
    if kind not in ("queue", "exchange"):
        problem = f"destination_type = {kind!r} has no counterpart"
    elif not isinstance(source, str) or not _exists(source, exchanges, vhosts):
        problem = "its exchange is neither in the mesh nor in the file, or is left out"
    elif kind == "exchange" and (not isinstance(name, str) or not _exists(name, exchanges, vhosts)):
        problem = "the exchange that it leads to is neither in the mesh nor in the file, or is left out"
    elif not isinstance(name, str) or not name or "*" in name or "#" in name:
        problem = f"{name!r} cannot be the name of a queue"
    elif not isinstance(key, str) or not isinstance(found, dict):
        problem = "its routing_key or arguments cannot be read"
    elif kind == "queue" and f"/queue/{name}" not in queues:
        problem = "its queue is neither in the mesh nor in the file, or is left out"
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
    if not problem:
        target = f"/{kind}/{name}"
        value = {"source": f"{PREFIX}{source}", kind: target, "key": key, "arguments": arguments}
        defined = binding_name(value["source"], target, key, arguments)
        problem = unfit("binding", defined, value, bytes_max)
    if problem:
        left_out.append(f"{label} → {name}: {problem}")
    else:
        bindings[defined] = value


def _exists(name: str, exchanges: Collection[str], vhosts: Collection[str]) -> bool:
    return name in exchanges or is_predefined(name, vhosts)
