"""One node: everything built, started and stopped, in order.

Start: open and recover the store, draw an incarnation and make it durable, restore owned queue messages, then the
commit task, the mesh, and last the client listeners. Stop (SIGTERM): no new connections, let clients finish and go
(`draining`), close links, checkpoint, close the store. A failed append or fsync is not survived: the exception
leaves `run` and the process ends, because what it decided is not what the disk holds (docs/guarantees.md).

Long for one module: it is the list of the node's parts, and for each what it asks of the others; a part that has
rules of its own has a module of its own.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial

import trio

from qmq import __version__
from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Delivery, Subscription
from qmq.broker.messages.destination import JOURNAL
from qmq.broker.messages.message import Message
from qmq.config import ListenerSettings, NodeSettings, PeersFile
from qmq.dots import Origin, Vector
from qmq.environment import Environment
from qmq.errors import DiskFull
from qmq.members import Membership, Standing
from qmq.record_codec import Replay
from qmq.replication.links.outbox import LinkOutbox
from qmq.replication.mesh import Mesh
from qmq.replication.protocol.takeover_frames import Terms
from qmq.server.admin.control import control_response, respond_to_peer
from qmq.server.admin.deletion import note_deletions
from qmq.server.admin.policies import Policies, broker_limits, wire_limits
from qmq.server.admin.status import DESTINATIONS_SHOWN, Alarms, peers_of
from qmq.server.admin.system import SystemTopics
from qmq.server.checkpoint.checkpoints import Checkpoints
from qmq.server.checkpoint.queue_count import QueueCount
from qmq.server.checkpoint.queue_pager import QueuePager
from qmq.server.clients.admission import Admission
from qmq.server.clients.draining import drain_clients, hand_over
from qmq.server.clients.listeners import serve_clients
from qmq.server.clients.login import Logins
from qmq.server.clients.memory_budget import MemoryBudget, default_bytes_max
from qmq.server.clients.refusals import Refusals
from qmq.server.clients.rights import check_right, note_if_open
from qmq.server.clients.session import ClientSession
from qmq.server.clients.subscriber_buffers import SubscriberBuffers
from qmq.server.commit.commits import Commits
from qmq.server.commit.receipts import Receipts
from qmq.server.commit.replica_acks import ReplicaAcks
from qmq.server.delivery.browsing import Browsing
from qmq.server.delivery.deadline_timer import DeadlineTimer
from qmq.server.delivery.dispatcher import Dispatcher
from qmq.server.delivery.fanout_subscribers import FanoutSubscribers
from qmq.server.delivery.journal_reads import JournalReads
from qmq.server.delivery.retained_delivery import RetainedDelivery
from qmq.server.membership.adopt_queues import QueueAdoption, is_about_holding, respond_holding
from qmq.server.membership.clock_check import ClockCheck
from qmq.server.membership.decommission import Decommission, is_about_hearing, respond_hearing
from qmq.server.membership.members import LiveMembership
from qmq.server.membership.start_hold import StartHold
from qmq.server.membership.takeover import Takeover
from qmq.server.peers.answers import ControlResponse
from qmq.server.peers.dedup_query import DedupQuery, is_about_retries, replay_ids
from qmq.server.peers.rpc import PeerRpc
from qmq.server.repair.catch_up import CatchUp, is_about_repairs
from qmq.server.repair.fanout_logs import FanoutRepair
from qmq.server.repair.incarnation_gc import IncarnationGc
from qmq.server.repair.quarantine import QuarantineRestore, is_about_quarantine
from qmq.server.repair.queue_store import QueueStoreRepair
from qmq.server.runtime.certificates import Certificates
from qmq.server.runtime.heartbeats import Heartbeats
from qmq.storage.catalog.facts import UNSEEN
from qmq.storage.format.batch import BatchHead
from qmq.storage.format.interfaces import MissingRange
from qmq.storage.format.lost_record import LostRange, pack_lost
from qmq.storage.format.record import Record, RecordKind
from qmq.storage.log.recovery import in_words
from qmq.storage.queues.served_rows import ServedRows
from qmq.storage.store import Store
from qmq.wire.stomp import HeadCaches

INCARNATION_BITS = 64

REPAIR_SECONDS = 10.0
"""How long a peer may take for an answer that its stores have to look for."""

COUNT_SECONDS = 2.0
"""What a status waits for the stores."""

QUEUES_LOOKED_AT = 1000
"""Of those in the queue store, for the status. `qmq queues` lists them all."""

log = logging.getLogger("qmq.node")


class Node:
    """A broker node. `store` is opened by the caller and closed by `run`."""

    def __init__(
        self,
        settings: NodeSettings,
        peers: PeersFile | None,
        store: Store,
        environment: Environment,
        *,
        trusts_clock: bool = False,
    ) -> None:
        limits = settings.limits
        self.settings = settings
        self.limits = limits
        self.environment = environment
        self.store = store
        self.software = f"qmq/{__version__}"
        self.policies = Policies(self)
        self.certificates = Certificates()
        self.mesh: Mesh | None = None
        self.members = LiveMembership(self, peers)
        self.origin = store.begin_incarnation(environment.rng.getrandbits(INCARNATION_BITS), environment.now_us())
        journal = store.journal
        self.broker = Broker(
            self.origin,
            journal.vector()[self.origin] + 1,
            rules_of=self.policies.queue_rules,
            defaults_of=self.policies.queue_defaults,
            limits=broker_limits(limits),
        )
        self.broker.abilities.of_members(self.peer_names)
        self.replay = Replay(self.broker)
        self.start_hold = StartHold(self)
        self.takeover = Takeover(self, settings.mesh)
        self.replay.on_term = self.takeover.noted
        self.broker.queues.shared.has_stored = not store.queues.is_empty(settings.name)
        self.sessions: dict[int, ClientSession] = {}
        self.caches = HeadCaches()
        self.wire_limits = wire_limits(limits)
        self.rules = self.policies.gateway_rules()
        self.admission = Admission(limits)
        self.logins = Logins(settings.users, limits, environment)
        self.beats = Heartbeats()
        self.refusals = Refusals(self.beats)
        self.alarms = Alarms()
        self.system = SystemTopics(self, settings.name, partial(peers_of, self))
        self.fanout_counts: dict[str, int] = {}
        self.stored_counts: dict[str, tuple[int, int]] = {}
        self._counted: trio.Event | None = None
        self.addresses: list[tuple[str, int]] = []
        self.started_seconds = trio.current_time()
        self.memory_budget = MemoryBudget(self, limits.memory_bytes_max or default_bytes_max())
        self.buffers = SubscriberBuffers(limits.outbox_bytes_max, self.memory_budget.change)
        self.followers = FanoutSubscribers(self, limits.subscriber_buffer_bytes_default)
        self.retained_delivery = RetainedDelivery(
            self.sessions,
            self.broker.retained,
            self.buffers,
            outbox_bytes_max=limits.outbox_bytes_max,
            spawn=self.spawn,
        )
        self.receipts = Receipts(
            ReplicaAcks(
                self.peer_names,
                settings.mesh.receipt_degrade_seconds,
                settings.mesh.interest_confirm_seconds,
                self.takeover.settled_through,
            ),
            self.beats,
            say=lambda answer: self.dispatcher.say(answer),
            flush=self.flush,
            refuses=settings.mesh.receipt_short == "refuse",
        )
        self.dispatcher = Dispatcher(
            self.sessions,
            self.followers,
            self.buffers,
            self.retained_delivery,
            self._settle_written,
            self._begin_time,
            outbox_bytes_max=limits.outbox_bytes_max,
            body_bytes_max=limits.body_bytes_max,
            spawn=self.spawn,
            receipts=self.receipts,
        )
        self.commits = Commits(
            journal,
            self.broker,
            environment,
            pending_bytes_max=limits.commit_pending_bytes_max,
            before_commit=self.dispatcher.before_commit,
            after_commit=self.dispatcher.after_commit,
            flush=self.dispatcher.flush,
            on_short=self._ran_short,
        )
        self.queue_pager = QueuePager(
            self,
            limits.queue_messages_in_memory_max,
            limits.queue_bytes_in_memory_max,
            settings.storage.checkpoint_bytes,
        )
        self.deadline_timer = DeadlineTimer(self)
        self.catch_up = CatchUp(self)
        self.fanout_repair = FanoutRepair(self)
        self.queue_store_repair = QueueStoreRepair(self)
        self.decommission = Decommission(self)
        self.queue_adoption = QueueAdoption(self)
        self.queue_count = QueueCount(self)
        self.incarnation_gc = IncarnationGc(self)
        self.quarantine_restore = QuarantineRestore(self)
        self.broker.forgotten = self.incarnation_gc.seals.forgotten
        self.replay.on_seal = self.incarnation_gc.came
        self.peer_rpc = PeerRpc(self.spawn, self._respond_to_peer)
        self.dedup_query = DedupQuery(self)
        self.clock_check = ClockCheck(self, is_trusted=trusts_clock)
        self.checkpoints = Checkpoints(self, settings.storage)
        self.browsing = Browsing(self)
        self.journal_reads = JournalReads(self)
        self.dispatcher.browse = self._serve_apart
        if peers is not None:
            tls = settings.mesh.tls
            listen_tls, dial_tls = (None, None) if tls is None else self.certificates.for_links(tls)
            self.mesh = Mesh(
                self,
                peers=peers,
                node=settings.name,
                settings=settings.mesh,
                listen_tls=listen_tls,
                dial_tls=dial_tls,
            )
            self.dispatcher.mesh = self.mesh
            self.receipts.interest = self.mesh
            self.peer_rpc.links = self.mesh
            self.catch_up.links = self.mesh
            self.fanout_repair.links = self.mesh
            self.queue_store_repair.links = self.mesh
            self.incarnation_gc.links = self.mesh
            self.quarantine_restore.links = self.mesh
            self.mesh.never_again(self.incarnation_gc.seals.forgotten)
        self._received = journal.vector()
        self._caught_up: set[str] = set()
        # Until a member has told what it has, it has nothing: what only this node holds must not be dropped.
        self.checkpoints.members.update({name: {} for name in self.peer_names})
        self._session_ids = 0
        self._damage_reported: set[str] = set()
        self._rows_met = 0
        self._nursery: trio.Nursery | None = None
        self._interest_heard = trio.Event()
        self._stop = trio.Event()
        self._draining = trio.CancelScope()
        self.ended = trio.Event()
        self._restore()

    def _restore(self) -> None:
        """Put back what earlier lives of this node left unsettled. In a mesh it is held until peers have told what
        they settled meanwhile and hold (`StartHold`)."""
        recovered = self.store.recovered
        self.broker.admission.logged_fanouts.update(self.store.fanouts())
        self.broker.deletions = recovered.deletions
        self.broker.durable_subscriptions.restore(recovered.cursors, recovered.given_up, recovered.gone)
        self.broker.received = self.received_vector
        self.broker.is_leaving = self._is_leaving
        own = {dot for dot in recovered.tombstones if dot.origin.node == self.origin.node}
        self.broker.queues.settled_early.update(own)
        if not recovered.messages:
            self.broker.queues.paging.starts_with(recovered.vector)
        for queue, dots in recovered.settled.items():
            self.broker.queues.paging.settled_before(queue, dots)
        self.broker.queues.paging.attempts.update(recovered.attempts)
        if UNSEEN in self.store.catalog.facts():
            self.broker.queues.paging.is_unseen = True
            self.store.catalog.set_facts({UNSEEN: None})
        for dot, record in recovered.messages:
            self.replay.restore(dot.origin, record)
        self.broker.queues.held = self.takeover.is_starting = bool(self.peer_names)
        if self.peer_names:
            self.takeover.begin()
        replay_ids(self.store.journal, self.broker.dedup, self.environment.now_us())
        for message in in_words(recovered.quarantined):
            self.alarm("quarantine", message)
        self.check_damage()
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
                nursery.start_soon(self.system.run)
                nursery.start_soon(self.checkpoints.run)
                nursery.start_soon(self.queue_pager.run)
                nursery.start_soon(self.deadline_timer.run)
                nursery.start_soon(self.members.run)
                nursery.start_soon(self.catch_up.run)
                nursery.start_soon(self.fanout_repair.run)
                nursery.start_soon(self.queue_store_repair.run)
                nursery.start_soon(self.incarnation_gc.run)
                nursery.start_soon(self.quarantine_restore.run)
                nursery.start_soon(self.queue_adoption.run)
                nursery.start_soon(self.clock_check.run)
                nursery.start_soon(self.queue_count.run)
                async with trio.open_nursery() as serving:
                    self.incarnation_gc.look()
                    if self.mesh is not None:
                        await serving.start(self.mesh.run)
                        serving.start_soon(self._hold_at_start)
                        serving.start_soon(self.takeover.run)
                        await self._learn_interest(self.mesh)
                    listeners = [await self._listen(serving, listener) for listener in self.settings.stomp]
                    note_if_open(self.settings)
                    task_status.started()
                    await self._stop.wait()
                    for close in listeners:
                        close()
                    await self._drain()
                    serving.cancel_scope.cancel()
                self.refusals.close()
                # So that the next start replays next to nothing. While commits still run, for what expires meanwhile
                # waits to be told, and a checkpoint waits for that.
                await self.checkpoints.bring_up()
                await self.clock_check.note()
                if self.broker.queues.paging.leaves_unseen(
                    await self.environment.run_blocking(self.store.queues.origins)
                ):
                    with suppress(DiskFull):
                        await self.environment.run_blocking(partial(self.store.catalog.set_facts, {UNSEEN: ""}))
                self.commits.stop()
                await self.commits.flushed()
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await self.environment.run_blocking(self.store.close)
            self.ended.set()

    def stop(self) -> None:
        """Begin an orderly end; `run` returns when it is done. A second call waits for no client any more."""
        if self._stop.is_set():
            self._draining.cancel()
        else:
            # At once: the clients who want to know are let go next.
            self.system.note("stopping")
            self.system.tell()
        self._stop.set()

    async def _listen(self, nursery: trio.Nursery, listener: ListenerSettings) -> Callable[[], None]:
        address, close = await nursery.start(serve_clients, self, listener)
        self.addresses.append(address)
        return close  # type: ignore[no-any-return]  # started() hands the value through untyped

    async def _drain(self) -> None:
        """Let clients finish and go, then peers get what they lack; until a second call of `stop`."""
        self.admission.close()
        with self._draining:
            await drain_clients(self)
            if self.mesh is not None:
                await hand_over(self, self.mesh)
        # Also after a second call of `stop`: a full disk must not keep the node from its end.
        self.commits.stop_waiting_for_space()

    # The commit path

    async def slot(self, session: int = 0, *, asks: bool = False) -> None:
        await self.dispatcher.selecting.told(session)
        if not asks:
            await self.receipts.slot()
            await self.queue_pager.slot()
            await self.commits.slot()
        self.takeover.check()

    def after_delivery(self, session: int, do: Callable[[], None]) -> None:
        self.dispatcher.selecting.after_delivery(session, do)

    async def commit_slot(self) -> None:
        await self.dispatcher.selecting.told(0)
        await self.commits.slot()
        self.takeover.check()

    def served_rows(self) -> ServedRows:
        """What is in the queue store of the messages that this node serves now."""
        queues = self.broker.queues
        return ServedRows(self.store.queues, queues.handoff.serves, dict(queues.shared.clocks.served_us))

    async def refresh_counts(self) -> None:
        """Count what is in the fanouts, for `status`; a worker reads what was appended since the last count.

        Where the stores take longer than `COUNT_SECONDS`, the last count stands.
        """
        if self._counted is None:
            self._counted = trio.Event()
            self.spawn(self._count)
        with trio.move_on_after(COUNT_SECONDS):
            await self._counted.wait()

    async def _count(self) -> None:
        self.fanout_counts = await self.environment.run_blocking(self._count_fanouts)
        listing = partial(self.served_rows().listing, None, QUEUES_LOOKED_AT)
        stored = await self.environment.run_blocking(listing)
        self.stored_counts = {name: (messages, body_bytes) for name, messages, body_bytes in stored}
        assert self._counted is not None
        self._counted.set()
        self._counted = None

    async def answer(self, user: str | None, headers: Mapping[str, str]) -> ControlResponse:
        return await control_response(self, headers, partial(self.check_right, user), user)

    async def _respond_to_peer(self, request: bytes) -> bytes:
        if is_about_repairs(request):
            return await self.catch_up.answer(request)
        if is_about_quarantine(request):
            return await self.quarantine_restore.answer(request)
        if is_about_retries(request):
            return await self.dedup_query.answer(request)
        if is_about_hearing(request):
            return respond_hearing(self, request)
        if is_about_holding(request):
            return respond_holding(self, request)
        return await respond_to_peer(self, request)

    def check_right(self, user: str | None, destination: str) -> None:
        check_right(user, self.settings.users, destination)

    def _count_fanouts(self) -> dict[str, int]:
        names = sorted({*self.store.fanouts(), *list(self.broker.fanouts)})[:DESTINATIONS_SHOWN]
        return {name: self.store.fanout_info(name).records for name in names}

    def submit(self, out: Outcome) -> None:
        """Hand a decision to the commit path and offer peers the credit that it freed. Never waits."""
        self.broker.finish(out, self.environment.now_us())
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
            self.broker.queues.shared.withdrawn.clear()
            self.broker.wanted_changes.clear()
        out.sequence = self.broker.next_sequence - 1 if out.records or out.repeats else 0
        self.commits.submit(out)
        if out.loads:
            self.queue_pager.want(out.loads)
        self.deadline_timer.decided()
        if self.queue_pager.wants_checkpoint():
            self.schedule_checkpoint()
        if self.broker.left:
            self.followers.forget(self.broker.left)
            self.broker.left = []
        if self.broker.watchers_new:
            self.system.answer(self.broker.watchers_new)
            self.broker.watchers_new = []
        self.followers.feeds.poll_again()
        if self.broker.deletions_new:
            deleted, self.broker.deletions_new = self.broker.deletions_new, []
            note_deletions(self, deleted)

    def _ran_short(self) -> None:
        self.checkpoints.ran_short()

    def _begin_time(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Of deliveries under an ack-timeout; see `Queues.told`. The timekeeper hears of it after this pass."""
        told = self.broker.queues.told(deliveries, self.environment.now_us())
        self.deadline_timer.decided()
        return told

    def _settle_written(self, deliveries: list[Delivery]) -> None:
        by_subscription: dict[int, list[Delivery]] = {}
        for delivery in deliveries:
            by_subscription.setdefault(id(delivery.subscription), []).append(delivery)
        out = Outcome(now_us=self.environment.now_us())
        for run in by_subscription.values():
            self.broker.written(run, out)
        self.submit(out)

    def flush(self) -> None:
        self.dispatcher.flush()

    def _is_leaving(self, session_id: int) -> bool:
        session = self.sessions.get(session_id)
        return session is None or session.finishing

    def committed_end(self) -> int:
        return self.commits.committed_end

    def schedule_checkpoint(self) -> None:
        self.checkpoints.soon()

    def _serve_apart(self, subscription: Subscription) -> None:
        """A subscription that stands in no line is told by a task of its own."""
        (self.journal_reads if subscription.destination == JOURNAL else self.browsing).begin(subscription)

    def spawn(self, task: Callable[[], object]) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(task)  # type: ignore[arg-type]  # trio wants the coroutine function's full type

    def new_session_id(self) -> int:
        self._session_ids += 1
        return self._session_ids

    def message_of(self, origin: Origin, record: Record) -> Message | None:
        return self.replay.message_of(origin, record)

    # What the mesh needs of its node (qmq.replication.links.host)

    def received_vector(self) -> Vector:
        return self._received

    def durable_vector(self) -> Vector:
        return self.store.journal.vector()

    def journal_durable_end(self) -> int:
        return self.commits.committed_end

    async def flushed(self) -> None:
        await self.commits.flushed()

    def check_damage(self) -> None:
        """Have mended what readers have found damaged since the last call, and tell the operator."""
        if self.store.queues.damage.met > self._rows_met:
            self._rows_met = self.store.queues.damage.met
            self.queue_store_repair.soon()
        for what in self.store.damage():
            if what not in self._damage_reported:
                self._damage_reported.add(what)
                self.fanout_repair.soon()
                self.queue_store_repair.soon()
                self.alarm("damage", f"{what}; what stood there is asked of peers, and told to nobody as missing")

    async def journal_grew(self, position: int) -> None:
        self.check_damage()  # whoever reads a log to its end comes by here
        await self.commits.grew(position)

    def read_journal(self, position: int, bytes_max: int) -> list[tuple[int, BatchHead, bytes]]:
        return self.store.journal.read(position, bytes_max)

    def read_recent(self, position: int, bytes_max: int) -> list[tuple[int, BatchHead, bytes]]:
        return self.store.journal.read_recent(position, bytes_max)

    def seek_journal(self, vector: Vector) -> int:
        return self.store.journal.seek(vector)

    def journal_reach(self) -> tuple[Vector, int]:
        # In this order: what is appended in between only makes the position later.
        return self.store.journal.vector(), self.store.journal.end

    def journal_base(self) -> Vector:
        return self.store.journal.base()

    def accept_gap(self, origin: Origin, through: int) -> None:
        self.alarm("gap", f"records of {origin} up to {through} are no longer kept by any reachable peer")
        out = Outcome(now_us=self.environment.now_us())
        self.broker.note_gap(origin, through, self.environment.now_us(), out)
        self.broker.durable_subscriptions.give_up(origin, through)
        self._received[origin] = max(through, self._received.get(origin, 0))
        self.submit(out)

    def note_lost(self, stretch: LostRange, out: Outcome) -> None:
        """It is nowhere any more, or not all of it. Fanout readers are told from now on, and by later lives once `out`
        is durable."""
        origin, first, last = stretch
        self.alarm("gap", f"of the records {first} to {last} of {origin} no member has all any more")
        self.broker.note_fact(RecordKind.GONE, pack_lost(stretch), out.now_us, out)
        self.broker.durable_subscriptions.gone.add(origin, last)
        out.gone.append((origin, first - 1, last))

    def request_received(self, peer: Origin, number: int, request: bytes) -> None:
        self.peer_rpc.request_received(peer, number, request)

    def response_received(self, peer: Origin, number: int, answer: bytes) -> None:
        self.peer_rpc.response_received(peer, number, answer)

    def alarm(self, code: str, message: str) -> None:
        if self.alarms.raise_alarm(code, message, self.environment.now_us()):
            self.system.note("alarm", code=code, message=message)

    def alarm_over(self, code: str, message: str) -> None:
        self.alarms.clear(code, message)

    def storage_now_us(self) -> int:
        return self.clock_check.storage_now_us()

    def links_changed(self) -> None:
        self.system.links_changed()
        self.start_hold.wake()
        self.takeover.links_changed()
        self.members.links_changed()
        self.peer_rpc.links_changed()
        self.dedup_query.links_changed()

    @property
    def takes_over(self) -> bool:
        return self.takeover.is_wanted

    @property
    def terms_served(self) -> Mapping[str, int]:
        return self.takeover.served

    def terms_came(self, peer: Origin, frame: Terms, way: LinkOutbox, out: Outcome) -> None:
        self.takeover.came(peer, frame, way, out)

    def greet(self, way: LinkOutbox) -> None:
        self.takeover.greet(way)

    def may_borrow(
        self, peer: str, terms: Mapping[str, int], echo_us: int, least_ms: int, owners: set[str]
    ) -> Mapping[str, bool | None]:
        return self.takeover.may_borrow(peer, terms, echo_us, least_ms, owners)

    def has_synced_with_majority(self) -> bool:
        """Whether what a majority had when this node met them is here."""
        return self.membership.is_majority({*self._caught_up, self.origin.node})

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    @property
    def member_names(self) -> Collection[str]:
        """The other members, reachable or not."""
        return self.checkpoints.members

    def schedule_repair(self) -> None:
        self.catch_up.soon()

    async def ask_one(self, peer: str, request: bytes) -> bytes | None:
        return await self.peer_rpc.ask_one(peer, request, REPAIR_SECONDS)

    async def bring_up_stores(self) -> bool:
        await self.commits.flushed()
        return await self.checkpoints.bring_up()

    async def quarantined_anywhere(self, after: Vector) -> Vector | None:
        return await self.quarantine_restore.anywhere(after)

    def about_dead(self, origins: list[Origin]) -> bytes:
        return self.incarnation_gc.answer(origins)

    def hold_back(self) -> None:
        if not self.takeover.is_starting:
            self.takeover.is_starting = True
            self.takeover.look()

    @property
    def is_catching_up(self) -> bool:
        return self.mesh is not None and bool(self.peer_names) and self.mesh.is_catching_up

    @property
    def is_missing_rows(self) -> bool:
        return self.queue_store_repair.is_behind

    def rows_searched_for(self) -> Collection[MissingRange]:
        return self.queue_store_repair.searched_for

    def repaired(self) -> None:
        self._release_hold()

    def interest_heard(self) -> None:
        self.receipts.interest_heard()
        self._interest_heard.set()

    async def _learn_interest(self, mesh: Mesh) -> None:
        """Wait until a topic message would find its subscribers on other nodes, before clients may send one.

        Peers that do not answer must not keep a node from serving.
        """
        with trio.move_on_after(self.settings.mesh.interest_confirm_seconds):
            while not mesh.knows_interest:
                await self._interest_heard.wait()
                self._interest_heard = trio.Event()

    def peer_durable(self, peer: str, vector: Vector) -> None:
        if peer in self.checkpoints.members:
            self.checkpoints.members[peer] = vector
            self.broker.lending.owner_has(peer, vector.get(self.origin, 0))
            self.count_copies_of(peer)
            self.quarantine_restore.look()

    def peer_knows(self, peer: str, vector: Vector) -> None:
        self.members.knows(peer, vector)

    def refused_as_retired(self, peer: str) -> None:
        self.members.refused_as_retired(peer)

    def membership_received(self, peer: str, standing: Standing) -> None:
        self.members.membership_received(peer, standing)

    def link_caught_up(self, peer: str) -> None:
        self.fanout_repair.soon()
        self.queue_store_repair.soon()
        self._caught_up.add(peer)
        self.clock_check.soon()
        self.dedup_query.links_changed()
        self.takeover.wake()
        self.members.caught_up_with(peer)
        self.incarnation_gc.look()
        self.quarantine_restore.look()
        self.system.links_changed()
        self.start_hold.wake()

    def held_came(self, peer: str) -> None:
        self.start_hold.held_came(peer)

    def linked_peers(self) -> Collection[str]:
        """The peers that follow this node now."""
        return () if self.mesh is None else self.mesh.followers()

    def has_caught_up_with(self, peer: str) -> bool:
        """Whether what `peer` had when this node met it is here."""
        return peer in self._caught_up

    # Membership

    @property
    def membership(self) -> Membership:
        return self.members.membership

    @property
    def peer_names(self) -> list[str]:
        """The other members, by name."""
        return self.membership.peers

    def count_copies_of(self, peer: str) -> None:
        """Let receipts go by what `peer` has durably, as far as it counts."""
        durable = self.checkpoints.members.get(peer, {}) if self.membership.counts(peer) else {}
        self.receipts.peer_durable(peer, durable.get(self.origin, 0))

    def rules_changed(self) -> None:
        """Levels that nobody names may be others now."""
        self.rules.replicas_max = len(self.peer_names)
        self.rules.generation += 1

    def members_changed(self) -> None:
        """Let everything that goes by the members go by those of now."""
        kept = self.checkpoints.members
        self.checkpoints.members = {name: kept.get(name, {}) for name in self.peer_names}
        self.receipts.enrol(self.peer_names)
        self.broker.abilities.of_members(self.peer_names)
        self.rules_changed()
        self.queue_adoption.look()
        self.quarantine_restore.look()
        self.start_hold.wake()
        self.takeover.wake()

    async def _hold_at_start(self) -> None:
        await self.start_hold.run()
        self._release_hold()

    def _release_hold(self) -> None:
        if self.broker.queues.held and self.start_hold.is_over and not self.catch_up.is_stale:
            self.takeover.is_starting = False
            self.takeover.look()
