"""The calls of a node, and which part answers each. Those of a protocol are in its room."""

from typing import Any, Final, Protocol

from qmq.admin.console.queue_pages import FirstsCall, RowsCall
from qmq.admin.console.requests import AuditCall, ConsoleRequests, HistoryCall, OverviewCall
from qmq.admin.control import ControlRequest, respond_here
from qmq.admin.inspection.connections import ConnectionsCall, KickCall, LinksCall, connection_rows, kick, link_rows
from qmq.admin.inspection.messages import MemoryMessagesCall, WhereaboutsCall, memory_messages, whereabouts
from qmq.admin.mesh_jobs import JobCall
from qmq.admin.mesh_messages import MessageCall, message_facts
from qmq.admin.verbs import VerbContext
from qmq.engine.checkpoint.queue_pager import QueuePager
from qmq.mesh.membership.adopt_queues import AdoptionContext, HeldCall, messages_held
from qmq.mesh.membership.decommission import DecommissionContext, OpinionCall, opinion_of
from qmq.mesh.peers.calls import CallTable
from qmq.mesh.peers.dedup_query import DedupCall
from qmq.mesh.repair.catch_up import CatchUp
from qmq.mesh.repair.quarantine_restore import QuarantineCall, QuarantineRestore
from qmq.mesh.repair.requests import DurablesCall, RepairCall, SealsCall, SettledCall, SnapshotCall
from qmq.node.protocols import Protocols
from qmq.settings.definitions.queue_lifetimes import UseCall
from qmq.settings.definitions.sync import DefinitionsCall, DefinitionSync


class RequestContext(VerbContext, AdoptionContext, DecommissionContext, Protocol):
    """The parts that respond."""

    queue_pager: QueuePager

    catch_up: CatchUp
    console: ConsoleRequests
    definition_sync: DefinitionSync
    quarantine_restore: QuarantineRestore


async def _repair(context: RequestContext, call: RepairCall[Any]) -> Any:
    return await context.catch_up.answer(call)


CALLS: Final = CallTable(
    {
        AuditCall: lambda context, call: context.console.audited_here(call),
        ConnectionsCall: connection_rows,
        ControlRequest: respond_here,
        **dict.fromkeys((DurablesCall, SealsCall, SettledCall, SnapshotCall), _repair),
        DedupCall: lambda context, call: context.dedup_query.answer(call),
        DefinitionsCall: lambda context, call: context.definition_sync.answer(call),
        FirstsCall: lambda context, call: context.console.firsts_here(call),
        HeldCall: messages_held,
        HistoryCall: lambda context, call: context.console.history_here(call),
        JobCall: lambda context, call: context.mesh_jobs.answer(call),
        KickCall: kick,
        OpinionCall: opinion_of,
        LinksCall: link_rows,
        MemoryMessagesCall: memory_messages,
        MessageCall: message_facts,
        OverviewCall: lambda context, call: context.console.overview_here(call),
        QuarantineCall: lambda context, call: context.quarantine_restore.answer(call),
        RowsCall: lambda context, call: context.console.rows_here(call),
        UseCall: lambda context, call: context.queue_lifetimes.answer(call),
        WhereaboutsCall: whereabouts,
    }
)


def table_of(protocols: Protocols, kind: str) -> CallTable | None:
    """The table with the calls of this kind; None: this node knows none. A protocol has its own."""
    return CALLS if kind in CALLS.kinds else protocols.calls_of(kind)
