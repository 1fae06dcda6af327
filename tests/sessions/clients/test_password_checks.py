"""Password checks: whose turn it is, and what becomes of a client that waits for one."""

from collections.abc import Callable
from typing import Any

import argon2
import argon2.exceptions
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from qmq.config import User
from qmq.sessions.clients import client_login, login, password_checks
from qmq.sessions.clients.password_checks import AT_ONCE, PasswordChecks
from tests.node.rig import Client, Rig, eventually, send

PASSWORD_HASH = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("secret")
USERS = tuple(User(name=name, password_hash=PASSWORD_HASH, groups=("client",)) for name in ("ann", "bob"))
CHECK_SECONDS = 0.2


def test_an_unknown_user_costs_the_same_check_as_a_known_one_and_has_no_password() -> None:
    own = argon2.PasswordHasher().hash("secret")

    hashes = [login._hash_of_no_user() for _ in range(2)]

    assert [argon2.extract_parameters(one) for one in hashes] == [argon2.extract_parameters(own)] * 2
    assert hashes[0] != hashes[1]
    with pytest.raises(argon2.exceptions.VerifyMismatchError):
        argon2.PasswordHasher().verify(hashes[0], "secret")


class Line:
    """Clients that wait for a check; each check lasts until `pass_on`. `order` says who had one."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.checks = PasswordChecks()
        self.order: list[tuple[str, str]] = []
        self.left: list[tuple[str, str]] = []
        self._nursery = nursery
        self._next = trio.Semaphore(0)

    async def come(self, address: str, user: str, gone: Callable[[], Any] = trio.sleep_forever) -> None:
        self._nursery.start_soon(self._wait, address, user, gone)
        await trio.testing.wait_all_tasks_blocked()

    async def _wait(self, address: str, user: str, gone: Callable[[], Any]) -> None:
        try:
            async with self.checks.turn(address, user, gone):
                self.order.append((address, user))
                await self._next.acquire()
        except trio.BrokenResourceError:
            self.left.append((address, user))

    async def pass_on(self, times: int = 1) -> None:
        for _ in range(times):
            self._next.release()
            await trio.testing.wait_all_tasks_blocked()


async def test_a_login_from_elsewhere_goes_before_the_guesses_of_one_address() -> None:
    async with trio.open_nursery() as nursery:
        line = Line(nursery)
        for number in range(20):
            await line.come("attacker", f"name {number % 3}")
        await line.come("home", "name 0")

        await line.pass_on(2)

        assert line.order.index(("home", "name 0")) < 4
        nursery.cancel_scope.cancel()


async def test_a_login_of_another_user_goes_before_many_of_one_user_from_everywhere() -> None:
    async with trio.open_nursery() as nursery:
        line = Line(nursery)
        for number in range(20):
            await line.come(f"worker {number}", "outdated")
        await line.come("home", "ann")

        await line.pass_on()

        assert line.order[AT_ONCE] == ("home", "ann")
        nursery.cancel_scope.cancel()


async def test_another_user_at_the_address_of_many_wrong_ones_is_not_the_last() -> None:
    async with trio.open_nursery() as nursery:
        line = Line(nursery)
        for _ in range(20):
            await line.come("gateway", "outdated")
        await line.come("gateway", "ann")

        await line.pass_on()

        assert line.order[AT_ONCE] == ("gateway", "ann")
        nursery.cancel_scope.cancel()


async def test_among_equals_the_first_to_come_goes_first_and_all_have_their_turn() -> None:
    async with trio.open_nursery() as nursery:
        line = Line(nursery)
        came = [(f"address {number}", f"user {number}") for number in range(10)]
        for address, user in came:
            await line.come(address, user)

        await line.pass_on(len(came))

        assert line.order == came
        assert line.checks.waiting == 0


async def test_a_client_that_leaves_while_it_waits_gives_up_its_turn() -> None:
    async with trio.open_nursery() as nursery:
        line = Line(nursery)
        leaves = trio.Event()
        for user in ("one", "two"):
            await line.come("home", user)
        await line.come("home", "three", leaves.wait)
        await line.come("home", "four")

        leaves.set()
        await trio.testing.wait_all_tasks_blocked()
        await line.pass_on(4)

        assert line.left == [("home", "three")]
        assert [user for _, user in line.order] == ["one", "two", "four"]


@pytest.mark.parametrize("draw", range(20))  # trio draws which of two tasks runs first
async def test_a_turn_that_comes_in_the_moment_of_leaving_is_not_lost(draw: int) -> None:
    async with trio.open_nursery() as nursery:
        line = Line(nursery)
        leaving = trio.CancelScope()

        async def leave() -> None:
            with leaving:
                async with line.checks.turn("home", "three", trio.sleep_forever):
                    await trio.sleep_forever()

        for user in ("one", "two"):
            await line.come("home", user)
        nursery.start_soon(leave)
        await trio.testing.wait_all_tasks_blocked()

        line._next.release()
        leaving.cancel()
        await trio.testing.wait_all_tasks_blocked()
        await line.come("home", "four")

        assert ("home", "four") in line.order
        nursery.cancel_scope.cancel()


async def test_checks_of_long_ago_and_too_many_of_them_are_forgotten(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(password_checks, "REMEMBERED_MAX", 8)
    line = PasswordChecks()
    for number in range(50):
        async with line.turn(f"address {number}", f"user {number}", trio.sleep_forever):
            pass
    assert len(line._addresses) + len(line._users) <= 8

    await trio.sleep(password_checks.REMEMBERED_SECONDS + 1)
    async with line.turn("address", "user", trio.sleep_forever):
        pass
    assert len(line._addresses) + len(line._users) == 2


# The same in a node


async def guess(rig: Rig, address: str, user: str = "ann") -> Client:
    client = await rig.dial(address)
    await client.send(f"CONNECT\naccept-version:1.2\nhost:x\nlogin:{user}\npasscode:wrong\n\n")
    return client


def slow_checks(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let every blocking call last CHECK_SECONDS; returns when each check began."""
    began: list[float] = []
    run_blocking = rig.alive.environment._run_blocking

    async def slow(call: Callable[[], object]) -> object:
        if "_verify" in repr(call):
            began.append(trio.current_time())
        with trio.CancelScope(shield=True):  # a thread is not cancelled
            await trio.sleep(CHECK_SECONDS)
        return await run_blocking(call)

    monkeypatch.setattr(rig.alive.environment, "_run_blocking", slow)
    return began


async def test_wrong_guesses_of_one_address_do_not_keep_right_logins_waiting(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig(users=USERS).run() as rig:
        slow_checks(rig, monkeypatch)
        for _ in range(100):
            await guess(rig, "10.0.0.1")
        await eventually(lambda: rig.alive.session_parts.login_path.logins._checks.waiting > 90)

        for user in ("ann", "bob"):
            began = trio.current_time()
            await rig.connect("10.0.0.2", login=user, passcode="secret")
            assert trio.current_time() - began < 3 * CHECK_SECONDS


async def test_guesses_whose_clients_have_left_are_not_checked(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig(users=USERS).run() as rig:
        began = slow_checks(rig, monkeypatch)
        guesses = [await guess(rig, "10.0.0.1") for _ in range(50)]
        await eventually(lambda: rig.alive.session_parts.login_path.logins._checks.waiting > 40)

        for client in guesses:
            client.pipe.close()
        await eventually(lambda: rig.alive.session_parts.login_path.admission.pending == 0)

        assert len(began) < 20


async def test_a_right_login_waits_for_its_check_while_the_node_is_busy_with_those_of_others(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig(users=USERS, limits={"login_seconds": 1.0}).run() as rig:
        slow_checks(rig, monkeypatch)
        guesses = [await guess(rig, "10.0.0.1") for _ in range(40)]
        began = trio.current_time()

        ann = await rig.connect("10.0.0.1", login="ann", passcode="secret")

        assert trio.current_time() - began > 3.0
        await ann.send("DISCONNECT\nreceipt:bye\n\n")
        assert await ann.receipt() == "bye"
        for client in guesses:
            assert (await client.until_closed())[-1].head.headers["error-code"] == "login-failed"


async def test_a_client_that_has_not_sent_its_login_in_time_is_refused(autojump_clock: MockClock) -> None:
    async with Rig(users=USERS, limits={"login_seconds": 1.0}).run() as rig:
        client, began = await rig.dial(), trio.current_time()

        assert (await client.until_closed())[-1].head.headers["error-code"] == "login-timeout"
        assert 1.0 <= trio.current_time() - began < 1.5


async def test_a_login_that_waits_too_long_for_its_check_is_refused_and_not_checked(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_login, "CHECK_SECONDS_MAX", 1.0)
    async with Rig(users=USERS, limits={"login_seconds": 1.0}).run() as rig:
        began = slow_checks(rig, monkeypatch)
        guesses = [await guess(rig, "10.0.0.1") for _ in range(40)]

        await trio.sleep(2.1)  # no client has left yet
        waiting = rig.alive.session_parts.login_path.logins._checks.waiting
        said = [(await client.until_closed())[-1].head.headers["error-code"] for client in guesses]

        assert waiting == 0
        assert set(said) == {"login-failed", "login-timeout"}
        assert len(began) <= AT_ONCE * 2.0 / CHECK_SECONDS + AT_ONCE


async def test_of_many_clients_of_one_user_that_come_back_at_once_few_are_checked(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig(users=USERS).run() as rig:
        began = slow_checks(rig, monkeypatch)
        clients = [await rig.dial("10.0.0.1") for _ in range(50)]
        for client in clients:
            await client.send("CONNECT\naccept-version:1.2\nhost:x\nlogin:ann\npasscode:secret\n\n")

        for client in clients:
            await client.next("CONNECTED")

        assert len(began) <= AT_ONCE


async def test_what_a_client_sends_behind_its_login_while_that_waits_is_obeyed_in_order(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig(users=USERS).run() as rig:
        slow_checks(rig, monkeypatch)
        for _ in range(6):
            await guess(rig, "10.0.0.1")
        await eventually(lambda: rig.alive.session_parts.login_path.logins._checks.waiting > 2)
        client = await rig.dial("10.0.0.1")
        await client.send("CONNECT\naccept-version:1.2\nhost:x\nlogin:bob\npasscode:secret\n\n")
        await trio.sleep(CHECK_SECONDS / 4)

        bodies = [f"{number}" * 9_000 for number in range(10)]
        await client.send(*(send("/queue/q", body, f"r{number}") for number, body in enumerate(bodies)))

        assert [await client.receipt() for _ in bodies] == [f"r{number}" for number in range(10)]


async def test_a_client_that_ends_its_half_behind_its_frames_is_served_when_no_other_waits(
    autojump_clock: MockClock,
) -> None:
    async with Rig(users=USERS).run() as rig:
        client = await rig.dial("10.0.0.1")
        await client.send(
            "CONNECT\naccept-version:1.2\nhost:x\nlogin:bob\npasscode:secret\n\n", send("/queue/q", "x", "r")
        )
        client.pipe.end_sending()

        assert [frame.head.command for frame in await client.until_closed()] == ["CONNECTED", "RECEIPT"]
