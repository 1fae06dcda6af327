"""What a connection that does nothing holds in memory, by the module that allocated it.

    python -m benchmarks.connections --count 2000

The node runs in this process, where `tracemalloc` sees what Python allocates; its clients are another process. What the
kernel keeps for a socket, and what the allocator adds, is not in these figures (`qmq bench idle` has the whole).
"""

import argparse
import subprocess
import sys
import tempfile
import tracemalloc
from collections import Counter
from functools import partial
from pathlib import Path

import trio
import trio.testing

from qmq.config import Address, LimitSettings, ListenerSettings, NodeSettings
from qmq.engine.runtime.worker import Worker
from qmq.node.main import real_environment, with_connections_that_fit
from qmq.node.node import Node
from qmq.storage.store import open_store

SHOWN_BYTES = 50
FIRST = 100
"""Connections before the first look, so that what is made only once is there already."""

CLIENTS = """
import socket, sys
port = int(sys.argv[1])
held = []
for line in sys.stdin:
    for _ in range(int(line)):
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(b"CONNECT\\naccept-version:1.2\\nhost:x\\n\\n\\0")
        while b"\\0" not in client.recv(4096):
            pass
        held.append(client)
    print(len(held), flush=True)
"""
"""Adds as many connections as each line of its input says, and answers how many it has."""


def clients_of(port: int) -> "subprocess.Popen[str]":
    """The process with the clients of the node at `port`."""
    command = [sys.executable, "-c", CLIENTS, str(port)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def measure(count: int, folder: Path, worker: Worker) -> None:
    """Print what `count` connections hold."""
    settings = NodeSettings(
        name="connections",
        data=folder,
        stomp=(ListenerSettings(address=Address("127.0.0.1", 0)),),
        limits=LimitSettings(connections_max=FIRST + count, connections_per_address_max=FIRST + count),
    )
    store = open_store(folder, node="connections")
    node = Node(with_connections_that_fit(settings), None, store, real_environment(worker))
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        with clients_of(node.addresses["stomp"][0][1]) as clients:
            assert clients.stdin is not None and clients.stdout is not None
            for number in (FIRST, count):
                tracemalloc.start()
                print(number, file=clients.stdin, flush=True)
                held = await trio.to_thread.run_sync(clients.stdout.readline)
                if not held:
                    sys.exit("benchmarks.connections: the node took no more clients")
                await trio.testing.wait_all_tasks_blocked()
                snapshot = tracemalloc.take_snapshot()
                tracemalloc.stop()
            show(snapshot, count)
            clients.kill()
        node.stop()


def show(snapshot: tracemalloc.Snapshot, count: int) -> None:
    """Print the table of what was allocated for `count` connections."""
    held: Counter[str] = Counter()
    for statistic in snapshot.statistics("filename"):
        held["/".join(Path(statistic.traceback[0].filename).parts[-2:])] += statistic.size
    print("| allocated in | bytes for each connection |\n|---|---:|")
    for place, size in held.most_common():
        if size / count >= SHOWN_BYTES:
            print(f"| {place} | {size / count:.0f} |")
    print(f"| all | {sum(held.values()) / count:.0f} |")


def main() -> None:
    """Read the options, run a node in a temporary directory."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.connections")
    parser.add_argument("--count", type=int, default=1000, help="connections (default: 1000)")
    count = parser.parse_args().count
    with tempfile.TemporaryDirectory() as folder, Worker("qmq-commits") as worker:
        trio.run(partial(measure, count, Path(folder), worker))


if __name__ == "__main__":
    main()
