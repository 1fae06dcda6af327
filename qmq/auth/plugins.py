"""Authenticators of other packages: the entry point group `qmq.auth`.

An entry point is a class. The node makes one object of it, with the `options` of the node file as keyword arguments,
and calls `authenticate(credentials)` in worker threads: the principal, None for credentials that it does not know, or
`Refused` for wrong ones. What else it raises is an outage, of which only the kind is logged: the text of an exception
may have a passcode in it.
"""

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from qmq.access.rules import Principal
from qmq.auth.credentials import GROUPS_MAX, Credentials, Grant, is_name
from qmq.errors import AuthenticationUnavailable, ConfigError, LoginRefused, Refused

GROUP: Final = "qmq.auth"


def installed() -> list[str]:
    """The names of all authenticators that other packages have."""
    return sorted({one.name for one in entry_points(group=GROUP)})


class PluginAuthenticator:
    """One of them."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        """Import the class and make an object. Raises ConfigError."""
        self.name = name
        found: list[EntryPoint] = list(entry_points(group=GROUP, name=name))
        if len(found) != 1:
            many = "no package has it" if not found else "more than one package has it"
            raise ConfigError([f"authentication: the entry point {name!r} of {GROUP}: {many}"])
        try:
            self._made = found[0].load()(**options)
        except Exception as error:
            kind = type(error).__name__
            raise ConfigError(
                [f"authentication: the entry point {name!r} of {GROUP} cannot be used: {kind}"]
            ) from error

    def problem(self) -> str | None:
        return None

    def refresh(self) -> None:
        """It has no files."""

    def authenticate(self, credentials: Credentials, now_us: int) -> Grant | None:
        try:
            principal = self._made.authenticate(credentials)
        except Refused as error:
            raise LoginRefused(self.name, "it was refused") from error
        except Exception as error:
            raise AuthenticationUnavailable(f"it raised {type(error).__name__}") from error
        if principal is None:
            return None
        if not isinstance(principal, Principal) or not is_name(principal.name):
            raise AuthenticationUnavailable("it returned something other than a principal with a name")
        groups = frozenset(principal.groups)
        if len(groups) > GROUPS_MAX or not all(map(is_name, groups)):
            raise AuthenticationUnavailable("it returned a principal with bad groups")
        return Grant(Principal(principal.name, groups), self.name)
