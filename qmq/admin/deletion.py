"""Deleting a queue, a fanout, or the retained message of a topic, on all nodes.

Of a queue, first each node settles the messages that it serves (`bulk_jobs`). Then its definitions are deleted in one
change: declaration, bindings and pause. A node that was not reached drops its messages when it has that change
(`qmq.settings.definitions.deleted_queues`). The response names it. A queue that is not declared is deleted in the same
way, unless all nodes say that they know of no declaration.

Of a fanout and a retained message, the response is sent when the deletion is durable on this node. Like every record it
then goes to the peers. The deletion covers the messages that this node had at that moment. Messages that it had not
received yet stay, and so do later ones.

With `dry-run:true` the response is the same, and nothing changes.
"""

import logging

from msgspec.structs import replace

from qmq.admin.bulk_jobs import HAS_CONSUMERS, BulkJob
from qmq.admin.facts.system import SystemTopics
from qmq.admin.mesh_jobs import MeshJobs
from qmq.broker import fanout_deletion
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope, Retain
from qmq.engine.checkpoint.checkpoints import Checkpoints
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.log_events import about
from qmq.errors import Refused
from qmq.mesh.peers.calls import Facts
from qmq.model.deletions import Deletion
from qmq.settings.definitions.declared_queues import DeclaredQueues
from qmq.verbs.queues import Delete

log = logging.getLogger("qmq.node")


class DestinationDeletion:
    """Deletes destinations of all kinds."""

    def __init__(self, engine: EngineParts, jobs: MeshJobs, declared_queues: DeclaredQueues) -> None:
        self._engine = engine
        self._jobs = jobs
        self._declared_queues = declared_queues

    async def queue(self, queue: str, options: Delete, user: str | None) -> Facts:
        """Delete `queue` as the request says. Raises Refused if it has consumers, unless the request is forced, and
        if a file locks what is defined of it; then nothing has changed. A consumer that comes while messages are
        settled keeps what is defined, and the rest of the messages.
        """
        jobs = self._jobs
        is_forced, is_dry_run = options.force, options.dry_run
        self._declared_queues.check_deletion(queue)
        is_defined = bool(self._declared_queues.definitions_of(queue))
        job = BulkJob(verb="delete", queue=queue, id=jobs.new_id(), is_dry_run=True, is_forced=is_forced)
        facts = _unless_consumed(await jobs.everywhere(job))
        if options.if_empty and (facts["messages"] or facts["nodes_missing"]):
            missing = f", and {', '.join(facts['nodes_missing'])} did not answer" if facts["nodes_missing"] else ""
            raise Refused("not-empty", f"{queue} has {facts['messages']} messages that wait{missing}.")
        if not is_dry_run:
            facts = _unless_consumed(await jobs.everywhere(replace(job, id=jobs.new_id(), is_dry_run=False)))
        if is_defined:
            facts.pop("known", None)
        return {**facts, **await self._declared_queues.delete(queue, user, is_dry_run=is_dry_run)}

    async def fanout(self, destination: str, *, is_dry_run: bool) -> Facts:
        """Delete the fanout of this name. Raises Refused; then nothing has changed."""
        info = await self._engine.environment.run_blocking(self._engine.store.fanout_info, destination)
        broker = self._engine.broker
        subscribers = len(broker.subscriptions.fanouts.get(destination, ()))
        cursors = broker.durable_subscriptions.by_name.values()
        durable_subscriptions = sum(1 for one in cursors if one.name.destination == destination and one.created_us)
        if not (
            info.records or subscribers or durable_subscriptions or destination in broker.send_limits.logged_fanouts
        ):
            raise Refused("unknown-destination", f"This node knows no fanout {destination}.")
        if not is_dry_run:
            await self._engine.path.slot(asks=True)
            out = Outcome(now_us=self._engine.environment.now_us())
            fanout_deletion.delete(broker, destination, out.now_us, out)
            self._engine.path.submit(out)
            await self._engine.path.flushed()
        return {
            "messages": info.records,
            "subscribers": subscribers,
            "durable_subscriptions": durable_subscriptions,
            "changed": 1,
        }

    async def retained(self, destination: str, *, is_dry_run: bool) -> Facts:
        """Delete the retained message of a topic, on all nodes, as a SEND with `retain:remove` does.

        Subscribers get a message without a body. Raises Refused if this node knows no retained message.
        """
        broker = self._engine.broker
        if broker.retained.older(destination, broker.retained.change) is None:
            raise Refused("unknown-destination", f"This node knows no retained message of {destination}.")
        if not is_dry_run:
            await self._engine.path.slot(asks=True)
            out = Outcome(now_us=self._engine.environment.now_us())
            envelope = Envelope(destination, DestinationKind.TOPIC, b"", False)
            envelope.retain = Retain.REMOVE
            broker.send(envelope, b"", out.now_us, out)
            self._engine.path.submit(out)
        return {"messages": 1}


def _unless_consumed(facts: Facts) -> Facts:
    """The facts of a job, unless consumers were in its way. Raises Refused."""
    code, _, message = facts["reason"].partition(": ")
    if code == HAS_CONSUMERS:
        raise Refused(HAS_CONSUMERS, message)
    return facts


def note_deletions(system: SystemTopics, checkpoints: Checkpoints, deletions: list[Deletion]) -> None:
    """Report which fanouts are deleted, here or on another node, and let the stores delete their logs."""
    for one in deletions:
        by = one.dot.origin.node
        extra = about("fanout-deleted", destination=one.destination, by=by)
        log.info("= %s was deleted on node %s", one.destination, by, extra=extra)
        system.note("fanout-deleted", destination=one.destination, by=by)
    checkpoints.schedule()
