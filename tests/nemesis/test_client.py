"""stomp.py as tests use it: it gives every frame to its listener, wherever reads end and heartbeats stand."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.support.cluster_client import Client, LostError, Message
from tests.support.cluster_wait import eventually

WAIT_SECONDS = 30.0
CONNECTED = b"CONNECTED\nversion:1.2\n\n\0\n"


class Node:
    """The other end of one connection. It responds to each frame of the client, and sends what the test says."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        self.socket: socket.socket | None = None

    def _serve(self) -> None:
        self.socket, _ = self._listener.accept()
        self.socket.settimeout(WAIT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for command, answer in ((b"STOMP", CONNECTED), (b"SUBSCRIBE", b"RECEIPT\nreceipt-id:r1\n\n\0\n")):
            held = b""
            while b"\0" not in held:
                held += self.socket.recv(1000)
            assert held.lstrip().startswith(command)
            self.socket.sendall(answer)

    def say(self, *pieces: bytes) -> None:
        assert self.socket is not None
        for piece in pieces:
            self.socket.sendall(piece)

    def close(self) -> None:
        self._thread.join(WAIT_SECONDS)
        if self.socket is not None:
            self.socket.close()


@pytest.fixture
def node() -> Iterator[tuple[Node, tuple[str, int]]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT_SECONDS)
        made = Node(listener)
        yield made, listener.getsockname()
        made.close()


def message(number: int, body: bytes) -> bytes:
    head = b"MESSAGE\nsubscription:s\nmessage-id:n.1-%d\ndestination:/fanout/f\ncontent-length:%d\n\n" % (
        number,
        len(body),
    )
    return head + body + b"\0\n"


def in_one_piece(data: bytes) -> list[bytes]:
    return [data]


def byte_by_byte(data: bytes) -> list[bytes]:
    return [data[place : place + 1] for place in range(len(data))]


def behind_each_nul(data: bytes) -> list[bytes]:
    """The LF that ends a frame comes with what follows it."""
    *whole, rest = data.split(b"\0")
    return [*(piece + b"\0" for piece in whole), rest]


@pytest.mark.parametrize("cut", [in_one_piece, byte_by_byte, behind_each_nul])
@pytest.mark.parametrize("heartbeats", [0, 1, 2, 3])
@pytest.mark.parametrize("body", [b"body", b"", b"\n\n\n", b"\0\n\n\0\n\n"])
def test_frame_behind_heartbeats_is_received(
    node: tuple[Node, tuple[str, int]], heartbeats: int, body: bytes, cut: Callable[[bytes], list[bytes]]
) -> None:
    there, address = node
    got: list[Message] = []
    client = Client(address)
    client.subscribe("/fanout/f", on_message=lambda _, message: got.append(message))

    data = b"".join(b"\n" * heartbeats + message(number, body) for number in range(1, 4))
    there.say(b"\n" * heartbeats, *cut(data))

    eventually(lambda: len(got) >= 3 or client.ended.is_set(), lambda: f"{[one.id for one in got]} came of three")
    assert [(one.id, one.body) for one in got] == [(f"n.1-{number}", body) for number in range(1, 4)]
    client.drop()


def test_a_connection_that_ends_during_a_send_is_lost(
    node: tuple[Node, tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reading thread of stomp.py takes the socket away, and the sending one calls a method of None."""
    client = Client(node[1])
    client.subscribe("/fanout/f")
    transport = client._connection.transport

    with monkeypatch.context() as patched:
        patched.setattr(transport, "socket", None)
        patched.setattr(client._connection, "send", lambda *_, **__: transport.socket.sendall(b""))
        with pytest.raises(LostError, match="has ended"):
            client.send("/fanout/f", b"body")

    client.drop()
