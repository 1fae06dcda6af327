"""The kinds `user` and `permission`: which users may log in, and what each may do, on all nodes.

Until an operator changes the first user at run time, the users of the node file count, and the same for permissions.
That change writes them as definitions. From then on those of the mesh count on all nodes, and those of files do not.
A mesh that has had users stays closed when the last one is deleted: no client can log in.

A change applies to connected clients, too (`qmq.server.clients.access`). A permission may be about a user or group that
does not exist: users and permissions arrive in any order.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Protocol

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
from qmq.server.definitions.live import LiveDefinitions, SimpleKind, Value, checked_by
from qmq.server.runtime.contexts import Engine

USER: Final = "user"
PERMISSION: Final = "permission"

NO_USER: Final = User.model_construct(name="\0", password_hash=None)
"""Stands for all users of a mesh that has none any more: a node with users is closed. No login and no certificate can
have this name.
"""

log = logging.getLogger("qmq.definitions")


class UserContext(Engine, Protocol):
    definitions: LiveDefinitions

    def users_changed(self) -> None:
        """Let `settings.users` and `settings.permissions` count from now on."""


class UserDefinitions:
    """Users and permissions of the mesh; adds their kinds to the definitions."""

    def __init__(self, context: UserContext, file: NodeSettings) -> None:
        self._context = context
        self._file = file
        kinds = context.definitions.kinds
        kinds[USER] = SimpleKind(
            checked_by(read_user, user_values), self._changed, seeds=self._user_seeds, locked=self._locked_users
        )
        kinds[PERMISSION] = SimpleKind(
            checked_by(read_permission, permission_values),
            self._changed,
            seeds=self._permission_seeds,
            locked=self._locked_permissions,
        )

    def join(self, file: NodeSettings) -> NodeSettings:
        """The settings that apply while the node file says `file`."""
        self._file = file
        found: dict[str, Any] = {}
        definitions = self._context.definitions
        if definitions.is_seeded(USER):
            found["users"] = definitions.read_all(USER, read_user) or (NO_USER,)
        if definitions.is_seeded(PERMISSION):
            found["permissions"] = definitions.read_all(PERMISSION, read_permission)
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


def _by_name(rows: Iterable[PermissionSettings]) -> dict[str, Value]:
    return {permission_name(one): permission_values(one) for row in rows for one in split_permission(row)}
