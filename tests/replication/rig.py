"""Nodes that are only what links need: a real broker, a journal in a list, pipes in memory, trio's jumping clock.

`Network` breaks on demand: `cut` ends the connections between two nodes and refuses new ones, `silence` lets them
stand and swallows every byte. `Node` obeys `qmq.replication.links.host.Host`; what reaches its clients stands in
`seen`.
"""

import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

import trio

from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Ack, Delivery, Subscription
from qmq.broker.messages.destination import kind_of
from qmq.broker.messages.message import Envelope
from qmq.broker.messages.rules import QueueRules
from qmq.environment import Environment, Tls
from qmq.model.dots import Dot, Origin, Vector, covers, merge
from qmq.model.members import Listing, Membership, Standing
from qmq.record_codec import Replay, encode_group
from qmq.replication.links.outbox import LinkOutbox
from qmq.replication.mesh import Mesh
from qmq.replication.protocol.frames import PeerRequest, Terms
from qmq.storage.format.batch import BatchHead, batch_records, encode_batch, read_head
from qmq.storage.format.record import Record, RecordKind, pack_envelope, pack_record, unpack_dots
from qmq.storage.log.tail_cache import TailCache

T = TypeVar("T")
PIPE_BYTES = 64 << 10
SECRET = "correct horse battery staple"
JOBS = "/queue/jobs"
AT_ONCE = QueueRules(redelivery_us_min=0, delivery_limit=0)
"""Nobody here keeps the time of queues: what a consumer refuses comes back without a pause."""


@dataclass(frozen=True)
class Address:
    host: str
    port: int


@dataclass(frozen=True)
class Peer:
    name: str
    mesh: Address


@dataclass(frozen=True)
class Peers:
    nodes: tuple[Peer, ...]
    mesh: str = "test"
    version: int = 1
    secret: str | None = SECRET


@dataclass(frozen=True)
class Settings:
    redial_seconds_min: float = 0.1
    redial_seconds_max: float = 10.0
    beat_seconds: float = 1.0
    suspicion_seconds: float = 5.0
    redeliver_after_seconds: float = 30.0


def peers_of(names: str, **changes: object) -> Peers:
    """`"ab"`: two nodes, a and b."""
    return Peers(tuple(Peer(name, Address(name, 1)) for name in names), **changes)  # type: ignore[arg-type]


class Pipe:
    """One end of a connection in memory."""

    def __init__(self, network: "Network", here: str, there: str) -> None:
        self.peer_address = there
        self.peer_certificate_names: frozenset[str] = frozenset()
        self.other: Pipe = self
        self.received = bytearray()
        self.ended = self.broken = self.closed = False
        self.sent_bytes = 0
        self._network = network
        self._between = frozenset((here, there))
        self._changed = trio.Event()

    def _stir(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def receive_some(self, bytes_max: int) -> bytes:
        await trio.lowlevel.checkpoint()
        while True:
            if self.closed:
                raise trio.ClosedResourceError
            if self.broken:
                raise trio.BrokenResourceError
            if self.received:
                data = bytes(self.received[:bytes_max])
                del self.received[:bytes_max]
                self.other._stir()
                return data
            if self.ended:
                return b""
            await self._changed.wait()

    def send_now(self, data: bytes) -> int:
        return 0

    async def send_all(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        while data:
            if self.closed:
                raise trio.ClosedResourceError
            if self.broken or self.other.closed:
                raise trio.BrokenResourceError
            room = PIPE_BYTES - len(self.other.received)
            if room <= 0:
                await self._changed.wait()
                continue
            part, data = data[:room], data[room:]
            self.sent_bytes += len(part)
            if self._between not in self._network.silent:
                self.other.received += part
                self.other._stir()

    def end_sending(self) -> None:
        self.other.ended = True
        self.other._stir()

    def break_now(self) -> None:
        self.broken = True
        self._stir()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if self._between not in self._network.silent:
                self.other.ended = True
                self.other._stir()
            self._stir()


class Listener:
    def __init__(self, network: "Network", name: str) -> None:
        self.address = (name, 1)
        self._network = network
        self._send, self._receive = trio.open_memory_channel[Pipe](100)
        network.listeners[name] = self

    def offer(self, pipe: Pipe) -> None:
        self._send.send_nowait(pipe)

    async def accept(self) -> Pipe:
        return await self._receive.receive()

    def close(self) -> None:
        if self._network.listeners.get(self.address[0]) is self:
            del self._network.listeners[self.address[0]]


class Network:
    """All connections of a test."""

    def __init__(self) -> None:
        self.listeners: dict[str, Listener] = {}
        self.pipes: list[Pipe] = []
        self.silent: set[frozenset[str]] = set()
        self.cuts: set[frozenset[str]] = set()
        self.deaf: set[str] = set()
        """Nodes that nobody can dial."""
        self.dials = 0

    def seen_from(self, name: str) -> "NetworkOf":
        return NetworkOf(self, name)

    def cut(self, one: str, other: str) -> None:
        between = frozenset((one, other))
        self.cuts.add(between)
        for pipe in self.pipes:
            if pipe._between == between:
                pipe.break_now()

    def silence(self, one: str, other: str) -> None:
        self.silent.add(frozenset((one, other)))

    def heal(self) -> None:
        self.cuts.clear()
        self.silent.clear()

    def open_pipes(self) -> list[Pipe]:
        return [pipe for pipe in self.pipes if not pipe.closed]


class NetworkOf:
    """The network as one node sees it."""

    def __init__(self, network: Network, name: str) -> None:
        self._network = network
        self._name = name

    async def connect(self, host: str, port: int, tls: Tls | None, server_name: str) -> Pipe:
        await trio.lowlevel.checkpoint()
        network = self._network
        network.dials += 1
        between = frozenset((self._name, host))
        if between in network.silent:
            await trio.sleep_forever()
        if between in network.cuts or host in network.deaf or host not in network.listeners:
            raise ConnectionRefusedError(host)
        near, far = Pipe(network, self._name, host), Pipe(network, host, self._name)
        near.other, far.other = far, near
        network.pipes += [near, far]
        network.listeners[host].offer(far)
        return near

    async def listen(self, host: str, port: int, tls: Tls | None) -> Listener:
        await trio.lowlevel.checkpoint()
        return Listener(self._network, self._name)


class ListJournal:
    """Batches in a list; positions count bytes. `drop_before` is what retention does."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, BatchHead, bytes]] = []
        self.end = 0
        self.vector: Vector = {}
        self.base: Vector = {}
        self.recent = TailCache()

    def append(self, data: bytes) -> None:
        head = read_head(data)
        assert head is not None
        assert head.first == self.vector.get(head.origin, 0) + 1, f"{head!r} does not continue {self.vector}"
        self.batches.append((self.end, head, data))
        self.recent.add(self.end, head, data)
        self.end += len(data)
        self.vector[head.origin] = head.last

    def lose(self, index: int) -> None:
        """A batch is damaged, and no longer in memory either."""
        del self.batches[index]
        self.recent = TailCache()

    def drop_before(self, index: int) -> None:
        for _, head, _ in self.batches[:index]:
            self.base[head.origin] = head.last
        del self.batches[:index]

    def read(self, position: int, bytes_max: int) -> list[tuple[int, BatchHead, bytes]]:
        found: list[tuple[int, BatchHead, bytes]] = []
        for begin, head, data in self.batches:
            if begin >= position:
                found.append((begin, head, data))
                bytes_max -= len(data)
                if bytes_max <= 0:
                    break
        return found

    def seek(self, vector: Vector) -> int:
        for begin, head, _ in self.batches:
            if not covers(vector, {head.origin: head.last}):
                return begin
        return self.end

    def of(self, origin: Origin) -> list[bytes]:
        return [data for _, head, data in self.batches if head.origin == origin]


class LogOfLinks:
    """A list of batches, as links read it."""

    def __init__(self, journal: ListJournal) -> None:
        self._journal = journal
        self.end = journal.end
        self.read = journal.read
        self.read_recent = journal.recent.since
        self.seek = journal.seek

    def vector(self) -> Vector:
        return dict(self._journal.vector)

    def base(self) -> Vector:
        return dict(self._journal.base)


class Node:
    """One node. Its journal may be handed to the next life."""

    def __init__(
        self,
        network: Network,
        name: str,
        peers: Peers,
        *,
        incarnation: int = 1,
        journal: ListJournal | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.name = name
        self._origin = Origin(name, incarnation)
        self.journal = ListJournal() if journal is None else journal
        self._broker = Broker(self._origin, 1, rules_of=lambda name: AT_ONCE)
        self._replay = Replay(self._broker)
        self._environment = Environment(
            network=network.seen_from(name),
            rng=random.Random(f"{name}{incarnation}"),
            now_us=lambda: 1_000_000,
            run_blocking=self._run_blocking,
            boot_seconds=trio.current_time,
            run_commit=self._commit,
        )
        self.membership = Membership(name, Listing(peers.version, frozenset(peer.name for peer in peers.nodes)))
        self._received: Vector = dict(self.journal.vector)
        self.settings = Settings() if settings is None else settings
        self.mesh = Mesh(self, peers=peers, settings=self.settings)
        self.reports: list[tuple[str, str]] = []
        self.answers: list[tuple[str, int, bytes]] = []
        self.caught_up: list[str] = []
        self.seen: list[bytes] = []
        self.fanouts: list[tuple[Origin, bytes]] = []
        self.deliveries: list[Delivery] = []
        self.peer_vectors: dict[str, Vector] = {}
        # Take one of these away (put a new Event) to hold up readers of the journal, deciders, or the commit task.
        self.disk = trio.Event()
        self.disk.set()
        self.slots = trio.Event()
        self.slots.set()
        self.committing = trio.Event()
        self.committing.set()
        self._queue: list[Outcome] = []
        self._work = trio.Event()
        self._grew = trio.Event()
        self._submitted = self._told = 0
        self._tags = count(1)
        self.session = self._broker.open_session(1)
        self.cancel = trio.CancelScope()
        self._restore()

    def _restore(self) -> None:
        """What an earlier life of this node had accepted and nobody has settled."""
        owned: dict[Dot, Record] = {}
        settled: set[Dot] = set()
        for _, head, data in self.journal.batches:
            for record in batch_records(data):
                if record.kind == RecordKind.SETTLE:
                    settled.update(unpack_dots(record.body))
                elif head.origin.node == self.name and record.destination.startswith("/queue/"):
                    owned[Dot(head.origin, record.sequence)] = record
        for dot, record in owned.items():
            if dot not in settled:
                self._replay.restore(dot.origin, record)
        self._broker.queues.owned.settled_early = {
            dot for dot in settled - owned.keys() if dot.origin.node == self.name
        }
        self._broker.queues.held = bool(self.journal.batches)

    async def _run_blocking(self, call: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        await self.disk.wait()
        return call()

    async def _commit(self, call: Callable[[], T], *, is_lone: bool = False) -> T:
        return await self._run_blocking(call)

    # Host

    @property
    def origin(self) -> Origin:
        return self._origin

    @property
    def broker(self) -> Broker:
        return self._broker

    @property
    def replay(self) -> Replay:
        return self._replay

    @property
    def environment(self) -> Environment:
        return self._environment

    def submit(self, out: Outcome) -> None:
        self.broker.finish(out, 1_000_000)
        for run in out.topic_runs:
            self.seen += [message.body for message in run.messages]
        for deliveries in out.deliveries_now.values():
            self._deliver(deliveries)
        for peer, messages in out.peer_topics.items():
            self.mesh.send_topics(peer, messages)
        for origin, messages in out.peer_replies.items():
            self.mesh.send_replies(origin, messages)
        for peer, dots in out.peer_settled_now.items():
            self.mesh.settled(peer, dots)
        for peer, returns in out.peer_returns.items():
            self.mesh.give_back(peer, returns)
        self._queue.append(out)
        self._submitted += 1
        self._work.set()
        self.mesh.offer(self.broker.borrowing.offers())
        if out.interest_changes:
            self.mesh.routes.own_changed(out.interest_changes)

    async def commit_slot(self) -> None:
        await self.slots.wait()

    async def flushed(self) -> None:
        wanted = self._submitted
        while self._told < wanted:
            await self._grew.wait()

    def received_vector(self) -> Vector:
        return self._received

    def durable_vector(self) -> Vector:
        return self.journal.vector

    def committed_end(self) -> int:
        return self.journal.end

    async def grew(self, position: int) -> None:
        while self.journal.end <= position:
            await self._grew.wait()

    @property
    def log(self) -> "LogOfLinks":
        return LogOfLinks(self.journal)

    @property
    def path(self) -> "Node":
        return self

    tail = conditions = follower = terms = path

    def accept_gap(self, origin: Origin, through: int) -> None:
        merge(self._received, {origin: through})
        merge(self.journal.vector, {origin: through})
        merge(self.journal.base, {origin: through})
        self.add_event("gap", f"{origin} {through}")

    def schedule_repair(self) -> None:
        """Nobody here has stores, so nobody knows what is left of a gap."""
        while (todo := self.mesh.next_repair()) is not None:
            missing = todo.missing
            for peer in todo.peers:
                self.mesh.gaps.lost(peer, missing.origin, missing.through)
            if not todo.peers:
                self.accept_gap(missing.origin, missing.through)

    def link_caught_up(self, peer: str) -> None:
        self.caught_up.append(peer)
        if self.broker.queues.held and set(self.caught_up) >= set(self.link_states()):
            out = Outcome()
            self.broker.queues.release_hold(out)
            self.submit(out)

    def peer_durable(self, peer: str, vector: Vector) -> None:
        self.peer_vectors[peer] = vector

    def peer_knows(self, peer: str, vector: Vector) -> None:
        """Nobody loses a disk here."""

    def refused_as_retired(self, peer: str) -> None:
        """Nobody leaves for good here."""

    def membership_received(self, peer: str, standing: Standing) -> None:
        self.membership.hear(peer, standing)

    def interest_progressed(self) -> None:
        """Nobody waits for it here."""

    terms_served: Mapping[str, int] = {}

    def terms_came(self, peer: Origin, frame: Terms, way: LinkOutbox, out: Outcome) -> None:
        raise AssertionError("these nodes send nothing about terms")

    def greet(self, way: LinkOutbox) -> None:
        """These nodes send no beats."""

    def may_borrow(
        self, peer: str, terms: Mapping[str, int], echo_us: int, owners: set[str]
    ) -> Mapping[str, bool | None]:
        return dict.fromkeys(owners, True)

    def held_came(self, peer: str) -> None:
        """These nodes hold nothing back."""

    def links_changed(self) -> None:
        """Nobody watches these nodes."""

    def request_received(self, peer: Origin, number: int, request: PeerRequest, way: LinkOutbox) -> None:
        self.mesh.answer(peer, number, request.kind.encode() + request.body[::-1], way)

    def response_received(self, peer: Origin, number: int, answer: bytes) -> None:
        self.answers.append((peer.node, number, answer))

    def raise_condition(self, code: str, message: str) -> None:
        self.reports.append((code, message))

    def add_event(self, code: str, message: str) -> None:
        self.reports.append((code, message))

    def clear_condition(self, code: str, message: str) -> None:
        self.reports.remove((code, message))

    # What a server does

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with self.cancel:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._commit)
                await nursery.start(self.mesh.run)
                task_status.started()

    async def _commit(self) -> None:
        while True:
            await self._work.wait()
            await self.committing.wait()
            await trio.sleep(0.001)
            self._work = trio.Event()
            group, self._queue = self._queue, []
            for batch in encode_group(self.origin, group):
                self.journal.append(batch)
            for out in group:
                for run in out.fanout_runs:
                    self.fanouts += [(message.origin, message.body) for message in run.messages]
                for deliveries in out.deliveries_after.values():
                    self._deliver(deliveries)
                for peer, messages in out.peer_deliveries.items():
                    self.mesh.lend(peer, messages)
                for peer, dots in out.peer_settled_after.items():
                    self.mesh.settled(peer, dots)
            self._told += len(group)
            self._grew.set()
            self._grew = trio.Event()

    def _deliver(self, deliveries: list[Delivery]) -> None:
        self.deliveries += deliveries
        for delivery in deliveries:
            delivery.sent = True
        self.seen += [delivery.message.body for delivery in deliveries]

    # What clients do

    def send(self, destination: str, *bodies: bytes, durable: bool = True) -> None:
        out = Outcome()
        kind = kind_of(destination)
        sends = Envelope(destination, kind, b"", durable and not destination.startswith("/topic/"))
        for body in bodies:
            self.broker.send(sends, body, 1_000_000, out)
        if sends.durable:
            self._received[self.origin] = self.broker.next_sequence - 1
        self.submit(out)

    def subscribe(self, destination: str, *, credit: int = 100) -> Subscription:
        out = Outcome()
        number = str(next(self._tags))
        subscription = Subscription(1, number, destination, Ack.CLIENT_INDIVIDUAL, credit, b"")
        self.broker.subscriptions.subscribe(subscription, out)
        self.submit(out)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        out = Outcome()
        self.broker.subscriptions.unsubscribe(1, subscription.id, out)
        self.submit(out)

    def settle(self, body: bytes) -> None:
        out = Outcome()
        for delivery in [d for d in self.broker.queues.deliveries.values() if d.message.body == body]:
            self.broker.acknowledge(delivery, out)
        self.submit(out)
        self._received[self.origin] = self.broker.next_sequence - 1

    def link_states(self) -> dict[str, tuple[str, str]]:
        return {peer.name: (peer.out_state, peer.in_state) for peer in self.mesh.statistics().peers}

    @property
    def is_linked(self) -> bool:
        return all(states == ("caught-up", "up") for states in self.link_states().values())


@asynccontextmanager
async def running(*nodes: Node, linked: bool = True) -> AsyncIterator[trio.Nursery]:
    """The nodes, started; with `linked`, every link is up and caught up."""
    async with trio.open_nursery() as nursery:
        for node in nodes:
            await nursery.start(node.run)
        if linked:
            await until(lambda: all(node.is_linked for node in nodes))
        yield nursery
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool], seconds: float = 120.0, *, step: float = 0.01) -> None:
    """Let virtual time pass until `condition` holds; fails when it does not within `seconds`."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 (any state may be waited for, and not all of it has an event)
            await trio.sleep(step)


def batch_of(origin: Origin, first: int, last: int, *, body: bytes = b"x", kind: int = RecordKind.PUBLISH) -> bytes:
    """A journal batch of `origin`, as its own node would write it."""
    envelope = pack_envelope("/fanout/news", b"")
    records = [pack_record(sequence, 1, kind, 0, envelope, body) for sequence in range(first, last + 1)]
    return encode_batch(origin, records, first, last, 1, 1)
