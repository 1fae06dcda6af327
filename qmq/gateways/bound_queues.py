"""Subscriptions with a queue to declare, in the words of RabbitMQ's STOMP: durable ones of topics and all of exchanges,
whose queue has a binding, and those of a queue that say what rules it has.

The queue and its binding are definitions, so the session declares them before the gateway subscribes to the queue.
The name of a durable subscription's queue is made of its id and its destination. A client on any node that uses the
same two continues it, and several at once share its messages.
"""

import re
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from qmq.broker.messages.destination import DestinationKind, kind_of
from qmq.broker.routing.binding import Binding, split_exchange
from qmq.errors import Refused
from qmq.gateways.durable_headers import FLAG_HEADERS, NAME_HEADERS
from qmq.gateways.headers import QUEUE_ALIAS, destination_of, selector, truth
from qmq.gateways.refused_headers import ARGUMENTS, AUTO_DELETE, QUEUE_NAME, arguments_of

QUEUE: Final = "/queue/"
OWN_NAMES: Final = f"{QUEUE}subscription."
"""Names that are made of the words of a subscription begin so."""

BURIED_SUFFIX: Final = ".buried"
"""A queue of this suffix has what beanstalkd clients have buried of the queue without it."""

_OWN_NAME: Final = re.compile(rf"({re.escape(OWN_NAMES)}[A-Za-z0-9_-]*\.[0-9a-f]{{12}})(?:{re.escape(BURIED_SUFFIX)})?")

NAME_CHARS_MAX: Final = 64
"""Of the id, in the name of a queue."""

DURABLE_HEADERS: Final = (*NAME_HEADERS, *FLAG_HEADERS)

NO_ARGUMENTS: Final[Mapping[str, object]] = {}

RULES: Final = ARGUMENTS | {AUTO_DELETE, *FLAG_HEADERS}

VIRTUAL: Final = re.compile(r"/queue/Consumer\.[^.]+\.(VirtualTopic\..+)", re.DOTALL)
"""The queue of one group of consumers of a virtual topic, as ActiveMQ names both without further settings."""

_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]")


def subscriber_of(queue: str, begun_by: Callable[[str], str | None]) -> str:
    """The user that alone may have what this queue holds, through every door: that of the durable subscription whose
    messages these are, buried or not. "": it is no such queue, or belongs to no user.
    """
    own = _OWN_NAME.fullmatch(queue)
    return "" if own is None else begun_by(own[1]) or ""


class BoundQueue(NamedTuple):
    """A queue to declare, with one binding; without `source` it has none. One that is not `durable` keeps its messages
    in memory only.

    `owner`: the connection with which it ends, also if it never has a consumer; "": it does not. `arguments` are those
    of a declaration in AMQP. `has_rules`: the client says what rules it has, so it must be declared so, and not only
    be there.
    """

    queue: str
    source: str
    key: str
    auto_delete: bool
    durable: bool
    owner: str
    arguments: Mapping[str, object] = NO_ARGUMENTS
    has_rules: bool = False

    @property
    def is_named(self) -> bool:
        """Whether its name is made of the words of a durable subscription. That belongs to a user; to a queue of a
        name of its own the rights for queues apply.
        """
        own = _OWN_NAME.fullmatch(self.queue)
        return bool(self.source) and self.durable and own is not None and own[1] == self.queue

    @property
    def binding(self) -> Binding:
        """From the source to the queue."""
        return Binding(self.source, self.queue, self.key, {})

    @property
    def declaration(self) -> dict[str, Any]:
        """The value of its definition, without what its arguments say."""
        return {
            **({"auto_delete": True} if self.auto_delete else {}),
            **({} if self.durable else {"durable": False}),
            **({"exclusive_to_connection": self.owner} if self.owner else {}),
        }


def bound_queue(
    headers: Mapping[str, str], destination: str, words: tuple[str, str] | None, session: str, subscription_id: str
) -> BoundQueue | None:
    """The queue that a subscription is about; None when it needs none of its own.

    `words` name a durable subscription. Without, `session`, as declarations name it, and `subscription_id` name one
    that ends with its connection. Raises Refused.
    """
    kind = kind_of(destination)
    if kind is DestinationKind.EXCHANGE:
        exchange, key = split_exchange(destination)
        source = f"/exchange/{exchange}"
    elif kind is DestinationKind.TOPIC and (words is not None or headers.get(QUEUE_NAME)):
        source, key = destination, ""
    else:
        return None
    if selector(headers) is not None:
        raise Refused(
            "bad-selector", "A durable subscription of a topic or exchange has no selector; bind a queue by headers."
        )
    client, name = (session, subscription_id) if words is None else words
    owner = session if words is None else ""
    queue = headers.get(QUEUE_NAME)
    if queue:
        owner = ""  # Others may name it, too.
    else:
        readable = _NOT_IN_NAMES.sub("_", name[:NAME_CHARS_MAX])
        digest = blake2b("\0".join((destination, client, name)).encode(), digest_size=6).hexdigest()
        queue = f"{OWN_NAMES.removeprefix(QUEUE)}{readable}.{digest}"
    auto_delete = words is None or truth(headers, AUTO_DELETE, False)
    arguments = arguments_of(headers)
    has_rules = bool(arguments) or (words is not None and auto_delete)
    return BoundQueue(f"/queue/{queue}", source, key, auto_delete, words is not None, owner, arguments, has_rules)


def declared_queue(headers: Mapping[str, str]) -> BoundQueue | None:
    """The queue that a SUBSCRIBE to it declares; None: it says nothing of its rules, and is not that of a virtual topic
    of ActiveMQ, which has a binding. Raises Refused."""
    destination = headers.get("destination", "")
    virtual = VIRTUAL.fullmatch(destination)
    if virtual is None and (RULES.isdisjoint(headers) or not destination.startswith(("/queue/", QUEUE_ALIAS))):
        return None
    auto_delete = truth(headers, AUTO_DELETE, False)
    durable = next((truth(headers, name, True) for name in FLAG_HEADERS if name in headers), True)
    arguments = arguments_of(headers)
    has_rules = auto_delete or not durable or bool(arguments)
    if virtual is None and not has_rules:
        return None
    source = "" if virtual is None else f"/topic/{virtual[1]}"
    queue = destination_of(headers, "SUBSCRIBE")
    return BoundQueue(queue, source, "", auto_delete, durable, "", arguments, has_rules)


def may_be_bound(headers: Mapping[str, str]) -> bool:
    """Whether a SUBSCRIBE may be about a queue with a binding; false for most, at little cost."""
    destination = headers.get("destination", "")
    if destination.startswith("/exchange/"):
        return True
    return destination.startswith("/topic/") and any(word in headers for word in (*DURABLE_HEADERS, QUEUE_NAME))
