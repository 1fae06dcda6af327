"""Logins by tokens and entry points, in a whole node: which clients come in, what they may do, and for how long."""

import json
import logging
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import argon2
import pytest
import trio
from trio.testing import MockClock

from qmq.access.rules import Principal
from qmq.auth import plugins
from qmq.auth.credentials import Credentials
from qmq.config import AuthenticationSettings, PermissionSettings, User
from qmq.errors import Refused
from qmq.node.reload import Reloader
from qmq.sessions.clients import authentication
from qmq.sessions.clients.authentication import UNAVAILABLE
from qmq.sessions.clients.client_login import EXPIRY_POLL_SECONDS
from qmq.sessions.clients.login import FAILED_LOGIN_SECONDS
from qmq.sessions.clients.refusals import SUM_SECONDS
from tests.auth.keys import AUDIENCE, ISSUER, OTHER_RSA_KEY, RSA_KEY, claims, forged, jwk, token, write_jwks
from tests.node.rig import Client, Rig, eventually, send, subscribe
from tests.support.defined import redefine
from tests.support.world import EPOCH_US

NOW = EPOCH_US // 1_000_000
PASSWORD_HASH = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("secret")
ROOT = User(name="root", password_hash=PASSWORD_HASH, groups=("administrator",))
USERS = AuthenticationSettings(kind="users")


class Service:
    """The entry point of these tests: it knows logins that begin with `x`, and counts its calls."""

    calls: list[Credentials] = []
    answer: Callable[[Credentials], Principal | None]

    def authenticate(self, credentials: Credentials) -> Principal | None:
        Service.calls.append(credentials)
        return Service.answer(credentials)


def known(credentials: Credentials) -> Principal | None:
    login = credentials.login or ""
    if not login.startswith("x"):
        return None
    if credentials.passcode != "right":
        raise Refused("wrong", "")
    return Principal(login, frozenset({"client"}))


@pytest.fixture(autouse=True)
def service(monkeypatch: pytest.MonkeyPatch) -> None:
    Service.calls, Service.answer = [], staticmethod(known)  # type: ignore[assignment]
    entry = EntryPoint("service", "tests.sessions.clients.test_authentication:Service", "qmq.auth")
    monkeypatch.setattr(plugins, "entry_points", lambda **wanted: EntryPoints([entry]).select(**wanted))


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return write_jwks(tmp_path / "keys.json", jwk(RSA_KEY))


def tokens(keys: Path, **more: Any) -> AuthenticationSettings:
    return AuthenticationSettings.read(
        {"kind": "token", "jwks": keys, "issuer": ISSUER, "audience": AUDIENCE, "leeway_seconds": 0.0, **more}
    )


def asks(**more: Any) -> AuthenticationSettings:
    return AuthenticationSettings.read({"kind": "service", **more})


def rig_with(*authentication: AuthenticationSettings, **more: Any) -> Rig:
    return Rig(authentication=(USERS, *authentication), **{"users": (ROOT,), **more})


async def said(rig: Rig, address: str = "10.0.0.1", **headers: str) -> str:
    """The name that CONNECTED has, or the code of the ERROR."""
    client = await rig.dial(address)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    await client.send(f"CONNECT\naccept-version:1.2\nhost:x\n{lines}\n")
    found = (await client.any()).head.headers
    client.pipe.close()
    return found.get("error-code") or found.get("user-name", "")


def good(**changes: Any) -> str:
    return token(claims(NOW, **changes))


async def test_a_token_logs_in_and_its_groups_have_permissions(autojump_clock: MockClock, keys: Path) -> None:
    rows = (PermissionSettings(group="billing", allow=("send",), destinations=("/queue/b",)),)
    async with rig_with(tokens(keys), permissions=rows).run() as rig:
        ann = await rig.connect(login="token", passcode=good(groups=["billing"]), on_error="keep-open")
        await ann.send(send("/queue/b", "x", "r"))
        assert await ann.receipt() == "r"
        await ann.send(send("/queue/c", "x", "r"))
        assert (await ann.any()).head.headers["error-code"] == "not-allowed"
        await ann.send(send("/control/status", "", "s"))
        assert "ready" not in (await ann.next("RECEIPT")).head.headers

        root = await rig.connect(token=good(sub="boss", groups=["administrator"]))
        await root.send(send("/control/connections", "", "c"))
        rows_said = json.loads((await root.next("RECEIPT")).head.headers["rows"])

    assert [row["user"] for row in rows_said] == ["ann", "boss"]


async def test_users_come_in_beside_the_others_in_the_order_of_the_file(autojump_clock: MockClock, keys: Path) -> None:
    async with rig_with(tokens(keys), asks()).run() as rig:
        assert await said(rig, login="root", passcode="secret") == "root"
        assert await said(rig, login="x1", passcode="right") == "x1"
        assert await said(rig, login="x1", passcode=good(sub="x1")) == "x1"
        assert await said(rig, token=good()) == "ann"

        # A refusal of the first that knows the credentials is final.
        Service.calls = []
        assert await said(rig, login="root", passcode="right") == "login-failed"
        assert await said(rig, login="x2", passcode=forged({"alg": "none"}, claims(NOW, sub="x2"))) == "login-failed"
        assert Service.calls == []
        assert await said(rig, login="y", passcode="right") == "login-failed"
        assert len(Service.calls) == 1


@pytest.mark.parametrize("name", ["root", "anonymous", "local-administrator"])
async def test_no_other_login_gets_the_name_of_a_user(autojump_clock: MockClock, keys: Path, name: str) -> None:
    """It would have the groups and permissions of that user."""
    async with rig_with(tokens(keys)).run() as rig:
        assert await said(rig, login="token", passcode=good(sub=name)) == "login-failed"


async def test_a_node_that_asks_others_is_closed_without_any_user(autojump_clock: MockClock, keys: Path) -> None:
    async with Rig(authentication=(tokens(keys),)).run() as rig:
        assert await said(rig) == "login-required"
        assert await said(rig, login="guest", passcode="guest") == "login-failed"
        ann = await rig.connect(token=good(groups=[]))
        await ann.send(send("/queue/b", "x", "r"))
        assert (await ann.any()).head.headers["error-code"] == "not-allowed"


async def test_without_the_kind_users_no_user_comes_in(autojump_clock: MockClock, keys: Path) -> None:
    async with Rig(authentication=(tokens(keys),)).run() as rig:
        node = rig.alive
        # As definitions of a mesh do, in which other nodes have that kind.
        node.session_parts.login_path.logins.change((ROOT,), node.settings.limits)
        node.session_parts.login_path.access.change((ROOT,), ())

        assert await said(rig, login="root", passcode="secret") == "login-failed"
        with pytest.raises(Refused, match="login-required"):
            await node.session_parts.login_path.logins.check(
                Credentials(None), node.settings.stomp[0], trio.sleep_forever, ["root"]
            )
        other = await rig.connect(token=good(sub="root", groups=[]))
        await other.send(send("/queue/q", "x", "r"))
        assert (await other.any()).head.headers["error-code"] == "not-allowed"


async def test_a_client_without_login_is_still_served_where_that_is_written_down(
    autojump_clock: MockClock, keys: Path
) -> None:
    async with rig_with(tokens(keys), anonymous=True).run() as rig:
        assert await said(rig) == ""
        assert await said(rig, token="x") == "login-failed"


# Expiry


async def test_the_connection_of_a_token_ends_when_it_expires(autojump_clock: MockClock, keys: Path) -> None:
    async with rig_with(tokens(keys)).run() as rig:
        ann = await rig.connect(token=good(exp=NOW + 1000))
        await ann.send(send("/queue/q", "body"), subscribe("/queue/q", ack="client-individual"))
        await ann.next("MESSAGE")
        began = trio.current_time()

        (error,) = [frame for frame in await end_of(ann) if frame.head.command == "ERROR"]

        assert error.head.headers["error-code"] == "token-expired"
        assert 999 < trio.current_time() - began < 1001
        assert await said(rig, token=good(exp=NOW + 1000)) == "token-expired"
        other = await rig.connect(token=good())
        await other.send(subscribe("/queue/q"))
        assert await other.messages(1) == [b"body"]


async def end_of(client: Client) -> list[Any]:
    while not client.ended:
        await client._read()
    return client.frames


async def test_a_clock_that_is_set_ends_expired_connections(autojump_clock: MockClock, keys: Path) -> None:
    async with rig_with(tokens(keys)).run() as rig:
        ann = await rig.connect(token=good(exp=NOW + 86400))
        began = trio.current_time()
        now_us = rig.alive.environment.now_us

        rig.alive.environment.now_us = lambda: now_us() + 86400 * 1_000_000
        await end_of(ann)

        assert trio.current_time() - began <= EXPIRY_POLL_SECONDS + 1


async def test_a_client_that_leaves_is_watched_no_more(autojump_clock: MockClock, keys: Path) -> None:
    async with rig_with(tokens(keys)).run() as rig:
        watched = len(rig.alive.beats)
        for _ in range(3):
            (await rig.connect(token=good())).pipe.close()
        await eventually(lambda: not rig.alive.sessions)

        assert len(rig.alive.beats) == watched


# A change of users


async def test_a_token_stays_when_users_change_unless_its_name_becomes_that_of_a_user(
    autojump_clock: MockClock, keys: Path
) -> None:
    async with rig_with(tokens(keys)).run() as rig:
        ann, bob = await rig.connect(token=good()), await rig.connect(token=good(sub="bob"))
        users = (ROOT, User(name="bob", password_hash=PASSWORD_HASH))

        await redefine(rig.alive, users=users)

        assert (await bob.until_closed())[-1].head.headers["error-code"] == "user-removed"
        await ann.send(send("/queue/q", "x", "r"))
        assert await ann.receipt() == "r"


# Keys


async def test_changed_keys_are_read_at_sighup_and_bad_ones_raise_a_condition(
    autojump_clock: MockClock, keys: Path
) -> None:
    async with rig_with(tokens(keys)).run() as rig:
        write_jwks(keys)
        assert await said(rig, token=good()) == "ann"
        (condition,) = conditions(rig)
        assert condition.startswith(f"tokens of {ISSUER}: {keys} has no key that verifies")

        write_jwks(keys, jwk(OTHER_RSA_KEY))
        reload = Reloader(rig.alive, rig.alive.settings, None, lambda: (rig.settings, None)).reload
        assert await reload()

        assert conditions(rig) == []
        assert await said(rig, token=good()) == "login-failed"


def conditions(rig: Rig) -> list[str]:
    return [one.message for one in rig.alive.conditions.present() if one.code == UNAVAILABLE]


# Decisions that are remembered


async def test_a_decision_is_remembered_for_its_time_and_a_refusal_for_less(autojump_clock: MockClock) -> None:
    async with rig_with(asks(cache_seconds=60.0)).run() as rig:
        for passcode, answer in (("right", "x1"), ("wrong", "login-failed")):
            Service.calls = []
            for _ in range(3):
                assert await said(rig, login="x1", passcode=passcode) == answer
            assert len(Service.calls) == 1

        await trio.sleep(authentication.REFUSED_SECONDS_MAX)
        assert await said(rig, login="x1", passcode="right") == "x1"
        assert len(Service.calls) == 1
        assert await said(rig, login="x1", passcode="wrong") == "login-failed"
        assert len(Service.calls) == 2
        await trio.sleep(60)
        assert await said(rig, login="x1", passcode="right") == "x1"
        assert len(Service.calls) == 3


async def test_what_is_remembered_counts_for_the_same_credentials_only(autojump_clock: MockClock) -> None:
    async with rig_with(asks()).run() as rig:
        for address, login in (("10.0.0.1", "x1"), ("10.0.0.2", "x1"), ("10.0.0.2", "x2")):
            assert await said(rig, address, login=login, passcode="right") == login
        assert await said(rig, login="x1right", passcode="") == "login-failed"

        assert len(Service.calls) == 4
        check = next(one for one in rig.alive.session_parts.login_path.logins._authenticators if one is not None)
        assert "right" not in repr(vars(check._cache))


async def test_with_no_time_nothing_is_remembered(autojump_clock: MockClock) -> None:
    async with rig_with(asks(cache_seconds=0.0)).run() as rig:
        for _ in range(2):
            assert await said(rig, login="x1", passcode="right") == "x1"

        assert len(Service.calls) == 2


async def test_guesses_do_not_displace_logins_from_memory(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "REMEMBERED_MAX", 3)
    async with rig_with(asks()).run() as rig:
        assert await said(rig, login="x1", passcode="right") == "x1"
        for number in range(10):
            await said(rig, login="x1", passcode=f"wrong {number}")
        Service.calls = []

        assert await said(rig, login="x1", passcode="right") == "x1"

        assert Service.calls == []
        check = next(one for one in rig.alive.session_parts.login_path.logins._authenticators if one is not None)
        assert len(check._cache._refused) == 3


# Outages


async def test_an_outage_refuses_raises_a_condition_and_clears_it(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig_with(asks()).run() as rig:

        def fail(credentials: Credentials) -> Principal | None:
            raise OSError("the passcode is right")

        monkeypatch.setattr(Service, "answer", staticmethod(fail))
        assert await said(rig, login="x1", passcode="right") == "authentication-unavailable"
        assert conditions(rig) == ["entry point service: it raised OSError; logins that it decides are refused"]
        assert await said(rig, login="root", passcode="secret") == "root"

        monkeypatch.setattr(Service, "answer", staticmethod(known))
        assert await said(rig, login="x1", passcode="right") == "x1"
        assert conditions(rig) == []


async def test_a_call_that_takes_too_long_refuses_its_login_in_time(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig_with(asks(timeout_seconds=1.5)).run() as rig:

        async def hang(call: Callable[[], object]) -> object:
            return await trio.sleep_forever()

        monkeypatch.setattr(rig.alive.environment, "run_abandonable", hang)
        began = trio.current_time()

        assert await said(rig, login="x1", passcode="right") == "authentication-unavailable"

        assert 2.0 <= trio.current_time() - began < 2.1  # at a whole number of seconds
        assert conditions(rig) == ["entry point service: no answer within 1.5 s; logins that it decides are refused"]


async def test_calls_that_hang_hold_no_more_threads_than_there_are_turns(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig_with(asks(checks_at_once=2, timeout_seconds=1.0)).run() as rig:
        check = next(one for one in rig.alive.session_parts.login_path.logins._authenticators if one is not None)
        for _ in range(2):
            assert check._threads.acquire(blocking=False)  # as calls do that were left behind

        assert await said(rig, login="x1", passcode="right") == "authentication-unavailable"
        assert Service.calls == []
        assert "its earlier calls still run" in conditions(rig)[0]

        check._threads.release()
        assert await said(rig, login="x1", passcode="right") == "x1"
        assert check._threads.acquire(blocking=False)
        assert not check._threads.acquire(blocking=False)


async def test_a_login_waits_for_the_call_of_one_that_was_given_up(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig_with(asks(checks_at_once=1, timeout_seconds=1.0)).run() as rig:
        check = next(one for one in rig.alive.session_parts.login_path.logins._authenticators if one is not None)
        assert check._threads.acquire(blocking=False)
        async with trio.open_nursery() as nursery:

            async def end_the_call() -> None:
                await trio.sleep(0.5)
                check._threads.release()

            nursery.start_soon(end_the_call)
            assert await said(rig, login="x1", passcode="right") == "x1"

        assert conditions(rig) == []


# Many logins


async def test_a_storm_of_logins_takes_no_turn_of_another_authenticator_and_few_of_another_client(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, keys: Path
) -> None:
    """Counted in calls: each lasts until the test ends it."""
    limits = {"logins_pending_max": 1000, "logins_pending_per_address_max": 1000, "login_seconds": 1000.0}
    async with rig_with(asks(timeout_seconds=60.0, checks_at_once=4), tokens(keys), limits=limits).run() as rig:
        run = rig.alive.environment.run_blocking
        ended = trio.Semaphore(0)
        running: list[int] = [0, 0]

        async def held(call: Callable[[], object]) -> object:
            found = await run(call)
            if Service.calls and Service.calls[-1].login != "token":
                running[0] += 1
                running[1] = max(running)
                await ended.acquire()
                running[0] -= 1
            return found

        monkeypatch.setattr(rig.alive.environment, "run_abandonable", held)
        for number in range(500):
            client = await rig.dial("10.0.0.1")
            await client.send(f"CONNECT\naccept-version:1.2\nhost:x\nlogin:x{number}\npasscode:right\n\n")
        check = next(one for one in rig.alive.session_parts.login_path.logins._authenticators if one is not None)
        await eventually(lambda: check.turns.waiting == 496)

        # Passwords have turns of their own.
        assert await said(rig, "10.0.0.1", login="root", passcode="secret") == "root"

        # A client from elsewhere has the next turn.
        other = await rig.dial("10.0.0.2")
        await other.send("CONNECT\naccept-version:1.2\nhost:x\nlogin:xother\npasscode:right\n\n")
        await eventually(lambda: check.turns.waiting == 497)
        ended.release()
        await eventually(lambda: any(one.login == "xother" for one in Service.calls))
        assert len(Service.calls) == 5
        assert running[1] == 4
        for _ in range(1000):
            ended.release()


# Refusals


@pytest.mark.parametrize("login", ["root", "unknown", "x1", "y1", "token"])
async def test_every_refused_login_takes_the_same_time(autojump_clock: MockClock, keys: Path, login: str) -> None:
    async with rig_with(tokens(keys), asks()).run() as rig:
        began = trio.current_time()

        assert await said(rig, login=login, passcode="wrong") == "login-failed"

        assert trio.current_time() - began == pytest.approx(FAILED_LOGIN_SECONDS, abs=0.02)


async def test_neither_passcode_nor_token_is_logged_or_audited(
    autojump_clock: MockClock, keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret, wrong = good(), good(aud="other")
    async with rig_with(tokens(keys), asks()).run() as rig:
        root = await rig.connect(login="root", passcode="secret")
        await root.send(subscribe("/system/audit"))
        await root.receipt()

        await said(rig, login="token", passcode=secret)
        await said(rig, login="token", passcode=wrong)
        await said(rig, login="x1", passcode="hunter2")
        events = [json.loads(body) for body in await root.messages(2)]
        await trio.sleep(SUM_SECONDS)
        events += [json.loads(body) for body in await root.messages(1)]

    facts = [(one["event"], one["user"], one["authenticator"], one.get("reason")) for one in events]
    assert facts == [
        ("login", "ann", "token", None),
        ("login-failed", "token", "token", "it is for another audience"),
        ("login-failed", "x1", "service", "it was refused"),
    ]
    for text in (caplog.text, json.dumps(events)):
        assert not [one for one in (secret, wrong, "hunter2") if one in text]


async def test_a_huge_token_is_refused_before_it_is_read(autojump_clock: MockClock, keys: Path) -> None:
    async with rig_with(tokens(keys)).run() as rig:
        client = await rig.dial()
        await client.send(f"CONNECT\naccept-version:1.2\nhost:x\ntoken:{'x' * 10_000}\n\n")

        assert (await client.until_closed())[-1].head.headers["error-code"] in (
            "login-too-large",
            "header-line-too-long",
        )
