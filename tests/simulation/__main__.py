"""`python -m tests.simulation --seeds 10000 --start 0 --jobs 2`: many seeds, for the night.

Prints every failing seed when it is found, shrunk to the faults that it needs, with what is wrong, the end of its
trace and the command that shows it again, and a table last. Exit code 1 when a seed failed.

With `--keep FILE` a run that was stopped goes on where it was when it is started again.

`--seeds 1 --start N` shows one seed again, `--faults 3,7` only these of its faults, `--plants` looks for the seeded
bugs instead, `--digests` prints the trace hash of each seed.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from math import inf
from pathlib import Path

from tests.fakes.store import ON_SQLITE
from tests.simulation.plan import Family
from tests.simulation.plants import SEEDED_BUGS, SEEDS_MAX
from tests.simulation.plants.in_tests import is_found
from tests.simulation.reports.find import find
from tests.simulation.reports.results import Results
from tests.simulation.reports.shrink import shrink
from tests.simulation.reports.summary import Summary
from tests.simulation.run import Report, simulate

SEEDS_SHRUNK = 5
"""A failing run is shown at once; so many of its seeds are worth the time of shrinking."""

FAILED_SEEDS_SHOWN = 20
SEEDS_PER_TASK = 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=300, help="how many")
    parser.add_argument("--minutes", type=float, default=inf, help="begin no more seeds after this time")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--family", type=_family, help="faults of " + ", ".join(f.name.lower() for f in Family))
    parser.add_argument("--nodes", type=int, default=0, help="meshes of so many nodes; 0: as the seeds draw")
    parser.add_argument("--faults", type=_numbers, help="only these faults of the script, by number, or none")
    parser.add_argument("--plant", choices=SEEDED_BUGS, help="with this bug in the product")
    parser.add_argument("--plants", action="store_true", help="look for every seeded bug instead")
    parser.add_argument("--keep", type=Path, help="append what each seed showed; leave out seeds that this file has")
    parser.add_argument("--json", type=Path, help="write the summary to this file too")
    parser.add_argument("--store", choices=("memory", "sqlite"), default="memory", help="the nodes' queue stores")
    parser.add_argument("--digests", action="store_true", help="print the trace hash of each seed")
    arguments = parser.parse_args()
    os.environ[ON_SQLITE] = arguments.store
    if arguments.plants:
        seeds = range(arguments.start, arguments.start + min(arguments.seeds, SEEDS_MAX))
        return find_all(arguments.plant, seeds, arguments.nodes)
    return run_many(arguments)


def run_many(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    seeds = range(arguments.start, arguments.start + arguments.seeds)
    bug = SEEDED_BUGS[arguments.plant].install if arguments.plant else nullcontext
    summary = Summary()
    run = partial(simulate, bug=bug, family=arguments.family, kept=arguments.faults, size=arguments.nodes)
    until = began + arguments.minutes * 60
    results = Results(arguments.keep) if arguments.keep else None
    done = {report.seed: report for report in results or () if report.seed in seeds}
    for report in done.values():
        summary.add(report)
    for report in run_all(run, [seed for seed in seeds if seed not in done], arguments.jobs):
        summary.add(report)
        if results is not None:
            results.add(report)
        if arguments.digests:
            print(report.seed, report.digest)
        if report.wrongs and len(summary.failed) <= FAILED_SEEDS_SHOWN:
            if arguments.faults is None and len(summary.failed) <= SEEDS_SHRUNK:
                print(f"--- seed {report.seed} failed, shrinking its {len(report.plan.script)} faults", flush=True)
                report = shrink(report, bug)
            print(f"--- seed {report.seed} failed\n{report}\n", flush=True)
        if time.monotonic() > until:
            break
    seconds = time.monotonic() - began
    print(summary.table(seconds))
    if arguments.json:
        arguments.json.write_text(summary.json(seconds) + "\n")
    return 1 if summary.failed else 0


def run_all(run: "partial[Report]", seeds: Sequence[int], jobs: int) -> Iterator[Report]:
    if jobs <= 1:
        yield from map(run, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(run, seeds, SEEDS_PER_TASK)


def find_all(only: str | None, seeds: range, size: int) -> int:
    """Look for the seeded bugs and say how many seeds each took."""
    missed = 0
    for seeded in [SEEDED_BUGS[only]] if only else SEEDED_BUGS.values():
        if seeded.found_by and not only:
            verdict = seeded.found_by if is_found(seeded) else f"NOT FOUND by {seeded.found_by}"
            missed += verdict != seeded.found_by
            print(f"{seeded.name:40} {'a test':10}           {verdict}", flush=True)
            continue
        began = time.monotonic()
        found = find(seeded, seeds, size)
        seconds = time.monotonic() - began
        if found is None:
            verdict = f"NOT FOUND by {len(seeds)} seeds"
        elif not found.is_fair:
            verdict = f"seed {found.report.seed} fails without it too: {found.clean.wrongs[0]}"
        else:
            verdict = f"seed {found.report.seed}, after {found.tried}: {found.report.wrongs[0].splitlines()[0][:90]}"
        missed += found is None or not found.is_fair
        print(f"{seeded.name:40} {seeded.family.name.lower():10} {seconds:6.1f} s  {verdict}", flush=True)
    return 1 if missed else 0


def _family(name: str) -> Family:
    return Family[name.upper()]


def _numbers(text: str) -> list[int]:
    return [] if text == "none" else [int(number) for number in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
