"""What an audit finds: the findings, and the walk through one node's journal that makes them.

The walk gets the ranges of a journal in their order. It is pure: the files and servers are read by `audit`.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from qmq.model.dots import Origin, Vector
from qmq.spark.reading.ranges import RangeMap
from qmq.storage.format.lost_record import LostRange
from qmq.storage.log.quarantine import Quarantined

MISSING: Final = "missing"
DOUBLED: Final = "doubled"
OUT_OF_ORDER: Final = "out of order"
CORRUPT: Final = "corrupt"
LOST_FILE: Final = "lost file"
QUARANTINED: Final = "put aside"
LOST: Final = "lost"
"""No finding: its node has noted that not all of it is anywhere any more."""

FINDINGS_MAX: Final = 10_000
"""Findings of one node that are listed; a destroyed log would have millions."""


class Finding(NamedTuple):
    """Something that should not be. Records `first` to `last` of `origin`, or a place in a file."""

    node: str
    kind: str
    origin: str
    first: int
    last: int
    where: str

    @property
    def text(self) -> str:
        what = f" {self.origin} {self.first}–{self.last}" if self.origin else ""
        return f"{self.node}: {self.kind}{what}{f' ({self.where})' if self.where else ''}"


class OriginRow(NamedTuple):
    """One origin at one node. `behind`: records that another node has beyond this one's newest; None with a choice."""

    node: str
    origin: str
    first: int
    last: int
    records: int
    behind: int | None


@dataclass(slots=True)
class Audit:
    """What came of it."""

    rows: list[OriginRow] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    segments: int = 0
    records: int = 0
    healed: int = 0
    """Ranges that were quarantined, of which nothing is missing now."""
    lost: list[Finding] = field(default_factory=list)
    """No findings: no node has them, and readers get a notice."""
    bytes_verified: int = 0

    @property
    def clean(self) -> bool:
        return not self.findings


class JournalWalk:
    """Goes through one node's journal in order and notes what is wrong."""

    def __init__(self, node: str, base: Vector) -> None:
        self.node = node
        self.have: Vector = dict(base)
        self.first: Vector = {}
        self.last: Vector = {}
        """The newest record that was looked at, where `have` counts what was left out, too."""
        self.records: dict[Origin, int] = {}
        self.given_up = RangeMap()
        self.elsewhere = RangeMap()
        """What segments have that were left out."""
        self.skipped = RangeMap()
        """Records of left-out segments that are not seen yet: they may still come."""
        self.missing = RangeMap()
        self.lost: dict[LostRange, None] = {}
        """In the order in which they were noted."""
        self.findings: list[Finding] = []

    def take(self, origin: Origin, first: int, last: int, where: str, records: int | None = None) -> None:
        """Records `first` to `last` stand next in the journal, or fewer `records` that are left of them."""
        have = self.have.get(origin, 0)
        self.last[origin] = max(last, self.last.get(origin, 0))
        self.first.setdefault(origin, first)
        self.records[origin] = self.records.get(origin, 0) + (last - first + 1 if records is None else records)
        if first > have + 1:
            self.missing.add(origin, have, first - 1)
        elif first <= have:
            self._again(origin, first, min(last, have), where)
        self.have[origin] = max(have, last)

    def leave_out(self, ranges: RangeMap) -> None:
        """`ranges` stand next in the journal, in a segment that is not chosen."""
        self.skipped = self.skipped.minus(ranges)
        for origin, found in ranges.items():
            for after, through in found:
                self.skip_to({origin: after})
                self.elsewhere.add(origin, after, through)
                self.have[origin] = max(through, self.have.get(origin, 0))

    def skip_to(self, vector: Vector) -> None:
        """What comes next stands behind `vector`, and behind segments that were left out."""
        for origin, last in vector.items():
            self.skipped.add(origin, self.have.get(origin, 0), last)
            self.have[origin] = max(last, self.have.get(origin, 0))

    def account_for(self, origin: Origin, first: int, last: int) -> None:
        """What is missing of records `first` to `last` will not come, and is not needed."""
        self.missing = self.missing.minus(RangeMap({origin: [(first - 1, last)]}))

    def missing_ranges(self) -> int:
        return sum(len(ranges) for _, ranges in self.missing.items())

    def _again(self, origin: Origin, first: int, last: int, where: str) -> None:
        """Records that should have stood earlier: late ones fill what was missing, the others are doubled."""
        here = RangeMap({origin: [(first - 1, last)]})
        late = here.common(self.missing)
        self._note(OUT_OF_ORDER, late, where)
        self._note(DOUBLED, here.minus(late).minus(self.skipped), where)
        self.skipped, self.missing = self.skipped.minus(here), self.missing.minus(late)

    def _note(self, kind: str, found: RangeMap, where: str) -> None:
        for origin, ranges in found.items():
            for after, through in ranges:
                self.note(Finding(self.node, kind, str(origin), after + 1, through, where))

    def misses(self, quarantined: Quarantined) -> bool:
        """Whether some of the quarantined range is missing here, or may be."""
        if quarantined.origin is None:
            return bool(self.skipped) or bool(self._missing_here())
        here = RangeMap({quarantined.origin: [(quarantined.first - 1, self.have.get(quarantined.origin, 0))]})
        here = here.minus(self._missing_here()).minus(self.skipped)
        wanted = RangeMap({quarantined.origin: [(quarantined.first - 1, quarantined.last)]})
        return bool(wanted.minus(here))

    def is_lost(self, quarantined: Quarantined) -> bool:
        """Whether some of the quarantined range is lost, or may be."""
        if quarantined.origin is None:
            return bool(self.lost)
        return any(
            lost.origin == quarantined.origin and lost.first <= quarantined.last and quarantined.first <= lost.last
            for lost in self.lost
        )

    def _missing_here(self) -> RangeMap:
        return self.missing.minus(self.elsewhere)

    def note(self, finding: Finding) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)

    def finish(self) -> None:
        """The journal ends: what is still missing and was not given up is a finding."""
        self._note(MISSING, self._missing_here().minus(self.given_up), "")


def damaged(node: str, path: str, start: int, stop: int) -> Finding:
    """The same, in any order of the nodes."""
    return Finding(node, CORRUPT, "", 0, 0, f"{path} {start}–{stop}: no batch can be read")
