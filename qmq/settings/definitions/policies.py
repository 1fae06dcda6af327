"""The kind `policy`: policies of destinations, by pattern.

Until an operator changes the first policy at run time, those of the node file count. That change writes them as
definitions, and from then on the mesh's definitions count on all nodes. Of the file then only entries with `locked`
count, on the node of that file, and its `create_on_use`.
"""

import logging
from collections.abc import Collection, Mapping
from typing import Final, Protocol

from qmq.config import DestinationPolicy, NodeSettings
from qmq.config.definition_values import check_policies, join_policies, policy_values, read_policy
from qmq.config.destinations.fingerprints import fingerprints_of
from qmq.definitions.definition import Definition
from qmq.engine.runtime.condition_group import ConditionGroup
from qmq.engine.runtime.contexts import Engine, MeshPeers, Reporting
from qmq.errors import ConfigError, Refused
from qmq.model.members import REPLICATED
from qmq.settings.definitions.live import LiveDefinitions, Value

KIND: Final = "policy"

UNFIT: Final = "policies-unfit"
"""Code of the condition."""

log = logging.getLogger("qmq.definitions")


class PolicyContext(Engine, MeshPeers, Reporting, Protocol):
    definitions: LiveDefinitions

    def policies_changed(self) -> None:
        """Let `settings.destinations` apply from now on, and existing queues follow."""


class PolicyKind:
    """See `DefinitionKind`. `file` is what the node file says now."""

    names_destinations = True

    def __init__(self, context: PolicyContext, file: NodeSettings) -> None:
        self._context = context
        self._file = file
        # Name → the text of a definition and the policy that it is: parsed once.
        self._parsed: dict[str, tuple[str, DestinationPolicy]] = {}
        self._unfit = ConditionGroup(context, UNFIT)
        self._unreadable: list[str] = []

    def locked(self) -> Mapping[str, Value]:
        return {policy.pattern: policy_values(policy) for policy in self._locked}

    @property
    def _locked(self) -> list[DestinationPolicy]:
        return [policy for policy in self._file.destinations.policies if policy.locked]

    def fingerprints(self) -> dict[str, str]:
        """By pattern, what counts on this node alone; see `qmq.model.members.Standing`."""
        destinations = self._file.destinations
        if not self._is_seeded:
            return fingerprints_of(destinations)
        return {**fingerprints_of(destinations, self._locked), REPLICATED: ""}

    def check(self, changes: Mapping[str, Value | None]) -> Mapping[str, Value | None]:
        try:
            new = {name: read_policy(name, value) for name, value in changes.items() if value is not None}
            most = len(self._context.peer_names)
            for policy in new.values():
                if policy.receipt is not None and policy.receipt.startswith("replicas="):
                    if int(policy.receipt.partition("=")[2]) > most:
                        raise ConfigError(
                            [
                                f"policy {policy.pattern}: receipt = {policy.receipt}: must be at most "
                                f"replicas={most}, because the mesh has no more other nodes"
                            ]
                        )
            before = {policy.pattern: policy for policy in self._chosen()}
            kept = [policy for name, policy in before.items() if name not in changes]
            check_policies(self._file, [*kept, *new.values()])
        except ConfigError as error:
            raise Refused("bad-definition", "; ".join(error.diagnostics)) from error
        return {name: None if name not in new else policy_values(new[name]) for name in changes}

    def seeds(self) -> Mapping[str, Value]:
        return {policy.pattern: policy_values(policy) for policy in self._file.destinations.policies}

    def changed(self, names: Collection[str]) -> None:
        context = self._context
        context.settings = context.settings.replace({"destinations": self.join(self._file).destinations})
        context.policies_changed()

    def join(self, file: NodeSettings) -> NodeSettings:
        """The settings that apply while the node file says `file`."""
        self._file = file
        if not self._is_seeded:
            return file
        chosen = self._chosen()
        destinations, left_out = join_policies(file, chosen)
        left_out += self._unreadable
        unfit = f"left out, because they do not fit together with the others: {', '.join(left_out)}" if left_out else ""
        self._unfit.show([unfit] if unfit else [])
        return file.replace({"destinations": destinations})

    def log_without_effect(self, changed: Collection[str]) -> None:
        """Log which of these changed keys of the file have no effect, because the mesh has policies of its own."""
        locked = {policy.pattern for policy in self._locked}
        prefix = "destinations.policies["
        for key in changed if self._is_seeded else ():
            pattern = key.removeprefix(prefix).partition("]")[0]
            if key.startswith(prefix) and pattern not in locked:
                log.warning("! %s has no effect: policies of the mesh apply; see `qmq policies set`", key)

    @property
    def _is_seeded(self) -> bool:
        return self._context.definitions.is_seeded(KIND)

    def _chosen(self) -> list[DestinationPolicy]:
        """The policies that count, locked ones first, then in the order of their changes."""
        if not self._is_seeded:
            return list(self._file.destinations.policies)
        chosen = self._locked
        names = {policy.pattern for policy in chosen}
        self._unreadable = []
        for one in sorted(self._context.definitions.table.of_kind(KIND), key=lambda one: one.version):
            if one.key.name not in names:
                try:
                    chosen.append(self._policy(one))
                except ConfigError:
                    # Written by a later version of the software.
                    self._unreadable.append(one.key.name)
        return chosen

    def _policy(self, one: Definition) -> DestinationPolicy:
        text, known = self._parsed.get(one.key.name, ("", None))
        if known is None or text != one.text:
            value = one.value
            if value is None:
                raise ConfigError([f"policy {one.key.name}: no JSON object"])
            known = read_policy(one.key.name, value)
            self._parsed[one.key.name] = (one.text or "", known)
        return known
