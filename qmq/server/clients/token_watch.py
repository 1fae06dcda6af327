"""The expiry of a token: a session ends when the token of its login has expired."""

from typing import Final

import trio

from qmq.environment import Environment
from qmq.errors import Refused
from qmq.server.clients.session import ClientSession
from qmq.server.runtime.heartbeats import Heartbeats

EXPIRY_POLL_SECONDS: Final = 60.0
"""How often a token is compared with the clock at least, because the clock may be set, and the machine may sleep."""


def token_expired() -> Refused:
    """Why the session ends."""
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
