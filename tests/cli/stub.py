"""A stranger that speaks enough STOMP for the commands to talk to; the real node has its own tests.

`StubNode` serves one connection after the other in a thread and keeps what it received. Started as a program with the
options of `qmq serve`, it stands in for a node process; the node's name says how it misbehaves.
"""

import json
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from qmq.config import Address, load_peers
from qmq.wire.stomp import Connection, Frame, Role, Version, encode_frame

ANY_PORT = Address("127.0.0.1", 0)

Answer = Callable[["StubNode", Frame], bytes | None]
"""What to send for a frame; None closes the connection."""

STATUS: dict[str, object] = {
    "node": "a",
    "incarnation": "00000000000000aa",
    "uptime_seconds": 3725.5,
    "connections": 3,
    "subscriptions": 2,
    "queues": [{"destination": "/queue/jobs", "messages": 12}],
    "fanouts": [{"destination": "/fanout/log", "messages": 2000, "bytes": 90000}],
    "journal": {"start": 1000, "end": 5096, "synced_end": 5096},
    "peers": [
        {"name": "b", "out": "up", "in": "up", "lag": {"b:00000000000000bb": 4}},
        {"name": "c", "out": "down", "in": "up", "lag": {}},
    ],
    "conditions": [{"code": "forged-origin", "message": "b sent records of nobody", "count": 3, "last_us": 1}],
}


def frame(command: str, headers: Sequence[tuple[str, str]], body: bytes = b"") -> bytes:
    return encode_frame(command, headers, body, version=Version.V12)


def message(number: int, body: bytes, *headers: tuple[str, str]) -> bytes:
    fixed = [("subscription", "0"), ("message-id", f"m{number}"), ("ack", f"a{number}")]
    return frame("MESSAGE", [*fixed, ("destination", "/queue/jobs"), *headers], body)


def receipt_of(request: Frame, *headers: tuple[str, str]) -> bytes:
    return b"" if request.receipt is None else frame("RECEIPT", [("receipt-id", request.receipt), *headers])


def polite(node: "StubNode", request: Frame) -> bytes | None:
    """A node that takes everything, delivers `node.messages` on SUBSCRIBE and gives its status."""
    command = request.head.command
    if command in ("CONNECT", "STOMP"):
        return frame("CONNECTED", [("version", "1.2"), ("server", "stub")])
    if command == "SEND" and request.head.headers["destination"] == "/control/status":
        return verb_answer(request, STATUS)
    if command == "SUBSCRIBE":
        return receipt_of(request) + b"".join(node.messages)
    return receipt_of(request)


def verb_answer(request: Frame, facts: object) -> bytes:
    """The message that responds to a control request."""
    headers = [("subscription", request.head.headers["reply-to"]), ("message-id", "m1"), ("destination", "/x")]
    return frame("MESSAGE", headers, json.dumps(facts).encode())


def of_verbs(answers: Mapping[str, object], *denied: str) -> "StubNode":
    """A node that responds to these verbs, but for those that its user may not use."""

    def answer(node: StubNode, request: Frame) -> bytes | None:
        if request.head.command != "SEND":
            return polite(node, request)
        verb = request.head.headers["destination"].removeprefix("/control/")
        if verb in denied:
            return frame("ERROR", [("message", "may not"), ("error-code", "not-allowed")])
        return verb_answer(request, answers[verb])

    return StubNode(answer)


class StubNode:
    """Listens while its `with` lasts. `received` holds every frame that any connection sent."""

    def __init__(self, answer: Answer = polite, address: Address = ANY_PORT) -> None:
        self.answer = answer
        self.messages: list[bytes] = []
        self.received: list[Frame] = []
        self._listener = socket.create_server(address)
        self.at = "{}:{}".format(*self._listener.getsockname())
        self._thread = threading.Thread(target=self.serve, daemon=True)

    def __enter__(self) -> "StubNode":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._thread.join(10)
        self._listener.close()
        assert not self._thread.is_alive(), "a command left its connection open"

    def commands(self) -> list[str]:
        return [request.head.command for request in self.received]

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                self._converse(connection)

    def _converse(self, connection: socket.socket) -> None:
        codec = Connection(Role.SERVER)
        try:
            while data := connection.recv(65536):
                for request in codec.receive(data):
                    self.received.append(request)
                    answer = self.answer(self, request)
                    if answer is None:
                        return
                    connection.sendall(answer)
        except ConnectionError:
            return


def run_as_process(arguments: Sequence[str]) -> None:
    """`serve --node NAME --data DIR --peers FILE …`, as the launcher says it."""
    options = dict(zip(arguments[1::2], arguments[2::2], strict=True))
    name = options["--node"]
    peer = load_peers(Path(options["--peers"])).peer(name)
    assert arguments[0] == "serve" and peer is not None and Path(options["--data"]).is_dir()
    print(f"{name} starts", flush=True)
    if name == "dies":
        sys.exit("cannot go on: \x1b[31mno reason")
    signal.signal(signal.SIGTERM, signal.SIG_IGN if name == "stubborn" else lambda *_: sys.exit(0))
    if name == "mute":
        signal.pause()
    StubNode(polite, peer.client).serve()


if __name__ == "__main__":
    run_as_process(sys.argv[1:])
