"""What a call asks for is done once, however often the call comes.

A link may lose a reply, and then the call is sent again, with the same id. So a node that changes something for a peer
remembers by the id what it does, and what has come of it.

Bounds: a limited number of results is remembered, the latest.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from typing import Generic, TypeVar

import trio

from qmq.errors import LogBroken

T = TypeVar("T")


class Run(Generic[T]):
    """One action. `asked_at`: when a call last asked for it."""

    def __init__(self) -> None:
        self.asked_at = trio.current_time()
        self.is_stopped = False
        """A call has asked for its end."""
        self.result: T | None = None
        self.error: Exception | None = None
        self.is_over = trio.Event()


class Once(Generic[T]):
    """Actions by their ids. Each runs in a task of its own, so a call may leave it running and come again."""

    def __init__(self, spawn: Callable[[Callable[[], object]], None], results_max: int) -> None:
        self._spawn = spawn
        self._results_max = results_max
        self._runs: dict[str, Run[T]] = {}

    def __contains__(self, id: str) -> bool:
        return id in self._runs

    async def do(
        self,
        id: str,
        act: Callable[[Run[T]], Awaitable[T | None]],
        *,
        seconds: float = inf,
        is_stopped: bool = False,
    ) -> T | None:
        """What `act` has returned for this id, or raises; None: it still runs after `seconds`.

        An action that returns None, or raises, has decided nothing: the next call with its id begins another.
        """
        run = self._runs.get(id)
        if run is None:
            run = self._runs[id] = Run()
            self._forget_old()
            self._spawn(partial(self._run, id, run, act))
        run.asked_at = trio.current_time()
        run.is_stopped = run.is_stopped or is_stopped
        with trio.move_on_after(seconds):
            await run.is_over.wait()
        if run.error is not None:
            raise run.error
        return run.result

    async def _run(self, id: str, run: Run[T], act: Callable[[Run[T]], Awaitable[T | None]]) -> None:
        try:
            run.result = await act(run)
        except LogBroken:
            raise
        except Exception as error:
            run.error = error
        finally:
            if run.result is None:
                self._runs.pop(id, None)
            run.is_over.set()

    def _forget_old(self) -> None:
        over = [id for id, run in self._runs.items() if run.is_over.is_set()]
        for id in over[: max(0, len(self._runs) - self._results_max)]:
            del self._runs[id]
