"""5,000 clients log in at once, against the default limits."""

from collections import Counter
from collections.abc import Callable

import argon2
import pytest
import trio
from trio.testing import MockClock

from qmq.config import User
from qmq.sessions.clients.admission import CONNECT_SECONDS, LOGINS_AT_ONCE, TURNED_AWAY_MIN
from tests.node.rig import Rig, eventually, send, subscribe

CLIENTS = 5_000
HASH = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("secret")
ROOT = User(name="root", password_hash=HASH, groups=("administrator",))
LOGIN = "login:root\npasscode:secret\n"


class LoginsPerTurn(trio.abc.Instrument):
    """The most sessions that began between two turns of the other tasks."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._before = 0
        self.most = 0

    def after_io_wait(self, timeout: float) -> None:
        count = len(self._rig.alive.sessions)
        self.most = max(self.most, count - self._before)
        self._before = count


def one_address(number: int) -> str:
    return "10.0.0.1"


def many_addresses(number: int) -> str:
    return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"


async def storm(rig: Rig, host_of: Callable[[int], str], login: str = "", count: int = CLIENTS) -> Counter[str]:
    """What became of so many clients that connect at once, and stay: CONNECTED, an error-code, or `nothing`."""
    rig.fabric.odd_chunks = 0.0  # a kernel takes an ERROR as a whole
    found: Counter[str] = Counter()
    all_heard = trio.Event()

    async def one(number: int) -> None:
        client = await rig.dial(host_of(number))
        try:
            await client.send(f"CONNECT\naccept-version:1.2\nhost:x\n{login}\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # It is refused already, and may read why.
        try:
            head = (await client.any()).head
            found[head.headers.get("error-code", head.command)] += 1
        except (AssertionError, trio.BrokenResourceError):
            found["nothing"] += 1
        if found.total() == count:
            all_heard.set()
        await all_heard.wait()
        client.pipe.close()

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(one, number)
    return found


async def test_a_storm_from_many_hosts_gets_in_and_delays_no_other_client(
    autojump_clock: MockClock,
) -> None:
    limits = {"connections_per_user_max": 2 * CLIENTS}
    async with Rig(users=(ROOT,), limits=limits).run() as rig:
        other = await rig.connect(login="root", passcode="secret")
        await other.send(subscribe("/topic/t"))
        await other.receipt()
        waits: list[float] = []

        async def go_on() -> None:
            while True:
                began = trio.current_time()
                await other.send(send("/topic/t", ""))
                await other.messages(1)
                waits.append(trio.current_time() - began)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(go_on)
            found = await storm(rig, many_addresses, LOGIN)
            nursery.cancel_scope.cancel()

        assert found == {"CONNECTED": CLIENTS}
        assert max(waits) < 0.2


async def test_logins_that_arrive_together_leave_other_clients_their_turns(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        clients = [await rig.dial(many_addresses(number)) for number in range(300)]
        await trio.sleep(1)
        rig.fabric.latency_seconds = rig.fabric.odd_chunks = 0.0
        turns = LoginsPerTurn(rig)
        trio.lowlevel.add_instrument(turns)
        for client in clients:
            client.pipe.send_now(b"CONNECT\naccept-version:1.2\nhost:x\n\n\0")
        await eventually(lambda: len(rig.alive.sessions) == 300)
        trio.lowlevel.remove_instrument(turns)

        assert turns.most <= LOGINS_AT_ONCE


async def test_a_storm_from_one_host_is_admitted_up_to_its_bound_and_the_rest_hears_why(
    autojump_clock: MockClock,
) -> None:
    clients = 2_000  # twice the bound
    async with Rig().run() as rig:
        found = await storm(rig, one_address, count=clients)

        assert set(found) <= {"CONNECTED", "too-many-connections", "too-many-logins"}
        assert found.total() == clients
        assert 200 <= found["CONNECTED"] <= 1000
        assert (await rig.connect("10.0.0.2")).pipe is not None


async def test_more_refused_clients_than_may_stay_are_sent_the_reason_all_the_same(autojump_clock: MockClock) -> None:
    async with Rig(limits={"connections_max": 10}).run() as rig:
        found = await storm(rig, many_addresses, count=20 * TURNED_AWAY_MIN)

        assert found == {"CONNECTED": 10, "too-many-connections": 20 * TURNED_AWAY_MIN - 10}


async def test_silent_connections_give_their_places_after_their_time_and_not_before(
    autojump_clock: MockClock,
) -> None:
    async with Rig(limits={"logins_pending_max": 20}).run() as rig:
        silent = [await rig.dial(many_addresses(number)) for number in range(20)]
        began = trio.current_time()
        await rig.connect("10.9.9.9")
        assert trio.current_time() - began == pytest.approx(CONNECT_SECONDS, abs=0.1)

        # One of them that speaks makes room at once.
        began = trio.current_time()
        silent.append(await rig.dial("10.9.9.8"))
        waiting = await rig.dial("10.9.9.7")
        await waiting.send("CONNECT\naccept-version:1.2\nhost:x\n\n")
        await silent[-1].log_in()
        await waiting.next("CONNECTED")
        assert trio.current_time() - began < CONNECT_SECONDS / 2
        assert [frame.head.headers["error-code"] for frame in await silent[0].until_closed()] == ["too-many-logins"]
