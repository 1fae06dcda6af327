"""Kill a node that has a backlog, and measure how long it takes until it serves again; one line of JSON.

    python -m benchmarks.recovery [--count 200000]

The messages are sent with a receipt each and the node is killed (SIGKILL) right after the last one, so that some are
in the queue store and some only in the journal. Afterwards all of them are consumed: one that is missing makes the
exit code 1. `recovery_seconds` is from the start of the process until a client is logged in, Python's own start
included; `first_message_seconds` until it has a message.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qmq.bench.frames import BODY_MARK, MarkCounter
from qmq.bench.many import drain, publish
from qmq.bench.plan import MIB, BenchPlan, LoadConnections, Report
from qmq.bench.process import usage
from qmq.cli.bench.command import BACKLOG_BODY_BYTES, BACKLOG_COUNT, WINDOW_OF_MANY
from qmq.cli.bench.output import facts
from qmq.cli.bench.target import cores, limits_for
from qmq.cli.output import Failed
from qmq.cli.throwaway import Throwaway, throwaway

RESTART_SECONDS_MAX = 120.0


def measure(node: Throwaway, count: int) -> tuple[BenchPlan, Report]:
    """Fill, kill, start, look, drain. Raises OSError when the node ends a connection."""
    plan = BenchPlan(
        workload="recovery",
        at=node.address,
        destination="/queue/bench-recovery",
        count=count,
        window=WINDOW_OF_MANY,
        body_bytes=BACKLOG_BODY_BYTES,
        pids=(node.pid,),
    )
    report = Report(parameters={"body_bytes": plan.body_bytes, "count": count})
    with LoadConnections(plan) as lines:
        publish(plan, lines, report, plan.destination_of("queue"))
    node.kill()
    started = time.monotonic()
    node.start(RESTART_SECONDS_MAX)
    report.figures["recovery_seconds"] = round(time.monotonic() - started, 2)
    again = replace(plan, pids=(node.pid,))
    with LoadConnections(again) as lines:
        looker = lines.add(MarkCounter(BODY_MARK))
        looker.begin()
        looker.socket.settimeout(RESTART_SECONDS_MAX)
        looker.subscribe_without_receipt(again.destination_of("queue"), "client-individual", ("prefetch-count", "1"))
        while not looker.received:
            looker.read()
        report.figures["first_message_seconds"] = round(time.monotonic() - started, 2)
        looker.leave()
    report.figures["recovered_rss_highest_mib"] = round(usage(node.pid).rss_highest_bytes / MIB, 1)
    # The connection is closed before the rest is consumed, so that its one message is back in the queue.
    with LoadConnections(again) as lines:
        drain(again, lines, report, again.destination_of("queue"))
    return plan, report


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=BACKLOG_COUNT, help="messages of the backlog")
    parser.add_argument("--serve-in", type=Path, help="where the node's data goes; else the system's choice")
    options = parser.parse_args(arguments)
    node_core, own_core = cores()
    try:
        with throwaway(options.serve_in, limits_for(), node_core) as node:
            os.sched_setaffinity(0, {own_core})
            plan, report = measure(node, options.count)
    except (OSError, Failed) as error:
        sys.exit(str(error))
    print(json.dumps(facts(plan, report, pinned=True)))
    if not report.sound:
        sys.exit(f"{report.missing} messages are missing, {report.extra} came too often")


if __name__ == "__main__":
    main()
