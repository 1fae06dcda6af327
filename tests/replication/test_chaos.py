"""Three nodes under cuts, silences and crashes drawn from a seed: nothing is lost, and in the end all agree.

A node that crashes keeps its journal and forgets everything else. Consumers ack what they get after a while. When the
faults stop, every journal must hold the same records, every queue message that was journalled must have been given
to a consumer and be settled everywhere, and no node may have raised a condition. The seed is the name of the test.
"""

import logging
import random

import pytest
import trio
import trio.testing

from qmq.broker.consumers.outcome import Outcome
from qmq.storage.format.batch import batch_records
from qmq.storage.format.record import RecordKind

from .rig import JOBS, ListJournal, Network, Node, peers_of, until

pytestmark = pytest.mark.trio

NEWS = "/fanout/news"
FAULT_SECONDS = 40.0


class Trial:
    """One seed: the nodes, their journals over their lives, and what was given to consumers."""

    def __init__(self, seed: int, nursery: trio.Nursery) -> None:
        self.rng = random.Random(seed)
        self.network = Network()
        self.peers = peers_of("abc")
        self.nursery = nursery
        self.journals = {name: ListJournal() for name in "abc"}
        self.lives = dict.fromkeys("abc", 0)
        self.nodes: dict[str, Node] = {}
        self.past: list[Node] = []
        self.numbers = iter(range(1 << 30))
        self.faults_end = False

    async def start(self, name: str) -> None:
        self.lives[name] += 1
        node = Node(self.network, name, self.peers, incarnation=self.lives[name], journal=self.journals[name])
        self.nodes[name] = node
        self.past.append(node)
        node.subscribe(JOBS, credit=self.rng.choice([1, 3, 10]))
        await self.nursery.start(node.run)
        self.nursery.start_soon(self.consume, node)
        self.nursery.start_soon(self.publish, node)

    def crash(self, name: str) -> None:
        node = self.nodes.pop(name)
        node.cancel.cancel()
        for pipe in self.network.pipes:
            if name in pipe._between:
                pipe.break_now()

    async def publish(self, node: Node) -> None:
        while self.nodes.get(node.name) is node and not self.faults_end:
            await trio.sleep(self.rng.expovariate(2.0))
            if self.nodes.get(node.name) is node:
                destination = self.rng.choice([JOBS, JOBS, NEWS])
                node.send(destination, *[b"%d" % next(self.numbers) for _ in range(self.rng.randrange(1, 4))])

    async def consume(self, node: Node) -> None:
        """Ack, or sometimes refuse, whatever is in flight."""
        while self.nodes.get(node.name) is node:
            await trio.sleep(self.rng.expovariate(8.0))
            deliveries = list(node.broker.queues.deliveries.values())
            if deliveries and self.nodes.get(node.name) is node:
                out = Outcome()
                delivery = self.rng.choice(deliveries)
                if self.rng.random() < 0.1 and not self.faults_end:
                    node.broker.refuse(delivery, out)
                    node.submit(out)
                else:
                    node.settle(delivery.message.body)

    async def break_things(self) -> None:
        end = trio.current_time() + FAULT_SECONDS
        rng = self.rng
        while trio.current_time() < end:
            await trio.sleep(rng.uniform(0.2, 8.0))
            one, other = rng.sample("abc", 2)
            fault = rng.choice(["cut", "silence", "heal", "heal", "crash", "slow", "flicker"])
            if fault == "cut":
                self.network.cut(one, other)
            elif fault == "silence":
                self.network.silence(one, other)
            elif fault == "heal":
                self.network.heal()
            elif fault == "flicker":
                self.network.cut(one, other)
                self.network.cuts.discard(frozenset((one, other)))
            elif fault == "slow" and one in self.nodes:
                held = self.nodes[one].committing = trio.Event()
                await trio.sleep(rng.uniform(0.01, 3.0))
                held.set()
            elif fault == "crash" and one in self.nodes:
                self.crash(one)
                await trio.sleep(rng.uniform(0.0, 4.0))
                await self.start(one)
        self.network.heal()
        self.faults_end = True

    def is_quiet(self) -> bool:
        nodes = list(self.nodes.values())
        return (
            all(node.is_linked for node in nodes)
            and all(node.journal.vector == nodes[0].journal.vector for node in nodes)
            and not any(queue.depth for node in nodes for queue in node.broker.queues.by_name.values())
            and not any(node.broker.queues.deliveries for node in nodes)
        )


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_lost(
    seed: int, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    async with trio.open_nursery() as nursery:
        trial = Trial(seed, nursery)
        for name in "abc":
            await trial.start(name)
        await trial.break_things()
        await until(trial.is_quiet, 600, step=0.5)
        nursery.cancel_scope.cancel()

    a, b, c = (trial.journals[name] for name in "abc")
    for origin in a.vector:
        assert a.of(origin) == b.of(origin) == c.of(origin)
    given = {body for node in trial.past for body in node.seen}
    published = set(bodies_of(a))
    assert published
    assert published <= given
    for node in trial.past:
        assert len(node.fanouts) == len(set(node.fanouts))
    assert [one for node in trial.past for one in node.reports] == []
    assert [record.getMessage() for record in caplog.records] == []


def bodies_of(journal: ListJournal) -> list[bytes]:
    """Bodies of all queue messages in a journal."""
    return [
        record.body
        for _, _, data in journal.batches
        for record in batch_records(data)
        if record.kind == RecordKind.PUBLISH and record.destination == JOBS
    ]
