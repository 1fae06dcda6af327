"""Builds the parts of the admin room, in the order of what they depend on."""

from qmq.admin.backups import BackupVerbs
from qmq.admin.connection_lists import ConnectionVerbs
from qmq.admin.console.history import History
from qmq.admin.console.overview import Overview
from qmq.admin.console.queue_history import QueueHistory
from qmq.admin.console.queue_pages import QueuePages
from qmq.admin.console.requests import ConsoleRequests
from qmq.admin.definitions import DefinitionVerbs
from qmq.admin.deletion import DestinationDeletion
from qmq.admin.facts.conditions import Conditions
from qmq.admin.facts.counts import Counts
from qmq.admin.facts.fanout_lag import FanoutLag
from qmq.admin.facts.node_facts import FactsReader
from qmq.admin.facts.queue_catalog import QueueCatalog
from qmq.admin.facts.status import NodeStatus, ShownDestinations
from qmq.admin.facts.system import SystemTopics
from qmq.admin.inspection.connections import Connections
from qmq.admin.inspection.messages import Messages
from qmq.admin.list_verbs import ListVerbs
from qmq.admin.mesh_jobs import MeshJobs
from qmq.admin.mesh_messages import MessageVerbs
from qmq.admin.node_verbs import NodeVerbs
from qmq.admin.parts import AdminParts
from qmq.admin.queue_verbs import BulkVerbs, QueueVerbs
from qmq.admin.rights_verbs import RightsVerbs
from qmq.admin.routing_requests import RoutingRequests
from qmq.admin.verbs import Responders, Verbs
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import NodeBasics
from qmq.engine.runtime.heartbeats import Heartbeats
from qmq.mesh.parts import MeshParts
from qmq.mesh.peers.rpc import PeerRpc
from qmq.replication.mesh import Mesh
from qmq.sessions.clients.session import ClientSession
from qmq.sessions.parts import SessionParts
from qmq.settings.definitions.declare import DeclareRequests
from qmq.settings.parts import SettingsParts


def admin_parts(
    node: NodeBasics,
    engine: EngineParts,
    mesh: Mesh,
    mesh_parts: MeshParts,
    rpc: PeerRpc,
    facts: FactsReader,
    conditions: Conditions,
    system: SystemTopics,
    beats: Heartbeats,
    sessions: dict[int, ClientSession],
    of_mesh: SettingsParts,
    clients: SessionParts,
) -> AdminParts:
    """`sessions` stays live."""
    access, definitions, declared_queues = clients.login_path.access, of_mesh.definitions, of_mesh.declared_queues
    exclusive_queues, queue_lifetimes = of_mesh.exclusive_queues, of_mesh.queue_lifetimes
    broker, membership, name = engine.broker, mesh_parts.members.membership, engine.broker.origin.node
    catalog = QueueCatalog(engine, node, declared_queues, of_mesh.paused_queues)
    counts = Counts(engine, catalog, sessions)
    lag = FanoutLag(engine, counts, clients.fanout_subscribers)
    shown = ShownDestinations(engine, node, catalog)
    readers = clients.journal_reads.readers
    status = NodeStatus(engine, mesh, mesh_parts, facts, shown, readers, conditions, sessions)
    declarations = DeclareRequests(declared_queues, exclusive_queues, queue_lifetimes, access.rights_of)
    routing_requests = RoutingRequests(
        definitions, declared_queues, exclusive_queues, of_mesh.routing, access.rights_of
    )
    lists = ListVerbs(rpc, name, catalog, counts, lag, conditions)
    connections = Connections(broker, mesh, sessions)
    messages = Messages(engine, membership, sessions)
    message_verbs = MessageVerbs(broker, rpc, messages, access, declared_queues, queue_lifetimes)
    jobs = MeshJobs(engine, node, membership, rpc, definitions)
    deletion = DestinationDeletion(engine, jobs, declared_queues)
    console = ConsoleRequests(
        engine,
        rpc,
        system,
        History(engine, beats, sessions, node, rpc, facts.waiting, QueueHistory(engine.environment, catalog)),
        QueuePages(broker.totals, catalog),
        Overview(engine, node, mesh, mesh_parts, facts, conditions, connections, readers),
    )
    responders = Responders(
        BulkVerbs(jobs, declared_queues, sessions),
        QueueVerbs(broker, of_mesh.paused_queues, deletion, declarations, routing_requests, message_verbs),
        routing_requests,
        message_verbs,
        ConnectionVerbs(rpc, name),
        NodeVerbs(node, access, status, mesh_parts.decommission, definitions, declared_queues, clients.draining, rpc),
        BackupVerbs(node, engine, mesh_parts.members),
        lists,
        RightsVerbs(name, engine.environment, access),
        DefinitionVerbs(node, engine.environment, definitions, of_mesh.left_behind, system),
        console,
    )
    verbs = Verbs(access, system, exclusive_queues, responders)
    return AdminParts(
        facts, catalog, status, lists, connections, messages, message_verbs, jobs, deletion, console, verbs
    )
