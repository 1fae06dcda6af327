"""`qmq listen`: what is printed, and that nothing is acknowledged before."""

import json
import os
import signal

import pytest

from qmq.wire.stomp import Frame
from tests.cli.conftest import Run
from tests.cli.stub import StubNode, frame, message, polite


def acks(node: StubNode) -> list[str]:
    return [request.head.headers["id"] for request in node.received if request.head.command == "ACK"]


def test_messages_are_printed_and_acknowledged_one_by_one(run: Run, node: StubNode) -> None:
    node.messages = [message(1, b"one"), message(2, b"two", ("redelivered", "true")), message(3, b"three")]

    result = run("listen", "/queue/jobs", "--count", "2", "--at", node.at)

    assert result.exit_code == 0, result.output
    assert result.output == "/queue/jobs  one\n/queue/jobs (redelivered)  two\n".replace(" (", "  (")
    assert acks(node) == ["a1", "a2"]
    assert node.commands()[-1] == "DISCONNECT"


def test_no_more_is_fetched_than_asked_for(run: Run, node: StubNode) -> None:
    node.messages = [message(1, b"one")]

    run("listen", "/queue/jobs", "--count", "1", "--at", node.at)

    (subscribe,) = [request.head.headers for request in node.received if request.head.command == "SUBSCRIBE"]
    assert subscribe["prefetch-count"] == "1"
    assert subscribe["ack"] == "client-individual"
    assert subscribe["destination"] == "/queue/jobs"


def test_auto_acknowledges_nothing(run: Run, node: StubNode) -> None:
    node.messages = [message(1, b"one")]

    run("listen", "/queue/jobs", "--count", "1", "--ack", "auto", "--at", node.at)

    assert acks(node) == []


def test_json_has_an_object_per_line_and_keeps_every_byte(run: Run, node: StubNode) -> None:
    node.messages = [message(1, "é\x1b".encode(), ("kind", "k:v")), message(2, b"\xff\x00")]

    result = run("listen", "/queue/jobs", "--count", "2", "--json", "--at", node.at)

    first, second = map(json.loads, result.output.splitlines())
    assert first["destination"] == "/queue/jobs"
    assert first["headers"]["kind"] == "k:v"
    assert first["body"] == "é\x1b"
    assert second["body-base64"] == "/wA="


def test_body_only_prints_the_bytes(run: Run, node: StubNode) -> None:
    node.messages = [message(1, b"\xff\x00\x1b[31m"), message(2, b"")]

    result = run("listen", "/queue/jobs", "--count", "2", "--body-only", "--at", node.at)

    assert result.stdout_bytes == b"\xff\x00\x1b[31m\n\n"


def test_control_characters_do_not_reach_the_terminal(run: Run, node: StubNode) -> None:
    node.messages = [message(1, b"\x1b[2J\xff\r")]

    result = run("listen", "/queue/jobs", "--count", "1", "--at", node.at)

    assert result.output == "/queue/jobs  \\x1b[2J\\xff\\x0d\n"


def test_headers_go_into_subscribe(run: Run, node: StubNode) -> None:
    node.messages = [message(1, b"")]

    run("listen", "/fanout/log", "--header", "x-stream-offset:first", "--count", "1", "--at", node.at)

    assert node.received[1].head.headers["x-stream-offset"] == "first"


def test_too_few_messages_in_time_end_with_code_1(run: Run, node: StubNode) -> None:
    node.messages = [message(1, b"one")]

    result = run("listen", "/queue/jobs", "--count", "2", "--timeout", "1", "--at", node.at)

    assert result.exit_code == 1
    assert result.stdout == "/queue/jobs  one\n"
    assert result.stderr == "qmq: 1 of 2 messages within 1 s\n"
    assert acks(node) == ["a1"]


def interrupts(node: StubNode, request: Frame) -> bytes | None:
    """Ctrl-C, as soon as the first message was acknowledged."""
    if request.head.command == "ACK":
        os.kill(os.getpid(), signal.SIGINT)
    return polite(node, request)


@pytest.mark.parametrize(
    ("asked", "code", "said"), [((), 0, ""), (("--count", "2"), 1, "qmq: 1 of 2 messages until Ctrl-C\n")]
)
def test_ctrl_c_is_a_good_end_unless_messages_are_missing(
    run: Run, asked: tuple[str, ...], code: int, said: str
) -> None:
    with StubNode(interrupts) as node:
        node.messages = [message(1, b"one")]
        result = run("listen", "/queue/jobs", *asked, "--at", node.at)

    assert (result.exit_code, result.stdout, result.stderr) == (code, "/queue/jobs  one\n", said)
    assert node.commands()[-1] == "DISCONNECT"


def test_the_time_ends_on_a_busy_topic_too(run: Run) -> None:
    def answer(node: StubNode, request: Frame) -> bytes | None:
        return message(1, b"x") * 200_000 if request.head.command == "SUBSCRIBE" else polite(node, request)

    with StubNode(answer) as node:
        result = run("listen", "/topic/busy", "--ack", "auto", "--timeout", "0.1", "--at", node.at)

    assert result.exit_code == 0
    assert result.stdout.count("\n") < 200_000


@pytest.mark.parametrize("header", ["id:7", "destination:/queue/b", "ack:auto"])
def test_a_header_that_would_be_ignored_is_refused(run: Run, node: StubNode, header: str) -> None:
    result = run("listen", "/queue/jobs", "--header", header, "--at", node.at)

    assert result.exit_code == 2
    assert node.received == []


def test_without_count_the_end_of_the_time_is_a_good_end(run: Run, node: StubNode) -> None:
    result = run("listen", "/queue/jobs", "--timeout", "0", "--at", node.at)

    assert result.exit_code == 0
    assert node.commands()[-1] == "DISCONNECT"


def test_a_refused_subscription_is_reported(run: Run) -> None:
    def answer(node: StubNode, request: Frame) -> bytes | None:
        if request.head.command == "SUBSCRIBE":
            return frame("ERROR", [("message", "unknown kind"), ("error-code", "unknown-destination")])
        return polite(node, request)

    with StubNode(answer) as node:
        result = run("listen", "/quee/jobs", "--at", node.at)

    assert result.exit_code == 1
    assert result.stderr == f"qmq: {node.at}: unknown kind (unknown-destination)\n"
