"""How long records took from node to node, and how long the mesh needed after a cut, as journals show it.

A record carries the time at which its own node accepted it. The time at which another node took it is not written
anywhere; but that node's own records stand before and behind it in its journal, with their times, so it lies between
them. Clocks of two nodes differ: no record comes before it was sent, so the fastest ones of each way bound the
difference from both sides (as in NTP). Every figure therefore has its bounds. A pair is left out when only one
direction is known, or when few records lie close enough between own ones.

A **cut** shows as a run of records that took longer than `CUT_SECONDS`: it heals when the first of them arrives, and
the pair has converged when records are young again. The middle between own records will do for that. Of the bounds of
clocks the one counts by which records took least: a way that is slow as a whole, as to a busy node, is no cut.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from qmq.errors import CorruptLog
from qmq.spark.reading.logs import DataDirectory
from qmq.spark.reading.options import Options
from qmq.spark.reading.plan import passed_by
from qmq.spark.reading.segments import SegmentListing
from qmq.storage.format.segment import BatchEntry

SEGMENTS_LOOKED_AT: Final = 16
"""The newest ones of each node: a gigabyte of log."""
BETWEEN_SECONDS_MAX: Final = 1.0
"""Own records further apart than this say too little about when those between came."""
TIGHT_SECONDS: Final = 0.02
"""The same for latency, which may be a few ms."""
TIGHT_MIN: Final = 20
"""Batches between own records that are so close; of fewer no latency is reported."""
CUT_SECONDS: Final = 5.0
YOUNG_SECONDS: Final = 1.0

Times: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


class Bounds(NamedTuple):
    """Seconds between which a figure lies."""

    low: float
    high: float

    @property
    def text(self) -> str:
        """In ms: the middle, and how far from it the figure may be."""
        return f"{(self.low + self.high) * 500:.1f} ± {(self.high - self.low) * 500:.1f}"


class LinkLatency(NamedTuple):
    """Records of one node at another: from acceptance to arrival. `skew`: how far the target's clock is ahead."""

    source: str
    target: str
    batches: int
    p50: Bounds
    p95: Bounds
    p99: Bounds
    most: Bounds
    skew: Bounds


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
    """Batches of one node at another: when they were accepted, and between which times they came."""

    sent_us: Times
    after_us: Times
    before_us: Times

    @property
    def came_us(self) -> Times:
        return (self.after_us + self.before_us) / 2


def measure(directories: Sequence[DataDirectory], choice: Options | None = None) -> tuple[list[LinkLatency], list[Cut]]:
    """All pairs that the newest segments cover; with a `choice`, the newest segments that it chooses."""
    samples: dict[tuple[str, str], _Sample] = {}
    for directory in directories:
        for source, sample in _samples(directory, choice):
            samples[source, directory.node] = sample
    # None took less than no time: the target's clock is ahead by so much at most, if at all.
    ahead = {pair: float(np.min(sample.before_us - sample.sent_us)) for pair, sample in samples.items()}
    links: list[LinkLatency] = []
    cuts: list[Cut] = []
    for (source, target), sample in sorted(samples.items()):
        high = ahead[source, target]
        low = -ahead.get((target, source), np.inf)
        if -np.inf < low <= high:  # Otherwise nothing came back, or a clock was set meanwhile.
            links += _link(source, target, sample, low, high)
        cuts += _cuts(source, target, sample, high if low <= high else 0.0)
    return links, cuts


def _link(source: str, target: str, sample: _Sample, low_us: float, high_us: float) -> Iterator[LinkLatency]:
    """`low_us`, `high_us`: bounds of how far the target's clock is ahead."""
    tight = sample.before_us - sample.after_us <= TIGHT_SECONDS * 1e6
    count = int(np.count_nonzero(tight))
    if count < TIGHT_MIN:
        return
    least = np.maximum(sample.after_us - sample.sent_us - high_us, 0.0)[tight]
    most = (sample.before_us - sample.sent_us - low_us)[tight]
    bounds = [np.percentile(took, [50, 95, 99, 100]) for took in (least, most)]
    p50, p95, p99, longest = [_bounds(*pair) for pair in zip(*bounds, strict=True)]
    yield LinkLatency(source, target, count, p50, p95, p99, longest, _bounds(low_us, high_us))


def _bounds(low_us: float, high_us: float) -> Bounds:
    return Bounds(round(float(low_us) / 1e6, 6), round(float(high_us) / 1e6, 6))


def _samples(directory: DataDirectory, choice: Options | None) -> Iterator[tuple[str, _Sample]]:
    # Range snapshots come on request, and may be a mark without a time.
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
    rows, before, behind = rows[close], before[close], behind[close]
    for source in sorted(set(nodes[rows].tolist())):
        chosen = nodes[rows] == source
        yield source, _Sample(last_us[rows[chosen]], before[chosen], behind[chosen])


def _newest(directory: DataDirectory, choice: Options | None) -> list[SegmentListing]:
    """The newest chosen segments, oldest first."""
    found: list[SegmentListing] = []
    for segment in reversed(directory.journal.files()):
        if len(found) == SEGMENTS_LOOKED_AT:
            break
        try:
            listing = segment.list()
        except (FileNotFoundError, CorruptLog):
            continue  # Dropped meanwhile, not begun yet, or damaged, which the audit reports.
        if choice is None or not passed_by(listing, choice):
            found.append(listing)
    return found[::-1]


def _cuts(source: str, target: str, sample: _Sample, ahead_us: float) -> Iterator[Cut]:
    """`ahead_us`: how far the target's clock is ahead, at most. So a cut is what took long by any clock."""
    sent_us = sample.sent_us + ahead_us
    took = (sample.came_us - sent_us) / 1e6
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
        began = int(np.min(sent_us[healed : end + 1]))
        yield Cut(source, target, began, int(sample.came_us[healed]), int(sample.came_us[end]))
