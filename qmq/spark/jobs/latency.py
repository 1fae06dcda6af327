"""How long records took from node to node, and how long the mesh needed after a cut, as journals tell it.

A record carries the time at which its own node accepted it. The time at which another node took it is not written
anywhere; but that node's own records stand before and behind it in its journal, with their times, so it lies between
them. The middle is taken, and only where the two are close. Clocks of two nodes differ: if records went both ways, the
difference is half of what the fastest ones of each way seem to have taken more or less (as in NTP).

A **cut** is told by a run of records that took longer than `CUT_SECONDS`: it heals when the first of them arrives, and
the pair has converged when records are young again.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from qmq.errors import CorruptLog
from qmq.spark.logs import DataDirectory, Listing
from qmq.spark.options import Options
from qmq.spark.plan import passed_by
from qmq.storage.segment import BatchEntry

SEGMENTS_LOOKED_AT: Final = 16
"""The newest ones of each node: a gigabyte of log."""
BETWEEN_SECONDS_MAX: Final = 1.0
"""Own records further apart than this say too little about when those between came."""
CUT_SECONDS: Final = 5.0
YOUNG_SECONDS: Final = 1.0

Seconds: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


class Link(NamedTuple):
    """Records of one node at another: seconds from acceptance to arrival, clocks put right by `skew_seconds`."""

    source: str
    target: str
    batches: int
    p50: float
    p95: float
    p99: float
    most: float
    skew_seconds: float


class Cut(NamedTuple):
    """A time in which records did not get from one node to another. Times are µs since 1970 by the target's clock."""

    source: str
    target: str
    began_us: int
    healed_us: int
    converged_us: int

    @property
    def convergence_seconds(self) -> float:
        return (self.converged_us - self.healed_us) / 1e6


class _Sample(NamedTuple):
    sent_us: Seconds
    came_us: Seconds


def measure(directories: Sequence[DataDirectory], choice: Options | None = None) -> tuple[list[Link], list[Cut]]:
    """All pairs that the newest segments tell something about; with a `choice`, the newest of those that it chooses."""
    samples: dict[tuple[str, str], _Sample] = {}
    for directory in directories:
        for source, sample in _samples(directory, choice):
            samples[source, directory.node] = sample
    fastest = {pair: float(np.min(sample.came_us - sample.sent_us)) for pair, sample in samples.items()}
    links: list[Link] = []
    cuts: list[Cut] = []
    for (source, target), sample in sorted(samples.items()):
        back = fastest.get((target, source))
        skew_us = 0.0 if back is None else (fastest[source, target] - back) / 2
        took = (sample.came_us - sample.sent_us - skew_us) / 1e6
        usual = np.percentile(took, [50, 95, 99])
        numbers = [round(float(value), 6) for value in (*usual, np.max(took), skew_us / 1e6)]
        links.append(Link(source, target, len(took), *numbers))
        cuts += _cuts(source, target, sample, took)
    return links, cuts


def _samples(directory: DataDirectory, choice: Options | None) -> Iterator[tuple[str, _Sample]]:
    # Rests come when somebody asks for them, and may be a mark without a time.
    entries: list[BatchEntry] = [entry for listing in _newest(directory, choice) for entry in listing.whole_entries()]
    if not entries:
        return
    nodes = np.array([entry.origin.node for entry in entries])
    last_us = np.array([entry.last_us for entry in entries], np.float64)
    own: Any = np.flatnonzero(nodes == directory.node)
    if len(own) < 2:
        return
    place: Any = np.searchsorted(own, np.arange(len(entries)))
    inside = (place > 0) & (place < len(own)) & (nodes != directory.node)
    rows: Any = np.flatnonzero(inside)
    before, behind = last_us[own[place[rows] - 1]], last_us[own[place[rows]]]
    close = (behind - before <= BETWEEN_SECONDS_MAX * 1e6) & (behind >= before)
    rows, came = rows[close], (before[close] + behind[close]) / 2
    for source in sorted(set(nodes[rows].tolist())):
        chosen = nodes[rows] == source
        yield source, _Sample(last_us[rows[chosen]], came[chosen])


def _newest(directory: DataDirectory, choice: Options | None) -> list[Listing]:
    """The newest chosen segments, oldest first."""
    found: list[Listing] = []
    for segment in reversed(directory.journal.files()):
        if len(found) == SEGMENTS_LOOKED_AT:
            break
        try:
            listing = segment.list()
        except (FileNotFoundError, CorruptLog):
            continue  # Dropped meanwhile, not begun yet, or damaged, which is the audit's to tell.
        if choice is None or not passed_by(listing, choice):
            found.append(listing)
    return found[::-1]


def _cuts(source: str, target: str, sample: _Sample, took: Seconds) -> Iterator[Cut]:
    late = took > CUT_SECONDS
    row = 0
    while row < len(took):
        if not late[row]:
            row += 1
            continue
        healed = row
        while row < len(took) and took[row] > YOUNG_SECONDS:
            row += 1
        end = min(row, len(took) - 1)
        began = int(np.min(sample.sent_us[healed : end + 1]))
        yield Cut(source, target, began, int(sample.came_us[healed]), int(sample.came_us[end]))
