"""Three nodes that publish, purge and move under partitions, kills and restarts drawn from a seed.

Every message has a body of its own. In the end each confirmed message is in one of the two queues, once, on all nodes
alike; or a purge has settled it, and then it is in none. The seed is the test's name. Nodes do not take over here: a
node that dies between a move and its replication keeps the record, and gives it to the others when it is back.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import trio
from trio.testing import MockClock

from qmq.admin import bulk_jobs
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.message import Message
from qmq.broker.queues.redelivery import Copy, Redelivery
from qmq.storage.format.batch import batch_records
from qmq.storage.format.failure_records import unpack_dead
from qmq.storage.format.record import RecordKind, unpack_dots
from qmq.storage.store import Store
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, eventually, send

Q, OTHER = "/queue/q", "/queue/other"
NAMES = "abc"
PAIRS = (("a", "b"), ("a", "c"), ("b", "c"))
STEPS = 40
SEEDS = 4
"""How many histories."""
SEEDS_MAX = 20
"""How many are searched for a planted bug."""
PAGE = 2


class Trial:
    """One seed. `confirmed` are the bodies that had a receipt; purges asked for `purged_max` at most."""

    def __init__(self, mesh: MeshRig, seed: int) -> None:
        self.mesh = mesh
        self.rng = random.Random(seed)
        self.confirmed: set[bytes] = set()
        self.cuts: set[tuple[str, str]] = set()
        self.purged_max = 0

    async def run(self) -> None:
        for number in range(STEPS):
            await self.step(self.rng.choice(NAMES), number)
        for one, other in self.cuts:
            self.mesh.heal(one, other)
        await self.mesh.until_linked()
        await self.until_alike()

    async def until_alike(self) -> None:
        nodes = self.mesh.nodes
        await eventually(
            lambda: all(
                nodes[name].engine.path.durable_vector() == nodes["a"].engine.path.durable_vector() for name in NAMES
            )
        )

    async def step(self, name: str, number: int) -> None:
        mesh, rng = self.mesh, self.rng
        what = rng.random()
        if what < 0.45:
            await self.publish(name, number)
        elif what < 0.7:
            await self.settle_in_bulk(name, is_killed=rng.random() < 0.5)
        elif what < 0.8:
            pair = rng.choice(PAIRS)
            if pair in self.cuts:
                self.cuts.discard(pair)
                mesh.heal(*pair)
            else:
                self.cuts.add(pair)
                mesh.cut(*pair)
        elif what < 0.9:
            await mesh.nodes[name].engine.checkpoints.checkpoint()
        else:
            await mesh.kill(name)
            await mesh.start(name)

    async def publish(self, name: str, number: int) -> None:
        client = await self.mesh.connect(name)
        bodies = [f"{name}-{number}-{one}" for one in range(self.rng.randint(1, 6))]
        await client.send(*(send(self.rng.choice((Q, Q, OTHER)), body, body) for body in bodies))
        for _ in bodies:
            self.confirmed.add((await client.receipt()).encode())
        client.pipe.close()

    async def settle_in_bulk(self, name: str, *, is_killed: bool) -> None:
        """Purge or move; with `is_killed` a node dies while it is done."""
        client = await self.mesh.connect(name)
        queue, target = self.rng.choice(((Q, OTHER), (OTHER, Q)))
        headers = {"scope": "mesh"}
        if self.rng.random() < 0.7:
            frame = send(f"/control/move{queue}", "", "r", to=target, **headers)
        else:
            count = self.rng.randint(1, 5)
            self.purged_max += count
            frame = send(f"/control/purge{queue}", "", "r", count=str(count), **headers)
        await client.send(frame)
        if is_killed:
            victim = self.rng.choice(NAMES)
            await trio.sleep(self.rng.random() * 0.2)
            await self.mesh.kill(victim)
            await self.mesh.start(victim)
            if victim == name:
                return
        await client.next("RECEIPT")
        client.pipe.close()


class Model:
    """What the records of a journal say: each message, and where it is."""

    def __init__(self, store: Store) -> None:
        where: dict[Any, tuple[str, bytes]] = {}
        settled: set[Any] = set()
        self.sent: set[bytes] = set()
        position = store.journal.start
        while batches := store.journal.read(position, 1 << 20):
            for start, head, data in batches:
                position = start + head.size
                for record in batch_records(data):
                    dot = (head.origin, record.sequence)
                    if record.kind == RecordKind.PUBLISH:
                        where[dot] = record.destination, record.body
                        self.sent.add(record.body)
                    elif record.kind == RecordKind.SETTLE:
                        settled.update((one.origin, one.sequence) for one in unpack_dots(record.body))
                    elif record.kind == RecordKind.DEAD:
                        _, old, body = unpack_dead(record.body)
                        settled.add((old.origin, old.sequence))
                        where[dot] = record.destination, body
        self.left = Counter(where[dot] for dot in where.keys() - settled)
        self.purged = len(self.sent) - len({body for _, body in self.left})


async def held_by(client: Client, queue: str) -> list[tuple[str, bytes]]:
    """What a browser sees, from all nodes."""
    await client.send(f"SUBSCRIBE\nid:b\ndestination:{queue}\nack:auto\nbrowser:true\n\n")
    found: list[tuple[str, bytes]] = []
    while "browser" not in (message := await client.next("MESSAGE")).head.headers:
        found.append((queue, message.body))
    client.pipe.close()
    return found


async def wrongs(seed: int) -> list[str]:
    """What is wrong in the end."""
    found: list[str] = []
    with patch.object(bulk_jobs, "page_limit", lambda messages, body_bytes: PAGE):
        async with MeshRig(*NAMES, mesh={"takeover": False}).run() as mesh:
            trial = Trial(mesh, seed)
            await trial.run()
            for round_name in ("", " after a checkpoint", " after a restart"):
                for name in NAMES:
                    if round_name == " after a checkpoint":
                        await mesh.nodes[name].engine.checkpoints.checkpoint()
                    elif round_name:
                        await mesh.stop(name)
                        await mesh.start(name)
                        await mesh.until_linked()
                    model = Model(mesh.nodes[name].store)
                    if not trial.confirmed <= model.sent:
                        found.append(f"{name}{round_name} has lost what was confirmed")
                    if model.purged > trial.purged_max:
                        found.append(f"{name}{round_name} misses {model.purged}, and purges were of {trial.purged_max}")
                    held = Counter(
                        [one for queue in (Q, OTHER) for one in await held_by(await mesh.connect(name), queue)]
                    )
                    if held != model.left:
                        found.append(f"{name}{round_name} holds {held - model.left}, misses {model.left - held}")
                    times = Counter(body for _, body in held.elements())
                    if doubled := [body for body, count in times.items() if count > 1]:
                        found.append(f"{name}{round_name} has twice {doubled}")
    return found


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_every_message_is_in_one_queue_once_or_purged(autojump_clock: MockClock, seed: int) -> None:
    assert await wrongs(seed) == []


@contextmanager
def moves_as_two_records() -> Iterator[None]:
    """A copy is accepted in the new queue, and the message is never settled: the second record is lost."""
    settle = Redelivery._settle

    def _settle(self: Redelivery, queue: Any, message: Message, copy: Copy | None, out: Outcome) -> None:
        if copy is None:
            settle(self, queue, message, copy, out)
        else:
            self.dead_letters._publish((message.envelope.to(OTHER),), message.body, out, queue.name, None)

    with patch.object(Redelivery, "_settle", _settle):
        yield


@contextmanager
def moves_without_a_copy() -> Iterator[None]:
    """A message is settled, and its copy is lost."""
    settle = Redelivery._settle

    def _settle(self: Redelivery, queue: Any, message: Message, copy: Copy | None, out: Outcome) -> None:
        settle(self, queue, message, None, out)

    with patch.object(Redelivery, "_settle", _settle):
        yield


PLANTED: tuple[Callable[[], AbstractContextManager[None]], ...] = (
    moves_as_two_records,
    moves_without_a_copy,
)


@pytest.mark.seeded_bug
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.__name__)
async def test_a_seeded_bug_is_found(
    autojump_clock: MockClock, planted: Callable[[], AbstractContextManager[None]]
) -> None:
    found: list[str] = []
    seed = 0
    with planted():
        while not found and seed < SEEDS_MAX:
            found = await wrongs(seed)
            seed += 1

    assert found, f"no seed found it: {planted.__doc__}"
