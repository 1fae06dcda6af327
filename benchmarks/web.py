"""The web port of one node: messages that are sent by themselves and in batches, and streams of events.

    python -m benchmarks.web post|batch|events|tcp|websocket [--connections 4] [--seconds 5]

The node is a throwaway one on a core of its own, with the default fsync. The load is one process on another core: plain
sockets, and no more parsing than is needed to count. Prints one line of JSON.
"""

import argparse
import json
import os
import platform
import selectors
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from qmq import __version__
from qmq.build import BUILD
from qmq.cli.bench.target import cores
from qmq.cli.throwaway import Throwaway, exit_on_signals, throwaway
from qmq.config import Address

CONNECTIONS = 4
BODY_BYTES = 200
BATCH = 500
STREAMS = 100
EVENTS_AHEAD = 2
"""Batches that may be on their way to the streams; a broker that is sent more drops clients that are slow."""
SENDS = 1000
MESSAGE = b"MESSAGE\n"
WARMUP_SECONDS = 1.0
READ_BYTES = 1 << 18
TICKS = os.sysconf("SC_CLK_TCK")


def post(path: str, body: bytes, content_type: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def batch_of(count: int) -> bytes:
    return json.dumps({"messages": [{"body": "x" * BODY_BYTES}] * count}).encode()


def connect(node: Throwaway) -> socket.socket:
    return connect_to(node.web_address)


def connect_to(address: Address) -> socket.socket:
    one = socket.create_connection((address.host, address.port))
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one


class Load:
    """Counts what is done in the measured time. Each connection sends a request when the one before is answered."""

    def __init__(self, node: Throwaway, seconds: float, connections: int = CONNECTIONS) -> None:
        self._node = node
        self.connections = connections
        self._selector = selectors.DefaultSelector()
        now = time.monotonic()
        self._begin, self._end = now + WARMUP_SECONDS, now + WARMUP_SECONDS + seconds
        self.counted = 0
        self.seconds = 0.0
        self.cpu_seconds = 0.0

    def watch(self, one: socket.socket, take: Callable[[bytes], int]) -> None:
        """`take` gets what the connection reads, and returns what of it counts."""
        self._selector.register(one, selectors.EVENT_READ, take)

    def run(self) -> None:
        begun = 0.0
        cpu = 0.0
        while (now := time.monotonic()) < self._end:
            if not begun and now >= self._begin:
                begun, cpu = now, self._cpu()
            for key, _ in self._selector.select(1.0):
                data = key.fileobj.recv(READ_BYTES)  # type: ignore[union-attr]
                if not data:
                    sys.exit("benchmarks.web: the node has closed a connection")
                count = key.data(data)
                if begun:
                    self.counted += count
        self.seconds = time.monotonic() - begun
        self.cpu_seconds = self._cpu() - cpu

    def _cpu(self) -> float:
        fields = Path(f"/proc/{self._node.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


def requests(load: Load, node: Throwaway, request: bytes, messages: int) -> None:
    """Clients that send the request again and again."""

    def add() -> None:
        one = connect(node)
        rest = b""

        def take(data: bytes) -> int:
            nonlocal rest
            rest += data
            head, found, body = rest.partition(b"\r\n\r\n")
            if not found or len(body) < int(head.partition(b"content-length: ")[2].partition(b"\r")[0]):
                return 0
            if not head.startswith(b"HTTP/1.1 201"):
                sys.exit(f"benchmarks.web: {rest.decode()}")
            rest = b""
            one.sendall(request)
            return messages

        load.watch(one, take)
        one.sendall(request)

    for _ in range(load.connections):
        add()


def singles(load: Load, node: Throwaway) -> None:
    requests(load, node, post("/v1/queues/bench/messages", b"x" * BODY_BYTES, "application/octet-stream"), 1)


def batches(load: Load, node: Throwaway) -> None:
    requests(load, node, post("/v1/queues/bench/messages", batch_of(BATCH), "application/json"), BATCH)


def events(load: Load, node: Throwaway) -> None:
    """STREAMS clients of one topic; a batch is sent when all of them have got those before."""
    request = post("/v1/topics/bench/messages", batch_of(BATCH), "application/json")
    sender = connect(node)
    got = 0

    def take(data: bytes) -> int:
        nonlocal got
        count = data.count(b'"id"')
        before = got // (BATCH * STREAMS)
        got += count
        for _ in range(got // (BATCH * STREAMS) - before):
            sender.sendall(request)
        return count

    for _ in range(STREAMS):
        one = connect(node)
        one.sendall(b"GET /v1/topics/bench/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
        one.recv(READ_BYTES)
        load.watch(one, take)
    load.watch(sender, lambda data: 0)
    for _ in range(EVENTS_AHEAD):
        sender.sendall(request)


def framed(data: bytes) -> bytes:
    """A text message of a WebSocket client. Its mask is zero, which costs the node as much as any other."""
    assert len(data) >= 126, "as STOMP frames of a benchmark are"
    return bytes((0x81, 0xFE)) + len(data).to_bytes(2, "big") + bytes(4) + data


def topic(
    load: Load, node: Throwaway, connect_client: Callable[[], socket.socket], frame: Callable[[bytes], bytes]
) -> None:
    """A sender and a subscriber of one topic; `SENDS` are sent when as many of those before have been delivered."""
    sends = frame(b"SEND\ndestination:/topic/bench\n\n" + b"x" * BODY_BYTES + b"\0") * SENDS
    sender, subscriber = connect_client(), connect_client()
    got = 0
    rest = b""

    def take(data: bytes) -> int:
        nonlocal got, rest
        data = rest + data
        # A word that is cut at the end of one read is counted in the next.
        rest = data[-len(MESSAGE) + 1 :]
        before, count = got // SENDS, data.count(MESSAGE)
        got += count
        for _ in range(got // SENDS - before):
            sender.sendall(sends)
        return count

    for one in (sender, subscriber):
        one.sendall(frame(b"CONNECT\naccept-version:1.2\nhost:bench\npadding:" + b"x" * 100 + b"\n\n\0"))
        one.recv(READ_BYTES)
    subscriber.sendall(
        frame(b"SUBSCRIBE\nid:1\ndestination:/topic/bench\nreceipt:r\npadding:" + b"x" * 100 + b"\n\n\0")
    )
    subscriber.recv(READ_BYTES)
    load.watch(subscriber, take)
    for _ in range(EVENTS_AHEAD):
        sender.sendall(sends)


def over_tcp(load: Load, node: Throwaway) -> None:
    topic(load, node, lambda: connect_to(node.address), bytes)


def over_websocket(load: Load, node: Throwaway) -> None:
    """Each frame is a message by itself, as clients in browsers send them."""

    def connect_client() -> socket.socket:
        one = connect(node)
        one.sendall(
            b"GET /stomp HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        if b" 101 " not in one.recv(READ_BYTES):
            sys.exit("benchmarks.web: the node has accepted no WebSocket")
        return one

    topic(load, node, connect_client, framed)


LOADS: Mapping[str, Callable[[Load, Throwaway], None]] = {
    "post": singles,
    "batch": batches,
    "events": events,
    "tcp": over_tcp,
    "websocket": over_websocket,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.web")
    parser.add_argument("load", choices=LOADS)
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help="of senders (default: 4)")
    parser.add_argument("--seconds", type=float, default=5.0, help="measured seconds (default: 5)")
    options = parser.parse_args()
    exit_on_signals()
    own, other = cores()
    os.sched_setaffinity(0, {other})
    with throwaway(None, {}, own, has_web=True) as node:
        load = Load(node, options.seconds, options.connections)
        LOADS[options.load](load, node)
        load.run()
    print(
        json.dumps(
            {
                "load": options.load,
                "build": BUILD,
                "per_second": round(load.counted / load.seconds),
                "server_cpu_us_per_message": round(load.cpu_seconds * 1e6 / max(load.counted, 1), 2),
                "server_cpu_share": round(load.cpu_seconds / load.seconds, 2),
                "qmq": __version__,
                "python": platform.python_version(),
            }
        )
    )


if __name__ == "__main__":
    main()
