"""Where a node spends its processor time under one workload of `qmq bench`, in microseconds per message.

    python -m benchmarks.profile queue --memory
    make profile WORKLOAD="send"

Starts a throwaway node that takes a sample of itself each millisecond of processor time (`benchmarks.sampled`), lets
`qmq bench` measure it with the options given, and prints a table by parts of the node, and the functions that took
most.
The samples say how the time divides; what a message costs in all is told by the measurement. The start of the node is
cut out by name, so that seconds of load are compared with seconds of load.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

PARTS = (
    ("reading frames", ("qmq.wire.",)),
    ("what frames ask for", ("qmq.gateways.stomp", "qmq.gateways.repeats", "qmq.gateways.headers")),
    ("deciding", ("qmq.broker.", "qmq.dots", "namedtuple_Dot")),
    (
        "writing MESSAGE frames and receipts",
        ("qmq.gateways.", "qmq.server.teller", "qmq.server.receipts", "qmq.server.copies"),
    ),
    ("records of the journal", ("qmq.journal", "qmq.storage.record", "qmq.storage.batch")),
    (
        "the journal's file and its syncs",
        ("qmq.storage.journal", "qmq.storage.disk", "qmq.storage.chain", "qmq.storage.segment"),
    ),
    ("checkpoint: into the stores", ("qmq.storage.", "sqlite", "namedtuple_")),
    ("links", ("qmq.replication.",)),
    ("sockets", ("qmq.server.pipes", "qmq.server.outbox")),
    ("sessions and commits", ("qmq.server.",)),
    ("trio and threads", ("trio", "outcome", "threading", "<attrs generated", "contextlib", "sniffio")),
)
"""Part, and how the modules begin that belong to it; the first that fits."""

START_MODULES = ("importlib.", "attr.", "re.", "enum", "pydantic", "abc", "typing", "dataclasses", "click", "zipimport")
"""What runs before the first client comes, and nearly nothing afterwards."""

FUNCTIONS_SHOWN = 20
READY_SECONDS = 20.0
STOP_SECONDS = 20.0

NODE_FILE = """\
name = "profile"
data = "{data}"

[[stomp]]
address = "127.0.0.1:{port}"
"""

Row = tuple[str, str, int]


def part_of(module: str) -> str:
    """The part that a module belongs to."""
    for part, beginnings in PARTS:
        if module.startswith(beginnings):
            return part
    return "everything else"


def tables(rows: list[Row], micros: float) -> str:
    """Parts and functions with their share of `micros` per message."""
    rows = [row for row in rows if not row[0].startswith(START_MODULES) and row[1] != "<module>"]
    total = sum([count for _, _, count in rows]) or 1
    parts: Counter[str] = Counter()
    for module, _, count in rows:
        parts[part_of(module)] += count
    lines = ["| part | share | µs per message |", "|---|---:|---:|"]
    lines += [f"| {part} | {count / total:.0%} | {micros * count / total:.2f} |" for part, count in parts.most_common()]
    lines += ["", "| function | share | µs per message |", "|---|---:|---:|"]
    for module, function, count in rows[:FUNCTIONS_SHOWN]:
        lines.append(f"| `{module}.{function}` | {count / total:.1%} | {micros * count / total:.2f} |")
    return "\n".join(lines)


def await_listener(process: "subprocess.Popen[bytes]", port: int) -> None:
    """Return when somebody listens. Exits when the node has ended instead, or takes too long."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise SystemExit("the node did not start")


def profile(arguments: list[str]) -> tuple[list[Row], dict[str, object]]:
    """The samples of a node under `qmq bench` with these arguments, and what that has measured."""
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="qmq-profile-") as place:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        node_file, samples = Path(place, "node.toml"), Path(place, "samples.json")
        node_file.write_text(NODE_FILE.format(data=Path(place, "data"), port=port), "utf-8")
        node = [sys.executable, "-m", "benchmarks.sampled", str(samples), "serve", "--config", str(node_file)]
        with subprocess.Popen([*node, "--log-level", "warning"]) as process:
            try:
                if len(cores) > 1:
                    os.sched_setaffinity(process.pid, {cores[0]})
                await_listener(process, port)
                bench = [sys.executable, "-m", "qmq", "bench", *arguments, "--line"]
                bench += ["--at", f"127.0.0.1:{port}", "--pid", str(process.pid)]
                measured = subprocess.run(bench, stdout=subprocess.PIPE, check=True, timeout=600)
            finally:
                process.terminate()
                try:
                    process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
        rows = [(str(module), str(function), int(count)) for module, function, count in json.loads(samples.read_text())]
        return rows, dict(json.loads(measured.stdout))


def main(arguments: list[str]) -> None:
    """See the module's opening."""
    rows, measured = profile(arguments or ["queue"])
    micros = float(str(measured["server_cpu_us_per_message"]))
    print(f"qmq bench {' '.join(arguments)}: {measured.get('per_second', '–')}/s, {micros:.2f} µs of the node each\n")
    print(tables(rows, micros))


if __name__ == "__main__":
    main(sys.argv[1:])
