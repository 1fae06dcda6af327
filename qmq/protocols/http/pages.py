"""Responses that need no client: files of the node, schemas, and health."""

from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from qmq.gateways.encoder import Lines
from qmq.protocols.http.console import file_response
from qmq.protocols.http.gateway.avro import schema_page
from qmq.protocols.http.gateway.responses import JSON
from qmq.protocols.http.gateway.routes import Call
from qmq.protocols.http.health import HealthChecks
from qmq.protocols.http.openapi import openapi
from qmq.settings.definitions.schemas import SchemaDefinitions

JAVASCRIPT = ("content-type", "text/javascript; charset=utf-8")


class PageResponse(NamedTuple):
    """A response: `facts` in JSON, or `body` with its headers."""

    status: int = 200
    facts: Any = None
    headers: Lines = ()
    body: bytes | None = None


@cache
def script() -> bytes:
    return files("qmq.protocols.http").joinpath("qmq.js").read_bytes()


Page = Callable[[str], PageResponse]
"""The response for what the path names. Raises Refused or HttpRefusal for a name that is not there."""


def pages(health: HealthChecks, schemas: SchemaDefinitions) -> Mapping[Call, Page]:
    return {
        Call.PAGE: lambda name: PageResponse(200, None, *file_response(name)),
        Call.OPENAPI: lambda name: PageResponse(headers=(JSON,), body=openapi()),
        Call.SCRIPT: lambda name: PageResponse(headers=(JAVASCRIPT,), body=script()),
        Call.MESSAGE_SCHEMA: lambda name: PageResponse(headers=(JSON,), body=schema_page()),
        Call.SCHEMA: lambda name: PageResponse(200, schemas.value_of(name)),
        Call.LIVEZ: lambda name: PageResponse(*health.livez()),
        Call.READYZ: lambda name: PageResponse(*health.readyz()),
    }
