"""Durable subscriptions, gaps and children over two nodes: what one knows, the other does after a moment."""

import trio
from trio.testing import MockClock

from qmq.config import DestinationPolicy, DestinationSettings
from qmq.wire.stomp import Frame
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, eventually, send, subscribe

F = "/fanout/f"


async def durable(mesh: MeshRig, node: str, **headers: str) -> Client:
    client = await mesh.connect(node)
    await client.send(subscribe(F, id="mail", ack="client-individual", durable="true", **headers))
    await client.receipt()
    return client


async def publish(mesh: MeshRig, node: str, *bodies: str) -> None:
    client = await mesh.connect(node)
    for body in bodies:
        await client.send(send(F, body, "r"))
        await client.receipt()


async def taken(client: Client, count: int) -> list[Frame]:
    return [await client.next("MESSAGE") for _ in range(count)]


async def acknowledge(client: Client, *frames: Frame) -> None:
    for frame in frames:
        await client.send(f"ACK\nid:{frame.head.headers['ack']}\nreceipt:a\n\n")
        await client.receipt()


async def leave(client: Client) -> None:
    await client.send("DISCONNECT\nreceipt:bye\n\n")
    await client.until_closed()


async def until_same(mesh: MeshRig) -> None:
    """Every node has all that any has, and nobody is attached any more."""
    nodes = list(mesh.nodes.values())
    await eventually(lambda: not any(node.broker.durable_subscriptions.attached for node in nodes))
    await eventually(
        lambda: all(node.engine.path.durable_vector() == nodes[0].engine.path.durable_vector() for node in nodes)
    )


async def test_it_goes_on_at_another_node_where_its_acks_ended(autojump_clock: MockClock) -> None:
    async with MeshRig().run() as mesh:
        client = await durable(mesh, "a")
        await publish(mesh, "b", "1", "2")
        await publish(mesh, "a", "3", "4")
        got = await taken(client, 4)
        await acknowledge(client, *(frame for frame in got if frame.body in (b"1", b"4")))
        await leave(client)
        await until_same(mesh)
        await publish(mesh, "b", "5")

        again = await taken(await durable(mesh, "b"), 3)

        assert sorted(frame.body for frame in again) == [b"2", b"3", b"5"]
        told = {frame.body: frame.head.headers.get("redelivered") for frame in again}
        assert told == {b"2": "true", b"3": "true", b"5": None}


async def test_the_last_client_on_any_node_has_the_name(autojump_clock: MockClock) -> None:
    async with MeshRig().run() as mesh:
        first = await durable(mesh, "a")
        await publish(mesh, "a", "1", "2")
        await acknowledge(first, (await taken(first, 2))[0])
        began = trio.current_time()

        second = await durable(mesh, "b")

        last = (await first.until_closed())[-1].head.headers
        assert (last["error-code"], last["subscription"]) == ("durable-taken-over", "mail")
        assert "node b" in last["message"]
        assert trio.current_time() - began < 0.5
        (again,) = await taken(second, 1)
        assert (again.body, again.head.headers["redelivered"]) == (b"2", "true")
        await until_attached(mesh, "b")

        third = await durable(mesh, "a")

        assert (await second.until_closed())[-1].head.headers["error-code"] == "durable-taken-over"
        assert [frame.body for frame in await taken(third, 1)] == [b"2"]


async def until_attached(mesh: MeshRig, name: str) -> None:
    """Nobody but this node serves the subscription any more."""
    await eventually(
        lambda: [n for n, node in mesh.nodes.items() if node.broker.durable_subscriptions.attached] == [name]
    )


async def test_in_a_split_both_go_on_and_then_the_later_one(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        first = await durable(mesh, "b")
        await eventually(lambda: all(node.broker.durable_subscriptions.by_name for node in mesh.nodes.values()))
        for other in ("a", "c"):
            mesh.cut("b", other)
        second = await durable(mesh, "a")
        await publish(mesh, "a", "of a")
        await publish(mesh, "b", "of b")
        for client, body in ((first, b"of b"), (second, b"of a")):
            got = await taken(client, 1)
            assert got[0].body == body
            await acknowledge(client, *got)

        for other in ("a", "c"):
            mesh.heal("b", other)

        ended = await first.until_closed()
        assert ended[-1].head.headers["error-code"] == "durable-taken-over"
        await until_attached(mesh, "a")
        await publish(mesh, "c", "last")
        (frame,) = await taken(second, 1)
        if frame.body == b"of b":  # it may come before the news that b's subscriber has acknowledged it
            (frame,) = await taken(second, 1)
        assert frame.body == b"last"


async def test_a_cursor_goes_round_a_cut_through_a_third_node(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        mesh.cut("a", "b")
        client = await durable(mesh, "a")
        await publish(mesh, "b", "1", "2")
        await acknowledge(client, (await taken(client, 2))[0])
        await eventually(
            lambda: mesh.nodes["a"].engine.path.durable_vector() == mesh.nodes["b"].engine.path.durable_vector()
        )

        second = await durable(mesh, "b")

        assert (await client.until_closed())[-1].head.headers["error-code"] == "durable-taken-over"
        assert [frame.body for frame in await taken(second, 1)] == [b"2"]


async def test_what_comes_again_at_another_node_is_in_flight_or_less_than_a_moment_acknowledged(
    autojump_clock: MockClock,
) -> None:
    prefetch, moment = 10, 0.2
    async with MeshRig("a", "b", "c").run() as mesh:
        client = await durable(mesh, "a", prefetch_count=str(prefetch))
        await publish(mesh, "c", *map(str, range(60)))
        acknowledged: dict[bytes, float] = {}
        for _ in range(40):
            (frame,) = await taken(client, 1)
            await acknowledge(client, frame)
            acknowledged[frame.body] = trio.current_time()
        mesh.cut("a", "b")
        mesh.cut("a", "c")
        cut = trio.current_time()

        again = [frame.body for frame in await taken(await durable(mesh, "b", prefetch_count="100"), 60 - 40)]

        repeated = [body for body in again if body in acknowledged]
        assert all(acknowledged[body] > cut - moment for body in repeated)
        assert len(repeated) <= 3, "the journal brings acknowledgements as quickly as messages"


async def test_a_deletion_counts_everywhere(autojump_clock: MockClock) -> None:
    async with MeshRig().run() as mesh:
        await leave(await durable(mesh, "a"))
        await until_same(mesh)
        client = await mesh.connect("b")
        await client.send(f"UNSUBSCRIBE\nid:mail\ndestination:{F}\ndurable:true\nreceipt:u\n\n")
        await client.receipt()
        await until_same(mesh)
        await publish(mesh, "a", "missed")

        client = await durable(mesh, "a")
        await publish(mesh, "a", "new")

        assert [frame.body for frame in await taken(client, 1)] == [b"new"]


async def test_one_that_is_deleted_elsewhere_gets_the_reason(autojump_clock: MockClock) -> None:
    async with MeshRig().run() as mesh:
        attached = await durable(mesh, "a")
        await eventually(lambda: bool(mesh.nodes["b"].broker.durable_subscriptions.by_name))
        client = await mesh.connect("b")
        await client.send(f"UNSUBSCRIBE\nid:mail\ndestination:{F}\ndurable:true\nreceipt:u\n\n")
        await client.receipt()

        assert (await attached.until_closed())[-1].head.headers["error-code"] == "durable-deleted"


async def test_what_is_missing_is_reported_at_another_node_than_the_publisher_s(autojump_clock: MockClock) -> None:
    policies = DestinationSettings(policies=(DestinationPolicy(pattern=F, retention_seconds=60),))
    async with MeshRig(destinations=policies).run() as mesh:
        client = await durable(mesh, "b")
        await publish(mesh, "a", "1")
        (one,) = await taken(client, 1)
        await acknowledge(client, one)
        await leave(client)
        await publish(mesh, "a", "2", "3")
        origin, _, first = one.head.headers["message-id"].rpartition("-")
        last = mesh.nodes["a"].broker.next_sequence - 1
        await until_same(mesh)
        await trio.sleep(3 * 60)
        await publish(mesh, "a", "4")

        notice, four = await taken(await durable(mesh, "b"), 2)

        assert notice.head.headers["qmq-gap"] == f"{origin}={int(first) + 1}-{last}"
        assert four.body == b"4"


async def test_made_on_both_sides_of_a_cut_it_begins_at_the_earlier_place(autojump_clock: MockClock) -> None:
    async with MeshRig().run() as mesh:
        await publish(mesh, "a", "0")
        await until_same(mesh)
        mesh.fabric.cut("127.0.1.1", "127.0.1.2")
        await leave(await durable(mesh, "a"))
        await publish(mesh, "a", "1")
        await publish(mesh, "b", "2")
        client = await durable(mesh, "b")
        await publish(mesh, "b", "3")
        await acknowledge(client, *(await taken(client, 1)))

        mesh.fabric.heal("127.0.1.1", "127.0.1.2")

        assert (await client.until_closed())[-1].head.headers["error-code"] == "durable-merged"
        await mesh.until_linked()
        await until_same(mesh)
        again = await taken(await durable(mesh, "b"), 2)
        assert sorted(frame.body for frame in again) == [b"1", b"2"]


async def test_a_child_has_a_message_once_in_the_mesh_wherever_it_was_accepted(autojump_clock: MockClock) -> None:
    policies = DestinationSettings(policies=(DestinationPolicy(pattern=F, children=("/queue/mail", "/queue/audit")),))
    async with MeshRig(destinations=policies).run() as mesh:
        follower = await mesh.connect("b")
        await follower.send(subscribe(F))
        client = await mesh.connect("a")
        await client.send(send(F, "news", "r", colour="red"))
        await client.receipt()
        assert await follower.messages(1) == [b"news"]

        consumer = await mesh.connect("b")
        await consumer.send(subscribe("/queue/mail", id="m"), subscribe("/queue/audit", id="u"))
        got = await taken(consumer, 2)

        assert {frame.head.headers["destination"] for frame in got} == {"/queue/mail", "/queue/audit"}
        assert [(frame.body, frame.head.headers["colour"]) for frame in got] == [(b"news", "red")] * 2
        await publish(mesh, "b", "more")
        got = await taken(consumer, 2)
        assert [frame.body for frame in got] == [b"more"] * 2
        await consumer.send(send("/topic/none", "", "last"))
        while await consumer.receipt() != "last":
            pass
        assert not [frame for frame in consumer.frames if frame.head.command == "MESSAGE"]
