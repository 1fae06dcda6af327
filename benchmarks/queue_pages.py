"""Measure pages of the queues of a node that has many: how long each takes, and how long it keeps the event loop.

    python -m benchmarks.queue_pages [--queues 1000000] [--stored 0] [--sorts name,depth,oldest,rate] [--visit]

The node is whole and does nothing else. As far as counters can say so, its queues have messages. `first` is a page that
is searched for, `later` one that is asked for afterwards. `stored` queues are only in the queue store (SQLite). `ms` is
elapsed time; the rest is processor time of the event loop: all of it, and the longest turn. `--visit` opens the console
of this node in Chromium instead, page after page, and says the same of each until its lists are drawn.
"""

import argparse
import gc
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import trio
import trio.testing

from benchmarks.console import chromium
from benchmarks.queue_store import own_queue, slices
from benchmarks.scrape import MS, LoopTurns, fill
from qmq.admin.console.queue_pages import FirstsCall, QueuePages, RowsCall
from qmq.admin.facts.queue_catalog import QueueCatalog
from qmq.config import Address, LimitSettings, ListenerSettings, NodeSettings
from qmq.engine.runtime.worker import Worker
from qmq.model.dots import Dot, Origin
from qmq.node.main import GC_THRESHOLDS, SWITCH_SECONDS, real_environment
from qmq.node.node import Node
from qmq.protocols.http.listener import HttpListenerSettings
from qmq.storage.queues.rows import runs_of
from qmq.storage.store import open_store
from qmq.verbs.lists import Sort

LATER = 5
"""Pages of each order, of which the slowest counts."""


async def measure(queues: int, stored: int, sorts: list[Sort], visits: bool, folder: Path, worker: Worker) -> None:
    settings = NodeSettings(
        name="pages",
        data=folder,
        stomp=(ListenerSettings(address=Address("127.0.0.1", 0)),),
        limits=LimitSettings(destinations_max=2 * (queues + stored)),
    )
    settings = settings.replace({"http": (HttpListenerSettings(address=Address("127.0.0.1", 0)),)})
    store = open_store(folder, node="pages")
    origin = Origin("pages", 1)
    for part in slices(stored, lambda number: own_queue(number)._replace(dot=Dot(origin, number))):
        store.queues.apply(runs_of(part), {}, [], [], 0)
    node = Node(settings, None, store, real_environment(worker))
    turns = LoopTurns()
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        await trio.testing.wait_all_tasks_blocked()
        fill(node, queues, 0)
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        trio.lowlevel.add_instrument(turns)

        async def page(pages: QueuePages, sort: Sort, text: str = "") -> tuple[float, float, float]:
            turns.reset()
            await trio.lowlevel.checkpoint()
            began = time.perf_counter()
            found = await pages.firsts(FirstsCall(sort, is_reversed=sort != "name", text=text, count=51))
            await pages.rows(RowsCall(found.names[:50]))
            took = time.perf_counter() - began
            await trio.lowlevel.checkpoint()
            return MS * took, MS * turns.together, MS * turns.longest

        if visits:
            await trio.to_thread.run_sync(visit, f"http://127.0.0.1:{node.addresses['http'][0][1]}/", turns)
        for sort in [] if visits else sorts:
            for text in ("", "7/comm", "77/comm"):
                catalog = QueueCatalog(
                    node.engine, node, node.settings_parts.declared_queues, node.settings_parts.paused_queues
                )
                pages = QueuePages(node.broker.totals, catalog)
                print(f"{sort:8}{text:8} first  ", say(await page(pages, sort, text)), flush=True)
                found = [await page(pages, sort, text) for _ in range(LATER)]
                print(f"{sort:8}{text:8} later  ", say(max(found)), flush=True)
        trio.lowlevel.remove_instrument(turns)
        node.sessions.clear()
        node.broker.sessions.clear()
        nursery.cancel_scope.cancel()


VISITED = (
    ("the mesh page", "", "main a[href^='#/queue/']"),
    ("the list of queues", "#/queues", "tbody a[href^='#/queue/']"),
    ("one queue", "#/queue/device-7/commands", "[role=tabpanel]"),
)
"""Pages of the console, and what is there when they are drawn."""


def visit(address: str, turns: LoopTurns) -> None:
    """In a thread of its own, as Playwright needs it."""
    with chromium() as browser:
        for name, page, drawn in VISITED:
            tab = browser.new_context().new_page()
            trio.from_thread.run_sync(turns.reset)
            began = time.perf_counter()
            tab.goto(address + page)
            tab.wait_for_selector(drawn)
            took = time.perf_counter() - began
            print(f"{name:20}", say((MS * took, MS * turns.together, MS * turns.longest)), flush=True)
            tab.context.close()


def say(found: tuple[float, float, float]) -> str:
    elapsed, together, longest = found
    return f"{elapsed:9.1f} ms, loop {together:9.1f} ms, longest turn {longest:6.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", type=int, default=1_000_000)
    parser.add_argument("--stored", type=int, default=0)
    parser.add_argument("--sorts", default="name,depth,oldest,rate")
    parser.add_argument("--visit", action="store_true")
    chosen = parser.parse_args()
    sys.setswitchinterval(SWITCH_SECONDS)
    with tempfile.TemporaryDirectory(prefix="qmq-bench-") as folder, Worker("qmq-commits") as worker:
        trio.run(
            partial(
                measure,
                chosen.queues,
                chosen.stored,
                chosen.sorts.split(","),
                chosen.visit,
                Path(folder, "data"),
                worker,
            )
        )


if __name__ == "__main__":
    main()
