"""`queue.declare` and `exchange.declare` as values that `/control/declare/…` takes (docs/queues.md, bindings.md)."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from qmq.gateways.queue_arguments import (
    DEAD_LETTER_EXCHANGE,
    DEAD_LETTER_KEY,
    OVERFLOWS,
    READERS,
    Arguments,
    WrongArgument,
    rules_of,
    text_of,
)
from qmq.gateways.queue_arguments import seconds_of as read_seconds
from qmq.model.routing_names import DELAYED_TYPE, PREFIX, ROUTES_AS, TYPES
from qmq.protocols.amqp.codec.refusals import AmqpRefusal, ReplyCode
from qmq.protocols.amqp.gateway.names import (
    DEFAULT_VHOST,
    QUEUE,
    Vhost,
    exchange_name,
    queue_destination,
    queue_name,
    source_of,
)


def queue_value(
    *, durable: bool, exclusive: bool, auto_delete: bool, arguments: Arguments | None, vhost: Vhost = DEFAULT_VHOST
) -> dict[str, Any]:
    """What is declared of a queue. Raises AmqpRefusal."""
    value: dict[str, Any] = {}
    if not durable:
        value["durable"] = False
    if exclusive:
        value["exclusive_to_connection"] = True
    if auto_delete:
        value["auto_delete"] = True

    def dead_letter_of(exchange: str, key: str) -> str:
        return source_of(exchange, vhost) if exchange else queue_destination(key, vhost)

    with _refusals():
        return {**value, **rules_of(arguments or {}, dead_letter_of)}


def seconds_of(name: str, value: object) -> float:
    """Of an argument in milliseconds. Raises AmqpRefusal."""
    with _refusals():
        return read_seconds(name, value)


@contextmanager
def _refusals() -> Iterator[None]:
    """In AMQP's words."""
    try:
        yield
    except WrongArgument as error:
        code = ReplyCode.PRECONDITION_FAILED if error.is_supported else ReplyCode.NOT_IMPLEMENTED
        raise AmqpRefusal(code, error.text) from None


def _text(name: str, value: object) -> str:
    with _refusals():
        return text_of(name, value)


_NAMES: Final = {
    **{key: name for name, (key, _) in READERS.items()},
    "dead_letter": DEAD_LETTER_EXCHANGE,
    "dead_letter_routing_key": DEAD_LETTER_KEY,
}
_DIFFERENCE: Final = re.compile(rf"(?<=[:;] )({'|'.join(_NAMES)}) is (.+?), requested: (.+?)(?=; |\. See )")
NOT_SET: Final = "not set"
_WORDS: Final = {ours: theirs for theirs, ours in OVERFLOWS.items()}


def in_arguments(refusal: str, vhost: Vhost = DEFAULT_VHOST) -> str:
    """The text about a queue that is declared otherwise, with the names and values that the client knows."""
    return _DIFFERENCE.sub(
        lambda found: (
            f"{_NAMES[found[1]]} is {_in_argument(found[1], found[2], vhost)}, "
            f"requested: {_in_argument(found[1], found[3], vhost)}"
        ),
        refusal,
    )


def _in_argument(key: str, text: str, vhost: Vhost) -> str:
    """The inverse of `READERS`, for a text."""
    if text == NOT_SET:
        return text
    value = json.loads(text)
    if key == "priority":
        return "set"
    if key == "overflow":
        return json.dumps(_WORDS[value])
    if key == "dead_letter":
        is_queue = value.startswith(QUEUE)
        exchange = "" if is_queue else value.removeprefix(PREFIX).removeprefix(vhost.prefix)
        suffix = f" with {DEAD_LETTER_KEY} {json.dumps(queue_name(value, vhost))}" if is_queue else ""
        return json.dumps(exchange) + suffix
    return str(round(value * 1000)) if key.endswith("_seconds") else text


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
