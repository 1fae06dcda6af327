"""`/system/journal`: the commit log itself, for external programs such as the data pipeline.

First comes a snapshot as JSON: the node's vector, what its journal has dropped, which ranges it gave up, and where the
last compacted range of an origin ends (`batch.REST`). It also has the vectors at which its segments begin, so a
reader can divide the work, and the archives that the mesh has defined. Then come whole batches that the subscription
requested, byte for byte as in the journal. If the subscription named an end, a message with `journal:end` follows. Only
durable batches are sent, at the pace of the client, one disk read at a time; nothing else of the node waits for it.

A reader names itself with `qmq-reader` and reports its progress with `qmq-resume` (`journal_readers`).
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import trio

from qmq.broker.consumers.subscription import JournalSpan, Subscription
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import Tasks
from qmq.errors import LogBroken, Refused
from qmq.model.dots import Vector, covers
from qmq.sessions.clients.session import ClientSession, drained, session_of
from qmq.sessions.delivery.journal_readers import JournalReaders
from qmq.settings.definitions.archives import ArchiveDefinitions
from qmq.storage.format.batch import BatchHead

T = TypeVar("T")

READ_BYTES: Final = 1 << 20
AT_ONCE: Final = 2
"""Readers that may read the disk at the same time."""
BATCHES_TYPE: Final = "application/x-qmq-batches"

log = logging.getLogger("qmq.journal_reads")


@dataclass(eq=False, repr=False)
class JournalReads:
    """Serves subscriptions to `/system/journal`, each in a task of its own."""

    _engine: EngineParts
    _tasks: Tasks
    _sessions: Mapping[int, ClientSession]
    _archives: ArchiveDefinitions
    readers: JournalReaders

    def __post_init__(self) -> None:
        self._turns = trio.CapacityLimiter(AT_ONCE)
        self._numbers = 0
        self.waiting: dict[Subscription, trio.CancelScope] = {}
        """Those that have all there is, until the journal grows."""

    def begin(self, subscription: Subscription) -> None:
        # The journal of an idle node does not grow: readers that have left must not accumulate.
        for other, scope in self.waiting.items():
            if session_of(self._sessions, other) is None:
                scope.cancel()
        self._tasks.spawn(partial(self._serve, subscription))

    async def _serve(self, subscription: Subscription) -> None:
        """Raises LogBroken when the disk fails; any other error ends only the client's session."""
        try:
            await self._send_all(subscription)
        except LogBroken:
            raise
        except Exception:
            log.exception("! the journal cannot be read for subscribers")
            session = session_of(self._sessions, subscription)
            if session is not None:
                session.evict(Refused("log-unreadable", "The journal cannot be read now; try again later."))

    async def _send_all(self, subscription: Subscription) -> None:
        span = subscription.start
        assert isinstance(span, JournalSpan)
        journal = self._engine.store.journal
        if span.reader:
            self.readers.note(subscription.session, span)
        headers = [("content-type", "application/json"), ("journal", "picture")]
        compacted_ends = await self._read(journal.snapshot_ends)
        if not await self._send(subscription, headers, self._status(compacted_ends)):
            return
        done = span.until is not None and covers(span.after, span.until)
        position = 0 if done else await self._read(partial(journal.seek, _before(span, journal.vector())))
        have = dict(span.after)
        while not done:
            written = await self._read(partial(journal.read, position, READ_BYTES))
            found = [batch for batch in written if batch[0] + batch[1].size <= self._engine.tail.committed_end()]
            if not found:
                if span.until is not None and not written:
                    break  # What is still missing is not on this node.
                # The snapshot may name batches that are written and not committed yet: a request for them waits.
                with trio.CancelScope() as scope:
                    self.waiting[subscription] = scope
                    try:
                        await self._engine.tail.grew(position)
                    finally:
                        del self.waiting[subscription]
                if session_of(self._sessions, subscription) is None:
                    return
                continue
            position = found[-1][0] + found[-1][1].size
            wanted = [data for _, head, data in found if _is_wanted(head, span)]
            if wanted and not await self._send(subscription, [("content-type", BATCHES_TYPE)], b"".join(wanted)):
                return
            if session_of(self._sessions, subscription) is None:
                return
            for _, head, _ in found:
                have[head.origin] = max(have.get(head.origin, 0), head.last)
            done = span.until is not None and covers(have, span.until)
        await self._send(subscription, [("journal", "end")], b"")

    async def _read(self, read: Callable[[], T]) -> T:
        async with self._turns:
            return await self._engine.environment.run_blocking(read)

    def _status(self, compacted_ends: Vector) -> bytes:
        journal = self._engine.store.journal
        bounds = journal.segment_bounds()
        facts = {
            "node": self._engine.broker.origin.node,
            "origin": str(self._engine.broker.origin),
            "uuid": self._engine.store.recovered.identity.uuid,
            "vector": _plain(journal.vector()),
            "base": _plain(journal.base()),
            "given_up": _plain(self._engine.broker.durable_subscriptions.given_up),
            "rests": _plain(compacted_ends),
            "bytes": journal.end - journal.start,
            "segments": [_plain(vector) for _, _, vector in bounds],
            "archives": self._archives.values(),
        }
        return json.dumps(facts).encode()

    async def _send(self, subscription: Subscription, headers: list[tuple[str, str]], body: bytes) -> bool:
        """Send one message after the client has read the frames before it; False when it has disconnected."""
        session = await drained(self._sessions, subscription)
        if session is None:
            return False
        self._numbers += 1
        lines = [
            ("message-id", f"journal-{self._numbers}"),
            ("destination", subscription.destination),
            *headers,
        ]
        session.outbox.put(session.encoder.notice(subscription, lines, body))
        session.outbox.flush()
        return True


def _before(span: JournalSpan, have: Vector) -> Vector:
    """The records that the reader does not need. With an end, these are all records of every origin that the end does
    not name. Otherwise one old incarnation among the records would send each reader through the whole journal.
    """
    if span.until is None:
        return span.after
    return {**have, **{origin: span.after.get(origin, 0) for origin in span.until}}


def _is_wanted(head: BatchHead, span: JournalSpan) -> bool:
    if head.last <= span.after.get(head.origin, 0):
        return False
    return span.until is None or head.first <= span.until.get(head.origin, 0)


def _plain(vector: Vector) -> dict[str, int]:
    return {str(origin): last for origin, last in vector.items()}
