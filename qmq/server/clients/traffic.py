"""Bytes from and to clients since the start: those of the connections that there are, and of those that have ended."""

from collections.abc import Iterable
from typing import Protocol


class Connected(Protocol):
    """A connection that counts its bytes."""

    bytes_in: int

    @property
    def bytes_out(self) -> int: ...


class Traffic:
    """A connection counts for itself, so that reading and writing touch nothing else."""

    def __init__(self) -> None:
        self._ended_in = 0
        self._ended_out = 0

    def end(self, connection: Connected) -> None:
        """The connection has ended: its bytes stay in the sums."""
        self._ended_in += connection.bytes_in
        self._ended_out += connection.bytes_out

    def facts(self, connections: Iterable[Connected]) -> dict[str, int]:
        """The sums; `connections` are those that have not ended."""
        bytes_in, bytes_out = self._ended_in, self._ended_out
        for one in connections:
            bytes_in += one.bytes_in
            bytes_out += one.bytes_out
        return {"bytes_in": bytes_in, "bytes_out": bytes_out}
