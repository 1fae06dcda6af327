"""Checks of passwords, and of other credentials: a few at a time; the client with the fewest recent checks goes first.

A check costs tenths of a second of a core by design. In a single line, wrong guesses of one client would delay all
others. So the next check is for the client whose address and user together had the fewest checks in the last minute.
Guesses wait behind every login from elsewhere, also when they name the same user. A host full of workers with one
outdated password waits behind other users. Among equals the first to arrive goes first.

A client that disconnects while it waits gives up its turn.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

AT_ONCE: Final = 2
REMEMBERED_SECONDS: Final = 60.0
REMEMBERED_MAX: Final = 10_000
"""Addresses and users whose checks are counted; beyond that all counts begin at zero."""


@dataclass(slots=True, eq=False)
class _Waiting:
    address: str
    user: int
    granted: trio.Event = field(default_factory=trio.Event)


class PasswordChecks:
    """The turns of one authenticator; so many clients have one at a time."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._running = 0
        # In the order of arrival; as many as there are pending logins.
        self._waiting: list[_Waiting] = []
        self._addresses: Counter[str] = Counter()
        self._users: Counter[int] = Counter()
        self._counted_since = trio.current_time()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @asynccontextmanager
    async def turn(self, address: str, user: str, until_left: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """Wait for a turn and hold it while the block runs.

        `until_left` runs meanwhile and returns when the client has disconnected; then this raises
        trio.BrokenResourceError.
        """
        # A name may be as long as a header; its hash is enough to count by.
        waiting = _Waiting(address, hash(user))
        if self._running < self._at_once:
            self._grant(waiting)
        else:
            self._waiting.append(waiting)
            await self._wait(waiting, until_left)
        try:
            yield
        finally:
            self._give_back()

    async def _wait(self, waiting: _Waiting, until_left: Callable[[], Awaitable[None]]) -> None:
        try:
            async with trio.open_nursery() as nursery:

                async def watch() -> None:
                    await until_left()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(watch)
                await waiting.granted.wait()
                nursery.cancel_scope.cancel()
        except BaseException:
            self._withdraw(waiting)
            raise
        if not waiting.granted.is_set():
            self._withdraw(waiting)
            raise trio.BrokenResourceError("the client left while its login waited")

    def _withdraw(self, waiting: _Waiting) -> None:
        if waiting.granted.is_set():
            self._give_back()
        else:
            self._waiting.remove(waiting)

    def _grant(self, waiting: _Waiting) -> None:
        self._running += 1
        waiting.granted.set()
        now = trio.current_time()
        many = len(self._addresses) + len(self._users) >= REMEMBERED_MAX
        if many or now - self._counted_since > REMEMBERED_SECONDS:
            self._counted_since = now
            self._addresses.clear()
            self._users.clear()
        self._addresses[waiting.address] += 1
        self._users[waiting.user] += 1

    def _give_back(self) -> None:
        self._running -= 1
        if self._waiting:
            first = min(self._waiting, key=lambda one: self._addresses[one.address] + self._users[one.user])
            self._waiting.remove(first)
            self._grant(first)
