"""The authenticators of a node beside its users: tokens, services, and entry points of other packages.

Each one has turns, a time limit and a memory of its own (`LoginCheck`), so that a slow one delays no login that another
one decides. Its calls run in worker threads. A call that takes too long is left behind, and its login is refused. The
thread counts until it ends, so an authenticator that hangs holds no more threads than it has turns.
"""

import hashlib
import hmac
import json
import secrets
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio

from qmq.auth.credentials import HTTP, NAMELESS, TOKEN, USERS, Authenticator, Credentials, Grant
from qmq.config import AuthenticationSettings, NodeSettings
from qmq.engine.runtime.condition_group import ConditionGroup
from qmq.engine.runtime.contexts import Reporting
from qmq.environment import Environment
from qmq.errors import AuthenticationUnavailable, ConfigError, LoginRefused
from qmq.sessions.clients.admission import counted_address
from qmq.sessions.clients.password_checks import PasswordChecks

UNAVAILABLE: Final = "authentication-unavailable"
"""The condition, and the code of a refusal."""

TOKENS_AT_ONCE: Final = 2
TOKEN_SECONDS_MAX: Final = 5.0
"""A token is checked in less than a millisecond, unless the disk of the keys hangs."""


REMEMBERED_MAX: Final = 10_000
"""Logins that were granted, and as many refusals; beyond that the oldest is forgotten."""

REFUSED_SECONDS_MAX: Final = 5.0
"""A refusal is remembered no longer than this, because a user may just have been added."""

BUSY_SECONDS: Final = 0.02
"""Until the next try, while calls of logins that were given up still run: others must not fail because of these."""

Decision = Grant | LoginRefused | None
"""None: these credentials are not known."""


class BusyError(Exception):
    """As many calls of logins that were given up still run as may run at once."""


class LoginCache:
    """Decisions of one authenticator, remembered for a time. With `seconds` 0 it remembers none.

    They are found by a keyed digest of everything that an authenticator sees. So neither a passcode nor a token is
    kept, and a decision for one address is none for another. Refusals have room of their own: guesses never displace
    logins.
    """

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


class LoginCheck:
    """One authenticator. `subject` names it in conditions."""

    def __init__(
        self,
        environment: Environment,
        node: Reporting,
        authenticator: Authenticator,
        subject: str,
        *,
        at_once: int,
        timeout_seconds: float,
        cache_seconds: float,
    ) -> None:
        self.authenticator = authenticator
        self.turns = PasswordChecks(at_once)
        self._environment = environment
        self._subject = subject
        self._timeout_seconds = timeout_seconds
        self._cache = LoginCache(cache_seconds)
        self._condition = ConditionGroup(node, UNAVAILABLE)
        self._threads = threading.BoundedSemaphore(at_once)

    async def grant_of(self, credentials: Credentials, until_left: Callable[[], Awaitable[None]]) -> Grant | None:
        """The principal, or None for credentials that the authenticator does not know. Raises LoginRefused.

        `until_left` runs while the check waits for its turn, as in `PasswordChecks.turn`.
        """
        digest = self._cache.digest_of(credentials)
        found = self._cache.find(digest, trio.current_time())
        if found is None:
            async with self.turns.turn(counted_address(credentials.address), _user(credentials), until_left):
                # Another connection with these credentials may have been checked meanwhile.
                found = self._cache.find(digest, trio.current_time())
                if found is None:
                    found = (await self._ask(credentials),)
                    self._cache.add(digest, found[0], trio.current_time())
        decision = found[0]
        if isinstance(decision, LoginRefused):
            raise LoginRefused(decision.authenticator, decision.why, decision.code, decision.message)
        return decision

    async def _ask(self, credentials: Credentials) -> Decision:
        """Let the authenticator decide. Raises LoginRefused if it cannot; that is not remembered."""
        decision: Decision
        late = f"no answer within {self._timeout_seconds:g} s"
        try:
            with trio.fail_after(self._timeout_seconds):
                while True:
                    try:
                        decision = await self._environment.run_abandonable(
                            partial(self._in_thread, credentials, self._environment.now_us())
                        )
                        break
                    except BusyError:
                        late = "its earlier calls still run"
                        await trio.sleep(BUSY_SECONDS)
        except LoginRefused as refused:
            decision = refused
        except trio.TooSlowError:
            raise self._unavailable(late) from None
        except AuthenticationUnavailable as error:
            raise self._unavailable(str(error)) from None
        self.show_problem()
        return decision

    def _in_thread(self, credentials: Credentials, now_us: int) -> Grant | None:
        if not self._threads.acquire(blocking=False):
            raise BusyError
        try:
            return self.authenticator.authenticate(credentials, now_us)
        finally:
            self._threads.release()

    def _unavailable(self, why: str) -> LoginRefused:
        self._condition.show([f"{self._subject}: {why}; logins that it decides are refused"])
        text = "The login cannot be checked now; try again later."
        return LoginRefused(self.authenticator.name, why, UNAVAILABLE, text)

    def show_problem(self) -> None:
        """The authenticator decides: clear the condition, or say what is wrong all the same."""
        problem = self.authenticator.problem()
        self._condition.show([] if problem is None else [f"{self._subject}: {problem}"])


def _user(credentials: Credentials) -> str:
    """What turns count by."""
    if credentials.login is None or credentials.login in NAMELESS:
        return credentials.token or credentials.passcode
    return credentials.login


def login_checks(environment: Environment, node: Reporting, settings: NodeSettings) -> list[LoginCheck | None]:
    """The authenticators in the order of the node file; None stands for the users. Blocks. Raises ConfigError."""
    if not settings.authentication:
        return [None]
    return [None if one.kind == USERS else _check(environment, node, one) for one in settings.authentication]


def _check(environment: Environment, node: Reporting, one: AuthenticationSettings) -> LoginCheck:
    # Each kind of authenticator is imported here only: most nodes have none, and these import fifty modules.
    if one.kind == TOKEN:
        tokens = _tokens(one)
        subject = f"tokens of {one.issuer}"
        return LoginCheck(
            environment,
            node,
            tokens,
            subject,
            at_once=TOKENS_AT_ONCE,
            timeout_seconds=TOKEN_SECONDS_MAX,
            cache_seconds=0.0,
        )
    authenticator: Authenticator
    if one.kind == HTTP:
        from qmq.auth.callback import HttpAuthenticator

        assert one.url is not None, "the configuration was checked"
        authenticator, subject = HttpAuthenticator(one.url, one.ca, one.timeout_seconds), one.url
    else:
        from qmq.auth.plugins import PluginAuthenticator

        authenticator, subject = PluginAuthenticator(one.kind, one.options), f"entry point {one.kind}"
    return LoginCheck(
        environment,
        node,
        authenticator,
        subject,
        at_once=one.checks_at_once,
        timeout_seconds=one.timeout_seconds,
        cache_seconds=one.cache_seconds,
    )


def _tokens(one: AuthenticationSettings) -> Authenticator:
    from qmq.auth.tokens import TokenAuthenticator, TokenRules

    assert one.jwks is not None and one.issuer is not None and one.audience is not None, "the configuration was checked"
    rules = TokenRules(
        issuer=one.issuer,
        audience=one.audience,
        algorithms=one.algorithms,
        leeway_seconds=one.leeway_seconds,
        name_claim=one.name_claim,
        groups_claim=one.groups_claim,
        groups_prefix=one.groups_prefix,
    )
    try:
        return TokenAuthenticator(rules, one.jwks)
    except ValueError as error:
        raise ConfigError([f"authentication: {one.jwks} {error}"]) from error
