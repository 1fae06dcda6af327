"""One seed for everything: trio's scheduler, its clock, and the logs that would otherwise hide an exception.

Trio shuffles each batch of runnable tasks with a generator of its own, and sorts the batch first only when a private
flag is set. Both are set here for one run and put back. trio's own tests hold on to the two names; if they move, the
check in `seeded_scheduler` fails at once instead of letting runs differ.
"""

import gc
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio
from trio._core import _run as scheduler

from tests.support.moments import Moments
from tests.support.world import WorldEndedError

EXPECTED_REPORTS = (
    "quarantine",
    "gap",
    "new-disk",
    "old-disk",
    "damage",
    "lost-tail",
    "duplicate-node",
    "refused-duplicate-node",
    "disk-failed",
    "checkpoint",
    "disk-full",
    "unknown-node",
    "refused-unknown-node",
    "takeover",
    "taken-over",
    "returned",
    "takeover-differs",
    "takeover-failed",
    "clock",
    "queues-held",
)
"""What an operator is shown and what faults explain: writes that reached the disk out of order, rotten bytes and what
no node has in their place, a full, a new or an old disk, a node that is back before its peers know that it was away,
peers files that differ for a while, and a node whose messages another one serves while it is silent, nodes whose
operator changes how long that takes, or whose clock is off, and a node without a majority."""

VIRTUAL_SECONDS_MAX = 200.0
"""After this a run is ended, whatever it waits for."""

STEPS_LOOKED_AT = 5_000
"""So many steps show which tasks are busy for ever."""


class ErrorLog(logging.Handler):
    """Collects what the nodes log as an error: a session or link that failed in a way it does not know."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        text = self.format(record)
        expected = any(f"CONDITION {code}:" in text or f"EVENT {code}:" in text for code in EXPECTED_REPORTS)
        if not expected and (error is None or not _only_world_ended(error)):
            self.errors.append(text)


class Watchdog(trio.abc.Instrument):
    """Ends a run whose tasks are busy without virtual time passing, and says which they are.

    To see every step costs a tenth of a simulation, so it looks at the steps only when time stands still.
    """

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.wrong = ""
        self._looks = False
        self._steps: Counter[str] = Counter()

    def look(self) -> None:
        """Time stands still."""
        if not self._looks:
            self._looks = True
            trio.lowlevel.add_instrument(self)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._steps[task.name] += 1
        if not self.wrong and self._steps.total() > STEPS_LOOKED_AT:
            self.wrong = f"busy for ever at {trio.current_time():.6f}: {self._steps.most_common(5)}"
            self.scope.cancel()


@contextmanager
def seeded_scheduler(seed: int) -> Iterator[None]:
    """Tasks that may run at the same moment do so in an order that `seed` draws."""
    assert isinstance(scheduler._r, random.Random) and hasattr(scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING")
    before = (scheduler._r, scheduler._ALLOW_DETERMINISTIC_SCHEDULING)
    scheduler._r = random.Random(f"scheduler/{seed}")
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]  # trio declares it final
    try:
        yield
    finally:
        scheduler._r = before[0]
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = before[1]  # type: ignore[misc]


def run_seeded(seed: int, main: Callable[[], Awaitable[None]]) -> list[str]:
    """Run `main` under trio on a jumping clock; returns what was logged as an error, and whether it never ended."""
    logger = logging.getLogger("qmq")
    before = (logger.level, logger.propagate)
    handler = ErrorLog()
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    watchdog = Watchdog()

    async def watched() -> None:
        with watchdog.scope, trio.fail_after(VIRTUAL_SECONDS_MAX):
            await main()

    # Collecting while it runs costs a fifth of the time. What the run before left is in the two younger generations by
    # now. A full collection visits all modules too: nearly half of the time of a short run.
    gc.collect(1)
    gc.disable()
    try:
        with seeded_scheduler(seed):
            trio.run(watched, clock=Moments(watchdog.look).clock())
        return handler.errors + ([watchdog.wrong] if watchdog.wrong else [])
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
        gc.enable()


def _only_world_ended(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_only_world_ended(inner) for inner in error.exceptions)
    return isinstance(error, WorldEndedError)
