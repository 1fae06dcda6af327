"""What the operator writes about a queue is what its clients meet, also when the consumer is on another node."""

import trio
from trio.testing import MockClock

from qmq.config import DestinationPolicy, DestinationSettings
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, eventually, send, subscribe

QUEUE = "/queue/thumbnails"
DEAD = "/queue/thumbnails.dead"


def mesh_with(**keys: object) -> MeshRig:
    """Two nodes with one policy for QUEUE."""
    policy = DestinationPolicy.read({"pattern": QUEUE, **keys})
    return MeshRig(destinations=DestinationSettings(policies=(policy,)))


async def refuse(consumer: Client, times: int) -> None:
    """NACK the same message again and again."""
    for _ in range(times):
        message = await consumer.next("MESSAGE")
        await consumer.send(f"NACK\nid:{message.head.headers['ack']}\n\n")


async def test_a_message_that_keeps_failing_on_another_node_becomes_a_dead_letter(autojump_clock: MockClock) -> None:
    async with mesh_with(delivery_limit=3, redelivery_seconds_min=1.0, dead_letter=DEAD).run() as rig:
        sender, consumer = await rig.connect("a"), await rig.connect("b")
        await consumer.send(subscribe(QUEUE, ack="client-individual"), subscribe(DEAD, "dead"))
        await sender.send(send(QUEUE, "x", "r", colour="blue"))
        await sender.receipt()
        began = trio.current_time()

        await refuse(consumer, 3)
        dead = (await consumer.next("MESSAGE")).head.headers

        assert dead["destination"] == DEAD and dead["colour"] == "blue"
        assert dead["dead-letter-reason"] == "delivery-limit"
        assert dead["dead-letter-from"] == QUEUE
        assert dead["dead-letter-deliveries"] == "3"
        assert trio.current_time() - began >= 1.0 + 2.0


async def test_without_a_policy_the_default_dead_letter_queue_takes_what_is_refused_for_good(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig().run() as rig:
        sender, consumer = await rig.connect("a"), await rig.connect("b")
        await consumer.send(subscribe("/queue/q", ack="client-individual"))
        await sender.send(send("/queue/q", "x"))
        message = await consumer.next("MESSAGE")

        await consumer.send(f"NACK\nid:{message.head.headers['ack']}\nrequeue:false\n\n")
        await sender.send(subscribe("/queue/dead-letters"))

        assert await sender.messages(1) == [b"x"]


async def test_a_silent_consumer_on_another_node_loses_its_message_after_the_ack_timeout(
    autojump_clock: MockClock,
) -> None:
    async with mesh_with(ack_timeout_seconds=5.0, redelivery_seconds_min=0.1).run() as rig:
        sender, silent = await rig.connect("a"), await rig.connect("b")
        await silent.send(subscribe(QUEUE, ack="client-individual"))
        await silent.receipt()
        await sender.send(send(QUEUE, "x"))
        await silent.next("MESSAGE")
        began = trio.current_time()

        again = await silent.next("MESSAGE")

        assert again.head.headers["redelivered"] == "true"
        assert trio.current_time() - began >= 4.9


async def test_what_is_too_old_goes_to_the_dead_letter_queue_that_the_policy_names(autojump_clock: MockClock) -> None:
    async with mesh_with(ttl_seconds=5.0, dead_letter=DEAD).run() as rig:
        sender, consumer = await rig.connect("a"), await rig.connect("b")
        await sender.send(send(QUEUE, "old", "r"))
        await sender.receipt()

        await consumer.send(subscribe(DEAD))

        dead = await consumer.next("MESSAGE")
        assert (dead.body, dead.head.headers["dead-letter-reason"]) == (b"old", "expired")


async def test_what_is_too_old_is_gone_when_the_policy_names_no_dead_letter_queue(autojump_clock: MockClock) -> None:
    async with mesh_with(ttl_seconds=5.0).run() as rig:
        sender, consumer = await rig.connect("a"), await rig.connect("b")
        await sender.send(send(QUEUE, "old", "r"))
        await sender.receipt()
        await trio.sleep(10)

        await consumer.send(
            subscribe("/queue/dead-letters"), subscribe(QUEUE, "q"), send("/queue/dead-letters", "only this")
        )
        await sender.send(send(QUEUE, "new"))

        assert sorted(await consumer.messages(2)) == [b"new", b"only this"]


async def test_a_full_queue_drops_its_oldest_into_the_dead_letter_queue(autojump_clock: MockClock) -> None:
    async with mesh_with(max_messages=2, overflow="drop-oldest", dead_letter=DEAD).run() as rig:
        sender, consumer = await rig.connect("a"), await rig.connect("b")
        await sender.send(*[send(QUEUE, str(number), f"r{number}") for number in range(4)])
        for _ in range(4):
            await sender.receipt()

        await consumer.send(subscribe(DEAD, "dead"))
        assert await consumer.messages(2) == [b"0", b"1"]
        await consumer.send(subscribe(QUEUE))

        assert await consumer.messages(2) == [b"2", b"3"]


async def test_a_full_queue_may_drop_the_newest_instead(autojump_clock: MockClock) -> None:
    async with mesh_with(max_messages=2, overflow="drop-newest").run() as rig:
        sender, consumer = await rig.connect("a"), await rig.connect("b")
        await sender.send(*[send(QUEUE, str(number), f"r{number}") for number in range(4)])
        for _ in range(4):
            await sender.receipt()

        await consumer.send(subscribe(QUEUE))
        assert await consumer.messages(2) == [b"0", b"1"]
        await eventually(lambda: rig.nodes["a"].broker.queues.get(QUEUE).depth == 0)
        await sender.send(send(QUEUE, "next"))

        assert await consumer.messages(1) == [b"next"]


async def test_nothing_dies_in_a_dead_letter_queue_under_the_same_pattern(autojump_clock: MockClock) -> None:
    everything = DestinationPolicy(pattern="/queue/*", delivery_limit=1, ttl_seconds=5.0, dead_letter="/queue/last")
    async with MeshRig(destinations=DestinationSettings(policies=(everything,))).run() as rig:
        sender, consumer = await rig.connect("a"), await rig.connect("b")
        await consumer.send(subscribe("/queue/q", ack="client-individual"))
        await sender.send(send("/queue/q", "x"))
        await refuse(consumer, 1)
        await trio.sleep(20)

        await consumer.send(subscribe("/queue/last", "last", ack="client-individual"))
        await refuse(consumer, 3)

        assert (await consumer.next("MESSAGE")).body == b"x"


async def test_a_dead_letter_lives_as_long_as_the_policy_of_its_queue_says(autojump_clock: MockClock) -> None:
    policies = (
        DestinationPolicy(pattern=QUEUE, dead_letter=DEAD),
        DestinationPolicy(pattern=DEAD, dead_letter="", delivery_limit=0, ttl_seconds=60.0),
    )
    async with MeshRig(destinations=DestinationSettings(policies=policies)).run() as rig:
        client = await rig.connect("a")
        await client.send(subscribe(QUEUE, ack="client-individual"), send(QUEUE, "x", "r"))
        message = await client.next("MESSAGE")

        await client.send(f"NACK\nid:{message.head.headers['ack']}\nrequeue:false\n\n")

        queues = rig.nodes["a"].broker.queues.by_name
        await eventually(lambda: DEAD in queues and queues[DEAD].depth == 1)
        await trio.sleep(70)
        assert DEAD not in queues
