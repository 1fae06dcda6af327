"""The web port of one node: messages that are sent by themselves and in batches, and streams of events.

    python -m benchmarks.web post|batch|events|tcp|websocket|idle [--connections 4] [--seconds 5] [--rabbitmq]

The node is a throwaway one on a core of its own, with the default fsync. The load is one process on another core: plain
sockets, and no more parsing than is needed to count. Prints one line of JSON.

With `--rabbitmq` the load is put on Debian's RabbitMQ: `post` on its management API, `websocket` on its web-stomp
plugin, `tcp` on its STOMP plugin. It has no batches and no events. `idle` is what the process grows by with each
WebSocket that has logged in and does nothing.
"""

import argparse
import json
import os
import platform
import selectors
import socket
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.others import RABBITMQ, Started, resident_kib, started
from qmq import __version__
from qmq.address import Address
from qmq.build import BUILD
from qmq.cli.bench.target import allow_files, cores, limits_for
from qmq.cli.throwaway import exit_on_signals, free_addresses, throwaway

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


def post(path: str, body: bytes, content_type: str, more: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}"
    return f"{head}{more}\r\n\r\n".encode() + body


@dataclass(frozen=True)
class Broker:
    """Where the load goes, and what differs from broker to broker."""

    pid: int
    address: Address
    web_address: Address
    websocket_address: Address
    version: str = __version__
    websocket_path: str = "/stomp"
    login: bytes = b""
    single: bytes = post("/v1/queues/bench/messages", b"x" * BODY_BYTES, "application/octet-stream")
    """A request that sends one message."""
    success: bytes = b"HTTP/1.1 201"


@contextmanager
def qmq_node(core: int, connections: int) -> Iterator[Broker]:
    with throwaway(None, limits_for(connections=connections), core, has_web=True) as node:
        yield Broker(node.pid, node.address, node.web_address, node.web_address)


@contextmanager
def rabbitmq(core: int, _: int) -> Iterator[Broker]:
    if not RABBITMQ.is_installed():
        sys.exit(f"benchmarks.web: RabbitMQ is not installed (apt-get install {RABBITMQ.package})")
    web_address, websocket_address = free_addresses(2)

    def prepare(place: Path, address: Address) -> Started:
        found = RABBITMQ.prepare(place, address)
        with (place / "rabbitmq.conf").open("a") as file:
            file.write(f"management.tcp.ip = {web_address.host}\nmanagement.tcp.port = {web_address.port}\n")
            file.write(f"web_stomp.tcp.ip = {websocket_address.host}\nweb_stomp.tcp.port = {websocket_address.port}\n")
        (place / "plugins").write_text("[rabbitmq_stomp,rabbitmq_web_stomp,rabbitmq_management].\n", "utf-8")
        return found

    login = f"\r\nauthorization: Basic {b64encode(b'guest:guest').decode()}"
    message = {"properties": {"delivery_mode": 2}, "routing_key": "bench", "payload_encoding": "string"}
    with started(replace(RABBITMQ, prepare=prepare), core) as (address, pid):
        broker = Broker(
            pid,
            address,
            web_address,
            websocket_address,
            RABBITMQ.version,
            "/ws",
            b"login:guest\npasscode:guest\n",
            post(
                "/api/exchanges/%2F/amq.default/publish",
                json.dumps({**message, "payload": "x" * BODY_BYTES}).encode(),
                "application/json",
                login,
            ),
            b"HTTP/1.1 200",
        )
        queue = post("/api/queues/%2F/bench", b'{"durable":true}', "application/json", login)
        with connect_to(web_address) as one:
            one.sendall(queue.replace(b"POST", b"PUT", 1))
            if not one.recv(READ_BYTES).startswith(b"HTTP/1.1 201"):
                sys.exit("benchmarks.web: RabbitMQ has declared no queue")
        yield broker


def batch_of(count: int) -> bytes:
    return json.dumps({"messages": [{"body": "x" * BODY_BYTES}] * count}).encode()


def connect_to(address: Address) -> socket.socket:
    one = socket.create_connection((address.host, address.port))
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one


class Load:
    """Counts what is done in the measured time. Each connection sends a request when the one before is answered."""

    def __init__(self, node: Broker, seconds: float, connections: int = CONNECTIONS) -> None:
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


def requests(load: Load, node: Broker, request: bytes, messages: int) -> None:
    """Clients that send the request again and again."""

    def add() -> None:
        one = connect_to(node.web_address)
        rest = b""

        def take(data: bytes) -> int:
            nonlocal rest
            rest += data
            head, found, body = rest.partition(b"\r\n\r\n")
            if not found or len(body) < int(head.partition(b"content-length: ")[2].partition(b"\r")[0]):
                return 0
            if not head.startswith(node.success):
                sys.exit(f"benchmarks.web: {rest.decode()}")
            rest = b""
            one.sendall(request)
            return messages

        load.watch(one, take)
        one.sendall(request)

    for _ in range(load.connections):
        add()


def singles(load: Load, node: Broker) -> None:
    requests(load, node, node.single, 1)


def batches(load: Load, node: Broker) -> None:
    requests(load, node, post("/v1/queues/bench/messages", batch_of(BATCH), "application/json"), BATCH)


def events(load: Load, node: Broker) -> None:
    """STREAMS clients of one topic; a batch is sent when all of them have got those before."""
    request = post("/v1/topics/bench/messages", batch_of(BATCH), "application/json")
    sender = connect_to(node.web_address)
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
        one = connect_to(node.web_address)
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
    load: Load, node: Broker, connect_client: Callable[[], socket.socket], frame: Callable[[bytes], bytes]
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
        one.sendall(frame(CONNECT % node.login))
        one.recv(READ_BYTES)
    subscriber.sendall(
        frame(b"SUBSCRIBE\nid:1\ndestination:/topic/bench\nreceipt:r\npadding:" + b"x" * 100 + b"\n\n\0")
    )
    subscriber.recv(READ_BYTES)
    load.watch(subscriber, take)
    for _ in range(EVENTS_AHEAD):
        sender.sendall(sends)


def over_tcp(load: Load, node: Broker) -> None:
    topic(load, node, lambda: connect_to(node.address), bytes)


CONNECT = b"CONNECT\naccept-version:1.2\nhost:/\n%bpadding:" + b"x" * 100 + b"\n\n\0"


def connect_websocket(node: Broker) -> socket.socket:
    one = connect_to(node.websocket_address)
    one.sendall(
        f"GET {node.websocket_path} HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
    )
    if b" 101 " not in one.recv(READ_BYTES):
        sys.exit("benchmarks.web: the broker has accepted no WebSocket")
    return one


def over_websocket(load: Load, node: Broker) -> None:
    """Each frame is a message by itself, as clients in browsers send them."""
    topic(load, node, lambda: connect_websocket(node), framed)


def idle_bytes(node: Broker, connections: int) -> int:
    """By how much the process of the broker grows with each WebSocket, in bytes."""

    def logged_in() -> socket.socket:
        one = connect_websocket(node)
        one.sendall(framed(CONNECT % node.login))
        one.recv(READ_BYTES)
        return one

    held = [logged_in()]
    before = resident_kib(node.pid)
    held += [logged_in() for _ in range(connections)]
    grown = resident_kib(node.pid) - before
    return grown * 1024 // connections


LOADS: Mapping[str, Callable[[Load, Broker], None]] = {
    "post": singles,
    "batch": batches,
    "events": events,
    "tcp": over_tcp,
    "websocket": over_websocket,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.web")
    parser.add_argument("load", choices=[*LOADS, "idle"])
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help="of senders (default: 4)")
    parser.add_argument("--seconds", type=float, default=5.0, help="measured seconds (default: 5)")
    parser.add_argument("--rabbitmq", action="store_true", help="measure RabbitMQ instead of a node")
    options = parser.parse_args()
    if options.rabbitmq and options.load in ("batch", "events"):
        parser.error("RabbitMQ has no such requests")
    exit_on_signals()
    own, other = cores()
    os.sched_setaffinity(0, {other})
    allow_files(options.connections)
    with (rabbitmq if options.rabbitmq else qmq_node)(own, options.connections) as node:
        if options.load == "idle":
            facts: dict[str, float] = {"bytes_per_connection": idle_bytes(node, options.connections)}
        else:
            load = Load(node, options.seconds, options.connections)
            LOADS[options.load](load, node)
            load.run()
            facts = {
                "per_second": round(load.counted / load.seconds),
                "server_cpu_us_per_message": round(load.cpu_seconds * 1e6 / max(load.counted, 1), 2),
                "server_cpu_share": round(load.cpu_seconds / load.seconds, 2),
            }
    about = {
        "load": options.load,
        "build": "" if options.rabbitmq else BUILD,
        "broker" if options.rabbitmq else "qmq": node.version,
        "python": platform.python_version(),
    }
    print(json.dumps({**about, **facts}))


if __name__ == "__main__":
    main()
