"""The timer of the queues: wakes the broker when a delay, an ack-timeout or an expiry is due.

The broker keeps all its deadlines in one heap of wall-clock times; this task sleeps until the first. A node without
deadlines never wakes.
"""

import trio

from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import COST_MAX, Outcome
from qmq.engine.runtime.contexts import Committing
from qmq.engine.runtime.heartbeats import SECOND_POLL_SECONDS
from qmq.engine.runtime.waker import Waker
from qmq.environment import Environment

SLEEP_SECONDS_MAX = 3600.0
"""Wall clocks are set now and then: the timer checks at least this often."""

SLEEP_SECONDS_MIN = 0.001

HELD_SECONDS = 0.1
"""Between two checks while a restarted node holds its messages back."""


class DeadlineTimer:
    """Calls `Broker.tick`."""

    def __init__(self, broker: Broker, environment: Environment) -> None:
        self._broker = broker
        self._environment = environment
        self._sleeps_until_us = 0
        self._sooner = Waker()

    def decided(self) -> None:
        """A decision was made: there may be an earlier deadline now."""
        next_us = self._broker.queues.deadlines.next_us
        if next_us and (not self._sleeps_until_us or next_us < self._sleeps_until_us):
            self._sooner.wake()

    async def run(self, commits: Committing) -> None:
        """Decide what is due, until cancelled."""
        while True:
            self._sooner.clear()
            next_us = self._sleeps_until_us = self._broker.queues.deadlines.next_us
            if not next_us:
                await self._sooner.wait()
                continue
            if self._broker.queues.held:
                # Peers may soon report that messages which have expired here were settled there.
                await self._sooner.wait(HELD_SECONDS)
                continue
            seconds = (next_us - self._environment.now_us()) / 1_000_000
            if seconds > 0:
                await self._sooner.wait(min(max(seconds, SLEEP_SECONDS_MIN), SLEEP_SECONDS_MAX))
                continue
            before = trio.current_time()
            await commits.slot()
            if trio.current_time() >= before + SECOND_POLL_SECONDS:
                # Clients waited as long, and frames that they sent in time are still to be read.
                await trio.sleep(SECOND_POLL_SECONDS)
            out = Outcome(now_us=self._environment.now_us())
            before = trio.current_time()
            self._broker.tick(out)
            commits.submit(out)
            if out.cost >= COST_MAX:
                # There are more, perhaps without end. Until these are on the disk, and at least half of the time, all
                # others have their turns.
                took = trio.current_time() - before
                await commits.flushed()
                await trio.sleep(took)
            await trio.lowlevel.checkpoint()
