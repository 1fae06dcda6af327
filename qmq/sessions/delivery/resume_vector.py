"""The records that a resuming subscriber has received, so that it is sent exactly those that it is missing."""

from collections.abc import Iterable

from qmq.broker.fanouts.gap_notice import Claim
from qmq.model.dots import Dot, Origin, Vector
from qmq.model.lost_ranges import LostRanges


class ResumeVector:
    """A vector that follows one subscriber through the log. Records of one origin come in order."""

    __slots__ = ("_last",)

    def __init__(self, vector: Vector) -> None:
        self._last = dict(vector)

    def missing(self, lost: Iterable[Dot]) -> list[Claim]:
        """The part of `lost` (per origin, the last lost sequence) that was not received. It counts as received from now
        on.
        """
        missing: list[Claim] = []
        for origin, through in lost:
            last = self._last.get(origin, 0)
            if through > last:
                missing.append((origin, last, through))
                self._last[origin] = through
        return missing

    def before(self, origin: Origin, sequence: int, lost: LostRanges) -> list[Claim]:
        """The lost ranges before the record `sequence`, which counts as received now."""
        missing = self.missing(lost.before(origin, self._last.get(origin, 0), sequence))
        self._last[origin] = max(sequence, self._last.get(origin, 0))
        return missing
