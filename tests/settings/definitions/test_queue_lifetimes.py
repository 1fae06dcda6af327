"""Queues that end by themselves: when their last consumer in the mesh has left, or when they were unused for long."""

import pytest
import trio
from trio.testing import MockClock

from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, Rig, eventually, send, subscribe
from tests.settings.definitions.test_declared_queues import Q, declare, request
from tests.settings.definitions.test_definitions_mesh import until_alike
from tests.settings.definitions.test_deleted_queues import apart, delete, fill, together, until_depth

DAY_US = 86_400_000_000


async def consume(mesh: MeshRig, name: str) -> Client:
    client = await mesh.connect(name)
    await client.send(subscribe(Q, ack="client-individual", prefetch_count="1"))
    while await client.receipt() != "sub-0":
        pass
    return client


async def leave(client: Client) -> None:
    await client.send("DISCONNECT\nreceipt:bye\n\n")
    while await client.receipt() != "bye":
        pass
    client.pipe.close()


def declared_on(mesh: MeshRig) -> str:
    return "".join(name for name, node in mesh.nodes.items() if Q in node.settings_parts.declared_queues.texts)


async def until_deleted(mesh: MeshRig) -> None:
    with trio.fail_after(60):
        await eventually(lambda: declared_on(mesh) == "")


async def test_it_is_deleted_when_its_last_consumer_in_the_mesh_has_left(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await declare(mesh, "a", auto_delete="true")
        await until_alike(mesh)
        on_a, on_b = await consume(mesh, "a"), await consume(mesh, "b")
        await fill(mesh, "c", "1", "2", "3", "4")

        await leave(on_a)
        await trio.sleep(120)
        assert declared_on(mesh) == "abc"

        await leave(on_b)
        await until_deleted(mesh)
        await until_depth(mesh, "c", 0)


async def test_a_node_that_knows_no_consumer_asks_the_others(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        await declare(mesh, "a", auto_delete="true")
        await until_alike(mesh)
        await consume(mesh, "b")
        lifetimes = mesh.nodes["a"].settings_parts.queue_lifetimes
        await eventually(lambda: lifetimes.states[Q].is_consumed)
        lifetimes.states[Q].is_consumed = False
        lifetimes.watch(Q, lifetimes.states[Q], 0.0)

        await trio.sleep(60)

        assert declared_on(mesh) == "ab"


@pytest.mark.parametrize("how", ["declare", "subscribe"])
async def test_a_declaration_that_is_refused_does_not_keep_it(autojump_clock: MockClock, how: str) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await declare(mesh, "a", auto_delete="true")
        await until_alike(mesh)
        consumer = await consume(mesh, "a")
        await mesh.kill("c")
        await eventually(lambda: "c" not in mesh.nodes["a"].mesh.followers())
        await leave(consumer)
        assert declared_on(mesh) == "abc"

        client = await mesh.connect("a")
        if how == "declare":
            await client.send(send(f"/control/declare{Q}", "", max_messages="5"))
        else:
            await client.send(subscribe("/exchange/missing/k", durable="true", x_queue_name="q"))
        code = (await client.any()).head.headers["error-code"]
        assert code == ("declared-otherwise" if how == "declare" else "bad-definition")

        await trio.sleep(120)
        assert declared_on(mesh) == "c"


async def test_it_stays_when_it_is_declared_again_before_its_deletion_is_done(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        await declare(mesh, "a", auto_delete="true")
        await until_alike(mesh)
        consumer = await consume(mesh, "a")
        await eventually(lambda: mesh.nodes["b"].settings_parts.queue_lifetimes.states[Q].is_consumed)

        again = f"SEND\ndestination:/control/declare{Q}\nreply-to:/temp-queue/r\nauto-delete:true\nreceipt:again\n\n"
        await consumer.send("UNSUBSCRIBE\nid:0\n\n", again)
        while await consumer.receipt() != "again":
            pass

        await trio.sleep(60)
        assert declared_on(mesh) == "ab"
        await leave(await consume(mesh, "a"))
        await until_deleted(mesh)


async def test_a_client_that_has_declared_it_on_another_node_has_time_to_consume(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        await declare(mesh, "a", auto_delete="true")
        await until_alike(mesh)
        consumer = await consume(mesh, "a")

        await declare(mesh, "b", auto_delete="true")
        await leave(consumer)
        await trio.sleep(3)
        moved = await consume(mesh, "b")

        await trio.sleep(60)
        assert declared_on(mesh) == "ab"
        await leave(moved)
        await until_deleted(mesh)


async def test_it_stays_until_it_had_a_consumer(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        await declare(mesh, "a", auto_delete="true")
        await fill(mesh, "b", "1")

        await trio.sleep(120)

        assert declared_on(mesh) == "ab"


async def test_a_consumer_that_subscribed_before_the_declaration_counts(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        client = await consume(mesh, "a")
        await declare(mesh, "b", auto_delete="true")
        await until_alike(mesh)

        await leave(client)

        await until_deleted(mesh)


async def test_it_is_deleted_when_the_node_of_its_last_consumer_is_killed(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await declare(mesh, "a", auto_delete="true")
        await until_alike(mesh)
        await consume(mesh, "a")
        await eventually(lambda: Q in mesh.nodes["b"].broker.queues.by_name)
        await mesh.kill("a")
        gone = mesh.nodes.pop("a")

        await trio.sleep(20)
        assert declared_on(mesh) == "bc"
        await until_deleted(mesh)

        mesh.nodes["a"] = gone
        await mesh.start("a")
        await mesh.until_linked()
        await until_deleted(mesh)


async def test_a_node_that_cannot_be_reached_keeps_it_for_a_while_and_a_minority_deletes_nothing(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await declare(mesh, "a", auto_delete="true")
        await until_alike(mesh)
        on_a, on_c = await consume(mesh, "a"), await consume(mesh, "c")
        await apart(mesh, "c")

        await leave(on_c)
        await trio.sleep(100)
        assert declared_on(mesh) == "abc"

        await together(mesh, "c")
        await trio.sleep(30)
        assert declared_on(mesh) == "abc"
        await leave(on_a)
        await until_deleted(mesh)


async def test_a_node_that_stops_deletes_nothing(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await request(client, f"declare{Q}", **{"auto-delete": "true"})
        await client.send(subscribe(Q))
        assert await client.receipt() == "sub-0"
    async with rig.run():
        assert Q in rig.alive.settings_parts.declared_queues.texts


@pytest.mark.parametrize("jump_us", [0, DAY_US, -DAY_US])
async def test_an_unused_queue_expires_by_the_time_that_has_passed(autojump_clock: MockClock, jump_us: int) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        await declare(mesh, "a", expires_seconds="60")
        await until_alike(mesh)
        await fill(mesh, "b", "1")
        for name in "abc":
            mesh.step_clock(name, jump_us)

        await trio.sleep(55)
        assert declared_on(mesh) == "abc"

        await until_deleted(mesh)
        await until_depth(mesh, "b", 0)


async def test_a_consumer_and_a_declaration_keep_an_expiring_queue(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        await declare(mesh, "a", expires_seconds="100")
        await until_alike(mesh)
        client = await consume(mesh, "b")
        await trio.sleep(250)
        assert declared_on(mesh) == "ab"

        await leave(client)
        await trio.sleep(60)
        assert (await declare(mesh, "b", expires_seconds="100"))["changed"] == "0"
        await trio.sleep(60)
        await request(await mesh.connect("a"), f"peek{Q}")
        await trio.sleep(60)
        assert declared_on(mesh) == "ab"

        await trio.sleep(60)
        await until_deleted(mesh)


async def test_a_restart_begins_the_time_again(autojump_clock: MockClock) -> None:
    async with MeshRig("a").run() as mesh:
        await declare(mesh, "a", expires_seconds="100")
        await trio.sleep(90)
        await mesh.kill("a")
        await mesh.start("a")

        await trio.sleep(90)
        assert declared_on(mesh) == "a"
        await until_deleted(mesh)


async def test_a_queue_that_is_declared_without_a_lifetime_again_stays(autojump_clock: MockClock) -> None:
    async with MeshRig("a").run() as mesh:
        await declare(mesh, "a", expires_seconds="100", auto_delete="true")
        node = mesh.nodes["a"]
        timers = len(node.beats)
        await declare(mesh, "a", replace="true")

        assert len(node.beats) == timers - 1
        await trio.sleep(100)
        assert declared_on(mesh) == "a"


async def test_a_node_without_such_queues_has_no_timer_for_them(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        before = len(rig.alive.beats)
        await request(client, f"declare{Q}", **{"max-messages": "5"})
        assert len(rig.alive.beats) == before

        await request(client, f"declare{Q}", replace="true", **{"expires-seconds": "100"})
        assert len(rig.alive.beats) == before + 1
        await request(client, f"delete{Q}")
        assert len(rig.alive.beats) == before


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"auto_delete": 1}, "auto_delete = 1: must be true or false"),
        ({"expires_seconds": -1}, "expires_seconds = -1: must be at least 0"),
        ({"expires_seconds": "1"}, "must be a number"),
        ({"expire_seconds": 1}, "did you mean expires_seconds?"),
    ],
)
async def test_a_bad_lifetime_names_the_key_and_what_is_allowed(
    autojump_clock: MockClock, value: object, words: str
) -> None:
    async with MeshRig("a").run() as mesh:
        assert words in (await declare(mesh, "a", value=value))["message"]


async def test_lifetimes_that_say_nothing_are_no_difference(autojump_clock: MockClock) -> None:
    async with MeshRig("a").run() as mesh:
        await declare(mesh, "a", value={"auto_delete": False, "expires_seconds": 0})

        assert (await declare(mesh, "a"))["changed"] == "0"
        assert (await delete(mesh, "a"))["declared"] == "true"
