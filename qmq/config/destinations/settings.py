"""Which destinations are created (`[destinations]`), and which policy each has, as definitions say.

The policy with exactly the name of a destination applies, else the one with the longest matching prefix. Their order
has no effect, and policies are not merged. `policy_of` always returns a policy: the defaults if none matches.

Surprising: a message that fails in a dead letter queue must not return to it. If a queue is the dead letter queue of
its own policy, `policy_of` gives it a policy without delivery limit and expiry.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from qmq.section import Section, WrongValue, refuse

from .policy import DEFAULT_DEAD_LETTER, DEFAULTS, TOPIC_DEFAULT, DestinationPolicy, kind_prefix, last_queue

CACHED_MAX = 16_384
"""Destinations whose policy is cached; at the bound, the cache is emptied."""


class PolicyTable:
    """Destination → policy, with one look-up per distinct length of a prefix, not one per policy."""

    def __init__(self, policies: tuple[DestinationPolicy, ...]) -> None:
        self._exact = {policy.pattern: policy for policy in policies if policy.is_exact}
        self._prefixes = {policy.pattern[:-1]: policy for policy in policies if not policy.is_exact}
        self._lengths = sorted({len(prefix) for prefix in self._prefixes}, reverse=True)
        self._cache: dict[str, DestinationPolicy] = {}

    def written_for(self, destination: str) -> DestinationPolicy | None:
        """The policy that was defined; None if none matches."""
        found = self._exact.get(destination)
        if found is not None:
            return found
        for length in self._lengths:
            found = self._prefixes.get(destination[:length])
            if found is not None:
                return found
        return None

    def policy_of(self, destination: str) -> DestinationPolicy:
        """The policy that applies; the same object while nothing changes."""
        found = self._cache.get(destination)
        if found is None:
            if len(self._cache) >= CACHED_MAX:
                self._cache.clear()
            found = self._cache[destination] = self._find(destination)
        return found

    def _find(self, destination: str) -> DestinationPolicy:
        if destination == DEFAULT_DEAD_LETTER and self.written_for(destination) is None:
            return DestinationPolicy(pattern=DEFAULT_DEAD_LETTER)
        policy = self.written_for(destination) or DEFAULTS.get(kind_prefix(destination), TOPIC_DEFAULT)
        if last_queue(policy.dead_letter) == destination:
            # With a pattern of its own, because policies are distinguished by pattern.
            last = {
                "pattern": destination,
                "dead_letter": "",
                "dead_letter_routing_key": None,
                "delivery_limit": 0,
                "ttl_seconds": 0.0,
            }
            return policy.replace(last)
        return policy


class DestinationSettings(Section):
    """Which destinations exist, and their policies. A node file has `create_on_use` alone."""

    create_on_use: bool = True
    """False: only destinations that a policy matches exist, and the default dead letter queue."""
    policies: tuple[DestinationPolicy, ...] = ()

    @cached_property
    def table(self) -> PolicyTable:
        return PolicyTable(self.policies)

    def policy_of(self, destination: str) -> DestinationPolicy:
        """The policy of `destination`, or the defaults, whether or not it `exists`."""
        return self.table.policy_of(destination)

    def exists(self, destination: str) -> bool:
        """Whether a client may use `destination`: by policy, or because destinations are created on use."""
        if self.create_on_use or destination == DEFAULT_DEAD_LETTER:
            return True
        return self.table.written_for(destination) is not None

    def replace(self, values: Mapping[str, Any]) -> "DestinationSettings":
        copied = super().replace(values)
        copied.__dict__.pop("table", None)  # it belongs to the policies of the original
        return copied

    @classmethod
    def check(cls, key: str, value: Any, seen: Mapping[str, Any]) -> None:
        """Patterns differ; dead letter queues and children exist."""
        policies: tuple[DestinationPolicy, ...] = value if key == "policies" else ()
        errors: list[WrongValue] = []
        table = PolicyTable(policies)
        create_on_use = seen.get("create_on_use", True)
        patterns: set[str] = set()
        for number, policy in enumerate(policies):
            if policy.pattern in patterns:
                errors.append(WrongValue((number, "pattern"), policy.pattern, "must not have two policies"))
            patterns.add(policy.pattern)
            dead_letter = policy.dead_letter if policy.pattern.startswith("/queue/") else ""
            for what, name, place in (
                ("dead letter", dead_letter, (number, "dead_letter")),
                *(("child", child, (number, "children", at)) for at, child in enumerate(policy.children)),
            ):
                surely = last_queue(name)
                if surely in ("", DEFAULT_DEAD_LETTER) or create_on_use or table.written_for(surely) is not None:
                    continue
                why = f"unknown {what}: must have a policy, because create_on_use is false"
                errors.append(WrongValue(place, name, why))
        refuse(errors)
