"""Login deadlines and heart-beats: which clients are disconnected for being late, and which are not."""

from collections.abc import Callable

import argon2
import pytest
import trio
from trio.testing import MockClock

from qmq.config import User
from qmq.engine.runtime.heartbeats import Heartbeats
from qmq.sessions.clients import client_login
from tests.node.rig import Rig, eventually, send


async def test_a_client_that_waits_for_the_disk_is_not_taken_for_silent(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig(limits={"commit_pending_bytes_max": 1}).run() as rig:
        node = rig.alive
        run_blocking = node.environment._run_blocking

        async def slow(call: Callable[[], object]) -> object:
            await trio.sleep(5.0)
            return await run_blocking(call)

        client = await rig.dial()
        await client.log_in(heart_beat="500,0")
        monkeypatch.setattr(node.environment, "_run_blocking", slow)
        await client.send(send("/queue/q", "1", "r1"))
        await trio.sleep(0.1)
        await client.send(send("/queue/q", "2", "r2"))

        async with trio.open_nursery() as nursery:

            async def beat() -> None:
                while True:
                    await trio.sleep(0.4)
                    await client.pipe.send_all(b"\n")

            nursery.start_soon(beat)
            assert [await client.receipt(), await client.receipt()] == ["r1", "r2"]
            nursery.cancel_scope.cancel()


async def test_beats_that_came_while_the_whole_node_stood_still_count(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.dial()
        await client.log_in(heart_beat="500,0")
        await client.pipe.send_all(b"\n")
        (session,) = rig.alive.sessions.values()

        # As after SIGSTOP and SIGCONT: time has passed, and nobody has looked at the socket yet.
        autojump_clock.jump(60.0)
        session.dialogue.beats._check(trio.current_time())

        await client.send(send("/topic/t", "x", "r"))
        assert await client.receipt() == "r"


async def test_a_login_has_a_minute_more_while_its_password_check_waits(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasher = argon2.PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
    rig = Rig(
        users=(User(name="ann", password_hash=hasher.hash("secret"), groups=("client",)),),
        limits={"login_seconds": 1.0},
    )

    async def for_ever(*about: object) -> bool:
        await trio.sleep_forever()
        raise AssertionError

    async with rig.run():
        monkeypatch.setattr(rig.alive.session_parts.login_path.logins, "_is_right", for_ever)
        monkeypatch.setattr(client_login, "CHECK_SECONDS_MAX", 10.0)
        client = await rig.dial()
        await client.send("CONNECT\naccept-version:1.2\nhost:x\nlogin:ann\npasscode:secret\n\n")
        began = trio.current_time()

        (error,) = await client.until_closed()

        assert error.head.headers["error-code"] == "login-timeout"
        assert 11.0 <= trio.current_time() - began < 12.0
        await eventually(lambda: rig.alive.session_parts.login_path.admission.pending == 0)


async def test_connections_that_are_gone_leave_no_deadline_behind(autojump_clock: MockClock) -> None:
    async with Rig(limits={"login_seconds": 1000.0}).run() as rig:
        for _ in range(200):
            client = await rig.dial()
            await client.log_in(heart_beat="999999999,999999999")
            await client.send("DISCONNECT\nreceipt:r\n\n")
            await client.until_closed()
        await eventually(lambda: not rig.alive.sessions)

        assert len(rig.alive.beats) == 0
        assert len(rig.alive.beats._heap) < 200


async def test_a_forgotten_deadline_is_not_asked_again(autojump_clock: MockClock) -> None:
    beats = Heartbeats()
    asked: list[str] = []

    def check(name: str) -> Callable[[float], float | None]:
        return lambda now: asked.append(name)  # type: ignore[func-returns-value]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(beats.run)
        gone = beats.watch(1.0, check("gone"))
        beats.watch(2.0, check("kept"))
        beats.forget(gone)
        await trio.sleep(3.0)
        nursery.cancel_scope.cancel()

    assert asked == ["kept"]
