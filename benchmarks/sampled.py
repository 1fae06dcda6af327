"""A node that notes where it is, once in a millisecond of processor time, and writes that down when it ends.

    python -m benchmarks.sampled FILE serve --config node.toml

The signal of a processor-time timer interrupts the main thread wherever it is, so a sample costs nothing between two
of them and a node that waits is not sampled. While the main thread waits for its sockets, it is another thread that
used the time, and that one is noted. Python takes a signal between two of its own steps: time inside a call into C
belongs to the Python function that made it.
"""

import json
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType

from qmq.cli import main

SAMPLE_SECONDS = 0.001

WAITING = frozenset(
    {
        "get_events",
        "_update_registrations",
        "wait",
        "_wait_for_tstate_lock",
        "acquire",
        "_handle_job",
        "_work",
        "_serve",
    }
)
"""Functions in which a thread stands that has nothing to do. The second is trio's call to epoll_ctl: it lets go of the
interpreter, and while a checkpoint runs that thread is found at work, which would pass for the loop's."""

Place = tuple[str, str]
"""Module and function."""


class Samples:
    """How often the node was found at each place."""

    def __init__(self) -> None:
        self.places: Counter[Place] = Counter()
        self._main = threading.get_ident()

    def take(self, number: int, frame: FrameType | None) -> None:
        """A signal handler."""
        if frame is not None and frame.f_code.co_name not in WAITING:
            self.places[place_of(frame)] += 1
            return
        for thread, other in sys._current_frames().items():
            if thread != self._main and other.f_code.co_name not in WAITING:
                self.places[place_of(other)] += 1
                return
        self.places["trio", "wait"] += 1

    def rows(self) -> list[tuple[str, str, int]]:
        """(Module, function, samples), most first."""
        return [(module, function, count) for (module, function), count in self.places.most_common()]


def place_of(frame: FrameType) -> Place:
    """Where a frame is."""
    return str(frame.f_globals.get("__name__", "?")), frame.f_code.co_name


if __name__ == "__main__":
    target = Path(sys.argv.pop(1))
    samples = Samples()
    signal.signal(signal.SIGPROF, samples.take)
    signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)
    try:
        main(prog_name="qmq")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        target.write_text(json.dumps(samples.rows()), "utf-8")
