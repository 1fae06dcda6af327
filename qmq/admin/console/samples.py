"""Samples of numbers, one every SAMPLE_SECONDS, in memory of fixed size; in requests they are columns."""

from array import array
from collections.abc import Sequence
from typing import Final

from qmq.mesh.peers.calls import Facts, need

SAMPLE_SECONDS: Final = 10.0
SAMPLES: Final = 360
"""One hour."""

NUMBER_MAX: Final = 2**63 - 1


def check_samples(reply: Facts, series: Sequence[str]) -> None:
    """Whether these are samples as `TimeSeries.facts` returns them. Raises ValueError."""
    need(reply, at_us=list)
    for name in ("at_us", *series):
        values = reply.get(name, [])
        if type(values) is not list or len(values) not in (0, len(reply["at_us"])) or len(values) > SAMPLES:
            raise ValueError(f"{name} is no list of as many samples")
        if not all(type(one) is int and abs(one) <= NUMBER_MAX for one in values):
            raise ValueError(f"{name} has what is no number")


class TimeSeries:
    """Those of one node or queue, the oldest first: the end of each interval, and a number for each of `series`."""

    def __init__(self, series: Sequence[str]) -> None:
        self._columns = ("at_us", *series)
        self._width = len(self._columns)
        self._rows = array("q")

    def __len__(self) -> int:
        return len(self._rows) // self._width

    @property
    def first_us(self) -> int:
        """The end of the first interval; NUMBER_MAX without any."""
        return self._rows[0] if self._rows else NUMBER_MAX

    @property
    def last_us(self) -> int:
        return self._rows[-self._width] if self._rows else 0

    def add(self, row: Sequence[int]) -> None:
        """Add a later one; the oldest beyond SAMPLES goes."""
        self._rows.extend(row)
        del self._rows[: -SAMPLES * self._width]

    def add_later(self, facts: Facts) -> None:
        """Add those of `facts` that are later than all."""
        for row in self._rows_of(facts):
            if row[0] > self.last_us:
                self.add(row)

    def add_earlier(self, facts: Facts) -> None:
        """Put those of `facts` that are earlier than all before these."""
        earlier = [row for row in self._rows_of(facts) if row[0] < self.first_us]
        self._rows = array("q", [one for row in earlier for one in row]) + self._rows
        del self._rows[: -SAMPLES * self._width]

    def facts(self, count: int = SAMPLES) -> Facts:
        rows = self._rows[-count * self._width :] if count else array("q")
        columns = {name: rows[at :: self._width].tolist() for at, name in enumerate(self._columns)}
        return {"seconds": SAMPLE_SECONDS, **columns}

    def _rows_of(self, facts: Facts) -> list[tuple[int, ...]]:
        """The samples in a reply; 0 for what an older node does not have."""
        none = [0] * len(facts["at_us"])
        columns = [facts.get(name) or none for name in self._columns]
        return list(zip(*columns, strict=True))
