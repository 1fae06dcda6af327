"""One PostgreSQL server for all tests of a process."""

from collections.abc import Iterator

import pytest

from tests.support.postgres import Server, running_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    with running_server() as server:
        yield server
