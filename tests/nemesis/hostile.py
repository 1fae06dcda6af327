"""Clients that mean harm or know no better, beside the others all the time: broken frames, half ones, readers that do
not read, consumers that take messages and vanish, strangers at the port of the mesh. No node may end of it, and no
other client may miss anything.
"""

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from tests.support.cluster_client import Client, LostError
from tests.support.cluster_mesh import Cluster

PAUSE_SECONDS = 0.2
DIAL_SECONDS = 2.0
KEPT_MAX = 8
"""Connections that are kept open and not read, the oldest given up for a new one."""

CONNECT = b"CONNECT\naccept-version:1.2\nhost:x\n\n\0"

# What is said, and then the connection is left as it is.
WORDS: Mapping[str, bytes] = {
    "noise": bytes(range(256)) * 20,
    "no login": b"SEND\ndestination:/queue/x\n\nbody\0",
    "half a login": CONNECT[:20],
    "half a frame": CONNECT + b"SEND\ndestination:/fanout/nemesis\ncontent-length:1000\n\nhalf",
    "negative length": CONNECT + b"SEND\ndestination:/queue/x\ncontent-length:-5\n\nbody\0",
    "large length": CONNECT + b"SEND\ndestination:/queue/x\ncontent-length:99999999999\n\nbody\0",
    "endless header": CONNECT + b"SEND\n" + b"x" * 300_000,
    "many headers": CONNECT + b"SEND\n" + b"".join(b"h%d:v\n" % number for number in range(5000)),
    "bad escape": CONNECT + b"SEND\ndestination:/queue/x\na\\tb:1\n\n\0",
    "ack of nothing": CONNECT + b"ACK\nid:1-2-3\nreceipt:r\n\n\0" * 50,
    "frames of the mesh": CONNECT + b"SUBSCRIBE\nid:0\ndestination:/mesh/journal\nproof:00\n\n\0",
}


class Hostile(threading.Thread):
    """Does one thing after the other, at one node after the other, until `stopping`."""

    def __init__(self, mesh: Cluster, rng: random.Random, queue: str, fanout: str) -> None:
        super().__init__(daemon=True)
        self.stopping = threading.Event()
        self.done = 0
        self._rng = rng
        self._places: Sequence[tuple[tuple[str, int], tuple[str, int]]] = [
            (mesh.address(name), mesh.mesh_address(name)) for name in mesh.names
        ]
        self._queue = queue
        self._fanout = fanout
        self._kept: list[socket.socket] = []

    def run(self) -> None:
        tricks: list[Callable[[tuple[str, int], tuple[str, int]], None]] = [
            self._say,
            self._stranger,
            self._slow_reader,
            self._thief,
        ]
        while not self.stopping.wait(PAUSE_SECONDS):
            # The node may be down, or end the connection first.
            with contextlib.suppress(OSError, LostError):
                self._rng.choice(tricks)(*self._rng.choice(self._places))
                self.done += 1
        for one in self._kept:
            one.close()

    def finish(self, seconds: float = 60.0) -> None:
        self.stopping.set()
        self.join(seconds)
        assert not self.is_alive(), f"{self} did not end"

    def _say(self, client: tuple[str, int], mesh: tuple[str, int]) -> None:
        self._keep(client, self._rng.choice(list(WORDS.values())))

    def _stranger(self, client: tuple[str, int], mesh: tuple[str, int]) -> None:
        self._keep(mesh, self._rng.choice(list(WORDS.values())))

    def _slow_reader(self, client: tuple[str, int], mesh: tuple[str, int]) -> None:
        """Wants all that there ever was, and reads none of it."""
        head = f"SUBSCRIBE\nid:0\ndestination:{self._fanout}\nx-stream-offset:first\n\n"
        self._keep(client, CONNECT + head.encode() + b"\0")

    def _thief(self, client: tuple[str, int], mesh: tuple[str, int]) -> None:
        """Takes some messages of a queue and vanishes with them."""
        thief = Client(client)
        thief.subscribe(self._queue, ack="client-individual", headers={"prefetch-count": "5"})
        time.sleep(self._rng.uniform(0, 1))
        thief.drop()

    def _keep(self, address: tuple[str, int], words: bytes) -> None:
        one = socket.create_connection(address, DIAL_SECONDS)
        self._kept.append(one)
        if len(self._kept) > KEPT_MAX:
            self._kept.pop(0).close()
        one.settimeout(DIAL_SECONDS)
        one.sendall(words)
