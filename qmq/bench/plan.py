"""Input and output of a workload: a BenchPlan, connections, a Meter to measure with, a Report.

The rates of a Report are those of the Meter. Whether every message came back is counted over the whole run.
"""

import secrets
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from qmq.address import Address
from qmq.bench.connection import Counter, LoadConnection
from qmq.bench.dialect import DIALECTS, Dialect, Headers
from qmq.bench.process import Usage, sum_of, usage
from qmq.bench.progress import SILENT, RunProgress

BUSY_SHARE = 0.9
"""Share of a core: a process that uses as much limits the rate."""

SNAPSHOT_SECONDS = 0.1
"""Most seconds between two checks for due heart-beats."""

MIB = 1 << 20

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """What to measure, filled in by the command line. Not every workload uses every field."""

    workload: str
    at: Address
    others: tuple[Address, ...] = ()
    """More nodes of the same mesh, to read from."""
    login: str | None = None
    passcode: str | None = None
    tls: ssl.SSLContext | None = None
    destination: str | None = None
    """None: a new destination, so that it is empty."""
    seconds: float = 5.0
    warmup_seconds: float = 1.0
    body_bytes: int = 100
    subscribers: int = 1
    window: int = 256
    outstanding: int = 5000
    prefetch: int = 1000
    rate: float = 1000.0
    connections: int = 0
    memory: bool = False
    count: int = 100_000
    """Messages of a run that is not measured in seconds."""
    queues: int = 100_000
    subscriptions: int = 100_000
    kind: str = "topic"
    """Kind of the destinations: topic, queue or fanout."""
    pids: tuple[int, ...] = ()
    """Processes of the broker, if they run on this machine."""
    dialect: Dialect = DIALECTS["qmq"]
    heart_beat_ms: int = 0
    """Interval that CONNECT offers and asks for; 0: none."""
    progress: RunProgress = SILENT

    def destination_of(self, kind: str) -> str:
        return self.destination or f"{self.dialect.prefix(kind)}bench-{secrets.token_hex(4)}"

    def send_headers(self, kind: str) -> Headers:
        """For a SEND to this kind of destination, besides its name. A topic keeps nothing, so it has no durability."""
        durability = self.dialect.memory if self.memory else self.dialect.durable
        return (*(durability if kind != "topic" else ()), *self.dialect.send)

    @property
    def credit(self) -> Headers:
        """Headers of a SUBSCRIBE to a queue: the number of unacknowledged messages."""
        return ((self.dialect.prefetch, str(self.prefetch)),)

    def report(self, *names: str) -> "Report":
        """A report without figures; the parameters are these fields of the plan."""
        return Report(parameters={name: getattr(self, name) for name in names})


class LoadConnections:
    """The connections of one run; the end of its `with` block closes them."""

    def __init__(self, plan: BenchPlan) -> None:
        self._plan = plan
        self._open: list[LoadConnection] = []

    def __enter__(self) -> "LoadConnections":
        return self

    def __exit__(self, *_: object) -> None:
        for line in self._open:
            line.close()

    def add(self, counter: Counter, at: Address | None = None) -> LoadConnection:
        """One more connection, logged in; `at` is a node of the plan other than its first."""
        plan = self._plan
        line = LoadConnection(
            at or plan.at,
            counter,
            login=plan.login,
            passcode=plan.passcode,
            tls=plan.tls,
            dialect=plan.dialect,
            heart_beat_ms=plan.heart_beat_ms,
        )
        self._open.append(line)
        return line

    def idle(self, seconds: float) -> None:
        """Do nothing for `seconds`, except for agreed heart-beats."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            for line in self._open:
                line.beat_if_due(time.monotonic())
            time.sleep(min(left, SNAPSHOT_SECONDS) if self._plan.heart_beat_ms else left)


@dataclass(slots=True, kw_only=True)
class Report:
    """What was measured: `parameters` that mattered, `figures` with their units in their names.

    `missing` and `extra` messages and `errors` are 0 when the figures can be believed; `error` is the first reason.
    """

    parameters: dict[str, Value]
    figures: dict[str, Value] = field(default_factory=dict)
    missing: int = 0
    extra: int = 0
    errors: int = 0
    error: str | None = None

    @property
    def sound(self) -> bool:
        return not (self.missing or self.extra or self.errors)

    def compare(self, expected: int, received: int) -> None:
        """Add missing messages and messages that came too often."""
        self.missing += max(expected - received, 0)
        self.extra += max(received - expected, 0)

    def failed(self, error: OSError) -> None:
        self.errors += 1
        self.error = str(error) or type(error).__name__


class Meter:
    """Wall clock, this process, and those of the node or nodes, between `begin` and `end`."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = tuple(pids)
        self._nodes: Usage | None = None
        self._cpu = 0.0
        self._wall = 0.0

    def begin(self) -> None:
        self._nodes = self._usage()
        self._cpu = time.process_time()
        self._wall = time.monotonic()

    def end(self, count: int, *, name: str = "", each: str = "message") -> dict[str, Value]:
        """Figures since `begin`, named `name`…; `count` messages, or what `each` says, share the CPU time."""
        wall = time.monotonic() - self._wall
        generator = (time.process_time() - self._cpu) / wall
        figures: dict[str, Value] = {
            f"{name}per_second": round(count / wall),
            f"{name}generator_cpu_share": round(generator, 2),
        }
        share = 0.0
        nodes = self._usage()
        if self._nodes is not None and nodes is not None:
            cpu = nodes.cpu_seconds - self._nodes.cpu_seconds
            share = cpu / wall
            figures[f"{name}server_cpu_share"] = round(share, 2)
            figures[f"{name}server_cpu_us_per_{each}"] = round(cpu / count * 1e6, 2) if count else None
            figures[f"{name}server_rss_mib"] = round(nodes.rss_bytes / MIB, 1)
        figures[f"{name}limited_by"] = limited_by(generator, share if nodes is not None else None)
        return figures

    def memory(self) -> dict[str, Value]:
        """Memory when it last began, now, the difference, and the highest since the node's process began."""
        nodes = self._usage()
        if self._nodes is None or nodes is None:
            return {}
        return {
            "server_rss_start_mib": round(self._nodes.rss_bytes / MIB, 1),
            "server_rss_mib": round(nodes.rss_bytes / MIB, 1),
            "server_rss_growth_mib": round((nodes.rss_bytes - self._nodes.rss_bytes) / MIB, 1),
            "server_rss_highest_mib": round(nodes.rss_highest_bytes / MIB, 1),
        }

    def _usage(self) -> Usage | None:
        """Usage of all processes together; None if none is known."""
        return sum_of([usage(pid) for pid in self._pids]) if self._pids else None


def limited_by(generator: float, server: float | None) -> str:
    """Which side was busy, by shares of a core. If the generator was the limit, the rate says little of the server.

    With several nodes, or several threads of one, `server` may be above one.
    """
    if generator >= BUSY_SHARE:
        return "generator"
    if server is None:
        return "unknown"
    return "server" if server >= BUSY_SHARE else "waiting"
