"""The deepest queues are found in turns, in memory and in the store, and a slow store holds no scrape up for long."""

from functools import partial
from typing import Any

import trio
from trio.testing import MockClock

from qmq.engine.runtime.single_flight import PAUSE_FACTOR
from qmq.protocols.http.samples import PAUSE_SECONDS, QUEUES_SHOWN, WAIT_SECONDS, Samples
from tests.node.rig import Rig, eventually, send, subscribe


def samples_of(rig: Rig) -> Samples:
    samples = rig.alive.protocols.of("http").shared.samples
    assert isinstance(samples, Samples)
    return samples


def shown(samples: Samples) -> dict[str, int]:
    return {one.name: one.messages for one in samples.queues}


def fill(rig: Rig, depths: dict[str, int]) -> None:
    """Queues with so many messages, as far as counters can say so."""
    for name, messages in depths.items():
        rig.alive.broker.queues.get(name).held = messages


async def test_deepest_queues_come_first(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        fill(rig, {f"/queue/{number}": number for number in range(1000)})

        await samples_of(rig).refresh()

        assert list(shown(samples_of(rig)).items()) == [
            (f"/queue/{number}", number) for number in range(999, 999 - QUEUES_SHOWN, -1)
        ]


async def test_queues_that_are_only_in_the_store_are_found(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        for name in ("/queue/old", "/queue/old", "/queue/old", "/queue/quiet", "/queue/quiet"):
            await client.send(send(name, "12345", "r", persistent="true"))
            await client.receipt()
    async with rig.run():
        client = await rig.connect()
        await client.send(send("/queue/new", "1", "r", persistent="true"), send("/queue/old", "1", "s"))
        await client.receipt()
        await client.receipt()

        await samples_of(rig).refresh()

        assert "/queue/quiet" not in rig.alive.broker.queues.by_name
        assert shown(samples_of(rig)) == {
            "/queue/old": 4,
            "/queue/quiet": 2,
            "/queue/new": 1,
        }
        old = samples_of(rig).queues[0]
        assert (old.body_bytes, old.consumers) == (16, 0)
        assert old.oldest_waiting_us is not None and old.oldest_waiting_us > 0


async def test_message_in_flight_is_counted_and_does_not_wait(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(subscribe("/queue/q", ack="client"), send("/queue/q", "1"))
        await client.messages(1)

        await samples_of(rig).refresh()

        (one,) = samples_of(rig).queues
        assert (one.messages, one.consumers, one.oldest_waiting_us) == (1, 1, None)


async def test_samples_are_taken_at_most_every_few_seconds(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        samples = samples_of(rig)
        await samples.refresh()
        fill(rig, {"/queue/q": 1})

        await trio.sleep(PAUSE_SECONDS - 0.1)
        await samples.refresh()
        assert shown(samples) == {}
        await trio.sleep(0.2)
        await samples.refresh()
        assert shown(samples) == {"/queue/q": 1}


async def test_store_that_hangs_holds_a_scrape_up_for_a_bounded_time(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        samples = samples_of(rig)
        await samples.refresh()
        taken_at = samples.taken_at
        fill(rig, {"/queue/q": 1})
        free = trio.Event()
        environment = rig.alive.environment
        run_blocking = environment._run_blocking
        calls: list[Any] = []

        async def stuck(call: Any) -> Any:
            if isinstance(call, partial) and call.func.__name__ == "free_bytes":
                calls.append(call)
                await free.wait()
            return await run_blocking(call)

        environment._run_blocking = stuck  # type: ignore[assignment]
        await trio.sleep(PAUSE_SECONDS)
        for _ in range(3):
            began = trio.current_time()
            await samples.refresh()
            assert trio.current_time() - began < WAIT_SECONDS + 0.1

        assert (samples.taken_at, shown(samples), len(calls)) == (taken_at, {}, 1)
        waited = trio.current_time()
        free.set()
        await eventually(lambda: samples.taken_at != taken_at)
        assert shown(samples) == {"/queue/q": 1}
        assert waited - (samples.taken_at or 0) > 2 * WAIT_SECONDS

        # A pass that took so long is not repeated at once.
        await trio.sleep(PAUSE_FACTOR * 2 * WAIT_SECONDS)
        await samples.refresh()
        assert len(calls) == 1
