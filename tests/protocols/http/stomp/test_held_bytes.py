"""Sessions of STOMP over requests: what the node holds of them, in both directions, counts in the memory budget."""

import trio
from trio.testing import MockClock

from qmq.protocols.http.stomp.long_poll_pipe import IDLE_SECONDS
from tests.node.rig import Rig, eventually, nothing_more, send
from tests.protocols.http.rig import web_rig
from tests.protocols.http.stomp.test_long_poll import connected

MIB = 1 << 20
SUBSCRIBE = b"SUBSCRIBE\nid:1\ndestination:/topic/news\nreceipt:s\n\n\0"
LIMITS = {"memory_bytes_max": 8 * MIB, "body_bytes_max": 2 * MIB}


async def publish(rig: Rig, size: int) -> None:
    sender = await rig.connect()
    await sender.send(send("/topic/news", "x" * size))
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
