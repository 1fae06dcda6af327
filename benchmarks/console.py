"""What open tabs of the console cost a node, how much a first visit loads, and what other clients notice.

    python -m benchmarks.console tabs|paint|latency [--seconds 10]

The node is one of three throwaway nodes with QUEUES queues. Tabs are pages of Chromium, ten of them: all on the mesh
page, or each on another one. Cost is processor time and memory of the node's process with the tabs, less those without.
So other work on the machine does not count. `latency` measures three runs in turn, where a process repeats the requests
that ten tabs have made: a browser would take the processor from everything else. Once there are no tabs, once they ask
a node of another mesh, and once the node. Prints one line of JSON. Needs Chromium, and Playwright from the extra
`browser`.

Browsers and peers would be machines of their own. So while `latency` runs, that process, the other two nodes and the
other mesh share the core of the generator, and run only when it waits. The generator still notices them, because a
system call is not interrupted for it. That is what the run with the other mesh shows: only what comes on top of it is
the work of the node.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.web import connect_to, post
from qmq import __version__
from qmq.build import BUILD
from qmq.cli.bench.target import cores
from qmq.cli.launch import LocalMesh
from qmq.cli.throwaway import exit_on_signals, throwaway_mesh

TABS = 10
MESH = ("",) * TABS
PAGES = (
    "",
    "#/charts",
    "#/queues",
    "#/queue/bench-7",
    "#/fanouts",
    "#/fanout/bench",
    "#/topics",
    "#/exchanges",
    "#/connections",
    "#/audit",
)
QUEUES = 200
SETTLE_SECONDS = 5.0
"""For the requests with which a page begins; they are a cost of opening it, not of keeping it open."""
VISITS = 9
TURNS = 12
CONNECTIONS = 4
"""Of a browser to one host, besides its two streams."""
KILO = 1000
TICKS = os.sysconf("SC_CLK_TCK")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")

Figures = dict[str, float]


def yield_always(thread: int) -> None:
    """From now on this thread runs only while no other one needs its core."""
    os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))


class Measured:
    """Processor time and memory of one process."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")

    def cpu_seconds(self) -> float:
        fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def own_bytes(self) -> int:
        """What is in memory for this process alone: no files."""
        lines = (self._folder / "status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

    def percent(self, seconds: float) -> float:
        """Of one core, in the next `seconds`."""
        began, before = time.monotonic(), self.cpu_seconds()
        time.sleep(seconds)
        return 100 * (self.cpu_seconds() - before) / (time.monotonic() - began)


@contextlib.contextmanager
def node_of_three() -> Iterator[tuple[Measured, str, LocalMesh]]:
    """A node with some queues and a fanout: its process, the address of its console, and its mesh."""
    own, other = cores()
    os.sched_setaffinity(0, {other})
    with throwaway_mesh(None, {}, own, 3, has_web=True) as mesh:
        node = mesh.nodes["a"]
        peer = mesh.peers.peer("a")
        assert peer is not None and node.process is not None
        # By another node: what the first HTTP request costs is a cost of the console here.
        helper = mesh.peers.peer("b")
        assert helper is not None
        with connect_to(helper.served["http"]) as sender:
            for name in (*(f"queues/bench-{number}" for number in range(QUEUES)), "fanouts/bench"):
                sender.sendall(post(f"/v1/{name}/messages", b"x" * 100, "application/octet-stream"))
                if b" 201 " not in sender.recv(65536):
                    sys.exit("benchmarks.console: the node has accepted no message")
        time.sleep(SETTLE_SECONDS)
        yield Measured(node.process.pid), f"http://{peer.served['http']}/", mesh


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        sys.exit("benchmarks.console: there is no Chromium (Debian: apt install chromium)")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program, args=list(FLAGS))
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser: Any, address: str, pages: Sequence[str], note: Callable[[Any], None]) -> Iterator[Any]:
    """One tab for each page, when all are drawn. `note` gets the requests."""
    context = browser.new_context()
    context.on("request", note)
    for page in pages:
        tab = context.new_page()
        tab.goto(address + page)
        tab.wait_for_selector("h1")
    time.sleep(SETTLE_SECONDS)
    yield context
    context.close()


def _note(requests: list[str], request: Any) -> None:
    requests.append(request.url)


def tabs(seconds: float) -> Figures:
    found: Figures = {}
    for name, pages in (("mesh", MESH), ("pages", PAGES)):
        with node_of_three() as (process, address, _), chromium() as browser:
            idle = process.percent(seconds)
            before = process.own_bytes()
            requests: list[str] = []
            with opened(browser, address, pages, partial(_note, requests)) as context:
                requests.clear()
                busy = wait_for(context, process, seconds)
                found[f"{name}_requests_per_second"] = len(requests) / seconds
                found[f"{name}_memory_mb"] = (process.own_bytes() - before) / 1e6
            found[f"{name}_idle_percent"] = idle
            found[f"{name}_cpu_percent"] = busy - idle
    return found


def wait_for(context: Any, process: Measured, seconds: float) -> float:
    """As `percent`, while events of the browser are taken."""
    began, before = time.monotonic(), process.cpu_seconds()
    context.pages[0].wait_for_timeout(1000 * seconds)
    return 100 * (process.cpu_seconds() - before) / (time.monotonic() - began)


def paint(seconds: float) -> Figures:
    """Of VISITS with an empty cache, the one in the middle."""
    visits: list[Figures] = []
    with node_of_three() as (_, address, _), chromium() as browser:
        for _ in range(VISITS):
            context = browser.new_context()
            page = context.new_page()
            session = context.new_cdp_session(page)
            session.send("Network.enable")
            sizes: list[int] = []
            session.on("Network.loadingFinished", lambda event, sizes=sizes: sizes.append(event["encodedDataLength"]))
            page.goto(address)
            page.wait_for_selector("svg.picture")
            drawn = page.evaluate("performance.now()")
            first = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
            visits.append({"kilobytes": sum(sizes) / KILO, "first_paint_ms": first, "drawn_ms": drawn})
            context.close()
    return {name: statistics.median(visit[name] for visit in visits) for name in visits[0]}


class Tabs:
    """Repeats requests of the console, each when it was made after the first, over and over, and follows the stream."""

    def __init__(self, address: str, requests: Sequence[tuple[float, str]], seconds: float) -> None:
        parts = urlsplit(address)
        assert parts.hostname is not None and parts.port is not None
        self._address = (parts.hostname, parts.port)
        self._seconds = seconds
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._follow)]
        for number in range(CONNECTIONS):
            self._threads.append(threading.Thread(target=self._ask, args=(requests[number::CONNECTIONS],)))

    def __enter__(self) -> "Tabs":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, requests: Sequence[tuple[float, str]]) -> None:
        yield_always(threading.get_native_id())
        with socket.create_connection(self._address) as one, one.makefile("rb") as answers:
            began = time.monotonic()
            while True:
                for at, target in requests:
                    if self._ended.wait(max(0.0, began + at - time.monotonic())):
                        return
                    one.sendall(f"GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
                    size = 0
                    while (line := answers.readline().lower()) not in (b"\r\n", b""):
                        size = int(line.split()[1]) if line.startswith(b"content-length:") else size
                    answers.read(size)
                began += self._seconds

    def _follow(self) -> None:
        yield_always(threading.get_native_id())
        with socket.create_connection(self._address) as one:
            one.settimeout(1.0)
            one.sendall(b"GET /v1/console/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
            while not self._ended.is_set():
                with contextlib.suppress(TimeoutError):
                    one.recv(1 << 16)


def latency(seconds: float) -> Figures:
    """TURNS of three runs of half as long; of the ratios of two runs of a turn the one in the middle."""
    own, other = cores()
    with node_of_three() as (process, address, mesh), node_of_three() as (_, elsewhere, other_mesh):
        requests: list[tuple[float, str]] = []

        def note(request: Any) -> None:
            parts = urlsplit(request.url)
            if request.method == "GET" and parts.path.startswith("/v1/") and not parts.path.endswith("/events"):
                requests.append((time.monotonic(), f"{parts.path}?{parts.query}"))

        with chromium() as browser, opened(browser, address, PAGES, note) as context:
            requests.clear()
            began = time.monotonic()
            wait_for(context, process, seconds)
        script = [(at - began, target) for at, target in requests]
        node = mesh.nodes["a"]
        assert node.process is not None
        for peer in (*mesh.nodes.values(), *other_mesh.nodes.values()):
            if peer is not node and peer.process is not None:
                for thread in os.listdir(f"/proc/{peer.process.pid}/task"):
                    os.sched_setaffinity(int(thread), {other})
                    yield_always(int(thread))
        command = [sys.executable, "-m", "qmq", "bench", "latency", "--line", "--seconds", str(seconds / 2)]
        command += ["--server", str(node.address), "--pid", str(node.process.pid), "--cores", f"{own},{other}"]

        def run() -> Mapping[str, float]:
            # The generator chooses its core itself; the threads of the tabs stay on theirs.
            os.sched_setaffinity(0, {own, other})
            done = subprocess.run(command, capture_output=True, text=True)
            os.sched_setaffinity(0, {other})
            if done.returncode:
                sys.exit(f"{' '.join(command)}: {done.stderr}")
            facts: Mapping[str, float] = json.loads(done.stdout)
            return facts

        found: list[Figures] = []
        for number in range(TURNS):
            turn: Figures = {}
            for asked in (None, elsewhere, address) if number % 2 else (address, elsewhere, None):
                with Tabs(asked, script, seconds) if asked else contextlib.nullcontext():
                    turn[asked or ""] = run()["p99_us"]
            found.append(turn)

    def more_percent(beside: str, than: str) -> float:
        return 100 * (statistics.median(turn[beside] / turn[than] for turn in found) - 1)

    return {
        "p99_alone_us": statistics.median(turn[""] for turn in found),
        "p99_more_percent": more_percent(address, elsewhere),
        "p99_more_than_alone_percent": more_percent(address, ""),
        "requests_per_second": len(script) / seconds,
    }


FIGURES: Mapping[str, Callable[[float], Figures]] = {"tabs": tabs, "paint": paint, "latency": latency}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=FIGURES)
    parser.add_argument("--seconds", type=float, default=10.0, help="measured seconds of each run (default: 10)")
    options = parser.parse_args()
    exit_on_signals()
    found = {name: round(value, 2) for name, value in FIGURES[options.figure](options.seconds).items()}
    print(json.dumps({**found, "qmq": __version__, "build": BUILD, "python": platform.python_version()}))


if __name__ == "__main__":
    main()
