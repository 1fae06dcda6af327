"""`python -m tests.nemesis --minutes 30`: fire at real nodes, print the verdict, write the page.

Exit code 1 when a promise was broken. The seed draws the same faults again, at about the same times; what real
processes do in between is theirs.
"""

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.nemesis.fire import FAULTS
from tests.nemesis.run import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.nemesis")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--nodes", type=int, default=3, choices=range(3, 7), help="that the mesh begins with")
    parser.add_argument("--only", nargs="+", default=[], choices=[fault.name for fault in FAULTS], help="these faults")
    parser.add_argument("--seed", type=int, help="of the faults; drawn and printed by default")
    parser.add_argument("--rate", type=float, default=60.0, help="messages a second of each publisher, or half of it")
    parser.add_argument("--page", type=Path, default=Path("nemesis.html"), help="where the report goes")
    parser.add_argument("--keep", type=Path, help="a folder for the nodes' logs and data, which then stay")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="qmq-nemesis-") as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        seconds = arguments.minutes * 60
        result = run(
            folder.resolve(),
            seconds=seconds,
            seed=seed,
            rate=arguments.rate,
            nodes=arguments.nodes,
            only=arguments.only,
        )
    arguments.page.write_text(result.html, "utf-8")
    for row in result.rows:
        counts = f"{row.receipted} receipted, {row.received} received, {len(row.lost)} lost"
        doubled = len(row.doubled) + row.repeats
        allowed = f"{row.around_faults} twice around faults, {row.lost_with_disk} lost with the only disk"
        print(
            f"{row.destination}, {row.reader}: {counts}, {doubled} doubled, {len(row.unexpected)} unexpected; {allowed}"
        )
        if row.acked_edge or row.acked_for_good:
            edge = f"{row.acked_edge} ACKs at edge, {row.after_edge} given after them ({row.after_edge_percent:.3f} %)"
            print(f"    {edge}; {row.acked_for_good} at quorum, {len(row.again)} given where they must not be")
    takeovers = sum(result.history.takeovers.values())
    print(f"{len(result.history.harms)} faults, {takeovers} takeovers; {result.without or 'everything could be tried'}")
    print("; ".join(result.wrongs) or "every promise was kept")
    print(f"the page: {arguments.page}")
    return 1 if result.wrongs else 0


if __name__ == "__main__":
    sys.exit(main())
