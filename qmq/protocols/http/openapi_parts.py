"""The parts that operations of the API share (`openapi`): parameters, and the schemas of the types of bodies."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from qmq.protocols.http.gateway.bodies import BODIES
from qmq.protocols.http.gateway.sends import OPTIONS as SENDS

Json = dict[str, Any]

TEXT: Final = "application/json"
BYTES: Final = "application/octet-stream"
STREAM: Final = "text/event-stream"


def value_of(type: str | list[str], about: str = "", **more: Any) -> Json:
    """A value in JSON Schema."""
    return {"type": type, **more, **({"description": about} if about else {})}


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


_, SCHEMAS = msgspec.json.schema_components(BODIES, ref_template="#/components/schemas/{name}")
for _schema in (*SCHEMAS["BatchMessage"]["properties"].values(), SCHEMAS["Batch"]["properties"]["receipt_level"]):
    if "type" in _schema:
        _schema.pop("anyOf", None)  # What the node reads; the type is what a client should send.

OPTIONS: Final[Mapping[str, Json]] = {
    name: schema
    for name, schema in SCHEMAS["BatchMessage"]["properties"].items()
    if name in SENDS and name != "content_type"
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
}
