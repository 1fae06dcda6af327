"""Names of queues and exchanges: AMQP's ↔ destinations. Both protocols see the same queues and exchanges.

A connection has a virtual host, and all its names are in there. In the mesh they have its prefix, which no AMQP client
sees.
"""

from typing import Final, NamedTuple

from qmq.broker.messages.destination import is_pattern
from qmq.model.routing_names import PREFIX, RESERVED, VHOST_DEFAULT, vhost_prefix
from qmq.protocols.amqp.codec.refusals import AmqpRefusal, ReplyCode

QUEUE: Final = "/queue/"
REPLIES: Final = "/reply-queue/"

DIRECT_REPLY: Final = "amq.rabbitmq.reply-to"
"""A pseudo queue: replies to requests of the same channel, which no queue keeps."""

GENERATED: Final = "amq.gen-"
"""Names of queues that a node has chosen begin so."""

ALIASES: Final = {"amq.match": "amq.headers"}
"""AMQP 0-9-1 has two names for the predefined exchange of the type headers."""


class Vhost(NamedTuple):
    """A virtual host, and what its names begin with in the mesh."""

    name: str
    prefix: str


DEFAULT_VHOST: Final = Vhost(VHOST_DEFAULT, vhost_prefix(VHOST_DEFAULT))


def queue_destination(name: str, vhost: Vhost) -> str:
    """The destination of a queue. Raises AmqpRefusal for a name that no queue can have."""
    if not name or "\0" in name or is_pattern(name):
        raise AmqpRefusal(
            ReplyCode.PRECONDITION_FAILED, f"the name of a queue is not empty, and has no *, # or NUL: {name!r}"
        )
    if name.startswith((QUEUE, REPLIES)):
        # As a routing key it is an address of another protocol: no publish would reach such a queue.
        raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, f"a name is given without {QUEUE} before it, not as {name!r}")
    return f"{QUEUE}{vhost.prefix}{name}"


def queue_name(destination: str, vhost: Vhost) -> str:
    """The name of the queue, as AMQP says it."""
    return destination.removeprefix(QUEUE).removeprefix(vhost.prefix)


def check_declarable(name: str) -> None:
    """Refuse a name that is the server's to choose. Raises AmqpRefusal."""
    if name.startswith(RESERVED):
        raise AmqpRefusal(ReplyCode.ACCESS_REFUSED, f"names that begin with {RESERVED} are reserved: {name!r}")


def exchange_name(name: str, vhost: Vhost) -> str:
    """The name under which the mesh knows an exchange."""
    return f"{vhost.prefix}{ALIASES.get(name, name)}"


def source_of(exchange: str, vhost: Vhost) -> str:
    """What a binding names as its source."""
    return f"{PREFIX}{exchange_name(exchange, vhost)}"


def check_key(key: str) -> str:
    """The routing key of a publish. Raises AmqpRefusal if it cannot be part of a destination."""
    if "\0" in key or is_pattern(key):
        raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, f"a routing key has no *, # or NUL here: {key!r}")
    return key


def publish_destination(exchange: str, key: str, vhost: Vhost) -> str:
    """Where a publish goes. Raises AmqpRefusal for a key that cannot be part of a destination."""
    check_key(key)
    if exchange:
        source = source_of(exchange, vhost)
        return f"{source}/{key}" if key else source
    # What a requester of another protocol has named in reply_to.
    return key if key.startswith((REPLIES, QUEUE)) else f"{QUEUE}{vhost.prefix}{key}"
