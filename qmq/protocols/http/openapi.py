"""`GET /v1/openapi.json`: the description of the API in OpenAPI 3.1.

The paths of destinations come from the table of routes. Every operation has the two responses for errors; here are the
others.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Final

import msgspec

from qmq.protocols.http.gateway.routes import ACTIONS, KINDS
from qmq.protocols.http.openapi_parts import (
    BYTES,
    OPTION_HEADERS,
    PARAMETERS,
    SCHEMAS,
    STREAM,
    TEXT,
    Json,
    body,
    content,
    parameter,
    ref,
    response,
    value_of,
)
from qmq.protocols.http.stomp.long_poll import WAIT_SECONDS_MAX as LONG_POLL_SECONDS_MAX
from qmq.verbs.lists import QueuePage
from qmq.verbs.table import VERBS
from qmq.verbs.verb import Option, Verb, options_of

CONTROLS: Final = r"\u0000-\u001f\u007f-\u009f"
NAMES: Final[Mapping[str, Json]] = {
    # Patterns of other languages have no class of printable characters: the server refuses some more.
    "topic": {"minLength": 1, "maxLength": 240, "pattern": f"^[^{CONTROLS}]+$"},
    "exchange": {"minLength": 1, "maxLength": 127, "pattern": rf"^[^/*#\s{CONTROLS}]+$"},
}
NAME: Final[Json] = {"minLength": 1, "maxLength": 240, "pattern": f"^[^*#{CONTROLS}]+$"}
SCHEMA_NAME: Final[Json] = {"minLength": 1, "maxLength": 127, "pattern": "^[A-Za-z0-9_][A-Za-z0-9_.-]*$"}
PUBLIC: Final[Json] = {"security": []}
"""An operation that needs no login."""

SETTLING: Final[Json] = {
    "settle": {
        "operationId": "settle",
        "requestBody": {"acks": [{"ack_token": "$response.body#/messages/0/ack_token", "action": "ack"}]},
    }
}
IN_SESSION: Final[Json] = {
    id: {"operationId": id, "parameters": {"session": "$response.body#/session"}}
    for id in ("send_frames", "receive_frames", "end_session")
}

RECEIVE: Final = (
    "The messages stay with the client until they are settled with their ack tokens, or until the ack timeout."
)
LOGIN_NOW: Final = "The login of the client, and the token that requests of a browser with the cookie need."
FOLLOW: Final = (
    "Follow the overview of the mesh: an event `overview` every two seconds, with the JSON of /v1/control/overview."
)
SEND: Final = (
    "The body is the message, or a batch in JSON. The response is sent when all messages are as durable as asked. "
    "A batch is accepted as a whole or not at all. Headers Qmq-Header-NAME travel as headers of the message."
)


def _operation(id: str, summary: str, responses: Json, **more: Any) -> Json:
    error = ref("responses", "Error")[0]
    return {"operationId": id, "summary": summary, **more, "responses": {**responses, "4XX": error, "5XX": error}}


def _ok(about: str, schema: Json | str, media: str = TEXT, **more: Any) -> Json:
    return {"200": response(about, schema, media, **more)}


def _destination(kind: str) -> Json:
    about = f"Name of the {kind}, of printable characters, but not . and ..; a slash in it is written %2F."
    return parameter("name", "path", about, value_of("string", **NAMES.get(kind, NAME)))


def _send(kind: str) -> Json:
    key = ["Key"] if kind == "exchange" else []
    headers = [*key, *OPTION_HEADERS, "QmqReceiptLevelHeader", "QmqBatchHeader"]
    media: Json = {"avro/binary": {"schema": {}}, BYTES: {"schema": {}}}
    batch = content({"anyOf": [*ref("schemas", "Batch"), {}]})["content"]
    return _operation(
        f"send_{kind}",
        f"Send one message, or a batch, to {'an' if kind == 'exchange' else 'a'} {kind}.",
        {"201": response("Accepted.", "Sent")},
        description=SEND,
        parameters=[_destination(kind), *ref("parameters", *headers)],
        requestBody={"required": True, "content": {**batch, **media}},
    )


def _follow(kind: str) -> Json:
    """The stream of events of a topic, a fanout, or a system topic."""
    summary = f"Follow a {kind} as server-sent events."
    parameters = [_destination(kind), *ref("parameters", "Selector", "BufferMessages", "BufferBytes", "Overflow")]
    if kind == "fanout":
        parameters += ref("parameters", "From", "After", "LastEventIdHeader")
    elif kind == "system":
        summary = "Follow a system topic, such as audit, as server-sent events."
        names = value_of("string", enum=["events", "peers", "audit"])
        parameters = [parameter("name", "path", "events, peers or audit.", names)]
    stream = _ok("A stream that ends with the connection.", value_of("string"), STREAM)
    return _operation(f"events_{kind}", summary, stream, parameters=parameters)


def _probe(id: str, summary: str) -> Json:
    answers = {"200": response("Yes.", value_of("object")), "503": response("No.", value_of("object"))}
    return _operation(id, summary, answers, **PUBLIC)


def _login(about: str, schema: str, cookie: str) -> Json:
    """A response that changes the cookie."""
    return _ok(about, schema, headers={"Set-Cookie": {"description": cookie, "schema": value_of("string")}})


def _requests_of(verb: type[Verb]) -> dict[str, Json]:
    """The requests of a control verb: one for each kind of destinations, and for what may be left out."""
    method = "post" if verb.changes or verb.takes_body else "get"
    options = [
        parameter(name.replace("-", "_"), "query", *schema_of(option)) for name, option in options_of(verb).items()
    ]
    more: Json = {"requestBody": content({})} if verb.takes_body else {}
    done = _ok("What was done." if verb.changes else "The facts.", value_of("object"))
    found: dict[str, Json] = {}
    forms = [verb.form.replace("|".join(verb.kinds()), kind) for kind in verb.kinds()] or [verb.form]
    if "[" in verb.form:
        forms = [verb.word(), re.sub(r"\[?/\[?(\w+)\]", r"/\1", verb.form)]
    for form in forms:
        names = re.findall(r"\b[A-Z][A-Z-]*", form)
        words = [word.lower().replace("-", "_") for word in names]
        for name, word in zip(names, words, strict=True):
            form = form.replace(name, f"{{{word}}}")
        which = form.removeprefix(verb.word()).removesuffix("/{name}" * bool(verb.kinds())) if len(forms) > 1 else ""
        id = re.sub(r"\W+", "_", f"{verb.word()}{which}").strip("_")
        where = [parameter(word, "path", "", value_of("string")) for word in words]
        found[f"{method} /v1/control/{form}"] = _operation(
            id, verb.summary(), done, parameters=[*where, *options], **more
        )
    return found


def schema_of(option: Option) -> tuple[str, Json]:
    """The description of an option of a verb, and its schema."""
    schema = msgspec.json.schema(Annotated[option.kind, option.meta])
    return schema.pop("description"), schema


def _requests() -> dict[str, Json]:
    """Method and path → operation."""
    anything: Json = {}
    text, some = value_of("string"), value_of("object")
    csrf = ref("parameters", "QmqCsrfHeader")
    wait = value_of("integer", minimum=0, maximum=LONG_POLL_SECONDS_MAX, default=30)
    begun = response("The session has begun; the client logs in with CONNECT.", "Session", links=IN_SESSION)
    found = {f"post /v1/{kind}/{{name}}/messages": _send(KINDS[kind]) for kind in ACTIONS["messages"][2]}
    found |= {f"get /v1/{kind}/{{name}}/events": _follow(KINDS[kind]) for kind in ACTIONS["events"][2]}
    verbs: list[type[Verb]] = [QueuePage, *VERBS.values()]
    for verb in verbs:
        found |= _requests_of(verb)
    return found | {
        "post /v1/queues/{name}/receive": _operation(
            "receive",
            "Receive messages of a queue.",
            _ok("The messages; none if there are none in time.", "Received", links=SETTLING),
            description=RECEIVE,
            parameters=[_destination("queue")],
            requestBody=content("Receive"),
        ),
        "post /v1/acks": _operation(
            "settle",
            "Settle received messages, or extend their time, on any node.",
            _ok("One result for each token.", "AckResults"),
            requestBody=body("AcksBody"),
        ),
        "get /v1/schemas/message.avsc": _operation(
            "schema", "The Avro schema of messages.", _ok("Avro 1.11.", some), **PUBLIC
        ),
        "get /v1/schemas/{name}": _operation(
            "defined_schema",
            "An Avro schema that the mesh defines.",
            _ok("Avro 1.11.", some),
            parameters=[parameter("name", "path", "Name of the schema.", value_of("string", **SCHEMA_NAME))],
        ),
        "post /v1/stomp": _operation(
            "begin_session",
            "Begin a session of STOMP over requests, for clients without WebSocket.",
            {"201": begun},
            description="Without Authorization it needs a content type, such as that of an empty object in JSON.",
            requestBody=content(anything),
        ),
        "post /v1/stomp/{session}": _operation(
            "send_frames",
            "Send frames of STOMP, or parts of them.",
            {"204": response("The session has the bytes.")},
            requestBody=body(anything, BYTES),
        ),
        "get /v1/stomp/{session}": _operation(
            "receive_frames",
            "Receive frames of STOMP; one request at a time.",
            {**_ok("Whole frames.", anything, BYTES), "204": response("There was none.")},
            parameters=[parameter("wait_seconds", "query", "How long to wait for a first frame.", wait)],
        ),
        "delete /v1/stomp/{session}": _operation(
            "end_session", "End the session, as the end of a connection does.", {"204": response("It has ended.")}
        ),
        "get /v1/console/login": _operation("login_now", LOGIN_NOW, _ok("The login.", "LoginState")),
        "post /v1/console/login": _operation(
            "log_in",
            "Log a browser in: Authorization becomes a cookie of this node.",
            _login("The login.", "LoginState", "HttpOnly, SameSite=Strict."),
            security=[{"basic": []}, {"bearer": []}],
            parameters=csrf,
        ),
        "post /v1/console/logout": _operation(
            "log_out",
            "End the login of the browser, and take its cookie away.",
            _login("There is no login any more.", "LoggedOut", "Empty."),
            parameters=csrf,
            requestBody=content(anything),
        ),
        "get /v1/console/events": _operation(
            "events_console", FOLLOW, _ok("A stream that ends with the connection or the login.", text, STREAM)
        ),
        "get /v1/openapi.json": _operation("openapi", "This description.", _ok("OpenAPI 3.1.", some), **PUBLIC),
        "get /metrics": _operation(
            "metrics", "Metrics in the text format of Prometheus.", _ok("The page.", text, "text/plain")
        ),
        "get /livez": _probe("livez", "Whether the node works."),
        "get /readyz": _probe("readyz", "Whether clients should be sent to this node."),
    }


def _tag_of(path: str) -> str:
    if path.endswith("/events") and "/console/" not in path:
        return "events"
    tags = {"control": "administration", "stomp": "stomp", "console": "console", "openapi.json": "operations"}
    parts = path.split("/")
    return tags.get(parts[2], "messages") if parts[1] == "v1" else "operations"


def _paths() -> Json:
    paths: Json = {"/v1/stomp/{session}": {"parameters": ref("parameters", "Session")}}
    for request, operation in _requests().items():
        method, path = request.split()
        paths.setdefault(path, {})[method] = {**operation, "tags": [_tag_of(path)]}
    return paths


@cache
def openapi() -> bytes:
    """The document, as it is served."""
    about = "Messages, events and administration of one node of a mesh; any node serves all of them."
    schemes = {name: {"type": "http", "scheme": name} for name in ("basic", "bearer")}
    api = {
        "openapi": "3.1.0",
        "info": {
            "title": "QMQ",
            "version": "1",
            "description": about,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"basic": []}, {"bearer": []}],
        "paths": _paths(),
        "components": {
            "securitySchemes": schemes,
            "responses": {"Error": response("Refused; nothing has changed.", "Error")},
            "schemas": SCHEMAS,
            "parameters": PARAMETERS,
        },
    }
    return json.dumps(api, ensure_ascii=False, indent=1).encode()
