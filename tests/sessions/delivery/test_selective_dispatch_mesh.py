"""Which consumer gets which message of a queue when consumers and publishers are on different nodes."""

import trio
from trio.testing import MockClock

from qmq.broker.queues.selective.dispatcher import SelectiveDispatcher
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, eventually, send, subscribe

JOBS = "/queue/jobs"


async def consumer(rig: MeshRig, name: str, id: str = "0", **headers: str) -> Client:
    """Its node's peers know it, too."""
    client = await rig.connect(name)
    known = known_classes(rig, name)
    await client.send(subscribe(JOBS, id, headers.pop("ack", "client-individual"), **headers))
    await client.receipt()
    await eventually(lambda: known_classes(rig, name) > known or known > 0)
    return client


def known_classes(rig: MeshRig, name: str) -> int:
    """How many offers for the queue the other nodes have from this one."""
    others = [node.broker.queues.by_name.get(JOBS) for other, node in rig.nodes.items() if other != name]
    return sum(sum(b.peer == name for b in (queue.borrowers or {}).values()) for queue in others if queue is not None)


async def ack(client: Client, count: int) -> list[bytes]:
    """Take and acknowledge `count` messages."""
    bodies = []
    for _ in range(count):
        frame = await client.next("MESSAGE")
        bodies.append(frame.body)
        await client.send(f"ACK\nid:{frame.head.headers['ack']}\n\n")
    return bodies


def selective(rig: MeshRig, name: str) -> SelectiveDispatcher:
    found = rig.nodes[name].broker.queues.by_name[JOBS].selective
    assert found is not None
    return found


async def test_a_selector_on_another_node_gets_what_it_wants_and_the_rest_stays(autojump_clock: MockClock) -> None:
    async with MeshRig().run() as rig:
        red = await consumer(rig, "b", selector="color = 'red'")
        sender = await rig.connect("a")

        await sender.send(
            *(send(JOBS, f"{number}", color="red" if number % 3 == 0 else "blue") for number in range(30))
        )

        assert await ack(red, 10) == [b"%d" % number for number in range(0, 30, 3)]
        queue = rig.nodes["a"].broker.queues.by_name[JOBS]
        await eventually(lambda: queue.depth == 20)
        plain = await consumer(rig, "b", "plain", prefetch="5")
        assert await ack(plain, 20) == [b"%d" % number for number in range(30) if number % 3]


async def test_a_consumer_that_leaves_another_node_leaves_nothing_there(autojump_clock: MockClock) -> None:
    async with MeshRig().run() as rig:
        red = await consumer(rig, "b", selector="color = 'red'")
        sender = await rig.connect("a")
        await sender.send(send(JOBS, "1", color="red"))
        assert await ack(red, 1) == [b"1"]

        await red.send("UNSUBSCRIBE\nid:0\nreceipt:u\n\n")
        await red.receipt()

        a, b = rig.nodes["a"].broker, rig.nodes["b"].broker
        await eventually(lambda: not a.queues.by_name and not b.queues.by_name)
        await eventually(lambda: not any(b.borrowing._withdrawing.values()))
        assert not any(
            (*a.lending._borrowing.values(), *b.borrowing._offered.values(), *b.borrowing._received.values())
        )


async def test_subscribing_again_at_once_gets_the_next_messages(autojump_clock: MockClock) -> None:
    """A client that polls: each time the offer is withdrawn and made anew."""
    async with MeshRig().run() as rig:
        sender, client = await rig.connect("a"), await rig.connect("b")
        await sender.send(*(send(JOBS, f"{number}") for number in range(20)))

        bodies = []
        for number in range(20):
            await client.send(subscribe(JOBS, f"{number}", "client-individual", prefetch="1"))
            bodies += await ack(client, 1)
            await client.send(f"UNSUBSCRIBE\nid:{number}\nreceipt:u{number}\n\n")
            while await client.receipt() != f"u{number}":
                pass
            # What came between the ACK and the UNSUBSCRIBE has gone back.
            client.frames.clear()

        assert bodies == [b"%d" % number for number in range(20)]


async def test_a_group_goes_to_one_consumer_whichever_node_it_is_sent_to(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as rig:
        consumers = [await consumer(rig, name, prefetch="100") for name in ("b", "b", "c")]
        senders = [await rig.connect(name) for name in rig.names]
        for number in range(30):
            for sender in senders:
                await sender.send(send(JOBS, f"{number % 6}", JMSXGroupID=f"g{number % 6}"))

        found: list[list[bytes]] = [[] for _ in consumers]

        async def collect(client: Client, bodies: list[bytes]) -> None:
            while True:
                bodies += await ack(client, 1)

        async with trio.open_nursery() as nursery:
            for client, bodies in zip(consumers, found, strict=True):
                nursery.start_soon(collect, client, bodies)
            await eventually(lambda: sum(map(len, found)) == 90)
            nursery.cancel_scope.cancel()

        for group in range(6):
            assert sorted(bodies.count(b"%d" % group) for bodies in found) == [0, 0, 15]
        assert sum(bool(bodies) for bodies in found) > 1


async def test_messages_of_a_group_keep_their_order_when_their_consumer_on_another_node_dies(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig().run() as rig:
        first = await consumer(rig, "b", prefetch="3")
        sender = await rig.connect("a")
        await sender.send(*(send(JOBS, f"{number}", JMSXGroupID="g") for number in range(10)))
        assert await ack(first, 1) == [b"0"]
        second = await consumer(rig, "b", "second", prefetch="3")
        await first.messages(2)
        first.pipe.close()

        assert await ack(second, 9) == [b"%d" % number for number in range(1, 10)]


async def test_one_exclusive_consumer_at_a_time_in_the_whole_mesh(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as rig:
        first = await consumer(rig, "b", prefetch="2", exclusive="true")
        await trio.sleep(1)
        second = await consumer(rig, "c", prefetch="2", exclusive="true")
        sender = await rig.connect("a")
        await eventually(lambda: len(rig.nodes["a"].broker.queues.by_name[JOBS].borrowers or ()) == 2)

        await sender.send(*(send(JOBS, f"{number}") for number in range(6)))
        assert await ack(first, 2) == [b"0", b"1"]
        assert await first.messages(2) == [b"2", b"3"]
        assert not second.frames
        first.pipe.close()

        assert await ack(second, 4) == [b"2", b"3", b"4", b"5"]


async def test_a_window_counts_messages_of_all_nodes(autojump_clock: MockClock) -> None:
    async with MeshRig().run() as rig:
        client = await rig.connect("b", prefetch="1")
        for name in ("jobs", "more"):
            await client.send(subscribe(f"/queue/{name}", name, "client-individual"))
            await client.receipt()
        sender = await rig.connect("a")
        await sender.send(*(send(f"/queue/{name}", name) for name in ("jobs", "more") for _ in range(5)))

        bodies = []
        for _ in range(10):
            frame = await client.next("MESSAGE")
            bodies.append(frame.body)
            assert len(rig.nodes["b"].broker.queues.deliveries) == 1
            await client.send(f"ACK\nid:{frame.head.headers['ack']}\n\n")

        assert sorted(bodies) == [b"jobs"] * 5 + [b"more"] * 5


async def test_a_browser_sees_what_was_sent_to_other_nodes(autojump_clock: MockClock) -> None:
    async with MeshRig().run() as rig:
        for name in ("a", "b"):
            sender = await rig.connect(name)
            await sender.send(*(send(JOBS, f"{name}{number}", receipt=f"r{number}") for number in range(3)))
            for _ in range(3):
                await sender.receipt()
        await eventually(lambda: rig.nodes["b"].engine.path.received_vector().get(rig.nodes["a"].origin, 0) >= 3)
        browser = await rig.connect("b")

        await browser.send(subscribe(JOBS, browser="true"))

        assert await browser.messages(6) == [b"b0", b"b1", b"b2", b"a0", b"a1", b"a2"]
        assert (await browser.next("MESSAGE")).head.headers["browser"] == "end"
        consuming = await consumer(rig, "b")
        assert sorted(await ack(consuming, 6)) == [b"a0", b"a1", b"a2", b"b0", b"b1", b"b2"]


async def test_a_window_takes_turns_over_queues_of_this_node_and_of_another(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as rig:
        here, there = await rig.connect("b"), await rig.connect("a")
        await here.send(*(send("/queue/many", f"many {number}", f"m{number}") for number in range(50)))
        await there.send(*(send("/queue/few", f"few {number}", f"f{number}") for number in range(6)))
        for _ in range(50):
            await here.receipt()
        for _ in range(6):
            await there.receipt()
        client = await rig.connect("b", prefetch="1")
        for name in ("/queue/many", "/queue/few"):
            await client.send(subscribe(name, name, "client-individual"))
            await client.receipt()

        bodies = await ack(client, 56)

        turns = [number for number, body in enumerate(bodies) if body.startswith(b"few")]
        # A turn is missed when the owner's word that more wait is still on its way.
        assert turns[0] <= 3
        assert turns[-1] <= 3 * len(turns)
        assert max(later - earlier for earlier, later in zip(turns, turns[1:], strict=False)) <= 6


async def test_a_higher_priority_on_another_node_is_served_first_while_it_has_room(autojump_clock: MockClock) -> None:
    async with MeshRig().run() as rig:
        low = await consumer(rig, "a", prefetch="100")
        high = await consumer(rig, "b", prefetch="4", consumer_priority="5")
        sender = await rig.connect("a")

        await sender.send(*(send(JOBS, f"{number}") for number in range(6)))

        assert await high.messages(4) == [b"0", b"1", b"2", b"3"]
        assert await low.messages(2) == [b"4", b"5"]


async def test_when_the_node_of_a_higher_priority_is_away_others_are_served(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as rig:
        low = await consumer(rig, "a", prefetch="100")
        high = await consumer(rig, "b", prefetch="100", consumer_priority="5")
        sender = await rig.connect("a")
        await sender.send(send(JOBS, "1"))
        assert await ack(high, 1) == [b"1"]

        await rig.kill("b")
        await eventually(lambda: not known_classes(rig, "b"))
        await sender.send(send(JOBS, "2"))

        assert await ack(low, 1) == [b"2"]
