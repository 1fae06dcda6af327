"""Clients that disconnect or break the protocol at the worst moment: no other client is affected."""

import pytest
import trio
from trio.testing import MockClock

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope
from qmq.gateways.stomp import StompGateway
from tests.node.rig import Rig, eventually, send, subscribe
from tests.support.depths import depths


async def test_a_client_may_get_something_at_every_moment_of_its_leaving(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        node = rig.alive
        envelope = Envelope("/topic/t", DestinationKind.TOPIC, b"", durable=False)

        async def publish_at_every_step() -> None:
            while True:
                out = Outcome()
                node.broker.send(envelope, b"x" * 4000, 0, out)
                node.engine.path.submit(out)
                await trio.lowlevel.checkpoint()

        for waiting in (0, 50):
            client = await rig.connect("10.0.0.2")
            await client.send(subscribe("/topic/t"))
            await client.receipt()
            for _ in range(waiting):
                out = Outcome()
                node.broker.send(envelope, b"x" * 4000, 0, out)
                node.engine.path.submit(out)
            async with trio.open_nursery() as nursery:
                rig.fabric.break_between("10.0.0.2", "127.0.0.1")
                nursery.start_soon(publish_at_every_step)
                while node.sessions:
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()


async def test_a_follower_that_breaks_off_while_it_reads_the_log_leaves_nothing_behind(
    autojump_clock: MockClock,
) -> None:
    async with Rig().run() as rig:
        writer, reader = await rig.connect(), await rig.connect("10.0.0.2")
        for _ in range(100):
            await writer.send(send("/fanout/f", "x" * 4000, "r"))
            await writer.receipt()
        await reader.send(subscribe("/fanout/f"))
        await eventually(lambda: rig.alive.session_parts.fanout_subscribers.reading == 1)
        await trio.sleep(1.0)

        rig.fabric.break_between("10.0.0.2", "127.0.0.1")

        await eventually(lambda: len(rig.alive.sessions) == 1)
        await eventually(lambda: rig.alive.session_parts.fanout_subscribers.reading == 0)


async def test_what_is_decided_before_a_bug_strikes_is_still_recorded(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    obey = StompGateway._obey

    def broken(self: StompGateway, frame, now_us: int, out) -> None:  # type: ignore[no-untyped-def]
        if frame.head.command == "BEGIN":
            raise ZeroDivisionError("a bug")
        obey(self, frame, now_us, out)

    monkeypatch.setattr(StompGateway, "_obey", broken)
    rig = Rig()
    async with rig.run():
        bad, good = await rig.connect(), await rig.connect()
        await bad.send(send("/queue/q", "decided"), "BEGIN\ntransaction:t\n\n")
        await bad.until_closed()

        await good.send(send("/queue/q", "after", "r"))
        assert await good.receipt() == "r"

    async with rig.run():
        assert depths(rig.alive)["/queue/q"] == 2


async def test_queue_messages_that_a_dropped_client_never_got_go_to_others(autojump_clock: MockClock) -> None:
    async with Rig(limits={"outbox_bytes_max": 200_000, "body_bytes_max": 50_000}).run() as rig:
        slow, writer = await rig.connect(), await rig.connect()
        await slow.send(subscribe("/topic/t"), subscribe("/queue/q", id="1"))
        await slow.receipt()
        await slow.receipt()
        for n in range(40):
            await writer.send(send("/queue/q", f"{n} {'x' * 4000}", "r"))
            await writer.receipt()
        for _ in range(60):
            await writer.send(send("/topic/t", "x" * 4000, "r"))
            await writer.receipt()
        got = [frame.body for frame in await slow.until_closed() if frame.head.headers.get("subscription") == "1"]

        await writer.send(subscribe("/queue/q"))
        await writer.receipt()

        expected = {b"%d" % n for n in range(40)} - {body.split()[0] for body in got}
        assert expected
        while expected:
            expected.discard((await writer.next("MESSAGE")).body.split()[0])


async def test_a_message_put_to_a_broken_connection_does_not_count_as_settled(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client, writer = await rig.connect("10.0.0.2"), await rig.connect()
        await client.send(subscribe("/queue/q"))
        await client.receipt()
        session = next(session for session in rig.alive.sessions.values() if session.peer_address == "10.0.0.2")

        # The writer found out, the reader has not yet.
        session.outbox.break_off()
        await writer.send(send("/queue/q", "job", "r"))
        await writer.receipt()
        client.pipe.close()

        await writer.send(subscribe("/queue/q"))
        assert await writer.messages(1) == [b"job"]
