"""Fanout subscribers: their state after they leave, the messages that they miss, and their cost to others."""

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from qmq.sessions.delivery import fanout_subscribers
from qmq.sessions.delivery.fanout_subscribers import READS_AT_ONCE
from qmq.storage.fanouts.reader import FanoutPage
from tests.node.rig import Rig, eventually, send, subscribe


async def test_subscribers_of_fanouts_without_messages_are_forgotten(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        for n in range(20):
            await client.send(
                subscribe(f"/fanout/{n}", id=f"a{n}"),
                subscribe(f"/fanout/{n}", id=f"b{n}", x_stream_offset="next"),
                f"UNSUBSCRIBE\nid:a{n}\nreceipt:u\n\n",
            )
            for _ in range(3):
                await client.receipt()
        await client.send("DISCONNECT\nreceipt:bye\n\n")
        await client.until_closed()

        await eventually(lambda: not rig.alive.sessions and not rig.alive.session_parts.fanout_subscribers.reading)
        assert rig.alive.session_parts.fanout_subscribers.live == 0


async def test_next_includes_what_the_same_client_sends_right_after(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(
            send("/fanout/f", "before"),
            subscribe("/fanout/f", x_stream_offset="next"),
            send("/fanout/f", "after"),
        )

        assert await client.messages(1) == [b"after"]


async def test_a_log_that_cannot_be_read_ends_its_reader_and_nothing_else(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig().run() as rig:
        reader, other = await rig.connect(), await rig.connect()

        def unreadable(name: str, position: object, bytes_max: int) -> object:
            raise OSError(24, "too many open files")

        monkeypatch.setattr(rig.alive.store, "fanout_page", unreadable)
        await reader.send(subscribe("/fanout/f"))
        frames = await reader.until_closed()

        assert frames[-1].head.headers["error-code"] == "log-unreadable"
        await other.send(send("/queue/q", "x", "r"))
        assert await other.receipt() == "r"


async def test_what_is_committed_while_the_log_is_read_reaches_the_reader_once(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        environment = rig.alive.environment
        run_blocking = environment._run_blocking
        reader, sender = await rig.connect(), await rig.connect()
        await sender.send(send("/fanout/f", "before", "r"))
        await sender.receipt()
        read, go_on = trio.Event(), trio.Event()

        async def held(call: Callable[[], object]) -> object:
            found = await run_blocking(call)
            if isinstance(found, FanoutPage):
                read.set()
                await go_on.wait()
            return found

        environment._run_blocking = held  # type: ignore[assignment]
        await reader.send(subscribe("/fanout/f", x_stream_offset="first"))
        await read.wait()
        await sender.send(send("/fanout/f", "during", "r"))
        await sender.receipt()
        go_on.set()
        assert await reader.messages(2) == [b"before", b"during"]
        await sender.send(send("/fanout/f", "after"))

        assert await reader.messages(1) == [b"after"]


async def test_many_readers_leave_worker_threads_to_the_commits(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        node = rig.alive
        run_blocking = node.environment._run_blocking
        now = most = 0

        async def counted(call: Callable[[], object]) -> object:
            nonlocal now, most
            now += 1
            most = max(most, now)
            try:
                return await run_blocking(call)
            finally:
                now -= 1

        node.environment._run_blocking = counted  # type: ignore[assignment]
        clients = [await rig.connect() for _ in range(5 * READS_AT_ONCE)]
        for client in clients:
            await client.send(subscribe("/fanout/f"))
        for client in clients:
            await client.receipt()
        await eventually(lambda: not node.session_parts.fanout_subscribers.reading)

        assert now == 0
        assert READS_AT_ONCE <= most <= READS_AT_ONCE + 2


async def test_a_waiting_reader_gets_nothing_twice_when_the_journal_drops_where_it_stood(
    autojump_clock: MockClock,
) -> None:
    bodies = [str(number) * 100_000 for number in range(10, 24)]
    async with Rig(limits={"subscriber_buffer_bytes_default": 2000}).run() as rig:
        node = rig.alive
        journal, run_blocking = node.store.journal, node.environment._run_blocking
        turn = trio.Event()

        async def run_in_turn(call: Callable[[], object]) -> object:
            if getattr(call, "func", None) is fanout_subscribers._start:
                await turn.wait()
            return await run_blocking(call)

        slow, writer = await rig.connect(), await rig.connect()
        await slow.send(subscribe("/fanout/f"))
        await slow.receipt()
        await eventually(lambda: node.session_parts.fanout_subscribers.live == 1)
        node.environment._run_blocking = run_in_turn  # type: ignore[assignment]
        for body in bodies:
            await writer.send(send("/fanout/f", body, "r"))
            await writer.receipt()
        assert node.session_parts.fanout_subscribers.reading

        await node.engine.checkpoints.checkpoint()
        journal.drop_before(node.store.checkpoint_position)
        assert journal.start > len(bodies[0])
        turn.set()
        await writer.send(send("/fanout/f", "last"))

        assert [body.decode() for body in await slow.messages(len(bodies) + 1)] == [*bodies, "last"]
