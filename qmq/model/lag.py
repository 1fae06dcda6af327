"""How far a reader of a journal is behind, in records and in seconds. Pure: times are arguments.

The seconds need no clock but that of the observer: it notes what there is at a moment. Once the reader has all of that,
the moment is one up to which nothing is lacking.
"""

from typing import NamedTuple

from qmq.model.dots import Vector


class Behind(NamedTuple):
    """`records`: what there is beyond the reader. `seconds`: since a moment up to which the reader has everything.

    The seconds are at most one look too many, and None until one moment is known.
    """

    records: int
    seconds: float | None


class Lag:
    """What several looks say together."""

    def __init__(self) -> None:
        self._asked: tuple[float, Vector] | None = None
        """When it was looked, and what there was then, which the reader did not have yet."""
        self._level_at: float | None = None

    def look(self, now: float, have: Vector, vector: Vector) -> Behind:
        """`have`: what there is now. `vector`: how far the reader is."""
        records = behind(have, vector)
        if self._asked is not None and not behind(self._asked[1], vector):
            self._level_at, self._asked = self._asked[0], None
        if not records:
            self._level_at, self._asked = now, None
        elif self._asked is None:
            self._asked = (now, dict(have))
        return Behind(records, None if self._level_at is None else now - self._level_at)


def behind(have: Vector, vector: Vector) -> int:
    """Records of `have` beyond `vector`."""
    return sum(max(0, last - vector.get(origin, 0)) for origin, last in have.items())
