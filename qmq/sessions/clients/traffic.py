"""Bytes from and to clients since the start: those of the connections that there are, and of those that have ended."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


class Connected(Protocol):
    """A connection that counts its bytes."""

    bytes_in: int

    @property
    def bytes_out(self) -> int: ...


@dataclass(frozen=True, slots=True)
class TrafficStatistics:
    bytes_in: int
    bytes_out: int


class Traffic:
    """A connection counts for itself, so that reading and writing touch nothing else."""

    def __init__(self) -> None:
        self._ended_in = 0
        self._ended_out = 0

    def end(self, connection: Connected) -> None:
        """The connection has ended: its bytes stay in the sums."""
        self._ended_in += connection.bytes_in
        self._ended_out += connection.bytes_out

    def statistics(self, connections: Iterable[Connected]) -> TrafficStatistics:
        """The sums; `connections` are those that have not ended."""
        bytes_in, bytes_out = self._ended_in, self._ended_out
        for one in connections:
            bytes_in += one.bytes_in
            bytes_out += one.bytes_out
        return TrafficStatistics(bytes_in, bytes_out)
