"""I20: one seed, one trace, in any process: also in one whose sets and dicts of strings are ordered differently."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.plan import Family
from tests.simulation.run import simulate

ROOT = Path(__file__).parents[3]
SEED, NODES = 4, 3
OTHER_HASHES = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(300)]


@pytest.mark.parametrize("family", [Family.ALL, Family.OPERATORS])
def test_a_seed_has_one_trace_in_every_process(family: Family) -> None:
    environment = os.environ | {"PYTHONHASHSEED": OTHER_HASHES, "PYTHONPATH": str(ROOT)}
    command = f"-m tests.simulation --seeds 1 --digests --start {SEED} --nodes {NODES} --family {family.name.lower()}"

    here = simulate(SEED, family=family, size=NODES)
    there = subprocess.run(
        [sys.executable, *command.split()], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250
    )

    assert f"{SEED} {here.digest}" in there.stdout.splitlines(), there.stdout + there.stderr
    assert not here.wrongs
