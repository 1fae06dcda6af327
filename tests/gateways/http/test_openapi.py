"""The description of the API names what the routes serve, and nothing else."""

import json
import re

import pytest

from qmq.gateways.http.events import OPTIONS as STREAM_OPTIONS
from qmq.gateways.http.routes import ACTIONS, CONSOLE, KINDS, PLAIN, Call, route_of
from qmq.gateways.http.sends import BY_HEADER, OPTIONS
from qmq.server.web.openapi import openapi
from qmq.wire.http import HttpConnection, HttpLimits

API = json.loads(openapi())
UNDESCRIBED = {Call.STOMP, Call.SCRIPT}
"""Not requests of the API: a protocol of its own, and a file."""

PATHS = [(path, method) for path, methods in API["paths"].items() for method in methods if method != "parameters"]


@pytest.mark.parametrize(("path", "method"), PATHS)
def test_each_described_request_has_a_route(path: str, method: str) -> None:
    http = HttpConnection(HttpLimits())
    target = re.sub(r"\{request\}", "list/queue", re.sub(r"\{\w+\}", "x", path) if "request" not in path else path)
    http.receive(f"{method.upper()} {target} HTTP/1.1\r\nhost: h\r\n\r\n".encode())
    request = http.next_request()

    assert request is not None and route_of(request).call not in UNDESCRIBED


def test_each_route_is_described() -> None:
    described = set(API["paths"])
    routes = {f"/{'/'.join(path)}" for path, (call, _) in PLAIN.items() if call not in UNDESCRIBED}
    routes |= {"/v1/stomp", "/v1/stomp/{session}"}
    routes |= {f"/v1/{kind}/{{name}}/{action}" for action, (_, _, kinds) in ACTIONS.items() for kind in kinds}

    assert routes <= described
    assert set(KINDS) - {"system"} == {path.split("/")[2] for path in described if path.endswith("/messages")}


def test_requests_of_the_console_are_described_with_their_methods() -> None:
    described = {
        path.removeprefix("/v1/console/"): tuple(sorted(method.upper() for method in methods))
        for path, methods in API["paths"].items()
        if path.startswith("/v1/console/")
    }

    assert described == {name: tuple(sorted(methods)) for name, methods in CONSOLE.items()}


def test_options_of_messages_are_described() -> None:
    message = API["components"]["schemas"]["Message"]["properties"]
    headers = {one["name"].lower() for one in API["components"]["parameters"].values() if one["in"] == "header"}

    assert set(message) == {*OPTIONS, "body", "body_base64", "headers"} - {"receipt_level"}
    assert set(BY_HEADER) - {"qmq-content-type"} <= headers


def test_no_header_is_described_as_an_array() -> None:
    # A generated client would separate its items with commas.
    types = {name: one["schema"]["type"] for name, one in API["components"]["parameters"].items()}

    assert [name for name, type in types.items() if "array" in type] == []


def test_options_of_streams_are_described() -> None:
    (get,) = API["paths"]["/v1/topics/{name}/events"].values()
    named = {one["$ref"].rpartition("/")[2] for one in get["parameters"] if "$ref" in one}
    described = {API["components"]["parameters"][name]["name"] for name in named}

    assert described == set(STREAM_OPTIONS)
