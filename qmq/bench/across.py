"""Messages from one node of a mesh to others: sent to the first, read on the others.

| kind | what happens | what its rate counts |
|---|---|---|
| topic | one subscriber on each other node gets every message | deliveries |
| queue | one consumer on the second node, an ACK for every message | messages delivered and acknowledged |
| fanout | durable: a receipt for each SEND, one subscriber on every node | messages that all of these have |

Surprising: a topic keeps nothing for subscribers that the first node does not know of yet. A subscriber's RECEIPT says
only that its own node does. So probes are sent until one came to each subscriber. Queues and fanouts keep what is sent.
"""

import select
import time

from qmq.bench.connection import Ignore, LoadConnection
from qmq.bench.exchange import Exchange, timed
from qmq.bench.frames import (
    BODY_MARK,
    RECEIPT_MARK,
    AckCutter,
    MarkCounter,
    receipted_sends,
    sends,
)
from qmq.bench.plan import BenchPlan, LoadConnections, Report
from qmq.config import Address
from qmq.wire.stomp import encode_frame

PROBE = b"<qmq-bench-probe>"
PROBE_SECONDS = 0.1
"""Seconds between two probes."""
FOUND_SECONDS_MAX = 30.0
"""Seconds until every subscriber must have got a probe."""


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
    return {"topic": _topic, "queue": _queue, "fanout": _fanout}[plan.kind](plan, lines, report)


def _topic(plan: BenchPlan, lines: LoadConnections, report: Report) -> Report:
    destination = plan.destination_of("topic")
    readers = [lines.add(MarkCounter(PROBE), at) for at in plan.others]
    for reader in readers:
        reader.subscribe(destination, "auto")
    sender = lines.add(Ignore())
    _wait_until_found(sender, readers, destination)
    return published(plan, report, destination, sender, readers)


def published(
    plan: BenchPlan, report: Report, destination: str, sender: LoadConnection, readers: list[LoadConnection]
) -> Report:
    """Send to a topic that all of `readers` have subscribed to."""
    ring = sends(destination, plan.body_bytes, *plan.send_headers("topic"))
    copies = len(readers)
    outstanding = max(plan.outstanding, copies)
    timed(plan, report, Exchange(sender, ring, readers, copies=copies, outstanding=outstanding, progress=plan.progress))
    return report


def _queue(plan: BenchPlan, lines: LoadConnections, report: Report) -> Report:
    return consumed(plan, lines, report, plan.others[0])


def consumed(plan: BenchPlan, lines: LoadConnections, report: Report, at: Address) -> Report:
    """Send to a queue, and acknowledge each message at the node `at`."""
    destination = plan.destination_of("queue")
    reader = lines.add(AckCutter(), at)
    reader.subscribe(destination, "client-individual", *plan.credit)
    ring = sends(destination, plan.body_bytes, *plan.send_headers("queue"))
    sender = lines.add(Ignore())
    exchange = Exchange(sender, ring, [reader], copies=1, outstanding=plan.outstanding, progress=plan.progress)
    timed(plan, report, exchange)
    return report


def _fanout(plan: BenchPlan, lines: LoadConnections, report: Report) -> Report:
    destination = plan.destination_of("fanout")
    readers = [lines.add(MarkCounter(BODY_MARK), at) for at in (plan.at, *plan.others)]
    for reader in readers:
        reader.subscribe(destination, "auto")
    ring = receipted_sends(destination, plan.body_bytes, plan.window, *plan.send_headers("fanout"))
    sender = lines.add(MarkCounter(RECEIPT_MARK))
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
        reader.count_with(MarkCounter(BODY_MARK))
