"""The bound on destinations counts queues that are only in the queue store, too."""

from itertools import count

import trio
from trio.testing import MockClock

from qmq.engine.checkpoint.queue_count import POLL_SECONDS
from tests.node.rig import Client, Rig, eventually, send, subscribe

FIVE = {"destinations_max": 5}


async def fill(rig: Rig, queues: int, **headers: str) -> Client:
    """So many queues with one message each."""
    client = await rig.connect(on_error="keep-open")
    for number in range(queues):
        await client.send(send(f"/queue/{number}", "x", **headers))
    await client.send(send("/topic/done", "", "done"))
    await client.receipt()
    return client


async def after_a_restart(rig: Rig) -> Client:
    """All of them are only in the store then."""
    await eventually(lambda: rig.alive.broker.queues.stored_names.count == 5)
    assert not rig.alive.broker.queues.by_name
    return await rig.connect(on_error="keep-open")


async def answer(client: Client, frame: str) -> str:
    """The receipt, or the code of the error."""
    await client.send(frame)
    headers = (await client.any()).head.headers
    return headers.get("error-code") or headers["receipt-id"]


def new_name(rig: Rig) -> str:
    """A queue that is not there, and is not taken for one that is: a filter errs with one name of a hundred."""
    known = rig.alive.broker.queues.stored_names
    return next(name for name in map("/queue/new{}".format, count()) if name not in known)


async def test_queues_that_a_checkpoint_let_go_of_count(autojump_clock: MockClock) -> None:
    rig = Rig(limits={"destinations_max": 2000, "queue_messages_in_memory_max": 1000})
    async with rig.run():
        client = await fill(rig, 2000)
        await rig.alive.engine.checkpoints.checkpoint()
        queues = rig.alive.broker.queues
        await eventually(lambda: len(queues.by_name) < 1000)

        assert len(queues.by_name) + queues.stored_names.count == 2000
        assert await answer(client, send(new_name(rig), "x", "r")) == "too-many-destinations"


async def test_queues_that_are_only_stored_count_after_a_restart(autojump_clock: MockClock) -> None:
    rig = Rig(limits=FIVE)
    async with rig.run():
        await fill(rig, 5)
    async with rig.run():
        client = await after_a_restart(rig)

        assert await answer(client, send(new_name(rig), "x", "r")) == "too-many-destinations"


async def test_a_stored_queue_goes_on_at_the_bound_and_makes_room_when_it_is_empty(autojump_clock: MockClock) -> None:
    rig = Rig(limits=FIVE)
    async with rig.run():
        await fill(rig, 5)
    async with rig.run():
        client = await after_a_restart(rig)

        assert await answer(client, send("/queue/3", "y", "more")) == "more"
        await client.send(subscribe("/queue/3", "s", "client"))
        await client.receipt()
        first, second = await client.next("MESSAGE"), await client.next("MESSAGE")
        assert (first.body, second.body) == (b"x", b"y")
        await client.send(f"ACK\nid:{second.head.headers['ack']}\nreceipt:a\n\n")
        await client.receipt()
        await client.send("UNSUBSCRIBE\nid:s\nreceipt:u\n\n")
        await client.receipt()

        assert await answer(client, send(new_name(rig), "x", "r")) == "r"


async def test_what_ends_in_the_store_makes_room_when_it_is_counted_again(autojump_clock: MockClock) -> None:
    rig = Rig(limits=FIVE)
    async with rig.run():
        await fill(rig, 5, ttl="20000")
    async with rig.run():
        client = await after_a_restart(rig)
        assert await answer(client, send(new_name(rig), "x", "r")) == "too-many-destinations"

        await trio.sleep(2 * POLL_SECONDS)
        await rig.alive.engine.checkpoints.checkpoint()
        await trio.sleep(2 * POLL_SECONDS)

        client = await rig.connect()
        assert await answer(client, send(new_name(rig), "x", "r")) == "r"


async def test_queues_in_memory_count_once_when_all_are_counted_again(autojump_clock: MockClock) -> None:
    rig = Rig(limits=FIVE)
    async with rig.run():
        await fill(rig, 5)
    async with rig.run():
        client = await after_a_restart(rig)
        await client.send(subscribe("/queue/3", "s", "client"))
        await client.next("MESSAGE")
        queues = rig.alive.broker.queues
        assert list(queues.by_name) == ["/queue/3"]
        before = queues.stored_names

        await trio.sleep(2 * POLL_SECONDS)

        assert queues.stored_names is not before
        assert queues.stored_names.count == 4
