"""Logins of browsers: a cookie that stands for credentials that were checked once.

The browser logs in with `Authorization`, as every client does, and gets a random token in a cookie that pages cannot
read. The node remembers a digest of the token, and the login: if the passcode or the user changes, it ends. Nothing
outlives the process, and other nodes do not know the cookie.

A browser sends cookies by itself, also when a page of another origin makes it send a request. So a request that changes
something needs the token of `csrf` in a header, which only a page of this origin can know.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Final

import trio

from qmq.auth.credentials import CERTIFICATE, USERS, Grant
from qmq.errors import Refused
from qmq.sessions.clients.login import Logins

LOGIN_SECONDS_MAX: Final = 12 * 3600.0
"""From the login on."""

IDLE_SECONDS_MAX: Final = 3600.0
"""Without a request."""

LOGINS_MAX: Final = 1000
"""Of one node; beyond it the one that was used longest ago ends."""

CSRF_HEADER: Final = "x-qmq-csrf"


@dataclass(slots=True)
class BrowserLogin:
    """One login. Times are trio seconds."""

    grant: Grant
    csrf: str
    began: float
    used: float

    def touch(self) -> None:
        self.used = trio.current_time()

    @property
    def seconds_left(self) -> float:
        """Until it ends whatever happens."""
        return self.began + LOGIN_SECONDS_MAX - trio.current_time()


class BrowserLogins:
    """Those of one node. `node` is in the name of the cookie: browsers do not distinguish ports."""

    def __init__(self, logins: Logins, node: str) -> None:
        self._logins = logins
        self._open: dict[bytes, BrowserLogin] = {}
        self.cookie = f"qmq-{node.encode().hex()}"

    def begin(self, grant: Grant) -> str:
        """Remember a login that was checked just now; returns the token for the cookie."""
        now = trio.current_time()
        token = secrets.token_urlsafe(32)
        if len(self._open) >= LOGINS_MAX:
            del self._open[min(self._open, key=lambda digest: self._open[digest].used)]
        self._open[_digest(token)] = BrowserLogin(grant, secrets.token_urlsafe(32), now, now)
        return token

    def find(self, token: str, now_us: int) -> BrowserLogin | None:
        """The login of this token, unless it has ended."""
        digest = _digest(token)
        login = self._open.get(digest)
        if login is None:
            return None
        now = trio.current_time()
        grant = login.grant
        is_over = now >= login.began + LOGIN_SECONDS_MAX or now >= login.used + IDLE_SECONDS_MAX
        is_over |= grant.expires_us is not None and now_us >= grant.expires_us
        name = grant.principal.name
        if grant.authenticator in (USERS, CERTIFICATE):
            is_over |= not self._logins.is_user(name)
            is_over |= grant.authenticator == USERS and self._logins.proof_of(name) != grant.proof
        else:
            # A user of this name was added since: the login would have its permissions.
            is_over |= self._logins.is_user(name)
        if is_over:
            del self._open[digest]
            return None
        return login

    def end(self, token: str) -> None:
        self._open.pop(_digest(token), None)

    def token_in(self, cookies: str) -> str | None:
        """The token in a header `Cookie`."""
        for pair in cookies.split(";"):
            name, _, value = pair.strip().partition("=")
            if name == self.cookie and value:
                return value
        return None

    def set_cookie(self, token: str, *, is_secure: bool) -> tuple[str, str]:
        """The header that gives the browser its cookie; an empty token takes it away."""
        age = int(LOGIN_SECONDS_MAX) if token else 0
        secure = "; Secure" if is_secure else ""
        return "set-cookie", f"{self.cookie}={token}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{secure}"


def check_csrf(login: BrowserLogin, said: str) -> None:
    """Raises Refused unless `said` is the token of this login."""
    if not hmac.compare_digest(said.encode(), login.csrf.encode()):
        raise Refused("bad-csrf", f"With a cookie, a request that changes something needs the header {CSRF_HEADER}.")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
