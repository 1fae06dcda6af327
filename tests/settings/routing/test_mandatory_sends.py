"""`mandatory:true` to a queue: sent if the queue exists on any node, else refused, and no queue is made."""

import pytest
from trio.testing import MockClock

from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, Rig, send, subscribe
from tests.settings.routing.test_bindings import request
from tests.support.depths import depths

Q = "/queue/answers"


async def said(client: Client, body: str, **headers: str) -> str:
    """The receipt, or the code of the refusal."""
    await client.send(send(Q, body, body, **{"mandatory": "true", **headers}))
    frame = await client.any()
    return frame.head.headers.get("error-code", frame.head.command)


async def test_a_mandatory_message_to_no_queue_is_refused_and_makes_none(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect(on_error="keep-open")

        assert await said(client, "1") == "unroutable"
        assert await said(client, "2", **{"dedup_id": "2"}) == "unroutable"
        assert (await request(client, "list/queue"))["destinations"] == []
        assert await said(client, "3", mandatory="false") == "RECEIPT"
        assert await said(client, "4") == "RECEIPT"
        assert depths(rig.alive) == {Q: 2}


async def test_a_deleted_queue_is_not_made_again(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect(on_error="keep-open")
        await request(client, f"declare{Q}", {})
        assert await said(client, "1") == "RECEIPT"

        await request(client, f"delete{Q}", force="true")

        assert await said(client, "2") == "unroutable"
        assert depths(rig.alive) == {}


async def test_a_repeated_mandatory_message_is_confirmed_after_its_queue_is_gone(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect(on_error="keep-open")
        worker = await rig.connect()
        await worker.send(subscribe(Q))
        await worker.receipt()
        assert await said(client, "1", dedup_id="one") == "RECEIPT"
        assert await worker.messages(1) == [b"1"]
        await worker.send("DISCONNECT\n\n")
        await worker.until_closed()

        assert await said(client, "1", dedup_id="one", redelivered="true") == "RECEIPT"
        assert await said(client, "2", dedup_id="two") == "unroutable"


@pytest.mark.parametrize("how", ["declared", "message", "consumer"])
async def test_a_queue_of_another_node_exists(how: str, autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        client, other = await mesh.connect("a", on_error="keep-open"), await mesh.connect("b", on_error="keep-open")
        if how == "declared":
            await request(other, f"declare{Q}", {})
        elif how == "message":
            await other.send(send(Q, "there", "r"))
            await other.receipt()
        else:
            await other.send(subscribe(Q))
            await other.receipt()

        assert await said(client, "1") == "RECEIPT"
        if how == "consumer":
            assert await other.messages(1) == [b"1"]


async def test_a_transaction_with_a_mandatory_message_to_no_queue_sends_nothing(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()

        await client.send("BEGIN\ntransaction:t\n\n", send("/queue/other", "x", transaction="t"))
        await client.send(send(Q, "x", transaction="t", mandatory="true"))

        assert [frame.head.headers["error-code"] for frame in await client.until_closed()] == ["unroutable"]
        assert depths(rig.alive) == {}
