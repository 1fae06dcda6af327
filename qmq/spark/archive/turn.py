"""Which of several archivers works. Pure: times are arguments."""

from typing import Final

TAKEOVER_SECONDS: Final = 30.0
"""Without a commit of the one that works, unless three of one's own intervals are longer."""


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
