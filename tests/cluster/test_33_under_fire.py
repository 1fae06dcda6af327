"""A short run of `make nemesis`: whatever is done to the nodes for some seconds, nothing is lost or doubled.

The seed is printed and QMQ_CLUSTER_SEED draws the same faults again; the page of a failed run lies in its folder.
"""

import os
import random
from pathlib import Path

import pytest

from tests.nemesis.run import FANOUT, NAMED, QUEUE, run

SECONDS = 12.0
RATE = 25.0


@pytest.mark.timeout(240)
def test_a_mesh_under_fire_loses_and_doubles_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("QMQ_CLUSTER_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"QMQ_CLUSTER_SEED={seed}")

    result = run(tmp_path, seconds=SECONDS, seed=seed, rate=RATE)

    page = tmp_path / "nemesis.html"
    page.write_text(result.html, "utf-8")
    assert not result.wrongs, f"{result.wrongs}; see {page}"
    assert result.history.harms
    assert {row.destination for row in result.rows} == {FANOUT, QUEUE, NAMED}
