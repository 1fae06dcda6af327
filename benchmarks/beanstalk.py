"""Puts, and reserves with deletes, of a node beside beanstalkd: `python -m benchmarks.beanstalk [--write]`.

beanstalkd is Debian's (`apt-get install beanstalkd`); without it only the node is measured, in both builds if `make
compiled` has made the second. All servers are measured in turn on one core and the same disk, with the same clients on
another core: each keeps some commands under way, as a program with a window does, and the rate is that of all. A
durable put is answered when it is on disk: `beanstalkd -b DIRECTORY -f0` syncs its log for each put. Of ROUNDS runs the
table shows the median. `--write` puts it on docs/benchmarks.md.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.builds import NODE_FILE, builds
from benchmarks.page import DOCS, MACHINE, shown, table, write_section
from qmq.cli.bench.target import cores

JOBS: int = 20_000
"""Of each measurement, of all clients together; a tenth where each of them waits for its own sync."""

BODY: bytes = b"x" * 100
CLIENTS: tuple[int, ...] = (1, 10)
WINDOWS: tuple[int, ...] = (1, 100)
SECONDS: float = 300.0
ROUNDS: int = 3


class Connection:
    """Counts replies; what is in them does not matter here."""

    def __init__(self, port: int, tube: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = b""
        self.socket.sendall(f"use {tube}\r\nwatch {tube}\r\nignore default\r\n".encode())
        for _ in range(3):
            self.line()

    def line(self) -> bytes:
        while b"\r\n" not in self._unread:
            data = self.socket.recv(1 << 16)
            assert data, "the server closed the connection"
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\r\n")
        return line

    def put(self, count: int, window: int) -> None:
        command = b"put 1024 0 120 %d\r\n%b\r\n" % (len(BODY), BODY)
        sent = received = 0
        while received < count:
            wanted = min(window - (sent - received), count - sent)
            if wanted > 0:
                self.socket.sendall(command * wanted)
                sent += wanted
            # As many as are here, at least one.
            word = self.line()
            received += 1
            while b"\r\n" in self._unread:
                word = self.line()
                received += 1
            assert word.startswith(b"INSERTED"), word

    def work(self, count: int, window: int) -> None:
        """Reserve `window` jobs, delete them, and again."""
        done = 0
        while done < count:
            wanted = min(window, count - done)
            self.socket.sendall(b"reserve\r\n" * wanted)
            jobs = []
            for _ in range(wanted):
                word, job, _ = self.line().split(b" ")
                assert word == b"RESERVED", word
                self.line()
                jobs.append(job)
            self.socket.sendall(b"".join([b"delete %b\r\n" % job for job in jobs]))
            for _ in jobs:
                assert self.line() == b"DELETED"
            done += wanted


def rates(port: int, clients: int, window: int, jobs: int) -> tuple[float, float]:
    """Puts in a second, and reserves with deletes."""
    tube = f"t{clients}-{window}"
    connections = [Connection(port, tube) for _ in range(clients)]
    each = jobs // clients
    found = []
    with ThreadPoolExecutor(clients) as pool:
        for what in (Connection.put, Connection.work):
            begun = time.monotonic()
            for future in [pool.submit(what, one, each, window) for one in connections]:
                future.result()
            found.append(each * clients / (time.monotonic() - begun))
    for one in connections:
        one.socket.close()
    return found[0], found[1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def server(command: Sequence[str], port: int, tree: Path | None = None) -> Iterator[int]:
    """Its process id, when it listens. It starts in `tree`."""
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=tree)
    try:
        until = time.monotonic() + 60
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert time.monotonic() < until, f"{command[0]} does not listen"
            time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


Start = Callable[[], contextlib.AbstractContextManager[int]]
"""Starts a server; its port."""


def servers(folder: Path, core: int, program: str | None) -> Mapping[str, Start]:
    """Each by the name of its row."""

    @contextlib.contextmanager
    def node(command: Callable[[int, Path], Sequence[str]], tree: Path) -> Iterator[int]:
        port = free_port()
        file = folder / f"node-{port}.toml"
        settings = NODE_FILE.format(data=folder / f"data-{port}", stomp=free_port(), protocol="beanstalk", port=port)
        file.write_text(settings, "utf-8")
        with server(command(core, file), port, tree):
            yield port

    @contextlib.contextmanager
    def beanstalkd(is_durable: bool) -> Iterator[int]:
        port = free_port()
        data = folder / f"log-{port}"
        data.mkdir()
        command = ["taskset", "-c", str(core), program or "", "-l", "127.0.0.1", "-p", str(port)]
        with server(command + (["-b", str(data), "-f0"] if is_durable else []), port):
            yield port

    found: dict[str, Start] = {build.name: partial(node, build.command, build.tree) for build in builds()}
    if program:
        found["beanstalkd -b -f0"] = partial(beanstalkd, True)
        found["beanstalkd, memory only"] = partial(beanstalkd, False)
    return found


def measure(folder: Path, program: str | None) -> list[str]:
    """A table of Markdown."""
    server_core, client_core = cores()
    os.sched_setaffinity(0, {client_core})
    starts = servers(folder, server_core, program)
    rows = []
    for clients in CLIENTS:
        for window in WINDOWS:
            jobs = JOBS // 10 if clients * window == 1 else JOBS
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in starts}
            for _ in range(ROUNDS):
                for name, start in starts.items():
                    with start() as port:
                        found[name].append(rates(port, clients, window, jobs))
            for name, runs in found.items():
                middle = [sorted(column)[ROUNDS // 2] for column in zip(*runs, strict=True)]
                rows.append([name, str(clients), str(window), *map(shown, middle)])
                print(*rows[-1], sep=", ", flush=True)
    return table(["server", "clients", "commands under way", "puts/s", "reserves with delete/s"], rows, [1, 2, 3, 4])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        lines = measure(Path(scratch), shutil.which("beanstalkd"))
    if "--write" in sys.argv:
        write_section(
            DOCS / "benchmarks.md", "beanstalk", [f"`python -m benchmarks.beanstalk`; {MACHINE}.", "", *lines]
        )
