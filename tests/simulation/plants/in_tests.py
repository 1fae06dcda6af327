"""A pytest plugin that puts the bug named by QMQ_PLANT into the product: for bugs that a test finds and no seed.

The order of tasks is drawn from a seed, because some of these bugs need a certain one to show.
"""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.simulation.determinism import seeded_scheduler
from tests.simulation.plants.registry import PLANTS, Planted

SEEDS = (1, 2, 3)
"""Orders of tasks that are tried, one after the other."""

FAILED = 1
"""What pytest says when tests ran and some of them failed."""


@pytest.fixture(autouse=True)
def _planted() -> Iterator[None]:
    with PLANTS[os.environ["QMQ_PLANT"]].put_in(), seeded_scheduler(int(os.environ["QMQ_PLANT_SEED"])):
        yield


def is_found(planted: Planted) -> bool:
    """Whether the test that is named fails with the bug in. That it passes without is for the other tests to say."""
    command = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", __name__, planted.found_by]
    for seed in SEEDS:
        environment = os.environ | {"QMQ_PLANT": planted.name, "QMQ_PLANT_SEED": str(seed)}
        run = subprocess.run([sys.executable, *command], env=environment, capture_output=True, check=False)
        if run.returncode == FAILED and b" failed" in run.stdout:
            return True
    return False
