"""Publishes with confirms, and deliveries with acks, of a node beside RabbitMQ: `python -m benchmarks.amqp [--write]`.

RabbitMQ is Debian's (`apt-get install --no-install-recommends rabbitmq-server`); without it only the node is measured,
in both builds if `make compiled` has made the second. All are on one core, in turn, on the same disk, with a durable
queue and persistent messages; the clients are one process on another core, with plain sockets. Each publisher keeps
some messages without a confirm, as a program with a window does. Each consumer has a prefetch count and acknowledges
each message by itself, all of one read in one write. Then there are idle connections, each with a channel. `--write`
puts the table on docs/benchmarks.md.
"""

import contextlib
import os
import selectors
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pamqp import base, commands, frame, header

from benchmarks.beanstalk import free_port, server
from benchmarks.builds import NODE_FILE, Build, builds
from benchmarks.others import RABBITMQ, Started, resident_kib, started
from benchmarks.page import DOCS, MACHINE, shown, table, write_section
from qmq.address import Address
from qmq.cli.bench.target import cores

MESSAGES: int = 40_000
"""Of each measurement, of all connections together."""

BODY: bytes = b"x" * 200
QUEUE: str = "bench"
SHAPES: tuple[tuple[int, int], ...] = ((1, 100), (10, 100))
"""How many connections, and how many messages each has without a confirm, or as its prefetch count."""

IDLE: int = 1_000
"""Connections that do nothing."""

SECONDS: float = 120.0
ROUNDS: int = 3
READ_BYTES: int = 1 << 18
HEAD = struct.Struct(">BHI")
DELIVER, ACK = b"\x00\x3c\x00\x3c", b"\x00\x3c\x00\x50"


class Connection:
    """One channel, logged in as guest. Frames are read only as far as counting needs."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = b""
        self.socket.sendall(b"AMQP\x00\x00\x09\x01")
        self._until("Connection.Start")
        self._send(commands.Connection.StartOk(mechanism="PLAIN", response="\0guest\0guest"), 0)
        tune = self._until("Connection.Tune")
        self._send(commands.Connection.TuneOk(tune.channel_max, tune.frame_max, 0), 0)
        self.call(commands.Connection.Open("/"), "Connection.OpenOk", 0)
        self.call(commands.Channel.Open(), "Channel.OpenOk")
        self.call(commands.Queue.Declare(queue=QUEUE, durable=True), "Queue.DeclareOk")

    def call(self, method: base.Frame, reply: str, channel: int = 1) -> None:
        self._send(method, channel)
        self._until(reply)

    def payloads(self, data: bytes) -> list[bytes]:
        """The methods of all whole frames."""
        data = self._unread + data
        found = []
        at = 0
        while len(data) - at >= HEAD.size:
            kind, _, size = HEAD.unpack_from(data, at)
            end = at + HEAD.size + size + 1
            if end > len(data):
                break
            if kind == 1:
                found.append(data[at + HEAD.size : end - 1])
            at = end
        self._unread = data[at:]
        return found

    def _send(self, method: base.Frame, channel: int) -> None:
        self.socket.sendall(frame.marshal(method, channel))

    def _until(self, name: str) -> Any:
        """The next method with this name."""
        while True:
            data = self.socket.recv(READ_BYTES)
            assert data, f"the connection ended before {name}"
            data = self._unread + data
            while data:
                frame_read: tuple[int, int, Any] = frame.unmarshal(data)
                read, _, method = frame_read
                if not read:
                    break
                data = data[read:]
                if method.name == name:
                    self._unread = data
                    return method
                assert method.name not in ("Connection.Close", "Channel.Close"), method.reply_text
            self._unread = data


Server = tuple[int, int]
"""Its port and its process id."""

Start = Callable[[], contextlib.AbstractContextManager[Server]]
Step = Callable[[bytes], tuple[int, bytes]]
"""Takes what was read; returns how many messages that was, and what to write."""


def publisher(connection: Connection, count: int, window: int) -> tuple[bytes, Step]:
    """What to write first, and what follows."""
    connection.call(commands.Confirm.Select(), "Confirm.SelectOk")
    properties = commands.Basic.Properties(delivery_mode=2)
    message = b"".join(
        [
            frame.marshal(commands.Basic.Publish(routing_key=QUEUE), 1),
            frame.marshal(header.ContentHeader(body_size=len(BODY), properties=properties), 1),
            HEAD.pack(3, 1, len(BODY)) + BODY + b"\xce",
        ]
    )
    sent, confirmed = min(window, count), 0

    def take(data: bytes) -> tuple[int, bytes]:
        nonlocal sent, confirmed
        before = confirmed
        for payload in connection.payloads(data):
            assert payload.startswith(ACK), payload[:8]
            tag = int.from_bytes(payload[4:12], "big")
            confirmed = tag if payload[12] & 1 else confirmed + 1
        more = min(confirmed + window, count) - sent
        sent += more
        return confirmed - before, message * more

    return message * sent, take


def consumer(connection: Connection, count: int, window: int) -> tuple[bytes, Step]:
    """As `publisher`; how many of all a consumer gets is the broker's choice."""
    connection.call(commands.Basic.Qos(prefetch_count=window), "Basic.QosOk")

    def take(data: bytes) -> tuple[int, bytes]:
        acks = []
        for payload in connection.payloads(data):
            if payload.startswith(DELIVER):
                tag_at = 5 + payload[4]
                acks.append(HEAD.pack(1, 1, 13) + ACK + payload[tag_at : tag_at + 8] + b"\x00\xce")
        return len(acks), b"".join(acks)

    return frame.marshal(commands.Basic.Consume(queue=QUEUE), 1), take


def rate(port: int, connections: int, window: int, work: Callable[..., tuple[bytes, Step]]) -> float:
    """Messages a second."""
    opened = [Connection(port) for _ in range(connections)]
    begins = [work(one, MESSAGES // connections, window) for one in opened]
    with selectors.DefaultSelector() as selector:
        for one, (_, take) in zip(opened, begins, strict=True):
            selector.register(one.socket, selectors.EVENT_READ, take)
        began = time.monotonic()
        for one, (first, _) in zip(opened, begins, strict=True):
            one.socket.sendall(first)
        done = 0
        while done < MESSAGES // connections * connections:
            ready = selector.select(SECONDS)
            assert ready, f"nothing came for {SECONDS} s after {done} messages"
            for key, _ in ready:
                one_socket = key.fileobj
                assert isinstance(one_socket, socket.socket)
                count, data = key.data(one_socket.recv(READ_BYTES))
                done += count
                if data:
                    one_socket.sendall(data)
        took = time.monotonic() - began
    for one in opened:
        one.socket.close()
    return done / took


def idle_kib(server: Server) -> float:
    """By how much the process grows with each idle connection, in KiB."""
    port, pid = server
    Connection(port).socket.close()
    before = resident_kib(pid)
    opened = [Connection(port) for _ in range(IDLE)]
    grown = resident_kib(pid) - before
    for one in opened:
        one.socket.close()
    return grown / IDLE


@contextlib.contextmanager
def node(folder: Path, core: int, build: Build) -> Iterator[Server]:
    port = free_port()
    file = folder / "node.toml"
    settings = NODE_FILE.format(data=folder / f"data-{port}", stomp=free_port(), protocol="amqp", port=port)
    file.write_text(settings, "utf-8")
    with server(build.command(core, file), port, build.tree) as pid:
        yield port, pid


@contextlib.contextmanager
def rabbitmq(core: int) -> Iterator[Server]:
    def prepare(place: Path, address: Address) -> Started:
        found = RABBITMQ.prepare(place, address)
        (place / "rabbitmq.conf").write_text(f"listeners.tcp.1 = {address}\nlog.file.level = warning\n", "utf-8")
        (place / "plugins").write_text("[].\n", "utf-8")
        return found

    with started(replace(RABBITMQ, prepare=prepare), core) as (address, pid):
        yield address.port, pid


def measure(folder: Path) -> list[str]:
    """A table of Markdown."""
    server_core, client_core = cores()
    os.sched_setaffinity(0, {client_core})
    servers: dict[str, Start] = {build.name: partial(node, folder, server_core, build) for build in builds()}
    if RABBITMQ.is_installed():
        servers[f"RabbitMQ {RABBITMQ.version}"] = lambda: rabbitmq(server_core)
    rows = []
    for connections, window in SHAPES:
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in servers}
        for _ in range(ROUNDS):
            for name, start in servers.items():
                with start() as (port, _):
                    published = rate(port, connections, window, publisher)
                    found[name].append((published, rate(port, connections, window, consumer)))
        for name, rates in found.items():
            middle = [sorted(column)[ROUNDS // 2] for column in zip(*rates, strict=True)]
            rows.append([name, f"{connections}, {window} messages each", *map(shown, middle), ""])
            print(*rows[-1], sep=", ", flush=True)
    for name, start in servers.items():
        with start() as idle:
            rows.append([name, f"{IDLE:,}, idle", "", "", shown(idle_kib(idle))])
            print(*rows[-1], sep=", ", flush=True)
    head = ["server", "connections", "publishes with confirm/s", "deliveries with ack/s", "KiB for each connection"]
    return table(head, rows, [2, 3, 4])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        lines = measure(Path(scratch))
    if "--write" in sys.argv:
        write_section(DOCS / "benchmarks.md", "amqp", [f"`python -m benchmarks.amqp`; {MACHINE}.", "", *lines])
