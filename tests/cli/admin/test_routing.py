"""`qmq exchanges` and `qmq bindings`: what they ask of the node, and what they print."""

import json

import pytest

from tests.cli.admin.test_definitions import answers, sent
from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("command", "asked", "facts", "said"),
    [
        (("declare", "e", "topic"), {"type": "topic"}, {"changed": 1}, "exchange e is declared"),
        (
            ("declare", "e", "direct", "--alternate", "f", "--quorum"),
            {"type": "direct", "alternate": "f", "quorum": "true"},
            {"changed": 0},
            "exchange e was so before",
        ),
        (
            ("declare", "e", "fanout", "--internal"),
            {"type": "fanout", "internal": "true"},
            {"changed": 1},
            "exchange e is declared",
        ),
        (("delete", "e"), {}, {"changed": 3, "bindings": 2}, "exchange e is deleted, with 2 bindings"),
        (
            ("delete", "e", "--if-unused", "--dry-run"),
            {"if-unused": "true", "dry-run": "true"},
            {"bindings": 0, "changed": 1},
            "exchange e would be deleted",
        ),
    ],
)
def test_an_exchange_is_changed(
    run: Run, command: tuple[str, ...], asked: dict[str, str], facts: dict[str, object], said: str
) -> None:
    with answers(**facts) as node:
        result = run("exchanges", *command, "--at", node.at)

    assert (result.exit_code, result.output) == (0, f"{said}\n")
    assert sent(node)[0] == {"destination": f"/control/{command[0]}/exchange/e", **asked}


@pytest.mark.parametrize(
    ("command", "verb", "headers", "arguments", "said"),
    [
        (
            ("add", "/exchange/e", "/exchange/f", "--key", "a.#"),
            "bind",
            {"key": "a.#"},
            {},
            "binding from /exchange/e to /exchange/f is added",
        ),
        (("add", "/topic/a.*", "/queue/q"), "bind", {}, {}, "binding from /topic/a.* to /queue/q is added"),
        (
            ("add", "/exchange/e", "/queue/q", "--key", "a.#"),
            "bind",
            {"key": "a.#"},
            {},
            "binding from /exchange/e to /queue/q is added",
        ),
        (
            ("delete", "/exchange/e", "/queue/q", "--argument", "colour=red", "--argument", "size", "--match", "any"),
            "unbind",
            {},
            {"x-match": "any", "colour": "red", "size": None},
            "binding from /exchange/e to /queue/q is deleted",
        ),
    ],
)
def test_a_binding_is_changed(
    run: Run, command: tuple[str, ...], verb: str, headers: dict[str, str], arguments: dict[str, str], said: str
) -> None:
    with answers(changed=1) as node:
        result = run("bindings", *command, "--at", node.at)

    assert (result.exit_code, result.output) == (0, f"{said}\n")
    asked, body = sent(node)
    assert asked == {"destination": f"/control/{verb}{command[2]}", "source": command[1], **headers}
    assert json.loads(body) == arguments


@pytest.mark.parametrize(
    "command",
    [
        ("add", "/queue/a", "/queue/q"),
        ("add", "/topic/a", "q"),
        ("add", "/exchange/e", "/topic/t"),
        ("add", "/exchange/e", "/queue/q", "--argument", "=red"),
        ("add", "/exchange/e", "/queue/q", "--argument", "a=1", "--argument", "a=2"),
        ("add", "/exchange/e", "/queue/q", "--match", "some"),
    ],
)
def test_what_no_node_accepts_is_an_error_in_the_command_line(run: Run, command: tuple[str, ...]) -> None:
    with answers() as node:
        result = run("bindings", *command, "--at", node.at)

    assert result.exit_code == 2
    assert not node.received


def test_exchanges_and_bindings_are_tables(run: Run) -> None:
    exchange = {"name": "e", "type": "topic", "alternate": "", "internal": False, "bindings": 1, "predefined": False}
    inner = {**exchange, "name": "f", "internal": True}
    binding = {"source": "/exchange/e", "queue": "/queue/q", "key": "a.*", "arguments": {"n": None}, "name": "x"}
    with answers(exchanges=[exchange, inner]) as node:
        assert run("exchanges", "list", "--at", node.at).output.split() == [
            *("NAME", "TYPE", "ALTERNATE", "INTERNAL", "BINDINGS"),
            *("e", "topic", "-", "-", "1"),
            *("f", "topic", "-", "yes", "1"),
        ]
    with answers(bindings=[{**binding, "effective": False}]) as node:
        assert run("bindings", "list", "--at", node.at).output.split() == [
            *("SOURCE", "TARGET", "KEY", "ARGUMENTS"),
            *("/exchange/e", "(no", "effect)", "/queue/q", "a.*", "n"),
        ]
    onward = {"source": "/exchange/e", "exchange": "/exchange/f", "key": "", "arguments": {}, "name": "x"}
    with answers(bindings=[{**onward, "effective": True}]) as node:
        assert run("bindings", "list", "--at", node.at).output.split()[4:] == ["/exchange/e", "/exchange/f", "-", "-"]
    with answers(bindings=[{**binding, "effective": True}]) as node:
        result = run("bindings", "list", "--json", "--at", node.at)
        assert json.loads(result.output)["bindings"][0]["source"] == "/exchange/e"


def test_a_change_without_a_majority_ends_with_exit_code_1(run: Run) -> None:
    with answers(changed=1, quorum=False) as node:
        result = run("bindings", "add", "/topic/a", "/queue/q", "--quorum", "--at", node.at)

    assert result.exit_code == 1
    assert "no majority has the change yet" in result.output
