"""Trouble at each changing call of a node's disk, one after the other; what was receipted is looked for afterwards.

One node alone, so that nothing a disk has lost can come back from a peer. Its clients publish to a fanout and to
queues, also in transactions, settle, let poison messages fail, and read with a durable subscription, while segments
are small and checkpoints frequent. At its call number `point` there is trouble:

- the power goes in the midst of the call, and of what was not synced an arbitrary part is left (`MemoryDisk.crash`);
- or that call and all later ones fail, until the node has ended and the power went as well;
- or only the reserve is left on it for a while: the node refuses, and goes on when there is room again;
- or others take the last byte: the same, with what the reserve's file holds, and then with nothing.

The node is started again, and every second time the power goes again while it recovers. Then the queues are drained
and the fanout is read from its beginning, and each message is compared with what its publisher and its consumer had
been seen.

    python -m tests.simulation.disk.disk_troubles --points 20000
"""

import argparse
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum

import trio

from qmq.broker.messages.send_options import times_of
from qmq.config import (
    Address,
    DestinationPolicy,
    DestinationSettings,
    LimitSettings,
    ListenerSettings,
    NodeSettings,
    StorageSettings,
)
from qmq.environment import Pipe
from qmq.errors import StorageError
from qmq.node.node import Node
from qmq.storage.format.settings import StoreSettings as StoreSettings
from tests.fakes.disk import MemoryDisk
from tests.fakes.store import open_memory_store
from tests.node.rig import HOST, PORT, Client, send, subscribe
from tests.simulation.determinism import run_seeded
from tests.support.defined import defined
from tests.support.network import Fabric
from tests.support.world import SimulatedWorld

F, JOBS, POISON, DEAD = "/fanout/f", "/queue/jobs", "/queue/poison", "/queue/dead-letters"
ROUNDS = 8
"""Of publishing and settling; together some hundred calls of the disk."""

RECOVERY_CALLS = 12
"""The second cut comes within so many calls of the disk, or not at all."""

RESERVE_BYTES = 1 << 16
FULL_SECONDS = 3.0
PUBLISH_SECONDS = 10.0
"""Of virtual time, after which a publisher that was refused is not waited for."""

QUIET_SECONDS = 5.0
"""Virtual time after which a reader has everything."""

STORED = StoreSettings(
    segment_bytes_max=4096, journal_keep_bytes=0, journal_bytes_max=8192, reserve_bytes=RESERVE_BYTES, times_of=times_of
)

Body = Callable[[Node], Awaitable[None]]


class Trouble(StrEnum):
    """What happens at the call."""

    POWER = "power goes"
    FAILURE = "disk fails"
    FULL = "no room"
    TAKEN = "not one byte"


NO_SPACE = (Trouble.FULL, Trouble.TAKEN)


class TroubledDisk(MemoryDisk):
    """A disk with trouble at call number `at`, counted from `arm`."""

    def __init__(self) -> None:
        super().__init__()
        self.began = trio.Event()
        """The trouble has begun."""
        self.made = 0
        """Calls since `arm`."""
        self._at: int | None = None
        self._trouble = Trouble.POWER
        self._power: Callable[[], None] = _nothing

    def arm(self, at: int | None, trouble: Trouble, power: Callable[[], None]) -> None:
        """A new life begins. `power` takes the node off the network, in the very instant in which its power goes."""
        self.began, self.made, self._at = trio.Event(), 0, at
        self._trouble = trouble
        self.make_room()
        self._power = power if trouble is Trouble.POWER else _nothing

    def call(self, kind: str, size: int) -> bool:
        number, self.made = self.made, self.made + 1
        if number == self._at:
            self._power()
            self.began.set()
            if self._trouble in NO_SPACE:
                left = RESERVE_BYTES if self._trouble is Trouble.FULL else self.reserved_bytes
                self.capacity_bytes = self.used_bytes() + left
            else:
                self.fail_at(0)
        return super().call(kind, size)

    def make_room(self) -> None:
        self.capacity_bytes = 1 << 40


def _nothing() -> None:
    pass


@dataclass(slots=True)
class Seen:
    """What clients know: `sent` names messages by destination, `groups` those of one transaction."""

    sent: dict[str, list[str]] = field(default_factory=lambda: {F: [], JOBS: [], POISON: []})
    receipted: set[str] = field(default_factory=set)
    groups: list[tuple[str, ...]] = field(default_factory=list)
    given: set[str] = field(default_factory=set)
    """A consumer or the durable subscription has seen them."""
    acking: set[str] = field(default_factory=set)
    """An ACK was sent."""
    acked: set[str] = field(default_factory=set)
    """It was receipted."""
    marking: set[str] = field(default_factory=set)
    """As `acking`, by the durable subscription."""
    marked: set[str] = field(default_factory=set)


class Trial:
    """A life under load with trouble at disk call `point`, or without (None), and what is found afterwards."""

    def __init__(self, point: int | None, seed: int, trouble: Trouble) -> None:
        self.point = point
        self.wrongs: list[str] = []
        self.calls = 0
        """Of the disk, in the life under load."""
        self._trouble = trouble
        self._rng = random.Random(f"trouble/{seed}/{point}")
        self._seen = Seen()
        self._fabric = Fabric(random.Random(f"trouble/network/{seed}"))
        self._disk = TroubledDisk()
        self._seed = seed
        self._lives = 0
        poison = DestinationPolicy(pattern=POISON, delivery_limit=2, redelivery_seconds_min=0.01)
        self._settings = NodeSettings(
            name="a",
            stomp=(ListenerSettings(address=Address(HOST, PORT)),),
            limits=LimitSettings(farewell_seconds=0.1),
            storage=StorageSettings(checkpoint_bytes=3000, disk_reserve_bytes=RESERVE_BYTES),
            **defined(destinations=DestinationSettings(policies=(poison,))),
        )

    async def run(self) -> None:
        """Load, trouble, recovery, perhaps another cut, and the comparison.

        Without space, a node that has never run cannot write the definitions of its file, and waits without listeners.
        So it has written them in an earlier life.
        """
        if self._trouble in NO_SPACE:
            await self._live(self._wait, None, Trouble.POWER)
        await self._live(self._load, self.point, self._trouble)
        self.calls = self._disk.made
        if self.point is not None and self._rng.random() < 0.5:
            await self._live(self._wait, self._rng.randrange(RECOVERY_CALLS), Trouble.POWER)
        await self._live(self._compare, None, Trouble.POWER)

    async def _live(self, body: Body, at: int | None, trouble: Trouble) -> None:
        """The node runs until it has ended, or until its power goes; `body` stops it in order."""
        self._lives += 1
        rng = random.Random(f"life/{self._seed}/{self._lives}")
        self._fabric.revive(HOST)
        environment = SimulatedWorld(self._fabric.network(HOST), self._disk, rng, 0, 0.002)

        def power() -> None:
            self._fabric.kill(HOST, False)
            environment.dead = True

        self._disk.arm(at, trouble, power)
        try:
            node = Node(
                self._settings, None, open_memory_store(self._disk, node="a", settings=STORED), environment.environment
            )
        except (OSError, StorageError):
            # While the stores were opened, or while the new life was written down.
            if not self._disk.began.is_set():
                raise
            self._disk.crash(self._rng)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run, node, environment)
            nursery.start_soon(self._guarded, body, node)
            nursery.start_soon(self._watch, environment, nursery.cancel_scope)
            await node.ended.wait()
            nursery.cancel_scope.cancel()
        if environment.dead or self._disk.began.is_set():
            self._fabric.kill(HOST, False)
            environment.die(self._rng)
            self._disk.crash(self._rng)

    async def _run(self, node: Node, environment: SimulatedWorld) -> None:
        try:
            await node.run()
        except Exception:
            # What a node without power meets is nobody's business; one whose disk fails has to end.
            if not environment.dead and (self._trouble is not Trouble.FAILURE or not self._disk.began.is_set()):
                raise
        node.ended.set()

    async def _watch(self, environment: SimulatedWorld, scope: trio.CancelScope) -> None:
        await self._disk.began.wait()
        if environment.dead:
            scope.cancel()
        elif self._trouble in NO_SPACE:
            await trio.sleep(FULL_SECONDS)
            self._disk.make_room()

    # While there may be trouble

    async def _wait(self, node: Node) -> None:
        await trio.sleep(QUIET_SECONDS)
        node.stop()

    async def _load(self, node: Node) -> None:
        """Until everything was published and nothing more happens; then an orderly stop."""
        ready, done = [trio.Event() for _ in range(3)], trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._guarded, self._work, ready[0])
            nursery.start_soon(self._guarded, self._fail, ready[1])
            nursery.start_soon(self._guarded, self._mark, ready[2])
            for event in ready:
                await event.wait()
            nursery.start_soon(self._guarded, self._publish, done)
            with trio.move_on_after(PUBLISH_SECONDS):
                await done.wait()
            await trio.sleep(QUIET_SECONDS)
            nursery.cancel_scope.cancel()
        if self._trouble in NO_SPACE:
            await self._once_more()
        node.stop()

    async def _once_more(self) -> None:
        """There is room again, and the node takes messages."""
        client = Client(await self._dial())
        await client.log_in()
        await client.send(send(F, _body("f-again"), "again"))
        self._seen.sent[F].append("f-again")
        await client.receipt()
        self._seen.receipted.add("f-again")

    async def _guarded(self, client: Callable[..., Awaitable[None]], *args: object) -> None:
        """Who talks to a node in trouble finds its connection closed, or is refused."""
        try:
            await client(*args)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, AssertionError):
            if not self._disk.began.is_set():
                raise
            await trio.sleep_forever()

    async def _dial(self) -> Pipe:
        """Patient: the listener opens once the definitions of the file are on the disk."""
        while True:
            try:
                return await self._fabric.dial("10.0.0.1", HOST, PORT)
            except ConnectionRefusedError:
                await trio.sleep(0.01)

    async def _connect(self, destination: str, ack: str, **headers: str) -> Client:
        client = Client(await self._dial())
        await client.log_in()
        await client.send(subscribe(destination, ack=ack, **headers))
        await client.receipt()
        return client

    async def _publish(self, done: trio.Event) -> None:
        seen = self._seen
        client = Client(await self._dial())
        await client.log_in()
        for number in range(ROUNDS):
            names = {destination: f"{destination[-1]}{number}" for destination in (F, JOBS, POISON)}
            frames = {name: send(destination, _body(name), name) for destination, name in names.items()}
            for destination, name in names.items():
                seen.sent[destination].append(name)
            if number % 2:
                await client.send(*frames.values())
                await self._hear(client, *frames)
            else:
                for name, frame in frames.items():
                    await client.send(frame)
                    await self._hear(client, name)
            group = (f"tf{number}", f"ts{number}")
            seen.groups.append(group)
            seen.sent[F].append(group[0])
            seen.sent[JOBS].append(group[1])
            await client.send(
                f"BEGIN\ntransaction:{number}\n\n",
                send(F, _body(group[0]), transaction=str(number)),
                send(JOBS, _body(group[1]), transaction=str(number)),
                f"COMMIT\ntransaction:{number}\nreceipt:t{number}\n\n",
            )
            assert await client.receipt() == f"t{number}"
            seen.receipted.update(group)
        done.set()

    async def _hear(self, client: Client, *names: str) -> None:
        for _ in names:
            self._seen.receipted.add(await client.receipt())

    async def _work(self, ready: trio.Event) -> None:
        """Return every fifth message once, keep every seventh, and settle the others."""
        seen = self._seen
        client = await self._connect(JOBS, "client-individual", prefetch="4")
        ready.set()
        count = 0
        while True:
            frame = await client.any()
            if frame.head.command == "RECEIPT":
                seen.acked.add(frame.head.headers["receipt-id"])
                continue
            name = _name(frame.body)
            seen.given.add(name)
            count += 1
            if count % 5 == 0:
                await client.send(f"NACK\nid:{frame.head.headers['ack']}\n\n")
            elif count % 7:
                seen.acking.add(name)
                await client.send(f"ACK\nid:{frame.head.headers['ack']}\nreceipt:{name}\n\n")

    async def _fail(self, ready: trio.Event) -> None:
        client = await self._connect(POISON, "client-individual", prefetch="2")
        ready.set()
        while True:
            frame = await client.next("MESSAGE")
            self._seen.given.add(_name(frame.body))
            await client.send(f"NACK\nid:{frame.head.headers['ack']}\n\n")

    async def _mark(self, ready: trio.Event) -> None:
        """A durable subscription that settles all but every fourth message."""
        seen = self._seen
        client = await self._connect(F, "client-individual", id="mail", durable="true")
        ready.set()
        count = 0
        while True:
            frame = await client.any()
            if frame.head.command == "RECEIPT":
                seen.marked.add(frame.head.headers["receipt-id"])
                continue
            name = _name(frame.body)
            seen.given.add(name)
            count += 1
            if count % 4:
                seen.marking.add(name)
                await client.send(f"ACK\nid:{frame.head.headers['ack']}\nreceipt:{name}\n\n")

    # Afterwards

    async def _compare(self, node: Node) -> None:
        seen = self._seen
        kept = await self._read(F, qmq_resume="")
        left = await self._read(JOBS)
        failed = await self._read(POISON) + await self._read(DEAD)
        mail = await self._read(F, "client-individual", id="mail", durable="true") if any(seen.sent.values()) else []
        here = seen.receipted | seen.given
        self._count("the fanout", kept, seen.sent[F], here, set(), set())
        if kept != sorted(kept, key=seen.sent[F].index):
            self.wrongs.append(f"the fanout is out of order: {kept}")
        self._count("the queue", left, seen.sent[JOBS], here, seen.acking, seen.acked)
        self._count("poison and dead letters", failed, seen.sent[POISON], here, set(), set())
        self._count("the durable subscription", mail, seen.sent[F], here, seen.marking, seen.marked)
        for of_fanout, of_queue in seen.groups:
            if (of_fanout in kept) != (of_queue in left or of_queue in seen.given):
                self.wrongs.append(f"half of a transaction: {of_fanout}, {of_queue}")
        node.stop()

    async def _read(self, destination: str, ack: str = "auto", **headers: str) -> list[str]:
        """Everything that comes until nothing more does."""
        client = await self._connect(destination, ack, prefetch="1000", **headers)
        names: list[str] = []
        with trio.move_on_after(QUIET_SECONDS):
            while True:
                names.append(_name((await client.next("MESSAGE")).body))
        client.pipe.close()
        return names

    def _count(
        self, where: str, found: list[str], sent: list[str], here: set[str], leaving: set[str], gone: set[str]
    ) -> None:
        """`here` must be found once unless they are `leaving`; `gone` not at all; others at most once."""
        counts = Counter(found)
        for name in counts.keys() - set(sent):
            self.wrongs.append(f"{where} has {name}, which nobody sent there")
        for name in sent:
            least, most = int(name in here and name not in leaving), int(name not in gone)
            if not least <= counts[name] <= most:
                said = [
                    word
                    for word, names in (
                        ("receipted", self._seen.receipted),
                        ("given", self._seen.given),
                        ("settled", gone),
                    )
                    if name in names
                ]
                self.wrongs.append(f"{where} has {name} {counts[name]} times; it was {', '.join(said) or 'sent'}")


def _body(name: str) -> str:
    return f"{name} {'x' * 150}"


def _name(body: bytes) -> str:
    return body.decode().partition(" ")[0]


def meet(trouble: Trouble, point: int | None, seed: int = 0) -> Trial:
    """Run one point; `wrongs` says what is wrong."""
    trial = Trial(point, seed, trouble)
    try:
        errors = run_seeded(seed, trial.run)
    except Exception as error:
        errors = traceback.format_exception(error)
    trial.wrongs += errors
    return trial


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.power_cuts", description=__doc__)
    parser.add_argument("--points", type=int, default=1000, help="how many crash points at least")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--trouble", type=Trouble, choices=list(Trouble), help="only this one")
    arguments = parser.parse_args()
    began, points, seed, wrong = time.monotonic(), 0, arguments.start, 0
    while points < arguments.points:
        for trouble in [arguments.trouble] if arguments.trouble else Trouble:
            calls = meet(trouble, None, seed).calls
            for point in range(calls):
                found = meet(trouble, point, seed)
                if found.wrongs:
                    wrong += 1
                    print(f"seed {seed}, {trouble} at call {point} of {calls}:", *found.wrongs, sep="\n  ", flush=True)
            points += calls
        seed += 1
    seconds = time.monotonic() - began
    print(f"{points} points of {seed - arguments.start} seeds in {seconds:.0f} s: {wrong} with something wrong.")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
