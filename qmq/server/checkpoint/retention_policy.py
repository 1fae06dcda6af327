"""How long each fanout's log is kept: as its policy says, or else as `[storage]` says for all.

The checkpoint's thread reads this table; the first read of a fanout looks it up in the policies. One table serves one
checkpoint, so a changed configuration applies from the next one on.
"""

from math import ceil

from qmq.config import NodeSettings
from qmq.storage.format.settings import Retention


class Retentions(dict[str, Retention]):
    """Destination → retention."""

    def __init__(self, settings: NodeSettings) -> None:
        super().__init__()
        self._settings = settings

    def __missing__(self, destination: str) -> Retention:
        policy = self._settings.destinations.policy_of(destination)
        found = self[destination] = self._retention(policy.retention_seconds, policy.retention_bytes)
        return found

    def _retention(self, seconds: float | None, size: int | None) -> Retention:
        storage = self._settings.storage
        return Retention(
            age_seconds_max=ceil(storage.fanout_age_seconds_max if seconds is None else seconds),
            bytes_max=storage.fanout_bytes_max if size is None else size,
        )

    @property
    def shortest_seconds(self) -> int:
        """The shortest time for which any fanout, existing or not, is kept."""
        named = [p.retention_seconds for p in self._settings.destinations.policies if p.retention_seconds is not None]
        return ceil(min([self._settings.storage.fanout_age_seconds_max, *named]))
