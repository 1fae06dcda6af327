"""Settings of the mesh as plain values: how definitions carry them, and whether policies fit together.

The values of a policy are its keys without `pattern`, which is the name of the definition. A declared queue has the
keys of queues, those of its lifetime, and the user that declared it.

A user is defined by its name. A permission has one destination, and a name that says the same as its value:
`group:billing allow send,subscribe /queue/billing.*`. So permissions that two nodes define at once never replace each
other, unless they are equal. A limit is named by what it is about, `user:NAME` or `group:NAME`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from qmq.access.rules import ACTIONS, ADMINISTRATOR, LOCAL_ADMINISTRATOR
from qmq.access.user_limits import limit_name
from qmq.errors import ConfigError
from qmq.section import Section, WrongValues, closest

from .archives import ArchiveSettings
from .destinations.declared import DECLARED_BY, QUEUE_KEYS, QueueLifetime, QueueOwner
from .destinations.policy import SCHEMA_NAME, SCHEMA_NAME_RULE, DestinationPolicy
from .destinations.settings import DestinationSettings
from .diagnostics import describe
from .node import NodeSettings
from .users import PermissionSettings, User, UserLimitSettings

S = TypeVar("S", bound=Section)


def read_policy(pattern: str, values: Mapping[str, Any]) -> DestinationPolicy:
    """The policy with these values. Raises ConfigError, which names each bad key and what is allowed."""
    source = f"policy {pattern}"
    if "pattern" in values:
        raise ConfigError([f"{source}: pattern: must be left out: it is the name of the definition"])
    return _read(DestinationPolicy, source, {"pattern": pattern, **values})


def read_queue(queue: str, values: Mapping[str, Any]) -> tuple[DestinationPolicy, dict[str, Any]]:
    """What the declaration of a queue says: a policy that sets only its keys, and all of it in canonical form.

    Raises ConfigError, which names each bad key and what is allowed.
    """
    source = f"queue {queue}"
    unknown = [key for key in values if key not in QUEUE_KEYS and key != DECLARED_BY]
    if unknown:
        raise ConfigError([f"{source}: {key}: {_instead(key)}" for key in unknown])
    lifetime = {key: value for key, value in values.items() if key in QueueLifetime.keys()}
    try:
        until = QueueLifetime.read(lifetime)
        owner = QueueOwner.read({DECLARED_BY: values.get(DECLARED_BY, "")})
        rules = {key: value for key, value in values.items() if key not in lifetime and key != DECLARED_BY}
        policy = DestinationPolicy.read({"pattern": queue, **rules})
    except WrongValues as error:
        raise ConfigError(describe(error, source, None)) from error
    return policy, {**policy_values(policy), **until.changed(), **owner.changed()}


def join_declared(policy: DestinationPolicy, declared: DestinationPolicy) -> DestinationPolicy:
    """What applies to a declared queue for which otherwise `policy` counts. The keys of the declaration win."""
    names = set(declared.set_keys - {"pattern"})
    if "dead_letter" in names:
        # The two are one thing.
        names.add("dead_letter_routing_key")
    return policy.replace({name: getattr(declared, name) for name in names})


def policy_values(policy: DestinationPolicy) -> dict[str, Any]:
    """The inverse: what the policy sets, as JSON has it."""
    return policy.plain(policy.set_keys - {"pattern"})


def check_replicas(source: str, policy: DestinationPolicy, most: int) -> None:
    """Raises ConfigError if receipts of the policy would wait for more than `most` other nodes."""
    if int((policy.receipt or "").partition("=")[2] or 0) > most:
        must = f"must be at most replicas={most}, because the mesh has no more other nodes"
        raise ConfigError([f"{source}: receipt = {policy.receipt}: {must}"])


def check_policies(settings: NodeSettings, policies: Iterable[DestinationPolicy]) -> DestinationSettings:
    """What these policies are together. Raises ConfigError when they do not fit together or with the limits."""
    chosen = tuple(policies)
    try:
        joined = DestinationSettings(create_on_use=settings.destinations.create_on_use, policies=chosen)
        NodeSettings(limits=settings.limits, destinations=joined)
    except WrongValues as error:
        raise ConfigError(describe(error, "policies", None)) from error
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
    like = closest(key, QUEUE_KEYS)
    return f"unknown key; {f'did you mean {like}? ' if like else ''}Allowed are {', '.join(QUEUE_KEYS)}"


def read_user(name: str, values: Mapping[str, Any]) -> User:
    """The user with these values. Raises ConfigError, which names each bad key and what is allowed."""
    source = f"user {name}"
    if "name" in values:
        raise ConfigError([f"{source}: name: must be left out: it is the name of the definition"])
    return _read(User, source, {"name": name, **values})


def user_values(user: User) -> dict[str, Any]:
    """The inverse, as JSON has it."""
    return user.changed("name")


def read_archive(name: str, values: Mapping[str, Any]) -> ArchiveSettings:
    """The archive with these values. Raises ConfigError, which names each bad key and what is allowed."""
    source = f"archive {name}"
    if "name" in values or SCHEMA_NAME.fullmatch(name) is None:
        raise ConfigError([f"{source}: name: must be left out: it is the name of the definition, {SCHEMA_NAME_RULE}"])
    return _read(ArchiveSettings, source, {"name": name, **values})


def archive_values(archive: ArchiveSettings) -> dict[str, Any]:
    """The inverse, as JSON has it."""
    return archive.changed("name")


def read_permission(name: str, values: Mapping[str, Any]) -> PermissionSettings:
    """The permission with these values. Raises ConfigError, which names each bad key and what is allowed."""
    source = f"permission {name}"
    row = _read(PermissionSettings, source, values)
    if row.group == ADMINISTRATOR:
        raise ConfigError([f"{source}: group: must be another group: an administrator may always do everything"])
    if row.user == LOCAL_ADMINISTRATOR:
        raise ConfigError([f"{source}: user: must be another user: clients at the Unix socket may do everything"])
    if len(row.destinations) != 1:
        raise ConfigError([f"{source}: destinations: must be one; define a permission for each of them"])
    if permission_name(row) != name:
        raise ConfigError([f"{source}: must be named as what it says: {permission_name(row)}"])
    return row


def permission_values(row: PermissionSettings) -> dict[str, Any]:
    """The inverse, as JSON has it, with actions in the order of their declaration."""
    values = row.changed()
    for key in ("allow", "deny"):
        if key in values:
            values[key] = _in_order(values[key])
    return values


def permission_name(row: PermissionSettings) -> str:
    """The name of the definition of a permission about one destination."""
    subject = f"user:{row.user}" if row.group is None else f"group:{row.group}"
    return name_permission(subject, "allow" if row.allow else "deny", row.allow or row.deny, row.destinations[0])


def name_permission(subject: str, word: str, actions: Sequence[str], destination: str) -> str:
    """The same, by what it says: `user:NAME` or `group:NAME`, and allow or deny."""
    return f"{subject} {word} {','.join(_in_order(actions))} {destination}"


def split_permission(row: PermissionSettings) -> list[PermissionSettings]:
    """The same as permissions about one destination each."""
    return [row.replace({"destinations": (one,)}) for one in row.destinations]


def read_limit(name: str, values: Mapping[str, Any]) -> UserLimitSettings:
    """The limit with these values. Raises ConfigError, which names each bad key and what is allowed."""
    source = f"limit {name}"
    kind, _, subject = name.partition(":")
    if kind not in ("user", "group"):
        raise ConfigError([f"{source}: must be named user:NAME or group:NAME"])
    if "user" in values or "group" in values:
        raise ConfigError([f"{source}: user and group: must be left out: the name of the definition says it"])
    return _read(UserLimitSettings, source, {kind: subject, **values})


def limit_values(row: UserLimitSettings) -> dict[str, Any]:
    """The inverse, as JSON has it."""
    return row.changed("user", "group")


def name_limit(row: UserLimitSettings) -> str:
    """The name of the definition."""
    return limit_name(row.user, row.group)


READERS: Final[Mapping[str, Callable[[str, Mapping[str, Any]], object]]] = {
    "archive": read_archive,
    "limit": read_limit,
    "permission": read_permission,
    "policy": read_policy,
    "queue": read_queue,
    "user": read_user,
}
"""By kind. Those of the other kinds belong to rooms that know what these mean."""


def entry_errors(definitions: Mapping[str, Mapping[str, Any]], source: str) -> list[str]:
    """What is wrong with single definitions of a file."""
    found: list[str] = []
    for kind, of_kind in definitions.items():
        for name, value in of_kind.items():
            try:
                if kind in READERS:
                    READERS[kind](name, value)
            except ConfigError as error:
                found += [f"{source}: definitions: {line}" for line in error.diagnostics]
    return found


def _in_order(actions: Sequence[str]) -> list[str]:
    return [action.value for action in ACTIONS if action.value in actions]


def _read(section: type[S], source: str, values: Mapping[str, Any]) -> S:
    try:
        return section.read(values)
    except WrongValues as error:
        raise ConfigError(describe(error, source, None)) from error
