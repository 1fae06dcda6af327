"""What follows on this node from changed policies and limits: rules are made again, and existing queues follow them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from qmq.config import NodeSettings
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import NodeBasics
from qmq.gateways.rules import Rules
from qmq.settings.definitions.schemas import SchemaDefinitions
from qmq.settings.limits.holdings import Holdings
from qmq.settings.limits.usage import ClientUsages
from qmq.settings.rules_of_settings import Policies, broker_limits, follow_rules


@dataclass(eq=False, repr=False)
class DefinitionEffects:
    """One method for each kind of change. None of them waits. `use` lets settings apply from now on."""

    _engine: EngineParts
    _node: NodeBasics
    _policies: Policies
    _rules: Rules
    _schemas: SchemaDefinitions
    _holdings: Holdings
    _usages: ClientUsages
    _use: Callable[[NodeSettings], None]

    def policies_changed(self, settings: NodeSettings) -> None:
        """`settings` have the policies that count from now on, and existing queues follow."""
        self._use(settings)
        self._rules.replan()
        self._schemas.follow()
        self._engine.checkpoints.schedule()
        self._follow_rules()

    def limits_changed(self) -> None:
        """Limits of users have changed, or the groups that they are for."""
        self._usages.follow()
        if self._holdings.follow():
            self._policies.forget_rules()
            self._follow_rules()

    def settings_changed(self, settings: NodeSettings) -> None:
        """`settings` apply from now on. The caller lets existing queues follow."""
        self._use(settings)
        limits = settings.limits
        self._rules.bound_clients(limits.prefetch_default, limits.prefetch_max, limits.destination_bytes_max)
        self._schemas.follow()
        self._rules.replan()
        self._engine.broker.limit(broker_limits(limits))
        self._engine.checkpoints.schedule()

    def _follow_rules(self) -> None:
        self._node.spawn(partial(follow_rules, self._engine.broker.queues))
