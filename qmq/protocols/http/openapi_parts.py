"""The parts that operations of the API share (`openapi`): message options, parameters, and schemas of bodies."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from qmq.protocols.http.gateway.pulls import ACK_TIMEOUT_SECONDS_MAX, ACKS_MAX, RECEIVE_MAX, WAIT_SECONDS_MAX
from qmq.protocols.http.gateway.sends import MESSAGES_MAX

Json = dict[str, Any]

TEXT: Final = "application/json"
BYTES: Final = "application/octet-stream"
STREAM: Final = "text/event-stream"


def value_of(type: str | list[str], about: str = "", **more: Any) -> Json:
    """A value in JSON Schema."""
    return {"type": type, **more, **({"description": about} if about else {})}


def object_of(properties: Json, required: Sequence[str] = (), **more: Any) -> Json:
    needed = {"required": list(required)} if required else {}
    return {"type": "object", **needed, "properties": properties, **more}


def list_of(items: Json, **more: Any) -> Json:
    return value_of("array", items=items, **more)


def ref(kind: str, *names: str) -> list[Json]:
    return [{"$ref": f"#/components/{kind}/{name}"} for name in names]


def content(schema: Json | str, media: str = TEXT) -> Json:
    """`schema` may be the name of one of SCHEMAS."""
    return {"content": {media: {"schema": ref("schemas", schema)[0] if isinstance(schema, str) else schema}}}


def body(schema: Json | str, media: str = TEXT) -> Json:
    return {"required": True, **content(schema, media)}


def response(about: str, schema: Json | str | None = None, media: str = TEXT, **more: Any) -> Json:
    return {"description": about, **({} if schema is None else content(schema, media)), **more}


def parameter(name: str, place: str, about: str, schema: Json) -> Json:
    needed = {"required": True} if place == "path" else {}
    return {"name": name, "in": place, **needed, "description": about, "schema": schema}


OPTIONS: Final[Mapping[str, Json]] = {
    "correlation_id": value_of("string", "Travels with the message."),
    "dedup_id": value_of("string", "A message that is sent again with the same id is accepted once."),
    "delay": value_of("integer", "Milliseconds until the message may be delivered.", minimum=0),
    "expires": value_of("integer", "Milliseconds since 1970 at which the message is dropped.", minimum=0),
    "group": value_of("string", "Messages of one group go to one consumer, in order."),
    "mandatory": value_of("boolean", "Refuse a message that no binding of the exchange takes."),
    "persistent": value_of("boolean", "False keeps a queue message in memory only."),
    "priority": value_of("integer", "9 is delivered first.", minimum=0, maximum=9),
    "reply_to": value_of("string", "Travels with the message."),
    "retain": value_of(
        "string", "Keep the message as last value of its topic, or remove that.", enum=["set", "remove"]
    ),
    "retry": value_of("boolean", "The message with this dedup id was sent before, perhaps to another node."),
    "routing_keys": value_of(
        ["array", "string"],
        "Further routing keys of a message to an exchange, or further queues. In a header it is a JSON array.",
        items=value_of("string"),
        maxItems=100,
    ),
    "ttl": value_of("integer", "Milliseconds until the message is dropped.", minimum=0),
}
"""Members of a message in a batch, which are headers of a request with one message as well."""


def _header_of(option: str) -> tuple[str, Json]:
    """The header of an option, and its name among the parameters."""
    schema = dict(OPTIONS[option])
    about = schema.pop("description")
    if "array" in schema["type"]:
        # OpenAPI would separate the items of a header with commas.
        schema = value_of("string")
    words = option.title().replace("_", "-")
    return f"Qmq{words.replace('-', '')}Header", parameter(f"Qmq-{words}", "header", about, schema)


OPTION_HEADERS: Final = dict(map(_header_of, OPTIONS))

PARAMETERS: Final[Json] = {
    "QmqCsrfHeader": parameter(
        "X-Qmq-Csrf",
        "header",
        "Needed with the cookie of a login, but for GET: the token that GET /v1/console/login shows.",
        value_of("string"),
    ),
    **OPTION_HEADERS,
    "QmqReceiptLevelHeader": parameter(
        "Qmq-Receipt-Level",
        "header",
        "How many disks have the message before the response: accepted, fsync, replicas=1 …",
        value_of("string"),
    ),
    "QmqBatchHeader": parameter(
        "Qmq-Batch",
        "header",
        "Whether the body is a batch. By default it is one if it is JSON of that form.",
        value_of("string", enum=["true", "false"]),
    ),
    "Key": parameter("key", "query", "Routing key.", value_of("string")),
    "Selector": parameter("selector", "query", "SQL-92 subset over headers.", value_of("string")),
    "BufferMessages": parameter(
        "buffer_messages", "query", "How many messages may wait for a slow reader.", value_of("integer", minimum=1)
    ),
    "BufferBytes": parameter("buffer_bytes", "query", "How many bytes may wait.", value_of("integer", minimum=1)),
    "Overflow": parameter(
        "overflow",
        "query",
        "What happens beyond that.",
        value_of("string", enum=["disconnect", "drop-oldest", "drop-newest"]),
    ),
    "From": parameter("from", "query", "Where a new stream begins.", value_of("string", enum=["next", "first"])),
    "After": parameter("after", "query", "Continue after the event with this id.", value_of("string")),
    "LastEventIdHeader": parameter(
        "Last-Event-ID", "header", "As after; EventSource sends it when it connects again.", value_of("string")
    ),
    "Session": parameter(
        "session", "path", "The session, as the node has named it.", value_of("string", pattern="^[0-9a-f]{32}$")
    ),
    "Scope": parameter("scope", "query", "Ask this node, or all.", value_of("string", enum=["node", "mesh"])),
}

SCHEMAS: Final[Json] = {
    "Login": object_of(
        {
            "node": value_of("string"),
            "user": value_of(["string", "null"], "null: without a login."),
            "csrf": value_of(["string", "null"], "For the header X-Qmq-Csrf; null: no login by cookie."),
            "seconds_left": value_of("integer", "Until a login by cookie ends whatever happens."),
        },
        ["node", "user", "csrf"],
    ),
    "LoggedOut": object_of({"node": value_of("string"), "user": value_of("null")}, ["node", "user"]),
    "Error": object_of(
        {
            "code": value_of("string", "Stable, for programs."),
            "message": value_of("string"),
            "detail": value_of("string"),
        },
        ["code", "message"],
    ),
    "Message": object_of(
        {
            "body": value_of("string"),
            "body_base64": value_of("string", contentEncoding="base64"),
            "headers": value_of("object", additionalProperties=value_of(["string", "integer", "boolean"])),
            "content_type": value_of("string", "Travels with the message."),
            **OPTIONS,
        },
        additionalProperties=False,
    ),
    "Batch": object_of(
        {
            "messages": list_of(ref("schemas", "Message")[0], minItems=1, maxItems=MESSAGES_MAX),
            "receipt_level": value_of("string"),
        },
        ["messages"],
        additionalProperties=False,
    ),
    "Sent": object_of(
        {
            "messages": list_of(
                object_of(
                    {
                        "id": value_of(
                            ["string", "null"],
                            "Null for a duplicate, and where an exchange has copied the message nowhere.",
                        ),
                        "copies": value_of("integer", "Disks that have it.", minimum=0),
                        "duplicate": value_of("boolean"),
                    },
                    ["id", "copies", "duplicate"],
                )
            )
        },
        ["messages"],
    ),
    "Receive": object_of(
        {
            "max": value_of("integer", minimum=1, maximum=RECEIVE_MAX, default=1),
            "wait_seconds": value_of("number", minimum=0, maximum=int(WAIT_SECONDS_MAX), default=0),
            "ack_timeout_seconds": value_of("number", minimum=1, maximum=int(ACK_TIMEOUT_SECONDS_MAX), default=30),
            "selector": value_of("string"),
        },
        additionalProperties=False,
    ),
    "Received": object_of(
        {
            "messages": list_of(
                object_of(
                    {
                        "id": value_of("string"),
                        "ack_token": value_of("string"),
                        "destination": value_of("string"),
                        "headers": value_of("object", additionalProperties=value_of("string")),
                        "content_type": value_of("string"),
                        "body": value_of("string"),
                        "body_base64": value_of("string"),
                        "redelivered": value_of("boolean"),
                        "delivery_count": value_of("integer", minimum=1),
                    },
                    ["id", "ack_token", "destination", "headers", "redelivered", "delivery_count"],
                )
            )
        },
        ["messages"],
    ),
    "Acks": object_of(
        {
            "acks": list_of(
                object_of(
                    {
                        "ack_token": value_of("string"),
                        "action": value_of("string", enum=["ack", "nack", "extend"], default="ack"),
                        "requeue": value_of("boolean", default=True),
                    },
                    ["ack_token"],
                    additionalProperties=False,
                ),
                minItems=1,
                maxItems=ACKS_MAX,
            )
        },
        ["acks"],
        additionalProperties=False,
    ),
    "Session": object_of(
        {
            "session": value_of("string"),
            "idle_seconds": value_of("integer", "Without a request for so long, the session ends."),
            "wait_seconds_max": value_of("integer"),
        },
        ["session", "idle_seconds", "wait_seconds_max"],
    ),
    "AckResults": object_of(
        {
            "acks": list_of(
                object_of(
                    {
                        "ack_token": value_of("string"),
                        "result": value_of(
                            "string", enum=["acknowledged", "requeued", "extended", "expired", "unreachable"]
                        ),
                    },
                    ["ack_token", "result"],
                )
            )
        },
        ["acks"],
    ),
}
