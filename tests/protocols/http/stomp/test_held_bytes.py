"""Sessions of STOMP over requests: what the node holds of them, in both directions, counts in the memory budget."""

import trio
from trio.testing import MockClock

from qmq.protocols.http.stomp.long_poll import SWEEP_SECONDS
from qmq.protocols.http.stomp.long_poll_pipe import IDLE_SECONDS
from tests.node.rig import Rig, eventually, nothing_more, send
from tests.protocols.http.rig import web_rig
from tests.protocols.http.stomp.test_long_poll import Poller, connected

MIB = 1 << 20
SUBSCRIBE = b"SUBSCRIBE\nid:1\ndestination:/topic/news\nreceipt:s\n\n\0"
LIMITS = {"memory_bytes_max": 8 * MIB, "body_bytes_max": 2 * MIB}


async def publish(rig: Rig, size: int, topic: str = "news") -> None:
    sender = await rig.connect()
    await sender.send(send(f"/topic/{topic}", "x" * size))
    await nothing_more(sender)
    sender.pipe.close()


async def test_frames_that_wait_for_a_long_poll_are_counted_until_they_are_taken(autojump_clock: MockClock) -> None:
    async with web_rig(limits=LIMITS).run() as rig:
        poller = await connected(rig)
        await poller.send(SUBSCRIBE)
        await poller.until("RECEIPT")

        await publish(rig, MIB)

        assert rig.alive.session_parts.host.budget.bytes >= MIB
        assert len((await poller.until("MESSAGE")).body) == MIB
        await eventually(lambda: rig.alive.session_parts.host.budget.bytes == 0)


async def test_frames_that_no_poll_takes_are_counted_until_the_session_ends(autojump_clock: MockClock) -> None:
    async with web_rig(limits=LIMITS).run() as rig:
        poller = await connected(rig)
        await poller.send(SUBSCRIBE)
        await poller.until("RECEIPT")
        await publish(rig, MIB)
        assert rig.alive.session_parts.host.budget.bytes >= MIB

        await trio.sleep(IDLE_SECONDS + 1)

        await eventually(lambda: rig.alive.session_parts.host.budget.bytes == 0)


async def left(rig: Rig) -> Poller:
    """One whose session has ended while a MiB waits for it."""
    poller = await connected(rig)
    await poller.send(SUBSCRIBE)
    await poller.until("RECEIPT")
    await publish(rig, MIB)
    await poller.send(b"DISCONNECT\n\n\0")
    await eventually(lambda: not rig.alive.broker.sessions)
    return poller


async def test_what_a_session_has_left_for_its_client_is_counted_until_it_is_taken(autojump_clock: MockClock) -> None:
    async with web_rig(limits=LIMITS).run() as rig:
        poller = await left(rig)

        assert rig.alive.session_parts.host.budget.bytes >= MIB
        assert len((await poller.until("MESSAGE")).body) == MIB
        await eventually(lambda: rig.alive.session_parts.host.budget.bytes == 0)


async def test_what_a_session_has_left_is_counted_until_its_client_is_silent_for_too_long(
    autojump_clock: MockClock,
) -> None:
    async with web_rig(limits=LIMITS).run() as rig:
        await left(rig)

        await trio.sleep(IDLE_SECONDS - 1)
        assert rig.alive.session_parts.host.budget.bytes >= MIB
        await trio.sleep(SWEEP_SECONDS + 1)

        assert rig.alive.session_parts.host.budget.bytes == 0


async def test_what_ended_sessions_have_left_makes_room_for_clients_that_are_connected(
    autojump_clock: MockClock,
) -> None:
    async with web_rig(limits=LIMITS).run() as rig:
        pollers = [await left(rig) for _ in range(5)]
        follower = await connected(rig)
        await follower.send(SUBSCRIBE.replace(b"news", b"more"))
        await follower.until("RECEIPT")

        await publish(rig, MIB, "more")

        await eventually(lambda: rig.alive.session_parts.host.budget.ended == 1)
        assert len((await follower.until("MESSAGE")).body) == MIB
        statuses = [(await poller.receives.get(poller.path)).status for poller in pollers]
        assert sorted(statuses) == [200] * 4 + [404]
