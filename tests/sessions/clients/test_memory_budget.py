"""The memory budget: what many connections hold together stays within it, and those that hold little notice nothing."""

import gc
import re
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from qmq.sessions.clients import memory_budget
from qmq.sessions.clients.memory_budget import default_bytes_max
from tests.node.rig import Client, Rig, eventually, nothing_more, send, subscribe
from tests.support.conditions import reported

MIB = 1 << 20
BOUND = 8 * MIB
LIMITS = {"memory_bytes_max": BOUND, "body_bytes_max": MIB, "outbox_bytes_max": 4 * MIB}


async def transaction(rig: Rig, client: Client) -> None:
    """Hold a MiB in a transaction that never ends."""
    await client.send(
        "BEGIN\ntransaction:t\n\n", *[send("/queue/q", "x" * 100_000, transaction="t") for _ in range(10)]
    )


async def unfinished_body(rig: Rig, client: Client) -> None:
    """Keep back the last byte of a MiB."""
    await client.pipe.send_all(b"SEND\ndestination:/queue/q\ncontent-length:%d\n\n" % MIB + b"x" * (MIB - 1))


async def unread_topic(rig: Rig, client: Client) -> None:
    """Let topic messages of a MiB wait."""
    await client.send(subscribe(f"/topic/{id(client)}"))
    await client.receipt()
    sender = await rig.connect()
    await sender.send(*[send(f"/topic/{id(client)}", "x" * 100_000) for _ in range(12)])
    await nothing_more(sender)


async def unread_buffer(rig: Rig, client: Client) -> None:
    """The same in a buffer of its own."""
    await client.send(subscribe(f"/topic/{id(client)}", buffer_bytes="2000000", overflow="drop-oldest"))
    await client.receipt()
    sender = await rig.connect()
    await sender.send(*[send(f"/topic/{id(client)}", "x" * 100_000) for _ in range(12)])
    await nothing_more(sender)


async def selectors(rig: Rig, client: Client) -> None:
    """A MiB of compiled selectors."""
    for number in range(40):
        text = " OR ".join(f"a LIKE '%b_{number}%{part}'" for part in range(80))
        await client.send(subscribe("/topic/news", id=str(number), selector=text))
        await client.receipt()


async def patterns(rig: Rig, client: Client) -> None:
    """Words of patterns for a MiB."""
    for number in range(90):
        await client.send(subscribe(f"/topic/{id(client)}.{number}.*{'.x' * 30}", id=str(number)))
        await client.receipt()


def committed(sends: int) -> list[str]:
    """A transaction of 60 KB each."""
    held = [send("/queue/q", "x" * 60_000, transaction="t")] * sends
    return ["BEGIN\ntransaction:t\n\n", *held, "COMMIT\ntransaction:t\nreceipt:done\n\n"]


GROWS: list[Callable[[Rig, Client], Awaitable[None]]] = [
    transaction,
    unfinished_body,
    unread_topic,
    unread_buffer,
    selectors,
    patterns,
]


@pytest.mark.parametrize("grow", GROWS)
async def test_what_all_connections_hold_stays_within_the_budget(
    grow: Callable[[Rig, Client], Awaitable[None]], autojump_clock: MockClock
) -> None:
    async with Rig(limits=LIMITS).run() as rig:
        innocent = await rig.connect()
        hostile: list[Client] = []
        most = 0
        for _ in range(12):
            hostile.append(await rig.connect())
            with trio.move_on_after(5):
                await grow(rig, hostile[-1])
            await trio.sleep(0.1)
            most = max(most, rig.alive.session_parts.host.budget.bytes)
        await trio.sleep(3)

        assert most <= BOUND + 2 * MIB
        assert rig.alive.session_parts.host.budget.ended
        assert rig.alive.session_parts.host.budget.bytes <= BOUND
        await innocent.send(send("/queue/mine", "1", "r"))
        assert await innocent.receipt() == "r"


@pytest.mark.parametrize("grow", GROWS)
async def test_nothing_is_counted_when_all_have_left(
    grow: Callable[[Rig, Client], Awaitable[None]], autojump_clock: MockClock
) -> None:
    async with Rig(limits=LIMITS).run() as rig:
        for _ in range(3):
            client = await rig.connect()
            await grow(rig, client)
            await trio.sleep(0.1)
            assert rig.alive.session_parts.host.budget.bytes > MIB // 2
            client.pipe.close()
            await eventually(lambda: rig.alive.session_parts.host.budget.bytes == 0)


async def test_one_that_holds_most_gets_the_reason_of_its_end(autojump_clock: MockClock) -> None:
    async with Rig(limits={**LIMITS, "memory_bytes_max": 4 * MIB, "transaction_bytes_max": 16 * MIB}).run() as rig:
        small, large = await rig.connect(), await rig.connect()
        await transaction(rig, small)
        await large.send("BEGIN\ntransaction:t\n\n")
        for _ in range(40):
            await large.send(send("/queue/q", "x" * 100_000, transaction="t"))

        *_, error = await large.until_closed()

        assert error.head.headers["error-code"] == "memory-exceeded"
        held, most, bound = map(int, re.findall(r"\d+", error.head.headers["message"]))
        assert held >= bound == 3 * MIB
        assert most > MIB
        await small.send("ABORT\ntransaction:t\nreceipt:done\n\n")
        assert await small.receipt() == "done"
        assert rig.alive.session_parts.host.budget.ended == 1
        assert [one["code"] for one in reported(rig.alive)] == ["memory"]


async def test_near_the_bound_a_growing_client_waits_and_goes_on_when_there_is_room(autojump_clock: MockClock) -> None:
    async with Rig(limits={**LIMITS, "memory_bytes_max": 4 * MIB}).run() as rig:
        clients = [await rig.connect() for _ in range(3)]
        for client in clients:
            await transaction(rig, client)
        await eventually(
            lambda: len(rig.alive.broker.sessions) == 3 and not rig.alive.session_parts.host.budget.is_near
        )
        growing = await rig.connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(growing.send, *committed(6))
            await eventually(lambda: rig.alive.session_parts.host.budget.is_near)
            await trio.sleep(0.5)
            assert rig.alive.session_parts.host.budget.is_near and not growing.frames

            for client in clients:
                client.pipe.close()

            assert await growing.receipt() == "done"
            assert not rig.alive.session_parts.host.budget.ended


async def test_growing_client_that_waited_long_enough_has_the_largest_ended(autojump_clock: MockClock) -> None:
    async with Rig(limits={**LIMITS, "memory_bytes_max": 4 * MIB}).run() as rig:
        clients = [await rig.connect() for _ in range(3)]
        for client in clients:
            await transaction(rig, client)
        growing = await rig.connect()
        await growing.send(*committed(6))

        assert await growing.receipt() == "done"
        assert rig.alive.session_parts.host.budget.ended == 1


async def test_client_that_does_not_grow_is_read_near_the_bound(autojump_clock: MockClock) -> None:
    async with Rig(limits={**LIMITS, "memory_bytes_max": MIB}).run() as rig:
        holding = await rig.connect()
        await holding.send("BEGIN\ntransaction:t\n\n", *[send("/queue/q", "x" * 100_000, transaction="t")] * 8)
        await eventually(lambda: rig.alive.session_parts.host.budget.is_near)
        innocent = await rig.connect()
        began = trio.current_time()

        for number in range(20):
            await innocent.send(send("/queue/mine", "1", str(number)))
            assert await innocent.receipt() == str(number)

        assert trio.current_time() - began < memory_budget.WAIT_SECONDS


async def test_status_shows_what_is_held(autojump_clock: MockClock) -> None:
    async with Rig(limits=LIMITS).run() as rig:
        client = await rig.connect()
        await transaction(rig, client)
        await trio.sleep(0.1)

        picture = asdict(rig.alive.session_parts.host.budget.statistics())

        assert picture == {"bytes": rig.alive.session_parts.host.budget.bytes, "max": BOUND, "ended": 0}
        assert picture["bytes"] > 1_000_000


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
def test_default_is_a_quarter_of_what_the_control_group_has(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_budget, "CGROUPS", tmp_path)
    machine = default_bytes_max()
    (tmp_path / name).parent.mkdir(exist_ok=True)

    (tmp_path / name).write_text("max\n")
    assert default_bytes_max() == machine
    (tmp_path / name).write_text(f"{400 * MIB}\n")

    assert default_bytes_max() == 100 * MIB


@pytest.mark.parametrize("grow", GROWS)
async def test_what_a_connection_held_is_free_when_it_has_ended_without_the_collector(
    grow: Callable[[Rig, Client], Awaitable[None]], autojump_clock: MockClock
) -> None:
    async with Rig(limits=LIMITS).run() as rig:
        client = await rig.connect()
        await grow(rig, client)
        session = weakref.ref(rig.alive.sessions[min(rig.alive.sessions)])
        gc.collect()
        gc.disable()
        try:
            client.pipe.close()
            await trio.sleep(5)
            assert session() is None
        finally:
            gc.enable()
