"""Properties of AMQP ↔ headers of STOMP: one table for both directions (docs/amqp.md).

The properties of a published message travel as they came, in one header, `amqp-properties`, in base64. Beside it stand
**text headers**, which say the same to STOMP, HTTP, selectors and headers exchanges. A consumer of AMQP gets the bytes
of the publisher. A message of another protocol has no such header: its properties are made of its headers.

Surprising: a header of the table `headers` has no text header if its name would ask the node for something (`expires`,
`delay`). Applications use such names with another meaning. The names in `OPTIONS` are meant for the node.
"""

import base64
import binascii
import datetime
import json
from collections.abc import Mapping
from typing import Any, Final, Protocol

from qmq.broker.queues.dead_letter_history import Death, deaths_of
from qmq.gateways.copies import DELAY, ROUTING_KEYS
from qmq.gateways.headers import AMQP_BLOCK, OWN_HEADERS
from qmq.gateways.refused_headers import NOT_SENT
from qmq.model.routing_names import PREFIX
from qmq.protocols.amqp.codec.properties import (
    NO_PROPERTIES,
    Properties,
    counted_rows,
    read_properties,
    with_field,
    without_header,
    write_properties,
)
from qmq.protocols.amqp.codec.refusals import AmqpRefusal, ReplyCode
from qmq.protocols.amqp.gateway.names import DEFAULT_VHOST, DIRECT_REPLY, QUEUE, REPLIES, Vhost, check_key, queue_name

BLOCK: Final = AMQP_BLOCK

TEXTS: Final[Mapping[str, str]] = {
    "content_type": "content-type",
    "content_encoding": "content-encoding",
    "correlation_id": "correlation-id",
    "message_id": "amqp-message-id",
    "message_type": "type",
    "user_id": "user-id",
    "app_id": "app-id",
}
"""Properties of text, and their headers."""

BCC: Final = "BCC"
X_DEATH: Final = "x-death"

COPYING: Final = ("CC", BCC)
"""Names in the table `headers` that have further routing keys of a publish. No consumer gets BCC."""

PERSISTENT: Final = 2
"""`delivery_mode` of a message that is to be kept on disk."""

OPTIONS: Final = frozenset({"dedup-id", "delay", "JMSXGroupID", "receipt-level", "redelivered", DELAY})
"""Names in the table `headers` that are options of SEND."""

ASKING: Final = frozenset(
    {
        "_AMQ_DUPL_ID",
        "AMQ_SCHEDULED_DELAY",
        "ack-timeout",
        "dedup-sender",
        "exchange",
        "expiration",
        "expires",
        "mandatory",
        "message_group",
        "original-destination",
        "priority",
        "qmq-resume",
        "reply-to",
        "retain",
        "routing-key",
        ROUTING_KEYS,
        "selector",
        "ttl",
        "user-id",
        BLOCK,
        *NOT_SENT,
        "destination-type",
    }
)
"""Headers that ask a node for something, that only a node sets, or that it has checked; besides OWN_HEADERS."""

TEXT_HEADERS_MAX: Final = 50
TEXT_HEADER_BYTES_MAX: Final = 1024
"""A longer value has no header: it is in `amqp-properties` in any case."""

PROPERTIES_BYTES_MAX: Final = 32 << 10
"""Of one message; RabbitMQ bounds them by the size of a frame."""

PRIORITY_MAX: Final = 9

DEATH: Final = "dead-letter-"
"""Headers of a node about a dead letter begin so."""

REASONS: Final[Mapping[str, str]] = {
    "rejected": "rejected",
    "expired": "expired",
    "overflow": "maxlen",
    "delivery-limit": "delivery_limit",
}
"""Why a message is a dead letter → the word in `x-death`."""


class ReplyAddresses(Protocol):
    """What a publish with a direct reply needs of its channel."""

    @property
    def reply_queue(self) -> str:
        """The temporary queue of its consumer of replies. Raises AmqpRefusal if it has none."""


def send_headers(
    destination: str,
    block: bytes,
    user: str | None,
    replies: ReplyAddresses | None = None,
    vhost: Vhost = DEFAULT_VHOST,
) -> dict[str, str]:
    """The headers of the SEND that a publish with these properties is. Raises AmqpRefusal."""
    if len(block) > PROPERTIES_BYTES_MAX:
        raise AmqpRefusal(
            ReplyCode.PRECONDITION_FAILED,
            f"the properties of the message have {len(block)} bytes; at most {PROPERTIES_BYTES_MAX} are allowed",
        )
    properties = read_properties(block)
    headers = {"destination": destination}
    for name, header in TEXTS.items():
        value = getattr(properties, name)
        if value:
            _put(headers, header, str(value))
    if properties.user_id and user is not None and properties.user_id != user:
        raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, f"user_id is {properties.user_id!r}, and the user is {user!r}")
    if properties.delivery_mode != PERSISTENT:
        headers["persistent"] = "false"
    if properties.priority is not None:
        headers["priority"] = str(min(properties.priority, PRIORITY_MAX))
    if properties.expiration is not None:
        headers["expiration"] = _expiration(properties.expiration)
    if properties.timestamp is not None:
        headers["timestamp"] = str(int(properties.timestamp.timestamp()))
    if properties.reply_to == DIRECT_REPLY:
        if replies is None:
            raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, "there is no consumer of direct replies on this channel")
        headers["reply-to"] = replies.reply_queue
        # The node's own address takes its place when the message is delivered.
        properties.reply_to = None
        block = write_properties(properties)
    elif properties.reply_to:
        address = _address(properties.reply_to, vhost)
        if address is not None:
            _put(headers, "reply-to", address)
    keys = [key for name in COPYING for key in _further_keys(name, properties.headers or {})]
    if keys:
        # To the default exchange they are names of queues.
        before = "" if destination.startswith(PREFIX) else vhost.prefix
        headers[ROUTING_KEYS] = json.dumps([f"{before}{key}" for key in keys])
    if BCC in (properties.headers or {}):
        block = without_header(block, BCC)
    for name, value in (properties.headers or {}).items():
        if name in OPTIONS or (name not in ASKING and name not in OWN_HEADERS and len(headers) < TEXT_HEADERS_MAX):
            text = text_of(value)
            if text is not None and name not in headers:
                _put(headers, name, text)
    headers[BLOCK] = base64.b64encode(block).decode()
    return headers


def _further_keys(name: str, table: Mapping[str, Any]) -> list[str]:
    """The routing keys in the header CC or BCC. What is no text in it is passed over, as by RabbitMQ. Raises
    AmqpRefusal."""
    found = table.get(name, [])
    if not isinstance(found, list) or any(isinstance(key, bytes) for key in found):
        raise AmqpRefusal(
            ReplyCode.PRECONDITION_FAILED, f"the header {name} is an array of routing keys in UTF-8, not {found!r}"
        )
    return [check_key(key) for key in found if isinstance(key, str)]


def text_of(value: object) -> str | None:
    """A value of a table as text; None for a list, a table, and what is no text."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, datetime.datetime):
        return str(int(value.timestamp()))
    return None


def delivered_properties(headers: Mapping[str, str], queue: str, vhost: Vhost = DEFAULT_VHOST) -> bytes:
    """The properties of a message with these headers, as its consumer in `vhost` gets them: flags and values.

    `queue` is where it is, for `x-death` of a dead letter.
    """
    block = _block_of(headers)
    is_dead = f"{DEATH}reason" in headers
    if block is not None:
        address = headers.get("reply-to", "")
        if not is_dead and not address.startswith(REPLIES):
            return block
        properties = read_properties(block)
        if not properties.reply_to and address.startswith(REPLIES):
            properties.reply_to = address
    else:
        properties = _made_of(headers, vhost)
    field = b""
    if is_dead:
        deaths = deaths_of(headers)
        assert deaths is not None
        table = {**(properties.headers or {}), **_first_death(deaths.first, vhost)}
        table.pop(X_DEATH, None)
        properties.headers = table
        rows = [_death(one, vhost) for one in deaths.rows]
        if properties.expiration:
            # As RabbitMQ: a dead letter does not expire by it, and a client that sends the dead letter on does not
            # repeat it.
            for one, row in zip(deaths.rows, rows, strict=True):
                if (one.reason, one.queue) == (deaths.first.reason, deaths.first.queue):
                    row["original-expiration"] = properties.expiration
            properties.expiration = None
        field = counted_rows(X_DEATH, rows)
    try:
        return with_field(write_properties(properties), field)
    except AmqpRefusal:
        # A value that pamqp reads and cannot write; the message still has its body.
        return block or NO_PROPERTIES


def _block_of(headers: Mapping[str, str]) -> bytes | None:
    """The properties as they were published; None if the message has none that can be read."""
    text = headers.get(BLOCK)
    if text is None:
        return None
    try:
        block = base64.b64decode(text, validate=True)
        # A sender of another protocol can set this header, too.
        read_properties(block)
    except (binascii.Error, ValueError, AmqpRefusal):
        return None
    return block


def _made_of(headers: Mapping[str, str], vhost: Vhost) -> Properties:
    """The properties of a message of another protocol."""
    properties = Properties()
    for name, header in TEXTS.items():
        value = headers.get(header)
        if value is not None and len(value.encode()) <= 255:
            setattr(properties, name, value)
    properties.delivery_mode = PERSISTENT if headers.get("persistent") == "true" else 1
    priority = headers.get("priority", "")
    if len(priority) == 1 and priority.isascii() and priority.isdigit():
        properties.priority = int(priority)
    # A queue outside of the virtual host keeps its whole address, which a publish can be sent to.
    reply_to = headers.get("reply-to", "").removeprefix(f"{QUEUE}{vhost.prefix}")
    if 0 < len(reply_to.encode()) <= 255:
        properties.reply_to = reply_to
    seconds = headers.get("timestamp", "")
    if seconds.isascii() and seconds.isdigit() and len(seconds) <= 11:
        properties.timestamp = datetime.datetime.fromtimestamp(int(seconds), datetime.UTC)
    taken = {*TEXTS.values(), *OWN_HEADERS, "priority", "reply-to", "timestamp", BLOCK, "dedup-sender"}
    table = {
        name: value
        for name, value in headers.items()
        if name not in taken and not name.startswith(DEATH) and len(name.encode()) <= 255
    }
    if table:
        properties.headers = dict(table)
    return properties


def _death(one: Death, vhost: Vhost) -> dict[str, Any]:
    """What RabbitMQ says of a dead letter in one row of `x-death`, as far as the node knows it: not when."""
    return {
        "count": one.times,
        "reason": REASONS.get(one.reason, one.reason),
        "queue": queue_name(one.queue, vhost),
        "exchange": one.exchange.removeprefix(vhost.prefix),
        # With the default exchange it is the name of the queue.
        "routing-keys": [one.key if one.exchange else one.key.removeprefix(vhost.prefix)],
    }


def _first_death(first: Death, vhost: Vhost) -> dict[str, Any]:
    return {
        "x-first-death-reason": REASONS.get(first.reason, first.reason),
        "x-first-death-queue": queue_name(first.queue, vhost),
        "x-first-death-exchange": first.exchange.removeprefix(vhost.prefix),
    }


def _put(headers: dict[str, str], name: str, value: str) -> None:
    """Add a text header, unless it is too long or no header can have it."""
    if name and len(value) <= TEXT_HEADER_BYTES_MAX and len(name) <= 255 and "\0" not in name and "\0" not in value:
        headers[name] = value


def _expiration(text: str) -> str:
    """Milliseconds. Raises AmqpRefusal. 0 means at once in AMQP, and never in STOMP."""
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise AmqpRefusal(ReplyCode.PRECONDITION_FAILED, f"expiration is a number of milliseconds, not {text!r}")
    return text if int(text) else "1"


def _address(reply_to: str, vhost: Vhost) -> str | None:
    """`reply_to` as a destination of STOMP; None for one that means nothing there."""
    if reply_to.startswith((REPLIES, QUEUE)):
        return reply_to
    return None if reply_to.startswith("/") else f"{QUEUE}{vhost.prefix}{reply_to}"
