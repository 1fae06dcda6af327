"""What is done to real nodes: each fault does its harm, waits, and undoes it. Drawn by a seed, one after the other.

A disk is taken away only when publishers stand still and all nodes hold the same, because a receipt that came while
peers were away promises one disk, and says so.
"""

import contextlib
import os
import random
import resource
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from tests.nemesis.history import History
from tests.support.cluster_mesh import NODE_FILE, Cluster
from tests.support.cluster_wait import eventually

FULL = '\n[storage]\ndisk_reserve_bytes = "900TiB"\n'
"""A node of which so much must stay free has no room for messages."""


class Sender(Protocol):
    """What a fault asks of a publisher."""

    is_idle: bool


class Fire:
    """The mesh under fire. `hold` lets publishers pause until all that they have begun is receipted."""

    def __init__(self, mesh: Cluster, history: History, chance: random.Random, hold: Callable[[bool], None]) -> None:
        self.mesh = mesh
        self.history = history
        self.chance = chance
        self.hold = hold

    def one(self) -> None:
        """Draw a fault and do it."""
        fault = self.chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        fault(self)

    def node(self) -> str:
        return self.chance.choice(self.mesh.names)

    def last(self, seconds_min: float, seconds_max: float) -> None:
        time.sleep(self.chance.uniform(seconds_min, seconds_max))


def kill(fire: Fire) -> None:
    """kill -9, and a new life a moment later."""
    name = fire.node()
    with fire.history.harm("kill -9", name):
        fire.mesh.kill(name)
        fire.last(0.2, 4)
        fire.mesh.start(name)


def kill_all(fire: Fire) -> None:
    """kill -9 of every node at once."""
    with fire.history.harm("kill -9 of all", *fire.mesh.names):
        fire.mesh.kill(*fire.mesh.names)
        fire.last(0.2, 1)
        fire.mesh.start(*fire.mesh.names)


def pause(fire: Fire) -> None:
    """SIGSTOP, and SIGCONT before or after the others have noticed."""
    name = fire.node()
    with fire.history.harm("SIGSTOP", name):
        fire.mesh.pause(name)
        fire.last(0.3, 6)
        fire.mesh.resume(name)


def cut(fire: Fire) -> None:
    """Nothing passes between two nodes; clients reach both."""
    one, other = fire.chance.sample(fire.mesh.names, 2)
    with fire.history.harm("cut", one, other):
        fire.mesh.cut(one, other)
        fire.last(0.3, 6)
        fire.mesh.heal(one, other)


def isolate(fire: Fire) -> None:
    """One node reaches no other; clients reach it."""
    name = fire.node()
    others = [other for other in fire.mesh.names if other != name]
    with fire.history.harm("cut off", name):
        for other in others:
            fire.mesh.cut(name, other)
        fire.last(0.3, 6)
        for other in others:
            fire.mesh.heal(name, other)


def full_disk(fire: Fire) -> None:
    """A node comes back to a disk that has only its reserve left, and later has room again."""
    name = fire.node()
    with fire.history.harm("full disk", name):
        _restart(fire.mesh, name, NODE_FILE + FULL)
        fire.last(1, 4)
        _restart(fire.mesh, name, NODE_FILE)


def lose_disk(fire: Fire) -> None:
    """A node is killed and comes back without its data."""
    name = fire.node()
    fire.hold(True)
    fire.mesh.make_healthy()
    fire.mesh.wait_until_same()
    with fire.history.harm("disk lost", name):
        fire.mesh.kill(name)
        fire.mesh.wipe(name)
        fire.hold(False)
        fire.last(0.2, 3)
        fire.mesh.start(name)
    # Until it has everything again, the loss of another disk would be the loss of two.
    eventually(lambda: all("up" in states for states in fire.mesh.links(name).values()), f"{name} finds nobody")


def old_disk(fire: Fire) -> None:
    """A node is killed and comes back with a copy of its disk that was made some seconds before."""
    name = fire.node()
    data = fire.mesh.fleet.nodes[name].data
    image = data.with_name(f"{name}.image")
    fire.mesh.pause(name)
    shutil.copytree(data, image)
    fire.mesh.resume(name)
    fire.last(0.5, 3)
    fire.hold(True)
    fire.mesh.make_healthy()
    fire.mesh.wait_until_same()
    with fire.history.harm("old disk", name):
        fire.mesh.kill(name)
        fire.mesh.wipe(name)
        image.rename(data)
        fire.hold(False)
        fire.last(0.2, 3)
        fire.mesh.start(name)
    eventually(lambda: all("up" in states for states in fire.mesh.links(name).values()), f"{name} finds nobody")


def no_descriptors(fire: Fire) -> None:
    """A node can open nothing for a while: neither connections nor files."""
    name = fire.node()
    most = len(os.listdir(f"/proc/{_pid(fire.mesh, name)}/fd"))
    with fire.history.harm("no descriptors", name), _limited(fire.mesh, name, resource.RLIMIT_NOFILE, most):
        fire.last(0.5, 4)


def no_memory(fire: Fire) -> None:
    """A node gets little more memory for a while. If it dies of that, it has a new life afterwards."""
    name = fire.node()
    with open(f"/proc/{_pid(fire.mesh, name)}/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    with fire.history.harm("no memory", name):
        with _limited(fire.mesh, name, resource.RLIMIT_AS, size + (1 << 20)):
            fire.last(0.5, 4)
        if not fire.mesh.fleet.nodes[name].is_alive:
            fire.mesh.start(name)


WEIGHTS: Mapping[Callable[[Fire], None], int] = {
    kill: 6,
    kill_all: 1,
    pause: 4,
    cut: 4,
    isolate: 3,
    full_disk: 1,
    lose_disk: 2,
    old_disk: 1,
    no_descriptors: 1,
    no_memory: 1,
}


def _pid(mesh: Cluster, name: str) -> int:
    process = mesh.fleet.nodes[name].process
    assert process is not None
    return process.pid


@contextlib.contextmanager
def _limited(mesh: Cluster, name: str, what: int, most: int) -> Iterator[None]:
    """The running process may have no more than that of something."""
    pid = _pid(mesh, name)
    before = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (most, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, what, before)


def _restart(mesh: Cluster, name: str, node_file: str) -> None:
    mesh.stop(name)
    mesh.node_files[name] = node_file
    mesh.start(name)
