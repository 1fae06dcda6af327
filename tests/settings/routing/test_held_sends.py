"""A SEND waits for the disk or for memory, and a queue that is bound to its destination is deleted meanwhile."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.node.rig import Client, Rig, eventually, send, stick
from tests.settings.routing.test_bindings import bind, consumed, publish, request
from tests.support.depths import depths

KEPT, GONE = "/queue/kept", "/queue/gone"
SOURCES = ["/fanout/f", "/exchange/f", "/topic/t"]


async def bound(rig: Rig, source: str) -> Client:
    """Two queues are bound to `source`, which was used before."""
    operator = await rig.connect()
    if source.startswith("/exchange/"):
        await request(operator, f"declare{source}", {"type": "fanout"})
    for queue in (KEPT, GONE):
        await bind(operator, source, queue)
    assert await publish(operator, source, "before") == "RECEIPT"
    assert depths(rig.alive) == {KEPT: 1, GONE: 1}
    return operator


@pytest.mark.parametrize("source", SOURCES)
async def test_a_send_that_waits_for_its_decision_is_copied_to_the_queues_that_are_left(
    source: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    async with rig.run():
        operator, sender = await bound(rig, source), await rig.connect()
        await sender.send(send(source, "first", "1"))
        await sender.receipt()
        has_room = trio.Event()
        monkeypatch.setattr(rig.alive.engine.pager, "slot", has_room.wait)
        await sender.send(send(source, "held", "2"))
        await wait_all_tasks_blocked()

        assert (await request(operator, f"delete{GONE}", force="true"))["changed"] == 1
        has_room.set()

        assert await sender.receipt() == "2"
        assert await consumed(operator, 3, KEPT) == [b"before", b"first", b"held"]
        await eventually(lambda: depths(rig.alive) == {})

    async with rig.run():
        assert depths(rig.alive) == {}
        assert GONE not in rig.alive.broker.queues.by_name


@pytest.mark.parametrize("source", SOURCES)
async def test_the_copy_of_a_send_that_waits_for_the_disk_ends_with_its_queue(
    source: str, autojump_clock: MockClock
) -> None:
    rig = Rig()
    async with rig.run():
        operator, sender = await bound(rig, source), await rig.connect()
        has_room = stick(rig)
        await sender.send(send(source, "held", "1"))
        await wait_all_tasks_blocked()
        await operator.send(send(f"/control/delete{GONE}", "", "deleted", force="true"))
        await wait_all_tasks_blocked()
        assert not sender.frames and not operator.frames
        has_room.set()

        assert (await sender.receipt(), await operator.receipt()) == ("1", "deleted")
        assert depths(rig.alive) == {KEPT: 2}

    async with rig.run():
        assert depths(rig.alive) == {KEPT: 2}
        assert GONE not in rig.alive.broker.queues.by_name
