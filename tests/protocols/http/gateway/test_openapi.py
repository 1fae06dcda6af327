"""The description of the API names what the routes serve, and nothing else."""

import json
import re

import pytest

from qmq.gateways.headers import check_name
from qmq.model.routing_names import is_exchange_name
from qmq.protocols.http.codec import HttpConnection, HttpLimits
from qmq.protocols.http.gateway.events import OPTIONS as STREAM_OPTIONS
from qmq.protocols.http.gateway.routes import ACTIONS, CONSOLE, KINDS, PLAIN, Call, route_of
from qmq.protocols.http.gateway.sends import BY_HEADER, OPTIONS
from qmq.protocols.http.openapi import openapi
from qmq.verbs.table import VERBS, verb_of
from qmq.verbs.verb import CONTROL

API = json.loads(openapi())
UNDESCRIBED = {Call.STOMP, Call.SCRIPT}
"""Not requests of the API: a protocol of its own, and a file."""

PATHS = [(path, method) for path, methods in API["paths"].items() for method in methods if method != "parameters"]


@pytest.mark.parametrize(("path", "method"), PATHS)
def test_each_described_request_has_a_route(path: str, method: str) -> None:
    http = HttpConnection(HttpLimits())
    target = re.sub(r"\{\w+\}", "x", path)
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
    message = API["components"]["schemas"]["BatchMessage"]["properties"]
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


@pytest.mark.parametrize("name", ["a", "größe", "a:b", "a b", "a/b", "a.b~c-d", "名前"])
@pytest.mark.parametrize("kind", ["queues", "topics", "fanouts"])
def test_names_that_the_server_takes_are_described(kind: str, name: str) -> None:
    check_name(f"/{KINDS[kind]}/{name}")

    assert re.search(name_pattern(f"/v1/{kind}/{{name}}/messages"), name)


@pytest.mark.parametrize("name", ["a\0", "a\x19", "a\x7f", "a\x8a", "a*", "a#"])
def test_names_that_the_server_refuses_are_not_described(name: str) -> None:
    assert not re.search(name_pattern("/v1/queues/{name}/messages"), name)


@pytest.mark.parametrize("name", ["a", "größe", "a:b", "a b", "a/b", "a*", "a\x8a"])
def test_names_of_exchanges_are_described(name: str) -> None:
    found = re.search(name_pattern("/v1/exchanges/{name}/messages"), name)

    assert (found is not None) is is_exchange_name(name)


def name_pattern(path: str) -> str:
    (parameter,) = [one for one in API["paths"][path]["post"]["parameters"] if one.get("name") == "name"]
    pattern: str = parameter["schema"]["pattern"]
    return pattern


def test_links_lead_to_operations_that_have_their_parameters() -> None:
    operations = {
        operation["operationId"]: (operation, methods.get("parameters", []))
        for methods in API["paths"].values()
        for name, operation in methods.items()
        if name != "parameters"
    }
    links = [
        link
        for operation, _ in operations.values()
        for one in operation["responses"].values()
        for link in one.get("links", {}).values()
    ]

    assert {link["operationId"] for link in links} == {"settle", "send_frames", "receive_frames", "end_session"}
    for link in links:
        _, shared = operations[link["operationId"]]
        names = {API["components"]["parameters"][one["$ref"].rpartition("/")[2]]["name"] for one in shared}
        assert set(link.get("parameters", {})) <= names


def test_each_verb_is_described_with_its_options() -> None:
    described = {path.removeprefix("/v1/control/"): one for path, one in API["paths"].items() if "/control/" in path}

    assert {verb_of(f"{CONTROL}{path}")[0] for path in described} == set(VERBS.values())
    assert set(described["kick/{id}"]["post"]) >= {"operationId", "summary", "parameters", "responses"}
    options = {one["name"]: one for one in described["purge/queue/{name}"]["post"]["parameters"]}
    assert set(options) == {"name", "selector", "count", "ids", "scope", "dry_run"}
    assert options["count"]["schema"] == {"type": "integer", "minimum": 1, "maximum": 10**12}


def test_each_operation_has_an_id_of_its_own() -> None:
    ids = [API["paths"][path][method]["operationId"] for path, method in PATHS]

    assert sorted(set(ids)) == sorted(ids)
