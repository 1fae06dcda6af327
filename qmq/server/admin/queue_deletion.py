"""Deleting a queue on all nodes: its messages that wait, its declaration, its bindings, and its pause.

First each node settles the messages that it serves. Then the definitions are deleted in one change. A node that was
not reached drops its messages when it has that change (`qmq.server.definitions.deleted_queues`), if the queue was
declared. Without a declaration nothing says so later, and the response names the node.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from qmq.definitions.definition import Key
from qmq.errors import Refused
from qmq.gateways.headers import is_said
from qmq.server.admin.bulk_jobs import HAS_CONSUMERS, BulkJob
from qmq.server.admin.mesh_jobs import MeshJobs
from qmq.server.definitions.declared_queues import KIND
from qmq.server.definitions.live import Changes, LiveDefinitions
from qmq.server.definitions.paused_queues import KIND as PAUSE
from qmq.server.routing.definitions import BINDING, RoutingDefinitions

TRIES: Final = 3
"""Of the change, in case another one deletes the same definitions."""

Facts = dict[str, Any]


class QueueDeletionContext(Protocol):
    """What deleting queues needs of the node."""

    definitions: LiveDefinitions
    mesh_jobs: MeshJobs
    routing: RoutingDefinitions


async def delete_queue(
    context: QueueDeletionContext, queue: str, headers: Mapping[str, str], user: str | None
) -> Facts:
    """Delete `queue` as the request says. Raises Refused if it has consumers, unless the request is forced."""
    jobs = context.mesh_jobs
    is_forced, is_dry_run = is_said(headers, "force"), is_said(headers, "dry-run")
    is_defined = bool(definitions_of(context, queue))
    job = BulkJob(verb="delete", queue=queue, id=jobs.new_id(), is_dry_run=True, is_forced=is_forced)
    facts = await jobs.everywhere(job)
    code, _, message = facts["reason"].partition(": ")
    if code == HAS_CONSUMERS:
        raise Refused(HAS_CONSUMERS, message)
    if is_said(headers, "if-empty") and (facts["messages"] or facts["nodes_missing"]):
        missing = f", and {', '.join(facts['nodes_missing'])} did not answer" if facts["nodes_missing"] else ""
        raise Refused("not-empty", f"{queue} has {facts['messages']} messages that wait{missing}.")
    if not is_dry_run:
        facts = await jobs.everywhere(replace(job, id=jobs.new_id(), is_dry_run=False))
    if is_defined:
        facts.pop("known", None)
    return {**facts, **await delete_definitions(context, queue, user, is_dry_run=is_dry_run)}


async def delete_definitions(
    context: QueueDeletionContext, queue: str, user: str | None, *, is_dry_run: bool = False
) -> Facts:
    """Delete what is defined of `queue`, in one change: whether it was `declared`, and its `bindings`."""
    for left in reversed(range(TRIES)):
        changes = definitions_of(context, queue)
        if changes and not is_dry_run:
            try:
                await context.definitions.change(changes, user)
            except Refused:
                if not left:
                    raise
                continue
        break
    kinds = [key.kind for key in changes]
    return {"declared": KIND in kinds, "bindings": kinds.count(BINDING)}


def definitions_of(context: QueueDeletionContext, queue: str) -> Changes:
    """The deletion of everything that is defined of `queue`."""
    table = context.definitions.table
    keys = [key for key in (Key(KIND, queue), Key(PAUSE, queue)) if table.get(key) is not None]
    keys += [Key(BINDING, one.name) for one in context.routing.bindings() if one.queue == queue]
    return dict.fromkeys(keys)
