"""The credit of a consumer that does not ask for one: it grows while all of it is settled quickly."""

from typing import Final

import pytest
from trio.testing import MockClock

from tests.node.rig import Client, Rig, send, subscribe

pytestmark = pytest.mark.trio

JOBS: Final = "/queue/jobs"
BACKLOG: Final = 3_000
SLOW: Final = 5


async def backlog(rig: Rig) -> None:
    publisher = await rig.connect()
    await publisher.send(*[send(JOBS, str(number)) for number in range(BACKLOG - 1)], send(JOBS, "last", "r"))
    await publisher.receipt()


async def consumer(rig: Rig, **headers: str) -> Client:
    client = await rig.connect()
    await client.send(subscribe(JOBS, ack="client-individual", **headers))
    await client.receipt()
    return client


async def waiting(client: Client) -> list[str]:
    """The ids of all messages that have come, when everything decided so far has."""
    await client.send(send("/topic/none", "", "all"))
    await client.receipt()
    ids = [frame.head.headers["ack"] for frame in client.frames if frame.head.command == "MESSAGE"]
    client.frames.clear()
    return ids


async def settle(client: Client, ids: list[str]) -> None:
    await client.send(*[f"ACK\nid:{id}\n\n" for id in ids])


async def test_a_quick_consumer_gets_larger_rounds_and_slow_ones_lose_nothing_by_it(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        slow = [await consumer(rig) for _ in range(SLOW)]
        quick = await consumer(rig)
        await backlog(rig)
        held = [await waiting(client) for client in slow]
        rounds = []
        for _ in range(5):
            ids = await waiting(quick)
            rounds.append(len(ids))
            await settle(quick, ids)
            for client, mine in zip(slow, held, strict=True):
                await settle(client, mine[:1])
                came = await waiting(client)
                assert len(came) == 1, "what a slow one settles is replaced at once"
                mine[:1] = came

        assert [len(mine) for mine in held] == [100] * SLOW
        assert rounds == [100, 200, 400, 400, 400]


@pytest.mark.parametrize("headers", [{"prefetch_count": "100"}, {"credit": "100"}])
async def test_a_credit_that_was_asked_for_stays(autojump_clock: MockClock, headers: dict[str, str]) -> None:
    async with Rig().run() as rig:
        client = await consumer(rig, **headers)
        await backlog(rig)
        for _ in range(3):
            ids = await waiting(client)
            assert len(ids) == 100
            await settle(client, ids)


async def test_a_small_default_stays(autojump_clock: MockClock) -> None:
    async with Rig(limits={"prefetch_default": 10}).run() as rig:
        client = await consumer(rig)
        await backlog(rig)
        for _ in range(3):
            ids = await waiting(client)
            assert len(ids) == 10
            await settle(client, ids)
