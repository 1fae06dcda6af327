"""`qmq purge`, `move` and `redrive`: what they ask of the node, and what they print."""

import json

import pytest

from qmq.wire.stomp import Frame
from tests.cli.conftest import Run
from tests.cli.stub import StubNode, polite, verb_answer


def answers(**facts: object) -> StubNode:
    def answer(node: StubNode, got: Frame) -> bytes | None:
        if got.head.command != "SEND":
            return polite(node, got)
        return verb_answer(got, {"messages": 3, **facts})

    return StubNode(answer)


def sent(node: StubNode) -> dict[str, str]:
    found = next(dict(got.head.headers) for got in node.received if got.head.command == "SEND")
    return {name: value for name, value in found.items() if name not in ("reply-to", "content-length")}


@pytest.mark.parametrize(
    ("command", "asked", "said"),
    [
        (("purge", "/queue/q"), {"destination": "/control/purge/queue/q"}, "/queue/q: 3 messages purged\n"),
        (
            ("move", "/queue/q", "/queue/other"),
            {"destination": "/control/move/queue/q", "to": "/queue/other"},
            "/queue/q: 3 messages moved to /queue/other\n",
        ),
        (
            ("redrive", "/queue/dead"),
            {"destination": "/control/redrive/queue/dead"},
            "/queue/dead: 3 messages redriven\n",
        ),
    ],
)
def test_it_asks_all_nodes_and_says_how_many(
    run: Run, command: tuple[str, ...], asked: dict[str, str], said: str
) -> None:
    with answers() as node:
        result = run(*command, "--at", node.at)

    assert (result.exit_code, result.output) == (0, said)
    assert sent(node) == {**asked, "scope": "mesh"}


def test_options_become_headers(run: Run) -> None:
    with answers() as node:
        result = run(
            "purge", "/queue/q", "--at", node.at, "--selector", "a = 'b'", "--count", "7", "--dry-run", "--one-node"
        )

    assert result.output == "/queue/q: 3 messages would be purged\n"
    assert sent(node) == {
        "destination": "/control/purge/queue/q",
        "selector": "a = 'b'",
        "count": "7",
        "dry-run": "true",
    }


@pytest.mark.parametrize("selector", ["", " "])
@pytest.mark.parametrize("command", [("purge", "/queue/q"), ("move", "/queue/q", "/queue/r"), ("redrive", "/queue/q")])
def test_an_empty_selector_does_not_mean_all_messages(run: Run, command: tuple[str, ...], selector: str) -> None:
    with answers() as node:
        result = run(*command, "--selector", selector, "--at", node.at)

    assert result.exit_code == 2
    assert "is empty; leave it out for all messages" in result.stderr
    assert node.received == []


def test_missing_nodes_and_messages_that_were_left_are_named_and_end_it_with_exit_code_1(run: Run) -> None:
    with answers(reason="queue-full: no room", nodes_missing=["b", "c"]) as node:
        result = run("move", "/queue/q", "/queue/other", "--at", node.at, "--json")

    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "destination": "/queue/q",
        "to": "/queue/other",
        "messages": 3,
        "dry_run": False,
        "reason": "queue-full: no room",
        "nodes_missing": ["b", "c"],
        "known": True,
        "taken_over": {},
    }
    assert "queue-full: no room" in result.stderr
    assert "b, c" in result.stderr


def test_a_dead_node_whose_messages_another_one_serves_is_no_failure(run: Run) -> None:
    with answers(nodes_missing=[], taken_over={"a": "b"}) as node:
        result = run("purge", "/queue/q", "--at", node.at)

    assert result.exit_code == 0
    assert result.stderr == "qmq: a does not respond; b serves its messages and did it for them\n"


@pytest.mark.parametrize("command", [("purge", "q"), ("move", "/queue/q", "/topic/t"), ("redrive", "/fanout/f")])
def test_what_is_no_queue_is_a_mistake_of_the_command_line(run: Run, command: tuple[str, ...]) -> None:
    result = run(*command)

    assert result.exit_code == 2
    assert "/queue/NAME" in result.stderr


def test_one_message_is_singular(run: Run) -> None:
    with answers(messages=1) as node:
        assert run("purge", "/queue/q", "--at", node.at).output == "/queue/q: 1 message purged\n"


@pytest.mark.parametrize("command", ["purge", "redrive", "delete"])
def test_a_queue_that_is_not_known_is_named_on_stderr(run: Run, command: str) -> None:
    with answers(reason="", known=False) as node:
        text = run(command, "/queue/typo", "--at", node.at)
        facts = json.loads(run(command, "/queue/typo", "--at", node.at, "--json").stdout)

    assert (text.exit_code, facts["known"]) == (0, False)
    assert text.stderr == "qmq: /queue/typo has no messages, consumers or definitions: is the name right?\n"
