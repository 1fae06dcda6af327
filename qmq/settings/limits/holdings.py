"""What users hold: the queues that each has declared, and the bytes of messages in them that this node serves.

The user that declares a queue first is named in its declaration. Queues that begin with their first use have no such
user, and no message names its sender. So a limit of bytes is one of all messages in the queues of a user, of whatever
sender.

Surprising: bytes are counted from the queue store, in a task. In between, what is accepted is added, and nothing is
taken off. A user at its limit is counted again at most each COUNT_SECONDS_MIN, and refused meanwhile.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import trio

from qmq.access.rules import Principal
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import NodeBasics
from qmq.engine.runtime.served_rows import served_rows
from qmq.errors import Refused
from qmq.settings.definitions.declared_queues import DeclaredQueues
from qmq.settings.definitions.users import LimitDefinitions

COUNT_SECONDS_MIN: Final = 1.0
COUNT_SECONDS: Final = 10.0
"""After which a count is made again when a message comes: bytes also come by takeovers, moves and dead letters."""

QUEUES_AT_ONCE: Final = 500
"""Queues that the store counts in one call."""


class UserHolding:
    """The queues that one user has declared. `bytes` is at least what they held at the last count, and what came."""

    __slots__ = ("_counted_at", "_engine", "_is_counting", "_since", "_spawn", "_user", "bytes", "bytes_max", "queues")

    def __init__(self, engine: EngineParts, spawn: Callable[[Callable[[], object]], None], user: str) -> None:
        self._engine = engine
        self._spawn = spawn
        self._user = user
        self._counted_at = float("-inf")
        self._is_counting = False
        self._since = 0
        self.queues: dict[str, None] = {}
        self.bytes = 0
        self.bytes_max = 0

    def check(self, body_bytes: int) -> None:
        """A message of this size comes into one of the queues. Raises Refused when there is no room for it."""
        is_full = self.bytes + body_bytes > self.bytes_max
        age = trio.current_time() - self._counted_at
        if not self._is_counting and age >= (COUNT_SECONDS_MIN if is_full else COUNT_SECONDS):
            self._is_counting = True
            self._spawn(self._count)
        if is_full:
            message = f"The queues that {self._user} has declared hold their maximum of {self.bytes_max} bytes here."
            raise Refused("user-full", message)
        self.bytes += body_bytes
        self._since += body_bytes

    async def _count(self) -> None:
        engine, names = self._engine, list(self.queues)
        total = 0
        for start in range(0, len(names), QUEUES_AT_ONCE):
            part = names[start : start + QUEUES_AT_ONCE]
            stored = await engine.environment.run_blocking(served_rows(engine.broker, engine.store).heads, part, 0)
            for name in part:
                head = stored.get(name)
                messages, size = (0, 0) if head is None else (head.messages, head.body_bytes)
                total += engine.broker.queues.paging.depth(name, messages, size)[1]
            if start == 0:
                # Of the queues that are counted by now, only what comes later is missing in the sum.
                self._since = 0
        self.bytes = total + self._since
        self._counted_at = trio.current_time()
        self._is_counting = False


class Holdings:
    """Those of all users that have declared a queue."""

    def __init__(
        self, engine: EngineParts, node: NodeBasics, declared: DeclaredQueues, limits: LimitDefinitions
    ) -> None:
        self._engine = engine
        self._node = node
        self._declared = declared
        self._limits = limits
        self._users: dict[str, UserHolding] = {}
        self._owners: dict[str, str] = {}

    def changed(self, queues: Iterable[str]) -> None:
        """The declarations of these have changed, or are known since the start."""
        for queue in queues:
            owner = self._declared.owner_of(queue)
            before = self._owners.pop(queue, "")
            if before and before != owner:
                holding = self._users[before]
                del holding.queues[queue]
                if not holding.queues:
                    del self._users[before]
            if owner:
                self._owners[queue] = owner
                found = self._users.get(owner)
                if found is None:
                    found = self._users[owner] = UserHolding(self._engine, self._node.spawn, owner)
                    self._limit(owner, found)
                found.queues[queue] = None

    def follow(self) -> bool:
        """Limits, users or groups have changed: let the present ones count. Whether rules of queues must be made again,
        because they have a limit that they had not, or none that they had.
        """
        is_other = False
        for user, holding in self._users.items():
            before = holding.bytes_max
            self._limit(user, holding)
            is_other = is_other or bool(before) != bool(holding.bytes_max)
        return is_other

    def check_of(self, queue: str) -> Callable[[int], None] | None:
        """What is asked before a message comes into `queue`; None: the user that declared it has no limit."""
        user = self._declared.owner_of(queue)
        if not user:
            return None
        if self._owners.get(queue) != user:
            # The rules of a queue are made before its declaration is announced.
            self.changed([queue])
        return partial(self._check, user) if self._users[user].bytes_max else None

    def check_room(self, user: str) -> None:
        """Raises Refused when `user` may declare no more queues. Those count that this node knows of."""
        most = self._limits.of(Principal(user)).queues_max
        holding = self._users.get(user)
        if most and holding is not None and len(holding.queues) >= most:
            raise Refused("too-many-queues", f"The user {user} has declared its maximum of {most} queues.")

    # Inside

    def _check(self, user: str, body_bytes: int) -> None:
        holding = self._users.get(user)
        if holding is not None and holding.bytes_max:
            holding.check(body_bytes)

    def _limit(self, user: str, holding: UserHolding) -> None:
        holding.bytes_max = self._limits.of(Principal(user)).held_bytes_max or 0
