"""One run: the mesh starts, clients work, faults begin and end, everything is healed, and the history is checked."""

import math
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from tests.nemesis import faults, losses, members
from tests.nemesis.checker import Row, judge, missing, wrongs
from tests.nemesis.fire import CATCH_UP_SECONDS, FAULTS, Fire
from tests.nemesis.history import History
from tests.nemesis.hostile import Hostile
from tests.nemesis.operator import Operator
from tests.nemesis.page import page
from tests.nemesis.workers import Names, PythonClient, StompConsumer, StompFollower, StompPublisher
from tests.support.cluster_disks import SmallDisks, why_no_disks
from tests.support.cluster_mesh import Cluster
from tests.support.cluster_wait import eventually

FANOUT, THREEFOLD, NAMED = "/fanout/nemesis", "/fanout/threefold", "/fanout/named"
"""The second is receipted when it is on three disks; the third is the Python client's: it stands there once."""
EDGE, GOOD = "/queue/nemesis", "/queue/good"
"""ACKs of the second are receipted at `quorum`."""
GROUPED = "/queue/grouped"
"""Its messages have groups, and its consumers come and go."""
GROUPS = 8

QUEUES = (EDGE, GOOD, GROUPED)

LETTERS = "abcdefgh"
SPARES = 2
"""Nodes that may join."""

TAKEOVER_AFTER_SECONDS = 3.0
"""More than a machine of two cores, busy with all this, lets a node stand still by itself."""
TAKEOVER_SECONDS = TAKEOVER_AFTER_SECONDS + 1.5
"""A node that is silent for so long is taken over, most likely."""

WORK_SECONDS_MAX = 0.25
"""Of a consumer on one message."""

STAY_SECONDS = (1.0, 8.0)
"""Of consumers that go from node to node."""

IDLE_SECONDS = 120.0
"""After the last fault, until everything that was begun is receipted."""
DRAIN_SECONDS = 120.0
"""After that, until everything that is receipted has been told, and nothing waits in queues."""

assert faults and losses and members  # they have put theirs into FAULTS


@dataclass(frozen=True, slots=True)
class Result:
    """`wrongs` is empty when every promise was kept."""

    history: History
    rows: list[Row]
    wrongs: list[str]
    without: str
    """What could not be tried on this machine, and why; "" when everything was."""
    html: str


Sender = StompPublisher | PythonClient
Reader = StompConsumer | StompFollower


def run(
    folder: Path,
    *,
    seconds: float,
    seed: int,
    rate: float = 60.0,
    nodes: int = 3,
    longest: float | None = None,
    only: Sequence[str] = (),
) -> Result:
    """Fire at so many nodes for `seconds`, with `rate` messages a second of each of seven publishers, or half of it.

    `longest` is how many seconds one fault may last, `only` names the faults that are drawn from.
    """
    history = History()
    rng = random.Random(seed)
    names = LETTERS[: nodes + SPARES]
    longest = longest if longest is not None else min(60.0, max(2 * TAKEOVER_SECONDS, seconds / 6))
    without = why_no_disks()
    with _mesh(folder, names, names[:nodes], has_disks=not without) as (mesh, disks):
        mesh.make_healthy()
        publishers, readers, let_in = _workers(mesh, history, rng, rate)
        hostile = Hostile(mesh, random.Random(f"{seed}/hostile"), EDGE, FANOUT)
        operator = Operator(mesh, random.Random(f"{seed}/operator"))
        workers = [*publishers, *readers, hostile, operator]
        for worker in workers:
            worker.start()
        fire = Fire(
            mesh,
            history,
            [fault for fault in FAULTS if not only or fault.name in only],
            seed,
            longest=longest,
            spares=names[nodes:],
            takeover_seconds=TAKEOVER_SECONDS,
            disks=disks,
        )
        fire.on_change.append(let_in)
        try:
            fire.burn(seconds)
            operator.finish()
            mesh.make_healthy(CATCH_UP_SECONDS)
            hostile.finish()
            others = _settle(mesh, history, publishers) + operator.wrongs()
            lasted = history.now
        finally:
            for worker in workers:
                worker.stopping.set()
        for worker in workers:
            try:
                worker.finish()
            except AssertionError as failure:
                # The verdict over the others is worth having.
                others.append(str(failure))
        for name in names:
            history.takeovers[name] = len(re.findall("! CONDITION takeover:", _log(mesh, name)))
    rows = judge(history)
    wrong = wrongs(history, rows, others)
    command = f"python -m tests.nemesis --minutes {seconds / 60:g} --nodes {nodes} --seed {seed}"
    return Result(history, rows, wrong, without, page(history, rows, wrong, names, lasted, command, without))


@contextmanager
def _mesh(folder: Path, names: str, members: str, *, has_disks: bool) -> Iterator[tuple[Cluster, SmallDisks | None]]:
    mesh = Cluster(folder, "eight.toml", members=list(members), cuttable=combinations(names, 2))
    more = f"takeover_after_seconds = {TAKEOVER_AFTER_SECONDS}\n"
    mesh.node_files = {name: text + more for name, text in mesh.node_files.items()}
    with mesh:
        if not has_disks:
            yield mesh, None
            return
        disks = SmallDisks(mesh, names)
        with disks:
            try:
                yield mesh, disks
            finally:
                mesh.fleet.stop_all()  # before their disks go


def _workers(
    mesh: Cluster, history: History, rng: random.Random, rate: float
) -> tuple[list[Sender], list[Reader], Callable[[], None]]:
    """Who sends, who reads, and what lets stock publishers know that nodes have joined or left."""
    names = Names({mesh.address(name): name for name in mesh.fleet.nodes})

    def anywhere() -> list[tuple[str, int]]:
        return [mesh.address(name) for name in rng.sample(mesh.names, len(mesh.names))]

    stock = [
        StompPublisher(history, names, anywhere(), FANOUT, "fanout-1", rate),
        StompPublisher(history, names, anywhere(), THREEFOLD, "three-1", rate / 2, replicas=2),
        StompPublisher(history, names, anywhere(), EDGE, "edge-1", rate),
        StompPublisher(history, names, anywhere(), GOOD, "good-1", rate),
    ]
    for name in ("group-1", "group-2"):
        stock.append(StompPublisher(history, names, anywhere(), GROUPED, name, rate / 2, groups=GROUPS))
    python = PythonClient(history, names, anywhere(), NAMED, "named-1", rate)
    readers: list[Reader] = [
        StompFollower(history, names, anywhere(), fanout, reader) for fanout, reader in _followers()
    ]

    def consumer(queue: str, level: str, addresses: list[tuple[str, int]], *, stays: bool) -> StompConsumer:
        own = random.Random(rng.random())
        return StompConsumer(
            history,
            names,
            addresses,
            queue,
            level,
            work=lambda: own.uniform(0, WORK_SECONDS_MAX),
            stay=lambda: math.inf if stays else own.uniform(*STAY_SECONDS),
        )

    readers += [consumer(EDGE, "edge", [mesh.address(name)], stays=True) for name in mesh.names]
    readers += [consumer(EDGE, "edge", anywhere(), stays=False)]
    readers += [consumer(GOOD, "quorum", anywhere(), stays=False) for _ in range(3)]
    readers += [consumer(GROUPED, "edge", anywhere(), stays=False) for _ in range(4)]

    def let_in() -> None:
        for publisher in stock:
            publisher.addresses = anywhere()

    return [*stock, python], readers, let_in


def _followers() -> list[tuple[str, str]]:
    return [(FANOUT, "follower 1"), (FANOUT, "follower 2"), (THREEFOLD, "follower of three")]


def _settle(mesh: Cluster, history: History, publishers: Sequence[Sender]) -> list[str]:
    """Until all is receipted, told and equal, or for as long as there is hope; what never became so."""
    for publisher in publishers:
        publisher.enough.set()
    eventually(
        lambda: all(publisher.is_idle or publisher.failure for publisher in publishers),
        lambda: f"publishers wait for receipts in vain: {[publisher.state for publisher in publishers]}",
        IDLE_SECONDS,
    )
    readers: dict[str, list[str]] = {}
    for destination, reader in (*_followers(), *((queue, f"consumers of {queue}") for queue in QUEUES)):
        readers.setdefault(destination, []).append(reader)
    readers[NAMED] = [PythonClient.READER]
    deadline = time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < deadline and any(missing(history, name, who) for name, who in readers.items()):
        time.sleep(0.2)  # the checker says what is missing then
    found: list[str] = []
    try:
        eventually(lambda: not _waiting(mesh), lambda: f"waits in queues for ever: {_waiting(mesh)}", DRAIN_SECONDS)
        mesh.wait_until_same()
    except AssertionError as error:
        found.append(str(error))
    return found


def _waiting(mesh: Cluster) -> dict[tuple[str, str], int]:
    """Node and queue → how many unsettled messages; -1 for a node that does not answer."""
    depths = {(name, queue): mesh.depth(name, queue) for name in mesh.names for queue in QUEUES}
    return {place: depth for place, depth in depths.items() if depth}


def _log(mesh: Cluster, name: str) -> str:
    try:
        return mesh.fleet.nodes[name].log.read_text("utf-8", "replace")
    except FileNotFoundError:  # it never joined
        return ""
