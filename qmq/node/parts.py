"""The parts of one node: builds each of them, in the order of what it depends on.

A part that has rules of its own has a module of its own, and gets the node as the narrow context that it names. So the
node has each part as an attribute, and what parts need of each other as methods, some of them a part's own. `Node` runs
them. All of it is one module, because the order in which parts are built is what it decides.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial

import trio

from qmq import __version__
from qmq.access.rules import Principal
from qmq.admin.console.requests import ConsoleRequests
from qmq.admin.deletion import note_deletions
from qmq.admin.facts.node_facts import FactsReader, NodeIdentity
from qmq.admin.facts.queue_catalog import QueueCatalog
from qmq.admin.mesh_jobs import MeshJobs
from qmq.admin.policies import Policies, broker_limits, wire_limits
from qmq.admin.status import ShownDestinations, peers_of
from qmq.admin.system import SystemTopics
from qmq.admin.verbs import control_response
from qmq.broker.broker import Broker
from qmq.config import NodeSettings, PeersFile
from qmq.engine.runtime.certificate_expiry import CertificateExpiry
from qmq.engine.runtime.certificates import Certificates
from qmq.engine.runtime.heartbeats import Heartbeats
from qmq.engine.runtime.served_rows import served_rows
from qmq.environment import Environment
from qmq.mesh.membership.adopt_queues import QueueAdoption
from qmq.mesh.membership.clock_check import ClockCheck
from qmq.mesh.membership.decommission import Decommission
from qmq.mesh.membership.members import LiveMembership
from qmq.mesh.membership.start_hold import StartHold
from qmq.mesh.membership.takeover import Takeover
from qmq.mesh.peers.dedup_query import DedupQuery
from qmq.mesh.peers.deliveries import MeshDeliveries
from qmq.mesh.peers.rpc import PeerRpc
from qmq.mesh.peers.verb_request import ControlResponse
from qmq.mesh.repair.catch_up import CatchUp
from qmq.mesh.repair.fanout_logs import FanoutRepair
from qmq.mesh.repair.incarnation_gc import IncarnationGc
from qmq.mesh.repair.quarantine_restore import QuarantineRestore
from qmq.mesh.repair.queue_store import QueueStoreRepair
from qmq.model.dots import Vector
from qmq.model.members import Membership
from qmq.node.assembly import delivery_parts, engine_parts
from qmq.node.bound_queues import BoundQueues
from qmq.node.definition_effects import DefinitionEffects
from qmq.node.mesh_host import MeshHost
from qmq.node.peer_requests import table_of
from qmq.node.protocols import Protocols
from qmq.node.services import NodeServices
from qmq.record_codec import Replay
from qmq.replication.mesh import Mesh
from qmq.sessions.clients.access import Access
from qmq.sessions.clients.admission import Admission
from qmq.sessions.clients.authentication import login_checks
from qmq.sessions.clients.login import Logins
from qmq.sessions.clients.memory_budget import MemoryBudget, default_bytes_max
from qmq.sessions.clients.refusals import Refusals
from qmq.sessions.clients.session import ClientSession
from qmq.sessions.clients.subscriber_buffers import SubscriberBuffers
from qmq.sessions.clients.traffic import Traffic
from qmq.settings.definitions.declared_queues import DeclaredQueues
from qmq.settings.definitions.deleted_queues import DeletedQueues
from qmq.settings.definitions.exclusive_queues import ExclusiveQueues
from qmq.settings.definitions.file_entries import new_entries
from qmq.settings.definitions.live import LiveDefinitions
from qmq.settings.definitions.paused_queues import PausedQueues
from qmq.settings.definitions.policies import KIND as POLICY
from qmq.settings.definitions.policies import PolicyKind
from qmq.settings.definitions.queue_lifetimes import QueueLifetimes
from qmq.settings.definitions.queue_watchers import QueueWatchers
from qmq.settings.definitions.schemas import SchemaDefinitions
from qmq.settings.definitions.sync import DefinitionSync
from qmq.settings.definitions.users import LimitDefinitions, UserDefinitions
from qmq.settings.limits.holdings import Holdings
from qmq.settings.limits.usage import ClientUsages
from qmq.settings.routing.definitions import RoutingDefinitions, VhostDefinitions
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.queues.served_rows import ServedRows
from qmq.storage.store import Store
from qmq.verbs.table import needs_of
from qmq.verbs.verb import NO_HEADERS
from qmq.wire.stomp import HeadCaches

INCARNATION_BITS = 64


class NodeParts(NodeServices):
    """All parts, built and not running."""

    def __init__(
        self,
        settings: NodeSettings,
        peers: PeersFile | None,
        store: Store,
        environment: Environment,
        *,
        trusts_clock: bool,
    ) -> None:
        super().__init__(environment)
        limits = settings.limits
        self.settings = settings
        self.limits = limits
        self.store = store
        self.software = f"qmq/{__version__}"
        self.policies = Policies(self)
        self.definitions = LiveDefinitions(
            self, store.recovered.definitions, new_entries(settings, store.recovered.definitions)[0]
        )
        self.paused_queues = PausedQueues(self)
        self.declared_queues = DeclaredQueues(self)
        self.holdings = Holdings(self)
        self.declared_queues.check_room = self.holdings.check_room
        self.policy_of = self.policies.of
        self.routing = RoutingDefinitions(self)
        self.vhosts = VhostDefinitions(self, self.routing.table)
        self.policy_kind = self.definitions.kinds[POLICY] = PolicyKind(self)
        self.user_definitions = UserDefinitions(self)
        self.limit_definitions = LimitDefinitions(self)
        self.schemas = SchemaDefinitions(self)
        self.limits_of = self.limit_definitions.of
        self.certificates = Certificates()
        self.certificate_expiry = CertificateExpiry(self.certificates, environment, self)
        self.mesh: Mesh | None = None
        self.members = LiveMembership(self, peers)
        self.origin = store.begin_incarnation(environment.rng.getrandbits(INCARNATION_BITS), environment.now_us())
        journal = store.journal
        self.broker = Broker(
            self.origin,
            journal.vector()[self.origin] + 1,
            rules_of=self.policies.queue_rules,
            defaults_of=self.policies.queue_defaults,
            route=self.routing.table.route,
            limits=broker_limits(limits),
        )
        self.replay = Replay(self.broker)
        self.clock_check = ClockCheck(self, is_trusted=trusts_clock)
        self.sessions: dict[int, ClientSession] = {}
        engine = self.engine = engine_parts(
            self.broker, store, environment, self.replay, self, self.clock_check.storage_now_us, self.sessions
        )
        path = self.commit_path = engine.path
        self.slot = path.slot
        self.commit_slot = path.commit_slot
        self.submit = path.submit
        self.flushed = path.flushed
        self.received_vector = path.received_vector
        self.durable_vector = path.durable_vector
        self.committed_end = path.committed_end
        self.commits = engine.commits
        self.queue_pager = engine.pager
        self.deadline_timer = engine.deadlines
        self.queue_count = engine.queue_count
        self.checkpoints = engine.checkpoints
        self.check_damage = engine.damage.check
        self.journal_grew = engine.tail.grew
        self.message_of = self.replay.message_of
        self.start_hold = StartHold(self)
        self.takeover = Takeover(self, settings.mesh)
        self.replay.on_term = self.takeover.noted
        self.replay.on_definition = self.definitions.received
        self.definition_sync = DefinitionSync(self)
        self.broker.queues.owned.has_stored = not store.queues.is_empty(settings.name)
        effects = DefinitionEffects(self)
        self.policies_changed = effects.policies_changed
        self.users_changed = effects.users_changed
        self.user_limits_changed = effects.user_limits_changed
        self.declarations_changed = effects.declarations_changed
        self.queues_deleted = effects.queues_deleted
        self._build_clients()
        self._build_delivery()
        self._build_stores()
        self._build_mesh(peers)

    def _build_clients(self) -> None:
        """What sessions use, and the status."""
        self.recent_settles = self.engine.recent_settles
        self.caches = HeadCaches()
        self.wire_limits = wire_limits(self.limits)
        self.rules = self.policies.gateway_rules(self.routing.table)
        self.admission = Admission(self.limits)
        checks = login_checks(self, self.settings)
        users = self.user_definitions
        self.logins = Logins(users.users, self.limits, self.environment, checks, self.limits_of)
        self.access = Access(self, self.settings.authentication, users.users, users.permissions)
        self.rights_of = self.access.rights_of
        self.check_admitted = self.access.check_admitted
        self.groups_of = self.access.groups_of
        self.beats = Heartbeats()
        self.usages = ClientUsages(self)
        self.system = SystemTopics(self, self.settings.name, partial(peers_of, self))
        self.audit = self.system.audit
        self.refusals = Refusals(self.beats, self.audit)
        self.queue_catalog = QueueCatalog(self)
        self.shown_destinations = ShownDestinations(self)
        self.protocols = Protocols(self)
        self.addresses: dict[str, list[tuple[str, int]]] = {}
        """Protocol → where its clients are served now."""
        self.started_seconds = trio.current_time()
        self.memory_budget = MemoryBudget(self, self.limits.memory_bytes_max or default_bytes_max())
        self.traffic = Traffic()
        self.buffers = SubscriberBuffers(self.limits.outbox_bytes_max, self.memory_budget.change)

    def _build_delivery(self) -> None:
        """What delivers."""
        parts = self.delivery = delivery_parts(
            self.engine,
            self.sessions,
            self.buffers,
            self.beats,
            self,
            self.takeover,
            self.settings,
            lambda: self.peer_names,
        )
        self.fanout_subscribers = parts.fanout_subscribers
        self.receipts = parts.receipts
        self.journal_reads = parts.journal_reads
        self.dispatcher = parts.dispatcher
        self.flush = self.dispatcher.flush

    def _build_stores(self) -> None:
        """What repairs and collects; and what peers are asked."""
        settings, damage = self.settings, self.engine.damage
        self.catch_up = CatchUp(self)
        self.fanout_repair = FanoutRepair(self)
        self.queue_store_repair = QueueStoreRepair(self)
        self.decommission = Decommission(self)
        self.queue_adoption = QueueAdoption(self)
        self.incarnation_gc = IncarnationGc(self)
        self.quarantine_restore = QuarantineRestore(self)
        self.broker.forgotten = self.incarnation_gc.seals.forgotten
        self.replay.on_seal = self.incarnation_gc.seals_received
        self.mesh_jobs = MeshJobs(self)
        self.deleted_queues = DeletedQueues(self)
        self.declared_queues.on_deleted = self.queues_deleted
        self.queue_watchers = QueueWatchers()
        self.messages_adopted = self.deleted_queues.messages_adopted
        self.messages_taken_over = self.deleted_queues.begin
        self.queue_lifetimes = QueueLifetimes(self)
        self.exclusive_queues = ExclusiveQueues(self)
        self.rules.lock = self.exclusive_queues.check
        self.session_ended = self.exclusive_queues.session_ended
        self.declared_queues.on_changed = self.declarations_changed
        self.bound_queues = BoundQueues(self)
        self.peer_rpc = PeerRpc(
            settings.name, lambda: self.peer_names, self.spawn, partial(table_of, self.protocols), self
        )
        self.dedup_query = DedupQuery(self)
        self.checkpoints.follow(self.incarnation_gc.checkpoint_done)
        damage.follow(self.fanout_repair.schedule)
        damage.follow(self.queue_store_repair.schedule, of_rows=True)
        self._follow_decisions()
        identity = NodeIdentity(settings.name, self.software, f"{self.origin.incarnation:016x}", self.started_seconds)
        clients = self.sessions, self.traffic, self.memory_budget, self.buffers
        self.facts_reader = FactsReader(identity, self.broker, self.store, self.commits, self.checkpoints, *clients)
        self.console = ConsoleRequests(self)
        self.about_dead = self.incarnation_gc.answer
        self.schedule_checkpoint = self.checkpoints.schedule
        self.quarantined_anywhere = self.quarantine_restore.anywhere
        self.schedule_repair = self.catch_up.schedule
        self.hold_back = self.start_hold.hold_back
        self.repaired = self.start_hold.release

    def _follow_decisions(self) -> None:
        path = self.commit_path
        path.guard(self.takeover.check)
        path.follow_effects(self.system.watched, partial(note_deletions, self))
        path.follow(self.definitions.decided)
        path.follow(self.queue_lifetimes.decided)

    def after_delivery(self, session: int, do: Callable[[], None]) -> None:
        self.dispatcher.selecting.after_delivery(session, do)

    def _build_mesh(self, peers: PeersFile | None) -> None:
        host = self.host = MeshHost(self)
        self.note_lost = host.note_lost
        self.accept_gap = host.accept_gap
        self.linked_peers = host.linked_peers
        self.late_peers = host.late_peers
        self.report_durable = host.report_durable
        self.has_caught_up_with = host.has_caught_up_with
        self.has_synced_with_majority = host.has_synced_with_majority
        self.count_copies_of = host.count_copies_of
        self.rules_changed = host.rules_changed
        self.members_changed = host.members_changed
        if peers is not None:
            tls = self.settings.mesh.tls
            listen_tls, dial_tls = (None, None) if tls is None else self.certificates.for_links(tls)
            self.mesh = Mesh(
                host,
                peers=peers,
                node=self.settings.name,
                settings=self.settings.mesh,
                listen_tls=listen_tls,
                dial_tls=dial_tls,
            )
            self.commit_path.replicate_to(MeshDeliveries(self.mesh))
            self.receipts.interest = self.mesh.routes
            self.peer_rpc.links = self.mesh
            self.catch_up.links = self.mesh
            self.fanout_repair.links = self.mesh
            self.queue_store_repair.links = self.mesh
            self.incarnation_gc.links = self.mesh
            self.quarantine_restore.links = self.mesh
            self.mesh.never_again(self.incarnation_gc.seals.forgotten)
        # Before its first report a member counts as having nothing: what only this node has must not be dropped.
        self.checkpoints.members.update({name: {} for name in self.peer_names})

    # What parts need of the node

    def served_rows(self) -> ServedRows:
        """The rows in the queue store of the messages that this node serves now."""
        return served_rows(self.broker, self.store)

    async def answer(
        self, session: int, principal: Principal | None, address: str, headers: Mapping[str, str], body: bytes = b""
    ) -> ControlResponse:
        return await control_response(self, headers, principal, address, session, body)

    def check_right(
        self, principal: Principal | None, destination: str, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        self.rights_of(principal).check_needs(needs_of(destination, headers))

    def durable_on(self, peer: str) -> Vector:
        return self.checkpoints.members.get(peer, {})

    async def bring_up_stores(self) -> bool:
        await self.flushed()
        return await self.checkpoints.bring_up()

    @property
    def membership(self) -> Membership:
        return self.members.membership

    @property
    def peer_names(self) -> list[str]:
        return self.membership.peers

    @property
    def member_names(self) -> Collection[str]:
        return self.checkpoints.members

    @property
    def is_catching_up(self) -> bool:
        return self.mesh is not None and bool(self.peer_names) and self.mesh.is_catching_up

    def rows_searched_for(self) -> Collection[MissingRange]:
        return self.queue_store_repair.searched_for
