"""Subscribers of topics and fanouts that want a part: they get it, all of it, and nothing else, on any node."""

from trio.testing import MockClock

from tests.node.mesh_rig import MeshRig
from tests.node.rig import Rig, send, subscribe


def quotes(destination: str, *symbols: str) -> list[str]:
    """A SEND for each; prices count up."""
    return [
        send(destination, f"{symbol} {price}", symbol=symbol, price=str(price))
        for price, symbol in enumerate(symbols, 1)
    ]


async def test_a_topic_subscriber_gets_what_its_selector_wants_in_order(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        picky, other, everything = await rig.connect(), await rig.connect(), await rig.connect()
        await picky.send(subscribe("/topic/quotes", selector="symbol = 'A' AND price > 1"))
        await other.send(subscribe("/topic/quotes", selector="symbol LIKE 'B%'"))
        await everything.send(subscribe("/topic/quotes"))
        for client in (picky, other, everything):
            await client.receipt()

        sender = await rig.connect()
        await sender.send(*quotes("/topic/quotes", "A", "B", "A", "BB", "A"))

        assert await everything.messages(5) == [b"A 1", b"B 2", b"A 3", b"BB 4", b"A 5"]
        assert await picky.messages(2) == [b"A 3", b"A 5"]
        assert await other.messages(2) == [b"B 2", b"BB 4"]
        assert not picky.frames and not other.frames
        assert rig.alive.broker.totals.node().delivered == 9


async def test_equal_selectors_of_several_subscriptions_share_what_is_encoded(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        clients = [await rig.connect() for _ in range(3)]
        for client, selector in zip(clients, ["symbol = 'A'", "symbol = 'A'", "symbol = 'B'"], strict=True):
            await client.send(subscribe("/topic/quotes", selector=selector))
            await client.receipt()

        await clients[0].send(*quotes("/topic/quotes", "B", "A"))

        assert [await client.messages(1) for client in clients] == [[b"A 2"], [b"A 2"], [b"B 1"]]


async def test_a_pattern_and_a_selector_on_the_destination(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(subscribe("/topic/app.#", selector="destination LIKE '%.errors' OR level >= 3"))

        await client.send(
            send("/topic/app.one.errors", "1"),
            send("/topic/app.one.info", "2"),
            send("/topic/app.two", "3", level="3"),
            send("/topic/app.two", "4", level="high"),
        )

        assert await client.messages(2) == [b"1", b"3"]
        await client.send(send("/topic/app.end", "end", level="9"))
        assert await client.messages(1) == [b"end"]


async def test_xtomps_filter_is_a_selector_too(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(subscribe("/topic/quotes", filter="symbol=A"))

        await client.send(*quotes("/topic/quotes", "A", "B", "A"))

        assert await client.messages(2) == [b"A 1", b"A 3"]


async def test_a_blank_selector_is_none(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(subscribe("/topic/t", selector=" "), send("/topic/t", "x"))

        assert await client.messages(1) == [b"x"]


async def test_a_fanout_subscriber_gets_its_part_of_the_past_and_of_what_comes(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(*quotes("/fanout/quotes", "A", "B", "A"), send("/fanout/quotes", "", "sent"))
        await client.receipt()

        await client.send(
            subscribe("/fanout/quotes", id="all"),
            subscribe("/fanout/quotes", id="b", selector="symbol = 'B'"),
            subscribe("/fanout/quotes", id="new", x_stream_offset="next", selector="symbol = 'B'"),
        )
        past = [await client.next("MESSAGE") for _ in range(5)]
        await client.send(*quotes("/fanout/quotes", "A", "B"))
        live = [await client.next("MESSAGE") for _ in range(4)]

        def heard(frames: list, id: str) -> list[bytes]:  # type: ignore[type-arg]
            return [frame.body for frame in frames if frame.head.headers["subscription"] == id]

        assert heard(past, "all") == [b"A 1", b"B 2", b"A 3", b""]
        assert (heard(past, "b"), heard(past, "new")) == ([b"B 2"], [])
        assert (heard(live, "all"), heard(live, "b"), heard(live, "new")) == ([b"A 1", b"B 2"], [b"B 2"], [b"B 2"])


async def test_a_subscription_with_a_buffer_of_its_own_selects_too(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        bounded = {"selector": "symbol = 'A'", "buffer_messages": "10", "overflow": "drop-oldest"}
        await client.send(
            subscribe("/topic/quotes", id="t", **bounded),
            subscribe("/fanout/quotes", id="f", x_stream_offset="next", **bounded),
        )
        await client.send(*quotes("/topic/quotes", "A", "B", "A"), *quotes("/fanout/quotes", "B", "A"))

        assert sorted(await client.messages(3)) == [b"A 1", b"A 2", b"A 3"]
        assert not client.frames or client.frames[0].head.command == "RECEIPT"


async def test_resuming_with_a_selector_skips_nothing_that_is_wanted(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(
            subscribe("/fanout/quotes", selector="symbol = 'A'"), *quotes("/fanout/quotes", "A", "B", "A", "B", "A")
        )
        first = await client.next("MESSAGE")
        origin, _, sequence = first.head.headers["message-id"].rpartition("-")
        again = await rig.connect()
        await again.send(subscribe("/fanout/quotes", selector="symbol = 'A'", qmq_resume=f"{origin}={sequence}"))

        assert await again.messages(2) == [b"A 3", b"A 5"]


async def test_a_selector_that_means_nothing_is_refused_with_its_column(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(subscribe("/topic/t", selector="price >"))

        (error,) = await client.until_closed()

        assert error.head.command == "ERROR"
        assert error.head.headers["error-code"] == "bad-selector"
        assert error.head.headers["receipt-id"] == "sub-0"
        assert "column 8" in error.head.headers["message"]


async def test_a_selector_is_asked_on_the_node_of_the_subscriber(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        picky, everything = await mesh.connect("b"), await mesh.connect("b")
        publisher = await mesh.connect("a")
        await picky.send(subscribe("/topic/quotes", selector="symbol = 'A' OR \"x y\" = 'a:b'"))
        await everything.send(subscribe("/topic/quotes"))
        assert [await picky.receipt(), await everything.receipt()] == ["sub-0", "sub-0"]
        await mesh.until_wanted("a", "/topic/quotes")

        await publisher.send(
            *quotes("/topic/quotes", "A", "B", "A"), "SEND\ndestination:/topic/quotes\nx y:a\\cb\n\nlast"
        )

        assert await everything.messages(4) == [b"A 1", b"B 2", b"A 3", b"last"]
        assert await picky.messages(3) == [b"A 1", b"A 3", b"last"]


async def test_a_fanout_is_selected_from_on_another_node(autojump_clock: MockClock) -> None:
    async with MeshRig("a", "b").run() as mesh:
        publisher, subscriber = await mesh.connect("a"), await mesh.connect("b")
        await publisher.send(*quotes("/fanout/quotes", "A", "B", "A"))
        await subscriber.send(subscribe("/fanout/quotes", selector="symbol = 'A'"))
        assert await subscriber.messages(2) == [b"A 1", b"A 3"]

        await publisher.send(*quotes("/fanout/quotes", "B", "A"))

        assert await subscriber.messages(1) == [b"A 2"]
