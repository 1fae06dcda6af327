"""The calls of a node, and which part answers each."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from qmq.admin.console.queue_pages import FirstsCall, RowsCall
from qmq.admin.console.requests import AuditCall, ConsoleRequests, HistoryCall, OverviewCall
from qmq.admin.control import ControlRequest, respond_here
from qmq.admin.inspection.connections import ConnectionsCall, KickCall, LinksCall, connection_rows, kick, link_rows
from qmq.admin.inspection.messages import MemoryMessagesCall, WhereaboutsCall, memory_messages, whereabouts
from qmq.admin.mesh_jobs import JobCall
from qmq.admin.mesh_messages import MessageCall, message_facts
from qmq.admin.verbs import VerbContext
from qmq.engine.checkpoint.queue_pager import QueuePager
from qmq.errors import Refused
from qmq.mesh.membership.adopt_queues import AdoptionContext, HeldCall, messages_held
from qmq.mesh.membership.decommission import DecommissionContext, OpinionCall, opinion_of
from qmq.mesh.peers.calls import CallTable
from qmq.mesh.peers.dedup_query import DedupCall
from qmq.mesh.peers.kinds import RequestKind
from qmq.mesh.repair.catch_up import CatchUp
from qmq.mesh.repair.quarantine_restore import QuarantineCall, QuarantineRestore
from qmq.node.protocols import Protocols
from qmq.replication.protocol.frames import PeerRequest
from qmq.settings.definitions.queue_lifetimes import UseCall
from qmq.settings.definitions.sync import DefinitionSync


class RequestContext(VerbContext, AdoptionContext, DecommissionContext, Protocol):
    """The parts that respond."""

    queue_pager: QueuePager

    catch_up: CatchUp
    console: ConsoleRequests
    definition_sync: DefinitionSync
    protocols: Protocols
    quarantine_restore: QuarantineRestore


CALLS: Final = CallTable(
    {
        AuditCall: lambda context, call: context.console.audited_here(call),
        ConnectionsCall: connection_rows,
        ControlRequest: respond_here,
        DedupCall: lambda context, call: context.dedup_query.answer(call),
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

ROUTES: Final[Mapping[str, Callable[[RequestContext, bytes], Awaitable[bytes]]]] = {
    RequestKind.REPAIR: lambda context, body: context.catch_up.answer(body),
    RequestKind.DEFINITIONS: lambda context, body: context.definition_sync.answer(body),
}


async def respond(context: RequestContext, request: PeerRequest) -> bytes:
    """The response of this node to a request of a peer. Raises Refused."""
    route = ROUTES.get(request.kind)
    if route is not None:
        return await route(context, request.body)
    answer = context.protocols.answer_to(request.kind)
    if answer is None:
        raise Refused("bad-destination", f"this node knows no requests of the kind {ascii(request.kind)}")
    return await answer(request.body)
