"""What a backlog, many queues and many subscriptions cost. These runs end after a number of messages, not of seconds.

| workload | what happens | names of its figures begin with |
|---|---|---|
| backlog | `count` SENDs to one queue without consumer, each with a receipt | publish_ |
| | then one consumer takes them, with an ACK for every message | drain_ |
| drain | the same, but only the second half is measured | drain_ |
| queues | one SEND to each of `queues` queues, each with a receipt | create_ |
| | then `count` more, to one queue after the other | send_ |
| subscriptions | `subscriptions` SUBSCRIBEs to as many topics or queues, each with a receipt | subscribe_ |
| | then `count` SENDs to one of them after the other, each for one subscriber | send_ |

Surprising: `send_server_cpu_us_per_message` is the figure that should stay the same however many queues or
subscriptions there are. So frames have the same length in all runs, and SENDs go round all the names, not to a few
that a cache would know.
"""

import secrets

from qmq.bench.connection import Counter, Ignore
from qmq.bench.exchange import Exchange
from qmq.bench.frames import (
    BODY_MARK,
    NUMBER,
    RECEIPT_MARK,
    RECEIPT_NAME,
    TURN,
    AckCutter,
    MarkCounter,
    Numbered,
    body_of,
    receipted_sends,
    sends,
)
from qmq.bench.plan import BenchPlan, LoadConnections, Meter, Report

SETTLE_SECONDS = 2.0
"""Until a node's memory counts as what it keeps, after much was made in it."""

RECEIPT = ("receipt", RECEIPT_NAME + TURN)


def backlog(plan: BenchPlan, lines: LoadConnections) -> Report:
    """Messages that wait in a queue, then one consumer for all of them."""
    destination = plan.destination_of("queue")
    report = plan.report("body_bytes", "count", "window", "prefetch", "memory")
    meter = Meter(plan.pids)
    meter.begin()
    try:
        publish(plan, lines, report, destination)
        drain(plan, lines, report, destination)
        lines.idle(SETTLE_SECONDS)
    except OSError as error:
        report.failed(error)
    else:
        report.figures.update(meter.memory())
    return report


def drained(plan: BenchPlan, lines: LoadConnections) -> Report:
    """What waits in a queue, taken by one consumer; filling it is not measured."""
    destination = plan.destination_of("queue")
    report = plan.report("body_bytes", "count", "prefetch", "memory")
    filling = plan.report()
    try:
        publish(plan, lines, filling, destination)
        lines.idle(SETTLE_SECONDS)
        drain(plan, lines, report, destination)
    except OSError as error:
        report.failed(error)
    report.missing += filling.missing
    report.extra += filling.extra
    return report


def publish(plan: BenchPlan, lines: LoadConnections, report: Report, destination: str) -> None:
    """Send `plan.count` messages and wait for their receipts. Raises OSError when the node ends the connection."""
    sender = lines.add(MarkCounter(RECEIPT_MARK))
    ring = receipted_sends(destination, plan.body_bytes, plan.window, *plan.send_headers("queue"))
    exchange = Exchange(sender, ring, [sender], copies=1, outstanding=plan.window, progress=plan.progress)
    plan.progress.phase("publishing")
    meter = Meter(plan.pids)
    try:
        meter.begin()
        exchange.complete(plan.count)
        report.figures.update(meter.end(exchange.received, name="publish_"))
        exchange.finish()
    finally:
        exchange.close()
        report.compare(exchange.expected, exchange.received)


def drain(plan: BenchPlan, lines: LoadConnections, report: Report, destination: str) -> None:
    """Consume the `plan.count` messages that wait there, until every ACK was taken. Raises OSError as `publish`."""
    consumer = lines.add(AckCutter())
    nothing = sends(destination, plan.body_bytes)
    exchange = Exchange(consumer, nothing, [consumer], copies=1, outstanding=0, progress=plan.progress)
    plan.progress.phase("draining")
    meter = Meter(plan.pids)
    try:
        meter.begin()
        consumer.subscribe_without_receipt(destination, "client-individual", *plan.credit)
        exchange.collect(plan.count)
        exchange.finish()
        report.figures.update(meter.end(exchange.received, name="drain_"))
    finally:
        exchange.close()
        report.compare(plan.count, exchange.received)


def queues(plan: BenchPlan, lines: LoadConnections) -> Report:
    """A message for each of many queues, then what one more costs."""
    report = plan.report("body_bytes", "queues", "count", "window", "memory")
    headers = [("destination", _one_of_many(plan, "queue")), *plan.send_headers("queue"), RECEIPT]
    frames = Numbered("SEND", headers, body_of(plan.body_bytes), count=plan.queues)
    sender = lines.add(MarkCounter(RECEIPT_MARK))
    exchange = Exchange(sender, frames, [sender], copies=1, outstanding=plan.window, progress=plan.progress)
    meter = Meter(plan.pids)
    try:
        plan.progress.phase("making queues")
        meter.begin()
        exchange.complete(plan.queues)
        report.figures.update(meter.end(exchange.received, name="create_", each="queue"))
        lines.idle(SETTLE_SECONDS)
        report.figures.update(meter.memory())
        plan.progress.phase("sending")
        meter.begin()
        before = exchange.received
        exchange.complete(plan.count)
        report.figures.update(meter.end(exchange.received - before, name="send_"))
        exchange.finish()
    except OSError as error:
        report.failed(error)
    finally:
        exchange.close()
    report.compare(exchange.expected, exchange.received)
    return report


def subscriptions(plan: BenchPlan, lines: LoadConnections) -> Report:
    """Subscriptions of one client or a few, each to a destination of its own, then what a message to one costs."""
    durability = ["memory"] if plan.kind == "queue" else []
    report = plan.report(
        "body_bytes", "kind", "subscriptions", "connections", "count", "window", "outstanding", *durability
    )
    destination = _one_of_many(plan, plan.kind)
    subscribers = [lines.add(MarkCounter(RECEIPT_MARK)) for _ in range(min(plan.connections, plan.subscriptions))]
    ack = "auto" if plan.kind == "topic" else "client-individual"
    wanted = [("destination", destination), ("id", NUMBER), ("ack", ack), *plan.dialect.subscribe, RECEIPT]
    meter = Meter(plan.pids)
    exchange: Exchange | None = None
    try:
        plan.progress.phase("subscribing")
        meter.begin()
        taken = 0
        for index, subscriber in enumerate(subscribers):
            first, end = (plan.subscriptions * place // len(subscribers) for place in (index, index + 1))
            frames = Numbered("SUBSCRIBE", wanted, count=end - first, first=first)
            exchange = Exchange(
                subscriber, frames, [subscriber], copies=1, outstanding=plan.window, progress=plan.progress
            )
            exchange.complete(end - first)
            exchange.close()
            report.compare(exchange.expected, exchange.received)
            taken += exchange.received
        report.figures.update(meter.end(taken, name="subscribe_", each="subscription"))
        lines.idle(SETTLE_SECONDS)
        report.figures.update(meter.memory())
        for subscriber in subscribers:
            subscriber.count_with(_messages_of(plan.kind))
        headers = [("destination", destination), *plan.send_headers(plan.kind)]
        frames = Numbered("SEND", headers, body_of(plan.body_bytes), count=plan.subscriptions)
        sender = lines.add(Ignore())
        exchange = Exchange(sender, frames, subscribers, copies=1, outstanding=plan.outstanding, progress=plan.progress)
        plan.progress.phase("sending")
        meter.begin()
        exchange.complete(plan.count)
        report.figures.update(meter.end(exchange.received, name="send_"))
        exchange.finish()
        report.compare(exchange.expected, exchange.received)
    except OSError as error:
        report.failed(error)
    finally:
        if exchange is not None:
            exchange.close()
    return report


def _one_of_many(plan: BenchPlan, kind: str) -> str:
    """The names of this run's destinations; none of them was used before."""
    return f"{plan.dialect.prefix(kind)}bench-{secrets.token_hex(4)}-{NUMBER}"


def _messages_of(kind: str) -> Counter:
    return MarkCounter(BODY_MARK) if kind == "topic" else AckCutter()
