"""A full disk has room again when what filled it is consumed or has expired, also if nothing more is written.

Expiry that needs room itself, for dead letters, waits quietly.
"""

from itertools import count
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.config import DestinationPolicy, DestinationSettings, StorageSettings
from tests.engine.commit.test_full_disk import codes, make_room, take_all_room
from tests.fakes.disk import MemoryDisk
from tests.node.rig import Rig, eventually, send, subscribe
from tests.support.depths import depths

RESERVE = 8 << 20
LIVED_SECONDS = 1000
STORAGE = StorageSettings(disk_reserve_bytes=RESERVE, checkpoint_bytes=512 << 10)
KEPT_AS_LETTERS = DestinationSettings(policies=(DestinationPolicy(pattern="/queue/q", dead_letter="/queue/dead"),))


class RowsDisk(MemoryDisk):
    """Rows of the queue store take room, too."""

    def used_bytes(self) -> int:
        states: list[Any] = [state for state in self.tables.values() if hasattr(state, "expiring")]
        partitions = [one for state in states for queue in list(state.queues.values()) for one in list(queue.values())]
        return super().used_bytes() + sum(one.body_bytes for one in partitions)


def rig_of(**settings: Any) -> Rig:
    rig = Rig(storage=STORAGE, limits={"queue_messages_in_memory_max": 1000}, **settings)
    rig.disk = RowsDisk(RESERVE + (6 << 20))
    return rig


async def fill(rig: Rig, **headers: str) -> int:
    """Send until the disk is full; how many messages were taken."""
    client = await rig.connect(on_error="keep-open")
    for number in count():
        await client.send(send("/queue/q", "x" * 20_000, str(number), **headers))
        if (await client.any()).head.command == "ERROR":
            return number
    raise AssertionError


async def test_what_expires_on_a_full_disk_makes_room(autojump_clock: MockClock) -> None:
    rig = rig_of()
    async with rig.run():
        await fill(rig, ttl=str(LIVED_SECONDS * 1000))
        assert "disk-full" in codes(rig)

        await trio.sleep(LIVED_SECONDS)
        await eventually(lambda: depths(rig.alive) == {})
        await eventually(lambda: not rig.alive.broker.send_limits.disk_full)

        assert not codes(rig) & {"disk-full", "checkpoint"}


async def test_what_is_consumed_on_a_full_disk_makes_room(autojump_clock: MockClock) -> None:
    rig = rig_of()
    async with rig.run():
        taken = await fill(rig)
        worker = await rig.connect()
        await worker.send(subscribe("/queue/q", ack="client-individual"))
        await worker.consume(taken)

        await eventually(lambda: not rig.alive.broker.send_limits.disk_full)

        assert depths(rig.alive) == {}


async def test_dead_letters_of_what_expires_wait_for_room_without_a_busy_loop(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rig_of(destinations=KEPT_AS_LETTERS)
    async with rig.run():
        taken = await fill(rig, ttl=str(LIVED_SECONDS * 1000))
        take_all_room(rig)
        await trio.sleep(LIVED_SECONDS)
        looks: list[float] = []
        expired, checkpoints = rig.alive.store.queues.expired, rig.alive.engine.checkpoints.count
        written = rig.disk.bytes_written

        def counted(*asked: Any) -> Any:
            looks.append(trio.current_time())
            return expired(*asked)

        monkeypatch.setattr(rig.alive.store.queues, "expired", counted)
        await trio.sleep(60)

        assert len(looks) <= 60
        assert (rig.alive.engine.checkpoints.count, rig.disk.bytes_written) == (checkpoints, written)
        assert depths(rig.alive) == {"/queue/q": taken}
        make_room(rig)
        await eventually(lambda: depths(rig.alive) == {"/queue/dead": taken})
