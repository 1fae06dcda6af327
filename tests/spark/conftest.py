"""Tests of the data pipeline (`make spark-test`). Most need only pyarrow; those that need Spark share one session."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ..support.cluster_mesh import Cluster
from .object_store import SECRET, StoreProcess
from .stub import Stub

if find_spec("pyarrow") is None:
    # The extra qmq[spark] is not installed here.
    collect_ignore_glob = ["*/test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            # Spark and its Python workers leave sockets to the collector.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
            item.add_marker(pytest.mark.spark)


@pytest.fixture
def stub() -> Iterator[Stub]:
    """A node that takes everything."""
    made = Stub([])
    yield made
    made.close()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreProcess]:
    """An object store, and what opens it."""
    with opened(StoreProcess(), monkeypatch) as process:
        yield process


@pytest.fixture(params=["ours", "moto"])
def any_store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreProcess]:
    """The same, and that of moto: for tests that set no faults."""
    kind = ["moto"] if request.param == "moto" else []
    with opened(StoreProcess(*kind), monkeypatch) as process:
        yield process


@contextmanager
def opened(store: StoreProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreProcess]:
    with store:
        said = {
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "eu-west-1",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ENDPOINT_URL": store.address,
        }
        for name, value in said.items():
            monkeypatch.setenv(name, value)
        yield store


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long `rounds` has waited: no time passes but in its pauses."""
    from qmq.spark.reading import rounds

    waited: list[float] = []
    clock = SimpleNamespace(sleep=waited.append, monotonic=lambda: sum(waited))
    monkeypatch.setattr(rounds, "time", clock)
    monkeypatch.setattr(rounds, "random", SimpleNamespace(uniform=lambda _, most: most))
    return waited


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Cluster]:
    """Three real nodes."""
    (tmp_path / "mesh").mkdir()
    with Cluster(tmp_path / "mesh") as made:
        made.make_healthy()
        yield made


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One Spark on two threads of this machine."""
    from pyspark.sql import SparkSession

    root = str(Path(__file__).parents[2])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Workers import qmq from this checkout, as the tests do.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    made = (
        SparkSession.builder.master("local[2]")
        .appName("qmq tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        # For a worker to connect; on a busy machine the usual 15 s are too short.
        .config("spark.python.authenticate.socketTimeout", "120s")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()
