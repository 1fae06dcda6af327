"""Measure everything that docs/benchmarks.md shows, and write the figures into its table.

Each row is one `qmq bench` command with a throwaway node, run three times or more; the run with the median figure of
the best three is shown as a whole, so that the numbers of a row belong together. (Of the best three, because others
who use the machine only ever make a run worse.) A row whose runs miss messages stops everything: a wrong figure must
not be written.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
BEGIN = "<!-- figures: written by benchmarks/run.py -->"
END = "<!-- end of figures -->"
RUN_SECONDS_MAX = 300
COUNTED = 3
"""How many of the runs count: the best."""

Facts = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: what a person would call it, the command, the figure that counts, and the aim."""

    name: str
    arguments: str
    figure: str
    unit: str
    aim: str
    more_is_better: bool = True


ROWS: Sequence[Row] = (
    Row("topic, 1 to 1", "topic", "per_second", "messages/s", "≥ 200,000"),
    Row("topic, 1 to 10", "fan-out", "per_second", "deliveries/s", "≥ 1,000,000"),
    Row("queue, an ACK each, memory only", "queue --memory", "per_second", "messages/s", "≥ 100,000"),
    Row("queue, an ACK each, durable", "queue", "per_second", "messages/s", "≥ 40,000"),
    Row("SEND with a receipt each, durable, 256 under way", "send", "per_second", "receipts/s", "≥ 80,000"),
    Row("latency of a topic at 1,000/s, p99", "latency", "p99_us", "µs", "≤ 3,000", False),
    Row("the same, p50", "latency", "p50_us", "µs", "", False),
    Row("how late the generator itself was then, p99", "latency", "generator_lag_p99_us", "µs", "", False),
    Row(
        "latency of a durable queue at 1,000/s, p99",
        "latency --destination /queue/bench",
        "p99_us",
        "µs",
        "",
        False,
    ),
    Row("idle node, memory", "idle", "server_rss_mib", "MiB", "≤ 50", False),
    Row("idle node, wake-ups", "idle", "wakeups_per_second", "per s", "≤ 5", False),
    Row("an idle connection", "idle --connections 1000", "bytes_per_connection", "bytes", "", False),
)


def number(facts: Facts, name: str) -> float:
    """A figure of a run. Raises KeyError or TypeError when it has none."""
    value = facts[name]
    if not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r}")
    return value


def median(runs: Sequence[Facts], row: Row) -> Facts:
    """Of the best COUNTED runs, the one in the middle by the row's figure; of two the worse one."""
    best_first = sorted(runs, key=lambda facts: number(facts, row.figure), reverse=row.more_is_better)
    counted = best_first[:COUNTED]
    return counted[len(counted) // 2]


def shown(value: float) -> str:
    """`1,234,567`, `0.31`, and nothing after the point of large numbers."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.2f}".rstrip("0").rstrip(".")


def line(row: Row, facts: Facts) -> str:
    """One row of the table."""
    beside = [
        shown(number(facts, name)) if isinstance(facts.get(name), int | float) and row.more_is_better else ""
        for name in ("server_cpu_us_per_message", "server_cpu_share", "generator_cpu_share")
    ]
    cells = [row.name, f"`qmq bench {row.arguments} --serve`", shown(number(facts, row.figure)), row.unit, row.aim]
    return "| " + " | ".join([*cells, *beside]) + " |"


def page_with(page: str, lines: Sequence[str]) -> str:
    """`page` with `lines` between its two marks. Raises ValueError when it has none."""
    before, found, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"the page has no {BEGIN} … {END}")
    return "\n".join([before + BEGIN, "", *lines, "", END + after])


def figures(runs: Mapping[str, Sequence[Facts]], machine: str) -> list[str]:
    """What stands between the marks. `runs` has the runs of each command by its arguments."""
    first = next(iter(runs.values()))
    versions = f"QMQ {first[0]['qmq']}, Python {first[0]['python']} (pure Python, nothing compiled)"
    how = (
        f"the median of {len(first)}" if len(first) <= COUNTED else f"the median of the best {COUNTED} of {len(first)}"
    )
    return [
        f"Machine: {machine}; {versions}; {how}.",
        "",
        "| what | command | figure | unit | aim | node's CPU, µs per message | node busy | generator busy |",
        "|---|---|---:|---|---|---:|---:|---:|",
        *(line(row, median(runs[row.arguments], row)) for row in ROWS if row.arguments in runs),
    ]


def run(arguments: str, seconds: float) -> Facts:
    """One `qmq bench`. Ends the program when it fails."""
    command = [sys.executable, "-m", "qmq", "bench", *arguments.split(), "--serve", "--seconds", str(seconds)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS_MAX)
    if result.returncode:
        sys.exit(f"qmq bench {arguments}: {result.stderr.strip()}\n{result.stdout.strip()}")
    print(result.stdout.strip(), flush=True)
    facts = json.loads(result.stdout)
    assert isinstance(facts, dict)
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a node of this tree and write docs/benchmarks.md.")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each command; more where others use the machine")
    parser.add_argument("--seconds", type=float, default=5.0, help="measured seconds of each run")
    parser.add_argument("--machine", default=f"{os.cpu_count()} cores ({platform.machine()})", help="how to name it")
    parser.add_argument("--dry", action="store_true", help="print the table, write nothing")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    commands = dict.fromkeys(row.arguments for row in ROWS)
    runs: dict[str, list[Facts]] = {arguments: [] for arguments in commands}
    # Round by round, so that a noisy minute of the machine does not hit all runs of one row.
    for _ in range(options.rounds):
        for arguments in commands:
            runs[arguments].append(run(arguments, options.seconds))
    lines = figures(runs, options.machine)
    if options.dry:
        print("\n".join(lines))
    else:
        PAGE.write_text(page_with(PAGE.read_text("utf-8"), lines), "utf-8")


if __name__ == "__main__":
    main()
