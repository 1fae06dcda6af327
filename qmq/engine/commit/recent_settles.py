"""Which connections settled messages of late, or gave them back: what a trace knows of deliveries that have ended.

One entry for each decision that settled something, so a run of ACKs costs one. An entry names the records that the
decision wrote, not the messages: a trace finds those records in the journal. The last RECENT_MAX entries are in memory
and are lost when the node stops.

Surprising: messages with `ack:auto` are settled by the node, for all clients that it has written to at once. Then an
entry names several connections, of which one had the message.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

RECENT_MAX: Final = 20_000
"""Decisions; about 2 MB."""
CONNECTIONS_MAX: Final = 10_000
"""Connections whose user and address are remembered; about 2 MB."""
NAMED_MAX: Final = 16
"""Connections of one entry."""


class Settling(Protocol):
    """A connection, as operators know it."""

    @property
    def user(self) -> str | None: ...

    @property
    def peer_address(self) -> str: ...


class RecentSettles:
    """Of the present life of this node."""

    def __init__(self, node: str, sessions: Mapping[int, Settling]) -> None:
        self._node = node
        self._sessions = sessions
        # (last record, first record, session or sessions), in the order of the journal.
        self._entries: deque[tuple[int, int, int | tuple[int, ...]]] = deque(maxlen=RECENT_MAX)
        self._connections: dict[int, tuple[str, str]] = {}

    def note(self, first: int, last: int, sessions: int | tuple[int, ...]) -> None:
        """The records from `first` to `last` are what frames of these sessions have settled, or of one of them."""
        self._entries.append((last, first, sessions))
        for session in (sessions,) if isinstance(sessions, int) else sessions:
            if session not in self._connections:
                self._remember(session)

    def by(self, sequence: int) -> list[dict[str, Any]]:
        """The connection behind this record, or those of which it was one; none: it is not known any more."""
        entries = list(self._entries)
        at = bisect_left(entries, (sequence,))
        if at == len(entries) or entries[at][1] > sequence:
            return []
        sessions = entries[at][2]
        return list(self._named((sessions,) if isinstance(sessions, int) else sessions))

    def _named(self, sessions: Iterable[int]) -> Iterable[dict[str, Any]]:
        for session in sessions:
            user, address = self._connections.get(session, ("", ""))
            yield {"connection": f"{self._node}/{session}", "user": user, "address": address}

    def _remember(self, session: int) -> None:
        known = self._sessions.get(session)
        if known is not None:
            if len(self._connections) >= CONNECTIONS_MAX:
                del self._connections[next(iter(self._connections))]
            self._connections[session] = (known.user or "", known.peer_address)
