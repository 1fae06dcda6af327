"""What a subscriber that resumes with a vector has heard, so that it can be told exactly what it misses."""

from collections.abc import Iterable

from qmq.dots import Dot, Origin, Vector
from qmq.gateways.gap_notice import Claim
from qmq.lost_ranges import LostRanges


class ResumeVector:
    """A vector that follows one subscriber through the log. Records of one origin come in order."""

    __slots__ = ("_last",)

    def __init__(self, vector: Vector) -> None:
        self._last = dict(vector)

    def missing(self, gone: Iterable[Dot]) -> list[Claim]:
        """What of `gone` (per origin, up to where it is gone) was not heard. It counts as heard from now on."""
        missing: list[Claim] = []
        for origin, through in gone:
            last = self._last.get(origin, 0)
            if through > last:
                missing.append((origin, last, through))
                self._last[origin] = through
        return missing

    def before(self, origin: Origin, sequence: int, gone: LostRanges) -> list[Claim]:
        """What is gone before the record `sequence`, which is heard now."""
        missing = self.missing(gone.before(origin, self._last.get(origin, 0), sequence))
        self._last[origin] = max(sequence, self._last.get(origin, 0))
        return missing
