"""`POST …/messages`: the body of a request to the SENDs that it stands for.

A request is one message, with its body as it is, or a batch. A batch is an object in JSON whose members are `messages`,
and perhaps `receipt_level`, and no others; or an Avro file. `Qmq-Batch: true` or `false` says which of both it is.
Without it, a body that is no JSON and has that content type is refused: it may be a batch that was cut.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from qmq.broker.consumers.orders import Begin, Commit
from qmq.broker.messages.send_options import check_options
from qmq.errors import Refused
from qmq.gateways.copies import ROUTING_KEYS
from qmq.gateways.headers import OWN_HEADERS, retain, truth
from qmq.gateways.paused import Command
from qmq.protocols.http.codec import HttpRefusal, HttpRequest
from qmq.protocols.http.gateway.avro import AVRO, messages_in
from qmq.protocols.http.gateway.avro_reader import MAGIC, VALUES_PER_RECORD
from qmq.protocols.http.gateway.bodies import MESSAGES_MAX, Batch, BatchMessage, Value, checked
from qmq.wire.stomp import Frame, Head, Limits, Version

CHECKED_BYTES: Final = 1 << 20
"""In a larger batch the values are counted before it is parsed: 16 MiB of empty lists would take 400 MB."""

NESTED_MAX: Final = 2 * MESSAGES_MAX + 2
"""Objects and lists: of each message, and its headers."""

VALUES_MAX: Final = VALUES_PER_RECORD * MESSAGES_MAX

JSON: Final = "application/json"

FRAME_BYTES: Final = 400
"""Of memory, for one message of a batch besides its body; VALUE_BYTES for each of its headers, and their characters."""

VALUE_BYTES: Final = 100

TEXT: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)

TRANSACTION: Final = "http"
RECEIPT: Final = "http"
"""A connection has one request at a time, so one name of each is enough."""

OPTIONS: Final[Mapping[str, str]] = {
    "content_type": "content-type",
    "correlation_id": "correlation-id",
    "dedup_id": "dedup-id",
    "delay": "delay",
    "expires": "expires",
    "group": "JMSXGroupID",
    "mandatory": "mandatory",
    "persistent": "persistent",
    "priority": "priority",
    "receipt_level": "receipt-level",
    "reply_to": "reply-to",
    "retain": "retain",
    "retry": "redelivered",
    "routing_keys": ROUTING_KEYS,
    "ttl": "ttl",
}
"""Member of a message in JSON → header of SEND. The header of a request is `Qmq-` and the member, with hyphens."""

FLAGS: Final = ("mandatory", "persistent", "redelivered")
"""Options that are true or false."""

OF_BODY: Final = ("content-type", "content-encoding")
"""Headers of a request that say what the body of the message is."""

HEADER_PREFIX: Final = "qmq-header-"
LEVEL: Final = "qmq-receipt-level"

BY_HEADER: Final[Mapping[str, str]] = {f"qmq-{name.replace('_', '-')}": header for name, header in OPTIONS.items()}
BODIES: Final = ("body", "body_base64")
NOT_HERE: Final = OWN_HEADERS | {"dedup-sender"}

Headers = dict[str, str]


def is_batch(request: HttpRequest) -> bool:
    """Whether the body must be read to know what the request is. Raises HttpRefusal for a bad `Qmq-Batch`."""
    said = request.headers.get("qmq-batch")
    if said is not None:
        if said not in ("true", "false"):
            raise HttpRefusal(400, "bad-header", "The header Qmq-Batch is true or false.")
        return said == "true"
    return _media_type(request) == JSON or _is_avro(request)


def _is_avro(request: HttpRequest) -> bool:
    """Whether the body is an Avro file, unless a header says that it is a message by itself."""
    return _media_type(request) == AVRO and request.body.startswith(MAGIC)


def sends_of(request: HttpRequest, destination: str, limits: Limits, known: Head | None = None) -> list[Command]:
    """The commands of the request: one SEND, or those of a batch in one transaction. `limits` are those of STOMP,
    `known` is as for `single_of`.

    Raises Refused, HttpRefusal.
    """
    if is_batch(request):
        batch = _batch_of(request)
        if batch is not None:
            _take_headers(request, batch)
            return _sends_of_batch(batch, destination, limits)
    return [single_of(request, destination, limits, known)]


def held_bytes(commands: Sequence[Command]) -> int:
    """The memory that the commands of a batch take besides their bodies, which count with their transaction."""
    heads = {id(one.head): one.head for one in commands if isinstance(one, Frame)}
    values = [VALUE_BYTES + len(name) + len(value) for head in heads.values() for name, value in head.headers.items()]
    return FRAME_BYTES * len(commands) + sum(values)


def single_of(request: HttpRequest, destination: str, limits: Limits, known: Head | None = None) -> Frame:
    """The SEND of a request whose body is the message. `known` is that of an earlier request with an equal head, which
    has the plan of the SEND with it. Raises Refused.
    """
    _check_body(request.body, limits)
    if known is not None:
        return Frame(known, request.body, RECEIPT)
    headers = _headers_of_request(request, destination)
    _check_headers(headers, limits)
    _check_options({BY_HEADER[name]: value for name, value in request.headers.items() if name in BY_HEADER})
    return Frame(Head("SEND", headers, Version.V12), request.body, RECEIPT)


def _batch_of(request: HttpRequest) -> dict[str, Any] | None:
    """The batch in the body; None when the body is a message by itself."""
    if _is_avro(request):
        return {"messages": messages_in(request.body, MESSAGES_MAX)}
    _check_values(request.body)
    batch: object = None
    try:
        # Of bytes, `json` would read UTF-16, too, whose values were not counted.
        batch = json.loads(request.body.decode())
    except RecursionError:
        pass  # Deeper than any batch.
    except ValueError as error:
        if "qmq-batch" not in request.headers:
            raise Refused(
                "bad-body",
                f"The body is no JSON, which its content-type says: {error}",
                "It may have been cut. Qmq-Batch: false says that it is one message as it is.",
            ) from None
    is_one = isinstance(batch, dict) and isinstance(batch.get("messages"), list)
    if is_one and batch.keys() <= {"messages", "receipt_level"}:  # type: ignore[attr-defined]
        return batch  # type: ignore[return-value]
    if "qmq-batch" not in request.headers:
        return None
    raise Refused("bad-body", 'A batch is {"messages": [{"body": …}, …]} in JSON, with receipt_level if that is asked.')


def _take_headers(request: HttpRequest, batch: dict[str, Any]) -> None:
    """The receipt level of a batch may be in a header: an Avro file has no place for it. Raises Refused."""
    for name, value in request.headers.items():
        if name == LEVEL:
            batch.setdefault("receipt_level", value)
        elif name.startswith("qmq-") and name != "qmq-batch":
            raise Refused(
                "bad-header",
                f"A batch has its options in its messages, not in the header {name}.",
                "Qmq-Batch: false says that the body is one message.",
            )


def _check_values(body: bytes) -> None:
    """Refuse a large body with more values than a batch may have."""
    if len(body) <= CHECKED_BYTES or _has_few_values(body) or _has_few_values(TEXT.sub(b"", body)):
        return
    raise Refused(
        "bad-body",
        f"A batch has at most {VALUES_MAX} values, {NESTED_MAX} of them objects and lists.",
        "Qmq-Batch: false says that the body is one message.",
    )


def _has_few_values(text: bytes) -> bool:
    return text.count(b"{") + text.count(b"[") <= NESTED_MAX and text.count(b",") <= VALUES_MAX


def _sends_of_batch(batch: dict[str, Any], destination: str, limits: Limits) -> list[Command]:
    messages = batch["messages"]
    if not 1 <= len(messages) <= MESSAGES_MAX:
        raise Refused("bad-body", f"A batch has 1 to {MESSAGES_MAX} messages.")
    level = None
    if "receipt_level" in batch:
        checked({"messages": [{}], "receipt_level": batch["receipt_level"]}, Batch)
        level = _text(batch["receipt_level"])
    sends: list[Command] = [Begin(TRANSACTION)]
    heads: dict[tuple[tuple[str, str], ...], Head] = {}
    plain = Head("SEND", {"destination": destination, "transaction": TRANSACTION}, Version.V12)
    for number, message in enumerate(messages):
        try:
            if isinstance(message, dict) and len(message) == 1 and isinstance(message.get("body"), str | bytes):
                body = _body("body", message["body"])
                _check_body(body, limits)
                sends.append(Frame(plain, body, None))
                continue
            headers, body = _message_of(message, destination)
            _check_body(body, limits)
            key = tuple(headers.items())
            head = heads.get(key)
            if head is None:
                _check_headers(headers, limits)
                _check_options({OPTIONS[name]: headers[OPTIONS[name]] for name in message if name in OPTIONS})
                head = heads[key] = Head("SEND", headers, Version.V12)
        except Refused as refused:
            raise Refused(refused.code, f"messages[{number}]: {refused.message}") from None
        sends.append(Frame(head, body, None))
    return [*sends, Commit(TRANSACTION, RECEIPT, level)]


def _message_of(message: Any, destination: str) -> tuple[Headers, bytes]:
    body = message.get("body") if isinstance(message, dict) else None
    checked({**message, "body": ""} if isinstance(body, bytes) else message, BatchMessage)
    headers: Headers = {"destination": destination, "transaction": TRANSACTION}
    body = b""
    if all(name in message for name in BODIES):
        raise Refused("bad-body", "A message has body or body_base64, not both.")
    for name, value in message.items():
        if name in BODIES:
            body = _body(name, value)
        elif name == "headers":
            headers |= _own_headers(value)
        else:
            headers[OPTIONS[name]] = json.dumps(value) if isinstance(value, list) else _text(value)
    return headers, body


def _body(name: str, value: str | bytes) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return value.encode() if name == "body" else base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        problem = "has a surrogate by itself" if name == "body" else "is not base64"
        raise Refused("bad-body", f"The member {name} {problem}.") from None


def _own_headers(value: Mapping[str, Value]) -> Headers:
    for name in value:
        _check_name(name)
    return {name: _text(one) for name, one in value.items()}


def _headers_of_request(request: HttpRequest, destination: str) -> Headers:
    headers: Headers = {"destination": destination}
    for name, value in request.headers.items():
        if name.startswith(HEADER_PREFIX):
            own = name.removeprefix(HEADER_PREFIX)
            _check_name(own)
            headers[own] = value
        elif name in BY_HEADER:
            headers[BY_HEADER[name]] = value
        elif name in OF_BODY:
            headers[name] = value
        elif name.startswith("qmq-") and name != "qmq-batch":
            known = ", ".join(BY_HEADER)
            raise Refused("bad-header", f"There is no header {name}; headers are Qmq-Header-NAME, {known}.")
    return headers


def _check_name(name: str) -> None:
    if not name or name in NOT_HERE:
        raise Refused("bad-header", f"The header {name!r} is the node's own; options have names of their own.")


def _check_headers(headers: Headers, limits: Limits) -> None:
    """Refuse what a STOMP client could not send, and perhaps not read."""
    sizes = [len(f"{name}:{value}".encode(errors="replace")) for name, value in headers.items()]
    if len(sizes) > limits.header_count_max:
        raise Refused("too-many-headers", f"A message has at most {limits.header_count_max} headers.")
    if max(sizes) > limits.header_line_bytes_max:
        raise Refused("header-line-too-long", f"A header has at most {limits.header_line_bytes_max} bytes.")
    if sum(sizes) > limits.header_bytes_max:
        raise Refused("headers-too-large", f"The headers of a message have at most {limits.header_bytes_max} bytes.")


def _check_options(options: Headers) -> None:
    """Refuse a value that has no meaning, also where the destination has no use for the option. Raises Refused."""
    # As lines of headers, in which only what is refused later may be another character.
    lines = [f"{name}:{value}".replace("\n", " ") for name, value in options.items()]
    check_options("\n".join(lines).encode(errors="replace"))
    retain(options, False)
    for name in FLAGS:
        truth(options, name, False)


def _check_body(body: bytes, limits: Limits) -> None:
    if len(body) > limits.body_bytes_max:
        raise Refused("body-too-large", f"The body of a message has at most {limits.body_bytes_max} bytes.")


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _media_type(request: HttpRequest) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
