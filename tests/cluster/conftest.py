"""The mesh that each chapter works on, and what the nodes logged beside every failure.

A chapter is a file; its nodes live as long as it does. Each of its tests takes `mesh`, which is healthy when the test
begins, whatever the one before did to it. What happened before stays in the nodes' logs on purpose: a mesh with a past
is the usual kind.
"""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from ..support.cluster_mesh import Cluster

HERE = Path(__file__).parent
CLUSTER = pytest.StashKey[Cluster]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes a, b, c. A chapter that needs others has a fixture of the same name."""
    with Cluster(tmp_path_factory.mktemp("three")) as made:
        yield made


@pytest.fixture
def mesh(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The chapter's mesh, healthy."""
    request.node.stash[CLUSTER] = cluster
    cluster.make_healthy()
    yield cluster
    cluster.close_clients()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    cluster = item.stash.get(CLUSTER, None)
    if cluster is not None and report.failed:
        for name, text in cluster.log_tails():
            report.sections.append((f"node {name}: the end of its log", text))
    return report
