"""`qmq send`: what goes out, and what is said when something goes wrong."""

import json
from collections import deque
from pathlib import Path

import pytest

from qmq.cli.send import RECEIPT_WINDOW, SendWindow
from qmq.wire.stomp import Connection, Frame, Role
from tests.cli.conftest import Run
from tests.cli.stub import StubNode, frame, polite, receipt_of


def sent(node: StubNode) -> list[Frame]:
    return [request for request in node.received if request.head.command == "SEND"]


def test_one_message_is_sent_and_confirmed(run: Run, node: StubNode) -> None:
    result = run("send", "/queue/jobs", "héllo", "--at", node.at)

    assert result.exit_code == 0, result.output
    assert result.output == "sent 1 message to /queue/jobs, 1 confirmed\n"
    assert node.commands() == ["CONNECT", "SEND", "DISCONNECT"]
    assert sent(node)[0].body == "héllo".encode()
    assert sent(node)[0].head.headers["destination"] == "/queue/jobs"


def test_the_fewest_copies_that_a_receipt_named_are_shown(run: Run) -> None:
    copies = iter(["3", "2", "3"])

    def counting(node: StubNode, request: Frame) -> bytes | None:
        is_send = request.head.command == "SEND"
        return receipt_of(request, ("copies", next(copies))) if is_send else polite(node, request)

    with StubNode(counting) as node:
        result = run("send", "/queue/jobs", "x", "--count", "2", "--at", node.at)
        as_json = run("send", "/queue/jobs", "x", "--json", "--at", node.at)

    assert result.output == "sent 2 messages to /queue/jobs, 2 confirmed, copies 2\n"
    assert json.loads(as_json.output)["copies"] == 3


def test_headers_go_along_and_are_cut_at_the_first_colon(run: Run, node: StubNode) -> None:
    run("send", "/queue/jobs", "x", "--header", "kind:a:b", "--header", "empty:", "--at", node.at)

    headers = sent(node)[0].head.headers
    assert (headers["kind"], headers["empty"]) == ("a:b", "")


def test_standard_input_is_sent_byte_for_byte(run: Run, node: StubNode) -> None:
    body = bytes(range(256)) + b"\n"

    run("send", "/queue/jobs", "-", "--at", node.at, input=body)

    assert [request.body for request in sent(node)] == [body]


def test_without_body_an_empty_one_is_sent(run: Run, node: StubNode) -> None:
    run("send", "/queue/jobs", "--at", node.at)

    assert [request.body for request in sent(node)] == [b""]


def test_each_line_of_a_file_is_a_message_without_its_newline_and_keeps_its_carriage_return(
    run: Run, node: StubNode, tmp_path: Path
) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"one\r\n two \n\n\xff\x00three\rmore\nlast")

    result = run("send", "/queue/jobs", "--lines", str(lines), "--at", node.at)

    assert [request.body for request in sent(node)] == [b"one\r", b" two ", b"", b"\xff\x00three\rmore", b"last"]
    assert "sent 5 messages" in result.output


def test_more_messages_than_the_window_all_arrive(run: Run, node: StubNode) -> None:
    result = run("send", "/queue/jobs", "x", "--count", str(3 * RECEIPT_WINDOW + 7), "--at", node.at, "--json")

    facts = json.loads(result.output)
    assert (facts["sent"], facts["receipted"]) == (3 * RECEIPT_WINDOW + 7,) * 2
    assert len(sent(node)) == 3 * RECEIPT_WINDOW + 7


class Slow:
    """A client whose node gives a receipt only when it is waited for."""

    timeout_seconds = 1.0
    address = "slow"

    def __init__(self) -> None:
        self.codec = Connection(Role.SERVER)
        self.codec.receive(frame("CONNECT", [("accept-version", "1.2"), ("host", "x")]))
        self.receipts = 0
        self.unanswered: deque[str] = deque()
        self.unanswered_most = 0

    def next_receipt(self) -> str:
        self.receipts += 1
        return str(self.receipts)

    def frame(self, command: str, headers: list[tuple[str, str]], body: bytes) -> bytes:
        return frame(command, headers, body)

    def write(self, data: bytes) -> None:
        self.unanswered += [request.receipt or "" for request in self.codec.receive(data)]
        self.unanswered_most = max(self.unanswered_most, len(self.unanswered))

    def receive(self, timeout_seconds: float) -> Frame:
        receipt = frame("RECEIPT", [("receipt-id", self.unanswered.popleft())])
        client = Connection(Role.CLIENT)
        client.receive(frame("CONNECTED", [("version", "1.2")]))
        return client.receive(receipt)[0]

    def leave(self) -> None:
        assert not self.unanswered


def test_at_most_a_window_of_messages_is_unconfirmed() -> None:
    client = Slow()
    window = SendWindow("/queue/jobs", [], needs_receipts=True)

    for _ in range(3 * RECEIPT_WINDOW):
        window.send(client, b"x" * 1000)  # type: ignore[arg-type]
    window.finish(client)  # type: ignore[arg-type]

    assert client.unanswered_most == RECEIPT_WINDOW
    assert (window.sent, window.confirmed) == (3 * RECEIPT_WINDOW,) * 2


def test_no_receipt_requests_none_and_disconnects(run: Run, node: StubNode) -> None:
    result = run("send", "/topic/news", "x", "--no-receipt", "--at", node.at)

    assert sent(node)[0].receipt is None
    assert node.commands()[-1] == "DISCONNECT"
    assert result.output == "sent 1 message to /topic/news, no receipts requested\n"


def test_login_and_passcode_are_sent_and_can_come_from_the_environment(
    run: Run, node: StubNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QMQ_PASSCODE", "s:ecret")

    run("send", "/queue/jobs", "x", "--login", "ann", "--at", node.at)

    assert node.received[0].head.headers["login"] == "ann"
    assert node.received[0].head.headers["passcode"] == "s:ecret"


def test_a_token_is_read_from_its_file(run: Run, node: StubNode, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("eyJ.eyJ.x\n", "utf-8")

    run("send", "/queue/jobs", "x", "--token-file", str(file), "--at", node.at)
    run("send", "/queue/jobs", "x", "--login", "ann", "--token-file", str(file), "--at", node.at)

    shown = [frame.head.headers for frame in node.received if frame.head.command == "CONNECT"]
    assert [(headers["login"], headers["passcode"]) for headers in shown] == [
        ("token", "eyJ.eyJ.x"),
        ("ann", "eyJ.eyJ.x"),
    ]


@pytest.mark.parametrize("content", [None, "", "two\nlines", "\u00e9", "x" * 70_000])
def test_a_file_without_a_token_is_an_error_that_does_not_show_it(
    run: Run, node: StubNode, tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content, "utf-8")

    result = run("send", "/queue/jobs", "x", "--token-file", str(file), "--at", node.at)

    assert result.exit_code == 1
    assert result.stderr.startswith(f"qmq: {file}: ") and "two" not in result.stderr
    assert node.received == []


def test_a_token_and_a_passcode_exclude_each_other(run: Run, node: StubNode, tmp_path: Path) -> None:
    given = ("--token-file", str(tmp_path / "token"), "--passcode", "x")

    assert run("send", "/queue/jobs", "x", *given, "--at", node.at).exit_code == 2


def refuse_third(node: StubNode, request: Frame) -> bytes | None:
    if request.head.command == "SEND" and request.body == b"three":
        return frame("ERROR", [("message", "the queue \x1b is full"), ("error-code", "queue-full")])
    return polite(node, request)


def test_an_error_says_how_many_messages_were_confirmed_before(run: Run) -> None:
    with StubNode(refuse_third) as node:
        result = run("send", "/queue/jobs", "--lines", "-", "--at", node.at, input=b"one\ntwo\nthree\n")

    assert result.exit_code == 1
    assert result.stderr == (
        f"qmq: {node.at}: the queue \\x1b is full (queue-full); sent 3 messages to /queue/jobs, 2 confirmed\n"
    )


def test_a_connection_that_closes_without_an_error_is_reported(run: Run) -> None:
    with StubNode(lambda node, request: polite(node, request) if request.head.command == "CONNECT" else None) as node:
        result = run("send", "/queue/jobs", "x", "--at", node.at)

    assert result.exit_code == 1
    assert result.stderr.startswith(f"qmq: {node.at}: ")
    assert "sent 1 message to /queue/jobs, 0 confirmed" in result.stderr


def test_a_refused_login_is_reported(run: Run) -> None:
    refusal = frame("ERROR", [("message", "login refused"), ("error-code", "login-refused")])
    with StubNode(lambda node, request: refusal) as node:
        result = run("send", "/queue/jobs", "x", "--at", node.at)

    assert result.exit_code == 1
    assert result.stderr == f"qmq: {node.at}: login refused (login-refused)\n"


def test_an_answer_that_is_not_stomp_is_reported(run: Run) -> None:
    with StubNode(lambda node, request: b"HTTP/1.1 400 Bad Request\r\n\r\n") as node:
        result = run("send", "/queue/jobs", "x", "--at", node.at)

    assert result.exit_code == 1
    assert result.stderr == f"qmq: {node.at}: answers HTTP, not STOMP\n"


def test_a_header_that_stomp_cannot_carry_is_refused(run: Run, node: StubNode) -> None:
    result = run("send", "/queue/jobs", "x", "--header", "a:b\x00c", "--at", node.at)

    assert result.exit_code == 1
    assert sent(node) == []


def test_a_node_that_gives_no_receipt_is_not_waited_for_for_ever(run: Run) -> None:
    with StubNode(lambda node, request: b"" if request.head.command == "SEND" else polite(node, request)) as node:
        result = run("send", "/queue/jobs", "x", "--patience", "0.05", "--at", node.at)

    assert result.exit_code == 1
    assert "no receipt within 0.05 s; sent 1 message to /queue/jobs, 0 confirmed" in result.stderr


def test_a_node_that_does_not_answer_connect_is_reported(run: Run) -> None:
    with StubNode(lambda node, request: b"") as node:
        result = run("send", "/queue/jobs", "x", "--patience", "0.05", "--at", node.at)

    assert result.exit_code == 1
    assert "no answer to CONNECT within 0.05 s" in result.stderr


@pytest.mark.parametrize("header", ["destination:/queue/b", "receipt:mine"])
def test_a_header_of_the_command_itself_is_refused(run: Run, node: StubNode, header: str) -> None:
    result = run("send", "/queue/a", "x", "--header", header, "--at", node.at)

    assert result.exit_code == 2
    assert node.received == []
