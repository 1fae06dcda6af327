"""What can go wrong: a fault is a line of the script of a seed, a nemesis is the coroutine that makes it happen.

A nemesis registers itself under the name that fault scripts, reports and the weights of `plan` use, so adding one is
one function in `nemeses` and its weight in a family. It does its harm, waits `fault.seconds`, and undoes it; when the
phase of faults ends it is cancelled in its wait, so it undoes in a `finally` (or a `with`) what `Stage.heal` cannot
undo for it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.stage import Stage


@dataclass(frozen=True, slots=True)
class Fault:
    """`seconds` is how long it lasts: until healed, until started again. `other` is "" unless the nemesis takes two."""

    at: float
    name: str
    node: str
    other: str
    seconds: float

    def __str__(self) -> str:
        other = f" {self.other}" if self.other else ""
        return f"{self.at:6.3f} {self.name} {self.node}{other} for {self.seconds:.3f} s"


Inject = Callable[["Stage", Fault], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Nemesis:
    """`takes_two`: it stands between two nodes. `loses_disk`: what only the node's disk had may be gone after it.

    `minority`: it meets always the same nodes of a mesh, fewer than half, because nothing is promised for more.
    """

    name: str
    inject: Inject
    takes_two: bool
    loses_disk: bool
    minority: bool


NEMESES: dict[str, Nemesis] = {}
"""All there are, by name; complete once `tests.simulation.nemeses` is imported."""


def nemesis(
    name: str, *, takes_two: bool = False, loses_disk: bool = False, minority: bool = False
) -> Callable[[Inject], Inject]:
    """Register a coroutine as the nemesis `name`."""

    def register(inject: Inject) -> Inject:
        assert name not in NEMESES, f"two nemeses are called {name}"
        NEMESES[name] = Nemesis(name, inject, takes_two, loses_disk, minority)
        return inject

    return register
