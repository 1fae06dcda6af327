"""Bytes that a node writes to its disk for each byte of a body: `python -m benchmarks.written [--write]`.

Messages are sent to one queue with a receipt each. When no checkpoint is under way, the first figures are read: of
the last messages, up to `checkpoint_bytes`, only the journal has something. Then all messages are consumed with an ACK
each. When a checkpoint has reached the end of the journal, the last figures are read: the queue store is empty then,
and the journal may be dropped.

"Written" is what the kernel counts for the process (`write_bytes` of /proc/PID/io): pages, when they become dirty. So
a small commit counts for more than its bytes. "Journal" is the bytes of the records alone. `--write` puts the table
on docs/benchmarks.md.
"""

import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from benchmarks.page import DOCS, MACHINE, shown, table, write_section
from qmq.bench.frames import BODY_MARK, MarkCounter
from qmq.bench.many import drain, publish
from qmq.bench.plan import BenchPlan, LoadConnections, Report
from qmq.cli.bench.target import limits_for
from qmq.cli.output import Failed
from qmq.cli.throwaway import Throwaway, throwaway

CASES = ((100, 256), (1024, 256), (1024, 2000), (1024, 1))
"""Bytes of a body, and messages under way."""

BYTES = 160 << 20
"""Of bodies, so that there are several checkpoints; with one message under way, a sixteenth of it."""

QUEUE = "/queue/bench"
CHECKPOINT_SECONDS_MAX = 60.0
QUIET_SECONDS = 2.0

Metrics = Mapping[str, float]


def written(pid: int) -> int:
    """Bytes, so far."""
    lines = Path(f"/proc/{pid}/io").read_text("ascii").splitlines()
    return int(dict(line.split(": ") for line in lines)["write_bytes"])


def metrics(node: Throwaway) -> Metrics:
    """Those without labels."""
    with urllib.request.urlopen(f"http://{node.web_address}/metrics", timeout=30) as response:
        lines = response.read().decode("utf-8").splitlines()
    pairs = (line.split(" ")[:2] for line in lines if "{" not in line and not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def wait(node: Throwaway, for_all: bool) -> None:
    """Until the checkpoint that is under way has ended, or with `for_all` one that ends with the journal.

    Raises Failed after CHECKPOINT_SECONDS_MAX.
    """
    deadline = time.monotonic() + CHECKPOINT_SECONDS_MAX
    before = -1
    while before != (before := written(node.pid)) or (for_all and metrics(node)["qmq_journal_unsaved_bytes"]):
        if time.monotonic() > deadline:
            raise Failed(f"no checkpoint came within {CHECKPOINT_SECONDS_MAX:g} s")
        time.sleep(QUIET_SECONDS)


def figures(node: Throwaway, body_bytes: int, window: int) -> list[float]:
    """For each byte of a body: journal and written, of the SENDs; and of these and the settles.

    Raises Failed if messages are missing, and OSError when the node ends a connection.
    """
    bodies = BYTES if window > 1 else BYTES // 16
    plan = BenchPlan(
        workload="written",
        at=node.address,
        destination=QUEUE,
        count=bodies // body_bytes,
        window=window,
        body_bytes=body_bytes,
    )
    report = Report(parameters={})
    before = written(node.pid)
    found = []
    with LoadConnections(plan) as lines:
        for step in (publish, drain):
            step(plan, lines, report, QUEUE)
            if step is drain:
                # A browser sees the stores, so a checkpoint comes before it.
                browser = lines.add(MarkCounter(BODY_MARK))
                browser.subscribe_without_receipt(QUEUE, "auto", ("browser", "true"))
            wait(node, step is drain)
            found += [metrics(node)["qmq_commit_bytes_total"], written(node.pid) - before]
    if not report.sound:
        raise Failed(f"{report.missing} messages are missing, {report.extra} came too often")
    return [one / bodies for one in found]


def measure() -> list[str]:
    """A table of Markdown."""
    rows = []
    for body_bytes, window in CASES:
        with throwaway(None, limits_for(), None, has_web=True) as node:
            found = figures(node, body_bytes, window)
        rows.append([shown(body_bytes), shown(window), *map(shown, found)])
        print(*rows[-1], sep=", ", flush=True)
    head = [
        "bytes of a body",
        "messages under way",
        "SENDs: journal",
        "written",
        "until all is settled: journal",
        "written",
    ]
    return table(head, rows, range(len(head)))


if __name__ == "__main__":
    try:
        lines = measure()
    except (OSError, Failed) as error:
        sys.exit(str(error))
    if "--write" in sys.argv:
        write_section(DOCS / "benchmarks.md", "written", [f"`python -m benchmarks.written`; {MACHINE}.", "", *lines])
