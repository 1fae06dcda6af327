"""Runs the tests of the dramatiq that is installed, as its authors wrote them, with our broker and our results.

Of its tests for RabbitMQ, those that only use what every broker has: those of pika, and of queues of RabbitMQ, are out.
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
LEFT_OUT = (
    "test_results.py::test_messages_without_actor_not_crashing_lookup_options",  # with a Redis
    *(
        f"test_rabbitmq.py::test_rabbitmq_{name}"
        for name in (
            "actors_can_have_retry_limits",  # counts in queues of RabbitMQ
            "messages_belonging_to_missing_actors_are_rejected",
            "messages_that_failed_to_decode_are_rejected",
            "broker_stops_retrying_declaring_queues_when_max_attempts_reached",
            "broker_retries_declaring_queues_when_connection_related_errors_occur",
            "broker_consuming_messages_re_declares_queues_when_declared_queue_disappears",
            "broker_enqueueing_message_re_declares_queues_when_declared_queue_disappears",
            "broker_reconnects_after_enqueue_failure",  # these close what pika has opened
            "workers_handle_rabbit_failures_gracefully",
            "connections_can_be_deleted_multiple_times",
            "channels_can_be_deleted_multiple_times",
            "consumers_ignore_unknown_messages_in_ack_and_nack",
        )
    ),
)
"""They use insides of another broker."""
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
        files.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        files.extractall(place)
    (source,) = place.glob("dramatiq-*/tests")
    tests = place / "tests"
    source.rename(tests)
    (tests / "__init__.py").touch()
    shutil.copy(HERE / "suite_common.py", tests / "common.py")
    shutil.copy(HERE / "suite_conftest.py", tests / "conftest.py")
    return place


def test_its_own_tests_pass_over_this_broker(suite: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    left_out = [f"--deselect=tests/{name}" for name in LEFT_OUT]
    with nodes() as mesh:
        done = subprocess.run(
            [*command, *left_out, "-o", "addopts=", *(f"tests/{name}" for name in FILES)],
            cwd=suite,
            env={**os.environ, "QMQ_AT": str(mesh.addresses[0]), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )

    assert done.returncode == 0, done.stdout[-5000:]
    assert int(done.stdout.split(" passed")[0].split()[-1].lstrip(",")) >= 40, done.stdout[-500:]
