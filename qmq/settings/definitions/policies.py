"""The kind `policy`: policies of destinations, by pattern. `settings.destinations` has those that count."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from qmq.config import DestinationPolicy, NodeSettings
from qmq.config.definition_values import check_policies, check_replicas, join_policies, policy_values, read_policy
from qmq.engine.runtime.condition_group import ConditionGroup
from qmq.engine.runtime.contexts import NodeBasics
from qmq.errors import ConfigError, Refused
from qmq.model.members import Membership
from qmq.settings.definitions.live import LiveDefinitions, Value

KIND: Final = "policy"

UNFIT: Final = "policies-unfit"
"""Code of the condition."""


@dataclass(eq=False, repr=False)
class PolicyKind:
    """See `DefinitionKind`. `apply` lets settings with other policies apply from now on, and queues follow."""

    names_destinations = True

    _membership: Membership
    _node: NodeBasics
    _definitions: LiveDefinitions
    _apply: Callable[[NodeSettings], None]

    def __post_init__(self) -> None:
        self._unfit = ConditionGroup(self._node, UNFIT)
        self._unreadable: list[str] = []
        self._definitions.follow(KIND, self)

    def check(self, changes: Mapping[str, Value | None]) -> Mapping[str, Value | None]:
        try:
            new = {name: read_policy(name, value) for name, value in changes.items() if value is not None}
            for name, policy in new.items():
                check_replicas(f"{KIND} {name}", policy, len(self._membership.voting_peers))
            before = {policy.pattern: policy for policy in self._chosen()}
            kept = [policy for name, policy in before.items() if name not in changes]
            check_policies(self._node.settings, [*kept, *new.values()])
        except ConfigError as error:
            raise Refused("bad-definition", "; ".join(error.diagnostics)) from error
        return {name: None if name not in new else policy_values(new[name]) for name in changes}

    def changed(self, names: Collection[str]) -> None:
        self._apply(self.join(self._node.settings))

    def join(self, settings: NodeSettings) -> NodeSettings:
        """`settings` with the policies that count."""
        destinations, left_out = join_policies(settings, self._chosen())
        left_out += self._unreadable
        unfit = f"left out, because they do not fit together with the others: {', '.join(left_out)}" if left_out else ""
        self._unfit.show([unfit] if unfit else [])
        return settings.replace({"destinations": destinations})

    def _chosen(self) -> list[DestinationPolicy]:
        """The policies, in the order of their changes."""
        readable = self._definitions.rows(KIND, read_policy)
        names = [one.key.name for one in sorted(self._definitions.of_kind(KIND), key=lambda one: one.version)]
        self._unreadable = [name for name in names if name not in readable]
        return [readable[name] for name in names if name in readable]
