"""Policies: how destinations of one name or prefix are stored, bounded and served.

A policy is for one name, or for all names with a common prefix (`/queue/jobs.*`). A key without a meaning for the kind
of destination is refused, because the operator expects an effect of it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta

from qmq.model.routing_names import PREFIX as EXCHANGE
from qmq.model.routing_names import is_exchange_name
from qmq.section import (
    CountOrUnbounded,
    ReceiptLevel,
    Seconds,
    SecondsOrNone,
    Section,
    Size,
    SizeOrUnbounded,
    check_at_least,
)

DESTINATION_KINDS = ("/topic/", "/queue/", "/fanout/", EXCHANGE)
DEFAULT_DEAD_LETTER = "/queue/dead-letters"
"""Always exists, even if destinations are not created on use."""

CHILDREN_MAX = 16
"""Each child adds one record per message, in the same batch."""

ROUTING_KEY_BYTES_MAX = 255
"""As in AMQP."""

SCHEMA_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,126}")
SCHEMA_NAME_RULE = "1 to 127 characters out of A-Z, a-z, 0-9, _, - and ., the first none of - and ."
MESSAGE_SCHEMA = "message.avsc"
"""The one that is predefined: of messages in Avro files."""

# The keys that apply to each kind. `pattern` applies to all.
KEYS: Mapping[str, tuple[str, ...]] = {
    "/queue/": (
        "durable",
        "max_messages",
        "max_bytes",
        "overflow",
        "ack_timeout_seconds",
        "delivery_limit",
        "redelivery_seconds_min",
        "redelivery_seconds_max",
        "dead_letter",
        "dead_letter_routing_key",
        "ttl_seconds",
        "priority",
        "exclusive",
        "receipt",
        "ack_level",
        "schema",
    ),
    "/fanout/": ("retention_seconds", "retention_bytes", "children", "receipt", "schema"),
    "/topic/": ("retain", "buffer_messages", "schema"),
    EXCHANGE: ("alternate",),
}

# Why a key is refused under a kind. A kind without an entry has a general reason.
REASONS: Mapping[tuple[str, str], str] = {
    ("/topic/", "durable"): "topics keep nothing; use a /fanout/ or a /queue/",
    ("/fanout/", "durable"): "fanouts are always durable",
    ("/fanout/", "max_messages"): "a fanout is bounded by retention_seconds and retention_bytes",
    ("/fanout/", "max_bytes"): "a fanout is bounded by retention_seconds and retention_bytes",
    ("/topic/", "receipt"): "topics are not stored on disk, so their receipts wait for no disk",
    ("/topic/", "retention_seconds"): "topics keep only the last value, with retain",
    ("/topic/", "retention_bytes"): "topics keep only the last value, with retain",
    ("/queue/", "retention_seconds"): "a queue keeps a message until it is settled; see ttl_seconds",
    ("/queue/", "retention_bytes"): "a queue keeps a message until it is settled; see max_bytes and overflow",
    ("/fanout/", "ack_level"): "fanout messages have no owner that could deliver them again",
    ("/topic/", "ack_level"): "topic messages need no ACK",
    ("/fanout/", "buffer_messages"): "a slow subscriber of a fanout is served from its log",
    ("/queue/", "buffer_messages"): "a consumer of a queue is held back by its prefetch; see max_messages",
    ("/fanout/", "ttl_seconds"): "a fanout keeps messages for retention_seconds",
}


def _read_pattern(value: object) -> object:
    if not isinstance(value, str) or not value.startswith(DESTINATION_KINDS) or value.endswith("/"):
        raise ValueError(f"must be a destination under {', '.join(DESTINATION_KINDS)}; a * at the end matches any rest")
    if "*" in value[:-1] or "#" in value:
        raise ValueError("must have * only as its last character, and no #")
    return value


def read_queue_name(value: object) -> object:
    if not isinstance(value, str) or not value.startswith("/queue/") or value == "/queue/":
        raise ValueError("must be a queue, /queue/NAME")
    if "*" in value or "#" in value:
        raise ValueError("must be one queue, without * and #")
    return value


def _read_dead_letter(value: object) -> object:
    if value == "":
        return value
    if isinstance(value, str) and is_exchange(value):
        if not is_exchange_name(value.removeprefix(EXCHANGE)):
            raise ValueError("must be /exchange/NAME; the routing key is dead_letter_routing_key")
        return value
    try:
        return read_queue_name(value)
    except ValueError as error:
        raise ValueError(f'{error}; or /exchange/NAME; or "", which drops messages') from None


def read_alternate(value: object) -> object:
    """The name of an exchange, or "". Raises ValueError."""
    if value != "" and not (isinstance(value, str) and is_exchange_name(value)):
        raise ValueError("must have 1 to 127 characters, without slashes, wildcards and blanks")
    return value


def is_exchange(dead_letter: str) -> bool:
    """Whether dead letters go to the queues that an exchange leads to."""
    return dead_letter.startswith(EXCHANGE)


def last_queue(dead_letter: str) -> str:
    """The queue that surely gets dead letters: of an exchange, the one for what no binding matches."""
    return DEFAULT_DEAD_LETTER if is_exchange(dead_letter) else dead_letter


QueueName = Annotated[str, read_queue_name]


def too_long(name: str, bytes_max: int) -> str:
    """Why nothing could be sent to, or taken from, a destination with this name; "" if it has at most `bytes_max`."""
    size = len(name.encode(errors="replace"))  # Text with half of a surrogate pair is refused as such.
    return f"must have at most {bytes_max} bytes (limits.destination_bytes_max)" if size > bytes_max else ""


def is_schema_name(name: str) -> bool:
    """Whether an Avro schema can have this name, which is part of a path (`/v1/schemas/NAME`)."""
    return SCHEMA_NAME.fullmatch(name) is not None and name != MESSAGE_SCHEMA


def _read_schema_name(value: object) -> object:
    if not isinstance(value, str) or not is_schema_name(value):
        raise ValueError(f"must be the name of a schema, {SCHEMA_NAME_RULE}")
    return value


def kind_prefix(destination: str) -> str:
    """`/queue/` of `/queue/jobs`; empty if there is none."""
    return destination[: destination.find("/", 1) + 1]


class DestinationPolicy(Section):
    """How the destinations that match `pattern` are kept, bounded and served."""

    pattern: Annotated[str, _read_pattern]

    schema: Annotated[str, _read_schema_name] | None = None
    """The Avro schema that the body of each SEND must fit; None: bodies are not looked at."""

    # Queues.
    durable: bool = True
    """False: messages live in memory only and are lost when the node stops."""
    max_messages: CountOrUnbounded | None = None
    """None: `limits.queue_messages_max`; 0: no bound."""
    max_bytes: SizeOrUnbounded | None = None
    """Of bodies. None: `limits.queue_bytes_max`; 0: no bound."""
    overflow: Literal["refuse", "drop-oldest", "drop-newest"] = "refuse"
    """At the bound: the SEND gets an ERROR, or the oldest or the new message is dropped."""
    ack_timeout_seconds: SecondsOrNone = 0.0
    """If a message is not settled in this time, the delivery counts as failed; 0: no timeout."""
    delivery_limit: CountOrUnbounded = 20
    """Failed deliveries after which a message becomes a dead letter; 0: no limit."""
    redelivery_seconds_min: Seconds = 0.1
    """Pause after the first failed delivery; it doubles with each further one."""
    redelivery_seconds_max: Seconds = 60.0
    """The longest of these pauses."""
    dead_letter: Annotated[str, _read_dead_letter] = DEFAULT_DEAD_LETTER
    """The queue that gets dead letters, or an exchange; empty: they are dropped. If it is set, messages that expire, or
    that a full queue drops, become dead letters, too."""
    dead_letter_routing_key: str | None = None
    """For an exchange. None: the routing key of the message, or the name of its queue."""
    ttl_seconds: SecondsOrNone = 0.0
    """For messages without an expiry of their own; 0: they never expire."""
    priority: Annotated[int, Meta(ge=0, le=9)] = 4
    """For messages without a priority of their own; 9 goes first."""
    exclusive: bool = False
    """One consumer at a time gets messages, in the whole mesh; the others wait until it leaves."""

    ack_level: Literal["edge", "quorum"] | None = None
    """When an ACK is confirmed. None: `mesh.ack_level`."""

    # Queues and fanouts.
    receipt: ReceiptLevel | None = None
    """How many disks a receipt waits for. None: `mesh.receipt`."""

    # Fanouts.
    retention_seconds: Seconds | None = None
    """None: `storage.fanout_age_seconds_max`."""
    retention_bytes: Size | None = None
    """None: `storage.fanout_bytes_max`."""
    children: tuple[QueueName, ...] = ()
    """Queues that get a copy of every message."""

    # Topics.
    retain: bool = False
    """Keep the last value of each topic for later subscribers."""
    buffer_messages: CountOrUnbounded = 0
    """So many messages wait for a slow subscription that does not say otherwise, and older ones are dropped; 0: its
    connection ends when the outbox is full."""

    # Exchanges.
    alternate: Annotated[str, read_alternate] = ""
    """The exchange that gets what no binding matches, where the exchange itself names none."""

    @property
    def is_exact(self) -> bool:
        """Whether this is for one destination only."""
        return not self.pattern.endswith("*")

    @property
    def keeps_dropped(self) -> bool:
        """Whether expired and dropped messages become dead letters, too, and not only failed ones.

        The default dead letter queue gets failed messages only; for the others the policy must name a target.
        """
        return "dead_letter" in self.set_keys and self.dead_letter != ""

    @property
    def dead_letter_target(self) -> str:
        """As a destination: a queue, or `/exchange/NAME/KEY`, or `/exchange/NAME` for the key of the message."""
        if self.dead_letter_routing_key is None or not is_exchange(self.dead_letter):
            return self.dead_letter
        return f"{self.dead_letter}/{self.dead_letter_routing_key}"

    def is_explicit(self, key: str) -> bool:
        return key != "dead_letter" or key in self.set_keys

    def effective_keys(self) -> Sequence[str]:
        return ("pattern", *KEYS[kind_prefix(self.pattern)])

    def named_queues(self) -> list[tuple[tuple[str | int, ...], str]]:
        """The queues that this policy names: (location of the name, name)."""
        named: list[tuple[tuple[str | int, ...], str]] = [
            (("children", number), child) for number, child in enumerate(self.children)
        ]
        if self.keeps_dropped:
            named.append((("dead_letter",), self.dead_letter))
        return named

    def matches(self, destination: str) -> bool:
        """Whether this policy matches `destination`; another one may match better."""
        return destination == self.pattern if self.is_exact else destination.startswith(self.pattern[:-1])

    @classmethod
    def before(cls, values: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        pattern = values.get("pattern")
        kind = kind_prefix(pattern) if isinstance(pattern, str) else ""
        if kind not in KEYS:
            return values, {}
        misplaced = {}
        for key in values.keys() & cls.keys().keys() - {"pattern", *KEYS[kind]}:
            homes = [home for home, keys in KEYS.items() if key in keys]
            reason = REASONS.get((kind, key), f"it is for {homes[0]} destinations")
            misplaced[key] = f"must be left out under {kind}: {reason}"
        if pattern == DEFAULT_DEAD_LETTER:
            # Dead letters end here, unless the policy says otherwise.
            values = {"dead_letter": "", "delivery_limit": 0, **values}
        return values, misplaced

    @classmethod
    def check(cls, key: str, value: Any, seen: Mapping[str, Any]) -> None:
        if key == "redelivery_seconds_max":
            check_at_least(value, "redelivery_seconds_min", seen)
        elif key == "dead_letter":
            if value and value == seen.get("pattern"):
                raise ValueError('must be another queue than this one, or "", which drops messages')
            if is_exchange(value) and seen.get("pattern") == DEFAULT_DEAD_LETTER:
                why = "this one gets the dead letters that no binding of an exchange matches"
                raise ValueError(f"must be a queue: {why}")
        elif key == "dead_letter_routing_key" and value is not None:
            if not is_exchange(seen.get("dead_letter", EXCHANGE)):
                raise ValueError("must be left out, unless dead_letter is an exchange")
            if len(value.encode()) > ROUTING_KEY_BYTES_MAX:
                raise ValueError(f"must have at most {ROUTING_KEY_BYTES_MAX} bytes")
        elif key == "children":
            if len(value) > CHILDREN_MAX:
                raise ValueError(f"must list at most {CHILDREN_MAX} queues, not {len(value)}")
            for number, child in enumerate(value):
                if child in value[:number]:
                    raise ValueError(f"must not list {child!r} twice")


QUEUE_DEFAULT = DestinationPolicy(pattern="/queue/*")
FANOUT_DEFAULT = DestinationPolicy(pattern="/fanout/*")
TOPIC_DEFAULT = DestinationPolicy(pattern="/topic/*")
# These have no policies: they live in memory and end with their session.
TEMPORARY_DEFAULT = QUEUE_DEFAULT.replace(
    {"pattern": "/temp-queue/*", "durable": False, "delivery_limit": 0, "dead_letter": ""}
)

DEFAULTS: Mapping[str, DestinationPolicy] = {
    "/queue/": QUEUE_DEFAULT,
    "/fanout/": FANOUT_DEFAULT,
    "/topic/": TOPIC_DEFAULT,
    "/temp-queue/": TEMPORARY_DEFAULT,
}
