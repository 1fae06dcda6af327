"""I20: one seed, one trace. Run in two processes whose sets and dicts of strings are ordered differently."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
