"""`qmq queues`: what it asks of the node for a declaration, and what it prints."""

import json

import pytest

from qmq.wire.stomp import Frame
from tests.cli.admin.test_definitions import answers, sent
from tests.cli.conftest import Run
from tests.cli.stub import StubNode, polite, verb_answer

Q = "/queue/q"


def test_a_declaration_names_its_keys(run: Run) -> None:
    with answers(destination=Q, changed=1, value={}, dry_run=False) as node:
        options = ("--max-messages", "5", "--ttl", "60", "--dead-letter", "", "--exclusive", "--memory-only")
        result = run("queues", "declare", Q, *options, "receipt=fsync", "--replace", "--at", node.at)

    assert (result.exit_code, result.output) == (0, f"{Q} is declared\n")
    headers, body = sent(node)
    assert headers == {"destination": f"/control/declare{Q}", "replace": "true"}
    assert json.loads(body) == {
        "max_messages": 5,
        "ttl_seconds": 60.0,
        "dead_letter": "",
        "exclusive": True,
        "durable": False,
        "receipt": "fsync",
    }


@pytest.mark.parametrize(
    ("options", "changed", "text"),
    [
        ((), 0, "was so before"),
        (("--dry-run",), 1, "would be declared"),
        (("--dry-run",), 0, "was so before"),
        (("--passive",), 0, 'is declared: overflow="refuse"'),
    ],
)
def test_it_says_what_has_changed(run: Run, options: tuple[str, ...], changed: int, text: str) -> None:
    with answers(destination=Q, changed=changed, value={"overflow": "refuse"}, dry_run=bool(options)) as node:
        result = run("queues", "declare", Q, "--at", node.at, *options)

    assert (result.exit_code, result.output) == (0, f"{Q} {text}\n")


def test_a_declaration_without_a_majority_ends_with_exit_code_1(run: Run) -> None:
    with answers(destination=Q, changed=1, value={}, quorum=False) as node:
        result = run("queues", "declare", Q, "--quorum", "--json", "--at", node.at)

    assert result.exit_code == 1
    assert json.loads(result.stdout)["quorum"] is False


@pytest.mark.parametrize(
    "arguments",
    [
        ("declare", "q"),
        ("declare", Q, "durable"),
        ("declare", Q, "--priority", "1", "priority=2"),
        ("declare", Q, "exclusive_to_connection=true"),
    ],
)
def test_a_mistake_of_the_command_line_has_exit_code_2(run: Run, arguments: tuple[str, ...]) -> None:
    assert run("queues", *arguments).exit_code == 2


@pytest.mark.parametrize("arguments", [(), ("list",), ("declared.",), ("--limit", "5")])
def test_without_a_command_it_lists(run: Run, arguments: tuple[str, ...]) -> None:
    with answers(destinations=[{"destination": Q, "messages": 1}]) as node:
        result = run("queues", *arguments, "--at", node.at)

    assert result.exit_code == 0
    assert Q in result.output
    assert sent(node)[0]["destination"] == f"/control/list/queue/{'declared.' * ('declared.' in arguments)}*"


def test_a_deletion_says_under_which_condition(run: Run) -> None:
    def answer(node: StubNode, got: Frame) -> bytes | None:
        if got.head.command != "SEND":
            return polite(node, got)
        missing = {"nodes_missing": ["c"], "nodes_answered": 2, "nodes_asked": 3}
        return verb_answer(got, {"messages": 0, "declared": True, **missing})

    with StubNode(answer) as node:
        result = run("queues", "delete", Q, "--if-empty", "--if-unused", "--at", node.at)

    assert (result.exit_code, "what c has is deleted when it is back" in result.stdout) == (1, True)
    asked = sent(node)[0]
    assert (asked["destination"], asked["if-empty"], "force" in asked) == (f"/control/delete{Q}", "true", False)


def test_a_deletion_is_either_forced_or_only_of_an_unused_queue(run: Run) -> None:
    assert run("queues", "delete", Q, "--if-unused", "--force").exit_code == 2
