"""The calls of a node, and which part answers each. Those of a protocol are in its room."""

from typing import Any, Final

from qmq.admin.console.history import HistoryCall
from qmq.admin.console.queue_history import QueueHistoryCall
from qmq.admin.console.queue_pages import FirstsCall, RowsCall
from qmq.admin.console.requests import AuditCall, OverviewCall
from qmq.admin.inspection.connections import ConnectionsCall, KickCall, LinksCall
from qmq.admin.inspection.messages import MemoryMessagesCall, WhereaboutsCall
from qmq.admin.list_verbs import ControlRequest
from qmq.admin.mesh_jobs import JobCall
from qmq.admin.mesh_messages import MessageCall
from qmq.admin.protocol_parts import ProtocolParts
from qmq.mesh.membership.adopt_queues import HeldCall
from qmq.mesh.membership.decommission import OpinionCall
from qmq.mesh.peers.calls import CallTable
from qmq.mesh.peers.dedup_query import DedupCall
from qmq.mesh.repair.quarantine_restore import QuarantineCall
from qmq.mesh.repair.requests import DurablesCall, RepairCall, SealsCall, SettledCall, SnapshotCall
from qmq.node.protocols import Protocols
from qmq.sessions.clients.draining import DrainCall
from qmq.settings.definitions.queue_lifetimes import UseCall
from qmq.settings.definitions.sync import DefinitionsCall


def _repair(node: ProtocolParts, call: RepairCall[Any]) -> Any:
    return node.mesh_parts.responder.answer(call)


CALLS: Final = CallTable[ProtocolParts](
    (
        AuditCall.by(lambda node, call: node.admin.console.audited_here(call)),
        ConnectionsCall.by(lambda node, call: node.admin.connections.rows(call)),
        ControlRequest.by(lambda node, call: node.admin.lists.answer(call)),
        *(one.by(_repair) for one in (DurablesCall, SealsCall, SettledCall, SnapshotCall)),
        DedupCall.by(lambda node, call: node.mesh_parts.dedup_query.answer(call)),
        DefinitionsCall.by(lambda node, call: node.settings.sync.answer(call)),
        DrainCall.by(lambda node, call: node.sessions.draining.answer(call)),
        FirstsCall.by(lambda node, call: node.admin.console.pages.firsts(call)),
        HeldCall.by(lambda node, call: node.mesh_parts.adoption.answer(call)),
        HistoryCall.by(lambda node, call: node.admin.console.history.here(call)),
        QueueHistoryCall.by(lambda node, call: node.admin.console.history.of_queues.here(call)),
        JobCall.by(lambda node, call: node.admin.jobs.answer(call)),
        KickCall.by(lambda node, call: node.admin.connections.kick(call)),
        OpinionCall.by(lambda node, call: node.mesh_parts.decommission.answer(call)),
        LinksCall.by(lambda node, call: node.admin.connections.links(call)),
        MemoryMessagesCall.by(lambda node, call: node.admin.messages.memory_messages(call)),
        MessageCall.by(lambda node, call: node.admin.message_verbs.answer(call)),
        OverviewCall.by(lambda node, call: node.admin.console.of_node.facts()),
        QuarantineCall.by(lambda node, call: node.mesh_parts.quarantine_restore.answer(call)),
        RowsCall.by(lambda node, call: node.admin.console.pages.rows(call)),
        UseCall.by(lambda node, call: node.settings.queue_lifetimes.answer(call)),
        WhereaboutsCall.by(lambda node, call: node.admin.messages.whereabouts(call)),
    )
)


def table_of(protocols: Protocols, kind: str) -> CallTable[ProtocolParts] | None:
    """The table with the calls of this kind; None: this node knows none. A protocol has its own."""
    return CALLS if kind in CALLS.kinds else protocols.calls_of(kind)
