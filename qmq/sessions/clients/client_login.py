"""The login of one connection, in whichever protocol: its check, the time that it may take, and its end.

A password check may wait for its turn and takes a while. Meanwhile the client is read only to notice that it has
disconnected.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection
from contextlib import nullcontext
from typing import Final

import trio

from qmq.auth.credentials import Credentials
from qmq.engine.runtime.heartbeats import Heartbeats
from qmq.environment import Environment, Pipe
from qmq.errors import Refused
from qmq.sessions.clients.admission import PendingLogin, ignore_dismissal
from qmq.sessions.clients.login_path import LoginPath
from qmq.sessions.clients.session import ClientSession

CHECK_SECONDS_MAX: Final = 60.0
"""For which a login waits for its checks, besides `login_seconds`."""

EXPIRY_POLL_SECONDS: Final = 60.0
"""How often a token is compared with the clock at least, because the clock may be set, and the machine may sleep."""


def token_expired() -> Refused:
    return Refused("token-expired", "The token of this connection has expired.")


class TokenWatch:
    """Watches one session from `begin` to `end`, if its login has `expires_us`."""

    __slots__ = ("_beats", "_environment", "_number", "_session", "expires_us")

    def __init__(self, beats: Heartbeats, environment: Environment, session: ClientSession) -> None:
        self._beats = beats
        self._environment = environment
        self._session = session
        self._number = -1
        self.expires_us = 0
        """µs since 1970; 0: never."""

    def begin(self) -> None:
        """Watch from now on; again after each change of `expires_us`."""
        self.end()
        if self.expires_us:
            self._number = self._beats.watch(trio.current_time(), self._check)

    def end(self) -> None:
        self._beats.forget(self._number)
        self._number = -1

    def _check(self, now: float) -> float | None:
        left_seconds = (self.expires_us - self._environment.now_us()) / 1e6
        if left_seconds > 0:
            return now + min(left_seconds, EXPIRY_POLL_SECONDS)
        self._session.dismiss(token_expired())
        return None


class ClientLogin(ABC):
    """One login. A protocol reads what its client sends, and says how a login is refused."""

    __slots__ = (
        "_allowed_seconds",
        "_asked_at",
        "_checked_seconds",
        "_checking",
        "_login",
        "_path",
        "_pipe",
        "_session",
        "_token",
        "is_done",
    )

    def __init__(self, path: LoginPath, session: ClientSession, pipe: Pipe, login: PendingLogin) -> None:
        self._path = path
        self._session = session
        self._pipe = pipe
        self._login = login
        login.dismiss = self._dismiss
        self._token: TokenWatch | None = None
        # Covers the response to the login.
        self._checking: trio.CancelScope | None = None
        # When the check began that is not over; how long others have taken; how much of that the login has got back.
        self._asked_at: float | None = None
        self._checked_seconds = self._allowed_seconds = 0.0
        self.is_done = False

    @property
    def seconds_max(self) -> float:
        """How long it may take, besides its checks."""
        return self._path.node.settings.limits.login_seconds

    @abstractmethod
    def refuse(self, error: Refused) -> None:
        """Send why the login is refused."""

    async def _admit(self, credentials: Credentials, certified: Collection[str]) -> None:
        """Check the login; then the session has its principal, unless it is anonymous. Raises Refused.

        Also returns when the login was dismissed or refused meanwhile: then the session is finishing.
        """
        path, session = self._path, self._session
        path.admission.check_open(is_operators=session.listener is None)
        # Without a login there is nothing to check, and nothing that a dismissal would have to cancel.
        with nullcontext() if credentials.login is credentials.token is None else trio.CancelScope() as self._checking:
            self._asked_at = trio.current_time()
            try:
                grant = await path.logins.check(credentials, session.listener, session.until_left, certified)
            finally:
                self._checked_seconds += trio.current_time() - self._asked_at
                self._asked_at = None
            if grant is not None:
                session.grant = grant
                self._expires_at(grant.expires_us)
            await path.turn(session)
        self._checking = None

    def check_time(self, now: float) -> float | None:
        """The time for the login is over, but for that which the node has taken for its checks."""
        if self.is_done or self._session.finishing:
            return None
        checked_seconds = self._checked_seconds + (0.0 if self._asked_at is None else now - self._asked_at)
        more_seconds = min(checked_seconds, CHECK_SECONDS_MAX) - self._allowed_seconds
        if more_seconds > 0:
            self._allowed_seconds += more_seconds
            return now + more_seconds
        limit = self.seconds_max
        self.refuse(Refused("login-timeout", f"A login must be done within {limit:g} seconds."))
        self._session.finish()
        self._end_check()
        return None

    def _dismiss(self, why: Refused) -> None:
        """End this login at once: another one needs its place."""
        if not self._session.finishing:
            self._session.finishing = True
            self._path.refused(self._pipe.peer_address, why)
            self._send_dismissal(why)
            self._pipe.close()
            self._end_check()

    def _end_check(self) -> None:
        if self._checking is not None:
            self._checking.cancel()

    def _send_dismissal(self, why: Refused) -> None:  # noqa: B027 (not every protocol has a word for it)
        """Send the client why, if the kernel takes it at once."""

    def _expires_at(self, expires_us: int | None) -> None:
        """The token of this login expires then; None for never, and for a login without one."""
        if self._token is None and expires_us:
            self._token = TokenWatch(self._path.beats, self._path.environment, self._session)
        if self._token is not None:
            self._token.expires_us = expires_us or 0

    def _watch_token(self) -> None:
        """From now on, and again after each change of its expiry."""
        if self._token is not None:
            self._token.begin()

    def decided(self) -> None:
        """It is pending no more."""
        self._path.admission.decided(self._login)
        # It held this object: a reference cycle would keep the session and all that it holds until a collection.
        self._login.dismiss = ignore_dismissal

    def leave(self) -> None:
        """The connection has ended, and everything that it delivers."""
        if self._token is not None:
            self._token.end()
        self.decided()
        self._path.leave(self._login, self._session.user)
