"""Principals, actions and permissions, and the predefined groups.

A permission allows or denies actions on destinations for one user or one group. Its pattern is in the language of
destination policies: a name, or a beginning of names with `*` as the last character.

A subscription may itself be a pattern, with wildcards of topics. It counts as everything that begins as its part
before the first wildcard. So it is allowed if one permission allows all of that, and denied if a permission denies
any name among it: no wildcard reaches what a name would not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Action(Enum):
    """What a principal wants to do with a destination."""

    SEND = "send"
    SUBSCRIBE = "subscribe"
    """Read bodies: consume, browse, follow, peek and get."""
    DECLARE = "declare"
    """Create and change a destination."""
    ADMINISTER = "administer"
    """Change or remove what other clients have in it; for the node itself, change the mesh."""
    OBSERVE = "observe"
    """Read names, counts, states and events; never a body."""


ACTIONS: Final = tuple(Action)


@dataclass(frozen=True, slots=True)
class Principal:
    """The identity of a client: the result of every kind of login."""

    name: str
    groups: frozenset[str] = frozenset()


ANONYMOUS: Final = Principal("anonymous")
"""A client without login."""

LOCAL_ADMINISTRATOR: Final = "local-administrator"
"""The name of clients at the Unix socket in the data directory."""

RESERVED_NAMES: Final = (LOCAL_ADMINISTRATOR, ANONYMOUS.name)
"""Of principals that are no users: nothing belongs to them."""


@dataclass(frozen=True, slots=True)
class Permission:
    """One row. `user` or `group` is None."""

    user: str | None
    group: str | None
    is_allowed: bool
    actions: frozenset[Action]
    patterns: tuple[str, ...]


ADMINISTRATOR: Final = "administrator"
_MESSAGES: Final = ("/queue/*", "/topic/*", "/fanout/*", "/exchange/*")


def _role(name: str, *rows: tuple[tuple[Action, ...], tuple[str, ...]]) -> tuple[Permission, ...]:
    return tuple(Permission(None, name, True, frozenset(actions), patterns) for actions, patterns in rows)


ROLES: Final[Mapping[str, tuple[Permission, ...]]] = {
    ADMINISTRATOR: _role(ADMINISTRATOR, (ACTIONS, ("/*",))),
    "operator": _role(
        "operator",
        ((Action.OBSERVE,), ("/*",)),
        ((Action.SUBSCRIBE, Action.DECLARE, Action.ADMINISTER), _MESSAGES),
        ((Action.SUBSCRIBE,), ("/control/get/*",)),
        ((Action.ADMINISTER,), ("/control/kick", "/control/kick/*")),
    ),
    "observer": _role("observer", ((Action.OBSERVE,), ("/*",))),
    "client": _role("client", ((Action.SEND, Action.SUBSCRIBE, Action.DECLARE), _MESSAGES)),
}
"""The predefined groups and their permissions."""


def beginning(destination: str) -> str:
    """The part of a topic pattern with which all its names begin; `#` after a dot also stands for no word at all."""
    ends = [at for at in (destination.find("*"), destination.find("#")) if at >= 0]
    if not ends:
        return destination
    fixed = destination[: min(ends)]
    return fixed.removesuffix(".") if destination[len(fixed)] == "#" else fixed


class Patterns:
    """Many patterns, as one question."""

    __slots__ = ("_names", "_prefixes")

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._names = frozenset(one for one in patterns if not one.endswith("*"))
        self._prefixes = tuple({one[:-1] for one in patterns if one.endswith("*")})

    def cover(self, destination: str, *, is_pattern: bool) -> bool:
        """Whether all of `destination` is in them."""
        if is_pattern:
            return beginning(destination).startswith(self._prefixes)
        return destination in self._names or destination.startswith(self._prefixes)

    def touch(self, destination: str, *, is_pattern: bool) -> bool:
        """Whether some of `destination` is in them."""
        if not is_pattern:
            return self.cover(destination, is_pattern=False)
        fixed = beginning(destination)
        return (
            fixed.startswith(self._prefixes)
            or any(prefix.startswith(fixed) for prefix in self._prefixes)
            or any(name.startswith(fixed) for name in self._names)
        )
