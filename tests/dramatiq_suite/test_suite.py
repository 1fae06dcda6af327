"""Runs the tests of the dramatiq that is installed, as its authors wrote them, with our broker and our results.

Of its tests for RabbitMQ, those that only use what every broker has. Left out are tests of its other brokers' insides.
"""

import os
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.client.styles import nodes

pytest.importorskip("dramatiq")

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OF_OTHERS = (
    "declar",
    "deleted",
    "unknown_messages",
    "failure",
    "failures",
    "retry_limits",
    "rejected",
    "lookup_options",
)
FILES = ("test_results.py", "test_composition.py", "test_callbacks.py", "test_rabbitmq.py")
SECONDS_MAX = 300.0


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """dramatiq's tests, with our fixtures."""
    place = tmp_path_factory.mktemp("dramatiq")
    wanted = f"dramatiq=={version('dramatiq')}"
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", wanted]
    got = subprocess.run([*download, "--dest", str(place)], capture_output=True, text=True, timeout=SECONDS_MAX)
    if got.returncode:
        pytest.skip(f"the source of {wanted} cannot be had: {got.stderr.strip()[-200:]}")
    (archive,) = place.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(place, filter="data")
    (source,) = place.glob("dramatiq-*/tests")
    tests = place / "tests"
    source.rename(tests)
    (tests / "__init__.py").touch()
    shutil.copy(HERE / "suite_common.py", tests / "common.py")
    shutil.copy(HERE / "suite_conftest.py", tests / "conftest.py")
    return place


def test_its_own_tests_pass_over_this_broker(suite: Path) -> None:
    left_out = " and ".join(f"not {name}" for name in OF_OTHERS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", left_out]
    with nodes() as mesh:
        done = subprocess.run(
            [*command, "-o", "addopts=", *(f"tests/{name}" for name in FILES)],
            cwd=suite,
            env={**os.environ, "QMQ_AT": str(mesh.addresses[0]), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )

    assert done.returncode == 0, done.stdout[-5000:]
    assert int(done.stdout.split(" passed")[0].split()[-1].lstrip(",")) >= 40, done.stdout[-500:]
