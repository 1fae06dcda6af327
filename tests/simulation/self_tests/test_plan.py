"""What a seed draws, and what is said about many of them."""

import json
from pathlib import Path

import pytest

from tests.simulation.faults import NEMESES
from tests.simulation.plan import SHARES, Family, draw_plan
from tests.simulation.reports.results import Results
from tests.simulation.reports.summary import Summary
from tests.simulation.run import Report


def test_every_family_draws_from_faults_that_exist_and_every_fault_is_drawn() -> None:
    drawn = {name for family in Family for name in family.value}

    assert drawn == set(NEMESES)


def test_every_family_has_a_share_of_the_seeds_and_a_fifth_of_them_is_quiet() -> None:
    assert set(SHARES) == set(Family)
    assert SHARES[Family.NONE] * 5 == sum(SHARES.values())


@pytest.mark.parametrize("seed", range(30))
def test_faults_that_only_a_minority_bears_meet_fewer_than_half_of_the_nodes(seed: int) -> None:
    plan = draw_plan(seed, Family.DAMAGE)

    hit = {fault.node for fault in plan.faults if NEMESES[fault.name].minority}

    assert len(hit) < len(plan.nodes) / 2


@pytest.mark.parametrize("seed", range(30))
def test_where_everything_is_mixed_only_a_minority_of_clients_loses_anything(seed: int) -> None:
    plan = draw_plan(seed, Family.ALL)

    hit = {fault.node for fault in plan.faults if NEMESES[fault.name].loses_disk}

    assert hit <= set(plan.founders) and len(hit) < len(plan.founders) / 2
    assert plan.newcomer or not plan.count("join", "retire")


def test_a_third_of_the_seeds_has_five_nodes_and_a_third_mixes_everything_also_in_one_mesh() -> None:
    plans = [draw_plan(seed) for seed in range(600)]
    five = {plan.seed for plan in plans if len(plan.nodes) == 5}
    mixed = {plan.seed for plan in plans if plan.family is Family.ALL}

    # The last one needs a node without a disk.
    assert set(Family.ALL.value) == set(NEMESES) - {"wipe with memory"}
    assert min(len(five), len(mixed)) > 180
    assert len(five & mixed) > 50


def test_a_size_that_is_asked_for_is_drawn_and_shown_by_the_command_that_replays() -> None:
    plan = draw_plan(5, Family.ALL, size=5)

    assert len(plan.nodes) == 5
    assert "--nodes 5" in plan.replay and "--nodes" not in draw_plan(5, Family.ALL).replay


@pytest.mark.parametrize("seed", range(30))
def test_the_core_is_a_majority_and_only_of_meshes_with_faults(seed: int) -> None:
    plan = draw_plan(seed)

    assert not plan.core or len(plan.core) > len(plan.nodes) / 2
    assert not plan.core or plan.faults
    assert draw_plan(seed, Family.NONE).quiet


def test_the_summary_counts_by_family_and_names_the_seeds_that_failed() -> None:
    summary = Summary()
    summary.add(Report(7, draw_plan(7, Family.CUTS), sent=10, receipted=9))
    summary.add(Report(8, draw_plan(8, Family.CUTS), sent=5, wrongs=["I1 log: lost"]))
    summary.add(Report(9, draw_plan(9, Family.NONE), sent=1))

    table = summary.table(seconds=6.0)
    document = json.loads(summary.json(seconds=6.0))

    assert "| cuts | 2 |" in table and "| none | 1 |" in table and "| together | 3 |" in table
    assert "| edge ACKs | given again | quorum ACKs | given again |" in table
    assert "Failing seeds: 8." in table
    assert document["all"]["sent"] == 16
    assert document["families"]["cuts"]["failed"] == 1
    assert document["failed"] == [8]


def test_a_run_that_was_stopped_knows_what_its_seeds_showed(tmp_path: Path) -> None:
    results = Results(tmp_path / "kept")
    assert list(results) == []
    good = Report(7, draw_plan(7, Family.CUTS), digest="d", sent=10, receipted=9, takeovers=2, settled_seconds=1.5)
    bad = Report(8, draw_plan(8), wrongs=["I1 log: lost"])

    results.add(good)
    results.add(bad)

    assert list(Results(tmp_path / "kept")) == [good, bad]
