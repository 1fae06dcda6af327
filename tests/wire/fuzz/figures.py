"""What a run fed and what came of it, and how a connection that breaks a rule is named."""

import random
import resource
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from time import monotonic

GROWTH_BYTES_MAX = 32 << 20
"""Of the process, between the first connections and the last: each connection is forgotten when it ends."""

WARM_FRAMES = 20_000
"""After so many frames the process has everything that it needs for further ones."""


@dataclass(slots=True)
class Figures:
    """`results` counts what the codec said: commands, refusals by their code, errors that ended a connection."""

    frames: int = 0
    connections: int = 0
    held_bytes_max: int = 0
    """What a reader held at most of commands that were not complete, as it says itself."""
    results: Counter[str] = field(default_factory=Counter)
    warm_bytes: int = 0
    """The most memory that the process had after WARM_FRAMES."""
    last_bytes: int = 0
    """The most that it had in all."""

    def hold(self, held: int, bound: int) -> None:
        """A reader holds so much; fails above its bound."""
        self.held_bytes_max = max(self.held_bytes_max, held)
        assert held <= bound, f"{held} bytes are held; at most {bound} may be"

    def __str__(self) -> str:
        lines = [
            f"{self.frames} frames of {self.connections} connections",
            f"held at most: {self.held_bytes_max} bytes",
            f"process: {self.warm_bytes >> 20} MiB after {WARM_FRAMES} frames, {self.last_bytes >> 20} MiB at the end",
        ]
        return "\n".join(lines + [f"{count:12} {name}" for name, count in self.results.most_common()])


CUTS = ((1, 100, 4096), (1, 1000), (223, 224, 225), (4096, 65536), (65536,))
SMALL_CUTS = ((1,), (1, 2, 3, 50), (7, 8, 9, 100))
"""Sizes of reads."""

SMALL_SHARE = 0.2
LONG_BYTES = 20_000
"""Of a connection that is seldom read in small pieces, because that takes long."""

Connection = Callable[[random.Random, Figures], None]
"""Makes one connection, feeds it, and counts its frames."""


def feed(connection: Connection, frames: int, seed: int, first: int = 0, seconds: float = inf) -> Figures:
    """Feed connections until there were so many frames, or so much time is over. The first of them is number `first`,
    and the last one `first` + `figures.connections` - 1."""
    figures = Figures()
    number = first
    until = monotonic() + seconds
    while figures.frames < frames and monotonic() < until:
        try:
            connection(random.Random(f"{seed}/{number}"), figures)
        except Exception as problem:
            problem.add_note(f"again: --seed {seed} --first {number} --frames 1")
            raise
        number += 1
        figures.connections += 1
        if not figures.warm_bytes and figures.frames >= WARM_FRAMES:
            figures.warm_bytes = _peak_bytes()
    figures.last_bytes = _peak_bytes()
    growth = figures.last_bytes - figures.warm_bytes if figures.warm_bytes else 0
    assert growth <= GROWTH_BYTES_MAX, f"the process has grown by {growth} bytes"
    return figures


def cut(data: bytes, rng: random.Random) -> list[bytes]:
    """`data` in pieces, as a network may deliver it."""
    is_small = rng.random() < (SMALL_SHARE / 10 if len(data) > LONG_BYTES else SMALL_SHARE)
    sizes = rng.choice(SMALL_CUTS if is_small else CUTS)
    parts: list[bytes] = []
    at = 0
    while at < len(data):
        for size in rng.choices(sizes, k=100):
            if at < len(data):
                parts.append(data[at : at + size])
                at += size
    return parts


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
