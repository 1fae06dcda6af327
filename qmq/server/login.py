"""Who may come in: users with argon2 hashes, and bounds on connections per node, address and user.

A password check costs tens of milliseconds by design, so it runs in a worker thread, a few at a time, and a login that
was right is remembered (as a keyed digest, not as the password) so that a reconnect storm does not starve the node.
"""

import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Mapping
from functools import partial

import argon2
import trio

from qmq.config import LimitSettings, User
from qmq.errors import Refused
from qmq.world import World

CHECKS_AT_ONCE = 2
REMEMBERED_LOGINS_MAX = 1024
FAILED_LOGIN_SECONDS = 1.0
"""Pause before a wrong password is answered, so that guessing is slow."""


class Logins:
    """The door of one node."""

    def __init__(self, users: tuple[User, ...], limits: LimitSettings, world: World) -> None:
        self._hashes = {user.name: user.password_hash for user in users}
        self._limits = limits
        self._world = world
        self._checks = trio.CapacityLimiter(CHECKS_AT_ONCE)
        self._key = secrets.token_bytes(32)
        self._remembered: dict[bytes, None] = {}
        # Checked against when the user is unknown, so that the time taken does not tell.
        self._nobody = _hash_of_nobody() if users else ""
        self._addresses: Counter[str] = Counter()
        self._pending_addresses: Counter[str] = Counter()
        self._users: Counter[str] = Counter()
        self._total = 0
        self._closed = False
        self.pending = 0
        self.turning_away = 0

    async def prepare(self, users: tuple[User, ...]) -> None:
        """What has to be waited for before `change` to these users."""
        if users and not self._nobody:
            self._nobody = await self._world.run_blocking(_hash_of_nobody)

    def change(self, users: tuple[User, ...], limits: LimitSettings) -> None:
        """From now on these users and bounds count. Whoever is in stays in."""
        self._hashes = {user.name: user.password_hash for user in users}
        self._limits = limits

    def close(self) -> None:
        """Let nobody in any more: the node is stopping."""
        self._closed = True

    def admit(self, address: str) -> None:
        """Count a new connection. Raises Refused when there is no room; nothing is counted then."""
        limits = self._limits
        if self._closed:
            raise stopping()
        if self._total >= limits.connections_max:
            raise Refused("too-many-connections", f"The node serves at most {limits.connections_max} connections.")
        if self._addresses[address] >= limits.connections_per_address_max:
            raise Refused(
                "too-many-connections", f"One address has at most {limits.connections_per_address_max} connections."
            )
        if self.pending >= limits.logins_pending_max:
            raise Refused("too-many-logins", f"At most {limits.logins_pending_max} clients may be logging in.")
        if self._pending_addresses[address] >= limits.logins_pending_per_address_max:
            raise Refused(
                "too-many-logins",
                f"At most {limits.logins_pending_per_address_max} clients of one address may be logging in.",
            )
        self._addresses[address] += 1
        self._pending_addresses[address] += 1
        self._total += 1
        self.pending += 1

    def logged_in(self, address: str) -> None:
        """A connection counted by `admit` has finished logging in, or ended before."""
        _less(self._pending_addresses, address)
        self.pending -= 1

    def leave(self, address: str, user: str | None) -> None:
        """A connection counted by `admit` has ended."""
        _less(self._addresses, address)
        self._total -= 1
        if user is not None:
            _less(self._users, user)

    async def check(self, headers: Mapping[str, str], anonymous: bool) -> str | None:
        """The user that CONNECT names, None for an anonymous one; counts the user. Raises Refused."""
        if self._closed:
            raise stopping()
        login = headers.get("login")
        passcode = headers.get("passcode", "")
        if login is None or (anonymous and not self._hashes):
            if anonymous:
                return None
            raise Refused("login-required", "This listener serves only users that log in.")
        known = self._hashes.get(login)
        # The password is checked elsewhere meanwhile, and the user may have been taken out or given another one.
        if not await self._is_right(login, passcode, known) or self._hashes.get(login) != known:
            await trio.sleep(FAILED_LOGIN_SECONDS)
            raise Refused("login-failed", "Unknown user or wrong passcode.")
        if self._users[login] >= self._limits.connections_per_user_max:
            raise Refused(
                "too-many-connections", f"One user has at most {self._limits.connections_per_user_max} connections."
            )
        self._users[login] += 1
        return login

    async def _is_right(self, login: str, passcode: str, known: str | None) -> bool:
        digest = hmac.digest(self._key, f"{login}\0{passcode}\0{known}".encode(), hashlib.sha256)
        if digest in self._remembered:
            return True
        async with self._checks:
            right = await self._world.run_blocking(partial(_verify, known or self._nobody, passcode))
        if right and known is not None:
            if len(self._remembered) >= REMEMBERED_LOGINS_MAX:
                self._remembered.clear()
            self._remembered[digest] = None
            return True
        return False


def stopping() -> Refused:
    """Why nobody is let in while the node ends."""
    return Refused("stopping", "This node is stopping; the others of its mesh go on.")


def _hash_of_nobody() -> str:
    return argon2.PasswordHasher().hash(secrets.token_hex(16))


def _verify(password_hash: str, passcode: str) -> bool:
    try:
        return bool(password_hash) and argon2.PasswordHasher().verify(password_hash, passcode)
    except argon2.exceptions.VerificationError:
        return False
    except argon2.exceptions.InvalidHashError:
        return False


def _less(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]
