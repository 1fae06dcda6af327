"""For all tests: signals are what they are in a terminal, and long tests come first."""

import signal
from pathlib import Path

import pytest

HERE = Path(__file__).parent

LONG = (
    "simulation/test_seeds.py",
    "simulation/test_members.py",
    "simulation/test_disk_troubles.py",
    "simulation/test_determinism.py",
    "simulation/test_plants.py",
    "simulation/test_shrink.py",
)
"""Files whose tests take longest, in the order in which they begin. The short ones are left for the end, so that all
workers of a run finish at about the same time."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a script: what tests interrupt, processes of theirs too, would not hear of it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {HERE / name: place for place, name in enumerate(LONG)}
    missing = [str(path) for path in places if not path.exists()]
    assert not missing, f"LONG in {__file__} names files that do not exist: {missing}"
    items.sort(key=lambda item: places.get(item.path, len(places)))
