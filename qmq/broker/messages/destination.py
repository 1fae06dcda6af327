"""Names of destinations: which kinds there are, and which names a pattern matches.

Patterns are for subscribing to topics (design: ocamlmq's trailing `*` as a prefix match; dotted wildcards as in AMQP
brokers, `*` for exactly one word and `#` for any number of words). A single `*` at the very end is a prefix match
(`/topic/app.log*`, and `/topic/*` for every topic) unless it stands alone after a dot, where it is one word.
"""

from enum import IntEnum
from typing import Final

from qmq.errors import Refused
from qmq.model.routing_names import misplaces_wildcard

DESTINATION_BYTES_MAX = 1024
"""No setting lifts a name above this. Gateways are given the node's own, smaller bound; what was accepted with another
one, earlier or elsewhere, must still be understood."""


class DestinationKind(IntEnum):
    """What a destination does with a message."""

    TOPIC = 1
    QUEUE = 2
    FANOUT = 3
    CONTROL = 4
    TEMP = 5
    """A queue of the session that names it (`qmq.broker.consumers.replies`)."""
    REPLY = 6
    """The same, as other sessions name it."""
    SYSTEM = 7
    """What the node reports of itself: as a topic, but the node alone publishes, and no peer hears of it."""
    EXCHANGE = 8
    """It keeps nothing: its messages are the copies in the queues that are bound to it (`qmq.broker.routing`)."""


PREFIXES = {
    "/topic/": DestinationKind.TOPIC,
    "/queue/": DestinationKind.QUEUE,
    "/fanout/": DestinationKind.FANOUT,
    "/control/": DestinationKind.CONTROL,
    "/temp-queue/": DestinationKind.TEMP,
    "/reply-queue/": DestinationKind.REPLY,
    "/system/": DestinationKind.SYSTEM,
    "/exchange/": DestinationKind.EXCHANGE,
}

JOURNAL = "/system/journal"
"""The node's commit log itself, read from any place on."""
SYSTEM_DESTINATIONS = ("/system/events", "/system/peers", "/system/stats", "/system/audit", JOURNAL)

GUESSED_MAX = 100
"""Characters of a name that an error message repeats."""

KINDS_TEXT = ", ".join(f"{prefix}NAME" for prefix in PREFIXES)


ROUTING_KEY_BYTES_MAX: Final = 255
"""Behind the name of an exchange, beside `bytes_max` of what stands before it."""


def kind_of(destination: str, bytes_max: int = DESTINATION_BYTES_MAX) -> DestinationKind:
    """The kind of `destination`. Raises Refused when the name is too long, has a NUL, or names no kind."""
    end = destination.find("/", 1) + 1
    kind = PREFIXES.get(destination[:end]) if end > 1 else None
    if kind is None or len(destination) == end:
        raise Refused("bad-destination", f"A destination is one of {KINDS_TEXT}.{_guess(destination)}")
    if "\0" in destination:
        # JSON can have it, in definitions, and PostgreSQL cannot store it.
        raise Refused("bad-destination", "A destination has no NUL.")
    # A node made the reply address, and its length is nothing that a client could change.
    if kind is DestinationKind.REPLY:
        bytes_max = DESTINATION_BYTES_MAX
    if kind is DestinationKind.EXCHANGE:
        # The name of an exchange, and a routing key besides: as in AMQP, each has a length of its own.
        name, _, routing_key = destination[end:].partition("/")
        if len(routing_key.encode()) > ROUTING_KEY_BYTES_MAX:
            raise Refused("destination-too-long", f"A routing key has at most {ROUTING_KEY_BYTES_MAX} bytes.")
        destination = destination[:end] + name
    if len(destination.encode()) > bytes_max:
        raise Refused("destination-too-long", f"A destination has at most {bytes_max} bytes.")
    return kind


def _guess(destination: str) -> str:
    """What a name without a slash before it may have meant."""
    if (
        not destination
        or destination.startswith("/")
        or len(destination) > GUESSED_MAX
        or not destination.isprintable()
    ):
        return ""
    is_kind = any(f"/{destination}".startswith(prefix) for prefix in PREFIXES)
    return f" Did you mean {'' if is_kind else '/queue'}/{destination}?"


def is_pattern(destination: str) -> bool:
    """Whether `destination` names many topics instead of one."""
    return "*" in destination or "#" in destination


def check_pattern(destination: str) -> None:
    """Refuse wildcards that mean nothing: anything but a whole word, or one `*` at the very end."""
    if misplaces_wildcard(destination.partition("/topic/")[2]):
        raise Refused(
            "bad-pattern",
            "A wildcard is a whole word (* for one word, # for any number), or a single * at the end of the name.",
        )
