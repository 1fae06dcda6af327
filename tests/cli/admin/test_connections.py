"""`qmq connections` and `qmq kick`: what they ask of the node, and what they print."""

import json

import pytest

from qmq.wire.stomp import Frame
from tests.cli.conftest import Run
from tests.cli.stub import StubNode, message, polite

ROW = {
    "id": "b/7",
    "user": "ann",
    "address": "10.0.0.1",
    "port": 50123,
    "protocol": "STOMP 1.2",
    "product": "shop 7",
    "subscriptions": 2,
    "in_flight": 3,
    "bytes_out": 2048,
}


def answers(**facts: object) -> StubNode:
    def answer(node: StubNode, got: Frame) -> bytes | None:
        if got.head.command != "SEND":
            return polite(node, got)
        return message(1, json.dumps(facts).encode())

    return StubNode(answer)


def sent(node: StubNode) -> dict[str, str]:
    found = next(dict(got.head.headers) for got in node.received if got.head.command == "SEND")
    return {name: value for name, value in found.items() if name not in ("reply-to", "content-length")}


def test_connections_are_a_table(run: Run) -> None:
    with answers(connections=1, rows=[ROW], nodes_missing=["c"]) as node:
        result = run("connections", "--at", node.at, "--user", "ann")

    assert result.exit_code == 0
    cells = "b/7 ann 10.0.0.1 50123 STOMP 1.2 shop 7 2 3 0 B 2.0 KiB"
    assert result.stdout.splitlines()[1].split() == cells.split()
    assert "c" in result.stderr
    assert sent(node) == {"destination": "/control/connections", "user": "ann", "scope": "mesh"}


def test_connections_of_all_pages_are_shown_up_to_the_limit(run: Run) -> None:
    pages = [{"rows": [ROW], "next": "b/7"}, {"rows": [{**ROW, "id": "b/8"}], "next": "b/8"}] * 2

    def answer(node: StubNode, got: Frame) -> bytes | None:
        return polite(node, got) if got.head.command != "SEND" else message(1, json.dumps(pages.pop(0)).encode())

    with StubNode(answer) as node:
        result = run("connections", "--at", node.at, "--limit", "2")
        as_json = run("connections", "--at", node.at, "--limit", "2", "--json")

    assert [line.split()[0] for line in result.stdout.splitlines()] == ["ID", "b/7", "b/8"]
    assert "there are more than 2" in result.stderr
    assert [row["id"] for row in json.loads(as_json.stdout)["rows"]] == ["b/7", "b/8"]
    asked = [dict(got.head.headers) for got in node.received if got.head.command == "SEND"]
    assert [(one.get("after"), one["limit"]) for one in asked] == [(None, "2"), ("b/7", "1")] * 2


def test_a_kick_names_what_it_ended(run: Run) -> None:
    with answers(connections=1, rows=[ROW], nodes_missing=[]) as node:
        result = run("kick", "b/7", "--reason", "it hangs", "--at", node.at)

    assert (result.exit_code, result.output) == (0, "b/7 ann 10.0.0.1 is ended\n")
    assert sent(node) == {"destination": "/control/kick/b/7", "reason": "it hangs", "scope": "mesh"}


@pytest.mark.parametrize("facts", [{"connections": 0, "nodes_missing": []}, {"connections": 1, "nodes_missing": ["c"]}])
def test_a_kick_that_ends_nothing_or_misses_a_node_ends_with_exit_code_1(run: Run, facts: dict[str, object]) -> None:
    with answers(**facts) as node:
        result = run("kick", "--address", "10.0.0.1", "--reason", "x", "--at", node.at)

    assert result.exit_code == 1


def test_a_kick_without_a_name_is_a_mistake_of_the_command_line(run: Run) -> None:
    assert run("kick", "--reason", "x").exit_code == 2


def test_an_empty_id_does_not_mean_all_connections_of_a_user(run: Run) -> None:
    with answers(connections=0, rows=[]) as node:
        run("kick", "", "--user", "ann", "--at", node.at)

    assert sent(node)["destination"] == "/control/kick/"


def test_a_kick_needs_no_reason(run: Run) -> None:
    with answers(connections=1, rows=[ROW], nodes_missing=[]) as node:
        assert run("kick", "b/7", "--at", node.at).exit_code == 0

    assert "reason" not in sent(node)


def test_bytes_are_rates_where_they_were_measured(run: Run) -> None:
    rated = {**ROW, "bytes_in_per_second": 1024.0, "bytes_out_per_second": 0.0}
    with answers(connections=1, rows=[rated], nodes_missing=[]) as node:
        result = run("connections", "--rates", "1", "--one-node", "--at", node.at)

    assert result.output.splitlines()[1].split()[-4:] == ["1.0", "KiB/s", "0", "B/s"]
    assert sent(node) == {"destination": "/control/connections", "rate-seconds": "1"}


def test_links_are_a_table(run: Run) -> None:
    row = {"id": "a/b", "node": "a", "peer": "b", "out": "caught-up", "in": "up", "lag": 3, "bytes_in": 2048}
    with answers(links=1, rows=[{**row, "last_error": "a\x1b[31m"}], nodes_missing=["c"]) as node:
        result = run("links", "--at", node.at)

    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split() == [
        "a",
        "b",
        "caught-up",
        "up",
        *"3 2.0 KiB 0 B".split(),
        "a\\x1b[31m",
    ]
    assert "c" in result.stderr
    assert sent(node) == {"destination": "/control/links", "scope": "mesh"}


def test_links_as_json_are_the_response(run: Run) -> None:
    with answers(links=0, rows=[]) as node:
        result = run("links", "--json", "--one-node", "--at", node.at)

    assert json.loads(result.output) == {"links": 0, "rows": []}
