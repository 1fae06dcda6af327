"""When a subscriber of a topic may believe that it hears everything: receipts of SUBSCRIBE, and starting nodes."""

import pytest
import trio
from trio.testing import MockClock

from qmq.settings.definitions.sync import START_SECONDS
from qmq.wire.stomp import Frame
from tests.node.mesh_rig import MeshRig
from tests.node.rig import Client, eventually, send, subscribe

pytestmark = pytest.mark.trio

T = "/topic/t"


async def answer(client: Client) -> tuple[str, str | None]:
    """The next RECEIPT, and what it says of the interest."""
    frame: Frame = await client.next("RECEIPT")
    return frame.head.headers["receipt-id"], frame.head.headers.get("qmq-interest")


async def test_after_its_receipt_a_subscriber_hears_what_is_sent_on_any_node(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        publishers = [await mesh.connect(name) for name in "abc"]
        for number in range(20):
            subscriber = await mesh.connect("abc"[number % 3])
            topic = f"/topic/{number}"
            await subscriber.send(subscribe(topic))

            assert await answer(subscriber) == ("sub-0", None)
            for publisher in publishers:
                await publisher.send(send(topic, "x"))
            assert await subscriber.messages(3) == [b"x"] * 3


async def test_a_peer_that_does_not_answer_makes_the_receipt_partial_after_its_time(autojump_clock: MockClock) -> None:
    rig = MeshRig("a", "b", "c", mesh={"interest_confirm_seconds": 0.5, "receipt_degrade_seconds": 3.0})
    async with rig.run() as mesh:
        subscriber = await mesh.connect("a")
        mesh.cut("a", "b")
        mesh.cut("c", "b")
        began = trio.current_time()
        await subscriber.send(subscribe(T), subscribe("/topic/u", id="1"))

        first, second = await answer(subscriber), await answer(subscriber)
        waited = trio.current_time() - began

        assert (first, second) == (("sub-0", "partial"), ("sub-1", "partial"))
        assert 0.5 <= waited < 0.6


async def test_a_peer_that_is_known_to_be_away_is_not_waited_for(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        subscriber = await mesh.connect("a")
        for other in "bc":
            mesh.cut("a", other)
        await eventually(lambda: mesh.topics_via("a", "b") is mesh.topics_via("a", "c") is None)
        began = trio.current_time()

        await subscriber.send(subscribe(T))

        assert await answer(subscriber) == ("sub-0", None)
        assert trio.current_time() - began < 0.1


async def test_a_subscriber_behind_a_cut_waits_for_the_node_behind_it_too(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        mesh.cut("a", "b")
        await eventually(lambda: mesh.topics_via("a", "b") == mesh.topics_via("b", "a") == "c")
        subscriber, publisher = await mesh.connect("b"), await mesh.connect("a")
        await subscriber.send(subscribe(T))

        assert await answer(subscriber) == ("sub-0", None)
        await publisher.send(send(T, "round"))
        assert await subscriber.messages(1) == [b"round"]


async def test_later_answers_of_the_connection_wait_in_their_order_and_messages_behind_them(
    autojump_clock: MockClock,
) -> None:
    async with MeshRig("a", "b").run() as mesh:
        subscriber = await mesh.connect("a")
        mesh.cut("a", "b")
        await subscriber.send(subscribe(T), send(T, "own", receipt="sent"))

        came = [await subscriber.any() for _ in range(3)]
        assert [frame.head.headers.get("receipt-id") for frame in came] == ["sub-0", "sent", None]
        assert came[0].head.headers["qmq-interest"] == "partial"


async def test_a_subscription_without_a_receipt_waits_for_no_peer(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        subscriber = await mesh.connect("a")
        mesh.cut("a", "b")
        began = trio.current_time()

        await subscriber.send(subscribe(T).replace("receipt:sub-0\n", ""), send(T, "own", receipt="sent"))

        assert await answer(subscriber) == ("sent", None)
        assert trio.current_time() - began < 0.1


async def test_a_node_that_starts_knows_all_interest_before_it_takes_a_message(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        subscriber = await mesh.connect("a")
        await subscriber.send(subscribe(T))
        await subscriber.receipt()
        await mesh.stop("b")

        await mesh.start("b")
        publisher = await mesh.connect("b")
        await publisher.send(send(T, "at once"))

        assert await subscriber.messages(1) == [b"at once"]


async def test_a_node_whose_peers_do_not_answer_starts_all_the_same(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        mesh.cut("a", "b")
        await mesh.stop("a")
        began = trio.current_time()

        await mesh.start("a")
        took = trio.current_time() - began
        client = await mesh.connect("a")
        await client.send(send(T, "x", receipt="r"))

        assert await client.receipt() == "r"
        assert took < START_SECONDS + 0.5  # for which it waits for definitions, and for interest meanwhile


async def test_a_request_by_topic_and_its_reply_go_round_a_cut(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        mesh.cut("a", "b")
        await eventually(lambda: mesh.topics_via("a", "b") == mesh.topics_via("b", "a") == "c")
        asker, worker = await mesh.connect("a"), await mesh.connect("b")
        await worker.send(subscribe("/topic/work"))
        await worker.receipt()
        await asker.send(send("/topic/work", "?", reply_to="/temp-queue/r", correlation_id="1"))
        address = (await worker.next("MESSAGE")).head.headers["reply-to"]

        for number in range(3):
            await worker.send(send(address, str(number), receipt=str(number)))

        assert [await worker.receipt() for _ in range(3)] == ["0", "1", "2"]
        assert await asker.messages(3) == [b"0", b"1", b"2"]


async def test_a_reply_to_an_earlier_life_of_a_node_is_refused_also_behind_a_cut(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b", "c").run() as mesh:
        mesh.cut("a", "b")
        await eventually(lambda: mesh.topics_via("a", "b") == mesh.topics_via("b", "a") == "c")
        asker, worker = await mesh.connect("a"), await mesh.connect("b", on_error="keep-open")
        await worker.send(subscribe("/topic/work"))
        await worker.receipt()
        await asker.send(send("/topic/work", "?", reply_to="/temp-queue/r", correlation_id="1"))
        address = (await worker.next("MESSAGE")).head.headers["reply-to"]
        await mesh.stop("a")
        await mesh.start("a")
        await eventually(lambda: mesh.topics_via("b", "a") == "c")

        await worker.send(send(address, "late", receipt="r"))

        assert (await worker.next("ERROR")).head.headers["error-code"] == "unknown-destination"
