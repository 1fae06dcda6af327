"""Users, permissions and limits of users: which users may log in, what each may do, and how much."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any

from qmq.access.rules import ACTIONS, ANONYMOUS, LOCAL_ADMINISTRATOR, RESERVED_NAMES, ROLES, Action, Permission
from qmq.access.user_limits import EVERY_USER, LIMIT_KEYS, UserLimits
from qmq.auth.credentials import NAME_CHARACTERS_MAX, is_name
from qmq.section import ByteRate, CountOrUnbounded, Section, SizeOrUnbounded

DESTINATION_KINDS = ("/queue/", "/topic/", "/fanout/", "/exchange/", "/control/", "/system/")


def _read_name(value: object) -> object:
    if not is_name(value):
        raise ValueError(f"must be 1 to {NAME_CHARACTERS_MAX} printable characters")
    return value


def _read_user_name(value: object) -> object:
    if value in RESERVED_NAMES:
        raise ValueError("must be another name: QMQ itself uses this one")
    return _read_name(value)


def _read_password_hash(value: object) -> object:
    if not isinstance(value, str) or re.fullmatch(r"\$argon2(id|i|d)\$[!-~]{20,400}", value) is None:
        raise ValueError("must be an argon2 hash, which `qmq config hash` prints; never the password itself")
    return value


def read_action(value: object) -> object:
    if value not in [action.value for action in ACTIONS]:
        raise ValueError(f"must be one of {', '.join(action.value for action in ACTIONS)}")
    return value


def _read_pattern(value: object) -> object:
    if not isinstance(value, str) or not (value == "/*" or value.startswith(DESTINATION_KINDS)) or value.endswith("/"):
        kinds = ", ".join(DESTINATION_KINDS)
        raise ValueError(f"must be a destination under {kinds}, or /* for all; a * at the end matches any rest")
    if "*" in value[:-1] or "#" in value:
        raise ValueError("must have * only as its last character, and no #")
    return value


OF_ANONYMOUS = ("subscriptions_max", "messages_per_second_max", "bytes_per_second_max")
"""Limits of clients without login. Their connections count by address, and they declare nothing in their name."""


Name = Annotated[str, _read_name]
ActionName = Annotated[str, read_action]
Pattern = Annotated[str, _read_pattern]


class User(Section):
    """A login and its groups."""

    name: Annotated[str, _read_user_name]
    password_hash: Annotated[str, _read_password_hash] | None = None
    """As `qmq config hash` prints it. None: the user logs in with a certificate only."""
    groups: tuple[Name, ...] = ()
    """`administrator`, `operator`, `observer` and `client` are predefined. A user without group or permission may log
    in, and do nothing."""
    receipts_before_commit: bool | None = None
    """As in `[[stomp]]`, for this user at any listener. None: as the listener says."""


class PermissionSettings(Section, kw_only=True):
    """What one user or one group may do, or may not."""

    user: Name | None = None
    """A user, or `anonymous` for clients without login."""
    group: Name | None = None
    """Each user of this group, in place of `user`."""
    allow: tuple[ActionName, ...] = ()
    """The actions that are allowed."""
    deny: tuple[ActionName, ...] = ()
    """What is denied is denied, whatever else is allowed."""
    destinations: tuple[Pattern, ...]
    """Names, or the beginnings of names with `*`; `/*` for all. A definition has one."""

    @classmethod
    def before(cls, values: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        if (values.get("user") is None) == (values.get("group") is None):
            raise ValueError("must have either user or group")
        if bool(values.get("allow")) == bool(values.get("deny")):
            raise ValueError("must have either allow or deny, with at least one action")
        if not values.get("destinations", True):
            raise ValueError("must have at least one of destinations")
        return values, {}

    @property
    def permission(self) -> Permission:
        """The same for `qmq.access`."""
        actions = frozenset(Action(name) for name in self.allow or self.deny)
        return Permission(self.user, self.group, bool(self.allow), actions, self.destinations)


class UserLimitSettings(Section):
    """What one user, each user of one group, or each user may use. 0 means no limit."""

    user: Name | None = None
    """A user, `anonymous` for all clients without login together, or `*` for each user that logs in."""
    group: Name | None = None
    connections_max: CountOrUnbounded | None = None
    """In place of `limits.connections_per_user_max`."""
    subscriptions_max: CountOrUnbounded | None = None
    """Of all its connections to one node together."""
    messages_per_second_max: CountOrUnbounded | None = None
    """Sent to one node. Its connections wait, and nothing is refused."""
    bytes_per_second_max: ByteRate | None = None
    """Read from all its connections to one node, likewise."""
    queues_max: CountOrUnbounded | None = None
    """Queues that the user has declared, in the mesh."""
    held_bytes_max: SizeOrUnbounded | None = None
    """Bodies in these queues, of each node."""

    @classmethod
    def before(cls, values: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        user = values.get("user")
        if (user is None) == (values.get("group") is None):
            raise ValueError(f'must have either user or group; user = "{EVERY_USER}" is each user')
        if user == LOCAL_ADMINISTRATOR:
            raise ValueError("must be about another user: clients at the Unix socket have no limits")
        if all(value is None for key, value in values.items() if key not in ("user", "group")):
            raise ValueError(f"must have at least one of {', '.join(LIMIT_KEYS)}")
        wrong = [key for key in LIMIT_KEYS if values.get(key) is not None and key not in OF_ANONYMOUS]
        if user == ANONYMOUS.name and wrong:
            raise ValueError(f"must be without {wrong[0]}: for {ANONYMOUS.name} there are {', '.join(OF_ANONYMOUS)}")
        return values, {}

    @property
    def limits(self) -> UserLimits:
        """The same for `qmq.access`."""
        return UserLimits(**{key: getattr(self, key) for key in LIMIT_KEYS})


def groups_without_permission(user: str, groups: Iterable[str], named: Collection[str]) -> list[str]:
    """A line for each of these groups of a user that is neither predefined nor among `named`, those of permissions."""
    return [
        f"{user} is in the group {group}, which no permission names; predefined are {', '.join(ROLES)}"
        for group in groups
        if group not in ROLES and group not in named
    ]
