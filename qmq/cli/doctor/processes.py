"""Which process of this machine listens at a port, and whether it is a node with given files: by proc(5).

A node without a disk has no Unix socket that would say so. Processes of other users are only seen by root.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

LISTENING: Final = "0A"
"""The state of a socket, as /proc/net/tcp has it."""


class HoldingProcess(NamedTuple):
    """A process, its command line, and its current directory."""

    id: int
    words: list[str]
    folder: Path

    def serves(self, config_file: Path | None, name: str) -> bool:
        """Whether it is `qmq serve` with this node file, or without one for the node of this name."""
        if "serve" not in self.words:
            return False
        given = self._option("--config")
        if given is None or config_file is None:
            return given is None and config_file is None and self._option("--node") in (None, name)
        return (self.folder / given).resolve() == config_file.resolve()

    def _option(self, name: str) -> str | None:
        for word, following in zip(self.words, [*self.words[1:], ""], strict=True):
            if word == name:
                return following
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
        return None


def process_at(port: int) -> HoldingProcess | None:
    """The process that listens at a TCP port, whatever its address; None if there is none that this user may see."""
    wanted = {f"socket:[{inode}]" for inode in _listening(port)}
    for link in Path("/proc").glob("[0-9]*/fd/*") if wanted else ():
        with suppress(OSError):
            if os.readlink(link) in wanted:
                process = link.parents[1]
                words = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
                return HoldingProcess(int(process.name), words, (process / "cwd").resolve())
    return None


def _listening(port: int) -> Iterator[str]:
    """The inodes of sockets that listen at the port."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path("/proc/net", table).read_text("ascii").splitlines()[1:]:
                words = line.split()
                if words[3] == LISTENING and int(words[1].rpartition(":")[2], 16) == port:
                    yield words[9]
