"""Logins: users with argon2 hashes, and the bound on connections of each user.

A password check costs tenths of a second by design, so it runs in a worker thread when its turn comes (`checks`). A
successful login is remembered as a keyed digest, not as the password. If a thousand clients of one user reconnect at
once, one password check is enough.
"""

import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial

import argon2
import trio

from qmq.config import LOCAL_ADMINISTRATOR, LimitSettings, ListenerSettings, User
from qmq.environment import Environment
from qmq.errors import Refused
from qmq.server.clients.password_checks import PasswordChecks

REMEMBERED_LOGINS_MAX = 1024
FAILED_LOGIN_SECONDS = 1.0
"""Pause before a wrong password is refused, so that guessing is slow."""


class Logins:
    """The users of one node."""

    def __init__(self, users: tuple[User, ...], limits: LimitSettings, environment: Environment) -> None:
        self._take(users)
        self._limits = limits
        self._environment = environment
        self._checks = PasswordChecks()
        self._key = secrets.token_bytes(32)
        self._remembered: dict[bytes, None] = {}
        # Checked when the user is unknown, so that the duration reveals nothing.
        self._nobody = _hash_of_no_user() if users else ""
        self._users: Counter[str] = Counter()

    async def prepare(self, users: tuple[User, ...]) -> None:
        """Do what may block before `change` to these users."""
        if users and not self._nobody:
            self._nobody = await self._environment.run_blocking(_hash_of_no_user)

    def change(self, users: tuple[User, ...], limits: LimitSettings) -> None:
        """Apply these users and bounds from now on. Connected clients stay."""
        self._take(users)
        self._limits = limits

    def _take(self, users: tuple[User, ...]) -> None:
        self._hashes = {user.name: user.password_hash for user in users}
        """User → its hash, None for one that logs in with a certificate."""
        self._early = {user.name: user.receipts_before_commit for user in users}

    def answers_early(self, user: str | None, listener: ListenerSettings | None) -> bool:
        """Whether a client gets the receipts of a transaction's frames before its COMMIT."""
        early = None if user is None else self._early.get(user)
        if early is not None:
            return early
        return listener is not None and listener.receipts_before_commit

    def is_user(self, name: str | None) -> bool:
        """Whether `name` is the name of a user."""
        return name in self._hashes

    def leave(self, user: str | None) -> None:
        """A connection that `check` has admitted has ended."""
        if user is not None:
            self._users[user] -= 1
            if not self._users[user]:
                del self._users[user]

    def serves_anonymous(self, listener: ListenerSettings) -> bool:
        """Whether this listener serves clients without login, given the present users."""
        return listener.serves_anonymous(has_users=bool(self._hashes))

    async def check(
        self,
        headers: Mapping[str, str],
        listener: ListenerSettings | None,
        address: str,
        gone: Callable[[], Awaitable[None]],
        certified: Collection[str] = (),
    ) -> str | None:
        """The user that CONNECT names, None for an anonymous one; counts the user. Without a `listener` the client is
        at the Unix socket, which has checked its credentials. `certified` are the names in the certificate of the
        client; one of them is its user if CONNECT names none.

        `gone` runs while a password check waits for its turn, and returns when the client has disconnected. Then
        trio.BrokenResourceError is raised. Raises Refused when the login fails.
        """
        if listener is None:
            self._users[LOCAL_ADMINISTRATOR] += 1
            return LOCAL_ADMINISTRATOR
        login = headers.get("login")
        passcode = headers.get("passcode", "")
        if login is None and certified and self._hashes:
            return self._admit(self._certified_user(certified))
        if login is None or not self._hashes:
            if self.serves_anonymous(listener):
                return None
            raise Refused("login-required", "This listener serves only users that log in.")
        known = self._hashes.get(login)
        # The password is checked in a thread, and the user may be removed or changed meanwhile.
        if not await self._is_right(login, passcode, known, address, gone) or self._hashes.get(login) != known:
            await trio.sleep(FAILED_LOGIN_SECONDS)
            raise Refused("login-failed", "Unknown user or wrong passcode.")
        return self._admit(login)

    def _certified_user(self, names: Collection[str]) -> str:
        """The one user among the names of a certificate. Raises Refused."""
        users = [name for name in names if name in self._hashes]
        if len(users) != 1:
            many = "no user" if not users else "more than one user"
            raise Refused("login-failed", f"The certificate of the client names {many}.")
        return users[0]

    def _admit(self, login: str) -> str:
        """Count a connection of this user. Raises Refused when it has too many."""
        if self._users[login] >= self._limits.connections_per_user_max:
            raise Refused(
                "too-many-connections", f"One user has at most {self._limits.connections_per_user_max} connections."
            )
        self._users[login] += 1
        return login

    async def _is_right(
        self, login: str, passcode: str, known: str | None, address: str, gone: Callable[[], Awaitable[None]]
    ) -> bool:
        digest = hmac.digest(self._key, f"{login}\0{passcode}\0{known}".encode(), hashlib.sha256)
        if digest in self._remembered:
            return True
        async with self._checks.turn(address, login, gone):
            if digest in self._remembered:
                return True  # Another client of this user was checked meanwhile.
            right = await self._environment.run_blocking(partial(_verify, known or self._nobody, passcode))
        if right and known is not None:
            if len(self._remembered) >= REMEMBERED_LOGINS_MAX:
                self._remembered.clear()
            self._remembered[digest] = None
            return True
        return False


def _hash_of_no_user() -> str:
    return argon2.PasswordHasher().hash(secrets.token_hex(16))


def _verify(password_hash: str, passcode: str) -> bool:
    try:
        return bool(password_hash) and argon2.PasswordHasher().verify(password_hash, passcode)
    except argon2.exceptions.VerificationError:
        return False
    except argon2.exceptions.InvalidHashError:
        return False
