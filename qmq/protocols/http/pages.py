"""Responses that need no client: files of the node, schemas, and health."""

from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple, Protocol

from qmq.gateways.encoder import Lines
from qmq.protocols.http.console import file_response
from qmq.protocols.http.gateway.avro import schema_page
from qmq.protocols.http.gateway.responses import JSON
from qmq.protocols.http.gateway.routes import Call
from qmq.protocols.http.health import HealthContext, livez, readyz
from qmq.protocols.http.openapi import openapi
from qmq.settings.definitions.schemas import SchemaDefinitions

JAVASCRIPT: Final = ("content-type", "text/javascript; charset=utf-8")


class PageContext(HealthContext, Protocol):
    schemas: SchemaDefinitions


class PageResponse(NamedTuple):
    """A response: `facts` in JSON, or `body` with its headers."""

    status: int = 200
    facts: Any = None
    headers: Lines = ()
    body: bytes | None = None


@cache
def script() -> bytes:
    return files("qmq.protocols.http").joinpath("qmq.js").read_bytes()


PAGES: Final[Mapping[Call, Callable[[PageContext, str], PageResponse]]] = {
    Call.PAGE: lambda context, name: PageResponse(200, None, *file_response(name)),
    Call.OPENAPI: lambda context, name: PageResponse(headers=(JSON,), body=openapi()),
    Call.SCRIPT: lambda context, name: PageResponse(headers=(JAVASCRIPT,), body=script()),
    Call.MESSAGE_SCHEMA: lambda context, name: PageResponse(headers=(JSON,), body=schema_page()),
    Call.SCHEMA: lambda context, name: PageResponse(200, context.schemas.value_of(name)),
    Call.LIVEZ: lambda context, name: PageResponse(*livez(context)),
    Call.READYZ: lambda context, name: PageResponse(*readyz(context)),
}
"""Call → its response for what the path names. One raises Refused or HttpRefusal for a name that is not there."""
