"""Which message is which job: an index of the jobs whose message names their id (`beanstalk-id`).

It is brought up to date at each request, by what has come since the last time. In memory these are the newest
messages of each origin; what only the store has is read once, a bounded part of it each time.
"""

from typing import Final

from qmq.engine.parts import EngineParts
from qmq.model.dots import Dot, Origin
from qmq.protocols.beanstalk.gateway.jobs import id_in
from qmq.storage.format.queue_store import UNSETTLED_ROWS

READ_BYTES: Final = 1 << 20
"""Of rows in one read."""

SEARCH_BYTES_MAX: Final = 256 << 20
"""Of rows in one search: the next one continues there."""

ALIASES_MAX: Final = 1_000_000
"""At the bound all are forgotten, and the search begins again."""


class Aliases:
    """Those of the messages that this node serves."""

    def __init__(self, engine: EngineParts) -> None:
        self._engine = engine
        self._dots: dict[int, tuple[Dot, ...]] = {}
        self._seen: dict[Origin, int] = {}
        """Up to which sequence the messages in memory were looked at."""
        self._read: dict[Origin, int] = {}
        """The same of rows."""

    def of(self, job: int) -> tuple[Dot, ...]:
        """The messages that have this id, the newest last. Some of them may be settled."""
        self._refresh()
        return self._dots.get(job, ())

    def forget(self, job: int, dot: Dot) -> None:
        """This message is settled."""
        left = tuple([one for one in self._dots.get(job, ()) if one != dot])
        if left:
            self._dots[job] = left
        else:
            self._dots.pop(job, None)

    def _refresh(self) -> None:
        for origin, by_sequence in self._engine.broker.queues.owned.by_origin.items():
            if not by_sequence:
                continue
            seen = self._seen.get(origin, 0)
            newest = 0
            # Nearly in order: what came back from the store may stand behind, and is found there.
            for sequence in reversed(by_sequence):
                if sequence <= seen:
                    break
                newest = max(newest, sequence)
                self._note(Dot(origin, sequence), by_sequence[sequence].envelope.headers)
            self._seen[origin] = max(seen, newest)

    async def search(self) -> None:
        """Read the rows that no search has read. The store has everything that is durable (`bring_up`)."""
        run_blocking = self._engine.environment.run_blocking
        rows = self._engine.store.queues
        serves = self._engine.broker.queues.owned.serves
        searched = 0
        for origin in await run_blocking(rows.origins):
            while origin.node in serves and searched < SEARCH_BYTES_MAX:
                after = self._read.get(origin, 0)
                page = await run_blocking(rows.unsettled, origin, after, 1 << 62, UNSETTLED_ROWS, READ_BYTES)
                for row in page:
                    self._note(row.dot, row.headers)
                    searched += len(row.headers) + len(row.body)
                if not page:
                    break
                self._read[origin] = page[-1].dot.sequence

    def _note(self, dot: Dot, headers: bytes) -> None:
        job = id_in(headers)
        if job is None:
            return
        known = self._dots.get(job, ())
        if dot not in known:
            if len(self._dots) >= ALIASES_MAX:
                self._dots.clear()
                self._read.clear()
            self._dots[job] = (*known, dot)
