"""A pytest plugin that puts the bug named by QMQ_PLANT into the product: for bugs that a test finds and no seed.

The order of tasks is always the same, because some of these bugs need a certain one to show.
"""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.simulation.determinism import seeded_scheduler
from tests.simulation.plants.registry import PLANTS, Planted

SEED = 1

FAILED = 1
"""What pytest says when tests ran and some of them failed."""


@pytest.fixture(autouse=True)
def _planted() -> Iterator[None]:
    with PLANTS[os.environ["QMQ_PLANT"]].put_in(), seeded_scheduler(SEED):
        yield


def is_found(planted: Planted) -> bool:
    """Whether the test that is named fails with the bug in. That it passes without is for the other tests to say."""
    command = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", __name__, planted.found_by]
    environment = os.environ | {"QMQ_PLANT": planted.name}
    run = subprocess.run([sys.executable, *command], env=environment, capture_output=True, check=False)
    return run.returncode == FAILED and b" failed" in run.stdout
