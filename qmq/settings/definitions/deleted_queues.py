"""Drops the messages of queues whose declaration was deleted, if they are older than the deletion.

The tombstone of the declaration stands for the deletion. A node that gets it drops what it serves of the queue, even if
it was away. It checks again at each start, in case it was killed meanwhile, and when it takes messages over or gets
them back. For a message of the incarnation that deleted the queue, the order of records decides whether it is older.
For one of another incarnation of that node, the order of the two decides, because its clock may have been set back.
Only that node knows this order: another one that serves its messages keeps those. For others, the clocks of the nodes
that accepted and deleted decide. If a node has not heard one of these two since its own start, it does not drop the
message yet.

When nothing is left to drop, the node notes the deletions that it knows. What it accepts from then on is newer than
these, whatever the clocks show later, so no message of its own is compared with them again.

A queue that is declared again keeps all messages that are not dropped by then. So a node waits for a moment, because
the later declaration may be on its way, and checks again before each page. Messages that were sent after the deletion
stay in any case.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Final

import trio

from qmq.broker.messages.message import Message
from qmq.definitions.definition import Definition, Key
from qmq.definitions.table import is_covered
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import NodeBasics
from qmq.engine.runtime.served_rows import served_rows
from qmq.errors import DiskFull, Refused
from qmq.model.dots import Origin, Vector
from qmq.model.members import Membership
from qmq.settings.definitions.declared_queues import KIND
from qmq.settings.definitions.live import LiveDefinitions
from qmq.storage.catalog.facts import DROPPED, dropped_of
from qmq.storage.disk.sqlite import vector_to_json

PAUSE_SECONDS: Final = 1.0
"""Before a node drops messages: a later declaration may be on its way."""

RETRY_SECONDS: Final = 5.0
"""Until a node looks again for what it could not drop, or what was with a consumer."""

QUEUES_AT_ONCE: Final = 200
"""Deleted queues for which the queue store is asked at once."""

DECLARED_AGAIN: Final = "declared-again"

log = logging.getLogger("qmq.definitions")


Drop = Callable[[str, Callable[[Message], bool], Callable[[], None]], Awaitable[tuple[int, str]]]
"""Drops the messages of a queue that are covered, while a check passes: how many, and why not all (`MeshJobs.drop`)."""


class DeletedQueues:
    """One task while there is something to drop. `is_clock_in_doubt`: see `ClockCheck`."""

    def __init__(
        self,
        engine: EngineParts,
        membership: Membership,
        node: NodeBasics,
        definitions: LiveDefinitions,
        is_clock_in_doubt: Callable[[], bool],
        drop: Drop,
    ) -> None:
        self._engine = engine
        self._membership = membership
        self._node = node
        self._definitions = definitions
        self._is_clock_in_doubt = is_clock_in_doubt
        self._drop_messages = drop
        self._here = engine.broker.origin
        self._pending: dict[str, None] = {}
        # The incarnations of this node that its directory knows → their order.
        self._own = {origin: place for place, origin in enumerate(engine.store.catalog.incarnations())}
        self._dropped = dropped_of(engine.store.catalog.facts())
        """Covers the deletions whose older messages of this node are dropped."""
        self.is_running = False

    def begin(self) -> None:
        """At a start, and when messages of another node come here: what is not dropped by now is dropped."""
        self.drop(one.key.name for one in self._tombstones())

    def messages_adopted(self) -> None:
        """This node has accepted messages that may be older than it knows."""
        self._dropped = {}
        self.begin()

    def cover(self, message: Message, accepted_us: int) -> bool:
        """Whether its queue was deleted after this message was accepted, at `accepted_us` by our clock. To be asked
        before it is adopted as a new one."""
        deletion = self._deletion(message.envelope.destination)
        if deletion is None or self._is_clock_in_doubt():
            return False
        is_heard = self._is_heard(message.origin.node) and self._is_heard(deletion.version.origin.node)
        return is_heard and self._is_older(deletion, message, accepted_us)

    def drop(self, queues: Iterable[str]) -> None:
        """The declarations of these were deleted, on any node."""
        self._pending.update(dict.fromkeys(queues))
        if self._pending and not self.is_running:
            self.is_running = True
            self._node.spawn(self._run)

    async def _run(self) -> None:
        left: dict[str, None] = {}
        retry_at = 0.0
        while self._pending or left:
            await trio.sleep(PAUSE_SECONDS)
            due, self._pending = self._pending, {}
            if trio.current_time() >= retry_at:
                due, left = {**left, **due}, {}
            names = list(due)
            for start in range(0, len(names), QUEUES_AT_ONCE):
                again = await self._drop(names[start : start + QUEUES_AT_ONCE])
                if again:
                    left.update(dict.fromkeys(again))
                    retry_at = trio.current_time() + RETRY_SECONDS
            if not self._pending and not left:
                await self._note_dropped()
        self.is_running = False

    async def _note_dropped(self) -> None:
        engine = self._engine
        dropped: Vector = {}
        for one in self._tombstones():
            origin = one.version.origin
            dropped[origin] = max(one.version.sequence, dropped.get(origin, 0))
        if dropped == self._dropped or self._here.node not in engine.broker.queues.owned.serves:
            return
        self._dropped = dropped
        fact = {DROPPED: json.dumps(vector_to_json(dropped))}
        with suppress(DiskFull):
            await engine.environment.run_blocking(partial(engine.store.catalog.set_facts, fact))

    def _tombstones(self) -> list[Definition]:
        return [one for one in self._definitions.table.tombstones() if one.key.kind == KIND]

    async def _drop(self, names: list[str]) -> list[str]:
        """Drop what there is of these queues; those that must be looked at again."""
        engine = self._engine
        deleted = {name: one for name in names if (one := self._deletion(name)) is not None}
        # A clock in doubt says nothing about which of two is older.
        if engine.broker.queues.held or self._is_clock_in_doubt():
            return list(deleted)
        left = [name for name, deletion in deleted.items() if not self._is_heard(deletion.version.origin.node)]
        for name in left:
            del deleted[name]
        heads = partial(served_rows(engine.broker, engine.store).heads, list(deleted), 0)
        stored = await engine.environment.run_blocking(heads)
        for name, deletion in deleted.items():
            head = stored.get(name)
            messages, size = (0, 0) if head is None else (head.messages, head.body_bytes)
            # Before a job, which needs a checkpoint.
            if engine.broker.queues.paging.depth(name, messages, size)[0] and not await self._drop_queue(deletion):
                left.append(name)
        return left

    async def _drop_queue(self, deletion: Definition) -> bool:
        """Whether nothing that is older than the deletion is left."""
        name = deletion.key.name

        def check() -> None:
            if self._deletion(name) is None:
                raise Refused(DECLARED_AGAIN, f"{name} is declared again.")

        is_undated = False

        def covers(message: Message) -> bool:
            nonlocal is_undated
            if not self._is_heard(message.origin.node):
                is_undated = True
                return False
            return self._is_older(deletion, message)

        dropped, reason = await self._drop_messages(name, covers, check)
        if dropped:
            log.info("= %s was deleted: %d messages are dropped", name, dropped)
        if reason:
            return reason.startswith(DECLARED_AGAIN)
        queues = self._engine.broker.queues
        consumed = [delivery.message for delivery in queues.in_flight_of(name)]
        consumed += [message for lent in queues.owned.lent.values() for message in lent.values()]
        is_consumed = any(one.envelope.destination == name and covers(one) for one in consumed)
        return not is_consumed and not is_undated

    def _deletion(self, name: str) -> Definition | None:
        """The present tombstone; None if the queue is declared again, or its tombstone is forgotten."""
        found = self._definitions.table.by_key.get(Key(KIND, name))
        return found if found is not None and found.text is None else None

    def _is_heard(self, node: str) -> bool:
        """Whether this node knows the clock of `node`. Of one that has left the mesh it never will."""
        return node not in self._membership.peers or self._engine.broker.clocks.apart_us(node) is not None

    def _is_older(self, deletion: Definition, message: Message, accepted_us: int = 0) -> bool:
        clocks, version = self._engine.broker.clocks, deletion.version
        if message.origin == version.origin:
            # It may have decided both in the same microsecond. What is only in memory is not numbered with records.
            if message.sequence < 0:
                return message.timestamp_us <= version.written_us
            return message.sequence < version.sequence
        if message.origin.node == version.origin.node:
            is_earlier = self._is_earlier(message.origin, version.origin)
            if is_earlier is not None:
                return is_earlier
        if message.origin.node == self._here.node and is_covered(deletion, self._dropped):
            return False
        # When our clock showed the time of the deletion; and what that of the message's node showed then.
        ours_us = version.written_us + (clocks.apart_us(version.origin.node) or 0)
        if accepted_us:
            return accepted_us < ours_us
        return message.timestamp_us < clocks.time_at(message.origin.node, ours_us)

    def _is_earlier(self, origin: Origin, other: Origin) -> bool | None:
        """Whether the first of two incarnations of one node came before the other; None if its own directory does not
        know. Another node never knows: it may have heard only the earlier one, and have the records of both.
        """
        here = self._here
        if origin.node != here.node:
            return False
        if here in (origin, other):
            return here == other
        if origin in self._own and other in self._own:
            return self._own[origin] < self._own[other]
        return None
