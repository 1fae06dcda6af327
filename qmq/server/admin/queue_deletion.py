"""Deleting a queue on all nodes: its messages that wait, its declaration, its bindings, and its pause.

First each node settles the messages that it serves. Then the definitions are deleted in one change. A node that was
not reached drops its messages when it has that change (`qmq.server.definitions.deleted_queues`), if the queue was
declared. Without a declaration nothing says so later, and the response names the node.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from qmq.errors import Refused
from qmq.gateways.headers import is_said
from qmq.server.admin.bulk_jobs import HAS_CONSUMERS, BulkJob
from qmq.server.admin.mesh_jobs import MeshJobs
from qmq.server.definitions.declared_queues import DeclaredQueues

Facts = dict[str, Any]


class QueueDeletionContext(Protocol):
    """What deleting queues needs of the node."""

    declared_queues: DeclaredQueues
    mesh_jobs: MeshJobs


async def delete_queue(
    context: QueueDeletionContext, queue: str, headers: Mapping[str, str], user: str | None
) -> Facts:
    """Delete `queue` as the request says. Raises Refused if it has consumers, unless the request is forced, and
    if a file locks what is defined of it; then nothing has changed.
    """
    jobs = context.mesh_jobs
    is_forced, is_dry_run = is_said(headers, "force"), is_said(headers, "dry-run")
    context.declared_queues.check_deletion(queue)
    is_defined = bool(context.declared_queues.definitions_of(queue))
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
    return {**facts, **await context.declared_queues.delete(queue, user, is_dry_run=is_dry_run)}
