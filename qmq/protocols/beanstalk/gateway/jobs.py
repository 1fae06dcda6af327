"""Jobs as messages: ids, priorities, states, and the header blocks of what is put, buried and released.

A job id is a number for the dot of its message: 22 bits of a hash of the origin, then 40 bits of the sequence. Every
node knows all origins, so any of them finds the message. A job that is buried, or released with another priority or a
delay, becomes another message. That one has the id in the header `beanstalk-id`.

A queue has ten priorities, and a job one of 2³²; `beanstalk-priority` has the exact number, which orders the jobs of
one priority (`qmq.model.levels`).
"""

import re
from bisect import bisect_left
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

from qmq.broker.messages.dedup import DEDUP_HEADERS, RETRY, SENDER
from qmq.broker.messages.message import Envelope, Message
from qmq.broker.messages.send_options import MILLISECONDS_MAX, PRIORITY_DEFAULT, PRIORITY_MAX
from qmq.broker.selectors import properties_of
from qmq.gateways.bound_queues import BURIED_SUFFIX
from qmq.gateways.headers import JOB_ID
from qmq.model.dots import Dot, Origin
from qmq.model.levels import EXACT_HEADER, EXACT_TOPS, delivery_order, exact_first, priority_of_level
from qmq.wire.stomp import Head, Version

QUEUE: Final = "/queue/"

ORIGIN_BITS: Final = 22
SEQUENCE_BITS: Final = 40
SEQUENCE_MAX: Final = (1 << SEQUENCE_BITS) - 1
IN_MEMORY: Final = 1 << (ORIGIN_BITS + SEQUENCE_BITS)
"""Set in the ids of memory-only messages, which have sequences of their own."""

_URGENT_PRIORITY: Final = PRIORITY_MAX - EXACT_TOPS.index(1023)
"""beanstalkd calls what is below 1024 urgent."""

TTR_SECONDS_DEFAULT: Final = 120
"""Of a message that no beanstalkd client has put, and whose queue says nothing."""

SECONDS_MAX: Final = MILLISECONDS_MAX // 1000
"""A hundred years; longer times are cut to this."""

ID: Final = JOB_ID
PRIORITY: Final = EXACT_HEADER
DELAY: Final = "beanstalk-delay"
COUNTS: Final = "beanstalk-counts"
PUT_AT: Final = "beanstalk-put-at"

_ID_LINE: Final = re.compile(rb"^beanstalk-id:([0-9]{1,19})$", re.MULTILINE)
_DROPPED: Final = frozenset(
    {
        *DEDUP_HEADERS,
        RETRY,
        SENDER,
        "destination",
        "persistent",
        "delay",
        "AMQ_SCHEDULED_DELAY",
        "expires",
        "expiration",
        "ttl",
        "priority",
        ID,
        PRIORITY,
        DELAY,
        COUNTS,
        PUT_AT,
    }
)
"""Headers of a job that its next message gets again, or not at all."""


class JobState(StrEnum):
    """The states of a job, as `stats-job` shows them."""

    READY = "ready"
    RESERVED = "reserved"
    DELAYED = "delayed"
    BURIED = "buried"


class JobCounts(NamedTuple):
    """What has happened to a job before its present message."""

    reserves: int = 0
    timeouts: int = 0
    releases: int = 0
    buries: int = 0
    kicks: int = 0


# Ids


@lru_cache(maxsize=4096)
def origin_hash(origin: Origin) -> int:
    """The part of an id that names the origin."""
    digest = blake2b(str(origin).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> (32 - ORIGIN_BITS)


def id_of_dot(dot: Dot) -> int:
    sequence = dot.sequence
    memory = IN_MEMORY if sequence < 0 else 0
    return memory | origin_hash(dot.origin) << SEQUENCE_BITS | (abs(sequence) & SEQUENCE_MAX)


def id_of(message: Message) -> int:
    """The id of the job that a message is."""
    known = id_in(message.envelope.headers)
    return id_of_dot(message.dot) if known is None else known


def id_in(headers: bytes) -> int | None:
    """The id in a block of headers, of a message that is not the first of its job."""
    if b"beanstalk-id:" not in headers:
        return None
    found = _ID_LINE.search(headers)
    return None if found is None else int(found[1])


def dots_of(job: int, origins: Iterable[Origin]) -> list[Dot]:
    """The durable messages that may have this id by themselves: one, or by chance more."""
    wanted, sequence = job >> SEQUENCE_BITS, job & SEQUENCE_MAX
    return [Dot(origin, sequence) for origin in origins if sequence and origin_hash(origin) == wanted]


# Priorities


def queue_priority(priority: int) -> int:
    """The priority in a queue, 9 first, of one of beanstalkd, 0 first."""
    return PRIORITY_MAX - bisect_left(EXACT_TOPS, priority)


def job_priority(message: Message) -> int:
    """The one that it is delivered by: the first one of its queue priority, if it has no exact number of that."""
    options = message.envelope.options
    if options is None:
        return exact_first(PRIORITY_DEFAULT)
    return options.exact or exact_first(options.priority)


def is_urgent(level: int) -> bool:
    """Whether beanstalkd calls the messages of a level urgent."""
    return priority_of_level(level) >= _URGENT_PRIORITY


def urgency_of(message: Message) -> tuple[int, int, int]:
    """The order of ready messages of several queues or nodes."""
    options = message.envelope.options
    if options is None:
        return -delivery_order(PRIORITY_DEFAULT), 0, message.timestamp_us
    return -delivery_order(options.level), options.exact, message.timestamp_us


# Tubes


def queue_of(tube: str) -> str:
    return f"{QUEUE}{tube}"


def buried_queue_of(tube: str) -> str:
    return f"{QUEUE}{tube}{BURIED_SUFFIX}"


def tube_of(queue: str) -> str:
    """The tube whose jobs are in a queue, buried or not."""
    return queue.removeprefix(QUEUE).removesuffix(BURIED_SUFFIX)


def is_buried(queue: str) -> bool:
    return queue.endswith(BURIED_SUFFIX) and len(queue) > len(QUEUE) + len(BURIED_SUFFIX)


# Messages


def put_head(tube: str, priority: int, delay_seconds: int, ttr_seconds: int) -> Head:
    """The header block of the SEND that puts a job."""
    headers = {
        "destination": queue_of(tube),
        "priority": str(queue_priority(priority)),
        "ack-timeout": str(min(max(ttr_seconds, 1), SECONDS_MAX)),
        PRIORITY: str(priority),
    }
    _add_delay(headers, delay_seconds)
    return Head("SEND", headers, Version.V12)


def _add_delay(headers: dict[str, str], delay_seconds: int) -> None:
    if delay_seconds:
        headers["delay"] = str(min(delay_seconds, SECONDS_MAX) * 1000)
        headers[DELAY] = str(delay_seconds)


def next_head(
    message: Message, queue: str, priority: int, delay_seconds: int, counts: JobCounts, ahead_us: int = 0
) -> Head:
    """The header block of the next message of a job: with its id, and all that its first sender said.

    `ahead_us`: how far our clock is ahead of that of the node that has accepted `message`.
    """
    sent = properties_of(message.envelope)
    headers = {name: value for name, value in sent.items() if name not in _DROPPED}
    headers |= {
        "destination": queue,
        "priority": str(queue_priority(priority)),
        ID: str(id_of(message)),
        PRIORITY: str(priority),
        COUNTS: " ".join([str(count) for count in counts]),
        PUT_AT: str(put_at_us(message)),
    }
    options = message.envelope.options
    expires_us = 0 if options is None else options.expiry(message.timestamp_us)
    if expires_us:
        headers["expires"] = str((expires_us + ahead_us) // 1000)
    if DELAY in sent and not delay_seconds:
        headers[DELAY] = sent[DELAY]
    _add_delay(headers, delay_seconds)
    return Head("SEND", headers, Version.V12)


def kick_lines(message: Message) -> bytes:
    """Header lines that a job has, too, when it is kicked while it is delayed."""
    headers = message.envelope.headers
    if id_in(headers) is not None:
        return b""
    return b"%b:%d\n%b:%d\n" % (ID.encode(), id_of(message), PUT_AT.encode(), put_at_us(message))


def put_at_us(message: Message) -> int:
    """When the job was put."""
    text = properties_of(message.envelope).get(PUT_AT, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else message.timestamp_us


def ttr_us(message: Message, default_us: int = 0) -> int:
    """The time to run."""
    options = message.envelope.options
    own = 0 if options is None else options.ack_timeout_us
    return own or default_us or TTR_SECONDS_DEFAULT * 1_000_000


def counts_of(envelope: Envelope) -> JobCounts:
    """What has happened to a job before this message of it."""
    words = properties_of(envelope).get(COUNTS, "").split(" ")
    if len(words) != len(JobCounts._fields) or not all(word.isascii() and word.isdigit() for word in words):
        return JobCounts()
    return JobCounts(*[int(word[:9]) for word in words])


def delay_seconds_of(message: Message) -> int:
    """The delay that the job was last put or released with."""
    text = properties_of(message.envelope).get(DELAY, "")
    if text.isascii() and text.isdigit() and len(text) <= 10:
        return int(text)
    options = message.envelope.options
    return 0 if options is None else options.delay_us // 1_000_000
