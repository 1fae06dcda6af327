"""Whether this node's clock is believed, so that a wrong clock at a start deletes nothing.

The node notes its time on its disk, and compares at the next start. If the wall clock is then more than
APART_SECONDS_MAX off, either way, it is in doubt. During a doubt, data from before the start ages only by time that has
surely passed: up to the note, and since the start. That applies to the retention of fanouts, the age of the journal,
and `ttl` and `expires` of queue messages. Data from after the start ages by the clock as usual.

The doubt ends in one of three cases. A majority of the mesh, including this node, has about the same time. The operator
confirms the clock (`--trust-clock`). Or the node has run for BELIEVED_AFTER_SECONDS and no majority of the mesh
contradicts its clock. A node in doubt sends peers no time, so two doubts never confirm each other before that.

What came to an empty disk before its first doubt ended counts as having come then. A clock that is ahead by less than
QUIET_SECONDS_MAX raises no condition by itself: most such nodes were switched off over night. See
docs/decisions/0026-clock-check-at-start.md.
"""

import json
import logging
from contextlib import suppress
from typing import Final

import trio

from qmq.engine.parts import EngineParts
from qmq.engine.runtime.condition_group import ConditionGroup
from qmq.engine.runtime.contexts import Reporting
from qmq.engine.runtime.listed_parts import parts_of
from qmq.engine.runtime.waker import Waker
from qmq.errors import DiskFull
from qmq.model.members import Membership
from qmq.replication.mesh import Mesh
from qmq.storage.catalog.facts import CLOCK, CLOCK_FIRST, clock_of
from qmq.storage.format.interfaces import Shift

APART_SECONDS_MAX: Final = 3600.0
"""Between two clocks that count as showing the same time, and between a clock and the note on the disk."""

NOTE_SECONDS: Final = 600.0
"""Between two notes of the time on the disk, and two checks of the clocks of peers."""

POLL_SECONDS: Final = 1.0
"""Between two checks of the clocks of peers while ours is in doubt."""

RAISE_AFTER_SECONDS: Final = 5.0
"""For peers to confirm the clock before a condition is raised."""

BELIEVED_AFTER_SECONDS: Final = 86400.0
"""Of running, in one incarnation or several, after which a node believes its clock unless peers contradict it."""

QUIET_SECONDS_MAX: Final = 86400.0
"""A clock may start so far ahead of the note on the disk without a condition, as long as no peer contradicts it."""

_APART_US: Final = int(APART_SECONDS_MAX * 1e6)
_NEVER_US: Final = 1 << 55
"""Later than any clock shows."""

log = logging.getLogger("qmq.clock")


class ClockCheck:
    """Made at a start, before anything is expired or dropped."""

    def __init__(
        self, engine: EngineParts, mesh: Mesh, membership: Membership, reports: Reporting, *, is_trusted: bool
    ) -> None:
        self._engine = engine
        self._mesh = mesh
        self._membership = membership
        self._waker = Waker()
        self._condition = ConditionGroup(reports, "clock")
        self._is_unlikely = False
        self._began_us = now_us = engine.environment.now_us()
        facts = engine.store.catalog.facts()
        self._noted_us, doubted_us = clock_of(facts)
        self._first_us = int(facts.get(CLOCK_FIRST, 0))
        self._doubted_us = doubted_us or self._noted_us
        """The noted time when the doubt began, in this incarnation or an earlier one."""
        self._ahead_us = now_us - self._noted_us
        """How far the clock was ahead of the noted time, at the start."""
        # An empty disk has nothing to lose, but peers may return data of an earlier disk.
        is_new = not self._noted_us and bool(self._membership.peers)
        self.in_doubt = not is_trusted and (is_new or (self._noted_us > 0 and abs(self._ahead_us) > _APART_US))
        if not self.in_doubt:
            self._first_us = min(self._first_us, now_us) if self._noted_us else now_us
            engine.store.retention.shift = Shift(first_us=self._first_us)
            self._note_fact()
            return
        if self._noted_us:
            log.info("= %s", self._describe())
        if self._ahead_us > 0:
            engine.broker.clocks.doubt(now_us, self._ahead_us, is_silent=not is_new)
            # Data that comes to an empty disk is never too old, whatever the clocks say.
            never, late = (_NEVER_US, _NEVER_US), (now_us, self._ahead_us)
            engine.store.retention.shift = Shift(*(never if is_new else late), self._first_us)
        else:
            engine.store.retention.shift = Shift(first_us=self._first_us)
            engine.broker.clocks.doubt(0, 0, is_silent=True)

    def storage_now_us(self) -> int:
        """The time that the stores use. It is never behind the note of this disk, or behind the peers of an empty one,
        for no record counts as younger than this. A record from a clock that is behind would look old by the right one.
        """
        now_us = self._engine.environment.now_us()
        if not self.in_doubt:
            return now_us
        if self._noted_us:
            return max(now_us, now_us - self._ahead_us)
        return max([now_us, *(now_us - apart_us for apart_us in self._apart().values())])

    def agreed_us(self) -> int:
        """The earliest time that it can be now: the noted time plus the time since the start."""
        now_us = self._engine.environment.now_us()
        return self._noted_us + now_us - self._began_us if self.in_doubt else now_us

    async def run(self) -> None:
        """Note the time and check the clocks of peers, until cancelled."""
        raise_at = trio.current_time() + (RAISE_AFTER_SECONDS if self._membership.peers else 0.0)
        note_at = trio.current_time() + NOTE_SECONDS
        while True:
            if self._compare():
                await self._believe()
            now = trio.current_time()
            if self.in_doubt and now >= raise_at and self._noted_us and self._is_unlikely:
                self._condition.show([self._describe()])
            if now >= note_at:
                await self.note()
                note_at = now + NOTE_SECONDS
            self._waker.clear()
            await self._waker.wait(POLL_SECONDS if self.in_doubt and self._membership.peers else note_at - now)

    def schedule(self) -> None:
        """There is a peer to compare with."""
        self._waker.wake()

    async def note(self) -> None:
        await self._engine.environment.run_blocking(self._note_fact)

    def _note_fact(self) -> None:
        if self.in_doubt and not self._noted_us:
            return  # Nothing is known yet.
        since_us = self._doubted_us if self.in_doubt else 0
        with suppress(DiskFull):  # An older note can only cause a needless doubt at the next start.
            note = {CLOCK: json.dumps([self.agreed_us(), since_us]), CLOCK_FIRST: str(self._first_us)}
            self._engine.store.catalog.set_facts(note)

    def _compare(self) -> bool:
        """Whether a clock in doubt is confirmed."""
        votes = self._membership.voting_peers
        known = {name: apart_us for name, apart_us in self._apart().items() if name in votes}
        far = sorted(name for name, apart_us in known.items() if abs(apart_us) > _APART_US)
        if self.in_doubt:
            near = {name for name in known if name not in far}
            is_shared = bool(near) and self._membership.is_majority({*near, self._membership.node})
            # A linked peer that sends no time is in doubt itself.
            silent = set(self._mesh.followers()).intersection(votes) - known.keys()
            has_run = self.agreed_us() - self._doubted_us >= BELIEVED_AFTER_SECONDS * 1e6
            is_old = has_run and self._membership.is_majority({*near, *silent, self._membership.node})
            self._is_unlikely = bool(far) or not 0 < self._ahead_us <= QUIET_SECONDS_MAX * 1e6
            return is_shared or is_old
        if 2 * len(far) > len(votes):
            least_us = min((known[name] for name in far), key=abs)
            self._condition.show([f"the clock of this node is {_in_words(least_us)} those of {', '.join(far)}"])
        else:
            self._condition.show([])
        return False

    def _apart(self) -> dict[str, int]:
        """How far our clock is ahead of the clocks that peers have sent."""
        apart = {name: self._engine.broker.clocks.apart_us(name) for name in self._membership.peers}
        return {name: apart_us for name, apart_us in apart.items() if apart_us is not None}

    async def _believe(self) -> None:
        engine = self._engine
        self.in_doubt = False
        self._condition.show([])
        clocks, now_us = engine.broker.clocks, engine.environment.now_us()
        clocks.believe()
        # What came before, in this incarnation or an earlier one, may have the time of a wrong clock.
        self._first_us = min(self._first_us, now_us) if self._noted_us else now_us
        engine.store.retention.shift = Shift(first_us=self._first_us)
        listed = engine.broker.queues.listed
        async for part in parts_of(listed):
            for queue in listed[part]:
                if queue.expires_us:
                    queue.will_expire(now_us)
            engine.deadlines.decided()
        engine.pager.sweep_at(now_us)
        if self._noted_us or engine.store.fanouts():
            log.info("= the clock is confirmed: messages that are too old by it are dropped from now on")
            engine.checkpoints.schedule()
        self._note_fact()

    def _describe(self) -> str:
        return (
            f"the clock of this node began {_in_words(self._ahead_us)} what its disk had noted, and no majority"
            " confirms it: what was there before is not dropped by age. Set the clock and restart the node, or, if the"
            " clock is right, start it with --trust-clock, or let it run for a day"
        )


def _in_words(ahead_us: int) -> str:
    hours = round(abs(ahead_us) / 3.6e9)
    amount = f"{hours // 24} days" if hours >= 48 else f"{hours} hours" if hours > 1 else "an hour"
    return f"{amount} {'ahead of' if ahead_us > 0 else 'behind'}"
