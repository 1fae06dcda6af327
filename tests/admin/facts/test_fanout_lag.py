"""How far the subscribers of a fanout are behind, on any node of a mesh."""

from typing import Any

import pytest
from trio.testing import MockClock

from tests.admin.test_bulk_jobs import fill, until_alike
from tests.admin.test_control_mesh import ask_at_length
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, Rig, eventually, send, subscribe

F = "/fanout/f"
LIST = f"/control/list-subscribers{F}"


async def publish(client: Client, count: int, size: int) -> None:
    for number in range(count):
        await client.send(send(F, f"{number} {'x' * size}", "r"))
        await client.receipt()


async def lags(client: Client) -> dict[str, Any]:
    rows = (await ask_at_length(client, LIST, scope="mesh"))["subscribers"]
    return {f"{row['node']}/{row['id']}": row.get("behind") for row in rows}


async def durables(client: Client) -> dict[str, tuple[int, bool]]:
    rows = (await ask_at_length(client, LIST))["durables"]
    return {row["name"]: (row["behind"], row["in_use"]) for row in rows}


async def test_each_node_says_how_far_its_subscribers_are_behind(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        client, live, slow = await mesh.connect("a"), await mesh.connect("b"), await mesh.connect("b")
        await live.send(subscribe(F, id="live"))
        await publish(client, 20, 100_000)
        await until_alike(mesh)
        await live.messages(20)

        await slow.send(subscribe(F, id="slow", x_stream_offset="first"))
        found = await lags(client)
        await eventually(lambda: any(session.outbox.size for session in mesh.nodes["b"].sessions.values()))

        assert (await lags(client))["b/live"] == 0
        assert 0 < (await lags(client))["b/slow"] < 20
        assert set(found) == {"b/live", "b/slow"}
        await slow.messages(20)
        await eventually(lambda: mesh.nodes["b"].session_parts.fanout_subscribers.reading == 0)
        assert await lags(client) == {"b/live": 0, "b/slow": 0}


async def test_a_declared_buffer_that_waits_is_counted(autojump_clock: MockClock) -> None:
    async with Rig(limits={"outbox_bytes_max": 400_000, "body_bytes_max": 20_000}).run() as rig:
        client, slow = await rig.connect(), await rig.connect()
        await slow.send(subscribe(F, id="slow", buffer_messages="1000", overflow="drop-oldest"))
        await slow.receipt()
        await publish(client, 100, 10_000)

        (row,) = (await ask_at_length(client, LIST))["subscribers"]
        assert 0 < row["behind"] < 100 - row["dropped"] < 100


async def test_a_durable_subscription_is_behind_from_its_first_unacknowledged_message_on(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b").run() as mesh:
        client, worker = await mesh.connect("a"), await mesh.connect("b")
        await worker.send(subscribe(F, id="mail", ack="client-individual", durable="true"))
        await worker.receipt()
        await fill(client, *"12345", queue=F)
        await fill(client, "not of the fanout")
        got = [await worker.next("MESSAGE") for _ in range(5)]
        await worker.send(f"ACK\nid:{got[0].head.headers['ack']}\nreceipt:a\n\n")
        await worker.receipt()
        await until_alike(mesh)

        assert await lags(client) == {"b/mail": 4}
        # Each node knows the cursor; only b has the client.
        ((name, here),) = (await durables(client)).items()
        assert (name.endswith("mail"), here) == (True, (4, False))
        assert await durables(worker) == {name: (4, True)}
        await worker.send("DISCONNECT\nreceipt:bye\n\n")
        await worker.until_closed()
        assert await lags(client) == {}
        assert await durables(client) == {name: (4, False)}


async def test_a_log_that_cannot_be_read_leaves_the_rows_without_a_lag(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig().run() as rig:
        client, worker = await rig.connect(), await rig.connect()
        await worker.send(subscribe(F, id="mail", ack="client-individual", durable="true"))
        await worker.receipt()

        def unreadable(name: str, positions: object) -> object:
            raise OSError(24, "too many open files")

        monkeypatch.setattr(rig.alive.store, "fanout_behind", unreadable)

        assert await lags(client) == {"a/mail": None}


async def test_a_response_without_a_body_has_no_list_of_durable_subscriptions(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(subscribe(F, id="mail", ack="client-individual", durable="true"), send(LIST, "", "r"))
        await client.receipt()

        headers = (await client.next("RECEIPT")).head.headers

        assert "durables" not in headers and "next" not in headers
