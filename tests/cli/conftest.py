"""What the tests of commands share: running one in this process, and a node for it to talk to."""

import signal
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from qmq.cli import main

from .stub import StubNode

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """Run `qmq` with arguments; `input` is its standard input."""

    def command(*arguments: str, input: bytes | str | None = None) -> Result:
        return CliRunner().invoke(main, list(arguments), input=input)

    return command


@pytest.fixture
def node() -> Iterator[StubNode]:
    with StubNode() as stub:
        yield stub


@pytest.fixture
def hangups() -> Iterator[None]:
    """SIGHUP ends what a test starts, also when the tests themselves were started with `nohup`, which is inherited."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
