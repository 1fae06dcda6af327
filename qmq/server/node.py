"""One node: everything built, started and stopped, in order, on one screen.

Start: open and recover the store, draw an incarnation and make it durable, restore owned queue messages, then the
commit task, the mesh, and last the client listeners. Stop (SIGTERM): no new connections, read no more, tell everything
decided, close clients and links, checkpoint, close the store. A failed append or fsync is not survived: the exception
leaves `run` and the process ends, because what it decided is not what the disk holds (docs/guarantees.md).
"""

import logging
from collections.abc import Callable
from functools import partial

import trio

from qmq import __version__
from qmq.broker.broker import Broker
from qmq.broker.message import Message
from qmq.broker.outcome import Outcome
from qmq.broker.subscription import Delivery
from qmq.config import ListenerSettings, NodeSettings, PeersFile
from qmq.dots import Origin, Vector
from qmq.gateways.stomp import Rules
from qmq.journal import Replay
from qmq.replication.mesh import Mesh
from qmq.server.beats import Beats
from qmq.server.checkpoints import Checkpoints
from qmq.server.commits import Commits
from qmq.server.control import control_answer
from qmq.server.followers import Followers
from qmq.server.listeners import mesh_contexts, serve_clients
from qmq.server.login import Logins
from qmq.server.session import Session
from qmq.server.status import DESTINATIONS_SHOWN, Alarms
from qmq.server.teller import Teller
from qmq.storage.batch import BatchHead
from qmq.storage.record import Record
from qmq.storage.store import Store
from qmq.wire.stomp import HeadCaches, Limits
from qmq.world import World

HOLD_SECONDS_MAX = 2.0
"""How long a restarted node of a mesh waits to learn from its peers what was settled meanwhile, before it hands out
queue messages of its earlier life. Peers that are down must not keep a queue shut."""

INCARNATION_BITS = 64

log = logging.getLogger("qmq.node")


class Node:
    """A broker node. `store` is opened by the caller and closed by `run`."""

    def __init__(self, settings: NodeSettings, peers: PeersFile | None, store: Store, world: World) -> None:
        limits = settings.limits
        self.settings = settings
        self.limits = limits
        self.world = world
        self.store = store
        self.software = f"qmq/{__version__}"
        self.origin = store.begin_incarnation(world.chance.getrandbits(INCARNATION_BITS), world.now_us())
        journal = store.journal
        self.broker = Broker(
            self.origin,
            journal.vector()[self.origin] + 1,
            bounds=self._queue_bounds,
            subscriptions_max=limits.subscriptions_max,
            transactions_max=limits.transactions_max,
            transaction_frames_max=limits.transaction_frames_max,
            transaction_bytes_max=limits.transaction_bytes_max,
            destinations_max=limits.destinations_max,
        )
        self.replay = Replay(self.broker)
        self.sessions: dict[int, Session] = {}
        self.caches = HeadCaches()
        self.wire_limits = Limits(
            command_bytes_max=limits.command_bytes_max,
            header_line_bytes_max=limits.header_line_bytes_max,
            header_count_max=limits.header_count_max,
            header_bytes_max=limits.header_bytes_max,
            body_bytes_max=limits.body_bytes_max,
            login_bytes_max=limits.login_bytes_max,
        )
        self.rules = Rules(
            policy=self._policy,
            control=partial(control_answer, self),
            prefetch_default=limits.prefetch_default,
            prefetch_max=limits.prefetch_max,
            destination_bytes_max=limits.destination_bytes_max,
        )
        self.logins = Logins(settings.users, limits, world)
        self.beats = Beats()
        self.alarms = Alarms()
        self.fanout_counts: dict[str, int] = {}
        self.addresses: list[tuple[str, int]] = []
        self.started_seconds = trio.current_time()
        self.followers = Followers(self, limits.subscriber_buffer_bytes_default)
        self.teller = Teller(
            self.sessions,
            self.followers,
            self._settle_written,
            outbox_bytes_max=limits.outbox_bytes_max,
            body_bytes_max=limits.body_bytes_max,
            spawn=self.spawn,
        )
        self.commits = Commits(
            journal,
            self.broker,
            world,
            pending_bytes_max=limits.commit_pending_bytes_max,
            tell_now=self.teller.tell_now,
            tell_after=self.teller.tell_after,
            flush=self.teller.flush,
        )
        self.checkpoints = Checkpoints(self, settings.storage)
        self.mesh: Mesh | None = None
        if peers is not None:
            listen_tls, dial_tls = mesh_contexts(settings.mesh.tls) if settings.mesh.tls is not None else (None, None)
            self.mesh = Mesh(
                self,
                peers=peers,
                node=settings.name,
                settings=settings.mesh,
                listen_tls=listen_tls,
                dial_tls=dial_tls,
            )
            self.teller.mesh = self.mesh
        self._received = journal.vector()
        self._caught_up: set[str] = set()
        self._peer_names = [peer.name for peer in peers.nodes if peer.name != settings.name] if peers else []
        # Until a member has told what it has, it has nothing: what only this node holds must not be dropped.
        self.checkpoints.members.update({name: {} for name in self._peer_names})
        self._session_ids = 0
        self._nursery: trio.Nursery | None = None
        self._stop = trio.Event()
        self._draining = trio.CancelScope()
        self.ended = trio.Event()
        self._restore()

    def _restore(self) -> None:
        """Put back what earlier lives of this node left unsettled. In a mesh it is held until peers have told what
        they settled meanwhile (HOLD_SECONDS_MAX)."""
        recovered = self.store.recovered
        self.broker.logged_fanouts.update(self.store.fanouts())
        own = {dot for dot in recovered.tombstones if dot.origin.node == self.origin.node}
        self.broker.queues.settled_early.update(own)
        for dot, record in recovered.messages:
            self.replay.restore(dot.origin, record)
        self.broker.queues.held = bool(self._peer_names)
        for damaged in recovered.quarantined:
            self.alarm("quarantine", f"damaged journal set aside: {damaged}")
        if recovered.lost_positions:
            self.alarm("lost-tail", f"the disk lost {recovered.lost_positions} bytes of journal that it had synced")

    # Running

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `stop`. Ready when started: listening, recovered. Raises StorageError when the disk fails."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self.commits.run)
                nursery.start_soon(self.beats.run)
                nursery.start_soon(self.checkpoints.run)
                async with trio.open_nursery() as serving:
                    if self.mesh is not None:
                        await serving.start(self.mesh.run)
                        serving.start_soon(self._hold_no_longer_than, HOLD_SECONDS_MAX)
                    listeners = [await self._listen(serving, listener) for listener in self.settings.stomp]
                    task_status.started()
                    await self._stop.wait()
                    for close in listeners:
                        close()
                    await self._drain()
                    serving.cancel_scope.cancel()
                self.commits.stop()
                await self.commits.all_told()
                await self.checkpoints.final()
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await self.world.run_blocking(self.store.close)
            self.ended.set()

    def stop(self) -> None:
        """Begin an orderly end; `run` returns when it is done. A second call waits for no client any more."""
        if self._stop.is_set():
            self._draining.cancel()
        self._stop.set()

    async def _listen(self, nursery: trio.Nursery, listener: ListenerSettings) -> Callable[[], None]:
        address, close = await nursery.start(serve_clients, self, listener)
        self.addresses.append(address)
        return close  # type: ignore[no-any-return]  # started() hands the value through untyped

    async def _drain(self) -> None:
        """Read no more, tell what was decided, close the clients; at most `drain_seconds`."""
        log.info("= draining %d connections", len(self.sessions))
        self.logins.close()
        self._draining.deadline = trio.current_time() + self.limits.drain_seconds
        with self._draining:
            sessions = list(self.sessions.values())
            for session in sessions:
                session.end_in_order()
            for session in sessions:
                await session.closed.wait()
            await self.commits.all_told()

    # The commit path

    async def slot(self) -> None:
        await self.commits.slot()

    commit_slot = slot

    async def look_around(self) -> None:
        """Count what is in the fanouts, for `status`; a worker reads what was appended since the last count."""
        self.fanout_counts = await self.world.run_blocking(self._count_fanouts)

    def _count_fanouts(self) -> dict[str, int]:
        names = sorted({*self.store.fanouts(), *list(self.broker.fanouts)})[:DESTINATIONS_SHOWN]
        return {name: self.store.fanout_info(name).records for name in names}

    def submit(self, out: Outcome) -> None:
        """Hand a decision to the commit path and offer peers the credit that it freed. Never waits."""
        self.broker.finish(out, self.world.now_us())
        self._received[self.origin] = self.broker.next_sequence - 1
        # Before anything is told: a cut of our credit must not be overtaken by the messages that we give back.
        if self.mesh is not None:
            if self.broker.wanted_changes:
                changes, self.broker.wanted_changes = self.broker.wanted_changes, {}
                self.mesh.interest_changed(changes)
            if self.broker.queues.touched:
                self.mesh.offer(self.broker.lending.offers())
        else:
            self.broker.queues.touched.clear()
            self.broker.wanted_changes.clear()
        self.commits.submit(out)
        if self.broker.left:
            self.followers.forget(self.broker.left)
            self.broker.left = []

    def _settle_written(self, deliveries: list[Delivery]) -> None:
        by_subscription: dict[int, list[Delivery]] = {}
        for delivery in deliveries:
            by_subscription.setdefault(id(delivery.subscription), []).append(delivery)
        out = Outcome()
        for run in by_subscription.values():
            self.broker.written(run, out)
        self.submit(out)

    def told_end(self) -> int:
        return self.commits.told_end

    def spawn(self, task: Callable[[], object]) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(task)  # type: ignore[arg-type]  # trio wants the coroutine function's full type

    def new_session_id(self) -> int:
        self._session_ids += 1
        return self._session_ids

    def message_of(self, origin: Origin, record: Record) -> Message | None:
        return self.replay.message_of(origin, record)

    # Rules from the configuration

    def _policy(self, destination: str) -> tuple[bool, bool]:
        policy = self.settings.destinations.policy_of(destination)
        if policy is None:
            return self.settings.destinations.create_on_use, True
        return True, policy.durable

    def _queue_bounds(self, destination: str) -> tuple[int, int]:
        policy = self.settings.destinations.policy_of(destination)
        limits = self.limits
        if policy is None:
            return limits.queue_messages_max, limits.queue_bytes_max
        return (
            limits.queue_messages_max if policy.max_messages is None else policy.max_messages,
            limits.queue_bytes_max if policy.max_bytes is None else policy.max_bytes,
        )

    # What the mesh needs of its node (qmq.replication.host)

    def received_vector(self) -> Vector:
        return self._received

    def durable_vector(self) -> Vector:
        return self.store.journal.vector()

    def journal_durable_end(self) -> int:
        return self.commits.told_end

    async def all_told(self) -> None:
        await self.commits.all_told()

    async def journal_grew(self, position: int) -> None:
        await self.commits.grew(position)

    def read_journal(self, position: int, bytes_max: int) -> list[tuple[int, BatchHead, bytes]]:
        return self.store.journal.read(position, bytes_max)

    def seek_journal(self, vector: Vector) -> int:
        return self.store.journal.seek(vector)

    def journal_base(self) -> Vector:
        return self.store.journal.base()

    def accept_gap(self, origin: Origin, through: int) -> None:
        self.alarm("gap", f"records of {origin} up to {through} are no longer kept by any reachable peer")
        out = Outcome()
        self.broker.note_gap(origin, through, self.world.now_us(), out)
        self._received[origin] = max(through, self._received.get(origin, 0))
        self.submit(out)

    def alarm(self, code: str, message: str) -> None:
        self.alarms.raise_alarm(code, message, self.world.now_us())

    def peer_durable(self, peer: str, vector: Vector) -> None:
        self.checkpoints.members[peer] = vector
        self.broker.lending.owner_has(peer, vector.get(self.origin, 0))

    def link_caught_up(self, peer: str) -> None:
        self._caught_up.add(peer)
        if self._caught_up.issuperset(self._peer_names):
            self._release_hold()

    async def _hold_no_longer_than(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self._release_hold()

    def _release_hold(self) -> None:
        if self.broker.queues.held:
            out = Outcome()
            self.broker.queues.release_hold(out)
            self.submit(out)
