"""The calls of a node, and which part answers each. Those of a protocol are in its room."""

from typing import Final

from qmq.admin.console.queue_pages import FirstsCall, RowsCall
from qmq.admin.console.requests import AuditCall, HistoryCall, OverviewCall
from qmq.admin.control import ControlRequest
from qmq.admin.inspection.connections import ConnectionsCall, KickCall, LinksCall
from qmq.admin.inspection.messages import MemoryMessagesCall, WhereaboutsCall
from qmq.admin.mesh_jobs import JobCall
from qmq.admin.mesh_messages import MessageCall
from qmq.mesh.membership.adopt_queues import HeldCall
from qmq.mesh.membership.decommission import OpinionCall
from qmq.mesh.peers.calls import CallTable
from qmq.mesh.peers.dedup_query import DedupCall
from qmq.mesh.repair.quarantine_restore import QuarantineCall
from qmq.mesh.repair.requests import DurablesCall, SealsCall, SettledCall, SnapshotCall
from qmq.node.protocols import Protocols
from qmq.settings.definitions.queue_lifetimes import UseCall
from qmq.settings.definitions.sync import DefinitionsCall

CALLS: Final = CallTable(
    {
        AuditCall: lambda context, call: context.admin.console.audited_here(call),
        ConnectionsCall: lambda context, call: context.admin.connections.rows(call),
        ControlRequest: lambda context, call: context.admin.lists.answer(call),
        **dict.fromkeys(
            (DurablesCall, SealsCall, SettledCall, SnapshotCall),
            lambda context, call: context.mesh_parts.responder.answer(call),
        ),
        DedupCall: lambda context, call: context.mesh_parts.dedup_query.answer(call),
        DefinitionsCall: lambda context, call: context.settings.sync.answer(call),
        FirstsCall: lambda context, call: context.admin.console.firsts_here(call),
        HeldCall: lambda context, call: context.mesh_parts.adoption.answer(call),
        HistoryCall: lambda context, call: context.admin.console.history_here(call),
        JobCall: lambda context, call: context.admin.jobs.answer(call),
        KickCall: lambda context, call: context.admin.connections.kick(call),
        OpinionCall: lambda context, call: context.mesh_parts.decommission.answer(call),
        LinksCall: lambda context, call: context.admin.connections.links(call),
        MemoryMessagesCall: lambda context, call: context.admin.messages.memory_messages(call),
        MessageCall: lambda context, call: context.admin.message_verbs.answer(call),
        OverviewCall: lambda context, call: context.admin.console.overview_here(call),
        QuarantineCall: lambda context, call: context.mesh_parts.quarantine_restore.answer(call),
        RowsCall: lambda context, call: context.admin.console.rows_here(call),
        UseCall: lambda context, call: context.settings.queue_lifetimes.answer(call),
        WhereaboutsCall: lambda context, call: context.admin.messages.whereabouts(call),
    }
)


def table_of(protocols: Protocols, kind: str) -> CallTable | None:
    """The table with the calls of this kind; None: this node knows none. A protocol has its own."""
    return CALLS if kind in CALLS.kinds else protocols.calls_of(kind)
