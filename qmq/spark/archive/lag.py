"""How far an archive is behind its nodes, and which of several archivers works. Pure: times are arguments."""

from typing import Final, NamedTuple

from qmq.model.dots import Vector

TAKEOVER_SECONDS: Final = 30.0
"""Without a commit of the one that works, unless three of one's own intervals are longer."""


class Behind(NamedTuple):
    """`records`: what nodes have beyond the table. `seconds`: of a moment before which all is in the table.

    The seconds are at most one look too many, and None until one moment is known.
    """

    records: int
    seconds: float | None


class Lag:
    """What several looks at the nodes and the table say together."""

    def __init__(self) -> None:
        self._asked: tuple[float, Vector] | None = None
        """When nodes were looked at, and what they had, which the table did not have yet."""
        self._level_at: float | None = None

    def look(self, now: float, have: Vector, vector: Vector) -> Behind:
        """`have`: what the nodes have now. `vector`: how far the table goes."""
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


class Turn:
    """Whether this archiver works, or stands by for another one of the same table.

    Nothing is elected: the table refuses the later of two commits, so one that is refused stands by until the table
    has not moved for a while. Two that work at once cost the work of one of them, never a message.
    """

    def __init__(self, takeover_seconds: float) -> None:
        self._takeover_seconds = takeover_seconds
        self._seen: tuple[int, float] | None = None
        """While it stands by: the last version of the table, and since when it has been that."""

    @property
    def is_standby(self) -> bool:
        return self._seen is not None

    def lose(self, version: int, now: float) -> None:
        """Another one was quicker."""
        self._seen = (version, now)

    def take(self, version: int, now: float) -> bool:
        """Whether it is this one's turn, with the table at `version`."""
        if self._seen is None:
            return True
        seen, since = self._seen
        if version != seen:
            self._seen = (version, now)
        elif now - since >= self._takeover_seconds:
            self._seen = None
        return self._seen is None
