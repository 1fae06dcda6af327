"""The bodies of requests and responses, as types: what is read is checked by them, and `openapi` is made from them.

Bounds and descriptions are in the annotations. What is wrong is refused with `bad-body` and the place where it is, such
as `acks[1].action`.
"""

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from qmq.errors import Refused

MESSAGES_MAX: Final = 10_000
"""Of one batch. It is decided and written as a whole."""

RECEIVE_MAX: Final = 1000
"""Messages of one response."""

WAIT_SECONDS_MAX: Final = 60.0
ACK_TIMEOUT_SECONDS: Final = 30.0
ACK_TIMEOUT_SECONDS_MAX: Final = 43_200.0
"""Twelve hours, as long as other services allow."""

ACKS_MAX: Final = 1000
"""Of one request."""

Body = TypeVar("Body")
Value = str | int | bool
"""Of an option in JSON: the broker reads it as the text of a header."""


def _option(about: str, type: str = "string", **more: Any) -> Meta:
    """An option of a message: how it is described. Its value is checked as a header."""
    return Meta(description=about, extra_json_schema={"type": type, **more})


class BatchMessage(Struct, forbid_unknown_fields=True):
    """One message of a batch. Its options are headers of a request with one message as well."""

    body: str | UnsetType = UNSET
    body_base64: Annotated[str, Meta(extra_json_schema={"contentEncoding": "base64"})] | UnsetType = UNSET
    headers: dict[str, Value] | UnsetType = UNSET
    content_type: Annotated[Value, _option("Travels with the message.")] | UnsetType = UNSET
    correlation_id: Annotated[Value, _option("Travels with the message.")] | UnsetType = UNSET
    dedup_id: (
        Annotated[Value, _option("A message that is sent again with the same id is accepted once.")] | UnsetType
    ) = UNSET
    delay: (
        Annotated[Value, _option("Milliseconds until the message may be delivered.", "integer", minimum=0)] | UnsetType
    ) = UNSET
    expires: (
        Annotated[Value, _option("Milliseconds since 1970 at which the message is dropped.", "integer", minimum=0)]
        | UnsetType
    ) = UNSET
    group: Annotated[Value, _option("Messages of one group go to one consumer, in order.")] | UnsetType = UNSET
    mandatory: (
        Annotated[
            Value,
            _option(
                "Refuse a message that no binding of the exchange takes, or whose queue does not exist.", "boolean"
            ),
        ]
        | UnsetType
    ) = UNSET
    persistent: Annotated[Value, _option("False keeps a queue message in memory only.", "boolean")] | UnsetType = UNSET
    priority: Annotated[Value, _option("9 is delivered first.", "integer", minimum=0, maximum=9)] | UnsetType = UNSET
    reply_to: Annotated[Value, _option("Travels with the message.")] | UnsetType = UNSET
    retain: (
        Annotated[
            Value,
            _option("Keep the message as last value of its topic, or remove that.", enum=["set", "remove"]),
        ]
        | UnsetType
    ) = UNSET
    retry: (
        Annotated[Value, _option("The message with this dedup id was sent before, perhaps to another node.", "boolean")]
        | UnsetType
    ) = UNSET
    routing_keys: (
        Annotated[
            list[Any] | Value,
            Meta(
                description="Further routing keys of a message to an exchange, or further queues. In a header it is a "
                "JSON array.",
                extra_json_schema={"type": ["array", "string"], "maxItems": 100},
            ),
        ]
        | UnsetType
    ) = UNSET
    ttl: Annotated[Value, _option("Milliseconds until the message is dropped.", "integer", minimum=0)] | UnsetType = (
        UNSET
    )


class Batch(Struct, forbid_unknown_fields=True):
    """Messages that are accepted as a whole or not at all."""

    messages: Annotated[list[BatchMessage], Meta(min_length=1, max_length=MESSAGES_MAX)]
    receipt_level: Annotated[Value, _option("As the header Qmq-Receipt-Level.")] | UnsetType = UNSET


class Receive(Struct, forbid_unknown_fields=True):
    """What a client wants to receive."""

    max: Annotated[int, Meta(ge=1, le=RECEIVE_MAX)] = 1
    wait_seconds: Annotated[float, Meta(ge=0, le=WAIT_SECONDS_MAX)] = 0.0
    ack_timeout_seconds: Annotated[float, Meta(ge=1, le=ACK_TIMEOUT_SECONDS_MAX)] = ACK_TIMEOUT_SECONDS
    selector: str | None = None


Action = Literal["ack", "nack", "extend"]


class AckBody(Struct, forbid_unknown_fields=True):
    """What is to be done with one delivery."""

    ack_token: Annotated[str, Meta(description="The text from a receive.")]
    action: Action = "ack"
    requeue: bool = True


class AcksBody(Struct, forbid_unknown_fields=True):
    acks: Annotated[list[AckBody], Meta(min_length=1, max_length=ACKS_MAX)]


class SentMessage(TypedDict):
    id: Annotated[
        str | None, Meta(description="Null for a duplicate, and where an exchange has copied the message nowhere.")
    ]
    copies: Annotated[int, Meta(description="Disks that have it.", ge=0)]
    duplicate: bool


class Sent(TypedDict):
    messages: list[SentMessage]


class ReceivedMessage(TypedDict):
    id: str
    ack_token: str
    destination: str
    headers: dict[str, str]
    content_type: NotRequired[str]
    body: NotRequired[str]
    body_base64: NotRequired[str]
    redelivered: bool
    delivery_count: Annotated[int, Meta(ge=1)]


class Received(TypedDict):
    messages: list[ReceivedMessage]


class AckResult(TypedDict):
    ack_token: str
    result: Literal["acknowledged", "requeued", "rejected", "extended", "expired", "unreachable"]


class AckResults(TypedDict):
    acks: list[AckResult]


class LoginState(TypedDict):
    node: str
    user: Annotated[str | None, Meta(description="null: without a login.")]
    csrf: Annotated[str | None, Meta(description="For the header X-Qmq-Csrf; null: no login by cookie.")]
    seconds_left: NotRequired[Annotated[int, Meta(description="Until a login by cookie ends whatever happens.")]]


class LoggedOut(TypedDict):
    node: str
    user: None


class Session(TypedDict):
    session: str
    idle_seconds: Annotated[int, Meta(description="Without a request for so long, the session ends.")]
    wait_seconds_max: int


class Error(TypedDict):
    code: Annotated[str, Meta(description="Stable, for programs.")]
    message: str
    detail: NotRequired[str]


BODIES: Final = (Batch, Receive, AcksBody, Sent, Received, AckResults, LoginState, LoggedOut, Session, Error)


def read_body(body: bytes, type: Callable[..., Body]) -> Body:
    """A body in JSON; an empty one is an empty object. Raises Refused."""
    try:
        value = msgspec.json.decode(body or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Refused("bad-body", "The body is no JSON object.") from None
    if isinstance(value, dict):
        # JSON knows only numbers.
        value = {name: int(one) if isinstance(one, float) and one.is_integer() else one for name, one in value.items()}
    return checked(value, type)


def checked(value: object, type: Callable[..., Body]) -> Body:
    """`value` of JSON as this type. Raises Refused."""
    try:
        return msgspec.convert(value, type)  # type: ignore[no-any-return]
    except msgspec.ValidationError as error:
        rule, _, place = str(error).partition(" - at `$")
        place = place.rstrip("`").removeprefix(".")
        raise Refused("bad-body", f"{place}: {rule}." if place else f"{rule}.") from None
