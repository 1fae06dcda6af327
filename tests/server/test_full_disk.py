"""A disk without room: what is refused, what goes on, and how the node finds out that there is room again."""

from collections.abc import Mapping

import pytest
from trio.testing import MockClock

from qmq.config import StorageSettings
from qmq.dots import Vector
from qmq.errors import DiskFull
from qmq.storage.ports import Retention
from tests.server.rig import Rig, eventually, send
from tests.support.depths import depths


async def test_a_checkpoint_without_room_is_tried_again_and_ends_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(storage=StorageSettings(checkpoint_bytes=4096))
    async with rig.run():
        store = rig.alive.store
        checkpoint = store.checkpoint
        refusals = 3

        def short_of_room(
            end: int, now_us: int, members: Mapping[str, Vector], retention: Mapping[str, Retention]
        ) -> object:
            nonlocal refusals
            if refusals:
                refusals -= 1
                raise DiskFull("no room for a checkpoint")
            return checkpoint(end, now_us, members, retention)

        monkeypatch.setattr(store, "checkpoint", short_of_room)
        client = await rig.connect()
        for n in range(20):
            await client.send(send("/queue/q", "x" * 1000, f"r{n}"))
            assert await client.receipt() == f"r{n}"

        await eventually(lambda: rig.alive.checkpoints.count > 0)
        assert "checkpoint" in {alarm["code"] for alarm in rig.alive.alarms.list()}
        await client.send(send("/queue/q", "x", "still"))
        assert await client.receipt() == "still"


async def test_a_stop_on_a_full_disk_is_orderly_and_loses_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    async with rig.run():

        def short_of_room(
            end: int, now_us: int, members: Mapping[str, Vector], retention: Mapping[str, Retention]
        ) -> object:
            raise DiskFull("no room for a checkpoint")

        monkeypatch.setattr(rig.alive.store, "checkpoint", short_of_room)
        client = await rig.connect()
        await client.send(send("/queue/q", "job", "r"))
        await client.receipt()

    async with rig.run():
        assert depths(rig.alive)["/queue/q"] == 1


async def test_messages_are_taken_again_once_somebody_made_room(autojump_clock: MockClock) -> None:
    rig = Rig(storage=StorageSettings(disk_reserve_bytes=1 << 20))
    rig.disk.capacity_bytes = 1 << 20
    async with rig.run():
        client = await rig.connect(on_error="keep-open")
        await eventually(lambda: rig.alive.broker.disk_full)
        await client.send(send("/queue/q", "more", "refused"))
        assert (await client.next("ERROR")).head.headers["error-code"] == "disk-full"

        rig.disk.capacity_bytes = rig.disk.used_bytes() + (4 << 20)

        await eventually(lambda: not rig.alive.broker.disk_full)
        await client.send(send("/queue/q", "more", "taken"))
        assert await client.receipt() == "taken"
