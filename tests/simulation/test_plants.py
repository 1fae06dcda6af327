"""Seeded bugs in the product must be found, and a seed that finds one must be clean without it.

Every commit searches for the bugs that are found soon, each from a seed that finds it. `make plants`, which runs at
night, searches for all of them from the first seed.
"""

import warnings

import pytest

from tests.simulation.plants import SEEDED_BUGS, SeededBug
from tests.simulation.plants.in_tests import is_found
from tests.simulation.plants.registry import FEWEST_NODES
from tests.simulation.reports.find import find
from tests.simulation.run import simulate

SEEDS = 60
"""Seeds per bug and commit. The first one found the bug once, but what a seed draws changes."""

pytestmark = [
    pytest.mark.seeded_bug,
    pytest.mark.simulation,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("default:.* is stale"),
]


def by_first_seed() -> list[list[SeededBug]]:
    """The bugs that are searched for from the same seed are one test: without a bug that seed is run once for all."""
    found: dict[object, list[SeededBug]] = {}
    for bug in SEEDED_BUGS.values():
        if bug.seed is not None:
            found.setdefault((bug.family, bug.seed, bug.nodes), []).append(bug)
    return list(found.values())


def verdict(bug: SeededBug) -> str:
    """Why it does not count as found; "" if it does."""
    assert bug.seed is not None
    found = find(bug, range(bug.seed, bug.seed + SEEDS), bug.nodes)
    if found is None:
        return f"none of the {SEEDS} seeds from {bug.seed} found it"
    if not found.is_fair:
        return f"found also without the bug: {found.clean.wrongs}"
    if found.tried > 1:
        # No failure: what other seeds draw changes with each order of tasks.
        stale = f"{bug.name}: seed {bug.seed} is stale; write seed={found.report.seed}, which finds it now"
        warnings.warn(stale, stacklevel=1)
    return ""


@pytest.mark.parametrize("bugs", by_first_seed(), ids=lambda bugs: ", ".join(bug.name for bug in bugs))
def test_seeded_bugs_are_found(bugs: list[SeededBug]) -> None:
    verdicts = {bug.name: verdict(bug) for bug in bugs}

    assert not any(verdicts.values()), verdicts


def test_a_seeded_bug_leaves_nothing_behind() -> None:
    before = simulate(0, size=FEWEST_NODES).digest

    for bug in SEEDED_BUGS.values():
        with bug.install():
            pass

    assert simulate(0, size=FEWEST_NODES).digest == before


@pytest.mark.parametrize("bug", [p for p in SEEDED_BUGS.values() if p.found_by], ids=lambda p: p.name)
def test_what_no_seed_finds_is_found_by_the_test_that_is_named(bug: SeededBug) -> None:
    assert bug.seed is None

    assert is_found(bug), f"with {bug.name}, {bug.found_by} passes"
