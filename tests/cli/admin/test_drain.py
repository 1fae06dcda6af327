"""`qmq drain` and `qmq undrain`: what they ask of the node, and what they print."""

import json

import pytest

from qmq.wire.stomp import Frame
from tests.cli.admin.test_connections import sent
from tests.cli.conftest import Run
from tests.cli.stub import StubNode, polite, verb_answer


def node_that_is(state: str, connections: int = 0) -> StubNode:
    facts = {"drained_node": "b", "state": state, "connections": connections}

    def answer(node: StubNode, got: Frame) -> bytes | None:
        return verb_answer(got, facts) if got.head.command == "SEND" else polite(node, got)

    return StubNode(answer)


def asked(node: StubNode) -> dict[str, str]:
    return {name: value for name, value in sent(node).items() if name != "reply-to"}


def test_a_drain_says_how_far_the_node_is(run: Run) -> None:
    with node_that_is("drained") as node:
        result = run("drain", "b", "--stop", "--reason", "a new disk", "--at", node.at)
        as_json = run("drain", "b", "--at", node.at, "--json")

    assert (result.exit_code, result.stdout) == (0, "b is drained; 0 connections\n")
    assert asked(node) == {"destination": "/control/drain/b", "stop": "true", "reason": "a new disk"}
    assert json.loads(as_json.stdout) == {"node": "b", "state": "drained", "connections": 0}


@pytest.mark.parametrize(("options", "code"), [((), 1), (("--dry-run",), 0)])
def test_clients_that_are_left_are_an_error(run: Run, options: tuple[str, ...], code: int) -> None:
    with node_that_is("draining", 2) as node:
        result = run("drain", "--at", node.at, *options)

    assert (result.exit_code, result.stdout) == (code, "b is draining; 2 connections\n")


def test_undrain_asks_a_node_to_serve_again(run: Run) -> None:
    with node_that_is("serving", 7) as node:
        result = run("undrain", "b", "--at", node.at)

    assert (result.exit_code, result.stdout) == (0, "b is serving; 7 connections\n")
    assert asked(node) == {"destination": "/control/undrain/b"}
