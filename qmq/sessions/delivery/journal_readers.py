"""Named readers of the journal, and how far each is behind this node, in records and in seconds.

A reader reports how far it is with each request (`journal_reads`). It is forgotten when it leaves, unless the mesh has
an archive of that name: what fills an archive may run on several machines, one after the other, and must not stop. An
archive that is too far behind is the condition `archive-behind`, also while nothing fills it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import trio

from qmq.broker.consumers.subscription import JournalSpan
from qmq.engine.runtime.condition_group import ConditionGroup
from qmq.engine.runtime.heartbeats import Heartbeats
from qmq.model.dots import Vector
from qmq.model.lag import Lag
from qmq.sessions.clients.session import ClientSession
from qmq.settings.definitions.archives import ArchiveDefinitions
from qmq.storage.log.journal import Journal

READERS_MAX: Final = 1000
"""Named readers that are kept; later ones are not shown."""
BEHIND: Final = "archive-behind"
"""Code of the condition."""
CHECK_SECONDS: Final = 10.0


class ReaderRow(NamedTuple):
    """`behind`: records. `seconds`: since a moment up to which it has everything; None until one is known."""

    name: str
    behind: int
    seconds: float | None
    connected: bool


class _NamedReader:
    def __init__(self, now: float) -> None:
        self.after: Vector = {}
        self.lag = Lag()
        self.since = now
        self.sessions: set[int] = set()


@dataclass(eq=False, repr=False)
class JournalReaders:
    """Of one node."""

    _journal: Journal
    _sessions: Mapping[int, ClientSession]
    _archives: ArchiveDefinitions
    _beats: Heartbeats
    _condition: ConditionGroup

    def __post_init__(self) -> None:
        self._readers: dict[str, _NamedReader] = {}
        self._is_watched = False

    def note(self, session_id: int, span: JournalSpan) -> None:
        """The reader of this session has reported how far it is. The last report of a name counts."""
        now = trio.current_time()
        if len(self._readers) >= READERS_MAX:
            self._forget()
        if span.reader not in self._readers and len(self._readers) >= READERS_MAX:
            return
        reader = self._readers.setdefault(span.reader, _NamedReader(now))
        reader.after = span.after
        reader.sessions.add(session_id)
        reader.lag.look(now, self._have(), reader.after)
        if span.reader in self._archives.by_name and not self._is_watched:
            self._is_watched = True
            self._beats.watch(now + CHECK_SECONDS, self._check)

    def rows(self) -> list[ReaderRow]:
        """Sorted by name."""
        self._forget()
        now, have = trio.current_time(), self._have()
        return [
            ReaderRow(name, *reader.lag.look(now, have, reader.after), bool(reader.sessions))
            for name, reader in sorted(self._readers.items())
        ]

    def _have(self) -> Vector:
        """Without origins of which the journal holds nothing any more: a report may leave them out."""
        base = self._journal.base()
        return {origin: last for origin, last in self._journal.vector().items() if last > base.get(origin, 0)}

    def _forget(self) -> None:
        for name, reader in list(self._readers.items()):
            reader.sessions &= self._sessions.keys()
            if not reader.sessions and name not in self._archives.by_name:
                del self._readers[name]

    def _check(self, now: float) -> float | None:
        """Show which archives are too far behind; again later, while there is one that has reported."""
        late = []
        rows = [(row, self._archives.by_name.get(row.name)) for row in self.rows()]
        for row, archive in rows:
            # How far it was behind when it began is not known: it counts from then.
            seconds = now - self._readers[row.name].since if row.seconds is None else row.seconds
            if archive is not None and row.behind and seconds > archive.behind_seconds_max:
                late.append(
                    f"The archive {row.name} lacks records that this node has had for more than "
                    f"{archive.behind_seconds_max} s."
                )
        self._condition.show(late)
        self._is_watched = any(archive is not None for _, archive in rows)
        return now + CHECK_SECONDS if self._is_watched else None
