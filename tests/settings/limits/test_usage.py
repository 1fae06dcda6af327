"""Rates and subscriptions of users and addresses, as their clients see them."""

import argon2
import pytest
import trio
from trio.testing import MockClock

from qmq.config import User, UserLimitSettings
from qmq.config.users import PermissionSettings
from qmq.definitions.definition import Key
from qmq.sessions.clients.login import LOCAL
from qmq.settings.limits import usage
from tests.node.rig import Client, Rig, eventually, send, subscribe

HASH = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("secret")
USERS = tuple(User(name=name, password_hash=HASH, groups=("client", "g")) for name in ("ann", "bob"))


def rig_of(*rows: UserLimitSettings, **settings: object) -> Rig:
    return Rig(users=USERS, user_limits=rows, **settings)  # type: ignore[arg-type]


async def log_in(rig: Rig, user: str = "ann", host: str = "10.0.0.1", **headers: str) -> Client:
    return await rig.connect(host, login=user, passcode="secret", **headers)


async def seconds_for(client: Client, count: int, body: str = "") -> float:
    """How long so many SENDs take, from the first to the receipt of the last."""
    began = trio.current_time()
    await client.send(*[send("/queue/q", body, str(number)) for number in range(count)])
    for number in range(count):
        assert await client.receipt() == str(number)
    return trio.current_time() - began


RATES = [
    ({"user": "ann", "messages_per_second_max": 20}, {}),
    ({"group": "g", "messages_per_second_max": 20}, {}),
    ({"user": "*", "messages_per_second_max": 20}, {}),
    ({"user": "bob", "messages_per_second_max": 1}, {"messages_per_second_per_address_max": 20}),
]


@pytest.mark.parametrize(("row", "limits"), RATES)
async def test_a_fast_sender_is_slowed_to_its_rate_and_gets_no_error(
    autojump_clock: MockClock, row: dict[str, object], limits: dict[str, int]
) -> None:
    async with rig_of(UserLimitSettings(**row), limits=limits).run() as rig:  # type: ignore[arg-type]
        ann = await log_in(rig)

        # 20 of them at once: what a second allows.
        assert await seconds_for(ann, 100) == pytest.approx(4.0, abs=0.2)


async def test_each_of_alike_messages_without_a_receipt_counts(autojump_clock: MockClock) -> None:
    async with rig_of(UserLimitSettings(user="ann", messages_per_second_max=20)).run() as rig:
        ann = await log_in(rig)
        began = trio.current_time()

        await ann.send(*[send("/queue/q", "x")] * 100, send("/queue/q", "", "last"))
        await ann.receipt()

        assert trio.current_time() - began == pytest.approx(4.0, abs=0.2)


async def test_messages_come_evenly_and_not_each_read_at_its_end(autojump_clock: MockClock) -> None:
    async with rig_of(UserLimitSettings(user="ann", messages_per_second_max=20)).run() as rig:
        ann = await log_in(rig)
        await ann.send(*[send("/queue/q", "", str(number)) for number in range(60)])

        times = []
        for _ in range(60):
            await ann.receipt()
            times.append(trio.current_time())

        assert max(late - early for early, late in zip(times, times[1:], strict=False)) < 0.15


async def test_bytes_are_limited_whatever_the_frames_are(autojump_clock: MockClock) -> None:
    row = UserLimitSettings(user="ann", bytes_per_second_max=10_000)
    async with rig_of(row).run() as rig:
        ann = await log_in(rig)

        assert await seconds_for(ann, 100, "x" * 1000) == pytest.approx(9.6, abs=1.0)


@pytest.mark.parametrize("row", [RATES[0][0], {"user": "ann", "bytes_per_second_max": 20_000}])
async def test_all_connections_of_a_user_share_its_rate_and_other_users_have_their_own(
    autojump_clock: MockClock, row: dict[str, object]
) -> None:
    async with rig_of(UserLimitSettings(**row)).run() as rig:  # type: ignore[arg-type]
        clients = [await log_in(rig, host=f"10.0.0.{number}") for number in range(4)]
        took: list[float] = []
        count = 25 if "messages_per_second_max" in row else 24

        async def send_all(client: Client) -> None:
            took.append(await seconds_for(client, count, "x" * 1000))

        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(send_all, client)
            other = await seconds_for(await log_in(rig, "bob"), 100)

        assert max(took) == pytest.approx(4.0, abs=1.2)
        assert other < 0.5


async def test_a_client_that_connects_again_has_not_paid(autojump_clock: MockClock) -> None:
    async with rig_of(UserLimitSettings(user="ann", messages_per_second_max=10)).run() as rig:
        took = 0.0
        for _ in range(4):
            ann = await log_in(rig)
            took += await seconds_for(ann, 10)
            ann.pipe.close()
            await eventually(lambda: not rig.alive.sessions)

        assert took > 2.5
        await trio.sleep(60)
        assert rig.alive.settings_parts.usages._kept == 0


async def test_what_users_and_addresses_used_is_forgotten_when_they_have_left(autojump_clock: MockClock) -> None:
    row = UserLimitSettings(user="*", messages_per_second_max=1000)
    async with rig_of(row).run() as rig:
        for number in range(20):
            ann = await log_in(rig, host=f"10.0.{number}.1")
            await seconds_for(ann, 1)
            ann.pipe.close()
        await trio.sleep(10)

        assert len(rig.alive.settings_parts.usages) == 0
        assert rig.alive.settings_parts.usages._kept == 0


async def test_no_more_than_so_many_are_kept_without_a_session(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "KEPT_MAX", 1)
    row = UserLimitSettings(user="*", messages_per_second_max=1)
    async with rig_of(row).run() as rig:
        for user in ("ann", "bob"):
            client = await log_in(rig, user)
            await seconds_for(client, 5)
            client.pipe.close()
            await eventually(lambda: not rig.alive.sessions)

        assert rig.alive.settings_parts.usages._kept == 1
        assert len(rig.alive.settings_parts.usages) == 1


async def test_heartbeats_go_on_in_both_directions_while_a_client_is_not_read(autojump_clock: MockClock) -> None:
    row = UserLimitSettings(user="ann", messages_per_second_max=1)
    async with rig_of(row).run() as rig:
        ann = await log_in(rig, heart_beat="500,500")

        # It sends no heartbeat itself: the silence is the node's.
        assert await seconds_for(ann, 30) == pytest.approx(29.0, abs=0.5)
        assert ann.raw.count(b"\0\n\n") + ann.raw.count(b"\n\n\n") > 5


async def test_a_new_limit_counts_at_once_and_a_deleted_one_ends_the_wait(autojump_clock: MockClock) -> None:
    async with rig_of().run() as rig:
        ann = await log_in(rig)
        assert await seconds_for(ann, 100) < 0.5
        change = rig.alive.settings_parts.definitions.change

        await change({Key("limit", "user:ann"): {"bytes_per_second_max": 1024}})
        await seconds_for(ann, 1)
        began = trio.current_time()
        await ann.send(*[send("/queue/q", "x" * 1000, str(number)) for number in range(100)])
        await trio.sleep(10)
        await change({Key("limit", "user:ann"): None})

        for number in range(100):
            assert await ann.receipt() == str(number)
        assert 10 <= trio.current_time() - began < 10.5


async def test_a_limit_of_bytes_does_not_count_what_came_before_it(autojump_clock: MockClock) -> None:
    async with rig_of().run() as rig:
        ann = await log_in(rig)
        await seconds_for(ann, 500, "x" * 1000)

        await rig.alive.settings_parts.definitions.change({Key("limit", "user:ann"): {"bytes_per_second_max": 10_000}})

        assert await seconds_for(ann, 1) < 0.5


async def test_the_end_of_a_connection_is_not_lost_in_a_portion(autojump_clock: MockClock) -> None:
    row = UserLimitSettings(user="ann", messages_per_second_max=10)
    async with rig_of(row).run() as rig:
        ann = await log_in(rig)
        await ann.send(*[send("/queue/q", "", str(number)) for number in range(30)], "NONSENSE\n\n")

        frames = await ann.until_closed()

        assert [frame.head.command for frame in frames] == ["RECEIPT"] * 30 + ["ERROR"]
        assert frames[-1].head.headers["error-code"] == "unknown-command"


async def test_a_client_that_waits_is_kicked_at_once(autojump_clock: MockClock) -> None:
    row = UserLimitSettings(user="ann", messages_per_second_max=1)
    async with rig_of(row).run() as rig:
        ann = await log_in(rig)
        await ann.send(*[send("/queue/q", "") for _ in range(1000)])
        await trio.sleep(1)

        began = trio.current_time()
        await rig.alive.settings_parts.definitions.change({Key("user", "ann"): None})
        assert (await ann.until_closed())[-1].head.headers["error-code"] == "user-removed"
        await eventually(lambda: not rig.alive.sessions)

        assert trio.current_time() - began < 3.0


@pytest.mark.parametrize(
    ("row", "limits", "says"),
    [
        ({"user": "ann", "subscriptions_max": 3}, {}, "The user ann may have 3 subscriptions here."),
        ({"user": "bob", "queues_max": 1}, {"subscriptions_per_address_max": 3}, "The address 10.0.0.1 may have 3"),
    ],
)
@pytest.mark.parametrize("destination", ["/topic/t", "/queue/q", "/temp-queue/t"])
async def test_subscriptions_of_all_connections_count_together(
    autojump_clock: MockClock, row: dict[str, object], limits: dict[str, int], says: str, destination: str
) -> None:
    async with rig_of(UserLimitSettings(**row), limits=limits).run() as rig:  # type: ignore[arg-type]
        first, second = await log_in(rig), await log_in(rig)
        for client, id in ((first, "a"), (first, "b"), (second, "c")):
            await client.send(subscribe(f"{destination}{id}", id))
            await client.receipt()

        await second.send(subscribe(f"{destination}d", "d"))
        refused = (await second.any()).head.headers

        assert refused["error-code"] == "too-many-subscriptions"
        assert says in refused["message"]
        # The connection of the refused one is closed, and its subscription counts no more.
        await second.until_closed()
        await first.send(subscribe(f"{destination}e", "e"))
        await first.receipt()


async def test_a_user_has_connections_of_its_own_number(autojump_clock: MockClock) -> None:
    rows = (UserLimitSettings(user="ann", connections_max=2), UserLimitSettings(user="bob", connections_max=0))
    async with rig_of(*rows, limits={"connections_per_user_max": 3}).run() as rig:
        clients = [await log_in(rig) for _ in range(2)]
        third = await rig.dial()
        await third.send("CONNECT\naccept-version:1.2\nhost:x\nlogin:ann\npasscode:secret\n\n")
        refused = (await third.until_closed())[-1].head.headers

        assert (refused["error-code"], refused["message"]) == (
            "too-many-connections",
            "The user ann has at most 2 connections here.",
        )
        clients += [await log_in(rig, "bob") for _ in range(5)]
        assert len(rig.alive.sessions) == 7


async def test_clients_without_login_share_the_limits_of_anonymous(autojump_clock: MockClock) -> None:
    rows = (
        UserLimitSettings(user="anonymous", messages_per_second_max=10),
        UserLimitSettings(user="*", messages_per_second_max=1),
    )
    may = PermissionSettings(user="anonymous", allow=("send",), destinations=("/queue/*",))
    async with rig_of(*rows, anonymous=True, permissions=(may,)).run() as rig:
        assert await seconds_for(await rig.connect(), 30) == pytest.approx(2.0, abs=0.2)


async def test_the_unix_socket_has_no_limits(autojump_clock: MockClock) -> None:
    rows = (UserLimitSettings(user="*", messages_per_second_max=1, connections_max=1),)
    async with rig_of(*rows, limits={"messages_per_second_per_address_max": 1}).run() as rig:
        allowance = rig.alive.settings_parts.usages.join(10_000, LOCAL.principal, None)

        assert not allowance.is_limited
        assert len(rig.alive.settings_parts.usages) == 0


async def test_a_node_stops_without_waiting_for_rates(autojump_clock: MockClock) -> None:
    async with rig_of(UserLimitSettings(user="ann", bytes_per_second_max=1024)).run() as rig:
        clients = [await log_in(rig) for _ in range(10)]
        for client in clients:
            await client.send(*[send("/queue/q", "x" * 1000) for _ in range(60)])
        await eventually(lambda: all(session.waits_for_slot for session in rig.alive.sessions.values()))
        began = trio.current_time()

        rig.alive.stop()
        await clients[0].until_closed()

        await eventually(lambda: not rig.alive.sessions)
        assert trio.current_time() - began < 5
