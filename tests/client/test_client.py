"""The client with one node: sends, refusals, subscriptions, acknowledgements, transactions, cancels."""

from typing import Any

import argon2
import pytest
import trio
import trio.testing
from trio.testing import MockClock

import qmq.client
from qmq.client.on_trio import Line
from qmq.config import DestinationPolicy, DestinationSettings, LimitSettings, PermissionSettings, User
from qmq.errors import LocalProtocolError, NotConnected, Overrun, Refused, Stale
from tests.client.rig import CLIENT_HOST, eventually, running, take

ONE_MESSAGE = DestinationSettings(policies=(DestinationPolicy(pattern="/queue/small", max_messages=1),))


async def test_what_is_sent_to_each_kind_of_destination_arrives_with_its_headers(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client() as client:
        for kind in ("queue", "fanout", "topic"):
            async with client.subscribe(f"/{kind}/x") as messages:
                await client.send(f"/{kind}/x", kind.encode(), {"colour": "green: light\n"})

                async with await anext(messages) as message:
                    assert message.body == kind.encode()
                    assert message.destination == f"/{kind}/x"
                    assert message.headers["colour"] == "green: light\n"
                    assert message.delivery_count == 1
                    assert not message.is_redelivered


async def test_a_receipted_message_survives_the_death_of_its_node(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client() as client:
        await client.send("/queue/q", b"job")
        mesh.kill("a")
        await mesh.start("a")

        async with client.subscribe("/queue/q") as messages:
            assert await take(messages, 1) == [b"job"]


async def test_concurrent_sends_share_the_window_and_all_arrive(autojump_clock: MockClock) -> None:
    most = 0
    async with running() as mesh, mesh.client(window_messages=8) as client:

        async def send(number: int) -> None:
            nonlocal most
            await client.send("/queue/q", str(number).encode())
            most = max(most, client.statistics().unconfirmed_messages)

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(send, number)

        assert 1 < most <= 8
        assert client.statistics().unconfirmed_messages == client.statistics().unconfirmed_bytes == 0
        async with client.subscribe("/queue/q") as messages:
            assert sorted(map(int, await take(messages, 100))) == list(range(100))


async def test_a_message_larger_than_the_window_is_sent_alone(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client(window_bytes=1000) as client:
        async with trio.open_nursery() as nursery:
            for size in (10, 5000, 20, 6000):
                nursery.start_soon(client.send, "/queue/q", bytes(size))

        async with client.subscribe("/queue/q") as messages:
            assert sorted(map(len, await take(messages, 4))) == [10, 20, 5000, 6000]


async def test_the_room_of_one_large_message_is_used_by_many_small_ones_at_once(autojump_clock: MockClock) -> None:
    most = 0
    async with running() as mesh, mesh.client(window_bytes=5000) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, "/queue/q", bytes(6000))
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(10):
                nursery.start_soon(client.send, "/queue/q", b"")
            await trio.testing.wait_all_tasks_blocked()
            while (open_now := client.statistics().unconfirmed_messages) > 0:
                most = max(most, open_now)
                await trio.sleep(0.0001)

    assert most == 10


async def test_senders_that_wait_for_room_are_served_in_the_order_in_which_they_came(autojump_clock: MockClock) -> None:
    sent: list[int] = []
    async with running() as mesh, mesh.client(window_bytes=5000) as client:

        async def send(size: int) -> None:
            await client.send("/queue/q", bytes(size))
            sent.append(size)

        async with trio.open_nursery() as nursery:
            for size in (4000, 6000, 1, 5500, 2):  # each small one would fit beside the first
                nursery.start_soon(send, size)
                await trio.testing.wait_all_tasks_blocked()

    assert sent == [4000, 6000, 1, 5500, 2]


async def test_a_large_sender_that_gives_up_lets_those_behind_it_pass(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client(window_bytes=1000) as client:
        mesh.kill("a")
        await eventually(lambda: client.statistics().node is None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, "/queue/q", bytes(10))
            await trio.testing.wait_all_tasks_blocked()
            with trio.move_on_after(0.001):
                async with trio.open_nursery() as doomed:
                    doomed.start_soon(client.send, "/queue/q", bytes(5000))
                    await trio.testing.wait_all_tasks_blocked()
                    nursery.start_soon(client.send, "/queue/q", bytes(20))
                    await trio.testing.wait_all_tasks_blocked()
                    assert client.statistics().unconfirmed_messages == 1
            await trio.testing.wait_all_tasks_blocked()
            assert client.statistics().unconfirmed_messages == 2
            await mesh.start("a")

        assert client.statistics().unconfirmed_messages == client.statistics().unconfirmed_bytes == 0


async def test_a_refused_message_raises_its_code_and_costs_no_connection(autojump_clock: MockClock) -> None:
    async with running(destinations=ONE_MESSAGE) as mesh, mesh.client() as client:
        await client.send("/queue/small", b"fits")

        with pytest.raises(Refused) as refused:
            await client.send("/queue/small", b"one too many")

        assert refused.value.code == "queue-full"
        assert "maximum of 1 messages" in refused.value.message
        await client.send("/queue/other", b"others go on")
        assert client.statistics().logins == 1


async def test_a_refusal_that_ends_the_connection_concerns_one_message_only(autojump_clock: MockClock) -> None:
    refusals: list[str] = []
    async with running() as mesh, mesh.client() as client:

        async def send(destination: str) -> None:
            try:
                await client.send(destination, b"x")
            except Refused as refused:
                refusals.append(f"{destination} {refused.code}")

        async with trio.open_nursery() as nursery:
            for destination in ("/queue/a", "/nonsense/b", "/queue/c", "/topic/*", "/queue/d"):
                nursery.start_soon(send, destination)

        assert sorted(refusals) == ["/nonsense/b bad-destination", "/topic/* bad-destination"]
        for destination in ("/queue/a", "/queue/c", "/queue/d"):
            async with client.subscribe(destination) as messages:
                assert await take(messages, 1) == [b"x"]


async def test_a_body_over_the_limit_of_the_node_is_refused_as_such(autojump_clock: MockClock) -> None:
    limits = LimitSettings(body_bytes_max=1000, farewell_seconds=1.0)
    async with running(limits=limits) as mesh, mesh.client() as client:
        with pytest.raises(Refused) as refused:
            await client.send("/queue/q", bytes(100_000))

        assert refused.value.code == "body-too-large"


async def test_a_message_whose_error_names_no_receipt_is_not_sent_for_ever(autojump_clock: MockClock) -> None:
    limits = LimitSettings(header_line_bytes_max=100, farewell_seconds=1.0)
    async with running(limits=limits) as mesh, mesh.client(redial_seconds_max=0.2) as client:
        # The receipt stands behind the line that breaks the rule, where the node cannot read it.
        with pytest.raises(Refused) as refused:
            await client.send("/queue/" + "x" * 200, b"")

        assert refused.value.code == "header-line-too-long"
        await client.send("/queue/q", b"others go on")


async def test_headers_of_the_client_itself_and_impossible_ones_are_refused_at_once(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client() as client:
        for name in ("receipt", "destination", "content-length", "transaction"):
            with pytest.raises(ValueError, match=name):
                await client.send("/queue/q", b"", {name: "mine"})
        with pytest.raises(LocalProtocolError):
            await client.send("/queue/q", b"", {"nul": "\0"})


async def test_every_message_has_its_own_dedup_id_unless_the_sender_brings_one(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client() as client:
        for headers in ({}, {}, {"dedup-id": "mine"}):
            await client.send("/queue/q", b"", headers)

        async with client.subscribe("/queue/q") as messages:
            ids = [(await anext(messages)).headers["dedup-id"] for _ in range(3)]

    assert len(set(ids)) == 3
    assert ids[2] == "mine"


async def test_a_cancelled_send_frees_its_room_and_is_not_sent_again(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client(window_messages=1) as client:
        mesh.kill("a")
        await eventually(lambda: client.statistics().node is None)
        with trio.move_on_after(1) as scope:
            await client.send("/queue/q", b"given up")
        assert scope.cancelled_caught
        assert client.statistics().unconfirmed_messages == 0

        await mesh.start("a")
        await client.send("/queue/q", b"kept")

        async with client.subscribe("/queue/q") as messages:
            assert await take(messages, 1) == [b"kept"]


async def test_the_room_of_a_cancelled_send_goes_to_the_next_in_line(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client(window_messages=1) as client:
        mesh.kill("a")
        await eventually(lambda: client.statistics().node is None)
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(2):
                async with trio.open_nursery() as doomed:
                    doomed.start_soon(client.send, "/queue/q", b"given up")
                    await trio.testing.wait_all_tasks_blocked()
                    nursery.start_soon(client.send, "/queue/q", b"in line")
            await mesh.start("a")

        async with client.subscribe("/queue/q") as messages:
            assert await take(messages, 1) == [b"in line"]


async def test_a_cancelled_sender_in_line_does_not_keep_the_next_one_waiting(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client(window_messages=1) as client:
        for doomed in range(5):
            async with trio.open_nursery() as nursery:
                scopes = [trio.CancelScope() for _ in range(5)]

                async def send(scope: trio.CancelScope) -> None:
                    with scope:
                        await client.send("/queue/q", b"")

                for scope in scopes:
                    nursery.start_soon(send, scope)
                for _ in range(doomed):
                    await trio.testing.wait_all_tasks_blocked()
                scopes[doomed].cancel()
        await client.send("/queue/q", b"last")

        assert client.statistics().unconfirmed_messages == 0


# Subscriptions


async def test_a_block_that_fails_gives_its_message_back_and_one_that_ends_well_does_not(
    autojump_clock: MockClock,
) -> None:
    async with running() as mesh, mesh.client() as client:
        await client.send("/queue/q", b"job")
        async with client.subscribe("/queue/q", prefetch=1) as messages:
            with pytest.raises(ZeroDivisionError):
                async with await anext(messages):
                    raise ZeroDivisionError
            async with await anext(messages) as again:
                assert again.body == b"job"
                assert again.is_redelivered
                assert again.delivery_count == 2
            with trio.move_on_after(5) as scope:
                await anext(messages)
            assert scope.cancelled_caught


async def test_a_cancelled_block_gives_its_message_back(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client() as client:
        await client.send("/queue/q", b"job")
        async with client.subscribe("/queue/q") as messages:
            with trio.move_on_after(1):
                async with await anext(messages):
                    await trio.sleep_forever()

            assert await take(messages, 1) == [b"job"]


async def test_an_ack_that_was_awaited_is_on_disk(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client() as client:
        for body in (b"done", b"open"):
            await client.send("/queue/q", body)
        async with client.subscribe("/queue/q", confirm=True) as messages:
            async with await anext(messages):
                pass
            mesh.kill("a")
            await mesh.start("a")

            assert (await anext(messages)).body == b"open"


async def test_an_ack_is_said_even_when_its_task_is_cancelled_at_that_moment(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client() as client:
        await client.send("/queue/q", b"job")
        async with client.subscribe("/queue/q", prefetch=1) as messages:
            message = await anext(messages)
            with trio.CancelScope() as scope:
                scope.cancel()
                await message.ack()
            assert scope.cancelled_caught

            await client.send("/queue/q", b"next")
            assert await take(messages, 1) == [b"next"]


async def test_a_message_settles_once_and_what_is_said_later_does_nothing(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client() as client:
        await client.send("/queue/q", b"job")
        async with client.subscribe("/queue/q") as messages:
            async with await anext(messages) as message:
                await message.nack()
                await message.ack()
            assert await take(messages, 1) == [b"job"]
        assert client.statistics().logins == 1


async def test_in_client_mode_an_ack_covers_what_came_before(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client() as client:
        for body in (b"1", b"2", b"3", b"4"):
            await client.send("/queue/q", body)
        async with client.subscribe("/queue/q", ack="client") as messages:
            first, _, third = [await anext(messages) for _ in range(3)]
            await third.ack()
            await first.ack()
        async with client.subscribe("/queue/q") as messages:
            assert await take(messages, 1) == [b"4"]


async def test_in_auto_mode_what_was_not_handed_out_goes_back(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client() as client:
        for body in (b"1", b"2", b"3"):
            await client.send("/queue/q", body)
        async with client.subscribe("/queue/q", ack="auto") as messages:
            await anext(messages)
            await eventually(lambda: client.statistics().buffered_messages == 2)

        async with client.subscribe("/queue/q") as messages:
            assert await take(messages, 2) == [b"2", b"3"]


async def test_a_slow_queue_consumer_holds_no_more_than_its_prefetch(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client() as client, mesh.client() as other:
        async with client.subscribe("/queue/q", prefetch=3) as slow:
            for number in range(10):
                await client.send("/queue/q", str(number).encode())
            await trio.sleep(1)
            assert client.statistics().buffered_messages == 3

            async with other.subscribe("/queue/q") as quick:
                assert await take(quick, 7) == [b"3", b"4", b"5", b"6", b"7", b"8", b"9"]
            assert await take(slow, 3) == [b"0", b"1", b"2"]


async def test_a_slow_fanout_subscriber_is_paused_at_its_buffer_and_misses_nothing(autojump_clock: MockClock) -> None:
    bodies = [b"%04d" % number + bytes(1000) for number in range(300)]
    most = 0
    async with running() as mesh, mesh.client(window_messages=50) as client:
        async with client.subscribe("/fanout/f", buffer_bytes=10_000) as slow, trio.open_nursery() as nursery:

            async def send_all() -> None:
                for body in bodies:
                    await client.send("/fanout/f", body)

            nursery.start_soon(send_all)
            seen = []
            for _ in bodies:
                await trio.sleep(0.01)
                seen.append((await anext(slow)).body)
                most = max(most, client.statistics().buffered_bytes)

    assert seen == bodies
    assert most <= 10_000 + 2000


async def test_a_paused_fanout_does_not_hold_up_answers_to_its_own_subscriber(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client() as client:
        for number in range(100):
            await client.send("/fanout/f", b"%d" % number)
        async with client.subscribe("/fanout/f", buffer_bytes=1000) as messages:
            for number in range(100):
                assert (await anext(messages)).body == b"%d" % number
                await client.send("/queue/q", b"")


async def test_a_topic_subscriber_that_does_not_take_learns_that_it_missed_messages(
    autojump_clock: MockClock,
) -> None:
    async with running() as mesh, mesh.client() as client:
        async with client.subscribe("/topic/t", buffer_bytes=2000) as messages:
            for number in range(10):
                await client.send("/topic/t", b"%d" % number)

            assert [(await anext(messages)).body for _ in range(4)] == [b"0", b"1", b"2", b"3"]
            with pytest.raises(Overrun):
                await anext(messages)


async def test_a_topic_subscriber_may_ask_for_the_newest(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client() as client:
        async with client.subscribe("/topic/t", buffer_bytes=2000, overflow="drop-oldest") as messages:
            for number in range(10):
                await client.send("/topic/t", b"%d" % number)
            await eventually(lambda: messages.dropped == 7)

            assert [(await anext(messages)).body for _ in range(3)] == [b"7", b"8", b"9"]


BRIEF = DestinationSettings(policies=(DestinationPolicy(pattern="/fanout/brief", retention_seconds=1.0),))


async def test_a_reader_that_comes_back_after_retention_gets_the_gap_and_goes_on(autojump_clock: MockClock) -> None:
    async with running(destinations=BRIEF) as mesh, mesh.client() as client:
        await client.send("/fanout/brief", b"1")
        async with client.subscribe("/fanout/brief") as messages:
            assert await take(messages, 1) == [b"1"]
            position = messages.position
        await client.send("/fanout/brief", b"2")
        await trio.sleep(10)
        await client.send("/fanout/brief", b"3")

        async with client.subscribe("/fanout/brief", start=position) as messages:
            notice, three = await anext(messages), await anext(messages)
            position = messages.position

        ((origin, (first, last)),) = notice.gap.items()
        assert (notice.body, origin) == (b"", position.partition("=")[0])
        assert first <= last
        assert (three.body, dict(three.gap)) == (b"3", {})
        async with client.subscribe("/fanout/brief", start=position) as messages:
            await client.send("/fanout/brief", b"4")
            assert await take(messages, 1) == [b"4"]


async def test_a_reader_that_begins_after_retention_misses_nothing(autojump_clock: MockClock) -> None:
    async with running(destinations=BRIEF) as mesh, mesh.client() as client:
        await client.send("/fanout/brief", b"1")
        await trio.sleep(10)
        await client.send("/fanout/brief", b"2")

        async with client.subscribe("/fanout/brief") as messages:
            assert await take(messages, 1) == [b"2"]
            mesh.kill("a")
            await mesh.start("a")
            await client.send("/fanout/brief", b"3")
            assert await take(messages, 1) == [b"3"]


async def test_a_fanout_can_be_continued_from_a_kept_position_by_another_client(autojump_clock: MockClock) -> None:
    async with running() as mesh:
        async with mesh.client() as client:
            for number in range(5):
                await client.send("/fanout/f", b"%d" % number)
            async with client.subscribe("/fanout/f") as messages:
                await take(messages, 2)
                position = messages.position

        async with mesh.client() as client, client.subscribe("/fanout/f", start=position) as messages:
            assert messages.position == position
            assert await take(messages, 3) == [b"2", b"3", b"4"]


async def test_a_fanout_from_next_gives_only_what_comes(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client() as client:
        await client.send("/fanout/f", b"old")
        async with client.subscribe("/fanout/f", start="next") as messages:
            await client.send("/fanout/f", b"new")

            assert await take(messages, 1) == [b"new"]


async def test_a_refused_subscription_raises_where_it_is_entered(autojump_clock: MockClock) -> None:
    closed = DestinationSettings(create_on_use=False)
    async with running(destinations=closed) as mesh, mesh.client() as client:
        with pytest.raises(Refused) as refused:
            async with client.subscribe("/queue/unknown"):
                pass

        assert refused.value.code == "unknown-destination"
        assert client.statistics().subscriptions == 0
        assert client.statistics().logins == 1


@pytest.mark.parametrize(("destination", "headers"), [("/queue/a\0b", {}), ("/queue/q", {"selector": "\udc80"})])
async def test_a_subscription_that_stomp_cannot_carry_is_refused_at_once_and_harms_no_other_call(
    autojump_clock: MockClock, destination: str, headers: dict[str, str]
) -> None:
    async with running() as mesh, mesh.client() as client:
        for is_online in (True, False):
            if not is_online:
                mesh.kill("a")
                await eventually(lambda: client.statistics().node is None)
            with pytest.raises(LocalProtocolError):
                client.subscribe(destination, headers=headers)
        await mesh.start("a")

        await client.send("/queue/q", b"")
        assert client.statistics().subscriptions == 0


async def test_a_subscription_cancelled_while_it_begins_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client() as client:
        for blocked in range(4):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:

                    async def cancel(after: int, scope: trio.CancelScope) -> None:
                        for _ in range(after):
                            await trio.lowlevel.checkpoint()
                        scope.cancel()

                    nursery.start_soon(cancel, blocked, scope)
                    async with client.subscribe("/queue/q"):
                        await trio.sleep_forever()
        await client.send("/queue/q", b"for somebody else")
        async with client.subscribe("/queue/q") as messages:
            assert await take(messages, 1) == [b"for somebody else"]
        assert client.statistics().subscriptions == 0
        assert client.statistics().logins == 1


async def test_a_cancelled_wait_for_a_message_takes_none(autojump_clock: MockClock) -> None:
    seen: list[bytes] = []
    cancelled = 0
    async with running() as mesh, mesh.client() as client, client.subscribe("/queue/q") as messages:
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(client.send, "/queue/q", b"%d" % number)
            while len(seen) < 50:
                # Cut off at every moment around an arrival.
                with trio.move_on_after(cancelled % 7 / 10_000) as scope:
                    async for message in messages:
                        seen.append(message.body)
                cancelled += scope.cancelled_caught
    assert cancelled > 1
    assert sorted(map(int, seen)) == list(range(50))


async def test_two_tasks_share_one_subscription(autojump_clock: MockClock) -> None:
    seen: list[bytes] = []
    async with running() as mesh, mesh.client() as client, client.subscribe("/queue/q") as messages:

        async def work(scope: trio.CancelScope) -> None:
            async for message in messages:
                async with message:
                    await trio.sleep(0.01)
                    seen.append(message.body)
                if len(seen) == 20:
                    scope.cancel()

        for number in range(20):
            await client.send("/queue/q", b"%d" % number)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, nursery.cancel_scope)
            nursery.start_soon(work, nursery.cancel_scope)

    assert sorted(map(int, seen)) == list(range(20))


# Transactions


async def test_a_transaction_moves_a_message_from_one_queue_to_another(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client() as client:
        await client.send("/queue/in", b"raw")
        async with client.subscribe("/queue/in") as messages:
            async with await anext(messages) as message:
                async with client.transaction() as together:
                    together.send("/queue/out", message.body.upper())
                    together.ack(message)
        mesh.kill("a")
        await mesh.start("a")

        async with client.subscribe("/queue/out") as out, client.subscribe("/queue/in") as back:
            assert await take(out, 1) == [b"RAW"]
            with trio.move_on_after(5) as scope:
                await anext(back)
            assert scope.cancelled_caught


async def test_in_client_mode_an_ack_in_a_transaction_covers_what_came_before(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client() as client:
        for body in (b"1", b"2", b"3"):
            await client.send("/queue/q", body)
        async with client.subscribe("/queue/q", ack="client") as messages:
            first, second, third = [await anext(messages) for _ in range(3)]
            async with client.transaction() as together:
                together.ack(second)
            await first.ack()
            await third.ack()
        assert client.statistics().logins == 1


async def test_a_transaction_whose_block_fails_sends_nothing(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client() as client:
        await client.send("/queue/in", b"raw")
        async with client.subscribe("/queue/in") as messages:
            with pytest.raises(ZeroDivisionError):
                async with await anext(messages) as message, client.transaction() as together:
                    together.send("/queue/out", b"half")
                    together.ack(message)
                    raise ZeroDivisionError

            async with await anext(messages) as message:
                assert message.body == b"raw"
                assert message.delivery_count == 2
        async with client.subscribe("/queue/out") as out:
            with trio.move_on_after(5) as scope:
                await anext(out)
            assert scope.cancelled_caught


async def test_a_refused_transaction_does_nothing_and_leaves_its_message_to_the_application(
    autojump_clock: MockClock,
) -> None:
    async with running(destinations=ONE_MESSAGE) as mesh, mesh.client() as client:
        await client.send("/queue/in", b"raw")
        async with client.subscribe("/queue/in") as messages:
            message = await anext(messages)
            for _ in range(20):  # more than a connection may have open
                with pytest.raises(Refused) as refused:
                    async with client.transaction() as together:
                        together.send("/queue/out", b"first")
                        together.send("/queue/small", b"fits")
                        together.send("/queue/small", b"does not")
                        together.ack(message)
                assert refused.value.code == "queue-full"
            await message.ack()
        assert client.statistics().logins == 1
        async with client.subscribe("/queue/out") as out:
            with trio.move_on_after(5) as scope:
                await anext(out)
            assert scope.cancelled_caught


async def test_a_transaction_cancelled_on_its_way_costs_no_connection(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client() as client:
        await client.send("/queue/in", b"raw")
        async with client.subscribe("/queue/in") as messages:
            message = await anext(messages)
            changed = client.runner.changed
            with trio.CancelScope() as scope:

                async def cancelled(subject: Any) -> None:
                    scope.cancel()
                    await changed(subject)

                client.runner.changed = cancelled  # type: ignore[method-assign]
                async with message, client.transaction() as together:
                    together.send("/queue/out", b"cooked")
                    together.ack(message)
            client.runner.changed = changed  # type: ignore[method-assign]

            assert scope.cancelled_caught
            async with client.subscribe("/queue/out") as out:
                assert await take(out, 1) == [b"cooked"]
        assert client.statistics().logins == 1
        assert client.statistics().unconfirmed_messages == 0


async def test_an_empty_transaction_asks_nothing(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client() as client:
        mesh.kill("a")
        async with client.transaction():
            pass


# Coming and going


async def test_what_was_acknowledged_before_the_end_of_the_client_has_arrived(autojump_clock: MockClock) -> None:
    async with running() as mesh:
        async with mesh.client() as client:
            await client.send("/queue/q", b"job")
            async with client.subscribe("/queue/q") as messages:
                await take(messages, 1)

        async with mesh.client() as client, client.subscribe("/queue/q") as messages:
            with trio.move_on_after(5) as scope:
                await anext(messages)
            assert scope.cancelled_caught


async def test_an_exception_of_the_block_leaves_the_client_as_it_is(autojump_clock: MockClock) -> None:
    async with running() as mesh:
        with pytest.raises(ZeroDivisionError):
            async with mesh.client() as client, client.subscribe("/queue/q"):
                raise ZeroDivisionError
        with pytest.raises(ExceptionGroup) as group:
            async with mesh.client(), trio.open_nursery():
                raise KeyError("in a nursery of the application")
        assert group.group_contains(KeyError, depth=1)
        for wish in (SystemExit, KeyboardInterrupt):
            with pytest.raises(wish):
                async with mesh.client():
                    raise wish
        await eventually(lambda: not mesh.nodes["a"].sessions)


async def test_a_client_that_was_left_does_nothing_any_more(autojump_clock: MockClock) -> None:
    async with running() as mesh:
        async with mesh.client() as client, client.subscribe("/queue/q") as messages:
            await client.send("/queue/q", b"x")
            message = await anext(messages)
        with pytest.raises(NotConnected):
            await client.send("/queue/q", b"y")
        with pytest.raises((NotConnected, Stale)):
            await message.ack()
        with pytest.raises(NotConnected):
            async with client.subscribe("/queue/q"):
                pass


async def test_a_client_that_is_left_at_the_moment_of_a_new_connection_ends_in_order(
    autojump_clock: MockClock,
) -> None:
    async with running() as mesh:
        connect = mesh.fabric.network(CLIENT_HOST).connect
        is_dialling, may_dial = trio.Event(), trio.Event()

        async def dial(*address: Any) -> Line:
            line: Line = await connect(*address)
            if client_was_in:
                is_dialling.set()
                await may_dial.wait()
            return line

        client_was_in: list[bool] = []
        async with mesh.client(dial=dial) as client:
            client_was_in.append(True)
            mesh.kill("a")
            await mesh.start("a")
            await is_dialling.wait()
            may_dial.set()

        with pytest.raises(NotConnected):
            await client.send("/queue/q", b"x")


async def test_a_wrong_passcode_is_refused_and_not_tried_for_ever(autojump_clock: MockClock) -> None:
    users = (User(name="ann", password_hash=argon2.PasswordHasher(1, 8, 1).hash("right"), groups=("client",)),)
    async with running(users=users) as mesh:
        with pytest.raises(Refused) as refused:
            async with mesh.client(login="ann", passcode="wrong"):
                pass
        assert refused.value.code == "login-failed"

        async with mesh.client(login="ann", passcode="right") as client:
            await client.send("/queue/q", b"")


@pytest.mark.parametrize("login", [{"login": "a\nb"}, {"passcode": "right\n"}, {"client_id": "a\0"}])
async def test_a_login_that_stomp_cannot_carry_is_refused_as_such(
    autojump_clock: MockClock, login: dict[str, str]
) -> None:
    async with running() as mesh:
        with pytest.raises(LocalProtocolError):
            async with mesh.client(**login):
                pass


@pytest.mark.parametrize("destination", ["/queue/q", "/topic/t", "/fanout/f"])
async def test_a_subscription_whose_right_is_taken_away_ends_with_that_reason(
    autojump_clock: MockClock, destination: str
) -> None:
    users = (User(name="ann", password_hash=argon2.PasswordHasher(1, 8, 1).hash("right")),)
    subscribes = PermissionSettings(user="ann", allow=("subscribe", "send"), destinations=("/*", "/queue/kept"))
    sends = PermissionSettings(user="ann", allow=("subscribe", "send"), destinations=("/queue/kept",))
    async with (
        running(users=users, permissions=(subscribes,)) as mesh,
        mesh.client(login="ann", passcode="right") as client,
        client.subscribe("/queue/kept") as kept,
        client.subscribe(destination) as messages,
    ):
        mesh.nodes["a"].session_parts.login_path.access.change(users, (sends.permission,))

        with pytest.raises(Refused) as refused:
            await anext(messages)
        assert refused.value.code == "not-allowed"
        await client.send("/queue/kept", b"x")
        assert await take(kept, 1) == [b"x"]
        assert client.statistics().logins == 1


async def test_a_node_that_says_nothing_to_a_login_is_left(autojump_clock: MockClock) -> None:
    async with running() as mesh:
        await mesh.fabric.network("127.0.1.9").listen("127.0.1.9", 61613, None)
        async with mesh.client(addresses=["127.0.1.9:61613", *mesh.addresses]) as client:
            assert mesh.of(client) == "a"
            assert "did not answer the login" in client.statistics().last_error


@pytest.mark.parametrize(
    "nodes",
    [[], ["here"], ["host:0"], ["host:70000"], ["::1:61613"], [":1"], ["host:"], ["a:1", "b..c:1"], [f"{'x' * 64}:1"]],
)
async def test_what_is_no_list_of_nodes_is_refused(nodes: list[str]) -> None:
    with pytest.raises(ValueError):
        async with qmq.client.connect(nodes):
            pass
