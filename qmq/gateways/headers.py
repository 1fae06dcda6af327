"""STOMP headers that QMQ understands, in the words that people already use, turned into what the broker knows.

Everything that is wrong here is refused with what would be right (design section 7: headers understood).
"""

import re
from collections.abc import Mapping

from qmq.broker.consumers.connection_prefetch import ConnectionPrefetch
from qmq.broker.consumers.consumer_class import PRIORITY_MAX
from qmq.broker.consumers.subscription import ACK_MODES, Ack, Asks, JournalSpan, StartAt, Subscription
from qmq.broker.messages.copy_budget import COPIES_LEFT
from qmq.broker.messages.dedup import RETRY, SENDER
from qmq.broker.messages.destination import DestinationKind, is_pattern, kind_of
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import Retain
from qmq.broker.messages.send_options import read_seconds
from qmq.broker.selectors import Selector, compile_filter, compile_selector
from qmq.errors import Refused
from qmq.model.dots import Vector, parse_origin

PREFETCH_HEADERS = ("prefetch-count", "prefetch", "activemq.prefetchSize", "credit")

READER_MAX = 100
"""Characters of a reader's name that are kept."""

AMQP_BLOCK = "amqp-properties"
"""All properties of a message that an AMQP client has published, in base64. Only AMQP consumers need it, so no MESSAGE
frame has it: it can be longer than a header that clients of STOMP read."""

JOB_ID = "beanstalk-id"
"""The id of a job of beanstalkd whose message is not its first one. Only the gateway of beanstalkd sets it."""

OWN_HEADERS = frozenset(
    {
        "ack",
        COPIES_LEFT,
        JOB_ID,
        "content-length",
        "dead-letter-deliveries",
        "dead-letter-from",
        "dead-letter-id",
        "dead-letter-path",
        "dead-letter-through",
        "dead-letter-history",
        "dead-letter-reason",
        RETRY,
        SENDER,
        "delivery-count",
        "destination",
        "dropped",
        "message-id",
        "persistent",
        "qmq-gap",
        "receipt",
        "receipt-level",
        "redelivered",
        "retained",
        "routing-keys",
        "subscription",
        "transaction",
    }
)
"""Headers of a SEND that are the broker's business: they do not travel, or are the broker's to set on MESSAGE."""

STARTS = ("first", "last", "next", "offset=N (N counts from the first message ever kept here, 0)", "timestamp=S")

TIMESTAMP = re.compile(r"[0-9]{1,11}(\.[0-9]{1,6})?")

PRIORITY = re.compile(r"-?[0-9]{1,19}")

VECTOR_ENTRIES_MAX = 1024


def required(headers: Mapping[str, str], name: str, command: str) -> str:
    """The value of a header that the command cannot do without."""
    value = headers.get(name)
    if not value:
        raise Refused("missing-header", f"{command} needs the header {name}.")
    return value


QUEUE_ALIAS = "/amq/queue/"
"""As RabbitMQ names a queue that exists already."""


def destination_of(headers: Mapping[str, str], command: str) -> str:
    """The destination that the command is about, by its own name: the one place that knows aliases."""
    destination = required(headers, "destination", command)
    check_name(destination)
    if destination.startswith(QUEUE_ALIAS):
        return f"/queue/{destination.removeprefix(QUEUE_ALIAS)}"
    return destination


COMPOSITE = re.compile(r",\s*(?:/(?:temp-)?(?:queue|topic)/|(?:temp-)?(?:queue|topic)://)")
OPTIONS = re.compile(r"\?(?:consumer|jms|destination)\.")


def check_name(destination: str) -> None:
    """Refuse what no console or terminal can show as it is, and what ActiveMQ means by a name and no broker here does.

    A request to a control destination may name what a node of before has accepted. Raises Refused.
    """
    if destination.startswith("/control/"):
        return
    if not destination.isprintable():
        raise Refused("bad-destination", "A destination has printable characters only.")
    if destination.startswith("/exchange/"):
        return  # RabbitMQ has them, and a routing key may be any text there.
    if destination.endswith((".>", "/>")):
        raise Refused("bad-destination", "The wildcard > of ActiveMQ is # here, and only topics have wildcards.")
    if "," in destination and COMPOSITE.search(destination):
        raise Refused(
            "bad-destination",
            "A frame names one destination, not several with commas: bindings copy the messages of one to more queues.",
        )
    if "?" in destination and OPTIONS.search(destination):
        raise Refused("bad-destination", "A destination has no options behind a question mark: headers have them.")


def ack_mode(headers: Mapping[str, str]) -> Ack:
    """`ack`, `auto` when absent (STOMP 1.2, SUBSCRIBE ack Header)."""
    text = headers.get("ack", "auto")
    mode = ACK_MODES.get(text)
    if mode is None:
        raise Refused("bad-ack-mode", f"The header ack is one of {', '.join(ACK_MODES)}.")
    return mode


def prefetch(headers: Mapping[str, str], default: int, most: int) -> int:
    """The credit a queue subscription asks for, cut to `most`. Raises Refused for what is no positive number."""
    for name in PREFETCH_HEADERS:
        text = headers.get(name)
        if text is None:
            continue
        # `credit` may carry a byte count after a comma, which has no meaning here.
        count = text.partition(",")[0].strip()
        if not (count.isascii() and count.isdigit()) or int(count[:10]) < 1:
            raise Refused("bad-prefetch", f"The header {name} is a whole number of messages, at least 1.")
        return min(int(count[:10]), most)
    return default


def truth(headers: Mapping[str, str], name: str, default: bool) -> bool:
    """What a header says that is `true` or `false`, in upper or lower case. Raises Refused for anything else."""
    text = headers.get(name)
    if text is None:
        return default
    said = text.lower()
    if said != "true" and said != "false":
        raise Refused("bad-header", f"The header {name} is true or false.")
    return said == "true"


def is_said(headers: Mapping[str, str], *names: str) -> bool:
    """Whether the first of these headers that is there says `true`. Raises Refused for anything but true and false."""
    for name in names:
        if name in headers:
            return truth(headers, name, False)
    return False


def window(headers: Mapping[str, str], most: int) -> ConnectionPrefetch[Subscription] | None:
    """The bound that CONNECT sets on all queue subscriptions of a connection together; None when it says nothing."""
    if not any(name in headers for name in PREFETCH_HEADERS):
        return None
    return ConnectionPrefetch(prefetch(headers, most, most))


def consumer_asks(headers: Mapping[str, str], destination_bytes_max: int) -> Asks | None:
    """What a queue subscription asks about failed deliveries, instead of the queue's policy; None when nothing."""
    limit = headers.get("delivery-limit")
    pause = headers.get("redelivery-delay")
    target = headers.get("dead-letter")
    if limit is None and pause is None and target is None:
        return None
    if limit is not None and not (limit.isascii() and limit.isdigit() and len(limit) <= 9):
        raise Refused("bad-header", "The header delivery-limit is a whole number of deliveries; 0 for no limit.")
    if target:
        check_name(target)
        try:
            is_queue = kind_of(target, destination_bytes_max) is DestinationKind.QUEUE and not is_pattern(target)
        except Refused as refused:
            if refused.code == "destination-too-long":
                raise
            is_queue = False
        if not is_queue:
            raise Refused("bad-dead-letter", "The header dead-letter is /queue/NAME, or empty to drop such messages.")
    return Asks(
        None if limit is None else int(limit),
        None if pause is None else read_seconds(pause, "redelivery-delay"),
        target,
    )


PRIORITY_HEADERS = ("consumer-priority", "x-priority", "activemq.priority")


def consumer_priority(headers: Mapping[str, str]) -> int:
    """That of a queue subscription; 0 when it asks for none."""
    for name in PRIORITY_HEADERS:
        text = headers.get(name)
        if text is not None:
            if not PRIORITY.fullmatch(text) or abs(int(text)) > PRIORITY_MAX:
                raise Refused("bad-header", f"The header {name} is a whole number, also below 0.")
            return int(text)
    return 0


EXPIRIES = ("expires", "expiration", "ttl")


def unsaid(headers: Mapping[str, str], defaults: Mapping[str, str]) -> list[tuple[str, str]]:
    """Those `defaults` (of `ttl` and `priority`) that the sender of `headers` has not decided."""
    return [
        (name, value)
        for name, value in defaults.items()
        if name not in headers and not (name == "ttl" and any(said in headers for said in EXPIRIES))
    ]


def ack_timeout_us(headers: Mapping[str, str]) -> int:
    """How long the consumer may take for an ACK, in µs; 0 when it does not say."""
    text = headers.get("ack-timeout")
    return 0 if text is None else read_seconds(text, "ack-timeout")


def nack_reason(headers: Mapping[str, str]) -> Back:
    """`requeue:false` on NACK rejects the message for good (RabbitMQ's word)."""
    return Back.FAILED if truth(headers, "requeue", True) else Back.REJECTED


def is_persistent(headers: Mapping[str, str]) -> bool:
    """`persistent:false` asks for memory only; anything but true and false is refused."""
    return truth(headers, "persistent", True)


def selector(headers: Mapping[str, str]) -> Selector | None:
    """Which messages a SUBSCRIBE wants: `selector` as in JMS or xtomp's `filter`; None when neither says anything."""
    text = headers.get("selector", "").strip()
    wanted = headers.get("filter")
    if wanted is None:
        return compile_selector(text) if text else None
    if text:
        raise Refused("bad-selector", "A SUBSCRIBE has a selector or a filter, not both: a selector can say it all.")
    return compile_filter(wanted)


RETAINS = {"set": Retain.SET, "remove": Retain.REMOVE}


def retain(headers: Mapping[str, str], keeps_all: bool) -> Retain:
    """What a SEND to a topic does to its last value; `keeps_all` is the topic's policy, for those that do not say."""
    text = headers.get("retain")
    if text is None:
        return Retain.SET if keeps_all else Retain.NO
    found = RETAINS.get(text)
    if found is None:
        raise Refused("bad-retain", f"The header retain is one of {', '.join(RETAINS)}.")
    return found


def fanout_start(headers: Mapping[str, str], default: str) -> str | Vector | StartAt:
    """Where a fanout subscription begins: behind a vector, or where `x-stream-offset` says (`default` without one)."""
    resume = headers.get("qmq-resume")
    if resume is not None:
        return parse_vector(resume)
    text = headers.get("x-stream-offset", default).strip()
    if text in ("first", "next"):
        return text
    word, _, number = text.partition("=")
    if text == "last":
        return StartAt("last")
    if word == "offset" and number.isascii() and number.isdigit() and len(number) <= 18:
        return StartAt("offset", int(number))
    if word == "timestamp" and TIMESTAMP.fullmatch(number):
        return StartAt("timestamp", int(float(number) * 1_000_000))
    raise Refused("bad-offset", f"The header x-stream-offset is one of {', '.join(STARTS)} (seconds since 1970).")


def journal_span(headers: Mapping[str, str]) -> JournalSpan:
    """What a reader of the journal wants: all there is and will be, unless it says after what and until when."""
    until = headers.get("qmq-until")
    after = parse_vector(headers.get("qmq-resume", ""))
    return JournalSpan(
        after, None if until is None else parse_vector(until, "qmq-until"), headers.get("qmq-reader", "")[:READER_MAX]
    )


def parse_vector(text: str, header: str = "qmq-resume") -> Vector:
    """`ORIGIN=SEQUENCE,…` as the client put it together from the message-ids it has seen."""
    vector: Vector = {}
    entries = [entry for entry in text.split(",") if entry.strip()]
    if len(entries) > VECTOR_ENTRIES_MAX:
        raise Refused("bad-resume", f"The header {header} has at most {VECTOR_ENTRIES_MAX} entries.")
    for entry in entries:
        origin, _, sequence = entry.strip().partition("=")
        try:
            if not (sequence.isascii() and sequence.isdigit() and len(sequence) <= 19):
                raise ValueError(sequence)
            vector[parse_origin(origin)] = int(sequence)
        except ValueError:
            raise Refused(
                "bad-resume", f"The header {header} is ORIGIN=SEQUENCE, with commas between, as in message-id."
            ) from None
    return vector
