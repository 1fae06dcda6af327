"""The parts of one node: builds each of them, in the order of what it depends on.

One function for each room builds its parts from those of the rooms below (`engine_parts` … `admin_parts`). `NodeParts`
calls them in this order and keeps what they return. `Node` runs it. All of it is one module, because the order is what
it decides.
"""

from functools import partial

import trio

from qmq import __version__
from qmq.admin.assembly import admin_parts
from qmq.admin.deletion import note_deletions
from qmq.admin.facts.node_facts import FactsReader, NodeIdentity
from qmq.admin.facts.status import peers_of
from qmq.admin.facts.system import SystemTopics
from qmq.admin.parts import AdminParts
from qmq.admin.protocol_parts import ProtocolParts
from qmq.broker.broker import Broker
from qmq.broker.routing.table import RoutingTable
from qmq.config import NodeSettings, PeersFile
from qmq.engine.runtime.certificate_expiry import CertificateExpiry
from qmq.engine.runtime.certificates import Certificates
from qmq.engine.runtime.heartbeats import Heartbeats
from qmq.environment import Environment
from qmq.mesh.host import MeshHost
from qmq.mesh.membership.members import membership_at_start
from qmq.mesh.parts import MeshParts
from qmq.mesh.peers.deliveries import MeshDeliveries
from qmq.mesh.peers.rpc import PeerRpc
from qmq.model.routing_names import PREFIX
from qmq.node.assembly import engine_parts, mesh_of, mesh_parts
from qmq.node.peer_requests import table_of
from qmq.node.protocols import Protocols
from qmq.node.services import NodeServices
from qmq.node.session_assembly import session_parts
from qmq.node.settings_assembly import settings_parts
from qmq.record_codec import Replay
from qmq.sessions.clients.session import ClientSession, is_leaving
from qmq.sessions.parts import SessionParts
from qmq.settings.definitions.file_entries import new_entries
from qmq.settings.definitions.live import Changes
from qmq.settings.parts import SettingsParts
from qmq.settings.rules_of_settings import broker_limits
from qmq.storage.catalog.incarnations import Seals
from qmq.storage.store import Store

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
        super().__init__(environment, settings)
        # First, so that a node with a wrong file changes nothing.
        pending = new_entries(settings, store.recovered.definitions)[0]
        self.store = store
        self.certificates = Certificates()
        self.certificate_expiry = CertificateExpiry(self.certificates, environment, self)
        self.membership = membership_at_start(store, settings.name, peers)
        self.origin = store.begin_incarnation(environment.rng.getrandbits(INCARNATION_BITS), environment.now_us())
        journal, seals = store.journal, Seals.of(store.catalog.facts())
        self.sessions: dict[int, ClientSession] = {}
        table = RoutingTable(lambda name: self.settings.destinations.policy_of(f"{PREFIX}{name}").alternate)
        self.broker = Broker(
            self.origin,
            journal.vector()[self.origin] + 1,
            rules_of=lambda queue: self.settings_parts.policies.queue_rules(queue),
            defaults_of=lambda queue: self.settings_parts.policies.queue_defaults(queue),
            route=table.route,
            limits=broker_limits(settings.limits),
            received=lambda: self.engine.path.received_vector(),
            forgotten=seals.forgotten,
            is_leaving=partial(is_leaving, self.sessions),
        )
        engine = self.engine = engine_parts(
            self.broker,
            store,
            environment,
            Replay(self.broker),
            self,
            lambda: self.mesh_parts.clock_check.storage_now_us(),
            self.sessions,
        )
        self.protocols = Protocols(self._protocol_parts)
        self.host = MeshHost(engine, self.membership, self)
        self.mesh = mesh_of(self.host, peers, self.settings, self.certificates)
        self.peer_rpc = PeerRpc(self.mesh, self.spawn, partial(table_of, self.protocols), self._protocol_parts)
        self.beats = Heartbeats()
        self._build_settings(table, pending)
        self.mesh_parts: MeshParts = mesh_parts(
            engine,
            self.mesh,
            self.peer_rpc,
            self.membership,
            seals,
            peers,
            self,
            self.settings_parts.deleted_queues,
            self.settings_parts.rules,
            settings.mesh,
            stop=self.stop,
            is_clock_trusted=trusts_clock,
        )
        self.host.report_to(self.mesh_parts.reports, self.mesh_parts.takeover)
        if peers is not None:
            self.engine.path.replicate_to(MeshDeliveries(self.mesh))
        self._build_clients()
        self._build_others()

    def _build_settings(self, table: RoutingTable, pending: Changes) -> None:
        """What definitions and limits say."""
        self.settings_parts: SettingsParts = settings_parts(
            self.engine,
            self.mesh,
            self.membership,
            self.peer_rpc,
            self.beats,
            self,
            table,
            pending,
            use=self.use,
            groups_of=lambda principal: self.session_parts.login_path.access.groups_of(principal),
            late_peers=lambda: self.mesh_parts.reports.late_peers(),
            is_clock_in_doubt=lambda: self.mesh_parts.clock_check.in_doubt,
            drop=lambda queue, covers, check: self.admin.jobs.drop(queue, covers, check),
        )

    def _build_clients(self) -> None:
        """What sessions use, and the status."""
        self.system = SystemTopics(
            self.engine, partial(peers_of, self.mesh, self.membership), lambda: self.admin.facts.read()
        )
        self.session_parts: SessionParts = session_parts(
            self.engine,
            self.mesh,
            self.mesh_parts,
            self.settings_parts,
            self,
            self.sessions,
            self.beats,
            self.certificates,
            self.system.audit,
            lambda: self.admin,
            self.stop,
        )
        self.addresses: dict[str, list[tuple[str, int]]] = {}
        """Protocol → where its clients are served now."""

    def _build_others(self) -> None:
        """What operators command, and what follows decisions."""
        identity = NodeIdentity(
            self.settings.name, f"qmq/{__version__}", f"{self.origin.incarnation:016x}", trio.current_time()
        )
        clients, host = self.session_parts, self.session_parts.host
        self.admin: AdminParts = admin_parts(
            self,
            self.engine,
            self.mesh,
            self.mesh_parts,
            self.peer_rpc,
            FactsReader(identity, self, self.engine, self.sessions, host.traffic, host.budget, clients.buffers),
            self.conditions,
            self.system,
            self.beats,
            self.sessions,
            self.settings_parts,
            clients,
        )
        self._follow_decisions()

    def _protocol_parts(self) -> ProtocolParts:
        return ProtocolParts(
            self,
            self.engine,
            self.mesh,
            self.mesh_parts,
            self.peer_rpc,
            self.membership,
            self.settings_parts,
            self.session_parts,
            self.admin,
            self.sessions,
            self.beats,
            self.conditions,
            self.protocols.of,
        )

    def _follow_decisions(self) -> None:
        path = self.engine.path
        path.guard(self.mesh_parts.takeover)
        path.follow_effects(self.system.watched, partial(note_deletions, self.system, self.engine.checkpoints))
        self.mesh_parts.takeover.sync.follow(self.settings_parts.deleted_queues.begin)
        self.mesh_parts.reports.follow(
            links=(
                self.system.links_changed,
                self.settings_parts.sync.links_changed,
                self.settings_parts.queue_lifetimes.consumers_changed,
            ),
            caught_up=(self.settings_parts.sync.link_caught_up, lambda peer: self.system.links_changed()),
            durable=(self.settings_parts.definitions.copies_changed, self.settings_parts.sync.peer_reported),
            members=(self.settings_parts.exclusive_queues.members_changed,),
        )
