"""Requests for a durable subscription, in the words of RabbitMQ (`durable` or `persistent`, named by the subscription's
`id`) and of ActiveMQ and Artemis (`client-id` on CONNECT, and a header with the subscription's name).

This is about fanouts. A topic keeps nothing, so there it is a queue with a binding (`bound_queues`); a queue keeps
everything, so there it says nothing new.
"""

from collections.abc import Mapping

from qmq.access.rights import NOT_ALLOWED, Rights
from qmq.access.rules import Action
from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.destination import DestinationKind
from qmq.errors import Refused
from qmq.gateways.headers import truth
from qmq.model.cursors import Name

NAME_HEADERS = (
    "durable-subscription-name",
    "durable-subscriber-name",
    "activemq.subscriptionName",
    "activemq.subcriptionName",
)
"""The last is how old versions of ActiveMQ, and some clients until today, spell the one before it."""

FLAG_HEADERS = ("durable", "persistent")
NAME_BYTES_MAX = 255


def durable_words(headers: Mapping[str, str], subscription_id: str, client_id: str) -> tuple[str, str] | None:
    """(client, name) of the durable subscription that is meant; None when none is. Raises Refused."""
    for header in NAME_HEADERS:
        name = headers.get(header)
        if name:
            if not client_id:
                raise Refused("missing-header", f"CONNECT needs the header client-id for {header}.")
            return _checked(client_id, name)
    for header in FLAG_HEADERS:
        if truth(headers, header, False):
            return _checked("", subscription_id)
    return None


def _checked(client: str, name: str) -> tuple[str, str]:
    if len(client.encode()) > NAME_BYTES_MAX or len(name.encode()) > NAME_BYTES_MAX:
        raise Refused("bad-durable", f"The name of a durable subscription has at most {NAME_BYTES_MAX} bytes.")
    return client, name


def durable_name(
    headers: Mapping[str, str], kind: DestinationKind, destination: str, subscription_id: str, client_id: str
) -> Name | None:
    """The name under which a SUBSCRIBE continues; None when it asks for nothing of the kind. Raises Refused."""
    if kind is not DestinationKind.FANOUT:
        return None
    words = durable_words(headers, subscription_id, client_id)
    return None if words is None else Name(destination, *words)


def check_owner(rights: Rights, destination: str, owner: str) -> None:
    """Raises Refused for a durable subscription that belongs to another user, unless the client may administer
    `destination`: its fanout, or its queue. `owner` "": it belongs to none.
    """
    if owner and owner != rights.principal.name and not rights.allows(Action.ADMINISTER, destination):
        raise Refused(
            NOT_ALLOWED,
            f"Another user has begun this durable subscription: {rights.principal.name} may not administer "
            f"{destination}.",
        )


def delete_durable(
    broker: Broker,
    rights: Rights,
    headers: Mapping[str, str],
    words: tuple[str, str],
    session_id: int,
    subscription_id: str | None,
    now_us: int,
    out: Outcome,
) -> None:
    """UNSUBSCRIBE with the words of a durable subscription: it ends, if it is this client's, and is forgotten.

    Raises Refused, with nothing changed, when there is none or another connection uses it.
    """
    session = broker.sessions[session_id]
    live = None if subscription_id is None else session.subscriptions.get(subscription_id)
    listens_at = None if subscription_id is None else session.destination_of(subscription_id)
    if subscription_id is not None and listens_at is not None and not words[0]:
        if live is None or live.durable is None:
            # RabbitMQ's word for a queue subscription: the queue stays, here as there.
            broker.subscriptions.unsubscribe(session_id, subscription_id, out)
            return
    destination = headers.get("destination") or listens_at
    if destination is None and not words[0]:
        raise Refused("missing-header", "UNSUBSCRIBE needs the header destination to delete what it does not use now.")
    durable_subscriptions = broker.durable_subscriptions
    names = durable_subscriptions.find(destination, *words)
    if not names:
        raise Refused("unknown-subscription", "There is no durable subscription with that name.")
    for name in names:
        rights.check(Action.SUBSCRIBE, name.destination)
        check_owner(rights, name.destination, durable_subscriptions.owner_of(name))
        attachment = durable_subscriptions.attached.get(name)
        if attachment is not None and attachment.subscription is not live:
            raise Refused("durable-in-use", f"The durable subscription {name.text} is in use by another connection.")
    if subscription_id is not None and listens_at is not None:
        broker.subscriptions.unsubscribe(session_id, subscription_id, out)
    for name in names:
        durable_subscriptions.delete(name, now_us, out)
