"""The fixtures `qmq_node` and `qmq_mesh` for pytest, also under pytest-trio and anyio.

A test that is `async` gets what `qmq.testing.node()` and `mesh(3)` give, another one the blocking style. Each test has
nodes of its own, whose data and logs are in its `tmp_path`.
"""

from collections.abc import Iterator
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def qmq_node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A node of this test."""
    from qmq.testing import awaited, local

    with local.node(folder=tmp_path) as made:
        yield awaited.AwaitedNode(made) if iscoroutinefunction(request.function) else made


@pytest.fixture
def qmq_mesh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Three linked nodes a, b and c of this test."""
    from qmq.testing import awaited, local

    with local.mesh(3, folder=tmp_path) as made:
        yield awaited.AwaitedMesh(made) if iscoroutinefunction(request.function) else made
