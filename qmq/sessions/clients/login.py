"""Logins: from credentials to a principal, and the bound on connections of each.

`Logins.check` is the one way in, for every listener. It asks the authenticators in the order of the node file; the
first that knows the credentials decides. The users of the node are one of them, and are checked here.

A password check costs tenths of a second by design, so it runs in a worker thread when its turn comes (`checks`). A
successful login is remembered as a keyed digest, not as the password. If a thousand clients of one user reconnect at
once, one password check is enough.
"""

import hashlib
import hmac
import math
import secrets
from base64 import b64encode
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

import argon2
import trio

from qmq.access.rules import ADMINISTRATOR, LOCAL_ADMINISTRATOR, RESERVED_NAMES, Principal
from qmq.access.user_limits import UNLIMITED, UserLimits
from qmq.auth.credentials import CERTIFICATE, USERS, Credentials, Grant
from qmq.config import LimitSettings, ListenerSettings, User
from qmq.environment import Environment, Pipe
from qmq.errors import LoginRefused, Refused
from qmq.sessions.clients.admission import counted_address
from qmq.sessions.clients.authentication import LoginCheck
from qmq.sessions.clients.password_checks import PasswordChecks

REMEMBERED_LOGINS_MAX = 1024
FAILED_LOGIN_SECONDS = 1.0
"""A login is refused at a multiple of this after CONNECT. So guessing is slow, and the time of a refusal does not say
which checks there were."""

LOCAL: Final = Grant(Principal(LOCAL_ADMINISTRATOR, frozenset({ADMINISTRATOR})), "unix-socket")
"""The login of a client at the Unix socket."""


def credentials_of(pipe: Pipe, node: str, login: str | None, passcode: str, token: str | None) -> Credentials:
    """What a client has sent, in whichever protocol, with what its connection to `node` shows."""
    return Credentials(
        login, passcode, token, address=pipe.peer_address, node=node, tls_names=pipe.peer_certificate_names
    )


def certified_names(pipe: Pipe, listener: ListenerSettings | None) -> Collection[str]:
    """The names of users in the certificate of the client, where its listener takes users from certificates."""
    source = None if listener is None else listener.certificate_user
    if source is None:
        return ()
    return pipe.peer_certificate_subject if source == "subject" else pipe.peer_certificate_names


class Logins:
    """The logins of one node. `authenticators` are asked in this order; None stands for the users."""

    def __init__(
        self,
        users: tuple[User, ...],
        limits: LimitSettings,
        environment: Environment,
        authenticators: Sequence[LoginCheck | None] = (None,),
        limits_of: Callable[[Principal], UserLimits] = lambda principal: UNLIMITED,
    ) -> None:
        self._authenticators = authenticators
        self._take(users)
        self._limits = limits
        self._limits_of = limits_of
        self._environment = environment
        self._checks = PasswordChecks()
        self._key = secrets.token_bytes(32)
        self._remembered: dict[bytes, None] = {}
        self._unknown_user_hash = _hash_of_no_user()
        self._users: Counter[str] = Counter()

    def change(self, users: tuple[User, ...], limits: LimitSettings) -> None:
        """Apply these users and bounds from now on. What becomes of connected clients is the matter of `Access`."""
        self._take(users)
        self._limits = limits

    def _take(self, users: tuple[User, ...]) -> None:
        if None not in self._authenticators:
            users = ()
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
        return name in self._hashes

    def proof_of(self, name: str) -> str | None:
        """What changes when the passcode of this user changes; None for one without a passcode, or no user."""
        return self._hashes.get(name)

    @property
    def _has_logins(self) -> bool:
        """Whether any client can log in."""
        return bool(self._hashes) or any(self._authenticators)

    async def refresh(self) -> None:
        """Read files of authenticators again that have changed."""
        for one in self._authenticators:
            if one is not None:
                await self._environment.run_blocking(one.authenticator.refresh)
                one.show_problem()

    def leave(self, user: str | None) -> None:
        """A connection that `check` has admitted has ended."""
        if user is not None:
            self._users[user] -= 1
            if not self._users[user]:
                del self._users[user]

    def serves_anonymous(self, listener: ListenerSettings) -> bool:
        """Whether this listener serves clients without login, given the present users."""
        return listener.serves_anonymous(has_users=self._has_logins)

    async def check(
        self,
        credentials: Credentials,
        listener: ListenerSettings | None,
        until_left: Callable[[], Awaitable[None]],
        certified: Collection[str] = (),
        instead_of: str | None = None,
    ) -> Grant | None:
        """The login of a client, None for an anonymous one; counts it. Without a `listener` the client is at the Unix
        socket, which has checked its credentials. `certified` are the names in the certificate of the client that may
        be users; one of them is its user if CONNECT has neither login nor token. `instead_of` is the user of a
        connection that logs in again: the caller gives that place back next (`leave`).

        `until_left` runs while a check waits for its turn, and returns when the client has disconnected. Then
        trio.BrokenResourceError is raised. Raises Refused when the login fails.
        """
        if listener is None:
            return self.admit(LOCAL)
        has_login = credentials.login is not None or credentials.token is not None
        if not has_login and certified and self._hashes:
            return self.admit(Grant(Principal(self._certified_user(certified)), CERTIFICATE), instead_of)
        if not has_login or not self._has_logins:
            if self.serves_anonymous(listener):
                return None
            raise Refused("login-required", "This listener serves only users that log in.")
        began = trio.current_time()
        try:
            grant = await self._grant_of(credentials, until_left)
        except LoginRefused:
            steps = math.ceil((trio.current_time() - began) / FAILED_LOGIN_SECONDS)
            await trio.sleep_until(began + max(1, steps) * FAILED_LOGIN_SECONDS)
            raise
        return self.admit(grant, instead_of)

    async def _grant_of(self, credentials: Credentials, until_left: Callable[[], Awaitable[None]]) -> Grant:
        """The decision of the first authenticator that knows these credentials. Raises LoginRefused."""
        for one in self._authenticators:
            grant = await (
                self._user_of(credentials, until_left) if one is None else one.grant_of(credentials, until_left)
            )
            if grant is not None:
                break
        else:
            if credentials.login is not None and self._hashes:
                await self._is_right(credentials.login, credentials.passcode, None, credentials.address, until_left)
            raise LoginRefused("", "no authenticator knows it")
        # Else the login would have the permissions of another one.
        if grant.authenticator != USERS and grant.principal.name in (*self._hashes, *RESERVED_NAMES):
            raise LoginRefused(grant.authenticator, f"a user of the node is named {grant.principal.name!r}")
        return grant

    async def _user_of(self, credentials: Credentials, until_left: Callable[[], Awaitable[None]]) -> Grant | None:
        login = credentials.login
        if login is None or login not in self._hashes:
            return None
        known = self._hashes[login]
        right = await self._is_right(login, credentials.passcode, known, credentials.address, until_left)
        # The password is checked in a thread, and the user may be removed or changed meanwhile.
        if not right or login not in self._hashes or self._hashes[login] != known:
            raise LoginRefused(USERS, "wrong passcode")
        return Grant(Principal(login), USERS, proof=known)

    def _certified_user(self, names: Collection[str]) -> str:
        """The one user among the names of a certificate. Raises Refused."""
        users = [name for name in names if name in self._hashes]
        if len(users) != 1:
            many = "no user" if not users else "more than one user"
            raise Refused("login-failed", f"The certificate of the client names {many}.")
        return users[0]

    def admit(self, grant: Grant, instead_of: str | None = None) -> Grant:
        """Count a connection of a login that `check` has granted, now or before; `instead_of` as there. Raises Refused
        when its principal has too many.
        """
        login = grant.principal.name
        most = self._limits_of(grant.principal).connections_max
        if most is None:
            most = self._limits.connections_per_user_max
        others = self._users[login] - (login == instead_of)
        if grant is not LOCAL and most and others >= most:
            raise Refused("too-many-connections", f"The user {login} has at most {most} connections here.")
        self._users[login] += 1
        return grant

    async def _is_right(
        self, login: str, passcode: str, known: str | None, address: str, until_left: Callable[[], Awaitable[None]]
    ) -> bool:
        digest = hmac.digest(self._key, f"{login}\0{passcode}\0{known}".encode(), hashlib.sha256)
        if digest in self._remembered:
            return True
        async with self._checks.turn(counted_address(address), login, until_left):
            if digest in self._remembered:
                return True  # Another client of this user was checked meanwhile.
            # Checked when the user is unknown, too, so that the duration reveals nothing.
            checked = known or (self._unknown_user_hash if self._hashes else "")
            right = await self._environment.run_blocking(_verify, checked, passcode)
        if right and known is not None:
            if len(self._remembered) >= REMEMBERED_LOGINS_MAX:
                self._remembered.clear()
            self._remembered[digest] = None
            return True
        return False


def _hash_of_no_user() -> str:
    """A hash with a drawn digest: as costly to check as others, free to make, and no password of it is known."""
    hasher = argon2.PasswordHasher()
    costs = f"m={hasher.memory_cost},t={hasher.time_cost},p={hasher.parallelism}"
    salt, digest = (b64encode(secrets.token_bytes(size)) for size in (hasher.salt_len, hasher.hash_len))
    return f"$argon2id$v=19${costs}${salt.decode().rstrip('=')}${digest.decode().rstrip('=')}"


def _verify(password_hash: str, passcode: str) -> bool:
    try:
        return bool(password_hash) and argon2.PasswordHasher().verify(password_hash, passcode)
    except argon2.exceptions.VerificationError:
        return False
    except argon2.exceptions.InvalidHashError:
        return False
