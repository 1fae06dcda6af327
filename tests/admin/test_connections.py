"""Lists of connections, and their end by an operator."""

import json
from typing import Any

from trio.testing import MockClock

from tests.admin.test_bulk_jobs import Q, fill, refusal
from tests.node.mesh_rig import MeshRig, isolate
from tests.node.rig import Client, Rig, nothing_more, send, subscribe


async def ask(client: Client, destination: str, **headers: str) -> dict[str, Any]:
    """The JSON response."""
    await client.send(send(f"/control/{destination}", "", reply_to="/temp-queue/r", **headers))
    found: dict[str, Any] = json.loads((await client.next("MESSAGE")).body)
    return found


async def test_connections_of_all_nodes_are_listed(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        client, worker = await mesh.connect("a"), await mesh.connect("b", client_product=f"shop 1.2\t {'x' * 200}")
        await worker.send(subscribe(Q, ack="client-individual"))
        await worker.receipt()
        await fill(client, "1")
        await worker.messages(1)

        facts = await ask(client, "connections", scope="mesh")

        assert (facts["connections"], facts["nodes_missing"]) == (2, [])
        assert all(row.pop("bytes_in") > 0 and row.pop("bytes_out") > 0 for row in facts["rows"])
        assert len({row.pop("port") for row in facts["rows"]} - {0}) == 2
        assert facts["rows"] == [
            {
                "id": f"{name}/1",
                "node": name,
                "user": "",
                "address": "10.0.0.1",
                "protocol": "STOMP 1.2",
                "product": product,
                "subscriptions": subscriptions,
                "in_flight": subscriptions,
            }
            for name, product, subscriptions in (("a", "", 0), ("b", "shop 1.2? " + "x" * 90, 1))
        ]
        assert (await ask(client, "connections"))["connections"] == 1


async def test_a_kicked_client_reads_why_and_its_messages_are_delivered_again(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        client, worker = await mesh.connect("a"), await mesh.connect("b")
        await worker.send(subscribe(Q, ack="client-individual"))
        await worker.receipt()
        await fill(client, "1")
        await worker.messages(1)

        facts = await ask(client, "kick/b/1", reason="it hangs", scope="mesh")

        assert [row["id"] for row in facts["rows"]] == ["b/1"]
        error = await worker.any()
        assert (error.head.command, error.head.headers["error-code"]) == ("ERROR", "kicked")
        assert "it hangs" in error.head.headers["message"]
        await client.send(subscribe(Q))
        message = await client.next("MESSAGE")
        assert (message.body, message.head.headers["redelivered"]) == (b"1", "true")


async def test_by_address_all_but_the_connection_that_asks_are_ended(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client, one, other = await rig.connect(), await rig.connect(), await rig.connect("10.0.0.2")

        facts = await ask(client, "kick", address="10.0.0.1", reason="all of them")

        assert facts["connections"] == 1
        assert (await one.any()).head.command == "ERROR"
        await nothing_more(other)
        await nothing_more(client)


async def test_a_dry_run_ends_nothing(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client, other = await rig.connect(), await rig.connect()

        assert (await ask(client, "kick/a/2", dry_run="true", reason="x"))["connections"] == 1

        await nothing_more(other)


async def test_a_kick_of_no_connection_in_particular_is_refused(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        assert await refusal(await rig.connect(), "kick", reason="everybody") == "missing-header"


async def test_a_kick_is_an_event_of_the_audit(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client, watcher = await rig.connect(), await rig.connect()
        await watcher.send(subscribe("/system/audit"))
        await watcher.receipt()

        await ask(client, "connections")
        await ask(client, "kick", address="10.9.9.9", reason="why")
        facts = await ask(client, "kick/b/1", dry_run="true")

        event, other = [json.loads(body) for body in await watcher.messages(2)]
        assert facts["connection"] == other["connection"] == "b/1"
        assert not {"destination", "connection"} & event.keys()
        assert "destination" not in {**facts, **other}
        assert (event["event"], event["count"], event["reason"]) == ("kick", 0, "why")
        assert (event["address"], event["kicked_address"]) == ("10.0.0.1", "10.9.9.9")


async def test_a_node_that_does_not_answer_is_missing(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        client = await mesh.connect("a")
        isolate(mesh, "c")

        facts = await ask(client, "connections", scope="mesh")

        assert (facts["nodes_missing"], facts["nodes_answered"]) == (["c"], 2)


async def test_connections_are_listed_in_pages(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        clients = [await mesh.connect(name) for name in "aaabb"]
        after, seen = "", []
        while True:
            facts = await ask(clients[0], "connections", scope="mesh", limit="2", **({"after": after} if after else {}))
            seen.append([row["id"] for row in facts["rows"]])
            if "next" not in facts:
                break
            after = facts["next"]

        assert seen == [["a/1", "a/2"], ["a/3", "b/1"], ["b/2"]]
        assert facts["connections"] == 5
        assert (await ask(clients[0], "connections", limit="2"))["next"] == "a/2"
        assert await refusal(clients[0], "connections", after="a") == "bad-after"
        assert await refusal(clients[1], "connections", limit="1001") == "bad-limit"


async def test_all_subscriptions_are_listed_in_pages_with_what_they_got(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        client, worker = await mesh.connect("a"), await mesh.connect("b")
        await client.send(
            subscribe("/topic/t", id="t"), subscribe("/topic/p.*", id="p"), subscribe("/fanout/f", id="f")
        )
        await worker.send(subscribe(Q, id="q", ack="client-individual", prefetch_count="2"))
        await worker.receipt()
        await fill(client, "1", "2", "3")
        message = await worker.next("MESSAGE")
        await worker.send(f"ACK\nid:{message.head.headers['ack']}\nreceipt:a\n\n")
        while await worker.receipt() != "a":
            pass
        await worker.messages(2)

        after, rows = "", []
        while True:
            facts = await ask(client, "list-subscribers", scope="mesh", limit="2", after=after)
            rows += facts["subscribers"]
            after = facts.get("next", "")
            if not after:
                break

        places = [
            (row["node"], row["id"], row["destination"]) for row in rows if "/temp-queue" not in row["destination"]
        ]
        assert places == [
            ("a", "f", "/fanout/f"),
            ("a", "p", "/topic/p.*"),
            ("a", "t", "/topic/t"),
            ("b", "q", Q),
        ]
        assert (rows[-1]["delivered"], rows[-1]["acknowledged"], rows[-1]["in_flight"]) == (3, 1, 2)
