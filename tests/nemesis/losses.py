"""What real nodes run short of, and disks that are lost, rotten, or put back. See `fire.py`.

Disks go one at a time, under load: what was receipted for two disks must survive it.
"""

import contextlib
import os
import random
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.nemesis.fire import Fire, Steps, fault
from tests.support.cluster_mesh import Cluster

FLIPS_MAX = 3
"""Bits in one file."""


# Shortages


@fault(2)
def full_disk(fire: Fire, rng: random.Random) -> Steps:
    """Something else takes all the room of a running node's disk; should that end the node, it starts with room."""
    if fire.disks is None:
        return
    with fire.node(rng) as name, fire.history.harm("full disk", name):
        fire.disks.fill(name, rng.choice((0, rng.randrange(1 << 17), rng.randrange(1 << 24))))
        yield fire.long(rng)
        fire.disks.empty(name)
        yield from fire.revive(name)


@fault(1)
def no_longer_files(fire: Fire, rng: random.Random) -> Steps:
    """Files of a running node cannot become longer than a little more than now: a write ends in its midst."""
    with fire.node(rng) as name, fire.history.harm("no longer files", name):
        most = _longest_file(fire.mesh.fleet.nodes[name].data) + rng.randrange(1 << 15)
        with _limited(fire.mesh, name, resource.RLIMIT_FSIZE, most):
            yield fire.long(rng)
        yield from fire.revive(name)


@fault(1)
def no_descriptors(fire: Fire, rng: random.Random) -> Steps:
    """A node can open nothing for a while: neither connections nor files."""
    with fire.node(rng) as name, fire.history.harm("no descriptors", name):
        most = len(os.listdir(f"/proc/{_pid(fire.mesh, name)}/fd"))
        with _limited(fire.mesh, name, resource.RLIMIT_NOFILE, most):
            yield fire.long(rng)


@fault(1)
def no_memory(fire: Fire, rng: random.Random) -> Steps:
    """A node gets little more memory for a while. If it dies of that, it has a new life afterwards."""
    with fire.node(rng) as name, fire.history.harm("no memory", name):
        with open(f"/proc/{_pid(fire.mesh, name)}/statm") as file:
            size = int(file.read().split()[0]) * resource.getpagesize()
        with _limited(fire.mesh, name, resource.RLIMIT_AS, size + (1 << 20)):
            yield fire.long(rng)
        yield from fire.revive(name)


# Disks: one at a time


@fault(3, is_alone=True)
def lose_disk(fire: Fire, rng: random.Random) -> Steps:
    """A node is killed under load and comes back without its data."""
    with fire.node(rng) as name:
        yield from _dead(fire, rng, name, "disk lost", lambda: fire.mesh.wipe(name))


@fault(2, is_alone=True)
def old_disk(fire: Fire, rng: random.Random) -> Steps:
    """A node is killed under load and comes back with a copy of its disk that was made some seconds before."""
    with fire.node(rng) as name:
        data = fire.mesh.fleet.nodes[name].data
        image = data.with_name(f"{name}.image")
        with fire.history.harm("SIGSTOP", name):
            fire.mesh.pause(name)
            shutil.copytree(data, image, ignore=shutil.ignore_patterns("*.sock"))
            fire.mesh.resume(name)
        yield rng.uniform(0.5, 5)

        def put_back() -> None:
            fire.mesh.wipe(name)
            image.rename(data)

        yield from _dead(fire, rng, name, "old disk", put_back)


@fault(2, is_alone=True)
def rot(fire: Fire, rng: random.Random) -> Steps:
    """A node is killed, and bits flip in its journal before it comes back."""
    with fire.node(rng) as name:

        def spoil() -> None:
            files = [
                path for path in (fire.mesh.fleet.nodes[name].data / "journal").glob("*.qmq") if path.stat().st_size
            ]
            _flip_bits(rng.choice(sorted(files)), rng)

        yield from _dead(fire, rng, name, "rotten bits", spoil)


def _dead(fire: Fire, rng: random.Random, name: str, what: str, harm: Callable[[], None]) -> Steps:
    """Kill a node, do `harm` to its disk, and start it again after a while."""
    since = fire.until_covered()
    with fire.history.harm(what, name, alone_since=since):
        fire.mesh.kill(name)
        harm()
        fire.open()
        yield fire.long(rng)
        yield from fire.start(name)


def _flip_bits(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(rng.randint(1, FLIPS_MAX)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


# Helpers


def _pid(mesh: Cluster, name: str) -> int:
    process = mesh.fleet.nodes[name].process
    assert process is not None
    return process.pid


def _longest_file(folder: Path) -> int:
    longest = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # the node goes on meanwhile
            longest = max(longest, path.stat().st_size)
    return longest


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
