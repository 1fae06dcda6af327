"""What a client shows when it logs in, and what an authenticator makes of it."""

from dataclasses import dataclass, field
from typing import Final, Protocol

from qmq.access.rules import Principal

USERS: Final = "users"
CERTIFICATE: Final = "certificate"
TOKEN: Final = "token"
HTTP: Final = "http"
"""Names of authenticators. The first two are of users of the node."""

NAMELESS: Final = ("", TOKEN)
"""Logins of clients that leave their name to the token."""

NAME_CHARACTERS_MAX: Final = 128
GROUPS_MAX: Final = 100
"""Groups of one principal."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """One login. The passcode and the token are secrets, which `repr` leaves out."""

    login: str | None
    passcode: str = field(default="", repr=False)
    token: str | None = field(default=None, repr=False)
    """The header `token` of CONNECT."""
    address: str = ""
    """Host of the client."""
    node: str = ""
    """Name of the node."""
    tls_names: frozenset[str] = frozenset()
    """DNS names in the certificate of the client, which the node has checked; empty without one."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A login that succeeded: the principal, and the authenticator that decided. At `expires_us` (microseconds since
    1970) the connection ends; None: never. It also ends when the passcode of its user has another hash than `proof`.
    """

    principal: Principal
    authenticator: str
    expires_us: int | None = None
    proof: str | None = None


class Authenticator(Protocol):
    """One `[[authentication]]` of a node. Its methods block, and several threads call them at once."""

    name: str
    """For the audit: `token`, `http`, or the name of an entry point."""

    def authenticate(self, credentials: Credentials, now_us: int) -> Grant | None:
        """The principal, or None if these credentials are not known here: then the next authenticator is asked.

        Raises:
            LoginRefused: known, and wrong. No other authenticator is asked.
            AuthenticationUnavailable: nothing can be decided now, which refuses the login.
        """

    def problem(self) -> str | None:
        """What is wrong although it decides: a file that cannot be read any more, for example."""

    def refresh(self) -> None:
        """Read files again that have changed."""


def is_name(value: object) -> bool:
    """Whether `value` may be the name of a user or a group."""
    return isinstance(value, str) and 1 <= len(value) <= NAME_CHARACTERS_MAX and value.isprintable()
