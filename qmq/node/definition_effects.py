"""What follows on this node from changed definitions: caches are forgotten, and clients are re-checked."""

from collections.abc import Iterable
from functools import partial
from typing import Protocol

from qmq.admin.policies import Policies, follow_rules
from qmq.config import LimitSettings
from qmq.engine.checkpoint.checkpoints import Checkpoints
from qmq.engine.runtime.contexts import Engine, Tasks
from qmq.gateways.rules import Rules
from qmq.sessions.clients.access import Access
from qmq.sessions.clients.login import Logins
from qmq.settings.definitions.deleted_queues import DeletedQueues
from qmq.settings.definitions.exclusive_queues import ExclusiveQueues
from qmq.settings.definitions.queue_lifetimes import QueueLifetimes
from qmq.settings.definitions.queue_watchers import QueueWatchers
from qmq.settings.definitions.schemas import SchemaDefinitions
from qmq.settings.definitions.users import UserDefinitions
from qmq.settings.limits.holdings import Holdings
from qmq.settings.limits.usage import ClientUsages


class EffectsContext(Engine, Tasks, Protocol):
    """The parts that follow definitions."""

    limits: LimitSettings
    rules: Rules
    policies: Policies
    checkpoints: Checkpoints
    logins: Logins
    access: Access
    usages: ClientUsages
    holdings: Holdings
    queue_lifetimes: QueueLifetimes
    exclusive_queues: ExclusiveQueues
    deleted_queues: DeletedQueues
    queue_watchers: QueueWatchers
    schemas: SchemaDefinitions
    user_definitions: UserDefinitions


class DefinitionEffects:
    """One method for each kind of change. None of them waits."""

    def __init__(self, context: EffectsContext) -> None:
        self._context = context

    def policies_changed(self) -> None:
        """What applies to destinations has changed."""
        context = self._context
        context.rules.generation += 1
        context.schemas.follow()
        context.checkpoints.schedule()
        context.spawn(partial(follow_rules, context.broker.queues))

    def users_changed(self) -> None:
        """Users, groups or permissions have changed."""
        context = self._context
        found = context.user_definitions
        context.logins.change(found.users, context.limits)
        context.access.change(found.users, found.permissions)
        self.user_limits_changed()

    def user_limits_changed(self) -> None:
        """Limits of users have changed, or the groups that they are for."""
        context = self._context
        context.usages.follow()
        if context.holdings.follow():
            context.policies.forget_rules()
            context.spawn(partial(follow_rules, context.broker.queues))

    def declarations_changed(self, queues: Iterable[str]) -> None:
        """The declarations of these queues have changed, or are known since the start."""
        context = self._context
        context.queue_lifetimes.changed(queues)
        context.exclusive_queues.changed(queues)
        context.holdings.changed(queues)
        context.schemas.declarations_changed(queues)

    def queues_deleted(self, queues: Iterable[str]) -> None:
        """The declarations of these queues are deleted."""
        names = list(queues)
        self._context.deleted_queues.drop(names)
        self._context.queue_watchers.deleted(names)
