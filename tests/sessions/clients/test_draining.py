"""SIGTERM: clients finish their work in flight, get the reason for the disconnect, and nothing is delivered twice."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from qmq.wire.stomp import Frame
from tests.node.mesh_rig import MeshRig, host_of
from tests.node.rig import Client, Rig, eventually, nothing_more, send, subscribe
from tests.support.depths import depths

JOBS = "/queue/jobs"


async def consumer(client: Client, ack: str = "client-individual", **headers: str) -> Client:
    await client.send(subscribe(JOBS, ack=ack, **headers))
    await client.receipt()
    return client


async def publish(client: Client, *bodies: str) -> None:
    for body in bodies:
        await client.send(send(JOBS, body, "r"))
        await client.receipt()


def acknowledge(message: Frame, receipt: str = "acked") -> str:
    return f"ACK\nid:{message.head.headers['ack']}\nreceipt:{receipt}\n\n"


def commands(frames: list[Frame]) -> list[str]:
    return [frame.head.headers.get("error-code") or frame.head.command for frame in frames]


async def test_a_client_with_nothing_in_flight_is_disconnected_with_a_reason_at_once(autojump_clock: MockClock) -> None:
    async with Rig(limits={"drain_seconds": 1000.0}).run() as rig:
        idle = await consumer(await rig.connect())
        begun = trio.current_time()

        rig.alive.stop()

        assert commands(await idle.until_closed()) == ["stopping"]
        assert trio.current_time() < begun + 2


async def test_a_client_with_a_message_in_hand_is_given_no_other_and_settles_it_first(
    autojump_clock: MockClock,
) -> None:
    rig = Rig(limits={"drain_seconds": 20.0})
    async with rig.run():
        busy = await consumer(await rig.connect(), prefetch_count="1")
        writer = await rig.connect()
        await publish(writer, "one", "two")
        message = await busy.next("MESSAGE")
        rig.alive.stop()
        assert commands(await writer.until_closed()) == ["stopping"]

        await busy.send(acknowledge(message))

        assert commands(await busy.until_closed()) == ["RECEIPT", "stopping"]
    async with rig.run():
        other = await consumer(await rig.connect())
        again = await other.next("MESSAGE")
        assert (again.body, again.head.headers.get("redelivered")) == (b"two", None)


@pytest.mark.parametrize("ack", ["auto", "client"])
async def test_the_other_ack_modes_leave_nothing_in_hand_either(autojump_clock: MockClock, ack: str) -> None:
    async with Rig(limits={"drain_seconds": 1000.0}).run() as rig:
        client = await consumer(await rig.connect(), ack=ack)
        await publish(await rig.connect(), "one", "two")
        await client.next("MESSAGE")
        last = await client.next("MESSAGE")

        rig.alive.stop()
        if ack == "client":
            await client.send(acknowledge(last))

        assert commands(await client.until_closed())[-1] == "stopping"
        assert not depths(rig.alive).get(JOBS)


async def test_an_open_transaction_may_still_be_committed_with_new_sends_in_it(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await client.send("BEGIN\ntransaction:t\n\n", send(JOBS, "one", transaction="t"))
        await client.send("SEND\ndestination:/topic/none\nreceipt:begun\n\n")
        await client.receipt()

        rig.alive.stop()
        await client.send(send(JOBS, "two", "in", transaction="t"), send(JOBS, "beside", "beside"))
        assert await client.receipt() == "beside"
        await client.send("COMMIT\ntransaction:t\nreceipt:done\n\n")

        assert commands(await client.until_closed()) == ["RECEIPT", "RECEIPT", "stopping"]
    async with rig.run():
        assert depths(rig.alive)[JOBS] == 3


async def test_the_frame_that_a_client_is_sending_is_taken_whole(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await client.pipe.send_all(b"SEND\ndestination:/queue/jobs\nreceipt:whole\n\nthe first half, ")
        session = next(iter(rig.alive.sessions.values()))
        await eventually(lambda: session.dialogue._connection.is_amid_frame)

        rig.alive.stop()
        await client.pipe.send_all(b"the second half\0SEND\ndestination:/queue/jobs\n\nanother ")

        assert commands(await client.until_closed()) == ["RECEIPT", "stopping"]
    async with rig.run():
        assert await (await consumer(await rig.connect(), ack="auto")).messages(1) == [
            b"the first half, the second half"
        ]


async def test_a_client_that_does_not_answer_is_let_go_after_a_while_and_its_message_is_marked(
    autojump_clock: MockClock,
) -> None:
    rig = Rig(limits={"drain_seconds": 7.0})
    async with rig.run():
        silent = await consumer(await rig.connect())
        await publish(await rig.connect(), "job")
        await silent.next("MESSAGE")
        begun = trio.current_time()

        rig.alive.stop()

        assert commands(await silent.until_closed()) == ["stopping"]
        assert 7 <= trio.current_time() - begun < 9
    async with rig.run():
        again = await (await consumer(await rig.connect())).next("MESSAGE")
        assert (again.body, again.head.headers["redelivered"]) == (b"job", "true")


async def test_no_subscription_begins_any_more(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await consumer(await rig.connect())
        await publish(await rig.connect(), "job")
        await client.next("MESSAGE")

        rig.alive.stop()
        await client.send(subscribe("/queue/other", id="1"))

        (error,) = await client.until_closed()
        assert error.head.headers["error-code"] == "stopping"
        assert error.head.headers["receipt-id"] == "sub-1"


async def test_a_durable_subscription_is_handed_nothing_more_and_takes_its_acks(autojump_clock: MockClock) -> None:
    rig = Rig(limits={"drain_seconds": 20.0})
    async with rig.run():
        client = await rig.connect()
        await client.send(subscribe("/fanout/f", id="name", ack="client-individual", durable="true"))
        await client.receipt()
        writer = await rig.connect()
        await writer.send(send("/fanout/f", "one"))
        message = await client.next("MESSAGE")
        await writer.send("BEGIN\ntransaction:t\n\n")
        await writer.send(send("/topic/none", "", "r"))
        await writer.receipt()

        rig.alive.stop()
        await writer.send(send("/fanout/f", "two", "r"))
        await writer.receipt()
        await client.send(acknowledge(message))

        assert commands(await client.until_closed()) == ["RECEIPT", "stopping"]
        await writer.send("ABORT\ntransaction:t\n\n")
        await writer.until_closed()
    async with rig.run():
        client = await rig.connect()
        await client.send(subscribe("/fanout/f", id="name", ack="client-individual", durable="true"))
        again = await client.next("MESSAGE")
        assert (again.body, again.head.headers.get("redelivered")) == (b"two", None)


async def test_what_a_peer_lent_is_settled_there_before_the_node_ends(autojump_clock: MockClock) -> None:
    rig = MeshRig("a", "b", limits={"drain_seconds": 20.0}, mesh={"redeliver_after_seconds": 5.0})
    async with rig.run():
        borrower = await consumer(await rig.connect("b"), prefetch_count="1")
        await publish(await rig.connect("a"), "one", "two")
        message = await borrower.next("MESSAGE")

        rig.nodes["b"].stop()
        await trio.sleep(1)
        await borrower.send(acknowledge(message))

        assert commands(await borrower.until_closed()) == ["RECEIPT", "stopping"]
        await rig.nodes["b"].ended.wait()
        other = await consumer(await rig.connect("a"))
        following = await other.next("MESSAGE")
        assert (following.body, following.head.headers.get("redelivered")) == (b"two", None)
        await trio.sleep(20)
        assert not [frame for frame in other.frames if frame.head.command == "MESSAGE"]
        assert depths(rig.nodes["a"])[JOBS] == 1


async def test_a_node_ends_only_when_its_peers_have_what_it_recorded_last(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = MeshRig("a", "b")
    async with rig.run():
        run_commit = rig.nodes["b"].environment.run_commit

        async def slowly(call: Any, **how: Any) -> Any:
            await trio.sleep(1.5)
            return await run_commit(call, **how)

        monkeypatch.setattr(rig.nodes["b"].environment, "run_commit", slowly)
        client = await consumer(await rig.connect("a"))
        await publish(await rig.connect("a"), *map(str, range(20)))
        messages = [await client.next("MESSAGE") for _ in range(20)]
        node = rig.nodes["a"]

        node.stop()
        await client.send(*[acknowledge(message) for message in messages])
        await client.until_closed()
        await node.ended.wait()

        last = node.broker.next_sequence - 1
        assert rig.nodes["b"].engine.path.durable_vector()[node.origin] == last


async def test_what_peers_lend_while_a_node_stops_comes_back_unseen(autojump_clock: MockClock) -> None:
    rig = MeshRig("a", "b")
    async with rig.run():
        writer = await rig.connect("a")
        idle = await consumer(await rig.connect("b"), prefetch_count="50")
        await eventually(lambda: any(queue.peers_in_line for queue in rig.nodes["a"].broker.queues.by_name.values()))
        # "a" lends until it learns that no consumer is left.
        rig.fabric.slow_down(host_of(1), host_of(0), 2000, 100)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.stop, "b")
            nursery.start_soon(idle.until_closed)
            for first in range(0, 20, 4):
                await writer.send(*[send(JOBS, str(number)) for number in range(first, first + 4)])
                await trio.sleep(0.02)
        rig.fabric.speed_up(host_of(1), host_of(0))
        await rig.start("b")
        await rig.until_linked()

        other = await consumer(await rig.connect("b"), prefetch_count="50")
        again = [await other.next("MESSAGE") for _ in range(20)]
        assert [frame.body for frame in again] == [b"%d" % number for number in range(20)]
        assert not [frame.body for frame in again if "redelivered" in frame.head.headers]


async def test_what_a_node_lent_is_settled_before_it_ends_and_it_lends_nothing_more(autojump_clock: MockClock) -> None:
    rig = MeshRig("a", "b")
    async with rig.run():
        borrower = await consumer(await rig.connect("b"), prefetch_count="1")
        await publish(await rig.connect("a"), "one", "two", "three")
        message = await borrower.next("MESSAGE")

        rig.nodes["a"].stop()
        await trio.sleep(1)
        await borrower.send(acknowledge(message))
        assert await borrower.receipt() == "acked"
        await rig.nodes["a"].ended.wait()
        await nothing_more(borrower)
        await rig.start("a")
        await rig.until_linked()

        following = await borrower.next("MESSAGE")
        assert (following.body, following.head.headers.get("redelivered")) == (b"two", None)


async def test_a_node_does_not_wait_long_for_what_consumers_of_peers_do_not_settle(autojump_clock: MockClock) -> None:
    rig = MeshRig("a", "b")
    async with rig.run():
        borrower = await consumer(await rig.connect("b"), prefetch_count="1")
        await publish(await rig.connect("a"), "one", "two")
        await borrower.next("MESSAGE")
        begun = trio.current_time()

        rig.nodes["a"].stop()
        await rig.nodes["a"].ended.wait()

        assert trio.current_time() < begun + 4


async def test_what_a_wiped_peer_has_settled_is_marked_if_its_record_has_not_come(autojump_clock: MockClock) -> None:
    rig = MeshRig("a", "b", "c")
    async with rig.run():
        a = rig.nodes["a"]
        borrower = await consumer(await rig.connect("b"))
        await publish(await rig.connect("a"), "one")
        await borrower.next("MESSAGE")
        (lent,) = a.broker.lending.lent["b"]
        await rig.kill("b")
        rig.disks["b"].wipe()
        a.broker.lending.settled("b", [lent])  # Its word had come, and the record of it is lost with its disk.

        await rig.stop("a")
        await rig.start("b")
        await rig.start("a")
        await rig.until_linked()
        message = await (await consumer(await rig.connect("a"))).next("MESSAGE")

        assert (message.body, message.head.headers.get("redelivered")) == (b"one", "true")
