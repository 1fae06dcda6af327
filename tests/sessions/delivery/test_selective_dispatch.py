"""Selectors, groups, exclusive consumers, windows and browsers of queues, through real frames on one node."""

import pytest
import trio
from trio.testing import MockClock

from qmq.broker.queues.paging.pager import PAGE_MESSAGES
from qmq.broker.queues.selective import selector_paging
from qmq.broker.queues.selective.selector_paging import KEPT_MAX
from qmq.build import BUILD
from tests.engine.checkpoint.test_queue_paging import JOBS, SMALL, consume, publish
from tests.node.rig import Client, Rig, send, subscribe


async def consumer(rig: Rig, id: str = "0", ack: str = "client-individual", **headers: str) -> Client:
    client = await rig.connect()
    await client.send(subscribe(JOBS, id, ack, **headers))
    await client.receipt()
    return client


async def test_a_selector_finds_its_message_behind_a_backlog_that_it_does_not_want(autojump_clock: MockClock) -> None:
    rig = Rig(limits=SMALL)
    async with rig.run():
        sender = await rig.connect()
        await publish(sender, 1, 12_000, color="blue")
        await publish(sender, 12_001, 12_001, color="red")
        await rig.alive.engine.checkpoints.checkpoint()
        await publish(sender, 12_002, 12_002, color="blue")

        red = await consumer(rig, selector="color = 'red'")

        assert await consume(red, 1) == [12_001]
        queue = rig.alive.broker.queues.by_name[JOBS]
        assert queue.held < 4000
        assert queue.depth == 12_001


async def test_what_a_selector_went_past_is_there_for_the_next_consumer_in_order(autojump_clock: MockClock) -> None:
    rig = Rig(limits=SMALL)
    async with rig.run():
        sender = await rig.connect()
        await publish(sender, 1, 5000, color="blue")
        await publish(sender, 5001, 5001, color="red")
        await rig.alive.engine.checkpoints.checkpoint()
        red = await consumer(rig, selector="color = 'red'", prefetch="5")
        assert await consume(red, 1) == [5001]
        await publish(sender, 5002, 5003, color="blue")

        plain = await consumer(rig, prefetch="10")

        assert await consume(plain, 5002) == [*range(1, 5001), 5002, 5003]
        assert rig.alive.broker.queues.by_name[JOBS].depth == 0


async def test_after_a_restart_a_selector_lets_go_of_what_it_loads(autojump_clock: MockClock) -> None:
    rig = Rig(limits=SMALL)
    async with rig.run():
        sender = await rig.connect()
        await publish(sender, 1, 6000, color="blue")
        await publish(sender, 6001, 6001, color="red")
    async with rig.run():
        red = await consumer(rig, selector="color = 'red'")

        assert await consume(red, 1) == [6001]
        assert rig.alive.broker.queues.by_name[JOBS].held < 2500


async def test_two_selectors_of_different_speed_empty_a_paged_queue(autojump_clock: MockClock) -> None:
    rig = Rig(limits=SMALL)
    async with rig.run():
        sender = await rig.connect()
        for number in range(1, 3001):
            await sender.send(send(JOBS, str(number), color="red" if number % 2 else "blue"))
        await sender.send("SEND\ndestination:/topic/done\nreceipt:done\n\n")
        await sender.receipt()
        await rig.alive.engine.checkpoints.checkpoint()

        red = await consumer(rig, selector="color = 'red'", prefetch="1")
        blue = await consumer(rig, selector="color = 'blue'", prefetch="100")

        assert await consume(blue, 1500) == list(range(2, 3001, 2))
        assert await consume(red, 1500) == list(range(1, 3001, 2))
        assert rig.alive.broker.queues.by_name[JOBS].depth == 0
    assert KEPT_MAX > 3000, "else the fast one may have to wait for the slow one"


@pytest.mark.skipif(BUILD == "compiled", reason="a bound that is compiled stays")
async def test_what_waits_for_a_slow_consumer_is_bounded_in_bytes(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selector_paging, "KEPT_BYTES_MAX", 1 << 20)
    rig = Rig(limits=SMALL)
    async with rig.run():
        sender = await rig.connect()
        for number in range(1, 2601):
            color = "red" if number < 2600 else "blue"
            await sender.send(send(JOBS, f"{number:4096}", color=color))
        await sender.send("SEND\ndestination:/topic/done\nreceipt:done\n\n")
        await sender.receipt()
        await rig.alive.engine.checkpoints.checkpoint()

        red = await consumer(rig, selector="color = 'red'", prefetch="1")
        blue = await consumer(rig, selector="color = 'blue'", prefetch="100")
        await trio.sleep(10)

        assert rig.alive.broker.queues.by_name[JOBS].held < 256 + 2 * PAGE_MESSAGES
        assert await consume(red, 2599) == list(range(1, 2600))
        assert await consume(blue, 1) == [2600]


async def test_groups_come_out_of_the_store_whole_and_in_order(autojump_clock: MockClock) -> None:
    rig = Rig(limits=SMALL)
    async with rig.run():
        sender = await rig.connect()
        for number in range(1, 2501):
            await sender.send(send(JOBS, str(number), JMSXGroupID=f"g{number % 3}"))
        await sender.send("SEND\ndestination:/topic/done\nreceipt:done\n\n")
        await sender.receipt()
        await rig.alive.engine.checkpoints.checkpoint()

        client = await rig.connect()
        await client.send(subscribe(JOBS, "one", "client-individual", prefetch="10"))
        await client.send(subscribe(JOBS, "two", "client-individual", prefetch="10"))
        seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
        holders: dict[int, set[str]] = {0: set(), 1: set(), 2: set()}
        for _ in range(2500):
            frame = await client.next("MESSAGE")
            number = int(frame.body)
            seen[number % 3].append(number)
            holders[number % 3].add(frame.head.headers["subscription"])
            await client.send(f"ACK\nid:{frame.head.headers['ack']}\n\n")

        for group, numbers in seen.items():
            assert numbers == list(range(group or 3, 2501, 3))
        # The first subscription was alone for a moment.
        assert all(len(names) <= 2 for names in holders.values())


async def test_a_window_of_one_lets_queues_take_turns(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect(prefetch="1")
        await client.send(*(send(f"/queue/{name}", name) for name in "aab" for _ in range(2)))
        for name in "ab":
            await client.send(subscribe(f"/queue/{name}", name, "client-individual", prefetch="5"))

        bodies = []
        for _ in range(6):
            frame = await client.next("MESSAGE")
            bodies.append(frame.body)
            assert len(rig.alive.broker.queues.deliveries) == 1
            await client.send(f"ACK\nid:{frame.head.headers['ack']}\n\n")

        assert bodies == [b"a", b"b", b"a", b"b", b"a", b"a"]


async def test_a_browser_gets_copies_of_all_and_then_the_end(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        sender = await rig.connect()
        await sender.send(
            send(JOBS, "later", priority="1"),
            send(JOBS, "memory", persistent="false"),
            send(JOBS, "first", priority="9", color="red"),
            send(JOBS, "due in a while", delay="60000", receipt="r"),
        )
        await sender.receipt()

        browser = await rig.connect()
        await browser.send(subscribe(JOBS, browser="true"))
        assert await browser.messages(3) == [b"first", b"memory", b"later"]
        end = (await browser.next("MESSAGE")).head.headers
        assert (end["browser"], end["subscription"], end["destination"]) == ("end", "0", JOBS)

        await sender.send(send(JOBS, "after", receipt="r2"))
        await sender.receipt()
        await browser.send("UNSUBSCRIBE\nid:0\nreceipt:u\n\n")
        assert await browser.receipt() == "sub-0"
        assert await browser.receipt() == "u"
        assert not [frame for frame in browser.frames if frame.head.command == "MESSAGE"]
        assert rig.alive.broker.queues.by_name[JOBS].depth == 5


async def test_a_browser_gets_memory_only_messages_that_are_in_flight_and_none_that_have_expired(
    autojump_clock: MockClock,
) -> None:
    async with Rig().run() as rig:
        worker = await consumer(rig, prefetch="1")
        sender = await rig.connect()
        await sender.send(
            send(JOBS, "in flight", persistent="false"),
            send(JOBS, "first", persistent="false", priority="9"),
            send(JOBS, "expired", persistent="false", ttl="100"),
            send(JOBS, "expired meanwhile", persistent="false", ttl="500"),
            send(JOBS, "due in a while", persistent="false", delay="60000", receipt="r"),
        )
        await sender.receipt()
        assert await worker.messages(1) == [b"in flight"]
        await trio.sleep(0.6)

        browser = await rig.connect()
        await browser.send(subscribe(JOBS, browser="true"))

        assert await browser.messages(3) == [b"first", b"in flight", b""]


async def test_a_browser_of_many_pages_reads_at_the_pace_of_its_client_and_heeds_its_selector(
    autojump_clock: MockClock,
) -> None:
    rig = Rig(limits=SMALL)
    async with rig.run():
        sender = await rig.connect()
        await publish(sender, 1, 700, color="blue")
        await publish(sender, 701, 702, color="red")

        browser = await rig.connect()
        await browser.send(
            subscribe(JOBS, "all", browser="true"), subscribe(JOBS, "red", browser="true", filter="color=red")
        )

        bodies: dict[str, list[bytes]] = {"all": [], "red": []}
        ends = 0
        while ends < 2:
            frame = await browser.next("MESSAGE")
            headers = frame.head.headers
            ends += headers.get("browser") == "end"
            bodies[headers["subscription"]].append(frame.body)
        assert bodies["all"] == [*(b"%d" % number for number in range(1, 703)), b""]
        assert bodies["red"] == [b"701", b"702", b""]
        assert rig.alive.broker.queues.by_name.get(JOBS) is None or not rig.alive.broker.queues.deliveries


async def test_a_browser_of_an_empty_queue_hears_the_end_at_once(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        browser = await rig.connect()
        await browser.send(subscribe("/queue/nothing", browser="true"))

        assert (await browser.next("MESSAGE")).head.headers["browser"] == "end"
        assert "/queue/nothing" not in rig.alive.broker.queues.by_name


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"browser": "yes"}, "bad-header"),
        ({"exclusive": "1"}, "bad-header"),
        ({"activemq.exclusive": "on"}, "bad-header"),
        ({"browser": "true", "ack": "client"}, "bad-ack-mode"),
        ({"selector": "color ="}, "bad-selector"),
    ],
)
async def test_a_header_that_means_nothing_is_refused(
    headers: dict[str, str], code: str, autojump_clock: MockClock
) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        await client.send(f"SUBSCRIBE\nid:0\ndestination:{JOBS}\n{lines}\n")

        (error,) = await client.until_closed()
        assert error.head.headers["error-code"] == code


async def test_a_window_that_is_no_number_is_refused_at_login(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.dial()
        await client.send("CONNECT\naccept-version:1.2\nhost:x\nprefetch:none\n\n")

        (error,) = await client.until_closed()
        assert error.head.headers["error-code"] == "bad-prefetch"


async def test_browsers_that_are_given_up_at_once_leave_nothing_and_keep_no_other_out(
    autojump_clock: MockClock,
) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await publish(client, 1, 3)
        for number in range(300):
            await client.send(
                f"SUBSCRIBE\nid:{number}\ndestination:{JOBS}\nbrowser:true\n\n", f"UNSUBSCRIBE\nid:{number}\n\n"
            )
        await publish(client, 4, 4)
        assert sum(map(len, rig.alive.session_parts.browsing._waiting.values())) <= 1

        other = await rig.connect()
        await other.send(subscribe(JOBS, "b", browser="true"))
        seen = [(await other.next("MESSAGE")).body for _ in range(5)]

        assert seen == [b"1", b"2", b"3", b"4", b""]
        assert not rig.alive.session_parts.browsing._waiting
