"""The simulated network: what it delivers, what it holds back, and what a dead host can still do (nothing)."""

import random
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from qmq.environment import Pipe
from tests.support.network import CONNECT_SECONDS, Fabric

ANN, BOB = "127.0.0.1", "127.0.0.2"
PORT = 7


def run(main: Callable[[Fabric], Awaitable[None]], seed: int = 1) -> None:
    """Run `main` with a fabric on the jumping clock."""

    async def whole() -> None:
        fabric = Fabric(random.Random(seed))
        fabric.odd_chunks = 0.0
        with trio.fail_after(60):
            await main(fabric)

    trio.run(whole, clock=MockClock(autojump_threshold=0))


async def connected(fabric: Fabric) -> tuple[Pipe, Pipe]:
    """ANN's end and BOB's end of one connection."""
    listener = await fabric.network(BOB).listen(BOB, PORT, None)
    near = await fabric.network(ANN).connect(BOB, PORT, None, "")
    return near, await listener.accept()


async def read_all(pipe: Pipe) -> bytes:
    parts = []
    while data := await pipe.receive_some(1000):
        parts.append(data)
    return b"".join(parts)


async def is_silent(pipe: Pipe, seconds: float = 5) -> bool:
    with trio.move_on_after(seconds) as scope:
        await pipe.receive_some(1000)
    return scope.cancelled_caught


def test_bytes_arrive_in_order_and_later() -> None:
    async def main(fabric: Fabric) -> None:
        near, far = await connected(fabric)
        began = trio.current_time()
        for number in range(200):
            assert near.send_now(b"%d," % number) > 0
        near.end_sending()

        data = await read_all(far)

        assert data == b"".join(b"%d," % number for number in range(200))
        assert trio.current_time() >= began + fabric.latency_seconds

    run(main)


def test_calls_that_handle_a_part_lose_nothing() -> None:
    async def main(fabric: Fabric) -> None:
        fabric.odd_chunks = 1.0
        near, far = await connected(fabric)
        data = bytes(range(256)) * 20

        async def send() -> None:
            sent = near.send_now(data)
            assert sent < len(data)
            await near.send_all(data[sent:])
            near.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            assert await read_all(far) == data

    run(main)


def test_a_stopped_reader_holds_its_sender_up() -> None:
    async def main(fabric: Fabric) -> None:
        near, far = await connected(fabric)

        taken = near.send_now(bytes(2 * fabric.buffer_bytes))

        assert taken == fabric.buffer_bytes
        assert near.send_now(b"more") == 0
        with trio.move_on_after(5) as waiting:
            await near.send_all(b"more")
        assert waiting.cancelled_caught
        assert await far.receive_some(1000)
        assert near.send_now(b"more") == 4

    run(main)


def test_a_cut_is_silent_and_ends_in_delivery_or_a_reset() -> None:
    seen = set()

    async def main(fabric: Fabric) -> None:
        near, far = await connected(fabric)
        fabric.cut(ANN, BOB)
        near.send_now(b"stalled")
        assert await is_silent(far)
        far.send_now(b"the other way is open")
        assert await near.receive_some(1000) == b"the other way is open"

        fabric.heal(ANN, BOB)

        try:
            seen.add(await far.receive_some(1000))
        except trio.BrokenResourceError:
            seen.add(b"reset")
            with pytest.raises(trio.BrokenResourceError):
                await near.send_all(b"more")

    for seed in range(20):
        run(main, seed)
    assert seen == {b"stalled", b"reset"}


def test_dialling_into_a_cut_fails_at_once_or_after_a_while() -> None:
    waited = set()

    async def main(fabric: Fabric) -> None:
        await fabric.network(BOB).listen(BOB, PORT, None)
        fabric.cut(BOB, ANN)
        began = trio.current_time()
        with pytest.raises(OSError):
            await fabric.network(ANN).connect(BOB, PORT, None, "")
        waited.add(trio.current_time() >= began + CONNECT_SECONDS)

    for seed in range(20):
        run(main, seed)
    assert waited == {True, False}


def test_a_port_without_a_listener_refuses() -> None:
    async def main(fabric: Fabric) -> None:
        with pytest.raises(ConnectionRefusedError):
            await fabric.network(ANN).connect(BOB, PORT, None, "")
        listener = await fabric.network(BOB).listen(BOB, PORT, None)
        with pytest.raises(OSError):
            await fabric.network(BOB).listen(BOB, PORT, None)
        listener.close()
        with pytest.raises(ConnectionRefusedError):
            await fabric.network(ANN).connect(BOB, PORT, None, "")

    run(main)


def test_a_broken_connection_loses_what_was_on_its_way() -> None:
    async def main(fabric: Fabric) -> None:
        near, far = await connected(fabric)
        near.send_now(b"lost")

        assert fabric.break_between(BOB, ANN) == 1

        for pipe in (near, far):
            assert pipe.send_now(b"x") == 0
            with pytest.raises(trio.BrokenResourceError):
                await pipe.receive_some(1000)
            with pytest.raises(trio.BrokenResourceError):
                await pipe.send_all(b"x")

    run(main)


def test_closing_ends_the_other_side_after_what_was_sent() -> None:
    async def main(fabric: Fabric) -> None:
        near, far = await connected(fabric)
        near.send_now(b"last words")
        near.close()
        near.close()

        assert await read_all(far) == b"last words"
        assert await far.receive_some(1000) == b""
        with pytest.raises(trio.BrokenResourceError):
            await far.send_all(b"too late")
        with pytest.raises(trio.ClosedResourceError):
            await near.receive_some(1000)

    run(main)


def test_closing_wakes_the_own_reader() -> None:
    async def main(fabric: Fabric) -> None:
        near, _ = await connected(fabric)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def read() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await near.receive_some(1000)

            await trio.testing.wait_all_tasks_blocked()
            near.close()

    run(main)


def test_a_frozen_host_loses_nothing() -> None:
    async def main(fabric: Fabric) -> None:
        near, far = await connected(fabric)
        fabric.freeze(BOB)
        near.send_now(b"later")
        assert await is_silent(far)

        fabric.thaw(BOB)

        assert await far.receive_some(1000) == b"later"

    run(main)


def test_a_dead_host_can_do_nothing_and_its_peer_notices() -> None:
    async def main(fabric: Fabric) -> None:
        near, far = await connected(fabric)
        fabric.kill(BOB, silently=False)

        assert far.send_now(b"from the grave") == len(b"from the grave")
        far.close()

        with pytest.raises(trio.BrokenResourceError):
            await near.receive_some(1000)

    run(main)


def test_a_host_without_power_is_silent_until_it_is_back() -> None:
    async def main(fabric: Fabric) -> None:
        near, far = await connected(fabric)
        far.send_now(b"already on its way")
        fabric.kill(BOB, silently=True)
        far.send_now(b"from the grave")
        far.close()
        assert await near.receive_some(1000) == b"already on its way"
        assert await is_silent(near)

        fabric.revive(BOB)

        with pytest.raises(trio.BrokenResourceError):
            await near.receive_some(1000)

    run(main)


def test_a_slow_line_brings_bytes_at_its_rate_in_pieces_and_what_stands_in_it_when_it_ends_comes_at_once() -> None:
    takeover_sync: list[tuple[float, int]] = []

    async def main() -> None:
        fabric = Fabric(random.Random(1))
        fabric.odd_chunks = 0.0
        listener = fabric.listen(("b", 1))
        fabric.slow_down("a", "b", bytes_per_second=100, piece_bytes=10)
        pipe = await fabric.dial("a", "b", 1)
        far = await listener.accept()
        await pipe.send_all(bytes(100))
        began = trio.current_time()
        for _ in range(3):
            data = await far.receive_some(1000)
            takeover_sync.append((trio.current_time() - began, len(data)))
        fabric.speed_up("a", "b")
        data = await far.receive_some(1000)
        takeover_sync.append((trio.current_time() - began, len(data)))

    trio.run(main, clock=MockClock(autojump_threshold=0))

    assert [size for _, size in takeover_sync] == [10, 10, 10, 70]
    assert [round(at, 1) for at, _ in takeover_sync] == [0.1, 0.2, 0.3, 0.3]
