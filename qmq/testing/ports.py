"""Ports on loopback for nodes that must know each other before they start, and keep their ports over restarts.

The system draws a port for a socket that binds port 0, and may give it to another program when that socket is closed.
So ports come from a range below what it draws from. Each process takes a block of it, which the kernel gives back when
the process ends.
"""

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import Final

PORTS: Final = range(20000, 30000)
"""Below what the system hands out to dialling sockets: a node that is down for a while keeps its port free of them. A
port of that range could also be dialled by a socket that was given the very same port, and answer itself."""

BLOCK: Final = 250
"""Ports that a process takes at once: enough for a dozen meshes."""

_ours: list[int] = []
"""Ports of this process that it has not given out yet: a node may listen there later, or not for a while."""


def free_ports(number: int) -> list[int]:
    """Ports on which nothing listens now, each given out once on this machine while this process lives: several workers
    and several test runs at once never share one. Raises OSError when all are taken.
    """
    found: list[int] = []
    while len(found) < number:
        if not _ours:
            _ours.extend(random.SystemRandom().sample(block := _take_block(), len(block)))
        port = _ours.pop()
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            found.append(port)
    return found


def _take_block() -> range:
    """A part of PORTS that no other process has; the kernel gives it back when this one ends."""
    blocks = [PORTS[at : at + BLOCK] for at in range(0, len(PORTS), BLOCK)]
    for block in random.SystemRandom().sample(blocks, len(blocks)):
        with contextlib.suppress(OSError):
            lock = os.open(Path(tempfile.gettempdir(), f"qmq-tests-ports-{block[0]}"), os.O_CREAT | os.O_RDWR, 0o666)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                raise
            return block
    raise OSError(f"other processes have all of {PORTS}")
