"""`qmq delete`: what it asks of the node, and what it prints."""

import json

import pytest

from qmq.wire.stomp import Frame
from tests.cli.conftest import Run
from tests.cli.stub import StubNode, frame, polite, verb_answer


def answers() -> StubNode:
    def answer(node: StubNode, got: Frame) -> bytes | None:
        if got.head.command != "SEND":
            return polite(node, got)
        return verb_answer(got, {"messages": 3, "subscribers": 1, "durable_subscriptions": 2})

    return StubNode(answer)


def sent(node: StubNode) -> dict[str, str]:
    return next(dict(got.head.headers) for got in node.received if got.head.command == "SEND")


@pytest.mark.parametrize(("options", "done"), [((), "is deleted"), (("--dry-run",), "would be deleted")])
def test_it_says_what_is_deleted(run: Run, options: tuple[str, ...], done: str) -> None:
    with answers() as node:
        result = run("delete", "/fanout/f", "--at", node.at, *options)

    assert (result.exit_code, result.output) == (
        0,
        f"/fanout/f {done}: 3 messages, 2 durable subscriptions; 1 subscriber of this node\n",
    )
    assert sent(node)["destination"] == "/control/delete/fanout/f"
    assert sent(node).get("dry-run") == ("true" if options else None)


def test_json_has_the_same_facts(run: Run) -> None:
    with answers() as node:
        result = run("delete", "/fanout/f", "--at", node.at, "--dry-run", "--json")

    assert json.loads(result.output) == {
        "destination": "/fanout/f",
        "messages": 3,
        "subscribers": 1,
        "durable_subscriptions": 2,
        "dry_run": True,
    }


def test_a_queue_is_deleted_by_force_and_missing_nodes_end_it_with_exit_code_1(run: Run) -> None:
    def answer(node: StubNode, got: Frame) -> bytes | None:
        if got.head.command != "SEND":
            return polite(node, got)
        return verb_answer(got, {"messages": 7, "reason": "", **asked, "nodes_missing": ["c"]})

    asked = {"nodes_asked": 3, "nodes_answered": 2}
    with StubNode(answer) as node:
        result = run("delete", "/queue/q", "--force", "--at", node.at)

    assert (result.exit_code, result.stdout) == (
        1,
        "/queue/q is deleted on 2 of 3 nodes: 7 messages\nwhat c has stays: run the command again\n",
    )
    assert "c" in result.stderr
    assert sent(node)["force"] == "true"


def declared_and_left(node: StubNode, got: Frame) -> bytes | None:
    if got.head.command != "SEND":
        return polite(node, got)
    return verb_answer(got, {"messages": 7, "reason": "disk-full: no room", "declared": True, "bindings": 2})


def test_it_says_what_was_defined_of_a_deleted_queue(run: Run) -> None:
    with StubNode(declared_and_left) as node:
        text = run("delete", "/queue/q", "--at", node.at)
        facts = json.loads(run("delete", "/queue/q", "--at", node.at, "--json").stdout)

    assert "/queue/q is deleted: 7 messages, its declaration, 2 bindings" in text.stdout
    assert (facts["declared"], facts["bindings"], facts["reason"]) == (True, 2, "disk-full: no room")


def test_a_refusal_ends_it_with_exit_code_1_and_the_code(run: Run) -> None:
    def refuse(node: StubNode, got: Frame) -> bytes | None:
        if got.head.command != "SEND":
            return polite(node, got)
        lines = [("message", "This node knows no fanout /fanout/f."), ("error-code", "unknown-destination")]
        return frame("ERROR", lines)

    with StubNode(refuse) as node:
        result = run("delete", "/fanout/f", "--at", node.at)

    assert result.exit_code == 1
    assert "This node knows no fanout /fanout/f." in result.stderr
    assert "unknown-destination" in result.stderr


def test_a_destination_without_its_kind_is_a_mistake_of_the_command_line(run: Run) -> None:
    result = run("delete", "f")

    assert result.exit_code == 2
    assert "/fanout/NAME" in result.stderr
