"""One node, end to end on virtual time: what its clients see when things go right, and when they go wrong."""

import argon2
import pytest
import trio
from trio.testing import MockClock

from qmq.broker.consumers.light_subscriptions import PREFIXES_MAX
from qmq.config import DestinationPolicy, DestinationSettings, StorageSettings, User
from qmq.config.limits import BODY_BYTES_CEILING, TRANSACTION_BYTES_CEILING
from qmq.errors import LogBroken
from qmq.gateways.stomp import StompGateway
from qmq.storage.format.batch import BATCH_BYTES_MAX
from tests.node.rig import Rig, eventually, send, subscribe
from tests.support.depths import depths


async def test_each_kind_of_destination_delivers(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        reader, writer = await rig.connect(), await rig.connect()
        for number, kind in enumerate(("topic", "queue", "fanout")):
            await reader.send(subscribe(f"/{kind}/x", id=str(number)))
            await reader.receipt()

            await writer.send(send(f"/{kind}/x", f"to a {kind}", receipt="r"))

            assert await writer.receipt() == "r"
            message = await reader.next("MESSAGE")
            assert message.body == f"to a {kind}".encode()
            assert message.head.headers["subscription"] == str(number)
            assert message.head.headers["destination"] == f"/{kind}/x"


async def test_a_receipted_message_survives_a_crash_right_after_the_receipt(autojump_clock: MockClock) -> None:
    rig = Rig()
    with pytest.raises(ExceptionGroup):
        async with rig.run():
            writer = await rig.connect()
            await writer.send(send("/queue/q", "job", "1"), send("/fanout/f", "news", "2"))
            assert [await writer.receipt(), await writer.receipt()] == ["1", "2"]
            raise RuntimeError("the process dies here")
    rig.disk.crash(rig.fabric.rng)
    rig.fabric = type(rig.fabric)(rig.fabric.rng)

    async with rig.run():
        reader = await rig.connect()
        await reader.send(subscribe("/queue/q", id="q"), subscribe("/fanout/f", id="f"))
        seen = await reader.messages(2)

    assert sorted(seen) == [b"job", b"news"]


async def test_a_failed_sync_stops_the_node_before_anything_is_sent(autojump_clock: MockClock) -> None:
    rig, told = Rig(), []
    with pytest.raises(ExceptionGroup) as failed:
        async with rig.run():
            writer = await rig.connect()
            rig.disk.fail_at(1)
            await writer.send(send("/queue/q", "job", "1"))
            told += await writer.until_closed()  # the end of the node may end this first

    assert failed.group_contains(LogBroken)
    assert not told + writer.frames


async def test_queue_messages_come_back_after_an_orderly_restart_in_their_order(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        writer = await rig.connect()
        await writer.send(*[send("/queue/q", str(n), f"r{n}") for n in range(20)])
        for n in range(20):
            assert await writer.receipt() == f"r{n}"

    async with rig.run():
        reader = await rig.connect()
        await reader.send(subscribe("/queue/q", ack="client-individual"))
        await reader.receipt()
        assert await reader.messages(20) == [str(n).encode() for n in range(20)]


async def test_acknowledged_messages_do_not_come_back_after_a_restart(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await client.send(subscribe("/queue/q", ack="client-individual"))
        await client.receipt()
        await client.send(send("/queue/q", "done"), send("/queue/q", "open"))
        first = await client.next("MESSAGE")
        await client.next("MESSAGE")
        await client.send(f"ACK\nid:{first.head.headers['ack']}\nreceipt:a\n\n")
        assert await client.receipt() == "a"

    async with rig.run():
        client = await rig.connect()
        await client.send(subscribe("/queue/q", ack="client-individual"))
        await client.receipt()
        assert await client.messages(1) == [b"open"]


async def test_messages_of_a_vanished_consumer_go_to_another_marked_as_redelivered(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        first, second = await rig.connect(), await rig.connect()
        await first.send(subscribe("/queue/q", ack="client"))
        await first.receipt()
        await second.send(send("/queue/q", "job", "r"))
        await second.receipt()
        await first.next("MESSAGE")

        first.pipe.close()
        await second.send(subscribe("/queue/q", ack="client"))

        await second.receipt()
        message = await second.next("MESSAGE")
        assert message.body == b"job"
        assert message.head.headers["redelivered"] == "true"
        assert message.head.headers["delivery-count"] == "2"


async def test_a_late_fanout_subscriber_reads_everything_once_while_messages_keep_coming(
    autojump_clock: MockClock,
) -> None:
    rig = Rig(storage=StorageSettings(checkpoint_bytes=4096))
    async with rig.run():
        writer = await rig.connect()
        readers = []
        for n in range(300):
            await writer.send(send("/fanout/f", str(n), "r" if n % 50 == 0 else None))
            if n % 50 == 0:
                await writer.receipt()
                reader = await rig.connect()
                await reader.send(subscribe("/fanout/f"))
                readers.append(reader)

        for reader in readers:
            await reader.receipt()
            assert await reader.messages(300) == [str(n).encode() for n in range(300)]
        assert rig.alive.engine.checkpoints.count > 1


async def test_a_fanout_subscriber_resumes_after_what_it_has_seen(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(*[send("/fanout/f", str(n)) for n in range(5)], subscribe("/fanout/f"))
        await client.receipt()
        seen = [await client.next("MESSAGE") for _ in range(3)]
        origin, _, sequence = seen[-1].head.headers["message-id"].rpartition("-")

        other = await rig.connect()
        await other.send(subscribe("/fanout/f", qmq_resume=f"{origin}={sequence}"))

        await other.receipt()
        assert await other.messages(2) == [b"3", b"4"]


async def test_next_takes_only_new_fanout_messages(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(send("/fanout/f", "old", "r"))
        await client.receipt()
        await client.send(subscribe("/fanout/f", x_stream_offset="next"))
        await client.receipt()

        await client.send(send("/fanout/f", "new"))

        assert await client.messages(1) == [b"new"]


async def test_a_slow_fanout_follower_goes_back_to_the_log_and_misses_nothing(autojump_clock: MockClock) -> None:
    rig = Rig(limits={"subscriber_buffer_bytes_default": 20_000})
    async with rig.run():
        slow, writer = await rig.connect(), await rig.connect()
        await slow.send(subscribe("/fanout/f"))
        await slow.receipt()
        body = "x" * 1000
        for n in range(400):
            await writer.send(send("/fanout/f", f"{n} {body}", "r"))
            await writer.receipt()

        seen = await slow.messages(400)

        assert [int(message.split()[0]) for message in seen] == list(range(400))


async def test_a_topic_subscriber_that_does_not_read_is_disconnected_with_a_reason_and_others_go_on(
    autojump_clock: MockClock,
) -> None:
    rig = Rig(limits={"outbox_bytes_max": 100_000, "body_bytes_max": 25_000})
    async with rig.run():
        slow, quick, writer = await rig.connect(), await rig.connect(), await rig.connect()
        for client in (slow, quick):
            await client.send(subscribe("/topic/t"))
            await client.receipt()
        body = "x" * 2000
        for n in range(200):
            await writer.send(send("/topic/t", f"{n} {body}", "r"))
            await writer.receipt()
            await quick.next("MESSAGE")

        frames = await slow.until_closed()

        assert frames[-1].head.command == "ERROR"
        assert frames[-1].head.headers["error-code"] == "slow-consumer"
        assert 0 < len(frames) < 200


async def test_a_memory_queue_drains_through_an_auto_consumer_longer_than_its_credit(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(*[send("/queue/q", str(n), persistent="false") for n in range(1000)])
        await client.send(subscribe("/queue/q"))
        await client.receipt()
        assert await client.messages(1000) == [str(n).encode() for n in range(1000)]
        await eventually(lambda: depths(rig.alive)["/queue/q"] == 0)


async def test_what_a_client_asked_before_it_ended_its_half_is_answered(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(send("/queue/q", "last words", "r"))
        client.pipe.end_sending()

        frames = await client.until_closed()

        assert [frame.head.headers["receipt-id"] for frame in frames] == ["r"]


async def test_disconnect_is_answered_after_everything_before_it(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(send("/queue/q", "x", "1"), send("/topic/t", "y", "2"), "DISCONNECT\nreceipt:3\n\n")

        frames = await client.until_closed()

        assert [frame.head.headers["receipt-id"] for frame in frames] == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"SEND\ndestination:/queue/q\ncontent-length:2\n\nabc\0", "missing-nul"),
        (b"SEND\ndestination:/queue/q\ncontent-length:-1\n\n\0", "bad-content-length"),
        (b"SEND\ndestination:/queue/q\nnote:\\t\n\n\0", "bad-escape"),
        (b"SHOUT\n\n\0", "unknown-command"),
        (b"CONNECT\naccept-version:1.2\n\n\0", "already-connected"),
        (b"\xff\xfe" * 100 + b"\n\n\0", "unknown-command"),
    ],
)
async def test_broken_bytes_get_an_error_that_names_the_rule_and_end_only_their_connection(
    autojump_clock: MockClock, data: bytes, code: str
) -> None:
    async with Rig().run() as rig:
        bad, good = await rig.connect(), await rig.connect()
        await bad.send(send("/queue/q", "good", "before"))

        await bad.pipe.send_all(data)

        frames = await bad.until_closed()
        assert [frame.head.command for frame in frames] == ["RECEIPT", "ERROR"]
        assert frames[1].head.headers["error-code"] == code
        await good.send(send("/topic/t", "x", "still here"))
        assert await good.receipt() == "still here"


async def test_a_bug_in_one_session_ends_that_connection_alone(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = StompGateway.handle

    def broken(self: StompGateway, frames: list, now_us: int, out: object) -> None:  # type: ignore[type-arg]
        if any(frame.body == b"trigger" for frame in frames):
            raise ZeroDivisionError("a bug")
        handle(self, frames, now_us, out)  # type: ignore[arg-type]

    monkeypatch.setattr(StompGateway, "handle", broken)
    async with Rig().run() as rig:
        bad, good = await rig.connect(), await rig.connect()
        await bad.send(send("/topic/t", "trigger"))
        await bad.until_closed()

        await good.send(send("/topic/t", "x", "still here"))
        assert await good.receipt() == "still here"
        await eventually(lambda: len(rig.alive.sessions) == 1)


async def test_nothing_but_an_error_before_login(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.dial()
        await client.send(send("/queue/q", "x", "r"))

        (error,) = await client.until_closed()

        assert error.head.headers["error-code"] == "not-connected"
        assert not rig.alive.broker.queues.by_name


async def test_a_silent_connection_is_closed_after_the_login_time(autojump_clock: MockClock) -> None:
    async with Rig(limits={"login_seconds": 3.0}).run() as rig:
        client = await rig.dial()
        began = trio.current_time()

        (error,) = await client.until_closed()

        assert error.head.headers["error-code"] == "login-timeout"
        assert 2.9 <= trio.current_time() - began < 5.0
        await eventually(lambda: rig.alive.session_parts.login_path.admission.pending == 0)


async def test_users_log_in_with_their_passcode_and_no_other_does(autojump_clock: MockClock) -> None:
    hasher = argon2.PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
    rig = Rig(users=(User(name="ann", password_hash=hasher.hash("secret"), groups=("client",)),), anonymous=False)
    async with rig.run():
        answer = await (await rig.dial()).log_in(login="ann", passcode="secret")
        refused = []
        for headers in ({"login": "ann", "passcode": "wrong"}, {"login": "bob", "passcode": "secret"}, {}):
            client = await rig.dial()
            lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
            await client.send(f"CONNECT\naccept-version:1.2\n{lines}\n")
            refused += [frame.head.headers["error-code"] for frame in await client.until_closed()]

        assert answer.head.headers["user-name"] == "ann"
        assert refused == ["login-failed", "login-failed", "login-required"]


async def test_connections_are_bounded_per_address_and_given_back(autojump_clock: MockClock) -> None:
    async with Rig(limits={"connections_per_address_max": 2}).run() as rig:
        one = await rig.connect("10.0.0.1")
        await rig.connect("10.0.0.1")
        await rig.connect("10.0.0.2")

        (error,) = await (await rig.dial("10.0.0.1")).until_closed()
        await one.send("DISCONNECT\n\n")
        await one.until_closed()
        await eventually(lambda: len(rig.alive.sessions) == 2)
        await rig.connect("10.0.0.1")

        assert error.head.headers["error-code"] == "too-many-connections"


@pytest.mark.parametrize(
    ("asked", "agreed"), [("1000,2000", "2000,1000"), ("1000,0", "0,1000"), ("1000,60000", "60000,1000")]
)
async def test_the_node_beats_as_agreed_and_notices_silence(autojump_clock: MockClock, asked: str, agreed: str) -> None:
    async with Rig(limits={"heartbeat_grace": 2.0}).run() as rig:
        client = await rig.dial()
        answer = await client.log_in(heart_beat=asked)
        began = trio.current_time()

        await client.until_closed()

        assert answer.head.headers["heart-beat"] == agreed
        assert 1.9 <= trio.current_time() - began < 3.5
        await eventually(lambda: not rig.alive.sessions)


async def test_a_client_that_beats_stays_and_hears_the_node(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.dial()
        await client.log_in(heart_beat="1000,1000")
        before = len(client.raw)
        for _ in range(10):
            await client.pipe.send_all(b"\n")
            await trio.sleep(1.0)
        await client.send(send("/topic/t", "x", "alive"))

        assert await client.receipt() == "alive"
        assert bytes(client.raw[before:]).count(b"\n") >= 8


async def test_beats_go_on_while_a_fast_sender_waits_for_the_disk(autojump_clock: MockClock) -> None:
    async with Rig(limits={"commit_pending_bytes_max": 1}).run() as rig:
        client = await rig.dial()
        await client.log_in(heart_beat="0,250")
        await client.send(*[send("/queue/q", "x" * 500, f"r{n}") for n in range(500)])
        for n in range(500):
            assert await client.receipt() == f"r{n}"
        assert rig.alive.engine.commits.pending_bytes == 0


async def test_a_full_disk_refuses_new_messages_while_queues_drain(autojump_clock: MockClock) -> None:
    rig = Rig(storage=StorageSettings(disk_reserve_bytes=1 << 20, checkpoint_bytes=1 << 16))
    async with rig.run():
        client = await rig.connect(on_error="keep-open")
        await client.send(subscribe("/queue/q", ack="client-individual"), send("/queue/q", "job", "r"))
        await client.receipt()
        await client.receipt()
        message = await client.next("MESSAGE")
        rig.disk.capacity_bytes = rig.disk.used_bytes() + 4096
        await rig.alive.engine.checkpoints.check_space()

        await client.send(send("/queue/q", "more", "refused"))
        error = await client.next("ERROR")
        await client.send(f"ACK\nid:{message.head.headers['ack']}\nreceipt:settled\n\n")

        assert error.head.headers["error-code"] == "disk-full"
        assert error.head.headers["receipt-id"] == "refused"
        assert await client.receipt() == "settled"


async def test_a_bounded_queue_refuses_what_is_too_much_and_takes_more_when_it_has_drained(
    autojump_clock: MockClock,
) -> None:
    policy = DestinationPolicy(pattern="/queue/small", max_messages=2)
    async with Rig(destinations=DestinationSettings(policies=(policy,))).run() as rig:
        client = await rig.connect(on_error="keep-open")
        await client.send(*[send("/queue/small", str(n), str(n)) for n in range(3)])
        error = await client.next("ERROR")
        assert [await client.receipt(), await client.receipt()] == ["0", "1"]
        await client.send(subscribe("/queue/small"))
        assert await client.receipt() == "sub-0"
        assert await client.messages(2) == [b"0", b"1"]

        await client.send(send("/queue/small", "again", "r"))

        assert error.head.headers["error-code"] == "queue-full"
        assert await client.messages(1) == [b"again"]


async def test_a_client_that_stays_hears_its_answers_in_the_order_of_its_frames(autojump_clock: MockClock) -> None:
    policy = DestinationPolicy(pattern="/queue/small", max_messages=1)
    async with Rig(destinations=DestinationSettings(policies=(policy,))).run() as rig:
        client = await rig.connect(on_error="keep-open")
        small = [send("/queue/small", str(n), f"small-{n}") for n in range(3)]

        await client.send(small[0], small[1], send("/queue/other", "x", "other"), small[2], send("/topic/t", "x", "t"))

        answers = [await client.any() for _ in range(5)]
        assert [(frame.head.command, frame.head.headers["receipt-id"]) for frame in answers] == [
            ("RECEIPT", "small-0"),
            ("ERROR", "small-1"),
            ("RECEIPT", "other"),
            ("ERROR", "small-2"),
            ("RECEIPT", "t"),
        ]


async def test_only_configured_destinations_exist_when_nothing_is_created_on_use(autojump_clock: MockClock) -> None:
    policy = DestinationPolicy(pattern="/queue/jobs*")
    settings = DestinationSettings(create_on_use=False, policies=(policy,))
    async with Rig(destinations=settings).run() as rig:
        client = await rig.connect(on_error="keep-open")
        await client.send(send("/queue/jobs.one", "x", "yes"), send("/queue/other", "x", "no"))

        assert (await client.next("ERROR")).head.headers["error-code"] == "unknown-destination"
        assert await client.receipt() == "yes"


async def test_a_stop_sends_everything_decided_before_it_closes(autojump_clock: MockClock) -> None:
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await client.send(*[send("/queue/q", str(n), f"r{n}") for n in range(50)])
        await client.receipt()
        rig.alive.stop()
        *frames, error = await client.until_closed()

    assert error.head.headers["error-code"] == "stopping"
    receipts = [frame.head.headers["receipt-id"] for frame in frames]
    assert receipts == [f"r{n}" for n in range(1, 1 + len(receipts))]
    async with rig.run():
        assert depths(rig.alive)["/queue/q"] >= 1 + len(receipts)


async def test_status_answers_in_the_receipt(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        await client.send(send("/control/status", "", "r"))

        answer = await client.next("RECEIPT")

        assert '"node":"a"' in answer.head.headers["status"]


async def test_a_transaction_cut_by_a_crash_leaves_all_or_nothing(autojump_clock: MockClock) -> None:
    for cut in range(4):
        rig = Rig()
        with pytest.raises(ExceptionGroup):
            async with rig.run():
                client = await rig.connect()
                rig.disk.fail_at(cut)
                frames = [f"SEND\ndestination:/queue/q{n}\ntransaction:t\n\nx" for n in range(5)]
                await client.send("BEGIN\ntransaction:t\n\n", *frames, "COMMIT\ntransaction:t\nreceipt:c\n\n")
                await client.send(send("/queue/other", "x"))
                await client.until_closed()
        rig.disk.crash(rig.fabric.rng)
        rig.fabric = type(rig.fabric)(rig.fabric.rng)

        async with rig.run():
            queues = [name for name in rig.alive.broker.queues.by_name if name != "/queue/other"]
            assert len(queues) in (0, 5)


async def test_the_largest_transaction_is_one_batch(autojump_clock: MockClock) -> None:
    assert BODY_BYTES_CEILING + TRANSACTION_BYTES_CEILING < BATCH_BYTES_MAX
    rig = Rig()
    async with rig.run():
        client = await rig.connect()
        await client.send("BEGIN\ntransaction:t\n\n")
        for _ in range(15):
            await client.send(f"SEND\ndestination:/queue/q\ntransaction:t\n\n{'x' * 1_000_000}")
        await client.send("COMMIT\ntransaction:t\nreceipt:c\n\n")

        assert await client.receipt() == "c"
        assert depths(rig.alive)["/queue/q"] == 15


async def test_messages_for_a_long_destination_come_back_after_a_restart(autojump_clock: MockClock) -> None:
    rig = Rig(limits={"destination_bytes_max": 1024})
    queue, fanout = "/queue/" + "q" * 500, "/fanout/" + "f" * 500
    async with rig.run():
        client = await rig.connect()
        await client.send(send(queue, "job", "1"), send(fanout, "news", "2"))
        assert [await client.receipt(), await client.receipt()] == ["1", "2"]

    async with rig.run():
        client = await rig.connect()
        await client.send(subscribe(queue, id="q"), subscribe(fanout, id="f"))
        assert sorted(await client.messages(2)) == [b"job", b"news"]


async def test_a_refused_login_answers_the_receipt_that_it_asked_for(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        for frame in ("CONNECT\naccept-version:9\nreceipt:r\n\n", "CONNECT\nheart-beat:x\nreceipt:r\n\n"):
            client = await rig.dial()
            await client.send(frame)

            (error,) = await client.until_closed()

            assert error.head.headers["receipt-id"] == "r"


async def test_status_fits_a_header_line_whatever_the_queues_are_called(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await rig.connect()
        for n in range(20):
            await client.send(send(f"/queue/{n}" + '"' * 240, "x"))
        await client.send(send("/control/status", "", "r"))

        answer = await client.next("RECEIPT")

        assert '"cut":true' in answer.head.headers["status"]
        assert max(map(len, bytes(client.raw).split(b"\n"))) <= 8192


async def test_messages_of_many_topics_carry_the_ids_of_their_subscriptions(
    autojump_clock: MockClock,
) -> None:
    async with Rig(limits={"subscriptions_max": 1000}).run() as rig:
        client = await rig.connect()
        topics = [f"/topic/{number}" for number in range(2 * PREFIXES_MAX)]
        await client.send(*[subscribe(topic, id=f"id {topic}") for topic in topics])

        for _ in range(2):
            await client.send(*[send(topic, topic) for topic in topics])
            told = [await client.next("MESSAGE") for _ in topics]

            assert [frame.head.headers["subscription"] for frame in told] == [f"id {topic}" for topic in topics]
            assert [frame.body.decode() for frame in told] == topics

        await client.send(f"UNSUBSCRIBE\nid:id {topics[-1]}\n\n", send(topics[-1], "nobody hears this"))
        await client.send(subscribe(topics[-1], id="again"), send(topics[-1], "end"))
        last = await client.next("MESSAGE")
        assert (last.head.headers["subscription"], last.body) == ("again", b"end")
