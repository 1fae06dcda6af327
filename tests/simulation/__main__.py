"""`python -m tests.simulation --seeds 10000 --start 0 --jobs 2`: many seeds, for the night.

Prints every failing seed when it is found, with its plan, what is wrong and the end of its trace, and a summary last.
Exit code 1 when a seed failed. `--seeds 1 --start N` shows one again; `--digests` prints the trace hash of each seed.
"""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator

from tests.simulation.run import Report, simulate

FAILED_SEEDS_SHOWN = 20
SEEDS_PER_TASK = 5


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=300, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--digests", action="store_true", help="print the trace hash of each seed")
    arguments = parser.parse_args()
    began = time.monotonic()
    seeds = range(arguments.start, arguments.start + arguments.seeds)
    total = Total()
    for report in run_all(seeds, arguments.jobs):
        total.add(report)
        if arguments.digests:
            print(report.seed, report.digest)
        if report.wrongs and len(total.failed) <= FAILED_SEEDS_SHOWN:
            print(f"--- seed {report.seed} failed\n{report}\n", flush=True)
    print(total.summary(time.monotonic() - began))
    return 1 if total.failed else 0


def run_all(seeds: range, jobs: int) -> Iterator[Report]:
    if jobs <= 1:
        yield from map(simulate, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(simulate, seeds, SEEDS_PER_TASK)


class Total:
    """Sums over all seeds."""

    def __init__(self) -> None:
        self.failed: list[int] = []
        self.seeds = self.quiet = self.lives = self.sent = self.receipted = self.excused = 0
        self.redelivered = self.after_ack = self.faults = 0
        self.slowest_seconds = 0.0

    def add(self, report: Report) -> None:
        self.seeds += 1
        self.quiet += report.plan.quiet
        self.faults += len(report.plan.faults)
        self.lives += report.lives
        self.sent += report.sent
        self.receipted += report.receipted
        self.excused += report.excused
        self.redelivered += report.redelivered
        self.after_ack += report.redelivered_after_ack
        self.slowest_seconds = max(self.slowest_seconds, report.settled_seconds)
        if report.wrongs:
            self.failed.append(report.seed)

    def summary(self, seconds: float) -> str:
        lines = [
            f"{self.seeds} seeds in {seconds:.0f} s ({seconds / max(self.seeds, 1):.2f} s each)",
            f"{self.faults} faults, {self.lives} lives of nodes, {self.quiet} seeds without faults",
            f"{self.sent} messages sent, {self.receipted} receipted, {self.excused} of them only on a wiped disk",
            f"{self.redelivered} redeliveries, {self.after_ack} of them after a receipted ACK",
            f"agreed at most {self.slowest_seconds:.1f} virtual s after the last fault",
            f"failing seeds: {sorted(self.failed) or 'none'}",
        ]
        return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
