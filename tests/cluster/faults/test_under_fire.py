"""A short run of `make nemesis`: whatever is done to nodes for some seconds, nothing is lost, doubled, or handed out
after its ACK was confirmed at `quorum`, and groups are in order.

The seed is printed and QMQ_CLUSTER_SEED draws the same faults again; the page of a failed run lies in its folder.
"""

import os
import random
from pathlib import Path

import pytest

from tests.nemesis.run import EDGE, FANOUT, GOOD, GROUPED, NAMED, THREEFOLD, run

SECONDS = 12.0
LONGEST = 6.0
"""Seconds of one fault: some lead to a takeover."""
RATE = 25.0


@pytest.mark.timeout(300)
def test_a_mesh_under_fire_keeps_its_promises(tmp_path: Path) -> None:
    seed = int(os.environ.get("QMQ_CLUSTER_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"QMQ_CLUSTER_SEED={seed}")

    result = run(tmp_path, seconds=SECONDS, seed=seed, rate=RATE, longest=LONGEST)

    page = tmp_path / "nemesis.html"
    page.write_text(result.html, "utf-8")
    print(result.without)
    assert not result.wrongs, f"{result.wrongs}; see {page}"
    assert result.history.harms
    rows = {row.destination: row for row in result.rows}
    assert set(rows) == {FANOUT, THREEFOLD, NAMED, EDGE, GOOD, GROUPED}
    assert rows[EDGE].acked_edge
    assert rows[GOOD].acked_for_good
