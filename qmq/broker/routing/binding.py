"""Exchanges and bindings as values, read from what an operator wrote. Everything that is wrong is refused here.

A binding copies messages from its **source** to its **target**: one queue, or another exchange, which routes them on.
Its name is made of all that it says, so that the same binding is one definition on all nodes, whichever node it was
declared on.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from qmq.broker.messages.destination import DestinationKind, check_pattern, is_pattern, kind_of
from qmq.errors import Refused
from qmq.model.routing_names import (
    MATCH,
    MATCHES,
    PREFIX,
    RESERVED,
    TYPES,
    argument_text,
    binding_name,
    exchange_value,
    is_exchange_name,
)

DIRECT: Final = "direct"
TOPIC: Final = "topic"
FANOUT: Final = "fanout"
HEADERS: Final = "headers"

EXCHANGE_KEYS: Final = ("type", "alternate", "internal", "delayed")
"""Of the definition of an exchange."""

BINDING_KEYS: Final = ("source", "queue", "exchange", "key", "arguments")
"""Of the definition of a binding."""


class Exchange(NamedTuple):
    """`alternate` gets what no binding of this exchange matches; "": such messages are dropped.

    Clients cannot send to an `internal` one. It gets messages by bindings, as an alternate, and dead letters. What is
    sent to a `delayed` one waits in its queues for as long as its sender asks.
    """

    name: str
    type: str
    alternate: str = ""
    internal: bool = False
    delayed: bool = False

    @property
    def value(self) -> dict[str, Any]:
        """As the definition has it."""
        return exchange_value(self.type, self.alternate, self.internal, self.delayed)


def predefined_of(prefix: str) -> tuple[Exchange, ...]:
    """The exchanges that need no declaration, in the virtual host with this prefix."""
    return tuple(Exchange(f"{prefix}{RESERVED}{type}", type) for type in TYPES)


PREDEFINED: Final = predefined_of("")


class Binding:
    """From `source` to `target`, the destination of a queue or of an exchange.

    `exchange` is the name of the exchange that is the source; "": it is a topic or fanout. `queue` is the target if it
    is one, else ""; then `target_exchange` is the name of the exchange that is the target.

    `arguments` are compared by headers exchanges: header → its value, None for any value. Two objects are never equal,
    so that each can be a value of a table.
    """

    __slots__ = ("arguments", "exchange", "key", "name", "queue", "source", "target", "target_exchange")

    def __init__(self, source: str, target: str, key: str, arguments: Mapping[str, str | None]) -> None:
        self.source = source
        self.target = target
        self.key = key
        self.arguments = arguments
        self.exchange = source.removeprefix(PREFIX) if source.startswith(PREFIX) else ""
        self.target_exchange = target.removeprefix(PREFIX) if target.startswith(PREFIX) else ""
        self.queue = "" if self.target_exchange else target
        self.name = binding_name(source, target, key, arguments)

    @property
    def value(self) -> dict[str, Any]:
        """As the definition has it."""
        kind = "exchange" if self.target_exchange else "queue"
        return {"source": self.source, kind: self.target, "key": self.key, "arguments": dict(self.arguments)}


def split_exchange(destination: str) -> tuple[str, str]:
    """The name of the exchange and the routing key of `/exchange/NAME/KEY`; the key may have slashes, or be empty."""
    name, _, key = destination.removeprefix(PREFIX).partition("/")
    return name, key


def read_exchange(name: str, value: Mapping[str, Any]) -> Exchange:
    """The exchange that a definition describes. Raises Refused."""
    label = f"exchange {name}"
    if not is_exchange_name(name):
        raise _bad(f"{label}: a name has 1 to 127 characters, without slashes, wildcards and blanks")
    _check_keys(label, value, EXCHANGE_KEYS)
    type, alternate, internal = value.get("type"), value.get("alternate", ""), value.get("internal", False)
    if type not in TYPES:
        raise _bad(f"{label}: type must be one of {', '.join(TYPES)}, not {json.dumps(type)}")
    if not isinstance(alternate, str) or (alternate and not is_exchange_name(alternate)):
        raise _bad(f"{label}: alternate must be the name of an exchange, not {json.dumps(alternate)}")
    delayed = value.get("delayed", False)
    for key, flag in (("internal", internal), ("delayed", delayed)):
        if not isinstance(flag, bool):
            raise _bad(f"{label}: {key} must be true or false, not {json.dumps(flag)}")
    return Exchange(name, str(type), alternate, internal, delayed)


def read_binding(value: Mapping[str, Any]) -> Binding:
    """The binding that a definition describes. Raises Refused."""
    _check_keys("binding", value, BINDING_KEYS)
    source, queue, exchange, key = value.get("source"), value.get("queue"), value.get("exchange"), value.get("key", "")
    if not isinstance(source, str) or not _is_source(source):
        raise _bad("binding: source must be /topic/NAME or a pattern of topics, /fanout/NAME, or /exchange/NAME")
    if exchange is not None:
        target = _target_exchange(exchange, source)
        if queue is not None:
            raise _bad("binding: it has one target, a queue or an exchange")
    elif isinstance(queue, str) and _is_queue(queue):
        target = queue
    else:
        raise _bad("binding: queue must be /queue/NAME")
    if not isinstance(key, str):
        raise _bad("binding: key must be text")
    arguments = _arguments(value.get("arguments", {}))
    if not source.startswith(PREFIX) and (key or arguments):
        raise _bad(f"binding: key and arguments are for exchanges, and {source} is none")
    return Binding(source, target, key, arguments)


def _target_exchange(target: Any, source: str) -> str:
    if (
        not isinstance(target, str)
        or not target.startswith(PREFIX)
        or not is_exchange_name(target.removeprefix(PREFIX))
    ):
        raise _bad(f"binding: exchange must be {PREFIX}NAME")
    if not source.startswith(PREFIX):
        raise _bad(f"binding: exchange is for messages of exchanges, and {source} is none: a message of it has no key")
    return target


def _is_source(source: str) -> bool:
    if source.startswith(PREFIX):
        return is_exchange_name(source.removeprefix(PREFIX))
    try:
        kind = kind_of(source)
        if kind is DestinationKind.TOPIC:
            check_pattern(source)
    except Refused:
        return False
    return kind is DestinationKind.TOPIC or (kind is DestinationKind.FANOUT and not is_pattern(source))


def _is_queue(queue: str) -> bool:
    try:
        return kind_of(queue) is DestinationKind.QUEUE and not is_pattern(queue)
    except Refused:
        return False


def _arguments(found: Any) -> dict[str, str | None]:
    """Values as text, in the order of names: headers of STOMP are text."""
    if not isinstance(found, Mapping):
        raise _bad("binding: arguments must be an object")
    arguments: dict[str, str | None] = {}
    for name in sorted(found):
        try:
            arguments[name] = argument_text(found[name])
        except ValueError as error:
            raise _bad(f"binding: arguments: {name} {error}") from error
    if arguments.get(MATCH, MATCHES[0]) not in MATCHES:
        raise _bad(f"binding: arguments: {MATCH} must be one of {', '.join(MATCHES)}")
    return arguments


def _check_keys(label: str, value: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    unknown = sorted(set(value) - set(keys))
    if unknown:
        raise _bad(f"{label}: {unknown[0]} is unknown; the keys are {', '.join(keys)}")


def _bad(message: str) -> Refused:
    return Refused("bad-definition", message)
