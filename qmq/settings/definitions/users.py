"""The kinds `user`, `permission` and `limit`: which users may log in, do what, and use how much, on all nodes.

A mesh that has had users stays closed when the last one is deleted: no client can log in.

A change applies to connected clients, too (`qmq.sessions.clients.access`). A permission or limit may be about a user or
group that does not exist: they arrive in any order.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from typing import Final, NamedTuple, TypeVar

from qmq.access.rights import AccessTable, Need, Rights
from qmq.access.rules import ROLES, Permission, Principal
from qmq.access.user_limits import LimitTable, UserLimits
from qmq.config import User, definition_values
from qmq.config.authentication import asks_others
from qmq.definitions.definition import Key
from qmq.engine.runtime.contexts import NodeBasics
from qmq.errors import Refused
from qmq.settings.definitions.kinds import SimpleKind, Value, checked_by
from qmq.settings.definitions.live import Changes, LiveDefinitions
from qmq.verbs.table import needs_of

USER: Final = "user"
PERMISSION: Final = "permission"
LIMIT: Final = "limit"

ADMINISTERS: Final = needs_of(f"/control/definitions/put/{USER}/x")
"""What a user needs to change users."""

NO_ADMINISTRATOR: Final = "no-administrator"
"""The code of the refusal of a change after which no user of the mesh may change users."""

NO_USER: Final = User(name="none").replace({"name": "\0"})
"""Stands for all users of a mesh that has none any more: a node with users is closed. No login and no certificate can
have this name.
"""

S = TypeVar("S")

log = logging.getLogger("qmq.definitions")


class UserDefinitions:
    """Users and permissions of the mesh; adds their kinds to the definitions."""

    def __init__(self, node: NodeBasics, definitions: LiveDefinitions) -> None:
        self._node = node
        self._definitions = definitions
        self._followers: list[Callable[[], None]] = []
        users = SimpleKind(checked_by(definition_values.read_user, definition_values.user_values), self._changed)
        definitions.follow(USER, users, fits=self._check_fit)
        permissions = SimpleKind(
            checked_by(definition_values.read_permission, definition_values.permission_values), self._changed
        )
        definitions.follow(PERMISSION, permissions)
        definitions.keep(self._kept)
        self._follow()

    def follow(self, *followers: Callable[[], None]) -> None:
        """Call these, in this order, when users, groups or permissions have changed."""
        self._followers += followers

    def _follow(self) -> None:
        definitions = self._definitions
        users = tuple(definitions.rows(USER, definition_values.read_user).values())
        self.users = users or ((NO_USER,) if definitions.has_changed(USER) else ())
        self.permissions = list(definitions.rows(PERMISSION, _permission).values())

    def _check_fit(self, changes: Changes) -> None:
        """Refuse what locks out all users that may change users: with the first user the mesh closes for all clients
        without login. To delete the last user is no mistake of this kind.
        """
        if not any(key.kind in (USER, PERMISSION) for key in changes):
            return
        now, then = self._after({}), self._after(changes)
        if then.users and (not now.users or self._has_administrator(now)) and not self._has_administrator(then):
            raise Refused(
                NO_ADMINISTRATOR,
                "Then no user could change users any more, and clients without login are refused as soon as there is a "
                "user. First add a user of the group administrator, with a password.",
            )

    def _kept(self, changes: Changes, user: str | None) -> Collection[Key]:
        """One administrator, if `changes` take that from another one: the user of the request, or else the first; and
        the permissions that make it one.

        They are written again, later than what is taken away. So if administrators take that from each other at the
        same time, on any nodes, the latest request leaves one. No other permission is: it may be deleted meanwhile.
        """
        if not any(key.kind in (USER, PERMISSION) for key in changes):
            return ()
        state = self._after(changes)
        then = self._administrators(state)
        if not then or then.issuperset(self._administrators(self._after({}))):
            return ()
        name = user if user in then else min(then)
        groups, administers = state.users[name].groups, state.administering()
        rows = [row for row, one in administers.items() if one.user == name or one.group in groups]
        return [Key(USER, name), *(Key(PERMISSION, row) for row in rows)]

    def losses(self, changes: Changes) -> Callable[[str, list[Need]], bool]:
        """Whether a user has all of these rights now, and not after `changes`."""
        others = asks_others(self._node.settings.authentication)
        states = [self._after({}), self._after(changes)]
        tables = [_table_of(one.users.values(), one.permissions.values(), has_others=others) for one in states]
        removed = states[0].users.keys() - states[1].users.keys()
        known: dict[str, list[Rights]] = {}

        def is_lost(user: str, needs: list[Need]) -> bool:
            if user not in known:
                known[user] = [table.rights_of(Principal(user)) for table in tables]
            now, then = known[user]
            return all(map(now.has, needs)) and (user in removed or not all(map(then.has, needs)))

        return is_lost

    def _after(self, changes: Changes) -> "_State":
        """The users and the permissions after `changes`."""

        def after(kind: str, read: Callable[[str, Value], S]) -> dict[str, S]:
            rows = self._definitions.rows(kind, read)
            for key, value in changes.items():
                if key.kind == kind:
                    rows.pop(key.name, None)
                    if value is not None:
                        rows[key.name] = read(key.name, value)
            return rows

        return _State(after(USER, definition_values.read_user), after(PERMISSION, _permission))

    def _has_administrator(self, state: "_State") -> bool:
        """Whether one of these users can log in and change users, or a client that logs in otherwise may be able to."""
        return asks_others(self._node.settings.authentication) or bool(self._administrators(state))

    def _administrators(self, state: "_State") -> set[str]:
        """Those of these users that can log in and change users."""
        shows_certificates = any(one.certificate_user for one in self._node.settings.listeners)
        actions = {need.action for need in ADMINISTERS}
        rows = [*state.administering().values(), *(one for one in chain(*ROLES.values()) if actions & one.actions)]
        names, groups = {one.user for one in rows}, {one.group for one in rows}
        # Only these can be administrators, and what is not about administration changes nothing: of thousands few.
        able = [
            user
            for user in state.users.values()
            if (user.name in names or not groups.isdisjoint(user.groups))
            and (shows_certificates or user.password_hash is not None)
        ]
        table = _table_of(able, [one for one in state.permissions.values() if actions & one.actions])
        return {user.name for user in able if all(map(table.rights_of(Principal(user.name)).has, ADMINISTERS))}

    def _changed(self, names: Collection[str]) -> None:
        self._follow()
        for follower in self._followers:
            follower()
        if self.users == (NO_USER,):
            log.warning("! no users are left: only the Unix socket and listeners with anonymous = true serve clients")


class _State(NamedTuple):
    """Users by name, and permissions by theirs."""

    users: Mapping[str, User]
    permissions: Mapping[str, Permission]

    def administering(self) -> dict[str, Permission]:
        """Permissions that give a part of what changing users needs, besides those of ROLES."""
        actions = {need.action for need in ADMINISTERS}
        return {name: one for name, one in self.permissions.items() if one.is_allowed and actions & one.actions}


def _permission(name: str, value: Value) -> Permission:
    return definition_values.read_permission(name, value).permission


def _table_of(users: Iterable[User], permissions: Iterable[Permission], *, has_others: bool = False) -> AccessTable:
    table = AccessTable()
    table.change({user.name: frozenset(user.groups) for user in users}, permissions, has_others=has_others)
    return table


class LimitDefinitions:
    """Limits of users of the mesh; adds their kind to the definitions. `groups_of`: the groups of a user here."""

    def __init__(self, definitions: LiveDefinitions, groups_of: Callable[[Principal], Collection[str]]) -> None:
        self._definitions = definitions
        self._groups_of = groups_of
        self._followers: list[Callable[[], None]] = []
        definitions.follow(
            LIMIT, SimpleKind(checked_by(definition_values.read_limit, definition_values.limit_values), self._changed)
        )
        self._follow()

    def follow(self, *followers: Callable[[], None]) -> None:
        """Call these when limits have changed."""
        self._followers += followers

    def _follow(self) -> None:
        rows = self._definitions.rows(LIMIT, definition_values.read_limit)
        self._table = LimitTable({definition_values.name_limit(row): row.limits for row in rows.values()})

    def of(self, principal: Principal) -> UserLimits:
        """What counts for this principal, with the groups that it has here."""
        return self._table.of(principal.name, self._groups_of(principal))

    def _changed(self, names: Collection[str]) -> None:
        self._follow()
        for follower in self._followers:
            follower()
