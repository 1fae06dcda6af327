"""The kinds `user` and `permission`: which users may log in, and what each may do, on all nodes.

Until an operator changes the first user at run time, the users of the node file count, and the same for permissions.
That change writes them as definitions. From then on those of the mesh count on all nodes, and those of files do not.
A mesh that has had users stays closed when the last one is deleted: no client can log in.

A change applies to connected clients, too (`qmq.server.clients.access`). A permission may be about a user or group that
does not exist: users and permissions arrive in any order.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, Protocol, TypeVar

from qmq.config import (
    NodeSettings,
    PermissionSettings,
    User,
    permission_name,
    permission_values,
    read_permission,
    read_user,
    split_permission,
    user_values,
)
from qmq.errors import ConfigError, Refused
from qmq.server.definitions.live import LiveDefinitions, SimpleKind, Value

USER: Final = "user"
PERMISSION: Final = "permission"

NO_USER: Final = User.model_construct(name="\0", password_hash=None)
"""Stands for all users of a mesh that has none any more: a node with users is closed. No login and no certificate can
have this name.
"""

S = TypeVar("S", User, PermissionSettings)

log = logging.getLogger("qmq.definitions")


class UserContext(Protocol):
    """What these kinds need of the node."""

    settings: NodeSettings
    definitions: LiveDefinitions

    def users_changed(self) -> None:
        """Let `settings.users` and `settings.permissions` count from now on."""


class UserDefinitions:
    """Users and permissions of the mesh; adds their kinds to the definitions."""

    def __init__(self, context: UserContext, file: NodeSettings) -> None:
        self._context = context
        self._file = file
        kinds = context.definitions.kinds
        kinds[USER] = SimpleKind(_checked_user, self._changed, seeds=self._user_seeds, locked=self._locked_users)
        kinds[PERMISSION] = SimpleKind(
            _checked_permission, self._changed, seeds=self._permission_seeds, locked=self._locked_permissions
        )

    def join(self, file: NodeSettings) -> NodeSettings:
        """The settings that apply while the node file says `file`."""
        self._file = file
        found: dict[str, Any] = {}
        if self._context.definitions.is_seeded(USER):
            found["users"] = self._all(USER, read_user) or (NO_USER,)
        if self._context.definitions.is_seeded(PERMISSION):
            found["permissions"] = self._all(PERMISSION, read_permission)
        return file.model_copy(update=found)

    def log_without_effect(self, changed: Collection[str]) -> None:
        """Log which of these changed keys of the file have no effect, because the mesh has users of its own."""
        for kind in (USER, PERMISSION):
            for key in changed if self._context.definitions.is_seeded(kind) else ():
                # Of permissions, which the file does not name, the log cannot say which entry has changed.
                if key.startswith(f"{kind}s") and not any(f"[{name}]" in key for name in self._locked_users()):
                    log.warning("! %s has no effect: the %ss of the mesh apply; see `qmq %ss`", key, kind, kind)

    def _user_seeds(self) -> Mapping[str, Value]:
        return {user.name: user_values(user) for user in self._file.users}

    def _locked_users(self) -> Mapping[str, Value]:
        return {user.name: user_values(user) for user in self._file.users if user.locked}

    def _permission_seeds(self) -> Mapping[str, Value]:
        return _by_name(self._file.permissions)

    def _locked_permissions(self) -> Mapping[str, Value]:
        return _by_name(row for row in self._file.permissions if row.locked)

    def _changed(self, names: Collection[str]) -> None:
        context = self._context
        joined = self.join(self._file)
        found = {"users": joined.users, "permissions": joined.permissions}
        context.settings = context.settings.model_copy(update=found)
        context.users_changed()
        if joined.users == (NO_USER,):
            log.warning("! no users are left: only the Unix socket and listeners with anonymous = true serve clients")

    def _all(self, kind: str, read: Callable[[str, Value], S]) -> tuple[S, ...]:
        found: list[S] = []
        for name, value in self._context.definitions.values(kind).items():
            try:
                found.append(read(name, value))
            except ConfigError:
                # Written by a later version of the software.
                log.warning("! %s %s is left out: this version cannot read it", kind, name)
        return tuple(found)


def _by_name(rows: Iterable[PermissionSettings]) -> dict[str, Value]:
    return {permission_name(one): permission_values(one) for row in rows for one in split_permission(row)}


def _checked_user(name: str, value: Value) -> Value:
    try:
        return user_values(read_user(name, value))
    except ConfigError as error:
        raise Refused("bad-definition", "; ".join(error.diagnostics)) from error


def _checked_permission(name: str, value: Value) -> Value:
    try:
        return permission_values(read_permission(name, value))
    except ConfigError as error:
        raise Refused("bad-definition", "; ".join(error.diagnostics)) from error
