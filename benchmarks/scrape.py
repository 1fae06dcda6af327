"""Measure a scrape of the metrics of a node with many queues: how long it keeps the event loop.

    python -m benchmarks.scrape [--queues 1000000] [--connections 5000] [--scrapes 5]

The node is whole and does nothing else. As far as counters can say so, its queues have messages, and 10,000
destinations have totals of their own. `page` is the longest turn of the event loop that makes a page. `turn` is the
longest one that looks for the deepest queues, `looking` the loop's time for all of these turns, and `pass` the time
from the first to the last. `stored` is what the queue store (SQLite) takes for as many queues, in a worker thread.
All but `pass` is processor time, because other work on the machine only ever makes a time longer.
"""

import argparse
import gc
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio
import trio.abc
import trio.testing

from benchmarks.queue_store import ORIGIN, own_queue, slices
from qmq.admin.facts.queue_catalog import QueueCatalog
from qmq.broker.messages.totals import DESTINATIONS_MAX
from qmq.config import Address, LimitSettings, ListenerSettings, NodeSettings
from qmq.engine.runtime.worker import Worker
from qmq.node.main import GC_THRESHOLDS, real_environment
from qmq.node.node import Node
from qmq.protocols.http.metrics import MetricsPage
from qmq.protocols.http.samples import QUEUES_SHOWN, Samples
from qmq.storage.queues.choice import open_queue_store
from qmq.storage.queues.rows import runs_of
from qmq.storage.store import open_store

MS = 1000


class LoopTurns(trio.abc.Instrument):
    """How long tasks kept the event loop since `reset`."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.longest = self.together = 0.0
        # The turn in which this is called is not counted.
        self._began: float | None = None

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._began is not None:
            took = time.thread_time() - self._began
            self.longest = max(self.longest, took)
            self.together += took


def fill(node: Node, queues: int, connections: int) -> None:
    totals = node.broker.totals
    for number in range(DESTINATIONS_MAX):
        totals.begin(f"/queue/device-{number}").accepted = number
    for number in range(queues):
        node.broker.queues.get(f"/queue/device-{number}/commands").held = random.randrange(1, 1000)
    # In an order other than that of memory: a node makes and drops its queues as messages come and go.
    listed, names = node.broker.queues.listed, node.broker.queues.listed_names
    random.shuffle(listed)
    for place, queue in enumerate(listed):
        queue.listed_at = place
        names[place] = queue.name
    client: Any = SimpleNamespace(protocol="stomp", bytes_in=1, bytes_out=2, subscribed=3)
    node.sessions.update((-number, client) for number in range(1, connections + 1))
    node.broker.sessions.update((-number, client) for number in range(1, connections + 1))


async def measure(queues: int, connections: int, scrapes: int, folder: Path, worker: Worker) -> None:
    """Print the times of the event loop."""
    settings = NodeSettings(
        name="scrape",
        data=folder,
        stomp=(ListenerSettings(address=Address("127.0.0.1", 0)),),
        limits=LimitSettings(destinations_max=2 * queues),
    )
    node = Node(settings, None, open_store(folder, node="scrape"), real_environment(worker))
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        await trio.testing.wait_all_tasks_blocked()
        fill(node, queues, connections)
        # As `qmq serve` does.
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        turns = LoopTurns()
        trio.lowlevel.add_instrument(turns)
        found: dict[str, list[float]] = {"page": [], "turn": [], "looking": [], "pass": []}
        size = 0
        for _ in range(scrapes):
            catalog = QueueCatalog(
                node.engine, node, node.settings_parts.declared_queues, node.settings_parts.paused_queues
            )
            samples = Samples(node.engine, node, catalog)
            takeover = node.mesh_parts.takeover
            readers = node.session_parts.journal_reads.readers
            page = MetricsPage(node.engine, node.admin.facts, node.conditions, node.mesh, takeover, readers, samples)
            turns.reset()
            began = time.perf_counter()
            while samples.taken_at is None:
                await samples.refresh()
            found["pass"].append(MS * (time.perf_counter() - began))
            found["turn"].append(MS * turns.longest)
            found["looking"].append(MS * turns.together)
            turns.reset()
            await trio.lowlevel.checkpoint()
            size = len(await page.read())
            await trio.lowlevel.checkpoint()
            found["page"].append(MS * turns.longest)
        trio.lowlevel.remove_instrument(turns)
        for name, times_ms in found.items():
            print(f"{name:8} {say(times_ms)}")
        print(f"{size:,} bytes in a page")
        node.sessions.clear()
        node.broker.sessions.clear()
        nursery.cancel_scope.cancel()


def measure_store(queues: int, scrapes: int, folder: Path) -> None:
    store = open_queue_store(folder, "sqlite", ORIGIN.node)
    for position, part in enumerate(slices(queues, own_queue), start=1):
        store.apply(runs_of(part), {}, [], [], position)
    print(f"stored   {say([timed(lambda: store.deepest(ORIGIN.node, QUEUES_SHOWN)) for _ in range(scrapes)])}")
    store.close()


def timed(call: Callable[[], object]) -> float:
    began = time.thread_time()
    call()
    return MS * (time.thread_time() - began)


def say(times_ms: list[float]) -> str:
    return f"{statistics.median(times_ms):8.1f} ms, at most {max(times_ms):.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", type=int, default=1_000_000)
    parser.add_argument("--connections", type=int, default=5_000)
    parser.add_argument("--scrapes", type=int, default=5)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qmq-bench-") as folder, Worker("qmq-commits") as worker:
        call = partial(measure, chosen.queues, chosen.connections, chosen.scrapes, Path(folder, "data"), worker)
        trio.run(call)
        measure_store(chosen.queues, chosen.scrapes, Path(folder))


if __name__ == "__main__":
    main()
