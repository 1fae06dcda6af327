"""Seeds in which operators are at work: a node joins and one is retired, in the midst of crashes and cuts."""

import os

import pytest

from tests.simulation.plan import Family
from tests.simulation.run import simulate

CHUNK = 5
SEEDS = int(os.environ.get("QMQ_SEEDS", "40")) // 10
CHUNKS = [range(start, min(start + CHUNK, SEEDS)) for start in range(0, SEEDS, CHUNK)]

pytestmark = pytest.mark.simulation


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seeds", CHUNKS, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_a_mesh_keeps_its_promises_while_its_members_change(seeds: range) -> None:
    reports = [simulate(seed, family=Family.CHANGES) for seed in seeds]

    failed = [report for report in reports if report.wrongs]
    assert not failed, "\n\n".join(map(str, failed))
    assert all(report.receipted for report in reports), "a simulation in which nothing happens proves nothing"
