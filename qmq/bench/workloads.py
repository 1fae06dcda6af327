"""What is measured. Each workload connects, warms up, measures, waits for the rest, and gives a Report.

| workload | what happens | what its rate counts |
|---|---|---|
| topic | one sender, `subscribers` that each get all | deliveries |
| fan-out | the same with ten subscribers unless told otherwise | deliveries |
| queue | one sender, one consumer with an ACK for every message | messages delivered and acknowledged |
| send | SENDs to a queue, each with a receipt, at most `window` unanswered | receipts |
| latency | messages at a fixed rate to one subscriber | – |
| idle | nothing, then connections that do nothing | – |

Rates and CPU time are of the measured seconds only; `missing` and `extra` are of the whole run.
"""

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from qmq.bench.exchange import Exchange
from qmq.bench.frames import (
    BODY_MARK,
    NUMBERED_BODY_BYTES_MIN,
    RECEIPT_IDS,
    RECEIPT_MARK,
    AckCutter,
    MarkCounter,
    numbered_send,
    receipted_sends,
    sends,
)
from qmq.bench.line import Counter, Ignore, Line
from qmq.bench.paced import Paced, Schedule, Stopwatch, percentile
from qmq.bench.process import Usage, usage
from qmq.config import Address

BODY_BYTES_MIN = NUMBERED_BODY_BYTES_MIN
WINDOW_MAX = RECEIPT_IDS

SETTLE_SECONDS = 2.0
"""After its start, until a node counts as idle."""

LOGIN_SECONDS = 6.0
"""After connecting: until then the node may wake up once for each connection, to see that it has logged in."""

MEMORY_ONLY = ("persistent", "false")

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure, filled in by the command line. Not every workload uses every field."""

    workload: str
    at: Address
    login: str | None = None
    passcode: str | None = None
    destination: str | None = None
    """None: a new one of the workload's kind, so that nothing is left in it from before."""
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
    pid: int | None = None
    """The node's process, where it runs on this machine."""

    def destination_of(self, kind: str) -> str:
        return self.destination or f"/{kind}/bench-{secrets.token_hex(4)}"

    @property
    def durability(self) -> tuple[tuple[str, str], ...]:
        """Headers for SEND."""
        return (MEMORY_ONLY,) if self.memory else ()


class Lines:
    """The connections of one run; all are closed at the end of its `with`."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._open: list[Line] = []

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *_: object) -> None:
        for line in self._open:
            line.close()

    def add(self, counter: Counter) -> Line:
        """One more, logged in."""
        plan = self._plan
        line = Line(plan.at, counter, login=plan.login, passcode=plan.passcode)
        self._open.append(line)
        return line


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
        self.missing = max(expected - received, 0)
        self.extra = max(received - expected, 0)

    def failed(self, error: OSError) -> None:
        self.errors += 1
        self.error = str(error) or type(error).__name__


class Meter:
    """Wall clock, this process, and the node's, between `begin` and `end`."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._node: Usage | None = None
        self._cpu = 0.0
        self._wall = 0.0

    def begin(self) -> None:
        self._node = usage(self._pid) if self._pid is not None else None
        self._cpu = time.process_time()
        self._wall = time.monotonic()

    def end(self, messages: int) -> dict[str, Value]:
        """Figures since `begin`; `messages` share the node's CPU time."""
        wall = time.monotonic() - self._wall
        cpu = time.process_time() - self._cpu
        figures: dict[str, Value] = {
            "per_second": round(messages / wall),
            "generator_cpu_share": round(cpu / wall, 2),
        }
        if self._node is not None and self._pid is not None:
            node = usage(self._pid)
            node_cpu = node.cpu_seconds - self._node.cpu_seconds
            figures["server_cpu_share"] = round(node_cpu / wall, 2)
            figures["server_cpu_us_per_message"] = round(node_cpu / messages * 1e6, 2) if messages else None
            figures["server_rss_mib"] = round(node.rss_bytes / (1 << 20), 1)
        return figures


def topic(plan: Plan, lines: Lines) -> Report:
    """One sender, every subscriber gets every message."""
    destination = plan.destination_of("topic")
    report = Report(
        parameters={
            "body_bytes": plan.body_bytes,
            "subscribers": plan.subscribers,
            "outstanding": plan.outstanding,
        }
    )
    subscribers = [lines.add(MarkCounter(BODY_MARK)) for _ in range(plan.subscribers)]
    for subscriber in subscribers:
        subscriber.subscribe(destination, "auto")
    ring = sends(destination, plan.body_bytes, *plan.durability)
    outstanding = max(plan.outstanding, plan.subscribers)
    exchange = Exchange(lines.add(Ignore()), ring, subscribers, copies=plan.subscribers, outstanding=outstanding)
    return _measure(plan, report, exchange)


def queue(plan: Plan, lines: Lines) -> Report:
    """One sender, one consumer that acknowledges each message for itself."""
    destination = plan.destination_of("queue")
    report = Report(
        parameters={
            "body_bytes": plan.body_bytes,
            "outstanding": plan.outstanding,
            "prefetch": plan.prefetch,
            "memory": plan.memory,
        }
    )
    consumer = lines.add(AckCutter())
    consumer.subscribe(destination, "client-individual", ("prefetch-count", str(plan.prefetch)))
    ring = sends(destination, plan.body_bytes, *plan.durability)
    exchange = Exchange(lines.add(Ignore()), ring, [consumer], copies=1, outstanding=plan.outstanding)
    return _measure(plan, report, exchange)


def send(plan: Plan, lines: Lines) -> Report:
    """SENDs with a receipt each; the messages stay in their queue."""
    destination = plan.destination_of("queue")
    report = Report(parameters={"body_bytes": plan.body_bytes, "window": plan.window, "memory": plan.memory})
    ring = receipted_sends(destination, plan.body_bytes, *plan.durability)
    sender = lines.add(MarkCounter(RECEIPT_MARK))
    exchange = Exchange(sender, ring, [sender], copies=1, outstanding=plan.window)
    return _measure(plan, report, exchange)


def _measure(plan: Plan, report: Report, exchange: Exchange) -> Report:
    meter = Meter(plan.pid)
    try:
        exchange.run(plan.warmup_seconds)
        meter.begin()
        before = exchange.received
        exchange.run(plan.seconds)
        report.figures.update(meter.end(exchange.received - before))
        exchange.finish()
    except OSError as error:
        report.failed(error)
    finally:
        exchange.close()
    report.compare(exchange.expected, exchange.received)
    return report


def latency(plan: Plan, lines: Lines) -> Report:
    """Microseconds from the moment when a message was due until it was read."""
    destination = plan.destination_of("topic")
    report = Report(
        parameters={"body_bytes": plan.body_bytes, "rate": plan.rate, "kind": destination.split("/")[1]},
    )
    schedule = Schedule(plan.rate)
    watch = Stopwatch(schedule)
    receiver = lines.add(watch)
    receiver.subscribe(destination, "auto")
    frame = numbered_send(destination, plan.body_bytes, plan.durability)
    schedule.start = time.monotonic()
    paced = Paced(lines.add(Ignore()), receiver, frame, schedule)
    meter = Meter(plan.pid)
    try:
        paced.run(plan.warmup_seconds)
        meter.begin()
        sent, came = paced.sent, len(watch.seconds)
        paced.run(plan.seconds)
        report.figures.update(meter.end(paced.sent - sent))
        paced.finish()
        report.figures.update(_micros("", watch.seconds[came:]))
        report.figures.update(_micros("generator_lag_", paced.lags[sent:]))
    except OSError as error:
        report.failed(error)
    report.compare(paced.sent, receiver.received - watch.repeated)
    report.extra += watch.repeated
    return report


def _micros(name: str, seconds: list[float]) -> dict[str, Value]:
    ordered = sorted(seconds)
    shares = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}
    return {f"{name}{word}_us": round(percentile(ordered, share) * 1e6) for word, share in shares.items()}


def idle(plan: Plan, lines: Lines) -> Report:
    """A node without clients, then with `connections` that do nothing. Needs the node's process."""
    assert plan.pid is not None, "the command line asks for it"
    report = Report(parameters={"connections": plan.connections})
    time.sleep(SETTLE_SECONDS)
    alone = usage(plan.pid)
    report.figures["server_rss_mib"] = round(alone.rss_bytes / (1 << 20), 1)
    report.figures.update(_quiet("", plan.pid, plan.seconds))
    try:
        if plan.connections:
            started = time.monotonic()
            for _ in range(plan.connections):
                lines.add(Ignore())
            report.figures["connects_per_second"] = round(plan.connections / (time.monotonic() - started))
            time.sleep(LOGIN_SECONDS)
            more = usage(plan.pid).rss_bytes - alone.rss_bytes
            report.figures["bytes_per_connection"] = round(more / plan.connections)
            report.figures.update(_quiet("connected_", plan.pid, plan.seconds))
    except OSError as error:
        report.failed(error)
    return report


def _quiet(name: str, pid: int, seconds: float) -> dict[str, Value]:
    before = usage(pid)
    time.sleep(seconds)
    after = usage(pid)
    return {
        f"{name}wakeups_per_second": round((after.wakeups - before.wakeups) / seconds, 2),
        f"{name}server_cpu_share": round((after.cpu_seconds - before.cpu_seconds) / seconds, 4),
    }


WORKLOADS: Mapping[str, Callable[[Plan, Lines], Report]] = {
    "topic": topic,
    "fan-out": topic,
    "queue": queue,
    "send": send,
    "latency": latency,
    "idle": idle,
}


def measure(plan: Plan) -> Report:
    """Run the workload. Raises OSError when it could not begin: nobody answers, or the node refuses."""
    with Lines(plan) as lines:
        return WORKLOADS[plan.workload](plan, lines)
