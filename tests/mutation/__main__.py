"""`python -m tests.mutation --count 100 --seed 1`: which small changes of the product do the tests not notice?

Draws mutants of the pure packages and of the server, runs the tests on each (those of its module, of its package, all
unit tests, some seeds of the simulation), and writes a report. A surviving mutant is equivalent to the source, which a
reader must decide, or shows a missing test. Exit code 1 when the tests fail without any mutant.
"""

import argparse
import sys
import time
from multiprocessing.pool import ThreadPool
from pathlib import Path
from queue import SimpleQueue
from random import Random

from tests.mutation.mutants import Mutant, drawn
from tests.mutation.report import page
from tests.mutation.run import UNIT, Copy, Verdict

CHECKOUT = Path(__file__).parents[2]
PER_FILE_MAX = 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("--count", type=int, default=100, help="how many mutants")
    parser.add_argument("--seed", type=int, default=1, help="draws the same mutants of the same source again")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--seeds", type=int, default=10, help="of the simulation, for what unit tests did not notice")
    parser.add_argument("--seconds", type=float, default=900, help="after which a run of tests counts as endless")
    parser.add_argument("--report", type=Path, default=Path("build/mutants.md"))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    copies: SimpleQueue[Copy] = SimpleQueue()
    for number in range(given.jobs):
        copies.put(Copy(CHECKOUT, CHECKOUT / "build" / "mutants" / str(number), given.seconds, given.seeds))
    copy = copies.get()
    red = copy.first_red(UNIT)
    sources = copy.sources()
    copies.put(copy)
    if red is not None:
        print(f"without any mutant: {red}", file=sys.stderr)
        return 1
    began = time.monotonic()
    chosen = list(drawn(sources, given.count, PER_FILE_MAX, Random(given.seed)))

    def judge(choice: tuple[str, Mutant]) -> Verdict:
        path, mutant = choice
        copy = copies.get()
        try:
            verdict = copy.judge(path, sources[path], mutant)
        finally:
            copies.put(copy)
        what = f"{path}:{mutant.line} {mutant.kind}: {verdict.before!r} → {mutant.text!r}"
        print(f"{'survives' if verdict.by is None else 'killed':8} {what}  {verdict.by or ''}", flush=True)
        return verdict

    with ThreadPool(given.jobs) as pool:
        verdicts = pool.map(judge, chosen, chunksize=1)
    given.report.parent.mkdir(parents=True, exist_ok=True)
    given.report.write_text(page(verdicts, given.seed, time.monotonic() - began), "utf-8")
    print(f"{sum(v.by is None for v in verdicts)} of {len(verdicts)} survive: {given.report}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
