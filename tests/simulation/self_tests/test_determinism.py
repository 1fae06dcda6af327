"""I20: one seed, one trace. Run in two processes whose sets and dicts of strings are ordered differently."""

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.simulation import determinism
from tests.simulation.plan import Family
from tests.simulation.run import simulate

ROOT = Path(__file__).parents[3]
SEEDS = 3

pytestmark = pytest.mark.simulation


def digests(hash_seed: str) -> list[str]:
    """The trace hashes of the first seeds, as another process finds them."""
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.simulation", "--seeds", str(SEEDS), "--digests"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250)
    return [line for line in done.stdout.splitlines() if line[:1].isdigit() and len(line.split()) == 2]


@pytest.mark.timeout(300)
def test_a_seed_has_one_trace_in_every_process() -> None:
    first = digests("1")

    assert len(first) == SEEDS
    assert len(set(first)) == SEEDS
    assert digests("2") == first


@pytest.mark.timeout(300)
@pytest.mark.parametrize("family", [Family.ALL, Family.OPERATORS])
def test_the_loop_of_trio_runs_a_seed_as_that_of_simulations_does(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = simulate(4, family=family, size=3)
    monkeypatch.setattr(determinism, "short_rounds", nullcontext)

    assert simulate(4, family=family, size=3).digest == short.digest
    assert not short.wrongs
