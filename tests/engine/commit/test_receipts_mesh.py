"""Receipts that wait for the disks of other nodes, in a mesh of whole nodes."""

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from qmq.config import DestinationPolicy, DestinationSettings
from qmq.model.dots import Vector
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Rig, send, subscribe
from tests.node.stuck_rig import SECOND, SOON, StuckRig, marks, nothing_comes, receipt_of, three

pytestmark = pytest.mark.trio


async def test_a_receipt_in_a_mesh_of_three_means_two_disks_and_says_nothing_extra(autojump_clock: Any) -> None:
    async with three().run() as rig:
        rig.stick("b", "c")
        client = await rig.connect("a")
        await client.send(send("/queue/jobs", "x", "r"))

        await nothing_comes(client, SECOND / 2)
        rig.free.set()
        receipt = await receipt_of(client, SOON)

        assert marks(receipt) == {}
        a = rig.nodes["a"]
        assert any(vector.get(a.origin) for vector in disks(rig, "b", "c"))


def disks(rig: MeshRig, *names: str) -> list[Vector]:
    return [rig.nodes[name].engine.path.durable_vector() for name in names]


async def test_one_of_two_peers_is_enough_for_one_copy_and_not_for_two(autojump_clock: Any) -> None:
    async with three().run() as rig:
        rig.stick("c")
        client = await rig.connect("a")
        await client.send(send("/queue/jobs", "x", "one"))
        assert marks(await receipt_of(client, SOON)) == {}

        await client.send(send("/queue/jobs", "y", "two", receipt_level="replicas=2"))
        receipt = await receipt_of(client, SECOND + SOON)

        assert marks(receipt) == {"receipt-level": "fsync", "copies": "2"}


async def test_an_outage_costs_a_second_once_and_ends_when_it_is_healed(autojump_clock: Any) -> None:
    async with three().run() as rig:
        client = await rig.connect("a")
        rig.cut("a", "b")
        rig.cut("a", "c")

        began = trio.current_time()
        await client.send(send("/queue/jobs", "0", "r0"))
        assert marks(await receipt_of(client, SECOND + SOON)) == {"receipt-level": "fsync", "copies": "1"}
        assert trio.current_time() - began >= SECOND
        for number in range(20):
            await client.send(send("/queue/jobs", "x", f"s{number}"))
            assert marks(await receipt_of(client, SOON)) == {"receipt-level": "fsync", "copies": "1"}

        rig.heal("a", "b")
        rig.heal("a", "c")
        await rig.until_linked()
        await trio.sleep(SECOND)
        await client.send(send("/queue/jobs", "x", "full"))

        assert marks(await receipt_of(client, SOON)) == {}


async def test_a_mesh_that_refuses_says_that_the_message_stays(autojump_clock: Any) -> None:
    async with three(mesh={"receipt_short": "refuse"}).run() as rig:
        client = await rig.connect("a", on_error="keep-open")
        rig.cut("a", "b")
        rig.cut("a", "c")
        await client.send(send("/queue/jobs", "x", "r"))

        with trio.fail_after(SECOND + SOON):
            error = await client.any()

        assert error.head.command == "ERROR"
        assert error.head.headers["error-code"] == "too-few-copies"
        assert error.head.headers["receipt-id"] == "r"
        assert "was accepted, but" in error.head.headers["message"]
        await client.send(subscribe("/queue/jobs"))
        assert await client.messages(1) == [b"x"]


async def test_a_refusal_ends_a_session_that_did_not_ask_to_stay(autojump_clock: Any) -> None:
    async with three(mesh={"receipt_short": "refuse"}).run() as rig:
        client = await rig.connect("a")
        rig.cut("a", "b")
        rig.cut("a", "c")
        await client.send(*(send("/queue/jobs", "x", f"r{n}") for n in range(3)))

        frames = await client.until_closed()

        assert [frame.head.headers.get("receipt-id") for frame in frames] == ["r0"]


async def test_levels_of_one_connection_keep_the_order_of_sending(autojump_clock: Any) -> None:
    async with three().run() as rig:
        rig.stick("b", "c")
        client = await rig.connect("a")
        await client.send(
            send("/queue/jobs", "0", "accepted", receipt_level="accepted"),
            send("/queue/jobs", "1", "fsync", receipt_level="fsync"),
            send("/queue/jobs", "2", "copied"),
            send("/queue/jobs", "3", "accepted behind", receipt_level="accepted"),
            send("/topic/t", "4", "topic"),
        )
        assert [await client.receipt() for _ in range(2)] == ["accepted", "fsync"]
        await client.send(send("/queue/jobs", "5", "later", receipt_level="fsync"), "DISCONNECT\nreceipt:bye\n\n")
        await nothing_comes(client, SECOND / 2)

        rig.free.set()

        assert [await client.receipt() for _ in range(5)] == ["copied", "accepted behind", "topic", "later", "bye"]


async def test_an_accepted_receipt_does_not_wait_for_the_own_disk(autojump_clock: Any) -> None:
    async with three().run() as rig:
        rig.stick("a")
        client = await rig.connect("a")
        for _ in range(3):
            await client.send(send("/queue/jobs", "x", "r", receipt_level="accepted"))
            assert marks(await receipt_of(client, SOON)) == {}
        await client.send(send("/queue/jobs", "y", "s", receipt_level="fsync"))
        await client.send(send("/queue/jobs", "z", "t", receipt_level="accepted"))
        await nothing_comes(client, SECOND)

        rig.free.set()

        assert [await client.receipt(), await client.receipt()] == ["s", "t"]


async def test_another_client_does_not_wait_for_copies_that_it_did_not_ask_for(autojump_clock: Any) -> None:
    async with three().run() as rig:
        rig.stick("b", "c")
        slow, quick = await rig.connect("a"), await rig.connect("a")
        await slow.send(send("/queue/jobs", "x", "r"))
        await quick.send(send("/queue/jobs", "y", "s", receipt_level="fsync"))

        assert marks(await receipt_of(quick, SOON)) == {}
        await nothing_comes(slow, SECOND / 2)


async def test_deliveries_do_not_wait_for_copies(autojump_clock: Any) -> None:
    async with three().run() as rig:
        rig.stick("b", "c")
        consumer, publisher = await rig.connect("a"), await rig.connect("a")
        await consumer.send(subscribe("/queue/jobs"))
        await consumer.receipt()
        await publisher.send(send("/queue/jobs", "x", "r"))

        with trio.fail_after(SOON):
            assert await consumer.messages(1) == [b"x"]


async def test_receipts_of_a_transaction_wait_as_its_strongest_frame_asks(autojump_clock: Any) -> None:
    async with three(mesh={"receipt": "fsync"}).run() as rig:
        rig.stick("b", "c")
        client = await rig.connect("a")
        await client.send(
            "BEGIN\ntransaction:t\n\n",
            send("/queue/jobs", "x", "weak", transaction="t"),
            send("/queue/jobs", "y", "strong", transaction="t", receipt_level="replicas=2"),
            "COMMIT\ntransaction:t\nreceipt:commit\n\n",
        )
        await nothing_comes(client, SECOND / 2)

        rig.free.set()

        assert [await client.receipt() for _ in range(3)] == ["weak", "strong", "commit"]


async def test_a_receipt_of_an_ack_waits_for_copies_of_the_settle(autojump_clock: Any) -> None:
    async with three().run() as rig:
        client = await rig.connect("a")
        await client.send(subscribe("/queue/jobs", ack="client-individual"), send("/queue/jobs", "x", "r"))
        message = await client.next("MESSAGE")
        assert [await client.receipt(), await client.receipt()] == ["sub-0", "r"]
        rig.stick("b", "c")

        await client.send(f"ACK\nid:{message.head.headers['ack']}\nreceipt:ack\n\n")
        await nothing_comes(client, SECOND / 2)
        rig.free.set()

        assert await client.receipt() == "ack"


async def test_the_policy_of_a_destination_says_how_many_disks(autojump_clock: Any) -> None:
    policies = (DestinationPolicy(pattern="/queue/quick", receipt="fsync"),)
    async with three(destinations=DestinationSettings(policies=policies)).run() as rig:
        rig.stick("b", "c")
        client = await rig.connect("a")
        await client.send(send("/queue/quick", "x", "r"))
        assert marks(await receipt_of(client, SOON)) == {}

        await client.send(send("/queue/other", "x", "s"))
        await nothing_comes(client, SECOND / 2)


async def test_two_nodes_wait_for_their_own_disks_only_by_default(autojump_clock: Any) -> None:
    async with StuckRig("a", "b").run() as rig:
        rig.stick("b")
        client = await rig.connect("a")
        await client.send(send("/queue/jobs", "x", "r"))
        assert marks(await receipt_of(client, SOON)) == {}

        await client.send(send("/queue/jobs", "x", "s", receipt_level="replicas=1"))
        await nothing_comes(client, SECOND / 2)
        rig.free.set()
        assert await client.receipt() == "s"


async def test_a_level_that_cannot_be_is_refused_with_the_most(autojump_clock: Any) -> None:
    rig = Rig()
    async with rig.run():
        for word in ("replicas=1", "two"):
            client = await rig.connect()
            await client.send(send("/queue/jobs", "x", "r", receipt_level=word))
            error = await client.any()
            assert error.head.headers["error-code"] == "bad-receipt-level"
            assert "one of accepted, fsync" in error.head.headers["message"]


async def test_the_level_does_not_travel_with_the_message(autojump_clock: Any) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await client.send(subscribe("/queue/jobs"), send("/queue/jobs", "x", receipt_level="fsync"))

        message = await client.next("MESSAGE")

        assert "receipt-level" not in message.head.headers


async def test_a_client_that_leaves_while_it_waits_harms_no_other(autojump_clock: Any) -> None:
    async with three().run() as rig:
        rig.stick("b", "c")
        gone, stays = await rig.connect("a"), await rig.connect("a")
        await gone.send(send("/queue/jobs", "x", "r"))
        await wait_all_tasks_blocked()
        gone.pipe.close()
        await stays.send(send("/queue/jobs", "y", "s"))
        await nothing_comes(stays, SECOND / 2)

        rig.free.set()

        assert await stays.receipt() == "s"
