"""What is measured. Each workload connects, warms up, measures, waits for the rest, and gives a Report.

| workload | what happens | what its rate counts |
|---|---|---|
| topic | one sender, `subscribers` that each get all | deliveries |
| fan-out | the same with ten subscribers by default | deliveries |
| queue | one sender, one consumer with an ACK for every message | messages delivered and acknowledged |
| send | SENDs to a queue, each with a receipt, at most `window` unanswered | receipts |
| latency | messages at a fixed rate to one subscriber | – |
| idle | nothing, then connections that do nothing | – |
| mesh | sent to the first node, read on the others: | |
| – topic | one subscriber on each other node gets every message | deliveries |
| – queue | one consumer on the second node, an ACK for every message | messages delivered and acknowledged |
| – fanout | durable: a receipt for each SEND, one subscriber on every node | messages that all of these have |

Rates and CPU time are of the measured seconds only; `missing` and `extra` are of the whole run. What is measured by
a number of things instead of seconds (`backlog`, `drain`, `queues`, `subscriptions`) is in `many`.

Surprising: a topic keeps nothing for subscribers that the first node does not know of yet. A subscriber's RECEIPT says
only that its own node does. So probes are sent until one came to each subscriber. Queues and fanouts keep what is sent.
"""

import select
import time
from collections.abc import Callable, Mapping

from qmq.address import Address
from qmq.bench import frames
from qmq.bench.connection import Ignore, LoadConnection
from qmq.bench.exchange import Exchange, timed
from qmq.bench.histogram import Histogram
from qmq.bench.many import backlog, drained, queues, subscriptions
from qmq.bench.paced import Paced, Schedule, Stopwatch
from qmq.bench.plan import BenchPlan, LoadConnections, Meter, Report, Value
from qmq.bench.process import Usage, sum_of, usage, wake_on_time
from qmq.wire.stomp import encode_frame

BODY_BYTES_MIN = frames.NUMBERED_BODY_BYTES_MIN
WINDOW_MAX = frames.RECEIPT_IDS

SETTLE_SECONDS = 2.0
"""After its start, until a node counts as idle."""

LOGIN_SECONDS = 6.0
"""After connecting: until then the node may wake up once for each connection, to see that it has logged in."""

PROBE = b"<qmq-bench-probe>"
PROBE_SECONDS = 0.1
"""Seconds between two probes."""
FOUND_SECONDS_MAX = 30.0
"""Seconds until every subscriber must have got a probe."""


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
    subscribers = [lines.add(frames.MarkCounter(frames.BODY_MARK)) for _ in range(plan.subscribers)]
    for subscriber in subscribers:
        subscriber.subscribe(destination, "auto")
    return _published(plan, report, destination, lines.add(Ignore()), subscribers)


def _published(
    plan: BenchPlan, report: Report, destination: str, sender: LoadConnection, readers: list[LoadConnection]
) -> Report:
    """Send to a topic that all of `readers` have subscribed to."""
    ring = frames.sends(destination, plan.body_bytes, *plan.send_headers("topic"))
    copies = len(readers)
    outstanding = max(plan.outstanding, copies)
    timed(plan, report, Exchange(sender, ring, readers, copies=copies, outstanding=outstanding, progress=plan.progress))
    return report


def queue(plan: BenchPlan, lines: LoadConnections) -> Report:
    """One sender, one consumer that acknowledges each message for itself."""
    return _consumed(plan, lines, plan.report("body_bytes", "outstanding", "prefetch", "memory"), plan.at)


def _consumed(plan: BenchPlan, lines: LoadConnections, report: Report, at: Address) -> Report:
    """Send to a queue, and acknowledge each message at the node `at`."""
    destination = plan.destination_of("queue")
    reader = lines.add(frames.AckCutter(), at)
    reader.subscribe(destination, "client-individual", *plan.credit)
    ring = frames.sends(destination, plan.body_bytes, *plan.send_headers("queue"))
    sender = lines.add(Ignore())
    exchange = Exchange(sender, ring, [reader], copies=1, outstanding=plan.outstanding, progress=plan.progress)
    timed(plan, report, exchange)
    return report


def send(plan: BenchPlan, lines: LoadConnections) -> Report:
    """SENDs with a receipt each; the messages stay in their queue."""
    destination = plan.destination_of("queue")
    report = plan.report("body_bytes", "window", "memory")
    ring = frames.receipted_sends(destination, plan.body_bytes, plan.window, *plan.send_headers("queue"))
    sender = lines.add(frames.MarkCounter(frames.RECEIPT_MARK))
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
    frame = frames.numbered_send(destination, plan.body_bytes, plan.send_headers(kind))
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


def mesh(plan: BenchPlan, lines: LoadConnections) -> Report:
    """One sender on the first node, readers on the others."""
    report = Report(
        parameters={
            "kind": plan.kind,
            "nodes": 1 + len(plan.others),
            "body_bytes": plan.body_bytes,
            **({"window": plan.window} if plan.kind == "fanout" else {"outstanding": plan.outstanding}),
            **({"prefetch": plan.prefetch} if plan.kind == "queue" else {}),
            "memory": plan.memory,
        }
    )
    return {"topic": _mesh_topic, "queue": _mesh_queue, "fanout": _mesh_fanout}[plan.kind](plan, lines, report)


def _mesh_topic(plan: BenchPlan, lines: LoadConnections, report: Report) -> Report:
    destination = plan.destination_of("topic")
    readers = [lines.add(frames.MarkCounter(PROBE), at) for at in plan.others]
    for reader in readers:
        reader.subscribe(destination, "auto")
    sender = lines.add(Ignore())
    _wait_until_found(sender, readers, destination)
    return _published(plan, report, destination, sender, readers)


def _mesh_queue(plan: BenchPlan, lines: LoadConnections, report: Report) -> Report:
    return _consumed(plan, lines, report, plan.others[0])


def _mesh_fanout(plan: BenchPlan, lines: LoadConnections, report: Report) -> Report:
    destination = plan.destination_of("fanout")
    readers = [lines.add(frames.MarkCounter(frames.BODY_MARK), at) for at in (plan.at, *plan.others)]
    for reader in readers:
        reader.subscribe(destination, "auto")
    ring = frames.receipted_sends(destination, plan.body_bytes, plan.window, *plan.send_headers("fanout"))
    sender = lines.add(frames.MarkCounter(frames.RECEIPT_MARK))
    # A message under way counts until its receipt and all its deliveries have come.
    counted = [sender, *readers]
    copies = len(counted)
    exchange = Exchange(sender, ring, counted, copies=copies, outstanding=plan.window * copies, progress=plan.progress)
    came = timed(plan, report, exchange, counted, rate_of=min)
    if came:
        report.figures["accepted_per_second"] = round(came[0] / plan.seconds)
        report.figures["delivered_per_second"] = round(min(came[1:]) / plan.seconds)
    return report


def _wait_until_found(sender: LoadConnection, readers: list[LoadConnection], destination: str) -> None:
    """Send probes until each of `readers` had one, then count messages. Raises ConnectionError if one gets none."""
    probe = encode_frame("SEND", [("destination", destination)], PROBE)
    deadline = time.monotonic() + FOUND_SECONDS_MAX
    for reader in readers:
        while not reader.received:
            if time.monotonic() > deadline:
                raise ConnectionError(f"{destination}: no message came to another node in {FOUND_SECONDS_MAX:g} s")
            sender.write(probe)
            if select.select([reader.socket], [], [], PROBE_SECONDS)[0]:
                reader.read()
        reader.received = 0
        reader.count_with(frames.MarkCounter(frames.BODY_MARK))


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
