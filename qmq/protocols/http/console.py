"""The console on the web port: its files, logins of browsers by cookie, and the stream that feeds its tabs."""

from typing import Any

from qmq.admin.console.feed import OverviewFeed
from qmq.admin.console.files import INDEX, SECURITY, contents
from qmq.admin.console.logins import CSRF_HEADER, BrowserLogin, BrowserLogins, check_csrf
from qmq.admin.console.requests import OVERVIEW
from qmq.auth.credentials import Grant
from qmq.environment import Environment
from qmq.errors import Refused
from qmq.gateways.encoder import Lines
from qmq.protocols.http.codec import HttpRefusal, HttpRequest
from qmq.protocols.http.gateway.origins import OWN_SITES
from qmq.sessions.clients.access import Access
from qmq.sessions.clients.login import Logins
from qmq.sessions.clients.session import ClientSession
from qmq.verbs.table import needs_of

Answer = tuple[dict[str, Any], Lines]
"""Facts for JSON, and headers."""


class WebConsole:
    """Of one node, for all its browsers."""

    def __init__(self, node: str, environment: Environment, logins: Logins, access: Access, feed: OverviewFeed) -> None:
        self._node = node
        self._environment = environment
        self._of_users = logins
        self._access = access
        self._logins = BrowserLogins(logins, node)
        self._feed = feed

    def cookie_of(self, request: HttpRequest) -> str | None:
        """The token of a login that is open, in the cookie of the request. Raises Refused.

        A browser sends cookies by itself. So with one, a request that changes something must show the token that only
        a page of this port knows, and no request may come from a page of another port of the same host.
        """
        token = self._logins.token_in(request.headers.get("cookie", ""))
        login = None if token is None else self._find(token)
        if token is None or login is None:
            return None
        if request.headers.get("sec-fetch-site", "none") not in OWN_SITES:
            raise HttpRefusal(403, "bad-origin", "A page of another origin sends the cookie of this one.")
        if request.method not in ("GET", "HEAD"):
            check_csrf(login, request.headers.get(CSRF_HEADER, ""))
        login.touch()
        return token

    def _find(self, token: str) -> BrowserLogin | None:
        return self._logins.find(token, self._environment.now_us())

    def is_open(self, token: str) -> bool:
        """Whether the login of this token has not ended."""
        return self._find(token) is not None

    def grant_of(self, token: str | None, instead_of: str | None = None) -> Grant | None:
        """The login behind a token, counted as one more connection of its user, or `instead_of` one (`Logins.check`);
        None without a token. Raises Refused when the user has too many."""
        login = None if token is None else self._find(token)
        return None if login is None else self._of_users.admit(login.grant, instead_of)

    def log_in(self, request: HttpRequest, session: ClientSession, cookie: str | None) -> Answer:
        """The identity of the client, which a POST with `Authorization` makes a cookie of. `cookie` is the token that
        the client is logged in by: a login makes no later one, so it has its bound.
        """
        facts: dict[str, Any] = {"node": self._node, "user": session.user, "csrf": None}
        headers: Lines = ()
        token = self._logins.token_in(request.headers.get("cookie", ""))
        if request.method == "POST":
            if session.grant is None or cookie is not None:
                raise Refused("login-required", "A login has a name and passcode, or a token, in Authorization.")
            if token is not None:
                self._logins.end(token)  # The browser loses that cookie, and could not end its login any more.
            token = self._logins.begin(session.grant)
            listener = session.listener
            assert listener is not None, "the Unix socket speaks STOMP"
            headers = (self._logins.set_cookie(token, is_secure=listener.tls is not None),)
        login = None if token is None else self._find(token)
        if login is not None and login.grant.principal.name == session.user:
            facts |= {"csrf": login.csrf, "seconds_left": round(login.seconds_left)}
        return facts, headers

    def log_out(self, request: HttpRequest) -> Answer:
        """End the login of the browser, and take its cookie away. The request may have credentials beside it."""
        token = self._logins.token_in(request.headers.get("cookie", ""))
        if token is not None:
            self._logins.end(token)
        return {"node": self._node, "user": None}, (self._logins.set_cookie("", is_secure=False),)

    def follow(self, session: ClientSession, token: str | None) -> bytes:
        """Send the overview to this session every few seconds; the first bytes of that. Raises Refused."""
        self._access.rights_of(session.principal).check_needs(needs_of(OVERVIEW))
        return self._feed.join(session, lambda: token is None or self.is_open(token))


def file_response(name: str) -> tuple[Lines, bytes]:
    """The headers and bytes of a file of the console. Raises HttpRefusal, 404."""
    found = contents().get(name or INDEX)
    if found is None:
        raise HttpRefusal(404, "unknown-path", "The console has no such file.")
    return (("content-type", found[0]), *SECURITY), found[1]
