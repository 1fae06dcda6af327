"""`python -m tests.wire.fuzz amqp --frames 10000000`: many frames for one codec, one process.

Prints what was fed and what came of it. A connection that breaks a rule ends the run, with the command that feeds it
again.
"""

import argparse
import sys
import time
from math import inf

from tests.wire.fuzz import amqp, beanstalk
from tests.wire.fuzz.figures import feed

CONNECTIONS = {"amqp": amqp.connection, "beanstalk": beanstalk.connection}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wire.fuzz")
    parser.add_argument("codec", choices=CONNECTIONS)
    parser.add_argument("--frames", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first connection")
    parser.add_argument("--minutes", type=float, default=inf, help="begin no more connections after this time")
    arguments = parser.parse_args()
    began = time.monotonic()
    seconds = arguments.minutes * 60
    figures = feed(CONNECTIONS[arguments.codec], arguments.frames, arguments.seed, arguments.first, seconds)
    print(f"{arguments.codec}, seed {arguments.seed}: {figures}\n{time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
