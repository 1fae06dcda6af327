"""Requests of peers, and which part responds to each."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from qmq.admin.console.requests import ConsoleRequests
from qmq.admin.control import ControlContext, respond_to_peer
from qmq.admin.mesh_messages import respond_about_message
from qmq.admin.mesh_queries import respond_to_query
from qmq.engine.checkpoint.queue_pager import QueuePager
from qmq.errors import Refused
from qmq.mesh.membership.adopt_queues import AdoptionContext, respond_holding
from qmq.mesh.membership.decommission import DecommissionContext, respond_hearing
from qmq.mesh.peers.kinds import RequestKind
from qmq.mesh.repair.catch_up import CatchUp
from qmq.mesh.repair.quarantine_restore import QuarantineRestore
from qmq.replication.protocol.frames import PeerRequest
from qmq.settings.definitions.sync import DefinitionSync

if TYPE_CHECKING:
    from qmq.protocols.http.part import WebPart


class RequestContext(ControlContext, AdoptionContext, DecommissionContext, Protocol):
    """The parts that respond."""

    queue_pager: QueuePager

    beanstalk: object
    catch_up: CatchUp
    console: ConsoleRequests
    definition_sync: DefinitionSync
    quarantine_restore: QuarantineRestore

    @property
    def web(self) -> "WebPart": ...


async def _hearing(context: RequestContext, body: bytes) -> bytes:
    return respond_hearing(context, body)


async def _holding(context: RequestContext, body: bytes) -> bytes:
    return respond_holding(context, body)


async def _beanstalk(context: RequestContext, body: bytes) -> bytes:
    # Here, because it is loaded only where it is used.
    from qmq.protocols.beanstalk.statistics import respond_about_jobs

    return await respond_about_jobs(context, body)


ROUTES: Final[Mapping[str, Callable[[RequestContext, bytes], Awaitable[bytes]]]] = {
    RequestKind.REPAIR: lambda context, body: context.catch_up.answer(body),
    RequestKind.QUARANTINE: lambda context, body: context.quarantine_restore.answer(body),
    RequestKind.DEFINITIONS: lambda context, body: context.definition_sync.answer(body),
    RequestKind.DEDUP: lambda context, body: context.dedup_query.answer(body),
    RequestKind.LINKS: _hearing,
    RequestKind.HELD: _holding,
    RequestKind.BULK_JOB: lambda context, body: context.mesh_jobs.answer(body),
    RequestKind.ADMIN_QUERY: respond_to_query,
    RequestKind.PULL_ACKS: lambda context, body: context.web.pulls.answer(body),
    RequestKind.BEANSTALK: _beanstalk,
    RequestKind.MESSAGE: respond_about_message,
    RequestKind.CONSOLE: lambda context, body: context.console.answer(body),
    RequestKind.CONTROL: respond_to_peer,
}


async def respond(context: RequestContext, request: PeerRequest) -> bytes:
    """The response of this node to a request of a peer. Raises Refused."""
    route = ROUTES.get(request.kind)
    if route is None:
        raise Refused("bad-destination", f"this node knows no requests of the kind {ascii(request.kind)}")
    return await route(context, request.body)
