"""One run: the mesh starts, clients work, faults come one after the other, all is healed, and the history is judged."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from tests.nemesis.checker import Row, judge, missing, wrongs
from tests.nemesis.faults import Fire
from tests.nemesis.history import History
from tests.nemesis.page import page
from tests.nemesis.workers import Names, PythonClient, StompConsumer, StompFollower, StompPublisher
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually

FANOUT, QUEUE, NAMED = "/fanout/nemesis", "/queue/nemesis", "/fanout/named"
"""The last is the Python client's: what is in it stands there once."""

QUIET_SECONDS_MAX = 2.5
"""Between two faults, at most."""

DRAIN_SECONDS = 120.0
"""After the last fault, until everything that is receipted has been told."""


@dataclass(frozen=True, slots=True)
class Result:
    """`wrongs` is empty when every promise was kept."""

    history: History
    rows: list[Row]
    wrongs: list[str]
    html: str


def run(folder: Path, *, seconds: float, seed: int, rate: float = 60.0) -> Result:
    """Fire at three nodes for `seconds`, with `rate` messages a second of each of four publishers."""
    history = History()
    chance = random.Random(seed)
    with Cluster(folder, cuttable=combinations("abc", 2)) as mesh:
        mesh.make_healthy()
        publishers, readers = _workers(mesh, history, chance, rate)
        for worker in (*publishers, *readers):
            worker.start()
        began = time.monotonic()
        try:
            fire = Fire(mesh, history, chance, lambda held: _hold(publishers, held))
            while time.monotonic() - began < seconds:
                time.sleep(chance.uniform(0.3, QUIET_SECONDS_MAX))
                fire.one()
            mesh.make_healthy()
            for publisher in publishers:
                publisher.enough.set()
            _wait_until_idle(publishers)
            followers = ["follower 1", "follower 2"]
            _wait_until_told(history, {FANOUT: followers, QUEUE: [f"consumers of {QUEUE}"], NAMED: [PYTHON]})
            lasted = history.now
        finally:
            for worker in (*publishers, *readers):
                worker.stopping.set()
        for worker in (*publishers, *readers):
            worker.finish()
        names = mesh.names
    rows = judge(history)
    command = f"python -m tests.nemesis --minutes {seconds / 60:g} --seed {seed}"
    return Result(history, rows, wrongs(rows), page(history, rows, names, lasted, command))


PYTHON = "the Python client"

Sender = StompPublisher | PythonClient


def _workers(
    mesh: Cluster, history: History, chance: random.Random, rate: float
) -> tuple[list[Sender], list[StompConsumer | StompFollower]]:
    names = Names({mesh.address(name): name for name in mesh.names})

    def anywhere() -> list[tuple[str, int]]:
        return [mesh.address(name) for name in chance.sample(mesh.names, len(mesh.names))]

    publishers: list[Sender] = [
        StompPublisher(history, names, anywhere(), FANOUT, "fanout-1", rate),
        StompPublisher(history, names, anywhere(), QUEUE, "queue-1", rate),
        StompPublisher(history, names, anywhere(), QUEUE, "queue-2", rate),
        PythonClient(history, anywhere(), NAMED, "named-1", rate),
    ]
    readers: list[StompConsumer | StompFollower] = [
        StompFollower(history, names, anywhere(), FANOUT, f"follower {number}") for number in (1, 2)
    ]
    readers += [StompConsumer(history, names, mesh.address(name), QUEUE) for name in mesh.names]
    return publishers, readers


def _hold(publishers: Sequence[Sender], held: bool) -> None:
    """Let publishers begin nothing, and wait until all that they have begun is receipted; or let them go on."""
    for publisher in publishers:
        if held:
            publisher.may_begin.clear()
        else:
            publisher.may_begin.set()
    if held:
        _wait_until_idle(publishers)


def _wait_until_idle(publishers: Sequence[Sender]) -> None:
    eventually(
        lambda: all(publisher.is_idle or publisher.failure for publisher in publishers),
        "publishers wait for receipts in vain",
        DRAIN_SECONDS,
    )


def _wait_until_told(history: History, readers: dict[str, list[str]]) -> None:
    """Until everything receipted is told, or for as long as there is hope; the checker says what is missing then."""
    deadline = time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < deadline and any(missing(history, name, who) for name, who in readers.items()):
        time.sleep(0.2)
