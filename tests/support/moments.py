"""Virtual time that costs little: a jumping clock with timers of its own, for twins that wait very often.

trio's timeouts are cancel scopes, and its clock asks the real one; a simulated network and disk wait some ten thousand
times in a second of virtual time, and most of a simulation would be spent with these. Here a wait that only its own
twin ends is an entry in a heap, and a task that is put back into the scheduler when the clock jumps there.

Surprising: under any other clock, as in tests that take trio's own, the same waits are made of trio's timeouts. And
trio lets only its own class jump, which cannot be inherited from, so this is one of those with other methods.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf

import trio
from trio._core import _run as scheduler
from trio.lowlevel import Abort, RaiseCancelT, Task
from trio.testing import MockClock

ASKED_AT_ONCE_MAX = 200_000
"""How often one virtual instant may be asked for. Some thousands are normal; trio asks in each round of its loop."""


class Moments:
    """The time of one run, and who waits for what time. `stuck` is called when time does not go on."""

    def __init__(self, stuck: Callable[[], None]) -> None:
        self.now = 0.0
        self._stuck = stuck
        self._asked = 0
        self._timers: list[tuple[float, int, Parking]] = []
        self._numbers = count()

    def clock(self) -> MockClock:
        """A clock for `trio.run` that goes by this time, and jumps when nobody has anything to do."""
        clock = MockClock(autojump_threshold=0)
        clock.current_time = self._current_time  # type: ignore[method-assign]
        clock.deadline_to_sleep_time = self._sleep_time  # type: ignore[method-assign]
        clock._autojump = self._jump  # type: ignore[method-assign]
        clock.jump = self._advance  # type: ignore[method-assign]
        clock.moments = self  # type: ignore[attr-defined]
        return clock

    def add(self, due: float, ordered_buffer: "Parking") -> None:
        """Wake who is in `ordered_buffer` at `due`."""
        heappush(self._timers, (due, next(self._numbers), ordered_buffer))

    def _current_time(self) -> float:
        self._asked += 1
        if self._asked > ASKED_AT_ONCE_MAX:
            self._asked = 0
            self._stuck()
        return self.now

    def _sleep_time(self, deadline: float) -> float:
        return 0.0 if deadline <= self.now else 1e9

    def _advance(self, seconds: float) -> None:
        """Let time pass at once, while tasks have something to do."""
        self.now += seconds
        self._wake_due()

    def _jump(self) -> None:
        timers = self._timers
        due = scheduler.GLOBAL_RUN_CONTEXT.runner.deadlines.next_deadline()
        if timers:
            due = min(due, timers[0][0])
        if due == inf:
            return
        if due > self.now:
            self.now = due
            self._asked = 0
        self._wake_due()

    def _wake_due(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self.now:
            heappop(timers)[2].wake()


class Parking:
    """Where tasks wait until they are woken or a time has come. They may be woken for nothing, and look again."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: list[Task] = []

    async def wait(self, due: float = inf) -> None:
        """Until `wake`, or virtual time `due`."""
        if due == inf:
            await self._park()
        elif (moments := _moments()) is not None:
            moments.add(due, self)
            await self._park()
        else:
            with trio.move_on_at(due):
                await self._park()

    async def _park(self) -> None:
        task = trio.lowlevel.current_task()
        self._tasks.append(task)

        def abort(_: RaiseCancelT) -> Abort:
            self._tasks.remove(task)
            return Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def wake(self) -> None:
        if self._tasks:
            tasks, self._tasks = self._tasks, []
            for task in tasks:
                trio.lowlevel.reschedule(task)

    def wake_at(self, due: float) -> None:
        """Wake who waits now, at `due`; under a clock of trio's at once, to wait for `due` by itself."""
        if self._tasks:
            moments = _moments()
            if moments is None:
                self.wake()
            else:
                moments.add(due, self)


async def sleep_uncancelled(seconds: float) -> None:
    """Sleep; who is cancelled meanwhile hears of it later."""
    moments = _moments()
    if moments is None:
        with trio.CancelScope(shield=True):
            await trio.sleep(seconds)
        return
    sleeper = _Sleeper(trio.lowlevel.current_task())
    moments.add(moments.now + seconds, sleeper)
    await trio.lowlevel.wait_task_rescheduled(_never)


class _Sleeper(Parking):
    """One task, which nothing else wakes."""

    __slots__ = ()

    def __init__(self, task: Task) -> None:
        self._tasks = [task]


def _never(_: RaiseCancelT) -> Abort:
    return Abort.FAILED


def _moments() -> Moments | None:
    return getattr(trio.lowlevel.current_clock(), "moments", None)
