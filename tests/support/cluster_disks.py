"""Disks of a size of their own for nodes of a test, so that one can be really full: a tmpfs for each.

Mounting needs root. A run that is itself killed leaves its mounts behind, which `umount` takes away.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from .cluster_mesh import Cluster

DISK_BYTES = 1 << 30
"""Of memory, and only as far as it is written to."""
PIECE = b"\0" * (1 << 20)


def why_no_disks() -> str:
    """A sentence about what keeps disks from being mounted here, "" when nothing does."""
    with tempfile.TemporaryDirectory() as folder:
        done = _mount(Path(folder))
        if done.returncode:
            said = done.stderr.strip() or "it is not permitted"
            return f"no disk can be mounted here, so none becomes full: {said}"
        _unmount(Path(folder))
    return ""


class SmallDisks:
    """Puts the data of nodes that have not been started yet onto disks of their own. Used in a `with`."""

    def __init__(self, mesh: Cluster, names: Sequence[str]) -> None:
        self._mesh = mesh
        self._places = {name: mesh.folder / "disks" / name for name in names}

    def __enter__(self) -> "SmallDisks":
        self._mesh.fleet.data.mkdir(exist_ok=True)  # for what lies beside the nodes' own folders
        for name, place in self._places.items():
            place.mkdir(parents=True)
            done = _mount(place)
            if done.returncode:
                self.__exit__()
                raise OSError(f"{place}: {done.stderr.strip()}")
            self._mesh.fleet.nodes[name].data = place / "data"
        return self

    def __exit__(self, *_: object) -> None:
        for place in self._places.values():
            if os.path.ismount(place):
                _unmount(place)

    def fill(self, name: str, left_bytes: int) -> None:
        """Something else takes the room on this disk, up to so many bytes."""
        place = self._places[name]
        with (place / "filler").open("ab", buffering=0) as file:
            try:
                while (room := shutil.disk_usage(place).free - left_bytes) > 0:
                    file.write(PIECE[: min(room, len(PIECE))])
            except OSError:
                return  # the node has written meanwhile, and no room is left at all

    def empty(self, name: str) -> None:
        """It goes away again."""
        (self._places[name] / "filler").unlink(missing_ok=True)


@contextmanager
def mounted_disk(place: Path, size: int = DISK_BYTES) -> Iterator[None]:
    """A disk of that size is at `place`, for a while. Skips the test where nothing can be mounted."""
    done = _mount(place, size)
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip() or 'it is not permitted'}")
    try:
        yield
    finally:
        _unmount(place)


def _mount(place: Path, size: int = DISK_BYTES) -> "subprocess.CompletedProcess[str]":
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "qmq-tests", str(place)]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def _unmount(place: Path) -> None:
    subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)
