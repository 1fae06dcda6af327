"""The test of the tester: bugs put into the product must be found, and found because they are there.

Every commit looks for those that are found soon, from a seed that finds them; `make plants` of the night looks for all
of them from the first seed.
"""

import pytest

from tests.simulation.plants import PLANTS, Planted
from tests.simulation.plants.in_tests import is_found
from tests.simulation.plants.registry import FEWEST_NODES
from tests.simulation.reports.find import find
from tests.simulation.run import simulate

SEEDS = 60
"""How many a commit may spend on one bug: more than the one that it takes at first, since what a seed draws changes."""

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(300)]


@pytest.mark.parametrize("planted", [p for p in PLANTS.values() if p.seed is not None], ids=lambda p: p.name)
def test_a_planted_bug_is_found(planted: Planted) -> None:
    assert planted.seed is not None

    found = find(planted, range(planted.seed, planted.seed + SEEDS), planted.nodes)

    assert found is not None, f"none of the {SEEDS} seeds from {planted.seed} found it"
    assert found.is_fair, f"found also without the bug: {found.clean.wrongs}"


def test_a_plant_leaves_nothing_behind() -> None:
    before = simulate(0, size=FEWEST_NODES).digest

    for planted in PLANTS.values():
        with planted.put_in():
            pass

    assert simulate(0, size=FEWEST_NODES).digest == before


@pytest.mark.parametrize("planted", [p for p in PLANTS.values() if p.found_by], ids=lambda p: p.name)
def test_what_no_seed_finds_is_found_by_the_test_that_is_named(planted: Planted) -> None:
    assert planted.seed is None

    assert is_found(planted), f"with {planted.name}, {planted.found_by} passes"
