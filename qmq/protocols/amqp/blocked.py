"""connection.blocked and connection.unblocked of one connection, an extension of RabbitMQ.

A client that publishes is notified when the node has no room for its messages: it refuses them, or it does not read
on. Consuming goes on meanwhile. Only a client that publishes is notified, and only one that announced the capability.

Surprising: no event says that there is room again. While a client is blocked, the connection asks every
POLL_SECONDS; no other one costs anything.
"""

from typing import Final, Protocol

import trio

from qmq.engine.parts import EngineParts
from qmq.engine.runtime.heartbeats import Heartbeats
from qmq.protocols.amqp.codec.frames import method_frame
from qmq.protocols.amqp.codec.methods import commands, encode_method
from qmq.sessions.clients.memory_budget import MemoryBudget

HOLD_SECONDS: Final = 1.0
"""After which a publish that waits counts as blocked. A wait for the disk is mostly shorter."""

POLL_SECONDS: Final = 0.5

DISK: Final = "low on disk"
MEMORY: Final = "low on memory"
BUSY: Final = "the node cannot keep up"

REASONS: Final = {"disk-full": DISK, "memory-full": MEMORY}
"""Code of a refused publish → why the client is blocked; the words are RabbitMQ's."""


class BlockedConnection(Protocol):
    """The dialogue of the connection (`AmqpDialogue`)."""

    @property
    def is_over(self) -> bool: ...

    @property
    def understands_blocked(self) -> bool: ...

    def put(self, data: bytes) -> None: ...


class Blocking:
    """Whether one connection is blocked, as its client knows it."""

    def __init__(
        self, engine: EngineParts, beats: Heartbeats, memory_budget: MemoryBudget, connection: BlockedConnection
    ) -> None:
        self._broker = engine.broker
        self._path = engine.path
        self._beats = beats
        self._memory_budget = memory_budget
        self._connection = connection
        self._is_held = False
        self._check_number = -1
        """Of the check for room; -1: the client is not blocked."""

    def refused(self, code: str) -> None:
        """A publish was refused."""
        reason = REASONS.get(code)
        if reason is not None:
            self._block(reason)

    def published(self) -> None:
        """The client has published. Near the memory budget of connections, it may not be read for a while."""
        if self._memory_budget.is_near:
            self._block(MEMORY)

    async def slot(self, session: int) -> None:
        """Wait until a publish may be decided; a client that waits long is notified."""
        if not self._connection.understands_blocked:
            await self._path.slot(session)
            return
        with trio.move_on_after(HOLD_SECONDS):
            await self._path.slot(session)
            return
        self._is_held = True
        self._block(BUSY)
        try:
            await self._path.slot(session)
        finally:
            self._is_held = False
        self._look()

    def stop(self) -> None:
        """The connection has ended."""
        self._beats.forget(self._check_number)
        self._check_number = -1

    def _block(self, reason: str) -> None:
        connection = self._connection
        if self._check_number >= 0 or not connection.understands_blocked or connection.is_over:
            return
        self._check_number = self._beats.watch(trio.current_time() + POLL_SECONDS, self._check)
        connection.put(method_frame(0, encode_method(commands.Connection.Blocked(reason))))

    def _check(self, now: float) -> float | None:
        return now + POLL_SECONDS if self._look() else None

    def _look(self) -> bool:
        """Unblock the client if there is room again; whether it is blocked still."""
        if self._check_number < 0 or self._has_no_room:
            return self._check_number >= 0
        self.stop()
        if not self._connection.is_over:
            self._connection.put(method_frame(0, encode_method(commands.Connection.Unblocked())))
        return False

    @property
    def _has_no_room(self) -> bool:
        broker = self._broker
        return (
            self._is_held
            or broker.send_limits.disk_full
            or broker.queues.shared.memory_bytes > broker.limits.queue_memory_bytes_max
            or self._memory_budget.is_near
        )
