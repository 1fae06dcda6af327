"""Durable subscriptions of fanouts on one node, through its sockets: deliveries, settles, positions and gaps."""

from contextlib import suppress

import pytest
import trio
from trio.testing import MockClock

from qmq.config import DestinationPolicy, DestinationSettings
from qmq.errors import CorruptLog
from qmq.model.dots import Origin
from qmq.sessions.delivery.durable_feed import KEPT_BYTES, REFUSED_SECONDS
from qmq.wire.stomp import Frame
from tests.node.rig import Client, Rig, eventually, nothing_more, send, subscribe
from tests.sessions.clients.test_access import users

F = "/fanout/f"


async def durable(rig: Rig, *, ack: str = "client-individual", id: str = "mail", **headers: str) -> Client:
    await eventually(lambda: not any(name.name == id for name in rig.alive.broker.durable_subscriptions.attached))
    client = await rig.connect()
    await client.send(subscribe(F, id=id, ack=ack, durable="true", **headers))
    await client.receipt()
    return client


async def publish(rig: Rig, *bodies: str, destination: str = F) -> None:
    client = await rig.connect()
    for body in bodies:
        await client.send(send(destination, body, "r"))
        await client.receipt()
    await leave(client)


async def leave(client: Client) -> None:
    await client.send("DISCONNECT\nreceipt:bye\n\n")
    await client.until_closed()


async def taken(client: Client, count: int) -> list[Frame]:
    return [await client.next("MESSAGE") for _ in range(count)]


def ack(frame: Frame, command: str = "ACK", **headers: str) -> str:
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    return f"{command}\nid:{frame.head.headers['ack']}\n{lines}receipt:a\n\n"


async def acknowledge(client: Client, *frames: Frame) -> None:
    for frame in frames:
        await client.send(ack(frame))
        assert await client.receipt() == "a"


def bodies(frames: list[Frame]) -> list[bytes]:
    return [frame.body for frame in frames]


def redelivered(frames: list[Frame]) -> list[bool]:
    return [frame.head.headers.get("redelivered") == "true" for frame in frames]


async def test_a_new_one_begins_now_and_a_known_one_where_its_acks_ended(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        await publish(rig, "before")
        client = await durable(rig)
        await publish(rig, "1", "2")
        got = await taken(client, 2)
        await acknowledge(client, *got)
        await leave(client)
        await publish(rig, "3", "4")

        client = await durable(rig)

        assert bodies(got) == [b"1", b"2"]
        assert bodies(await taken(client, 2)) == [b"3", b"4"]
        await nothing_more(client)


async def test_what_was_not_acknowledged_comes_again_and_says_so(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await durable(rig)
        await publish(rig, *"12345")
        got = await taken(client, 5)
        await acknowledge(client, got[1], got[3])
        await leave(client)
        await publish(rig, "6")

        again = await taken(await durable(rig), 4)

        assert bodies(again) == [b"1", b"3", b"5", b"6"]
        assert redelivered(again) == [True, True, True, False]


async def test_client_mode_acknowledges_everything_before(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await durable(rig, ack="client")
        await publish(rig, *"123")
        await acknowledge(client, (await taken(client, 3))[1])
        await leave(client)

        assert bodies(await taken(await durable(rig), 1)) == [b"3"]


async def test_auto_mode_is_done_with_what_the_socket_took(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await durable(rig, ack="auto")
        await publish(rig, "1")
        assert (await taken(client, 1))[0].head.headers.get("ack") is None
        await leave(client)
        await publish(rig, "2")

        again = await taken(await durable(rig, ack="auto"), 1)

        assert (bodies(again), redelivered(again)) == ([b"2"], [False])


@pytest.mark.parametrize("crash", [False, True])
async def test_cursors_survive_a_start_of_the_node(autojump_clock: MockClock, crash: bool) -> None:
    rig = Rig()
    with suppress(ExceptionGroup):
        async with rig.run():
            client = await durable(rig)
            await publish(rig, *"1234")
            got = await taken(client, 3)
            await acknowledge(client, got[0], got[2])
            if crash:
                raise RuntimeError("the process dies here")
    if crash:
        rig.disk.crash(rig.fabric.rng)
    rig.fabric = type(rig.fabric)(rig.fabric.rng)
    async with rig.run():
        again = await taken(await durable(rig), 2)

        assert bodies(again) == [b"2", b"4"]
        assert redelivered(again) == [True, True]


async def test_an_ack_is_on_disk_before_its_receipt(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await durable(rig)
        await publish(rig, "1")
        got = await taken(client, 1)
        before = rig.alive.store.journal.synced_end

        await acknowledge(client, *got)

        assert rig.alive.store.journal.synced_end > before


async def test_acks_of_one_read_make_one_record(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await durable(rig)
        await publish(rig, *map(str, range(50)))
        got = await taken(client, 50)
        before = rig.alive.broker.next_sequence

        await client.send("".join(f"ACK\nid:{frame.head.headers['ack']}\n\n\0" for frame in got[:-1]) + ack(got[-1]))
        await client.receipt()

        assert rig.alive.broker.next_sequence == before + 1


async def test_credit_bounds_what_is_in_flight_live_and_from_the_log(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await durable(rig, prefetch_count="3")
        await publish(rig, *map(str, range(20)))
        for first in range(0, 18, 3):
            got = await taken(client, 3)
            await nothing_more(client)
            assert bodies(got) == [b"%d" % n for n in range(first, first + 3)]
            await acknowledge(client, *got)
        assert bodies(await taken(client, 2)) == [b"18", b"19"]


async def test_a_reader_without_credit_keeps_little_and_skips_nothing(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await durable(rig, prefetch_count="2", x_stream_offset="first")
        publisher = await rig.connect()
        size = KEPT_BYTES // 3
        # In one batch, so that one read gives far more than may be kept.
        await publisher.send(
            "BEGIN\ntransaction:t\n\n",
            *(send(F, f"{n:02}" + "x" * size, transaction="t") for n in range(20)),
            "COMMIT\ntransaction:t\nreceipt:r\n\n",
        )
        await publisher.receipt()
        seen = []
        for _ in range(20):
            got = await taken(client, 1)
            seen.append(int(got[0].body[:2]))
            await acknowledge(client, *got)

        assert seen == list(range(20))


async def test_a_refused_message_comes_again_later_and_others_go_on(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await durable(rig)
        await publish(rig, "bad", "good")
        bad, good = await taken(client, 2)
        began = trio.current_time()

        await client.send(ack(bad, "NACK"))
        await acknowledge(client, good)
        again = await taken(client, 1)

        assert (bodies(again), redelivered(again)) == ([b"bad"], [True])
        assert trio.current_time() - began >= REFUSED_SECONDS
        await acknowledge(client, *again)
        await leave(client)
        await nothing_more(await durable(rig))


async def test_acks_of_a_transaction_count_at_commit(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await durable(rig)
        await publish(rig, "1", "2")
        got = await taken(client, 2)
        await client.send(
            "BEGIN\ntransaction:t\n\n", ack(got[0], transaction="t"), "ABORT\ntransaction:t\nreceipt:b\n\n"
        )
        await client.receipt()
        await client.send(
            "BEGIN\ntransaction:t\n\n",
            ack(got[1], transaction="t"),
            send("/queue/made", "of it", transaction="t"),
            "COMMIT\ntransaction:t\nreceipt:c\n\n",
        )
        while await client.receipt() != "c":
            pass
        await leave(client)

        assert bodies(await taken(await durable(rig), 1)) == [b"1"]


async def test_the_last_client_has_the_name_and_the_one_before_gets_the_reason(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        first = await durable(rig)
        await publish(rig, "1", "2")
        got = await taken(first, 2)
        await first.send(ack(got[0], receipt="a"))
        await first.receipt()

        second = await rig.connect()
        await second.send(subscribe(F, id="mail", ack="client", durable="true"))

        last = (await first.until_closed())[-1].head.headers
        assert (last["error-code"], last["subscription"]) == ("durable-taken-over", "mail")
        (again,) = await taken(second, 1)
        assert (again.body, again.head.headers["redelivered"]) == (b"2", "true")


async def test_one_connection_uses_a_name_once(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect(client_id="ann", on_error="keep-open")
        words = {"ack": "client", "durable-subscription-name": "mail"}
        await client.send(subscribe(F, id="1", **words), subscribe(F, id="2", **words))

        assert await error(client) == "durable-in-use"
        await publish(rig, "x")
        assert bodies(await taken(client, 1)) == [b"x"]


async def test_one_that_is_refused_takes_over_nothing(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        first, second = await durable(rig), await rig.connect()
        await second.send(subscribe("/topic/t", id="mail"), subscribe(F, id="mail", ack="client", durable="true"))
        assert await error(second) == "duplicate-subscription"

        await publish(rig, "x")

        assert bodies(await taken(first, 1)) == [b"x"]


async def test_a_client_that_said_disconnect_can_come_back_at_once(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        first, second = await durable(rig), await rig.connect()
        await first.send("DISCONNECT\nreceipt:bye\n\n")
        await first.receipt()  # its socket stays open

        await second.send(subscribe(F, id="mail", ack="client", durable="true"))

        assert await second.receipt() == "sub-mail"


async def error(client: Client) -> str:
    while True:
        for frame in client.frames:
            if frame.head.command == "ERROR":
                client.frames.remove(frame)
                return frame.head.headers["error-code"]
        await client._read()


async def test_unsubscribe_with_the_same_words_deletes_and_without_them_keeps(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await durable(rig)
        await client.send("UNSUBSCRIBE\nid:mail\nreceipt:u\n\n")
        await client.receipt()
        await publish(rig, "kept")
        client = await durable(rig)
        assert bodies(await taken(client, 1)) == [b"kept"]

        await client.send("UNSUBSCRIBE\nid:mail\ndurable:true\nreceipt:u\n\n")
        await client.receipt()
        await publish(rig, "gone")

        await nothing_more(await durable(rig))


@pytest.mark.parametrize(
    "header", ["durable-subscription-name", "durable-subscriber-name", "activemq.subscriptionName"]
)
async def test_the_words_of_activemq_name_one_too(autojump_clock: MockClock, header: str) -> None:
    async with Rig().run() as rig:
        name = {header: "mail"}
        client = await rig.connect(client_id="ann")
        await client.send(subscribe(F, id="1", ack="client", **name))
        await leave(client)
        await publish(rig, "1")

        client = await rig.connect(client_id="ann")
        await client.send(subscribe(F, id="2", ack="client", **name))
        assert bodies(await taken(client, 1)) == [b"1"]
        await client.send(f"UNSUBSCRIBE\nid:2\n{header}:mail\nreceipt:u\n\n")
        while await client.receipt() != "u":
            pass
        assert [cursor.created_us for cursor in rig.alive.broker.durable_subscriptions.by_name.values()] == [0]


@pytest.mark.parametrize("destination", [F, "/topic/t"])
async def test_one_of_a_subscription_without_an_id_is_deleted_without_it(
    autojump_clock: MockClock, destination: str
) -> None:
    words = f"destination:{destination}\nactivemq.subscriptionName:mail\n"
    async with Rig().run() as rig:
        client = await rig.connect(client_id="ann")

        for _ in range(2):
            await client.send(f"SUBSCRIBE\n{words}receipt:s\n\n")
            assert await client.receipt() == "s"
            await client.send(f"UNSUBSCRIBE\n{words}receipt:u\n\n")
            assert await client.receipt() == "u"

        assert not any(session.subscribed for session in rig.alive.broker.sessions.values())


async def test_one_of_activemq_is_deleted_without_being_used(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect(client_id="ann")
        await client.send(subscribe(F, id="1", activemq_subscriptionName="mail"))
        await leave(client)
        client = await rig.connect(client_id="ann")
        await client.send("SUBSCRIBE\nid:2\ndestination:/fanout/f\nactivemq.subscriptionName:mail\nreceipt:s\n\n")
        await client.send("UNSUBSCRIBE\nid:2\nreceipt:u\n\n")

        await client.send("UNSUBSCRIBE\nactivemq.subscriptionName:mail\nreceipt:d\n\n")

        while await client.receipt() != "d":
            pass
        assert not any(cursor.created_us for cursor in rig.alive.broker.durable_subscriptions.by_name.values())


@pytest.mark.parametrize(
    ("frame", "code", "says"),
    [
        (subscribe("/topic/t", durable="true", selector="a = 1"), "bad-selector", "no selector"),
        (subscribe(F, durable="maybe"), "bad-header", "true or false"),
        (subscribe(F, durable_subscription_name="m"), "missing-header", "client-id"),
        (subscribe(F, id="n" * 256, durable="true"), "bad-durable", "255"),
        ("UNSUBSCRIBE\nid:none\ndestination:/fanout/f\ndurable:true\n\n", "unknown-subscription", "no durable"),
        ("UNSUBSCRIBE\nid:none\ndurable:true\n\n", "missing-header", "destination"),
        (subscribe(F, x_stream_offset="middle"), "bad-offset", "offset=N"),
        (subscribe(F, x_stream_offset="offset=-1"), "bad-offset", "timestamp=S"),
        (subscribe(F, x_stream_offset="timestamp=soon"), "bad-offset", "first, last, next"),
    ],
)
async def test_what_makes_no_sense_is_refused_with_what_would(
    autojump_clock: MockClock, frame: str, code: str, says: str
) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(frame)

        headers = (await client.until_closed())[-1].head.headers

        assert headers["error-code"] == code
        assert says in headers["message"]


async def test_a_durable_word_on_a_queue_says_nothing_new(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(subscribe("/queue/q", durable="true"), "UNSUBSCRIBE\nid:0\ndurable:true\nreceipt:u\n\n")

        assert [await client.receipt(), await client.receipt()] == ["sub-0", "u"]


@pytest.mark.parametrize(
    ("offset", "expected"),
    [("first", "0123456789"), ("last", "9"), ("next", ""), ("offset=7", "789"), ("offset=99", "")],
)
@pytest.mark.parametrize("is_durable", [False, True])
@pytest.mark.parametrize("checkpoint", [False, True])
async def test_offsets(
    autojump_clock: MockClock, offset: str, expected: str, is_durable: bool, checkpoint: bool
) -> None:
    async with Rig().run() as rig:
        await publish(rig, *"0123456789")
        if checkpoint:
            await rig.alive.engine.checkpoints.checkpoint()
        client = await rig.connect()
        await client.send(subscribe(F, x_stream_offset=offset, **({"durable": "true"} if is_durable else {})))
        await client.receipt()
        await publish(rig, "new")

        assert b"".join(await client.messages(len(expected) + 1)) == expected.encode() + b"new"
        await nothing_more(client)
        if is_durable:
            await leave(client)
            await publish(rig, "later")
            client = await rig.connect()
            await client.send(subscribe(F, durable="true"))
            assert await client.messages(1) == [b"later"]


@pytest.mark.parametrize(("offset", "expected"), [("last", "9"), ("offset=7", "789"), ("offset=99", "")])
async def test_a_beginning_counts_also_if_its_connection_ends_at_once(
    autojump_clock: MockClock, offset: str, expected: str
) -> None:
    async with Rig().run() as rig:
        await publish(rig, *"0123456789")
        client = await rig.connect()

        await client.send(subscribe(F, x_stream_offset=offset, durable="true"), "DISCONNECT\n\n")
        await client.until_closed()
        await publish(rig, "new")

        client = await rig.connect()
        await client.send(subscribe(F, durable="true"))
        assert b"".join(await client.messages(len(expected) + 1)) == expected.encode() + b"new"
        await nothing_more(client)


@pytest.mark.parametrize(("offset", "expected"), [("last", "9"), ("offset=7", "789"), ("offset=99", "")])
async def test_a_beginning_is_on_disk_before_its_receipt(autojump_clock: MockClock, offset: str, expected: str) -> None:
    rig = Rig()
    with suppress(ExceptionGroup):
        async with rig.run():
            await publish(rig, *"0123456789")
            client = await rig.connect()
            await client.send(subscribe(F, x_stream_offset=offset, durable="true", ack="client"))
            await client.receipt()
            await publish(rig, "new")
            raise RuntimeError("the process dies here")
    rig.disk.crash(rig.fabric.rng)
    rig.fabric = type(rig.fabric)(rig.fabric.rng)

    async with rig.run():
        client = await rig.connect()
        await client.send(subscribe(F, x_stream_offset="first", durable="true"))

        assert b"".join(await client.messages(len(expected) + 1)) == expected.encode() + b"new"
        await nothing_more(client)


async def test_the_log_is_read_for_no_client_that_may_not_subscribe(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig(users=users("none", "client")).run() as rig:
        asked: list[str] = []
        monkeypatch.setattr(rig.alive.store, "fanout_before", lambda name, *at: asked.append(name) or {})
        codes = []
        for user in ("none", "client"):
            client = await rig.connect(login=user, passcode="secret")
            await client.send(subscribe(F, x_stream_offset="offset=1", durable="true"))
            codes.append((await client.any()).head.headers.get("error-code"))

        assert (codes, asked) == (["not-allowed", None], [F])


async def test_a_beginning_in_an_unreadable_log_is_refused_and_leaves_no_name(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*at: object) -> None:
        raise CorruptLog("damaged")

    async with Rig().run() as rig:
        client = await rig.connect()
        monkeypatch.setattr(rig.alive.store, "fanout_before", unreadable)
        await client.send(subscribe(F, x_stream_offset="last", durable="true"))
        frames = await client.until_closed()

        assert [frame.head.headers["error-code"] for frame in frames] == ["log-unreadable"]
        assert not rig.alive.broker.durable_subscriptions.by_name


async def test_a_beginning_counts_what_its_client_has_just_sent(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()

        await client.send(*(send(F, body) for body in "012"), subscribe(F, x_stream_offset="offset=1", durable="true"))

        assert await client.messages(2) == [b"1", b"2"]
        await nothing_more(client)


async def test_a_timestamp_begins_with_what_was_accepted_then_or_later(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        await publish(rig, "old")
        await trio.sleep(100)
        now = rig.alive.environment.now_us() / 1e6
        await trio.sleep(1)
        await publish(rig, "young", "younger")
        client = await rig.connect()

        await client.send(subscribe(F, x_stream_offset=f"timestamp={now:.3f}"))

        assert await client.messages(2) == [b"young", b"younger"]


# Gaps


HOUR = 3600.0
BRIEF = DestinationSettings(policies=(DestinationPolicy(pattern=F, retention_seconds=HOUR),))


def gap_of(frame: Frame) -> tuple[int, int]:
    """The one range that a notice names."""
    assert frame.body == b""
    _, _, span = frame.head.headers["qmq-gap"].rpartition("=")
    first, _, last = span.partition("-")
    return int(first), int(last)


def sequence_of(frame: Frame) -> int:
    return int(frame.head.headers["message-id"].rpartition("-")[2])


async def test_a_durable_subscriber_behind_retention_gets_an_exact_gap_notice(
    autojump_clock: MockClock,
) -> None:
    async with Rig(destinations=BRIEF).run() as rig:
        client = await durable(rig)
        await publish(rig, "1")
        one = (await taken(client, 1))[0]
        await acknowledge(client, one)
        await leave(client)
        await publish(rig, "2", "3")
        last_lost = rig.alive.broker.next_sequence - 1
        await trio.sleep(3 * HOUR)
        await publish(rig, "4")

        client = await durable(rig)
        notice, four = await taken(client, 2)

        assert gap_of(notice) == (sequence_of(one) + 1, last_lost)
        assert four.body == b"4"
        # Like any message it comes again until it is acknowledged.
        await acknowledge(client, four)
        await leave(client)
        client = await durable(rig)
        (notice,) = await taken(client, 1)
        assert gap_of(notice) == (sequence_of(one) + 1, last_lost)
        await acknowledge(client, notice)
        await leave(client)
        await nothing_more(await durable(rig))


async def test_a_new_durable_subscription_at_first_misses_nothing(autojump_clock: MockClock) -> None:
    async with Rig(destinations=BRIEF).run() as rig:
        await publish(rig, "1", "2")
        await trio.sleep(3 * HOUR)
        await publish(rig, "3")

        client = await durable(rig, x_stream_offset="first")

        (three,) = await taken(client, 1)
        assert three.body == b"3"
        await acknowledge(client, three)
        await leave(client)
        await nothing_more(await durable(rig))


async def test_a_subscriber_that_resumes_behind_retention_gets_a_gap_too(autojump_clock: MockClock) -> None:
    async with Rig(destinations=BRIEF).run() as rig:
        client = await rig.connect()
        await client.send(subscribe(F))
        await publish(rig, "1", "2", "3")
        one, _, three = await taken(client, 3)
        origin, _, sequence = one.head.headers["message-id"].rpartition("-")
        await trio.sleep(3 * HOUR)
        await publish(rig, "4")

        behind, level = await rig.connect(), await rig.connect()
        await behind.send(subscribe(F, qmq_resume=f"{origin}={sequence}"))
        await level.send(subscribe(F, qmq_resume=f"{origin}={sequence_of(three)}"))

        notice, four = await taken(behind, 2)
        assert gap_of(notice) == (int(sequence) + 1, sequence_of(three))
        assert four.body == b"4"
        assert await level.messages(1) == [b"4"]


async def test_what_the_node_gave_up_is_missing_too(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await durable(rig)
        await publish(rig, "1")
        await acknowledge(client, *(await taken(client, 1)))
        await leave(client)
        lost = Origin("b", 0xB)
        rig.alive.mesh_parts.catch_up._losses.accept_gap(lost, 77)
        await rig.alive.engine.path.flushed()

        (notice,) = await taken(await durable(rig), 1)

        assert notice.head.headers["qmq-gap"] == f"{lost}=1-77"


async def test_a_notice_has_a_message_id_that_no_message_has(autojump_clock: MockClock) -> None:
    """Clients drop what repeats an id: that of a notice is of memory, as is that of a message that no journal has."""
    async with Rig().run() as rig:
        await publish(rig, "1")
        notices = []
        for lost in (Origin("b", 0xB), Origin("b", 0xC)):
            client = await durable(rig, id=f"of {lost}", x_stream_offset="first")
            await acknowledge(client, *(await taken(client, 1)))
            await leave(client)
            rig.alive.mesh_parts.catch_up._losses.accept_gap(lost, 77)
            await rig.alive.engine.path.flushed()
            (notice,) = await taken(await durable(rig, id=f"of {lost}"), 1)
            notices.append(notice)
        reader = await rig.connect()
        await reader.send(subscribe("/queue/memory"), send("/queue/memory", "m", persistent="false"))

        ids = [frame.head.headers["message-id"] for frame in [*notices, await reader.next("MESSAGE")]]

        assert [id.rpartition("-")[0] for id in ids] == [str(rig.alive.origin)] * 3
        assert len(set(ids)) == 3
        assert all(id.rpartition("-")[2].startswith("m") for id in ids), ids


async def test_a_selector_leaves_out_for_good_what_it_does_not_want(autojump_clock: MockClock) -> None:
    async with Rig(destinations=BRIEF).run() as rig:
        client = await durable(rig, selector="colour = 'red'")
        sender = await rig.connect()
        for body, colour in (("1", "red"), ("2", "blue"), ("3", "red"), ("4", "blue")):
            await sender.send(send(F, body, "r", colour=colour))
            await sender.receipt()
        got = await taken(client, 2)
        assert bodies(got) == [b"1", b"3"]
        await acknowledge(client, *got)
        await leave(client)
        await trio.sleep(3 * HOUR)

        await nothing_more(await durable(rig, selector="colour = 'red'"))


async def test_durable_subscriptions_are_bounded(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Rig().run() as rig:
        monkeypatch.setattr(rig.alive.broker.durable_subscriptions, "durables_max", 1)
        await durable(rig)
        other = await rig.connect()
        await other.send(subscribe(F, id="other", durable="true"))

        assert (await other.until_closed())[-1].head.headers["error-code"] == "too-many-durables"


async def test_a_session_that_ends_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await durable(rig, prefetch_count="1")
        await publish(rig, *"123")
        await taken(client, 1)
        client.pipe.close()
        node = rig.alive
        await eventually(lambda: not node.sessions and not node.session_parts.fanout_subscribers.reading)

        assert not node.session_parts.fanout_subscribers.live
        assert not node.broker.queues.deliveries
        assert not node.broker.durable_subscriptions.attached
        assert not node.session_parts.fanout_subscribers.feeds._waiting
