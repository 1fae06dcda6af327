"""Policies of destinations as plain values: how definitions of the mesh carry them, and how they join those of a file.

The values are the keys of `[[destinations.policies]]` without `pattern`, which is the name of the definition, and
without `locked`, which only a file has. A declared queue has the keys of queues, those of its lifetime, and the user
that declared it.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from qmq.errors import ConfigError

from .destinations.declared import DECLARED_BY, QUEUE_KEYS, QueueEntry, QueueLifetime, QueueOwner
from .destinations.policy import DestinationPolicy
from .destinations.settings import DestinationSettings
from .diagnostics import describe
from .load import as_tuples
from .node import NodeSettings
from .values.model import Section


def read_policy(pattern: str, values: Mapping[str, Any]) -> DestinationPolicy:
    """The policy with these values. Raises ConfigError, which names each bad key and what is allowed."""
    source = f"policy {pattern}"
    own = [key for key in ("pattern", "locked") if key in values]
    if own:
        raise ConfigError([f"{source}: {key}: only an entry of the node file has it" for key in own])
    try:
        return DestinationPolicy.model_validate(as_tuples({"pattern": pattern, **values}))
    except ValidationError as error:
        raise ConfigError(describe(error, DestinationPolicy, source, None)) from error


def read_queue(queue: str, values: Mapping[str, Any]) -> tuple[DestinationPolicy, dict[str, Any]]:
    """What the declaration of a queue says: a policy that sets only its keys, and all of it in canonical form.

    Raises ConfigError, which names each bad key and what is allowed.
    """
    source = f"queue {queue}"
    unknown = [key for key in values if key not in QUEUE_KEYS and key != DECLARED_BY]
    if unknown:
        raise ConfigError([f"{source}: {key}: {_instead(key)}" for key in unknown])
    lifetime = {key: value for key, value in values.items() if key in QueueLifetime.model_fields}
    model: type[Section] = QueueLifetime
    try:
        until = QueueLifetime.model_validate(lifetime)
        model = QueueOwner
        owner = QueueOwner.model_validate({DECLARED_BY: values.get(DECLARED_BY, "")})
        model = DestinationPolicy
        rules = {key: value for key, value in values.items() if key not in lifetime and key != DECLARED_BY}
        policy = DestinationPolicy.model_validate(as_tuples({"pattern": queue, **rules}))
    except ValidationError as error:
        raise ConfigError(describe(error, model, source, None)) from error
    others = [one.model_dump(mode="json", exclude_defaults=True) for one in (until, owner)]
    return policy, {**policy_values(policy), **others[0], **others[1]}


def queue_values(entry: QueueEntry) -> dict[str, Any]:
    """What an entry of `[[queues]]` declares, in canonical form."""
    return read_queue(entry.pattern, policy_values(entry))[1]


def join_declared(policy: DestinationPolicy, declared: DestinationPolicy) -> DestinationPolicy:
    """What applies to a declared queue for which otherwise `policy` counts.

    The keys of a locked entry win over those of the declaration, and these over those of other policies.
    """
    names = declared.model_fields_set - {"pattern"}
    if "dead_letter" in names:
        # The two are one thing.
        names.add("dead_letter_routing_key")
    if policy.locked:
        names -= policy.model_fields_set
    return policy.model_copy(update={name: getattr(declared, name) for name in names})


def policy_values(policy: DestinationPolicy) -> dict[str, Any]:
    """The inverse: what the policy sets, as JSON has it."""
    values = policy.model_dump(mode="json", exclude_unset=True)
    return {key: value for key, value in values.items() if key not in ("pattern", "locked")}


def check_policies(settings: NodeSettings, policies: Iterable[DestinationPolicy]) -> DestinationSettings:
    """`policies` in place of those of the file. Raises ConfigError when they do not fit together or with the limits."""
    chosen = tuple(policies)
    try:
        joined = DestinationSettings.model_validate(
            {"create_on_use": settings.destinations.create_on_use, "policies": chosen}
        )
        NodeSettings.model_validate({"limits": settings.limits, "destinations": joined})
    except ValidationError as error:
        raise ConfigError(describe(error, NodeSettings, "policies", None)) from error
    return joined


def join_policies(
    settings: NodeSettings, policies: Iterable[DestinationPolicy]
) -> tuple[DestinationSettings, list[str]]:
    """As `check_policies`, for what cannot be refused any more: the patterns of those that are left out are second.

    `policies` are in the order of their changes. Two nodes can each accept a change so that both do not fit together;
    then the later one is left out, on every node.
    """
    chosen = list(policies)
    left_out: list[str] = []
    while True:
        try:
            return check_policies(settings, chosen), left_out
        except ConfigError:
            # The shortest beginning that does not fit ends with one that must be left out.
            fits, fails = 0, len(chosen)
            while fails - fits > 1:
                middle = (fits + fails) // 2
                try:
                    check_policies(settings, chosen[:middle])
                    fits = middle
                except ConfigError:
                    fails = middle
            left_out.append(chosen.pop(fails - 1).pattern)


def _instead(key: str) -> str:
    like = get_close_matches(key, QUEUE_KEYS, 1)
    return f"unknown key; {f'did you mean {like[0]}? ' if like else ''}Allowed are {', '.join(QUEUE_KEYS)}"
