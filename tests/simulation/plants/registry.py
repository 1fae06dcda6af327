"""Bugs to put into the product, for the test of the tester: each is what a plausible mistake would look like.

They replace functions for the time of one run and live here only: the product has no switches for them. A bug is
found when one of its seeds breaks an invariant that it names, and the same seed without it is clean.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from tests.simulation.plan import Family

SEEDS_MAX = 500
"""A bug that so many seeds of its family do not find is one that the simulation cannot find."""


FEWEST_NODES = 3
"""Of a mesh. A seed of five nodes costs three times as much, and most bugs show without them."""

ANY_CALL = "tests/simulation/disk/test_disk_troubles.py::test_trouble_at_any_call_of_the_disk_loses_and_doubles_nothing"
"""Finds what a power cut at one certain call of a disk brings out."""


@dataclass(frozen=True, slots=True)
class Planted:
    """`family` brings it out, `signs` are the first words of what it breaks.

    `seed` is where the search of every commit begins: a seed that found it when it was last looked for. None: it takes
    long, so only the night looks for it. `nodes` is the size of the meshes of that search; 0: what each seed draws.
    `found_by` is a test that finds it, when seeds do not.
    """

    name: str
    put_in: Callable[[], AbstractContextManager[None]]
    family: Family
    signs: frozenset[str]
    seed: int | None
    nodes: int
    found_by: str


PLANTS: dict[str, Planted] = {}
"""All there are, by name; complete once `tests.simulation.plants` is imported."""

Bug = Callable[[], Iterator[None]]


def plant(
    family: Family, *signs: str, seed: int | None = None, nodes: int = FEWEST_NODES, found_by: str = ""
) -> Callable[[Bug], Bug]:
    """Register a generator that patches the product, yields, and takes it back."""

    def register(bug: Bug) -> Bug:
        name = bug.__name__.replace("_", " ")
        assert name not in PLANTS, f"two bugs are called {name}"
        PLANTS[name] = Planted(name, contextmanager(bug), family, frozenset(signs), seed, nodes, found_by)
        return bug

    return register
