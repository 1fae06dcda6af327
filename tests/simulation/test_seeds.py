"""The seeds of every commit. QMQ_SEEDS (40) says how many, QMQ_FIRST_SEED (0) from where.

Seeds are dealt out in chunks, so that xdist can share them between workers; a failing one is printed with its plan and
the end of its trace, and `python -m tests.simulation --seeds 1 --start N` shows it again.
"""

import os

import pytest

from tests.simulation.plan import Family, draw_plan
from tests.simulation.run import simulate

CHUNK = 5
SEEDS = int(os.environ.get("QMQ_SEEDS", "40"))
GATEWAY_SEEDS = max(2, SEEDS // 15)
FIRST_SEED = int(os.environ.get("QMQ_FIRST_SEED", "0"))
CHUNKS = [
    range(start, min(start + CHUNK, FIRST_SEED + SEEDS)) for start in range(FIRST_SEED, FIRST_SEED + SEEDS, CHUNK)
]

pytestmark = pytest.mark.simulation


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seeds", CHUNKS, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_a_mesh_keeps_its_promises_whatever_goes_wrong(seeds: range) -> None:
    reports = [simulate(seed) for seed in seeds]

    failed = [report for report in reports if report.wrongs]
    assert not failed, "\n\n".join(map(str, failed))
    assert all(report.receipted for report in reports), "a simulation in which nothing happens proves nothing"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + GATEWAY_SEEDS))
def test_clients_of_amqp_and_beanstalkd_are_promised_the_same(seed: int) -> None:
    report = simulate(seed, family=Family.GATEWAYS)

    assert not report.wrongs, str(report)
    assert report.receipted > 50 and report.acks > 20


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + GATEWAY_SEEDS))
def test_a_node_without_a_disk_costs_the_others_no_promise(seed: int) -> None:
    report = simulate(seed, family=Family.MEMORY)

    assert not report.wrongs, str(report)
    assert report.receipted > 20


def test_a_plan_is_drawn_from_its_seed_alone_and_differs_from_others() -> None:
    plans = [str(draw_plan(seed)) for seed in range(50)]

    assert plans == [str(draw_plan(seed)) for seed in range(50)]
    assert len(set(plans)) == 50
