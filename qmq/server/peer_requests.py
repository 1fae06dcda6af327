"""Requests of peers, and which part responds to each."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from qmq.server.admin.control import ControlContext, respond_to_peer
from qmq.server.admin.mesh_jobs import is_about_jobs
from qmq.server.admin.mesh_queries import is_about_administration, respond_to_query
from qmq.server.definitions.sync import DefinitionSync, is_about_definitions
from qmq.server.membership.adopt_queues import AdoptionContext, is_about_holding, respond_holding
from qmq.server.membership.decommission import DecommissionContext, is_about_hearing, respond_hearing
from qmq.server.peers.dedup_query import is_about_retries
from qmq.server.repair.catch_up import CatchUp
from qmq.server.repair.quarantine_restore import QuarantineRestore, is_about_quarantine
from qmq.server.repair.responses import is_about_repairs


class RequestContext(ControlContext, AdoptionContext, DecommissionContext, Protocol):
    """The parts that respond."""

    catch_up: CatchUp
    definition_sync: DefinitionSync
    quarantine_restore: QuarantineRestore


Respond = Callable[[RequestContext, bytes], Awaitable[bytes]]


async def _hearing(context: RequestContext, request: bytes) -> bytes:
    return respond_hearing(context, request)


async def _holding(context: RequestContext, request: bytes) -> bytes:
    return respond_holding(context, request)


ROUTES: Sequence[tuple[Callable[[bytes], bool], Respond]] = (
    (is_about_repairs, lambda context, request: context.catch_up.answer(request)),
    (is_about_quarantine, lambda context, request: context.quarantine_restore.answer(request)),
    (is_about_definitions, lambda context, request: context.definition_sync.answer(request)),
    (is_about_retries, lambda context, request: context.dedup_query.answer(request)),
    (is_about_hearing, _hearing),
    (is_about_holding, _holding),
    (is_about_jobs, lambda context, request: context.mesh_jobs.answer(request)),
    (is_about_administration, respond_to_query),
    (lambda request: True, respond_to_peer),
)
"""The first that knows the request responds."""


async def respond(context: RequestContext, request: bytes) -> bytes:
    """The response of this node to a request of a peer. Raises Refused."""
    route = next(route for knows, route in ROUTES if knows(request))
    return await route(context, request)
