"""What an audit finds: the findings, and the walk through one node's journal that makes them.

The walk gets the ranges of a journal in their order. It is pure: the files and servers are read by `audit`.
"""

from collections.abc import Iterable
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


class ReportedLoss(NamedTuple):
    """Records `first` to `last` of `origin`, of which not all are anywhere any more, as `node` has noted."""

    node: str
    origin: str
    first: int
    last: int


@dataclass(slots=True)
class Audit:
    """What came of it."""

    rows: list[OriginRow] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    segments: int = 0
    records: int = 0
    healed: int = 0
    """Ranges that were quarantined, of which nothing is missing now."""
    lost: list[ReportedLoss] = field(default_factory=list)
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
        self.missing: dict[Origin, list[tuple[int, int]]] = {}
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
            self.missing.setdefault(origin, []).append((have, first - 1))
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
        known = RangeMap({origin: self.missing.get(origin, [])})
        self.missing[origin] = list(known.minus(RangeMap({origin: [(first - 1, last)]})).of(origin))

    def missing_ranges(self) -> int:
        return sum(map(len, self.missing.values()))

    def _again(self, origin: Origin, first: int, last: int, where: str) -> None:
        """Records that should have stood earlier: late ones fill what was missing, the others are doubled."""
        late: list[tuple[int, int]] = []
        for after, through in self.missing.get(origin, []):
            if after < last and through >= first:
                late.append((max(after, first - 1), min(through, last)))
        left = RangeMap({origin: [(first - 1, last)]}).minus(RangeMap({origin: late})).minus(self.skipped)
        self.skipped = self.skipped.minus(RangeMap({origin: [(first - 1, last)]}))
        known = RangeMap({origin: self.missing.get(origin, [])}).minus(RangeMap({origin: late}))
        self.missing[origin] = list(known.of(origin))
        self._note(OUT_OF_ORDER, origin, late, where)
        self._note(DOUBLED, origin, left.of(origin), where)

    def _note(self, kind: str, origin: Origin, ranges: Iterable[tuple[int, int]], where: str) -> None:
        for after, through in ranges:
            self.note(Finding(self.node, kind, str(origin), after + 1, through, where))

    def misses(self, quarantined: Quarantined) -> bool:
        """Whether some of the quarantined range is missing here, or may be."""
        if quarantined.origin is None:
            return bool(self.skipped) or any(map(self._missing_of, self.missing))
        here = RangeMap({quarantined.origin: [(quarantined.first - 1, self.have.get(quarantined.origin, 0))]})
        here = here.minus(self._missing_of(quarantined.origin)).minus(self.skipped)
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

    def _missing_of(self, origin: Origin) -> RangeMap:
        return RangeMap({origin: self.missing.get(origin, [])}).minus(self.elsewhere)

    def note(self, finding: Finding) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)

    def finish(self) -> None:
        """The journal ends: what is still missing and was not given up is a finding."""
        for origin in self.missing:
            left = self._missing_of(origin).minus(self.given_up)
            self._note(MISSING, origin, left.of(origin), "")


def damaged(node: str, path: str, start: int, stop: int) -> Finding:
    """The same, in any order of the nodes."""
    return Finding(node, CORRUPT, "", 0, 0, f"{path} {start}–{stop}: no batch can be read")
