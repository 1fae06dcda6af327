"""The fire: faults that are drawn by a seed, up to `most` at a time, and go on side by side in one thread.

A fault is a generator: it does its harm, yields the seconds that it lasts or a condition that must come true, and
undoes it. It claims the nodes that it meets, so that no other fault stops what this one must start again; lines between
nodes are claimed apart from the nodes, so a line can be cut while one of its ends is dead.

What a receipt covers is kept to: one disk at a time is lost. A fault that takes a disk, or a part of it, waits until no
other burns and every node has what any of them had; from then on others may join in.
"""

import random
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from qmq.cli.launch import exit_text
from qmq.testing.local import READY_SECONDS
from tests.nemesis.history import History
from tests.support.cluster_disks import SmallDisks
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import POLL_SECONDS, eventually

Steps = Generator[float | Callable[[], bool], None, None]

QUIET_SECONDS_MAX = 2.5
"""Between the beginnings of two faults, at most."""

FRAIL_SECONDS = 15.0
"""For which a node may still end of a shortage that is over."""

PATIENCE_SECONDS = 90.0
"""For what must come true while nothing burns, on a machine that is busy with other things."""

CATCH_UP_SECONDS = 600.0
"""For all nodes to deliver. One with a new disk may take minutes to fill it while the clients go on."""


class NoneFreeError(Exception):
    """What a fault wants is claimed by others."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to do harm."""

    name: str
    begin: Callable[["Fire", random.Random], Steps]
    weight: float
    is_alone: bool
    """Begins when no other burns; `Fire.open` lets others join in."""


FAULTS: list[Fault] = []
"""All that `fault` has made, in the order of their modules."""


def fault(weight: float, *, is_alone: bool = False) -> Callable[[Callable[["Fire", random.Random], Steps]], Fault]:
    """A fault of the function's name."""

    def make(begin: Callable[["Fire", random.Random], Steps]) -> Fault:
        made = Fault(begin.__name__, begin, weight, is_alone)
        FAULTS.append(made)
        return made

    return make


@dataclass(slots=True)
class _Burning:
    fault: Fault
    steps: Steps
    due: float
    until: Callable[[], bool] | None = None


class Fire:
    """The mesh under fire. Everything here happens in the thread that calls it, because it starts nodes."""

    def __init__(
        self,
        mesh: Cluster,
        history: History,
        faults: list[Fault],
        seed: int,
        *,
        longest: float,
        takeover_seconds: float,
        spares: Sequence[str] = (),
        most: int = 2,
        disks: SmallDisks | None = None,
    ) -> None:
        """`longest` is how many seconds a fault may last; `takeover_seconds` what a takeover takes; `spares` are nodes
        that may join; `most` is how many faults burn at a time."""
        self.mesh = mesh
        self.history = history
        self.disks = disks
        self.founders = len(mesh.names)
        """The first so many nodes of the mesh never leave it."""
        self.spares = list(spares)
        self.on_change: list[Callable[[], None]] = []
        """Called when nodes have joined or left."""
        self._frail: dict[str, float] = {}
        self._faults = faults
        self._seed = seed
        self._longest = longest
        self._takeover_seconds = takeover_seconds
        self._most = most
        self._burning: list[_Burning] = []
        self._claimed: set[object] = set()
        self._is_open = True
        self._begun = 0
        for name in mesh.names:
            history.begin_life(name)

    def burn(self, seconds: float) -> None:
        """Do harm for so long, and go on until the last of it is undone."""
        end = time.monotonic() + seconds
        next_at = 0.0
        waits_alone: tuple[Fault, random.Random] | None = None
        while (now := time.monotonic()) < end or self._burning:
            self._go_on()
            self._find_dead()
            if now >= end:
                waits_alone = None
            elif waits_alone is not None and not self._burning:
                self._begin(*waits_alone)
                waits_alone = None
            elif waits_alone is None and now >= next_at and self._is_open and len(self._burning) < self._most:
                rng = random.Random(f"{self._seed}/{self._begun}")
                self._begun += 1
                next_at = now + rng.uniform(0.3, QUIET_SECONDS_MAX)
                (fault,) = rng.choices(self._faults, [fault.weight for fault in self._faults])
                if fault.is_alone:
                    waits_alone = fault, rng
                else:
                    self._begin(fault, rng)
            time.sleep(POLL_SECONDS)

    # What faults ask for

    @contextmanager
    def node(self, rng: random.Random) -> Iterator[str]:
        """A node that no other fault has; it is this one's until the end of the block."""
        free = [name for name in self.mesh.names if name not in self._claimed]
        if not free:
            raise NoneFreeError
        name = rng.choice(free)
        with self.claim(name):
            yield name

    @contextmanager
    def claim(self, *things: object) -> Iterator[None]:
        """Nodes, lines, or whatever two faults must not have at the same time."""
        if self._claimed.intersection(things):
            raise NoneFreeError
        self._claimed |= set(things)
        try:
            yield
        finally:
            self._claimed -= set(things)

    def is_free(self, name: str) -> bool:
        """Whether no fault has this node."""
        return name not in self._claimed

    def long(self, rng: random.Random) -> float:
        """How long a fault lasts: mostly less than a takeover takes, often longer, seldom a minute."""
        least, most = rng.choices(
            [(0.2, self._takeover_seconds), (self._takeover_seconds, 2.5 * self._takeover_seconds), (15.0, 60.0)],
            [20, 10, 1],
        )[0]
        return min(rng.uniform(least, most), self._longest)

    def start(self, *names: str) -> Steps:
        """Start nodes and wait until they answer."""
        for name in names:
            self.history.begin_life(name)
        self.mesh.start_soon(*names)
        until = time.monotonic() + READY_SECONDS

        def all_ready() -> bool:
            for name in names:
                self.mesh.fleet.check_alive(name)
            ready = all(self.mesh.fleet.is_ready(name) for name in names)
            assert ready or time.monotonic() < until, f"{names} do not answer:\n{self.mesh.log_tails()}"
            return ready

        yield all_ready

    def revive(self, name: str) -> Steps:
        """A new life for a node that has ended of what was done to it, or does so in a moment."""
        self._frail[name] = time.monotonic() + FRAIL_SECONDS
        if not self.mesh.fleet.nodes[name].is_alive:
            yield from self.start(name)

    def until_covered(self) -> float:
        """Wait, while nothing burns, until every node has what any of them had; that moment of the history.

        What is receipted as being on one disk only may be on one only if it was receipted after that.
        """
        self.mesh.make_healthy(CATCH_UP_SECONDS)
        mesh, names = self.mesh, self.mesh.names
        moment = self.history.now
        wanted: dict[str, int] = {}
        for name in names:
            for origin, last in eventually(lambda n=name: mesh.status(n).get("vector"), "a node says nothing").items():
                wanted[origin] = max(last, wanted.get(origin, 0))

        def missing_ranges() -> dict[str, dict[str, int]]:
            found = {}
            for name in names:
                status = mesh.status(name)
                gone = set(status.get("collected", ()))
                has = status.get("vector", {})
                less = {o: has.get(o, 0) for o, last in wanted.items() if o not in gone and has.get(o, 0) < last}
                if less or not status or status["membership"]["learner"]:
                    found[name] = less
            return found

        missing = missing_ranges()
        while missing:
            # A new disk may take minutes to fill, on a machine that is busy: as long as something arrives.
            lacking = _lacking(missing, wanted)
            (missing,) = eventually(
                lambda most=lacking: (now,) if _lacking(now := missing_ranges(), wanted) < most else (),
                lambda: f"of {wanted} nodes lack {missing_ranges()}",
                PATIENCE_SECONDS,
            )
        return moment

    def open(self) -> None:
        """Others may join this fault, which began alone."""
        self._is_open = True

    # The fire itself

    def _begin(self, fault: Fault, rng: random.Random) -> None:
        self._is_open = not fault.is_alone
        burning = _Burning(fault, fault.begin(self, rng), 0.0)
        self._burning.append(burning)
        self._step(burning)

    def _go_on(self) -> None:
        for burning in list(self._burning):
            if burning.until() if burning.until is not None else time.monotonic() >= burning.due:
                self._step(burning)

    def _step(self, burning: _Burning) -> None:
        try:
            wish = next(burning.steps)
        except (StopIteration, NoneFreeError):
            self._burning.remove(burning)
            self._is_open = self._is_open or burning.fault.is_alone
            return
        if isinstance(wish, float | int):
            burning.due, burning.until = time.monotonic() + wish, None
        else:
            burning.until = wish

    def _find_dead(self) -> None:
        """A node that ended without a fault that may end it is noted, and gets a new life."""
        for name in self.mesh.names:
            code = self.mesh.fleet.nodes[name].exit_code
            if name not in self._claimed and code is not None:
                if time.monotonic() > self._frail.get(name, 0.0):
                    self.history.death(name, f"{exit_text(code)}; {self.mesh.fleet.log_tail(name)}")
                self.history.begin_life(name)
                self.mesh.start(name)


def _lacking(missing: Mapping[str, Mapping[str, int]], wanted: Mapping[str, int]) -> int:
    """How many records all nodes lack together, and one for each node that lacks any or is a learner."""
    return len(missing) + sum(wanted[origin] - has for less in missing.values() for origin, has in less.items())
