"""`queue.declare` and `exchange.declare` as the values that `/control/declare/…` takes (docs/queues.md, bindings.md).

Arguments that RabbitMQ knows, and that mean nothing here, are accepted. One that would promise what the broker does not
do is refused with NOT_IMPLEMENTED, which names it.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from qmq.gateways.amqp.names import DEFAULT_VHOST, Vhost, exchange_name, queue_destination, source_of
from qmq.routing_names import DELAYED_TYPE, ROUTES_AS, TYPES
from qmq.wire.amqp.refusals import AmqpRefusal, ReplyCode

OVERFLOWS: Final[Mapping[str, str]] = {
    "drop-head": "drop-oldest",
    "reject-publish": "refuse",
    "reject-publish-dlx": "drop-newest",
}

QUEUE_TYPES: Final = ("classic", "quorum")

QUEUE_MODES: Final = ("default", "lazy")
"""Both mean the same here."""

Arguments = Mapping[str, Any]


def queue_value(
    *, durable: bool, exclusive: bool, auto_delete: bool, arguments: Arguments | None, vhost: Vhost = DEFAULT_VHOST
) -> dict[str, Any]:
    """What is declared of a queue. Raises AmqpRefusal."""
    said = arguments or {}
    value: dict[str, Any] = {}
    if not durable:
        value["durable"] = False
    if exclusive:
        value["exclusive_to_connection"] = True
    if auto_delete:
        value["auto_delete"] = True
    for name, (key, read) in READERS.items():
        if name in said and said[name] is not None:
            found = read(name, said[name])
            if found is not None:
                value[key] = found
    if ("max_messages" in value or "max_bytes" in value) and "overflow" not in value:
        value["overflow"] = OVERFLOWS["drop-head"]
    mode = said.get("x-queue-mode", QUEUE_MODES[0])
    if mode not in QUEUE_MODES:
        raise AmqpRefusal(
            ReplyCode.PRECONDITION_FAILED, f"x-queue-mode is one of {', '.join(QUEUE_MODES)}, not {mode!r}"
        )
    kind = _text("x-queue-type", said.get("x-queue-type", "classic"))
    if kind == "stream":
        raise _not_here("x-queue-type", kind, f"it is one of {', '.join(QUEUE_TYPES)}")
    if kind not in QUEUE_TYPES:
        raise AmqpRefusal(
            ReplyCode.PRECONDITION_FAILED, f"x-queue-type is one of {', '.join(QUEUE_TYPES)}, not {kind!r}"
        )
    return {**value, **_dead_letter(said, vhost)}


def _dead_letter(said: Arguments, vhost: Vhost) -> dict[str, str]:
    exchange = said.get("x-dead-letter-exchange")
    key = said.get("x-dead-letter-routing-key")
    if exchange is None:
        if key is not None:
            raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, "x-dead-letter-routing-key needs x-dead-letter-exchange")
        return {}
    if not exchange:
        if not key:
            raise _not_here(
                "x-dead-letter-exchange", exchange, "the default exchange needs a queue in x-dead-letter-routing-key"
            )
        return {"dead_letter": queue_destination(_text("x-dead-letter-routing-key", key), vhost)}
    value = {"dead_letter": source_of(_text("x-dead-letter-exchange", exchange), vhost)}
    if key is not None:
        value["dead_letter_routing_key"] = _text("x-dead-letter-routing-key", key)
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, f"{name} is text, not {value!r}")
    return value


def _count(name: str, value: object) -> int:
    if type(value) is not int or value < 0:
        raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, f"{name} is a whole number, at least 0, not {value!r}")
    return value


def seconds_of(name: str, value: object) -> float:
    """Of an argument in milliseconds. Raises AmqpRefusal."""
    # A queue with no time at all would keep nothing; the least that a policy can say is 1 ms.
    return max(1, _count(name, value)) / 1000


def _some_milliseconds(name: str, value: object) -> float:
    if not _count(name, value):
        raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, f"{name} is at least 1, not {value!r}")
    return seconds_of(name, value)


def _at_least_one(name: str, value: object) -> int:
    count = _count(name, value)
    if not count:
        raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, f"{name} is at least 1 here, not {value!r}")
    return count


def _overflow(name: str, value: object) -> str:
    text = _text(name, value)
    if text not in OVERFLOWS:
        raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, f"{name} is one of {', '.join(OVERFLOWS)}, not {text!r}")
    return OVERFLOWS[text]


def _lowest_priority(name: str, value: object) -> int | None:
    # The priority of messages that name none; without x-max-priority all have the node's default.
    if _count(name, value) > 255:
        raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, f"{name} is 0 to 255, not {value!r}")
    return 0 if value else None


def _flag(name: str, value: object) -> bool:
    if type(value) is not bool:
        raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, f"{name} is true or false, not {value!r}")
    return value


READERS: Final[Mapping[str, tuple[str, Callable[[str, object], Any]]]] = {
    "x-message-ttl": ("ttl_seconds", seconds_of),
    "x-expires": ("expires_seconds", _some_milliseconds),
    "x-max-length": ("max_messages", _at_least_one),
    "x-max-length-bytes": ("max_bytes", _at_least_one),
    "x-overflow": ("overflow", _overflow),
    "x-max-priority": ("priority", _lowest_priority),
    "x-single-active-consumer": ("exclusive", _flag),
    "x-delivery-limit": ("delivery_limit", _count),
    "x-consumer-timeout": ("ack_timeout_seconds", seconds_of),
}
"""Argument → key of a declared queue."""


_KEYS: Final = {key: name for name, (key, _) in READERS.items()}
_KEY: Final = re.compile(rf"(?<=[:;] )({'|'.join(_KEYS)})(?= is )")


def in_arguments(refusal: str) -> str:
    """The text about a queue that is declared otherwise, with the names that the client knows."""
    return _KEY.sub(lambda found: _KEYS[found[1]], refusal)


def exchange_value(
    name: str, kind: str, *, internal: bool, arguments: Arguments | None, vhost: Vhost = DEFAULT_VHOST
) -> dict[str, str | bool]:
    """What is declared of an exchange. Raises AmqpRefusal."""
    if not name:
        raise AmqpRefusal(ReplyCode.ACCESS_REFUSED, "the default exchange cannot be declared")
    delayed = kind == DELAYED_TYPE
    if delayed:
        kind = _text(ROUTES_AS, (arguments or {}).get(ROUTES_AS))
        if kind not in TYPES:
            raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, f"{ROUTES_AS} is one of {', '.join(TYPES)}, not {kind!r}")
    if kind not in TYPES:
        known = ", ".join((*TYPES, DELAYED_TYPE))
        raise AmqpRefusal(ReplyCode.COMMAND_INVALID, f"the type of an exchange is one of {known}, not {kind}")
    alternate = (arguments or {}).get("alternate-exchange")
    value: dict[str, str | bool] = {"type": kind}
    if internal:
        value["internal"] = True
    if delayed:
        value["delayed"] = True
    if alternate is not None:
        value["alternate"] = exchange_name(_text("alternate-exchange", alternate), vhost)
    return value


def _not_here(name: str, value: object, why: str) -> AmqpRefusal:
    return AmqpRefusal(ReplyCode.NOT_IMPLEMENTED, f"{name} = {value!r} is not supported: {why}")
