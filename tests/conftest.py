"""For all tests: signals are what they are in a terminal, long tests come first, `--quick` leaves them out, none fails
because the machine is busy, and the tasks of a test run in the same order each time.

Which of several runnable tasks trio runs first is drawn. Here the draw depends on the test's name and on QMQ_ORDER, so
that a test that fails in one order fails again; another number is another order of every test.
"""

import gc
import os
import random
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from trio._core import _run as scheduler
from trio.testing import MockClock

from tests.support.moments import Moments

HERE = Path(__file__).parent

LONG = (
    "simulation/test_seeds.py",
    "simulation/test_members.py",
    "simulation/disk/test_disk_troubles.py",
    "simulation/self_tests/test_determinism.py",
    "simulation/test_plants.py",
    "simulation/self_tests/test_shrink.py",
    "mesh/repair/test_quarantine_restore.py",
    "broker/takeover/test_leases.py",
    "mesh/membership/test_takeover.py",
    "storage/queues/test_postgres_store.py",
    "sessions/delivery/test_selective_dispatch.py",
    "mesh/repair/test_incarnation_gc.py",
    "node/test_queue_mesh.py",
    "admin/test_bulk_chaos.py",
    "settings/definitions/test_definition_chaos.py",
    "admin/test_deletion_chaos.py",
    "mesh/membership/test_adopt_queues.py",
    "mesh/membership/test_clock_check.py",
    "mesh/membership/test_decommission.py",
    "sessions/delivery/test_retained_faults.py",
    "mesh/repair/test_queue_store.py",
    "engine/commit/test_quorum_acks.py",
    "storage/test_rotten_rows.py",
    "broker/test_mesh_of_brokers.py",
    "broker/test_growth.py",
    "broker/queues/paging/test_paging_histories.py",
    "broker/selectors/test_against_reference.py",
    "sessions/clients/test_bounds.py",
    "engine/checkpoint/test_queue_paging.py",
    "sessions/clients/test_draining.py",
    "sessions/clients/test_login_storm.py",
    "sessions/clients/test_memory_budget.py",
    "settings/definitions/test_users_mesh.py",
    "storage/test_queue_stores.py",
    "sessions/clients/test_authentication.py",
    "sessions/clients/test_access.py",
    "storage/test_older_queue_stores.py",
    "sessions/delivery/test_durables_histories.py",
    "sessions/delivery/test_durables_mesh.py",
    "storage/repair/test_fanout_logs.py",
    "settings/definitions/test_queue_lifetimes.py",
    "settings/definitions/test_deleted_queues.py",
    "protocols/beanstalk/codec/test_reader.py",
    "mesh/peers/test_dedup.py",
    "sessions/delivery/test_fairness.py",
    "wire/test_properties.py",
    "mesh/repair/test_lost_ranges.py",
    "settings/definitions/test_definitions_mesh.py",
    "mesh/membership/test_members.py",
    "settings/definitions/test_limits_mesh.py",
    "client/test_styles.py",
    "client/test_page.py",
    "test_dramatiq.py",
    "client/test_durable.py",
    "mesh/repair/test_catch_up.py",
    "replication/protocol/test_frames.py",
    "replication/test_chaos.py",
    "cluster/faults/test_wiped_disk_and_return.py",
    "cluster/clients/test_celery.py",
    "cluster/operations/test_administration.py",
    "cluster/operations/test_backlog_in_postgresql.py",
    "cluster/operations/test_orderly_stop.py",
    "cluster/clients/test_clients_move.py",
    "cluster/operations/test_membership.py",
    "cluster/messaging/test_receipt_levels.py",
    "cluster/operations/test_bad_peers.py",
    "cluster/clients/test_python_client.py",
    "cluster/faults/test_repair.py",
    "cluster/clients/test_amqp_clients.py",
    "cluster/faults/test_all_faults_together.py",
    "cluster/faults/test_ten_thousand_under_kills.py",
    "cluster/pages/test_tutorial.py",
    "cluster/operations/test_tls_links.py",
    "cluster/faults/test_under_fire.py",
    "cluster/operations/test_join.py",
    "cluster/clients/test_openapi.py",
    "cluster/messaging/test_time_and_failure_in_queues.py",
    "cluster/faults/test_takeover.py",
    "cluster/faults/test_shortages.py",
    "cluster/faults/test_quorum_acks.py",
    "cluster/clients/test_beanstalk.py",
)
"""Files whose tests take longest, in the order in which they begin. The short ones are left for the end, so that all
workers of a run finish at about the same time."""

PROCESSES = ("browser", "cli", "cluster", "console", "nemesis", "mutation", "simulation", "spark")
"""Folders whose tests start processes or simulate whole meshes."""

ORDER = os.environ.get("QMQ_ORDER", "0")

# Otherwise Hypothesis fails a test one of whose examples takes 200 ms, or whose first examples take seconds to draw.
# And in the usual order the examples are the same, too.
settings.register_profile("qmq", deadline=None, suppress_health_check=(HealthCheck.too_slow,), derandomize=ORDER == "0")
settings.load_profile("qmq")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a script: what tests interrupt, processes of theirs too, would not hear of it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

_databases: list[sqlite3.Connection] = []
_connect = sqlite3.connect


def _noted(*arguments: Any, **options: Any) -> sqlite3.Connection:
    connection = _connect(*arguments, **options)
    _databases.append(connection)
    return connection


def _is_open(connection: sqlite3.Connection) -> bool:
    try:
        return connection.total_changes >= 0
    except sqlite3.ProgrammingError:
        return False


sqlite3.connect = _noted


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out long tests and those that start processes")


def pytest_report_header() -> str:
    return f"order of tasks: QMQ_ORDER={ORDER} PYTHONHASHSEED={os.environ.get('PYTHONHASHSEED', 'random')}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """None leaves it to pytest's own options."""
    if not config.getoption("quick"):
        return None
    return collection_path in {HERE / name for name in (*LONG, *PROCESSES)} or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {HERE / name: place for place, name in enumerate(LONG)}
    missing = [str(path) for path in places if not path.exists()]
    assert not missing, f"LONG in {__file__} names files that do not exist: {missing}"
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_collection_finish() -> None:
    """From here on the collector passes over some 400,000 objects of pytest's, which all live until the end."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """pytest-trio has trio sort the tasks before it shuffles them."""
    assert isinstance(scheduler._r, random.Random)
    scheduler._r.seed(f"{ORDER}/{item.nodeid}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """What a test leaves open goes to the collector. From Python 3.13 on, that fails whatever test then runs."""
    yield
    left = sum(map(_is_open, _databases))
    _databases.clear()
    # Those of several processes may have something for all tests of a file.
    assert not left or item.path.relative_to(HERE).parts[0] in PROCESSES, f"{left} databases were left open"


@pytest.fixture
def autojump_clock() -> MockClock:
    """As pytest-trio's, and its waits cost what those of the simulation cost: half."""
    return Moments(lambda: None).clock()
