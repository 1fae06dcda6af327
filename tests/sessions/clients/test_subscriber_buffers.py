"""Subscribers that declared how far they may fall behind: only they are affected by it."""

from types import SimpleNamespace
from typing import cast

import pytest
from trio.testing import MockClock

from qmq.broker.consumers.buffer import Buffer, Overflow
from qmq.broker.consumers.subscription import Ack, Subscription
from qmq.config import DestinationPolicy, DestinationSettings
from qmq.environment import Pipe
from qmq.gateways.encode import STOMP_ENCODERS
from qmq.sessions.clients.outbox import NO_OWNER, ClientOutbox
from qmq.sessions.clients.session import ClientSession
from qmq.sessions.clients.subscriber_buffers import STRAIGHT_BYTES_MAX, SubscriberBuffers
from qmq.wire.stomp import Frame, Version
from tests.node.rig import Client, Rig, eventually, send, subscribe

BODY_BYTES = 10_000
SENT = 200
"""Far more than the network between, the outbox and any buffer below hold."""


async def publish(writer: Client, destination: str, count: int = SENT) -> None:
    for n in range(count):
        await writer.send(send(destination, f"{n} {'x' * BODY_BYTES}", "r"))
        await writer.receipt()


async def heard(client: Client, last: int) -> list[tuple[int, int]]:
    """(number, how many were dropped before it) of every message up to `last`."""
    got: list[tuple[int, int]] = []
    while not got or got[-1][0] != last:
        frame = await client.next("MESSAGE")
        got.append((int(frame.body.split()[0]), int(frame.head.headers.get("dropped", "0"))))
    return got


def holes(got: list[tuple[int, int]]) -> bool:
    """Whether every hole is told by the message right after it, exactly."""
    position = 0
    for number, missed in got:
        if number != position + missed:
            return False
        position = number + 1
    return True


async def test_a_policy_lets_slow_subscribers_of_its_topics_lose_the_oldest(autojump_clock: MockClock) -> None:
    policies = (DestinationPolicy(pattern="/topic/prices.*", buffer_messages=10),)
    async with Rig(destinations=DestinationSettings(policies=policies)).run() as rig:
        slow, writer, ended = await rig.connect("10.0.0.2"), await rig.connect(), await rig.connect("10.0.0.3")
        await slow.send(subscribe("/topic/prices.eu"), subscribe("/topic/prices.#", "pattern"))
        await ended.send(subscribe("/topic/prices.eu", overflow="disconnect", buffer_messages="10"))
        for client in (slow, slow, ended):
            await client.receipt()

        await publish(writer, "/topic/prices.eu")

        frames = await ended.until_closed()
        assert frames[-1].head.headers["error-code"] == "slow-consumer"
        got: dict[str, list[tuple[int, int]]] = {"0": [], "pattern": []}
        while not all(rows and rows[-1][0] == SENT - 1 for rows in got.values()):
            headers = (frame := await slow.next("MESSAGE")).head.headers
            got[headers["subscription"]].append((int(frame.body.split()[0]), int(headers.get("dropped", "0"))))
        assert all(map(holes, got.values()))
        assert all(max(dropped for _, dropped in rows) > SENT // 2 for rows in got.values())


async def test_the_policy_of_other_topics_changes_nothing(autojump_clock: MockClock) -> None:
    policies = (DestinationPolicy(pattern="/topic/prices.*", buffer_messages=10),)
    limits = {"outbox_bytes_max": 200_000, "body_bytes_max": 50_000}
    async with Rig(destinations=DestinationSettings(policies=policies), limits=limits).run() as rig:
        slow, writer = await rig.connect("10.0.0.2"), await rig.connect()
        await slow.send(subscribe("/topic/#"))
        await slow.receipt()

        await publish(writer, "/topic/prices.eu")

        assert (await slow.until_closed())[-1].head.headers["error-code"] == "slow-consumer"


async def test_a_client_that_reads_gets_everything_straight_and_unmarked(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        reader, writer = await rig.connect(), await rig.connect()
        await reader.send(subscribe("/topic/t", buffer_messages="1", overflow="drop-oldest"))
        await reader.receipt()

        for n in range(100):
            await writer.send(send("/topic/t", f"{n}"))
            frame = await reader.next("MESSAGE")
            assert (frame.body, "dropped" in frame.head.headers) == (b"%d" % n, False)
        assert rig.alive.session_parts.buffers.dropped == 0


def test_more_than_an_outbox_should_hold_flows_while_the_socket_takes_it() -> None:
    class Taking:
        taken = 0

        def send_now(self, data: bytes) -> int:
            self.taken += len(data)
            return len(data)

    pipe = Taking()
    outbox = ClientOutbox(cast(Pipe, pipe), NO_OWNER)
    session = SimpleNamespace(outbox=outbox, encoder=STOMP_ENCODERS[Version.V12], buffered=None, buffered_bytes=0)
    subscription = Subscription(1, "s", "/topic/t", Ack.AUTO, 1, b"")
    subscription.buffer = Buffer(1, 1, Overflow.DISCONNECT)
    rests = [b"x" * 50_000] * 50

    SubscriberBuffers(1 << 20).deliver(cast(ClientSession, session), subscription, rests)
    outbox.flush()

    assert pipe.taken == 50 * 50_000


async def test_a_burst_is_no_slowness(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        reader, writer = await rig.connect(), await rig.connect()
        await reader.send(subscribe("/topic/t", buffer_messages="1", overflow="disconnect"))
        await reader.receipt()

        await writer.send(*[send("/topic/t", f"{n}") for n in range(1000)])

        assert [int(body) for body in await reader.messages(1000)] == list(range(1000))


@pytest.mark.parametrize("kind", ["topic", "fanout"])
async def test_the_oldest_are_dropped_and_the_newest_arrive(kind: str, autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        slow, writer = await rig.connect(), await rig.connect()
        await slow.send(subscribe(f"/{kind}/t", buffer_messages="7", overflow="drop-oldest", x_stream_offset="next"))
        await slow.receipt()

        await publish(writer, f"/{kind}/t")
        got = await heard(slow, SENT - 1)

        assert holes(got)
        assert [number for number, _ in got[-7:]] == list(range(SENT - 7, SENT))
        missed = sum(missed for _, missed in got)
        assert missed == rig.alive.session_parts.buffers.dropped == SENT - len(got) > SENT // 2


@pytest.mark.parametrize("kind", ["topic", "fanout"])
async def test_the_newest_are_dropped_and_what_came_first_arrives(kind: str, autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        slow, writer = await rig.connect(), await rig.connect()
        await slow.send(subscribe(f"/{kind}/t", buffer_bytes="50000", overflow="drop-newest", x_stream_offset="next"))
        await slow.receipt()

        await publish(writer, f"/{kind}/t")
        dropped = rig.alive.session_parts.buffers.dropped
        kept = SENT - dropped
        first = await heard(slow, kept - 1)
        await publish(writer, f"/{kind}/t", 2)
        after, last = await slow.next("MESSAGE"), await slow.next("MESSAGE")

        assert first == [(n, 0) for n in range(kept)]
        assert (after.body.split()[0], after.head.headers["dropped"]) == (b"0", str(dropped))
        assert "dropped" not in last.head.headers


@pytest.mark.parametrize("kind", ["topic", "fanout"])
async def test_a_subscriber_that_asked_for_it_is_disconnected_with_bound_and_subscription(
    kind: str, autojump_clock: MockClock
) -> None:
    async with Rig(limits={"farewell_seconds": 5.0}).run() as rig:
        slow, writer = await rig.connect("10.0.0.2"), await rig.connect()
        await slow.send(subscribe(f"/{kind}/t", id="s", buffer_messages="3", x_stream_offset="next"))
        await slow.receipt()

        await publish(writer, f"/{kind}/t", 100)
        frames = await slow.until_closed()

        error: Frame = frames[-1]
        assert error.head.headers["error-code"] == "slow-consumer"
        assert f"subscription s to /{kind}/t has its most of 3 messages" in error.head.headers["message"]
        await writer.send(send("/topic/other", "", "alive"))
        assert await writer.receipt() == "alive"


async def test_a_slow_subscription_does_not_cost_the_others_of_its_connection_their_messages(
    autojump_clock: MockClock,
) -> None:
    limits = {"outbox_bytes_max": 600_000, "body_bytes_max": 20_000}
    async with Rig(limits=limits).run() as rig:
        slow, writer = await rig.connect("10.0.0.2"), await rig.connect()
        await slow.send(
            subscribe("/topic/flood", id="f", buffer_messages="5", overflow="drop-oldest"),
            subscribe("/topic/quiet", id="q"),
        )
        await slow.receipt()
        await slow.receipt()
        session = next(session for session in rig.alive.sessions.values() if session.peer_address == "10.0.0.2")

        await publish(writer, "/topic/flood")
        await writer.send(send("/topic/quiet", "heard", "r"))
        await writer.receipt()

        assert session.outbox.size <= STRAIGHT_BYTES_MAX + 2 * BODY_BYTES
        frames = [await slow.next("MESSAGE") for _ in range(SENT - rig.alive.session_parts.buffers.dropped + 1)]
        assert [frame.body for frame in frames if frame.head.headers["subscription"] == "q"] == [b"heard"]


async def test_all_buffers_of_a_connection_together_are_bounded(autojump_clock: MockClock) -> None:
    limits = {"outbox_bytes_max": 400_000, "body_bytes_max": 20_000}
    async with Rig(limits=limits).run() as rig:
        slow, writer = await rig.connect("10.0.0.2"), await rig.connect()
        for number in range(5):
            await slow.send(
                subscribe(f"/topic/{number}", id=f"{number}", buffer_bytes="300000", overflow="drop-oldest")
            )
            await slow.receipt()
        session = next(session for session in rig.alive.sessions.values() if session.peer_address == "10.0.0.2")

        for number in range(5):
            await publish(writer, f"/topic/{number}", 100)

        waiting = sum(subscription.buffer.bytes for subscription in session.buffered or () if subscription.buffer)
        assert 200_000 < waiting == session.buffered_bytes <= 400_000


async def test_a_subscription_that_ends_takes_what_waits_for_it_along(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        slow, writer = await rig.connect("10.0.0.2"), await rig.connect()
        await slow.send(subscribe("/topic/t", id="t", buffer_messages="50", overflow="drop-oldest"))
        await slow.receipt()
        session = next(session for session in rig.alive.sessions.values() if session.peer_address == "10.0.0.2")
        await publish(writer, "/topic/t")
        assert session.buffered_bytes

        await slow.send("UNSUBSCRIBE\nid:t\nreceipt:u\n\n")
        while await slow.receipt() != "u":
            pass

        await eventually(lambda: not session.buffered)
        assert session.buffered_bytes == 0


async def test_slow_subscriptions_are_seen_in_the_status(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        slow, writer = await rig.connect("10.0.0.2"), await rig.connect()
        await slow.send(subscribe("/topic/t", buffer_messages="5", overflow="drop-oldest"))
        await slow.receipt()

        await publish(writer, "/topic/t")

        status = await rig.alive.admin.status.read()
        (row,) = status["slow"]
        assert (row["destination"], row["messages"]) == ("/topic/t", 5)
        assert row["dropped"] == status["dropped"] > 0


async def test_a_fanout_with_a_buffer_reads_the_past_whole(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        writer = await rig.connect()
        await publish(writer, "/fanout/f")
        slow = await rig.connect()

        await slow.send(subscribe("/fanout/f", buffer_messages="1", overflow="drop-oldest"))

        assert await heard(slow, SENT - 1) == [(n, 0) for n in range(SENT)]


async def test_a_header_named_dropped_cannot_be_forged(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(subscribe("/topic/t"), send("/topic/t", "x", dropped="5", mine="6"))

        headers = (await client.next("MESSAGE")).head.headers

        assert headers["mine"] == "6" and "dropped" not in headers
