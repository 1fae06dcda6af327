"""Seeded bugs: plausible mistakes that the simulation must find when they are in the product.

A seeded bug replaces functions during one run, so the product has no switches for it. It is found when a seed breaks an
invariant that the bug names, and the same seed without the bug is clean.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from tests.simulation.plan import Family

SEEDS_MAX = 500
"""If so many seeds of its family do not find a bug, the simulation cannot find it."""


FEWEST_NODES = 3
"""Of a mesh. A seed of five nodes costs three times as much, and most bugs show without them."""

ANY_CALL = "tests/simulation/disk/test_disk_troubles.py::test_trouble_at_any_call_of_the_disk_loses_and_doubles_nothing"
"""Finds bugs that need a power cut at one particular call of the disk."""


@dataclass(frozen=True, slots=True)
class SeededBug:
    """Seeds of `family` find it; `signs` are the first words of what it breaks.

    `seed` is where the search of every commit begins: a seed that found it in the last search. None: the search takes
    long, so only the nightly run does it. `nodes` is the size of the meshes of that search; 0: what each seed draws.
    `found_by` is a test that finds the bug if seeds do not.
    """

    name: str
    install: Callable[[], AbstractContextManager[None]]
    family: Family
    signs: frozenset[str]
    seed: int | None
    nodes: int
    found_by: str


SEEDED_BUGS: dict[str, SeededBug] = {}
"""All of them, by name; complete once `tests.simulation.plants` is imported."""

Bug = Callable[[], Iterator[None]]


def seeded_bug(
    family: Family, *signs: str, seed: int | None = None, nodes: int = FEWEST_NODES, found_by: str = ""
) -> Callable[[Bug], Bug]:
    """Register a generator that patches the product, yields, and removes the patch."""

    def register(bug: Bug) -> Bug:
        name = bug.__name__.replace("_", " ")
        assert name not in SEEDED_BUGS, f"two bugs are called {name}"
        SEEDED_BUGS[name] = SeededBug(name, contextmanager(bug), family, frozenset(signs), seed, nodes, found_by)
        return bug

    return register
