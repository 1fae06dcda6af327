"""One search for all that ask; its value is kept for a while, and its error reaches each of them."""

import pytest
import trio
from trio.testing import MockClock

from qmq.engine.runtime.single_flight import PAUSE_FACTOR, SingleFlight
from qmq.errors import LogBroken


class Tasks:
    is_stopping = False

    def __init__(self, nursery: trio.Nursery) -> None:
        self.spawn = nursery.start_soon


class Slow:
    """A search that takes a second, and finds how often it was made."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.searches = 0
        self.error: Exception | None = None
        self.recent = SingleFlight(Tasks(nursery), self.find, 0, kept_seconds=2.0, short_seconds=0.5)  # type: ignore[arg-type]

    async def find(self) -> int:
        self.searches += 1
        await trio.sleep(1)
        if self.error is not None:
            raise self.error
        return self.searches


async def test_clients_that_ask_at_once_share_a_search_and_its_value_is_kept(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        slow = Slow(nursery)
        found: list[int] = []

        async def ask() -> None:
            found.append(await slow.recent.get())

        async with trio.open_nursery() as clients:
            clients.start_soon(ask)
            clients.start_soon(ask)
        await trio.sleep(PAUSE_FACTOR - 0.1)
        await ask()
        await trio.sleep(0.2)
        await ask()

        assert found == [1, 1, 1, 2]


async def test_client_that_waits_no_longer_gets_the_value_before(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        slow = Slow(nursery)

        assert await slow.recent.refresh(0.5) == 0
        assert slow.recent.began_at is None
        await trio.sleep(0.6)

        assert (slow.recent.value, slow.searches) == (1, 1)


async def test_error_reaches_all_that_wait_and_the_next_search_may_succeed(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        slow = Slow(nursery)
        slow.error = LogBroken("the disk refused")
        failed = 0

        async def ask() -> None:
            nonlocal failed
            with pytest.raises(LogBroken):
                await slow.recent.get()
            failed += 1

        async with trio.open_nursery() as clients:
            clients.start_soon(ask)
            clients.start_soon(ask)
        slow.error = None
        await trio.sleep(PAUSE_FACTOR)

        assert failed == 2
        assert await slow.recent.get() == 2
