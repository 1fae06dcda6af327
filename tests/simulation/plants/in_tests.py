"""A pytest plugin that installs the seeded bug named by QMQ_PLANT, for bugs that a test finds and no seed does.

The order of tasks is drawn from a seed, because some of these bugs need a certain one to show.
"""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.simulation.determinism import seeded_scheduler
from tests.simulation.plants.registry import SEEDED_BUGS, SeededBug

SEEDS = (1, 2, 3)
"""Orders of tasks that are tried, one after the other."""

FAILED = 1
"""What pytest says when tests ran and some of them failed."""


@pytest.fixture(autouse=True)
def _planted() -> Iterator[None]:
    with SEEDED_BUGS[os.environ["QMQ_PLANT"]].install(), seeded_scheduler(int(os.environ["QMQ_PLANT_SEED"])):
        yield


def is_found(bug: SeededBug) -> bool:
    """Whether its test fails with the bug. Other runs show that the test passes without it."""
    command = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", __name__, bug.found_by]
    for seed in SEEDS:
        environment = os.environ | {"QMQ_PLANT": bug.name, "QMQ_PLANT_SEED": str(seed)}
        run = subprocess.run([sys.executable, *command], env=environment, capture_output=True, check=False)
        if run.returncode == FAILED and b" failed" in run.stdout:
            return True
    return False
