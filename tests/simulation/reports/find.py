"""The search for a seeded bug: the first seed that breaks what the bug should break, and that is clean without it."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from tests.simulation.plan import Family
from tests.simulation.plants import SeededBug
from tests.simulation.run import Report, simulate


@dataclass(frozen=True, slots=True)
class Found:
    """`tried` seeds were run with the bug in; `report` is of the last. `clean` is the same seed without the bug."""

    tried: int
    report: Report
    clean: Report

    @property
    def is_fair(self) -> bool:
        """Whether it is the bug that was found."""
        return not self.clean.wrongs


def find(bug: SeededBug, seeds: Iterable[int], size: int = 0) -> Found | None:
    """The first of `seeds` that finds it by one of its signs; None when none does. `size` asks for a mesh of so many
    nodes, as in `simulate`."""
    for tried, seed in enumerate(seeds, 1):
        report = simulate(seed, bug.install, bug.family, size=size)
        if any(wrong.split()[0].rstrip(":") in bug.signs for wrong in report.wrongs):
            return Found(tried, report, _clean(seed, bug.family, size))
    return None


@cache
def _clean(seed: int, family: Family, size: int) -> Report:
    """Without any bug: once for all the bugs that this seed finds."""
    return simulate(seed, family=family, size=size)
