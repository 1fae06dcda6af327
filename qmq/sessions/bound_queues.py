"""Declaring and deleting the queues of durable topic subscriptions and of subscriptions to exchanges.

A queue and its binding are one change: after a crash both are there, or neither. Rights are the gateway's business.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from qmq.config.destinations.declared import DECLARED_BY
from qmq.definitions.definition import Key
from qmq.gateways.bound_queues import BoundQueue
from qmq.settings.definitions.declared_queues import KIND as QUEUE
from qmq.settings.definitions.declared_queues import DeclaredQueues
from qmq.settings.definitions.live import LiveDefinitions, Value
from qmq.settings.definitions.queue_lifetimes import QueueLifetimes
from qmq.settings.routing.definitions import BINDING


@dataclass(eq=False, repr=False)
class BoundQueues:
    """Changes them for the sessions of one node. `delete_queue` deletes a queue of a user on all nodes, its messages
    and what is defined of it, also with consumers; it raises Refused.
    """

    _definitions: LiveDefinitions
    _declared: DeclaredQueues
    _lifetimes: QueueLifetimes
    _delete_queue: Callable[[str, str | None], Awaitable[object]]

    async def declare(self, bound: BoundQueue, user: str | None) -> None:
        """Declare the queue, unless it is declared, and bind it. Durable here on return. Raises Refused."""
        declared = self._declared
        binding = bound.binding
        key = Key(QUEUE, bound.queue)
        changes: dict[Key, Value | None] = {}

        def decide() -> None:
            # Again in its turn: another client may declare or delete the queue while this change waits.
            changes.clear()
            known = declared.value_of(bound.queue)
            if known is not None and bound.is_named and declared.may_own(bound.queue, user):
                # It was begun without login: it belongs to the first user that continues it.
                changes[key] = {**known, DECLARED_BY: user}
            elif known is None:
                changes[key] = declared.with_owner(bound.queue, bound.declaration, user)
            else:
                # Written again unless all members know it so: it may be deleted where this node cannot hear of it.
                changes[key] = known
            changes[Key(BINDING, binding.name)] = binding.value

        decide()
        self._definitions.check(changes)  # One that is refused keeps no queue.
        self._lifetimes.declared_again(bound.queue)
        await self._definitions.change(changes, user, guard=decide)

    async def delete(self, bound: BoundQueue, user: str | None) -> None:
        """Delete the queue, its messages and its binding, on all nodes, also with consumers. Raises Refused."""
        await self._delete_queue(bound.queue, user)
