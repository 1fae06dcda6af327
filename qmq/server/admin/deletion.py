"""Deleting a fanout, or the retained message of a topic, on all nodes. Queues: `qmq.server.admin.bulk_jobs`.

The response is sent when the deletion is durable on this node; like every record it then goes to the peers. The
deletion covers the messages that this node had at that moment. Messages that it had not received yet stay, and so do
later ones. With `dry-run:true` the response is the same, and nothing changes.
"""

import logging
from functools import partial
from typing import Any, Protocol

from qmq.broker import fanout_deletion
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope, Retain
from qmq.deletions import Deletion
from qmq.errors import Refused
from qmq.server.admin.counts import DestinationCounts
from qmq.server.admin.system import SystemTopics
from qmq.server.runtime.contexts import Committing, Engine
from qmq.server.runtime.log_events import about

log = logging.getLogger("qmq.node")


class DeletionContext(Protocol):
    """What reporting a deletion needs of the node."""

    counts: DestinationCounts
    system: SystemTopics

    def schedule_checkpoint(self) -> None: ...


class DeleteContext(Engine, Committing, Protocol):
    """What deleting needs of the node."""


async def delete_fanout(context: DeleteContext, destination: str, *, is_dry_run: bool) -> dict[str, Any]:
    """Delete the fanout of this name. Raises Refused; then nothing has changed."""
    info = await context.environment.run_blocking(partial(context.store.fanout_info, destination))
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


async def delete_retained(context: DeleteContext, destination: str, *, is_dry_run: bool) -> dict[str, Any]:
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
    """Report that these fanouts were deleted, here or on another node, and let the stores delete their logs."""
    for one in deletions:
        context.counts.fanouts.pop(one.destination, None)
        by = one.dot.origin.node
        extra = about("fanout-deleted", destination=one.destination, by=by)
        log.info("= %s was deleted on node %s", one.destination, by, extra=extra)
        context.system.note("fanout-deleted", destination=one.destination, by=by)
    context.schedule_checkpoint()
