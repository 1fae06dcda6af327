"""The arguments that declare a queue in RabbitMQ's words (`x-…`), in AMQP and on a SUBSCRIBE of STOMP.

Arguments that RabbitMQ knows, and that mean nothing here, are accepted. One that would promise what the broker does not
do is refused as not supported.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

OVERFLOWS: Final[Mapping[str, str]] = {
    "drop-head": "drop-oldest",
    "reject-publish": "refuse",
    "reject-publish-dlx": "drop-newest",
}

QUEUE_TYPES: Final = ("classic", "quorum")

QUEUE_MODES: Final = ("default", "lazy")
"""Both mean the same here."""

DEAD_LETTER_EXCHANGE: Final = "x-dead-letter-exchange"
DEAD_LETTER_KEY: Final = "x-dead-letter-routing-key"

Arguments = Mapping[str, Any]
DeadLetterOf = Callable[[str, str], str]
"""An exchange and a routing key → the destination of dead letters. Without exchange, the key names a queue."""


class WrongArgument(Exception):
    """An argument has a value that it may not have, or one that the broker cannot obey."""

    def __init__(self, text: str, *, is_supported: bool = True) -> None:
        super().__init__(text)
        self.text = text
        self.is_supported = is_supported


def rules_of(arguments: Arguments, dead_letter_of: DeadLetterOf) -> dict[str, Any]:
    """The rules of a queue that `/control/declare/queue/…` takes (docs/queues.md). Raises WrongArgument."""
    rules: dict[str, Any] = {}
    for name, (key, read) in READERS.items():
        if name in arguments and arguments[name] is not None:
            found = read(name, arguments[name])
            if found is not None:
                rules[key] = found
    if ("max_messages" in rules or "max_bytes" in rules) and "overflow" not in rules:
        rules["overflow"] = OVERFLOWS["drop-head"]
    mode = arguments.get("x-queue-mode", QUEUE_MODES[0])
    if mode not in QUEUE_MODES:
        raise WrongArgument(f"x-queue-mode is one of {', '.join(QUEUE_MODES)}, not {mode!r}")
    kind = text_of("x-queue-type", arguments.get("x-queue-type", "classic"))
    if kind == "stream":
        raise _not_here("x-queue-type", kind, f"it is one of {', '.join(QUEUE_TYPES)}")
    if kind not in QUEUE_TYPES:
        raise WrongArgument(f"x-queue-type is one of {', '.join(QUEUE_TYPES)}, not {kind!r}")
    exchange, routing_key = arguments.get(DEAD_LETTER_EXCHANGE), arguments.get(DEAD_LETTER_KEY)
    if exchange is None:
        if routing_key is not None:
            raise WrongArgument(f"{DEAD_LETTER_KEY} needs {DEAD_LETTER_EXCHANGE}")
        return rules
    if not exchange and not routing_key:
        raise _not_here(DEAD_LETTER_EXCHANGE, exchange, f"the default exchange needs a queue in {DEAD_LETTER_KEY}")
    if routing_key is not None:
        text_of(DEAD_LETTER_KEY, routing_key)
    rules["dead_letter"] = dead_letter_of(text_of(DEAD_LETTER_EXCHANGE, exchange), routing_key or "")
    if exchange and routing_key is not None:
        rules["dead_letter_routing_key"] = routing_key
    return rules


def _not_here(name: str, value: object, why: str) -> WrongArgument:
    return WrongArgument(f"{name} = {value!r} is not supported: {why}", is_supported=False)


def text_of(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise WrongArgument(f"{name} is text, not {value!r}")
    return value


def _count(name: str, value: object) -> int:
    if type(value) is not int or value < 0:
        raise WrongArgument(f"{name} is a whole number, at least 0, not {value!r}")
    return value


def seconds_of(name: str, value: object) -> float:
    """Of an argument in milliseconds. Raises WrongArgument."""
    # A queue with no time at all would keep nothing; the least that a policy can say is 1 ms.
    return max(1, _count(name, value)) / 1000


def _some_milliseconds(name: str, value: object) -> float:
    if not _count(name, value):
        raise WrongArgument(f"{name} is at least 1, not {value!r}")
    return seconds_of(name, value)


def _at_least_one(name: str, value: object) -> int:
    count = _count(name, value)
    if not count:
        raise WrongArgument(f"{name} is at least 1 here, not {value!r}")
    return count


def _overflow(name: str, value: object) -> str:
    text = text_of(name, value)
    if text not in OVERFLOWS:
        raise WrongArgument(f"{name} is one of {', '.join(OVERFLOWS)}, not {text!r}")
    return OVERFLOWS[text]


def _lowest_priority(name: str, value: object) -> int | None:
    # The priority of messages that name none; without x-max-priority all have the node's default.
    if _count(name, value) > 255:
        raise WrongArgument(f"{name} is 0 to 255, not {value!r}")
    return 0 if value else None


def _flag(name: str, value: object) -> bool:
    if type(value) is not bool:
        raise WrongArgument(f"{name} is true or false, not {value!r}")
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
