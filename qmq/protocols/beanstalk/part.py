"""What the beanstalkd connections of one node share: jobs by id, pauses of tubes, and counters.

It is made when the first listener begins, or the first peer asks.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final, Protocol

import trio

from qmq.broker.messages.message import Message
from qmq.mesh.peers.rpc import PeerRpc
from qmq.protocols.beanstalk.calls import PauseTube
from qmq.protocols.beanstalk.gateway.jobs import JobCounts, counts_of, id_of
from qmq.protocols.beanstalk.job_changes import JobChanges
from qmq.protocols.beanstalk.jobs import JobFinder

RELEASES_MAX: Final = 10_000
"""Jobs of which this node remembers how often they were released; the oldest are forgotten."""

TUBES_MAX: Final = 10_000
"""Tubes with counters or pauses; further ones have none."""

DEFAULT_TUBE: Final = "default"


class TubeUser(Protocol):
    """A connection, as others count it."""

    used: str
    watched: dict[str, None]
    is_producer: bool
    is_worker: bool

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a job."""

    def wake(self) -> None:
        """A tube is not paused any more, or is from now on."""


class BeanstalkPart:
    def __init__(self, jobs: JobFinder, changes: JobChanges, rpc: PeerRpc) -> None:
        self.jobs = jobs
        self.changes = changes
        self._rpc = rpc
        self.commands: Counter[str] = Counter()
        """Commands since the start, by verb."""
        self.by_tube: dict[str, Counter[str]] = {}
        """Of each tube: jobs that were put, deletes and pauses, by this node's clients."""
        self.users: set[TubeUser] = set()
        self.connections = 0
        """All since the start."""
        self.timeouts = 0
        self._releases: dict[int, int] = {}
        self._paused: dict[str, tuple[float, int]] = {}

    # Counters

    def count(self, tube: str, what: str) -> None:
        """One more of `what` in a tube."""
        counts = self.by_tube.get(tube)
        if counts is None:
            if len(self.by_tube) >= TUBES_MAX:
                return
            counts = self.by_tube[tube] = Counter()
        counts[what] += 1

    def released(self, job: int) -> None:
        """A job was released as it is."""
        self._releases[job] = self._releases.pop(job, 0) + 1
        if len(self._releases) > RELEASES_MAX:
            del self._releases[next(iter(self._releases))]

    def carried(self, message: Message, *, is_reserved: bool) -> JobCounts:
        """What the next message of a job says of its past; it is remembered there from now on."""
        counts = self.counts_of(message, is_reserved=is_reserved)
        self._releases.pop(id_of(message), None)
        return counts

    def counts_of(self, message: Message, *, is_reserved: bool) -> JobCounts:
        """What has happened to a job, as far as this node knows."""
        before = counts_of(message.envelope)
        releases = self._releases.get(id_of(message), 0)
        attempts = max(message.attempts, 0)
        return before._replace(
            reserves=before.reserves + attempts + is_reserved,
            releases=before.releases + releases,
            timeouts=before.timeouts + max(0, attempts - releases),
        )

    # Pauses

    def paused_until(self, tube: str) -> float:
        """Until which time of trio nothing of a tube is reserved here; 0 if it is not paused."""
        until, _ = self._paused.get(tube, (0.0, 0))
        if until <= trio.current_time():
            self._paused.pop(tube, None)
            return 0.0
        return until

    def pause_of(self, tube: str) -> tuple[int, int]:
        """Seconds of the pause, and those that are left."""
        until = self.paused_until(tube)
        return (self._paused[tube][1], int(until - trio.current_time())) if until else (0, 0)

    def pause(self, tube: str, seconds: int) -> bool:
        """Reserve nothing of a tube on this node for so long; 0 ends a pause. False: TUBES_MAX others are paused."""
        now = trio.current_time()
        self._paused.pop(tube, None)
        if seconds and len(self._paused) >= TUBES_MAX:
            self._paused = {name: pause for name, pause in self._paused.items() if pause[0] > now}
            if len(self._paused) >= TUBES_MAX:
                return False
        if seconds:
            self._paused[tube] = (now + seconds, seconds)
        for user in self.users:
            user.wake()
        return True

    async def pause_everywhere(self, tube: str, seconds: int) -> bool:
        """The same on all nodes that can be reached; not on others if this one cannot."""
        if not self.pause(tube, seconds):
            return False
        await self._rpc.ask(PauseTube(tube, seconds))
        return True


def names_of(users: Iterable[TubeUser]) -> set[str]:
    """The tubes that connections use or watch."""
    return {DEFAULT_TUBE, *[user.used for user in users], *[tube for user in users for tube in user.watched]}
