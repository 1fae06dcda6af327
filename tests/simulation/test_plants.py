"""The test of the tester: bugs put into the product must be found, and found because they are there.

Each bug gets the faults that bring it out and a bounded number of seeds. The same seeds without the bug are clean.
"""

from contextlib import nullcontext

import pytest

from tests.simulation import plants
from tests.simulation.faults import Family
from tests.simulation.run import Plant, simulate

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(300)]


def first_caught(plant: Plant, family: Family, seeds: range) -> tuple[int, list[str]]:
    """The first seed that finds the bug, and what it says."""
    for seed in seeds:
        report = simulate(seed, plant, family)
        if report.wrongs:
            return seed, report.wrongs
    raise AssertionError(f"none of the seeds {seeds} found it")


@pytest.mark.parametrize(
    ("plant", "family", "seeds", "signs"),
    [
        pytest.param(
            plants.sequences_used_again, Family.WIPES, range(12), {"I1", "I3", "I13"}, id="sequences used again"
        ),
        pytest.param(plants.shipped_before_fsync, Family.CRASHES, range(60), {"I5", "I1", "I13"}, id="shipped early"),
        pytest.param(plants.highest_taken_for_all, Family.CUTS, range(60), {"I1", "I3", "I13"}, id="holes accepted"),
        pytest.param(plants.receipted_before_recorded, Family.CRASHES, range(30), {"I1"}, id="receipted early"),
        pytest.param(plants.lent_and_forgotten, Family.ALL, range(60), {"I13"}, id="lent and forgotten"),
    ],
)
def test_a_planted_bug_is_found(plant: Plant, family: Family, seeds: range, signs: set[str]) -> None:
    seed, wrongs = first_caught(plant, family, seeds)

    assert any(wrong.split()[0] in signs for wrong in wrongs), wrongs
    assert simulate(seed, nullcontext, family).wrongs == [], "found also without the bug"


def test_a_plant_leaves_nothing_behind() -> None:
    before = simulate(0).digest

    for plant in plants.ALL:
        with plant():
            pass

    assert simulate(0).digest == before
