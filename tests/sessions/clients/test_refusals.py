"""The log lines about refused clients."""

import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import argon2
import pytest
import trio
from trio.testing import MockClock

from qmq.config import User
from qmq.engine.runtime.heartbeats import Heartbeats
from qmq.errors import Refused
from qmq.sessions.clients.refusals import SUM_SECONDS, USER_CHARACTERS_MAX, Refusals
from tests.node.rig import Rig, eventually, send, subscribe

FULL = Refused("too-many-logins", "Too many.")
WRONG = Refused("login-failed", "Unknown user or wrong passcode.")


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """Lines about refusals, as they come."""
    found: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("qmq.login")
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


@asynccontextmanager
async def refusals() -> AsyncIterator[Refusals]:
    beats = Heartbeats()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(beats.run)
        yield Refusals(beats)
        nursery.cancel_scope.cancel()


async def test_a_flood_of_refusals_is_one_line_and_then_one_a_minute_with_their_count(
    autojump_clock: MockClock, lines: list[str]
) -> None:
    async with refusals() as noted:
        for second in range(150):
            for address in range(10):
                noted.note(f"10.0.0.{address}", FULL)
            if second == 0:
                assert lines == ["! 10.0.0.0: too-many-logins: Too many."]
            await trio.sleep(1.0)
        await trio.sleep(3 * SUM_SECONDS)

        counts = [int(line.split()[1]) for line in lines[1:]]
        assert len(counts) == 3 and sum(counts) == 1499
        assert lines[1].endswith("more of these within 60 s, the last: 10.0.0.9: too-many-logins: Too many.")

        noted.note("10.0.0.1", FULL)
        assert lines[-1] == "! 10.0.0.1: too-many-logins: Too many."


async def test_each_reason_and_each_user_has_its_own_lines_and_unknown_names_share_theirs(
    autojump_clock: MockClock, lines: list[str]
) -> None:
    async with refusals() as noted:
        noted.note("10.0.0.1", FULL)
        for name in ("ann", "bob", "ann"):
            noted.note("10.0.0.1", WRONG, name, is_user=True)
        for number in range(1000):
            noted.note("10.0.0.1", WRONG, f"guess {number}")

        assert [line.split()[3] for line in lines[1:]] == ["'ann':", "'bob':", "'guess"]
        assert len(lines) == 4


async def test_refused_logins_and_permissions_are_events_of_the_audit_once_a_minute(autojump_clock: MockClock) -> None:
    events: list[tuple[str, dict[str, object]]] = []
    beats = Heartbeats()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(beats.run)
        noted = Refusals(beats, lambda event, **facts: events.append((event, facts)))
        for number in range(5):
            noted.note(f"10.0.0.{number}", WRONG, "ann", is_user=True)
            noted.note("10.0.0.9", FULL)
        await trio.sleep(2 * SUM_SECONDS)
        nursery.cancel_scope.cancel()

    said = {"user": "ann", "reason": "Unknown user or wrong passcode."}
    assert events == [
        ("login-failed", {**said, "address": "10.0.0.0", "count": 1}),
        ("login-failed", {**said, "address": "10.0.0.4", "count": 4}),
    ]


async def test_a_denied_frame_is_an_event_with_its_user_and_without_its_body(autojump_clock: MockClock) -> None:
    password_hash = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("hunter2")
    users = tuple(
        User(name=name, password_hash=password_hash, groups=groups)
        for name, groups in (("ann", ()), ("root", ("administrator",)))
    )
    async with Rig(users=users).run() as rig:
        root = await rig.connect(login="root", passcode="hunter2")
        await root.send(subscribe("/system/audit"))
        await root.receipt()
        ann = await rig.connect("10.0.0.7", login="ann", passcode="hunter2", on_error="keep-open")
        await ann.send(send("/queue/q", "a body", "r"), subscribe("/queue/q"), send("/control/list/queue", "", "r"))

        login, body = await root.messages(2)

    event = json.loads(login)
    assert (event["event"], event["user"], event["address"], event["authenticator"]) == (
        "login",
        "ann",
        "10.0.0.7",
        "users",
    )
    event = json.loads(body)
    assert (event["event"], event["user"], event["address"], event["count"], event["reason"]) == (
        "not-allowed",
        "ann",
        "10.0.0.7",
        1,
        "The user ann may not send to /queue/q.",
    )
    assert b"hunter2" not in login + body and b"a body" not in body


async def test_what_was_counted_is_logged_when_the_node_stops(autojump_clock: MockClock, lines: list[str]) -> None:
    async with refusals() as noted:
        noted.note("10.0.0.1", FULL)
        noted.note("10.0.0.2", FULL)
        noted.close()
        noted.close()

    assert lines[1:] == ["! 1 more of these within 60 s, the last: 10.0.0.2: too-many-logins: Too many."]


async def test_a_name_cannot_make_lines_of_its_own_nor_a_long_one(autojump_clock: MockClock, lines: list[str]) -> None:
    async with refusals() as noted:
        noted.note("10.0.0.1", WRONG, "x\n\x1b[31mINFO all is well" + "x" * 8000)

    assert "\n" not in lines[0] and "\x1b" not in lines[0]
    assert len(lines[0]) < USER_CHARACTERS_MAX + 100


async def test_a_wrong_login_is_logged_with_its_user_and_without_its_passcode(
    autojump_clock: MockClock, lines: list[str]
) -> None:
    password_hash = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("secret")
    async with Rig(users=(User(name="ann", password_hash=password_hash, groups=("client",)),)).run() as rig:
        client = await rig.dial("10.0.0.7")
        await client.send("CONNECT\naccept-version:1.2\nhost:x\nlogin:ann\npasscode:hunter2\n\n")
        await client.until_closed()

    assert lines == ["! 10.0.0.7 as 'ann': login-failed: Unknown user or wrong passcode. (users: wrong passcode)"]


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("SEND\ndestination:/queue/q\n\n\0", "not-connected"),
        ("CONNECT\naccept-version:9\nhost:x\n\n\0", "version-unsupported"),
        ("", "login-timeout"),
    ],
)
async def test_what_else_ends_a_connection_before_its_login_is_logged_too(
    autojump_clock: MockClock, lines: list[str], said: str, code: str
) -> None:
    async with Rig().run() as rig:
        client = await rig.dial()
        await client.pipe.send_all(said.encode())
        (error,) = await client.until_closed()

    assert error.head.headers["error-code"] == code
    assert [line.split(": ")[1] for line in lines] == [code]


async def test_sixteen_hundred_refused_connections_are_a_handful_of_lines(
    autojump_clock: MockClock, lines: list[str]
) -> None:
    async with Rig(limits={"connections_per_address_max": 3}).run() as rig:
        for _ in range(3):
            await rig.connect("10.0.0.1")
        for _ in range(1600):
            (await rig.dial("10.0.0.1")).pipe.close()
        await rig.connect("10.0.0.2")
        await eventually(lambda: rig.alive.session_parts.login_path.admission.refusing == 0)

    assert 1 <= len(lines) <= 3
