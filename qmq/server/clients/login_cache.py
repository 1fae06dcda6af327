"""Decisions about logins, remembered for a time.

They are found by a keyed digest of everything that an authenticator sees. So neither a passcode nor a token is kept,
and a decision for one address is none for another. Refusals have room of their own: guesses never displace logins.
"""

import hashlib
import hmac
import json
import secrets
from typing import Final

from qmq.auth.credentials import Credentials, Grant
from qmq.errors import LoginRefused

REMEMBERED_MAX: Final = 10_000
"""Logins that were granted, and as many refusals; beyond that the oldest is forgotten."""

REFUSED_SECONDS_MAX: Final = 5.0
"""A refusal is remembered no longer than this, because a user may just have been added."""

Decision = Grant | LoginRefused | None
"""None: these credentials are not known."""


class LoginCache:
    """Decisions of one authenticator. With `seconds` 0 it remembers none."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._key = secrets.token_bytes(32)
        self._granted: dict[bytes, tuple[float, Grant]] = {}
        self._refused: dict[bytes, tuple[float, LoginRefused | None]] = {}

    def digest_of(self, credentials: Credentials) -> bytes:
        one = credentials
        seen = [one.login, one.passcode, one.token, one.address, one.node, sorted(one.tls_names)]
        return hmac.digest(self._key, json.dumps(seen).encode(), hashlib.sha256)

    def find(self, digest: bytes, now: float) -> tuple[Decision] | None:
        """The decision, or None if there is none; `now` is trio time."""
        found = self._granted.get(digest) or self._refused.get(digest)
        return (found[1],) if found is not None and now < found[0] else None

    def add(self, digest: bytes, decision: Decision, now: float) -> None:
        """Remember a decision that was just made."""
        if not self._seconds:
            return
        self._granted.pop(digest, None)
        self._refused.pop(digest, None)
        if isinstance(decision, Grant):
            _make_room(self._granted)
            self._granted[digest] = now + self._seconds, decision
        else:
            _make_room(self._refused)
            self._refused[digest] = now + min(self._seconds, REFUSED_SECONDS_MAX), decision


def _make_room(decisions: dict[bytes, tuple[float, Grant]] | dict[bytes, tuple[float, LoginRefused | None]]) -> None:
    if len(decisions) >= REMEMBERED_MAX:
        del decisions[next(iter(decisions))]
