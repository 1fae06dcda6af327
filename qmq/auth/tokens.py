"""JSON Web Tokens (RFC 7519) as credentials.

A token is known here if it has the form of one and names the configured issuer; that decides nothing yet. Then all of
it must be right: algorithm, key, signature, audience, times, name, groups. The reason of a refusal is for the log of
the node; the client learns only that its token has expired, which needs a right signature.

Times are those of the node's clock, and not of PyJWT, which verifies the signature and nothing else.
"""

import base64
import json
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from qmq.access.rules import Principal
from qmq.auth.credentials import GROUPS_MAX, NAMELESS, TOKEN, Credentials, Grant, is_name
from qmq.auth.jwks import key_for, load_keys
from qmq.errors import LoginRefused

CHARACTERS_MAX: Final = 16 << 10
"""A longer text is no token, even if `login_bytes_max` was raised."""

SECONDS_MAX: Final = 253_402_300_799
"""The year 9999; a later time in a token is a wrong one."""

COMPACT: Final = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]*")

EXPIRED: Final = "The token has expired."


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token must say, and where it names the principal."""

    issuer: str
    audience: str
    algorithms: tuple[str, ...]
    leeway_seconds: float
    name_claim: str
    groups_claim: str
    groups_prefix: str


class TokenAuthenticator:
    """Tokens of one issuer. The file of keys is read again when it has changed."""

    name = TOKEN

    def __init__(self, rules: TokenRules, jwks: Path) -> None:
        """Raises OSError and ValueError as `load_keys`."""
        self._rules = rules
        self._jwks = jwks
        self._stamp = _stamp(jwks)
        self._keys = load_keys(jwks, rules.algorithms)
        self._problem: str | None = None

    def problem(self) -> str | None:
        return self._problem

    def refresh(self) -> None:
        """Read the file again if it has changed. If it cannot be used, the keys of before stay."""
        try:
            stamp = _stamp(self._jwks)
            if stamp != self._stamp or self._problem is not None:
                self._keys = load_keys(self._jwks, self._rules.algorithms)
                # After the keys: a change in between is found the next time.
                self._stamp, self._problem = stamp, None
        except OSError as error:
            self._problem = f"{self._jwks} cannot be read: {error.strerror}; its earlier keys count"
        except ValueError as error:
            self._problem = f"{self._jwks} {error}; its earlier keys count"

    def authenticate(self, credentials: Credentials, now_us: int) -> Grant | None:
        token = credentials.passcode if credentials.token is None else credentials.token
        found = COMPACT.fullmatch(token) if len(token) <= CHARACTERS_MAX else None
        claims = None if found is None else _object(found[2])
        if found is None or claims is None or claims.get("iss") != self._rules.issuer:
            return None
        self.refresh()
        self._check_signature(token, _object(found[1]))
        expires_us = self._check_claims(claims, now_us)
        name = claims.get(self._rules.name_claim)
        if not isinstance(name, str) or not is_name(name):
            raise _refused(f"its claim {self._rules.name_claim} is no name of a user")
        if credentials.login not in (None, *NAMELESS, name):
            raise _refused("it is about another user than the login")
        return Grant(Principal(name, self._groups(claims)), TOKEN, expires_us)

    def _check_signature(self, token: str, header: dict[str, Any] | None) -> None:
        if header is None or "crit" in header or "b64" in header:
            raise _refused("its header has a form that is not understood")
        algorithm, id = header.get("alg"), header.get("kid")
        if algorithm not in self._rules.algorithms:
            raise _refused("its algorithm is not allowed")
        key = key_for(self._keys, id, algorithm)
        if key is None:
            raise _refused("no key fits its key id and algorithm, or more than one")
        import jwt

        try:
            jwt.PyJWS().decode(token, key.material, algorithms=[algorithm])
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise _refused("its signature is wrong") from error

    def _check_claims(self, claims: dict[str, Any], now_us: int) -> int:
        """Whether it counts here and now; returns when it expires. Raises LoginRefused."""
        rules, now = self._rules, now_us / 1e6
        audience = claims.get("aud")
        if rules.audience not in (audience if isinstance(audience, list) else [audience]):
            raise _refused("it is for another audience")
        begins, expires = _time(claims.get("nbf", 0)), _time(claims.get("exp"))
        if begins is None or expires is None:
            raise _refused("it has no exp, or one of its times is no time")
        if now < begins - rules.leeway_seconds:
            raise _refused("it is not valid yet")
        if now >= expires + rules.leeway_seconds:
            raise LoginRefused(TOKEN, "it has expired", "token-expired", EXPIRED)
        return int((expires + rules.leeway_seconds) * 1_000_000)

    def _groups(self, claims: dict[str, Any]) -> frozenset[str]:
        """The groups that it names: a list, or text with blanks in between as in `scope`."""
        rules = self._rules
        found = _claim(claims, rules.groups_claim)
        names = found.split() if isinstance(found, str) else [] if found is None else found
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise _refused(f"its claim {rules.groups_claim} is no list of groups")
        prefix = rules.groups_prefix
        groups = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
        if len(groups) > GROUPS_MAX or not all(map(is_name, groups)):
            raise _refused(f"its claim {rules.groups_claim} has bad names or more than {GROUPS_MAX}")
        return frozenset(groups)


def _claim(claims: dict[str, Any], name: str) -> Any:
    """The claim `name`, or the one in objects that dots lead to (`realm_access.roles`)."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _time(value: object) -> float | None:
    """Seconds since 1970, or None: also for NaN and infinity, which JSON of Python has."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= SECONDS_MAX:
        return None
    return float(value)


def _object(part: str) -> dict[str, Any] | None:
    """A part of a token as a JSON object; None if it is none."""
    try:
        found = json.loads(base64.urlsafe_b64decode(part + "=="))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _stamp(path: Path) -> Collection[int]:
    """Differs when the file has changed."""
    found = os.stat(path)
    return found.st_mtime_ns, found.st_size, found.st_ino


def _refused(why: str) -> LoginRefused:
    return LoginRefused(TOKEN, why)
