"""Words of other brokers that are refused, each where it would be confirmed and then do nothing.

A client that says one waits for what never comes, or loses messages that it believes to be kept. A word that only asks
for what is so anyway, or for a detail that no message depends on, is ignored (docs/stomp.md, "Words of other brokers").
`tests/gateways/test_words.py` has what happens to each word, on each kind of destination.
"""

from collections.abc import Mapping
from typing import Final

from qmq.broker.messages.destination import DestinationKind
from qmq.errors import Refused

QUEUE_NAME: Final = "x-queue-name"
"""Header of SUBSCRIBE with a name of the client's choice, without `/queue/`."""

AUTO_DELETE: Final = "auto-delete"

NOT_SUPPORTED: Final = "not-supported"

Q, T, F = DestinationKind.QUEUE, DestinationKind.TOPIC, DestinationKind.FANOUT
TEMP, SYSTEM = DestinationKind.TEMP, DestinationKind.SYSTEM

OF_QUEUES: Final = "Only queues have it."
ONLY_WHILE: Final = (Q, T, TEMP, SYSTEM)
"""Where a subscription has nothing that stays after it, so that what limits its life says nothing new."""

ELSEWHERE: Final[Mapping[str, tuple[tuple[DestinationKind, ...], str]]] = {
    "ack-timeout": ((Q,), OF_QUEUES),
    "delivery-limit": ((Q,), OF_QUEUES),
    "redelivery-delay": ((Q,), OF_QUEUES),
    "dead-letter": ((Q,), OF_QUEUES),
    "browser": ((Q,), OF_QUEUES),
    AUTO_DELETE: (ONLY_WHILE, "UNSUBSCRIBE deletes a durable subscription."),
    "x-stream-offset": ((F,), "Only a fanout keeps messages for later subscribers."),
    "qmq-resume": ((F, SYSTEM), "Only a fanout keeps messages for later subscribers."),
    "x-expires": (ONLY_WHILE, OF_QUEUES),
    "x-message-ttl": (ONLY_WHILE, "The policy of a fanout has retention_seconds."),
    "x-max-length": ((Q,), "A topic or fanout has buffer-messages and overflow."),
    "x-max-length-bytes": ((Q,), "A topic or fanout has buffer-bytes and overflow."),
    "x-overflow": ((Q,), "A topic or fanout has overflow."),
    "x-delivery-limit": ((Q,), OF_QUEUES),
    "x-consumer-timeout": ((Q,), OF_QUEUES),
    "x-dead-letter-exchange": ((Q,), OF_QUEUES),
    "x-dead-letter-routing-key": ((Q,), OF_QUEUES),
    "x-max-age": ((), "The policy of a fanout has retention_seconds."),
    "x-stream-filter": ((), "A selector chooses messages."),
    "x-stream-match-unfiltered": ((), "A selector chooses messages."),
    "activemq.noLocal": ((), "A client gets its own messages, too."),
    "no-local": ((), "A client gets its own messages, too."),
    "activemq.retroactive": ((Q, F), "A topic keeps its last message with retain:set; a fanout keeps all."),
}
"""Header of SUBSCRIBE → kinds of destinations where it is obeyed or says nothing new, and what to say instead."""

NOT_SENT: Final[Mapping[str, str]] = {
    "AMQ_SCHEDULED_CRON": "A message is delivered once: send it again at each time.",
    "AMQ_SCHEDULED_PERIOD": "A message is delivered once: send it again at each time.",
    "AMQ_SCHEDULED_REPEAT": "A message is delivered once: send it again at each time.",
    "AMQ_SCHEDULED_TIME": "A delay is in AMQ_SCHEDULED_DELAY, in milliseconds from now.",
    "_AMQ_LVQ_NAME": "A topic keeps its last message with retain:set.",
}
"""Header of SEND → what to say instead."""

TEXTS: Final = frozenset({"x-dead-letter-exchange", "x-dead-letter-routing-key", "x-overflow", "x-queue-type"})

ARGUMENTS: Final = TEXTS | {
    "x-consumer-timeout",
    "x-delivery-limit",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-message-ttl",
    "x-single-active-consumer",
}
"""Headers of SUBSCRIBE with rules of its queue: arguments of a declaration (`gateways.queue_arguments`)."""

ROUTING_TYPES: Final[Mapping[str, tuple[DestinationKind, ...]]] = {"ANYCAST": (Q,), "MULTICAST": (T, F)}
"""Of Artemis."""

OF_SUBSCRIBE: Final = frozenset({*ELSEWHERE, QUEUE_NAME, "subscription-type"})
OF_SEND: Final = frozenset({*NOT_SENT, "mandatory", "destination-type"})
"""All that is looked at: most frames have none of them."""


def check_subscribe_words(headers: Mapping[str, str], kind: DestinationKind, *, is_bound: bool) -> None:
    """Refuse what a SUBSCRIBE asks of a destination that does not have it. `is_bound`: its queue has a binding."""
    if OF_SUBSCRIBE.isdisjoint(headers):
        return
    for name in ELSEWHERE.keys() & headers.keys():
        kinds, instead = ELSEWHERE[name]
        text = headers[name]
        # A topic begins there in any case.
        is_so = kind is T and name == "x-stream-offset" and text.strip() == "next"
        if kind not in kinds and not is_so and _asks(text):
            raise Refused(NOT_SUPPORTED, f"The header {name} is not obeyed here. {instead}")
    if is_bound and _asks(headers.get("browser", "")):
        raise Refused(
            NOT_SUPPORTED, "Only a queue is browsed: SUBSCRIBE to the queue of this subscription by its name."
        )
    if headers.get(QUEUE_NAME) and not is_bound:
        raise Refused(NOT_SUPPORTED, f"The header {QUEUE_NAME} is for topics and exchanges.")
    _check_routing_type(headers, "subscription-type", kind)


def check_send_words(headers: Mapping[str, str], kind: DestinationKind) -> None:
    """Refuse what a SEND asks and no destination of this kind does. Raises Refused."""
    if OF_SEND.isdisjoint(headers):
        return
    for name in NOT_SENT.keys() & headers.keys():
        if _asks(headers[name]):
            raise Refused(NOT_SUPPORTED, f"The header {name} is not obeyed. {NOT_SENT[name]}")
    if kind is T and _asks(headers.get("mandatory", "")):
        raise Refused(NOT_SUPPORTED, "The header mandatory is not obeyed. A topic does not know all its subscribers.")
    _check_routing_type(headers, "destination-type", kind)


def _asks(text: str) -> bool:
    return text.strip().lower() not in ("", "0", "false")


def _check_routing_type(headers: Mapping[str, str], name: str, kind: DestinationKind) -> None:
    text = headers.get(name)
    if text is not None and kind in (Q, T, F) and kind not in ROUTING_TYPES.get(text.upper(), (kind,)):
        raise Refused(
            "bad-destination",
            f"The header {name} is {text}, and the kind of a destination is in its name: /queue/ is ANYCAST, /topic/ "
            "and /fanout/ are MULTICAST.",
        )


def arguments_of(headers: Mapping[str, str]) -> dict[str, object]:
    """The arguments that a SUBSCRIBE has of its queue, with values as in AMQP."""
    return {name: _value(name, text) for name, text in headers.items() if name in ARGUMENTS}


def _value(name: str, text: str) -> object:
    if name in TEXTS:
        return text
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else text
