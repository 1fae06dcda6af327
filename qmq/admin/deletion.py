"""Deleting a queue, a fanout, or the retained message of a topic, on all nodes.

Of a queue, first each node settles the messages that it serves (`bulk_jobs`). Then its definitions are deleted in one
change: declaration, bindings and pause. A node that was not reached drops its messages when it has that change
(`qmq.settings.definitions.deleted_queues`), if the queue was declared. Without a declaration nothing says so later, and
the response names the node.

Of a fanout and a retained message, the response is sent when the deletion is durable on this node. Like every record it
then goes to the peers. The deletion covers the messages that this node had at that moment. Messages that it had not
received yet stay, and so do later ones.

With `dry-run:true` the response is the same, and nothing changes.
"""

import logging
from typing import Protocol

from msgspec.structs import replace

from qmq.admin.bulk_jobs import HAS_CONSUMERS, BulkJob
from qmq.admin.mesh_jobs import MeshJobs
from qmq.admin.system import SystemTopics
from qmq.broker import fanout_deletion
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope, Retain
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import Committing, Engine
from qmq.engine.runtime.log_events import about
from qmq.errors import Refused
from qmq.mesh.peers.calls import Facts
from qmq.model.deletions import Deletion
from qmq.settings.definitions.declared_queues import DeclaredQueues
from qmq.verbs.queues import Delete

log = logging.getLogger("qmq.node")


class DeletionContext(Protocol):
    system: SystemTopics

    engine: EngineParts


class DeleteContext(Engine, Committing, Protocol):
    """What deleting needs of the node."""


async def delete_fanout(context: DeleteContext, destination: str, *, is_dry_run: bool) -> Facts:
    """Delete the fanout of this name. Raises Refused; then nothing has changed."""
    info = await context.environment.run_blocking(context.store.fanout_info, destination)
    broker = context.broker
    subscribers = len(broker.subscriptions.fanouts.get(destination, ()))
    cursors = broker.durable_subscriptions.by_name.values()
    durable_subscriptions = sum(1 for one in cursors if one.name.destination == destination and one.created_us)
    if not (info.records or subscribers or durable_subscriptions or destination in broker.send_limits.logged_fanouts):
        raise Refused("unknown-destination", f"This node knows no fanout {destination}.")
    if not is_dry_run:
        await context.slot(asks=True)
        out = Outcome(now_us=context.environment.now_us())
        fanout_deletion.delete(broker, destination, out.now_us, out)
        context.submit(out)
        await context.flushed()
    return {
        "messages": info.records,
        "subscribers": subscribers,
        "durable_subscriptions": durable_subscriptions,
    }


async def delete_retained(context: DeleteContext, destination: str, *, is_dry_run: bool) -> Facts:
    """Delete the retained message of a topic, on all nodes, as a SEND with `retain:remove` does.

    Subscribers get a message without a body. Raises Refused if this node knows no retained message.
    """
    broker = context.broker
    if broker.retained.older(destination, broker.retained.change) is None:
        raise Refused("unknown-destination", f"This node knows no retained message of {destination}.")
    if not is_dry_run:
        await context.slot(asks=True)
        out = Outcome(now_us=context.environment.now_us())
        envelope = Envelope(destination, DestinationKind.TOPIC, b"", False)
        envelope.retain = Retain.REMOVE
        broker.send(envelope, b"", out.now_us, out)
        context.submit(out)
    return {"messages": 1}


def note_deletions(context: DeletionContext, deletions: list[Deletion]) -> None:
    """Report which fanouts are deleted, here or on another node, and let the stores delete their logs."""
    for one in deletions:
        by = one.dot.origin.node
        extra = about("fanout-deleted", destination=one.destination, by=by)
        log.info("= %s was deleted on node %s", one.destination, by, extra=extra)
        context.system.note("fanout-deleted", destination=one.destination, by=by)
    context.engine.checkpoints.schedule()


class QueueDeletionContext(Protocol):
    declared_queues: DeclaredQueues
    mesh_jobs: MeshJobs


async def delete_queue(context: QueueDeletionContext, queue: str, options: Delete, user: str | None) -> Facts:
    """Delete `queue` as the request says. Raises Refused if it has consumers, unless the request is forced, and
    if a file locks what is defined of it; then nothing has changed. A consumer that comes while messages are settled
    keeps what is defined, and the rest of the messages.
    """
    jobs = context.mesh_jobs
    is_forced, is_dry_run = options.force, options.dry_run
    context.declared_queues.check_deletion(queue)
    is_defined = bool(context.declared_queues.definitions_of(queue))
    job = BulkJob(verb="delete", queue=queue, id=jobs.new_id(), is_dry_run=True, is_forced=is_forced)
    facts = _unless_consumed(await jobs.everywhere(job))
    if options.if_empty and (facts["messages"] or facts["nodes_missing"]):
        missing = f", and {', '.join(facts['nodes_missing'])} did not answer" if facts["nodes_missing"] else ""
        raise Refused("not-empty", f"{queue} has {facts['messages']} messages that wait{missing}.")
    if not is_dry_run:
        facts = _unless_consumed(await jobs.everywhere(replace(job, id=jobs.new_id(), is_dry_run=False)))
    if is_defined:
        facts.pop("known", None)
    return {**facts, **await context.declared_queues.delete(queue, user, is_dry_run=is_dry_run)}


def _unless_consumed(facts: Facts) -> Facts:
    """The facts of a job, unless consumers were in its way. Raises Refused."""
    code, _, message = facts["reason"].partition(": ")
    if code == HAS_CONSUMERS:
        raise Refused(HAS_CONSUMERS, message)
    return facts
