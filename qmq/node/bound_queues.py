"""Declaring and deleting the queues of durable topic subscriptions and of subscriptions to exchanges.

A queue and its binding are one change: after a crash both are there, or neither. Rights are the gateway's business.
"""

from typing import Protocol

from qmq.admin.deletion import QueueDeletionContext, delete_queue
from qmq.config.destinations.declared import DECLARED_BY
from qmq.definitions.definition import Key
from qmq.gateways.bound_queues import BoundQueue
from qmq.settings.definitions.declared_queues import KIND as QUEUE
from qmq.settings.definitions.live import LiveDefinitions, Value
from qmq.settings.definitions.queue_lifetimes import QueueLifetimes
from qmq.settings.routing.definitions import BINDING
from qmq.verbs.queues import Delete


class BoundContext(QueueDeletionContext, Protocol):
    definitions: LiveDefinitions
    queue_lifetimes: QueueLifetimes


class BoundQueues:
    """Changes them for the sessions of one node."""

    def __init__(self, context: BoundContext) -> None:
        self._context = context

    async def declare(self, bound: BoundQueue, user: str | None) -> None:
        """Declare the queue, unless it is declared, and bind it. Durable here on return. Raises Refused."""
        context = self._context
        binding = bound.binding
        key = Key(QUEUE, bound.queue)
        changes: dict[Key, Value | None] = {}

        def decide() -> None:
            # Again in its turn: another client may declare or delete the queue while this change waits.
            changes.clear()
            known = context.declared_queues.value_of(bound.queue)
            if known is not None and bound.is_named and context.declared_queues.may_own(bound.queue, user):
                # It was begun without login: it belongs to the first user that continues it.
                changes[key] = {**known, DECLARED_BY: user}
            elif known is None:
                changes[key] = context.declared_queues.with_owner(bound.queue, bound.declaration, user)
            elif not context.declared_queues.reaches_all():
                # Where this node cannot hear of it, the queue may be deleted.
                changes[key] = known
            changes[Key(BINDING, binding.name)] = binding.value

        decide()
        context.definitions.check(changes)  # One that is refused keeps no queue.
        context.queue_lifetimes.declared_again(bound.queue)
        await context.definitions.change(changes, user, guard=decide)

    async def delete(self, bound: BoundQueue, user: str | None) -> None:
        """Delete the queue, its messages and its binding, on all nodes, also with consumers. Raises Refused."""
        await delete_queue(self._context, bound.queue, Delete(force=True), user)
