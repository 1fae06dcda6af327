"""Retention of fanouts on a node where nothing happens: what is too old goes, and a node that holds nothing sleeps."""

import trio
from trio.testing import MockClock

from qmq.config import DestinationPolicy, DestinationSettings
from tests.node.rig import Rig, send, subscribe

HOUR = 3600.0


def keeping(seconds: float, pattern: str = "/fanout/brief*") -> DestinationSettings:
    return DestinationSettings(policies=(DestinationPolicy(pattern=pattern, retention_seconds=seconds),))


async def heard(rig: Rig, destination: str) -> list[bytes]:
    """What a subscriber that begins now gets before a message that is sent after it."""
    client = await rig.connect()
    await client.send(subscribe(destination), send(destination, "end"))
    found: list[bytes] = []
    while b"end" not in found:
        found += await client.messages(1)
    return found[:-1]


async def test_what_is_too_old_is_dropped_although_nothing_happens(autojump_clock: MockClock) -> None:
    async with Rig(destinations=keeping(HOUR)).run() as rig:
        client = await rig.connect()
        await client.send(send("/fanout/brief", "old", "r1"), send("/fanout/long", "kept", "r2"))
        await client.receipt()
        await client.receipt()

        await trio.sleep(0.9 * HOUR)
        assert await heard(rig, "/fanout/brief") == [b"old"]
        await trio.sleep(2 * HOUR)

        assert await heard(rig, "/fanout/brief") == []
        assert await heard(rig, "/fanout/long") == [b"kept"]


async def test_a_node_whose_fanouts_are_empty_makes_no_checkpoints(autojump_clock: MockClock) -> None:
    async with Rig(destinations=keeping(HOUR)).run() as rig:
        client = await rig.connect()
        await client.send(send("/fanout/brief", "old", "r1"))
        await client.receipt()
        await trio.sleep(3 * HOUR)
        made = rig.alive.engine.checkpoints.count
        assert made

        await trio.sleep(100 * HOUR)

        assert rig.alive.engine.checkpoints.count == made


async def test_retention_goes_on_after_a_start(autojump_clock: MockClock) -> None:
    rig = Rig(destinations=keeping(HOUR))
    async with rig.run():
        client = await rig.connect()
        await client.send(send("/fanout/brief", "old", "r1"))
        await client.receipt()
        await client.send("DISCONNECT\nreceipt:bye\n\n")
        await client.until_closed()
    async with rig.run():
        assert await heard(rig, "/fanout/brief") == [b"old"]

        await trio.sleep(3 * HOUR)

        assert await heard(rig, "/fanout/brief") == []
