"""Users, permissions and limits of users as plain values: how definitions of the mesh carry them.

A user is defined by its name, with the other keys of `[[users]]`. A permission has the keys of `[[permissions]]`, one
destination, and a name that says the same: `group:billing allow send,subscribe /queue/billing.*`. So permissions that
two nodes define at once never replace each other, unless they are equal. A limit is named by what it is about,
`user:NAME` or `group:NAME`, and has the other keys of `[[user_limits]]`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from qmq.access.rules import ACTIONS, ADMINISTRATOR
from qmq.access.user_limits import limit_name
from qmq.errors import ConfigError

from .diagnostics import describe
from .load import as_tuples
from .users import LOCAL_ADMINISTRATOR, PermissionSettings, User, UserLimitSettings
from .values.model import Section

S = TypeVar("S", bound=Section)


def read_user(name: str, values: Mapping[str, Any]) -> User:
    """The user with these values. Raises ConfigError, which names each bad key and what is allowed."""
    source = f"user {name}"
    if "name" in values:
        raise ConfigError([f"{source}: name: must be left out: it is the name of the definition"])
    _check_unlocked(source, values)
    return _read(User, source, {"name": name, **values})


def user_values(user: User) -> dict[str, Any]:
    """The inverse, as JSON has it."""
    return user.model_dump(mode="json", exclude_defaults=True, exclude={"name", "locked"})


def read_permission(name: str, values: Mapping[str, Any]) -> PermissionSettings:
    """The permission with these values. Raises ConfigError, which names each bad key and what is allowed."""
    source = f"permission {name}"
    _check_unlocked(source, values)
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
    values: dict[str, Any] = row.model_dump(mode="json", exclude_defaults=True, exclude={"locked"})
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
    return [row.model_copy(update={"destinations": (one,)}) for one in row.destinations]


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
    return row.model_dump(mode="json", exclude_defaults=True, exclude={"user", "group"})


def name_limit(row: UserLimitSettings) -> str:
    """The name of the definition."""
    return limit_name(row.user, row.group)


def _in_order(actions: Sequence[str]) -> list[str]:
    return [action.value for action in ACTIONS if action.value in actions]


def _check_unlocked(source: str, values: Mapping[str, Any]) -> None:
    if "locked" in values:
        raise ConfigError([f"{source}: locked: only an entry of the node file has it"])


def _read(section: type[S], source: str, values: Mapping[str, Any]) -> S:
    try:
        return section.model_validate(as_tuples(dict(values)))
    except ValidationError as error:
        # A rule over several keys has no key of its own.
        lines = describe(error, section, source, None)
        raise ConfigError([line.replace(": the file: ", ": ", 1) for line in lines]) from error
