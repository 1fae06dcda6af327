"""What is measured. Each workload connects, warms up, measures, waits for the rest, and gives a Report.

| workload | what happens | what its rate counts |
|---|---|---|
| topic | one sender, `subscribers` that each get all | deliveries |
| fan-out | the same with ten subscribers by default | deliveries |
| queue | one sender, one consumer with an ACK for every message | messages delivered and acknowledged |
| send | SENDs to a queue, each with a receipt, at most `window` unanswered | receipts |
| latency | messages at a fixed rate to one subscriber | – |
| idle | nothing, then connections that do nothing | – |

Rates and CPU time are of the measured seconds only; `missing` and `extra` are of the whole run. What is measured by
a number of things instead of seconds (`backlog`, `drain`, `queues`, `subscriptions`) is in `many`, what goes from one
node to another (`mesh`) in `across`.
"""

import time
from collections.abc import Callable, Mapping

from qmq.bench.across import consumed, mesh, published
from qmq.bench.connection import Ignore
from qmq.bench.exchange import Exchange, timed
from qmq.bench.frames import (
    BODY_MARK,
    NUMBERED_BODY_BYTES_MIN,
    RECEIPT_IDS,
    RECEIPT_MARK,
    MarkCounter,
    numbered_send,
    receipted_sends,
)
from qmq.bench.histogram import Histogram
from qmq.bench.many import backlog, drained, queues, subscriptions
from qmq.bench.paced import Paced, Schedule, Stopwatch
from qmq.bench.plan import BenchPlan, LoadConnections, Meter, Report, Value
from qmq.bench.process import Usage, sum_of, usage, wake_on_time

BODY_BYTES_MIN = NUMBERED_BODY_BYTES_MIN
WINDOW_MAX = RECEIPT_IDS

SETTLE_SECONDS = 2.0
"""After its start, until a node counts as idle."""

LOGIN_SECONDS = 6.0
"""After connecting: until then the node may wake up once for each connection, to see that it has logged in."""


def topic(plan: BenchPlan, lines: LoadConnections) -> Report:
    """One sender, every subscriber gets every message; `connections` more do nothing meanwhile."""
    destination = plan.destination_of("topic")
    connections = ["connections"] if plan.connections else []
    report = plan.report("body_bytes", "subscribers", "outstanding", *connections)
    plan.progress.phase("connecting")
    for _ in range(plan.connections):
        lines.add(Ignore())
    if plan.connections:
        lines.idle(LOGIN_SECONDS)
    subscribers = [lines.add(MarkCounter(BODY_MARK)) for _ in range(plan.subscribers)]
    for subscriber in subscribers:
        subscriber.subscribe(destination, "auto")
    return published(plan, report, destination, lines.add(Ignore()), subscribers)


def queue(plan: BenchPlan, lines: LoadConnections) -> Report:
    """One sender, one consumer that acknowledges each message for itself."""
    return consumed(plan, lines, plan.report("body_bytes", "outstanding", "prefetch", "memory"), plan.at)


def send(plan: BenchPlan, lines: LoadConnections) -> Report:
    """SENDs with a receipt each; the messages stay in their queue."""
    destination = plan.destination_of("queue")
    report = plan.report("body_bytes", "window", "memory")
    ring = receipted_sends(destination, plan.body_bytes, plan.window, *plan.send_headers("queue"))
    sender = lines.add(MarkCounter(RECEIPT_MARK))
    exchange = Exchange(sender, ring, [sender], copies=1, outstanding=plan.window, progress=plan.progress)
    timed(plan, report, exchange)
    return report


def latency(plan: BenchPlan, lines: LoadConnections) -> Report:
    """Microseconds from the moment when a message was due until it was read."""
    destination = plan.destination_of("topic")
    kind = plan.dialect.kind_of(destination)
    report = Report(parameters={"body_bytes": plan.body_bytes, "rate": plan.rate, "kind": kind, "memory": plan.memory})
    schedule = Schedule(plan.rate)
    watch = Stopwatch(schedule)
    receiver = lines.add(watch)
    receiver.subscribe(destination, "auto")
    frame = numbered_send(destination, plan.body_bytes, plan.send_headers(kind))
    sender = lines.add(Ignore())
    wake_on_time()
    schedule.start = time.monotonic()
    paced = Paced(sender, receiver, frame, schedule, plan.progress)
    meter = Meter(plan.pids)
    try:
        plan.progress.phase("warming up")
        paced.run(plan.warmup_seconds)
        plan.progress.phase("measuring")
        meter.begin()
        sent = paced.sent
        watch.times, paced.lags = Histogram(), Histogram()
        paced.run(plan.seconds)
        report.figures.update(meter.end(paced.sent - sent))
        paced.finish()
        report.figures.update(watch.times.micros(""))
        report.figures.update(paced.lags.micros("generator_lag_"))
    except OSError as error:
        report.failed(error)
    report.compare(paced.sent, receiver.received - watch.repeated)
    report.extra += watch.repeated
    return report


def idle(plan: BenchPlan, lines: LoadConnections) -> Report:
    """A node without clients, then with `connections` that do nothing. Needs the node's process."""
    assert plan.pids, "the command line asks for it"
    report = plan.report("connections")
    lines.idle(SETTLE_SECONDS)
    isolated_mode = _used(plan)
    report.figures["server_rss_mib"] = round(isolated_mode.rss_bytes / (1 << 20), 1)
    plan.progress.phase("looking at the node alone")
    report.figures.update(_quiet("", plan, lines))
    try:
        if plan.connections:
            plan.progress.phase("connecting")
            started = time.monotonic()
            for number in range(plan.connections):
                lines.add(Ignore())
                plan.progress.saw(number)
            report.figures["connects_per_second"] = round(plan.connections / (time.monotonic() - started))
            lines.idle(LOGIN_SECONDS)
            more = _used(plan).rss_bytes - isolated_mode.rss_bytes
            report.figures["bytes_per_connection"] = round(more / plan.connections)
            plan.progress.phase("looking at the node with idle connections")
            report.figures.update(_quiet("connected_", plan, lines))
    except OSError as error:
        report.failed(error)
    return report


def _used(plan: BenchPlan) -> Usage:
    return sum_of([usage(pid) for pid in plan.pids])


def _quiet(name: str, plan: BenchPlan, lines: LoadConnections) -> dict[str, Value]:
    before = _used(plan)
    lines.idle(plan.seconds)
    after = _used(plan)
    return {
        f"{name}wakeups_per_second": round(after.wakeups_since(before) / plan.seconds, 2),
        f"{name}server_cpu_share": round((after.cpu_seconds - before.cpu_seconds) / plan.seconds, 4),
    }


WORKLOADS: Mapping[str, Callable[[BenchPlan, LoadConnections], Report]] = {
    "topic": topic,
    "fan-out": topic,
    "queue": queue,
    "send": send,
    "latency": latency,
    "idle": idle,
    "mesh": mesh,
    "backlog": backlog,
    "drain": drained,
    "queues": queues,
    "subscriptions": subscriptions,
}


def measure(plan: BenchPlan) -> Report:
    """Run the workload. Raises OSError if it could not begin: no node answers, or the node refuses."""
    try:
        with LoadConnections(plan) as lines:
            return WORKLOADS[plan.workload](plan, lines)
    finally:
        plan.progress.end()
