"""Dedup queries: before a retried SEND is appended here, peers are asked whether they have its message.

What this node knows by itself (`qmq.broker.messages.dedup`) needs no query. A query is made only for a SEND that is
marked as a retry, or whose key a peer has asked about: its first attempt may be at a node whose records are not here
yet. A peer that holds the message names its dot. Then the record gets a moment to arrive over its link, so that the
receipt relies on this disk.

A node that was stopped, or without links, may find in its sockets SENDs that clients have since sent elsewhere. Until
its links have caught up, each SEND with an id counts as a retry. Just after a wake-up, peers whose links are not back
are waited for.

Two nodes may be asked for one message at the same moment, and each would find that the other does not have it. So
queries have an order: a number greater than all that the node has seen, then its name. The node with the earlier query
responds to the other only when it has decided (Ricart and Agrawala's mutual exclusion, with waits that end).

Bounds: one query per read of a session, a wait of ANSWER_SECONDS for its responses and ARRIVAL_SECONDS for records, and
for links until WAKING_SECONDS after the wake-up. An unreachable peer may have the message all the same; then there are
two.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, ClassVar, Final

import trio
from msgspec import Meta, Struct

from qmq.broker.messages.dedup import KEY_BYTES, Dedup, dedup_key, is_dead_letter, is_retry
from qmq.engine.parts import EngineParts
from qmq.mesh.peers.calls import Count, Node, PeerCall, Whole, check_incarnation
from qmq.mesh.peers.rpc import ANSWER_SECONDS, PeerRpc
from qmq.model.deletions import Deletions
from qmq.model.dots import Dot, Origin
from qmq.replication.mesh import Mesh
from qmq.replication.protocol.values import SEQUENCE_MAX
from qmq.storage.format.batch import batch_records
from qmq.storage.format.forgotten_record import unpack_forgotten
from qmq.storage.format.record import Record, RecordKind
from qmq.storage.log.journal import Journal

ARRIVAL_SECONDS: Final = 1.0
"""For a record that a peer has to arrive here before its SEND is answered."""

WAKING_SECONDS: Final = 5.0
"""For links to come back to a node that was stopped: some dials, and their handshakes."""

AGAIN_SECONDS: Final = 0.1
"""Between two requests to peers whose links may have come back."""

KEYS_MAX: Final = 2000
"""In one request."""

REPLAY_BYTES: Final = 64 << 20
"""Of the journal, read for ids at a start: about as much as a full window takes."""

FOLLOWED_MAX: Final = SEQUENCE_MAX // 2
"""Up to where the numbers of this node follow those of others: its own later ones must be valid, too."""

Key = Annotated[str, Meta(pattern=rf"^[0-9a-f]{{{2 * KEY_BYTES}}}\Z")]

_READ_BYTES: Final = 1 << 20
FANOUTS: Final = "/fanout/"
_MARKS: Final = (b"dedup-id:", b"_AMQ_DUPL_ID:")


class FoundMessage(Struct, frozen=True, array_like=True):
    """A message that a node has: which of the keys in question it has, and its dot."""

    index: Annotated[int, Meta(ge=0, lt=KEYS_MAX)]
    node: Node
    incarnation: int
    sequence: Whole

    def __post_init__(self) -> None:
        check_incarnation(self.incarnation)

    @property
    def dot(self) -> Dot:
        return Dot(Origin(self.node, self.incarnation), self.sequence)


class DedupCall(PeerCall[list[FoundMessage]], frozen=True):
    """Which of these keys, in hexadecimal, a node has messages of. `node` asks, at the time `at` of its order."""

    kind: ClassVar = "dedup"
    dedup: Annotated[list[Key], Meta(max_length=KEYS_MAX)]
    node: Node
    at: Count

    @property
    def keys(self) -> list[bytes]:
        return [bytes.fromhex(key) for key in self.dedup]

    def check(self, reply: list[FoundMessage]) -> None:
        if any(one.index >= len(self.dedup) for one in reply):
            raise ValueError("a message of a key that was not asked about")


class DedupQuery:
    """Sends and answers the queries of one node."""

    def __init__(self, engine: EngineParts, mesh: Mesh, rpc: PeerRpc) -> None:
        self._engine = engine
        self._mesh = mesh
        self._rpc = rpc
        # Key → when this node asked about it, for each session that decides about it now.
        self._deciding: dict[bytes, list[int]] = {}
        self._decided = trio.lowlevel.ParkingLot()
        self._clock = 0
        self._waking_until = 0.0
        self.asked = 0
        """Keys that peers were asked about, since the start."""

    def was_away(self) -> None:
        """The node was stopped, and SENDs that its clients made before it woke may be elsewhere by now."""
        if self._mesh.members:
            self._waking_until = trio.current_time() + WAKING_SECONDS
            self._engine.broker.dedup.is_behind = True

    def links_changed(self) -> None:
        """A link began, ended or has caught up."""
        is_waking = trio.current_time() < self._waking_until
        self._engine.broker.dedup.is_behind = is_waking or self._mesh.is_catching_up

    @asynccontextmanager
    async def of(self, keys: Sequence[bytes]) -> AsyncIterator[set[bytes]]:
        """Yields those of `keys` whose messages only peers have. Decide about all of them within the block."""
        self._clock += 1
        at = self._clock
        for key in keys:
            self._deciding.setdefault(key, []).append(at)
        try:
            yield await self._elsewhere(keys, at) if keys else set()
        finally:
            for key in keys:
                self._deciding[key].remove(at)
                if not self._deciding[key]:
                    del self._deciding[key]
            self._decided.unpark_all()

    async def _elsewhere(self, keys: Sequence[bytes], at: int) -> set[bytes]:
        engine = self._engine
        self.asked += len(keys)
        found: dict[bytes, Dot] = {}
        for start in range(0, len(keys), KEYS_MAX):
            part = keys[start : start + KEYS_MAX]
            call = DedupCall([key.hex() for key in part], self._mesh.node, at)
            for reply in (await self._ask(call)).values():
                found.update({part[one.index]: one.dot for one in reply})
        with trio.move_on_after(ARRIVAL_SECONDS):
            for dot in found.values():
                # Memory-only messages have negative numbers and never come.
                while engine.path.received_vector().get(dot.origin, 0) < dot.sequence:
                    await engine.tail.grew(engine.path.committed_end())
        now_us = engine.environment.now_us()
        return {key for key in found if engine.broker.dedup.find(key, now_us) is None}

    async def _ask(self, call: DedupCall) -> dict[str, list[FoundMessage]]:
        replies, missing = await self._rpc.ask(call)
        while trio.current_time() < self._waking_until and missing:
            await trio.sleep(AGAIN_SECONDS)
            replies |= (await self._rpc.ask(call)).by_node
            missing = [name for name in self._mesh.members if name not in replies]
        self.links_changed()
        return replies

    async def answer(self, call: DedupCall) -> list[FoundMessage]:
        """The reply to a peer's query."""
        engine, keys = self._engine, call.keys
        self._clock = max(self._clock, min(call.at, FOLLOWED_MAX))
        with trio.move_on_after(ANSWER_SECONDS):
            while self._was_first(keys, call.at, call.node):
                await self._decided.park()
        dedup, now_us = engine.broker.dedup, engine.environment.now_us()
        found: list[FoundMessage] = []
        for index, key in enumerate(keys):
            dot = dedup.find(key, now_us)
            if dot is None:
                dedup.note_asked(key)
            else:
                found.append(FoundMessage(index, *dot.origin, dot.sequence))
        # Only durable messages are reported.
        await engine.path.flushed()
        return found

    def _was_first(self, keys: Sequence[bytes], at: int, asker: str) -> bool:
        """Whether this node decides about one of `keys` and asked before that peer did."""
        deciding = self._deciding
        return any((min(deciding[key]), self._mesh.node) < (at, asker) for key in keys if key in deciding)


def replay_ids(journal: Journal, dedup: Dedup, deletions: Deletions, now_us: int) -> None:
    """At a start: learn the ids in the last REPLAY_BYTES of the journal. Blocks while it reads.

    All count as learned now: the times in records come from the clocks of many nodes.
    """
    position = max(journal.start, journal.end - REPLAY_BYTES)
    begins = [end for end, _, _ in journal.segment_bounds() if end <= position]
    position = max(begins, default=journal.start)
    while batches := journal.read(position, _READ_BYTES):
        for start, head, data in batches:
            position = start + head.size
            for record in batch_records(data) if any(mark in data for mark in _MARKS) else ():
                if record.kind == RecordKind.PUBLISH:
                    _replay(record, Dot(head.origin, record.sequence), dedup, deletions, now_us)
                elif record.kind == RecordKind.FORGOTTEN:
                    dedup.forget(unpack_forgotten(record.body))


def _replay(record: Record, dot: Dot, dedup: Dedup, deletions: Deletions, now_us: int) -> None:
    key, destination = dedup_key(record.destination, record.headers), record.destination
    if key is None or deletions.covers(destination, *dot):
        return
    dedup.learn(key, dot, now_us, destination if destination.startswith(FANOUTS) else "")
    if is_retry(record.headers) and not is_dead_letter(record.headers):
        dedup.learn_retry(key, dot.origin.node, record.timestamp_us)
