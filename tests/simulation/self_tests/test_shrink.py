"""Delta debugging: what is left of a script still fails, and needs everything that is left."""

from collections.abc import Sequence
from itertools import count

import pytest

from tests.simulation.plan import draw_plan
from tests.simulation.plants import SEEDED_BUGS
from tests.simulation.reports.shrink import minimal, shrink
from tests.simulation.run import simulate


@pytest.mark.parametrize("needed", [set(), {0}, {19}, {3, 11}, {0, 1, 2, 17, 19}, set(range(20))])
def test_what_is_left_is_what_the_failure_needs(needed: set[int]) -> None:
    def fails(numbers: Sequence[int]) -> bool:
        return needed <= set(numbers)

    assert minimal(range(20), fails, runs_max=1000) == sorted(needed)


def test_shrinking_stops_at_its_bound_with_something_that_fails() -> None:
    tried: list[Sequence[int]] = []

    def fails(numbers: Sequence[int]) -> bool:
        tried.append(numbers)
        return {5, 50, 95} <= set(numbers)

    left = minimal(range(100), fails, runs_max=7)

    assert len(tried) == 7
    assert {5, 50, 95} <= set(left)


@pytest.mark.seeded_bug
@pytest.mark.simulation
@pytest.mark.timeout(300)
def test_a_failing_seed_shrinks_to_a_part_of_its_script_that_its_command_replays() -> None:
    bug = SEEDED_BUGS["sequences reused"]
    assert bug.seed is not None
    seeds = range(bug.seed, bug.seed + 20)
    long = (seed for seed in seeds if len(draw_plan(seed, bug.family).faults) > 3)
    whole = next(r for r in (simulate(seed, bug.install, bug.family) for seed in long) if r.wrongs)

    small = shrink(whole, bug.install)

    assert small.wrongs
    assert len(small.plan.kept) < len(whole.plan.kept)
    assert f"--start {small.seed} --family wipes --faults " in str(small)
    assert simulate(small.seed, bug.install, bug.family, small.plan.kept).digest == small.digest


def test_a_part_of_a_script_keeps_the_rest_of_the_plan() -> None:
    seed = next(seed for seed in count() if len(draw_plan(seed).faults) > 3)
    whole = draw_plan(seed)
    part = draw_plan(seed, kept=[1, 3])

    assert part.script == (whole.faults[1], whole.faults[3])
    assert (part.nodes, part.seconds, part.journal_keep_bytes) == (whole.nodes, whole.seconds, whole.journal_keep_bytes)
    assert "--faults 1,3" in part.replay
    assert "--faults" not in whole.replay
