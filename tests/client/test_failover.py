"""The client in a mesh whose nodes die under it, fall silent, or are all away."""

from collections import Counter

import argon2
import pytest
import trio
from trio.testing import MockClock

import qmq.client
from qmq.config import User
from qmq.errors import Stale
from qmq.node.node import Node
from tests.client.rig import CLIENT_HOST, eventually, running, take

SENT = 200


async def test_nothing_receipted_is_lost_and_a_fanout_comes_exactly_once_when_nodes_die(
    autojump_clock: MockClock,
) -> None:
    receipted: list[bytes] = []
    seen: list[bytes] = []
    async with running("abc") as mesh, mesh.client() as publisher, mesh.client() as follower:
        async with trio.open_nursery() as nursery, follower.subscribe("/fanout/f") as messages:

            async def publish() -> None:
                for number in range(SENT):
                    await publisher.send("/fanout/f", b"%d" % number)
                    receipted.append(b"%d" % number)

            async def follow() -> None:
                async for message in messages:
                    seen.append(message.id.encode() + b" " + message.body)

            nursery.start_soon(publish)
            nursery.start_soon(follow)
            for name in "abc":
                before = len(receipted)
                await eventually(lambda before=before: len(receipted) > min(before + 20, SENT - 1))
                mesh.kill(name)
                await trio.sleep(0.5)
                await mesh.start(name)
            await eventually(lambda: len(receipted) == SENT)
            await eventually(lambda: set(receipted) <= {body.split()[1] for body in seen})
            nursery.cancel_scope.cancel()

        assert max(Counter(seen).values()) == 1
        assert publisher.statistics().logins > 1
        assert follower.statistics().logins > 1
        # A message that was written twice may be there twice, under two ids; no other.
        doubled = len(seen) - len({body.split()[1] for body in seen})
        assert doubled <= publisher.statistics().written_again


async def test_a_queue_consumer_goes_on_at_another_node_and_its_old_message_is_stale(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh, mesh.client() as client, mesh.client(addresses=mesh.addresses[1:]) as other:
        for number in range(5):
            await other.send("/queue/q", b"%d" % number)
        async with client.subscribe("/queue/q") as messages:
            held = await anext(messages)
            assert mesh.of(client) == "a"
            mesh.kill("a")
            await eventually(lambda: client.statistics().node is not None and mesh.of(client) == "b")

            assert held.is_stale
            with pytest.raises(Stale):
                await held.ack()
            async with held:
                pass  # says nothing, and does not raise
            assert sorted(await take(messages, 5)) == [b"0", b"1", b"2", b"3", b"4"]
            assert client.statistics().stale_settles == 1


async def test_a_block_with_confirm_says_that_its_ack_came_too_late(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh, mesh.client() as client:
        async with client.subscribe("/queue/q", confirm=True) as messages:
            await client.send("/queue/q", b"x")
            message = await anext(messages)
            with pytest.raises(Stale):
                async with message:
                    mesh.kill(mesh.of(client))
                    await eventually(lambda: message.is_stale)


async def test_messages_that_waited_in_the_client_are_not_handed_out_after_their_connection(
    autojump_clock: MockClock,
) -> None:
    async with running("a") as mesh, mesh.client() as client:
        async with client.subscribe("/queue/q") as messages:
            await client.send("/queue/q", b"job")
            await eventually(lambda: client.statistics().buffered_messages == 1)
            mesh.fabric.break_between(CLIENT_HOST, mesh.hosts["a"])
            await eventually(lambda: client.statistics().logins == 2)

            async with await anext(messages) as message:
                assert message.is_redelivered
            with trio.move_on_after(5) as scope:
                await anext(messages)
            assert scope.cancelled_caught


async def test_a_send_in_flight_is_sent_again_at_another_node_and_appended_once(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh, mesh.client() as client, mesh.client(addresses=mesh.addresses[1:]) as other:
        # The SEND reaches node a and its receipt does not come back.
        mesh.fabric.cut(mesh.hosts["a"], CLIENT_HOST)
        receipts: list[qmq.client.Receipt] = []

        async def send() -> None:
            receipts.append(await client.send("/fanout/f", b"once"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await trio.sleep(0.5)
            assert client.statistics().unconfirmed_messages == 1
            mesh.fabric.break_between(CLIENT_HOST, mesh.hosts["a"])

        assert receipts == [qmq.client.Receipt(copies=None, is_duplicate=True)]
        assert client.statistics().written_again == 1
        await client.send("/fanout/f", b"next")
        async with other.subscribe("/fanout/f") as messages:
            assert await take(messages, 2) == [b"once", b"next"]


async def test_a_transaction_in_flight_is_sent_again_and_applied_once(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh, mesh.client() as client:
        mesh.fabric.cut(mesh.hosts["a"], CLIENT_HOST)

        async def send() -> None:
            async with client.transaction() as together:
                together.send("/fanout/f", b"1")
                together.send("/fanout/f", b"2")
            assert together.receipt == qmq.client.Receipt(copies=None, is_duplicate=False)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await trio.sleep(0.5)
            mesh.fabric.break_between(CLIENT_HOST, mesh.hosts["a"])
        await client.send("/fanout/f", b"3")

        async with client.subscribe("/fanout/f") as messages:
            assert await take(messages, 3) == [b"1", b"2", b"3"]


async def test_a_receipt_says_that_too_few_disks_have_it(autojump_clock: MockClock) -> None:
    async with running("abc") as mesh, mesh.client(addresses=mesh.addresses[:1]) as client:
        assert await client.send("/queue/q", b"x") == qmq.client.Receipt(copies=None, is_duplicate=False)
        mesh.kill("b")
        mesh.kill("c")

        assert await client.send("/queue/q", b"x") == qmq.client.Receipt(copies=1, is_duplicate=False)


async def test_silence_of_the_node_is_met_by_going_to_another(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh, mesh.client(beat_seconds=2) as client:
        async with client.subscribe("/fanout/f") as messages:
            await client.send("/fanout/f", b"before")
            mesh.fabric.cut(mesh.hosts["a"], CLIENT_HOST)
            began = trio.current_time()

            await client.send("/fanout/f", b"after")

            assert 2 < trio.current_time() - began < 5
            assert mesh.of(client) == "b"
            assert "silent" in client.statistics().last_error
            assert set(await take(messages, 2)) == {b"before", b"after"}


async def test_a_quiet_line_is_kept_alive_by_both_sides(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client(beat_seconds=1) as client, client.subscribe("/topic/t") as messages:
        await trio.sleep(30)

        assert client.statistics().logins == 1
        await client.send("/topic/t", b"x")
        assert (await anext(messages)).body == b"x"


async def test_without_heart_beats_a_quiet_line_stays(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client(beat_seconds=0) as client:
        await trio.sleep(30)
        assert client.statistics().logins == 1


async def test_with_all_nodes_down_calls_wait_as_long_as_their_caller_and_then_go_on(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh, mesh.client() as client, client.subscribe("/queue/q") as messages:
        mesh.kill("a")
        mesh.kill("b", silently=True)
        with pytest.raises(trio.TooSlowError):
            with trio.fail_after(20):
                await client.send("/queue/q", b"given up")
        with pytest.raises(trio.TooSlowError):
            with trio.fail_after(3):
                await anext(messages)
        assert client.statistics().node is None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, "/queue/q", b"kept")
            await trio.sleep(5)
            await mesh.start("b")

        assert mesh.of(client) == "b"
        assert await take(messages, 1) == [b"kept"]


async def test_a_client_that_begins_without_a_node_waits_for_one(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh:
        mesh.kill("a")
        mesh.kill("b")
        with pytest.raises(trio.TooSlowError):
            with trio.fail_after(5):
                async with mesh.client():
                    raise AssertionError("no node is there")
        async with trio.open_nursery() as nursery:

            async def start_later() -> None:
                await trio.sleep(5)
                await mesh.start("b")

            nursery.start_soon(start_later)
            async with mesh.client() as client:
                assert mesh.of(client) == "b"


async def test_an_orderly_stop_of_the_node_moves_the_client_without_harm(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh, mesh.client() as client, client.subscribe("/fanout/f") as messages:
        await client.send("/fanout/f", b"1")
        mesh.nodes["a"].stop()
        await mesh.nodes["a"].ended.wait()
        await client.send("/fanout/f", b"2")

        assert await take(messages, 2) == [b"1", b"2"]
        assert mesh.of(client) == "b"


@pytest.mark.parametrize("destination", ["/queue/other", "/topic/t", "/fanout/f"])
async def test_a_subscription_that_begins_while_its_node_stops_begins_on_the_next(
    autojump_clock: MockClock, destination: str
) -> None:
    async with running("ab") as mesh, mesh.client() as client, client.subscribe("/queue/q") as jobs:
        await client.send("/queue/q", b"job")
        job = await anext(jobs)  # With a message in flight, the client stays connected for a while.
        mesh.nodes["a"].stop()
        await eventually(lambda: mesh.nodes["a"].broker.subscriptions.is_stopping)

        async with client.subscribe(destination) as messages:
            assert mesh.of(client) == "b"
            await client.send(destination, b"x")
            assert (await anext(messages)).body == b"x"
        assert job.is_stale


async def test_two_users_may_use_the_same_dedup_ids(autojump_clock: MockClock) -> None:
    users = tuple(
        User(name=name, password_hash=argon2.PasswordHasher(1, 8, 1).hash("x"), groups=("client",))
        for name in ("ann", "bob")
    )
    async with running("ab", users=users) as mesh:
        at_a, at_b = mesh.addresses
        async with (
            mesh.client(addresses=at_a, login="ann", passcode="x") as ann,
            mesh.client(addresses=at_b, login="bob", passcode="x") as bob,
            ann.subscribe("/fanout/f") as messages,
        ):
            await ann.send("/fanout/f", b"of ann", {"dedup-id": "1"})
            await bob.send("/fanout/f", b"of bob", {"dedup-id": "1"})

            assert sorted(await take(messages, 2)) == [b"of ann", b"of bob"]


async def test_a_fanout_from_next_misses_nothing_when_its_node_dies_before_the_first_message(
    autojump_clock: MockClock,
) -> None:
    async with running("ab") as mesh, mesh.client() as client, mesh.client(addresses=mesh.addresses[1:]) as other:
        await other.send("/fanout/f", b"old of b")
        await client.send("/fanout/f", b"old of a")
        await eventually(lambda: covers_all(mesh.nodes))
        async with client.subscribe("/fanout/f", start="next") as messages:
            mesh.kill("a")
            await other.send("/fanout/f", b"while away")

            assert await take(messages, 1) == [b"while away"]


def covers_all(nodes: dict[str, Node]) -> bool:
    vectors = [node.engine.path.durable_vector() for node in nodes.values()]
    return all(vector == vectors[0] for vector in vectors)


async def test_a_topic_subscription_goes_on_at_another_node(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh, mesh.client() as client, mesh.client(addresses=mesh.addresses[1:]) as other:
        async with client.subscribe("/topic/t.*") as messages:
            mesh.kill("a")
            await eventually(lambda: client.statistics().node is not None and mesh.of(client) == "b")
            await trio.sleep(1)
            await other.send("/topic/t.x", b"live")

            assert (await anext(messages)).body == b"live"


async def test_a_transaction_that_only_sends_is_sent_again(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh, mesh.client() as client:
        mesh.kill("a")
        async with client.transaction() as together:
            together.send("/queue/x", b"1")
            together.send("/queue/y", b"2")

        assert mesh.of(client) == "b"
        async with client.subscribe("/queue/x") as x, client.subscribe("/queue/y") as y:
            assert await take(x, 1) + await take(y, 1) == [b"1", b"2"]


async def test_a_transaction_that_acknowledges_is_stale_when_its_connection_ends(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh, mesh.client() as client:
        await client.send("/queue/in", b"raw")
        async with client.subscribe("/queue/in") as messages:
            message = await anext(messages)
            mesh.fabric.cut(mesh.hosts["a"], CLIENT_HOST)
            with pytest.raises(Stale, match="all of the transaction"):
                async with client.transaction() as together:
                    together.send("/queue/out", b"cooked")
                    together.ack(message)
                    mesh.kill("a")
                    mesh.fabric.heal(mesh.hosts["a"], CLIENT_HOST)
            with pytest.raises(Stale):
                async with client.transaction() as together:
                    together.ack(message)


async def test_clients_of_a_node_that_flaps_do_not_dial_it_without_a_pause(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client() as client:
        breaks = 0
        with trio.move_on_after(40):
            while True:
                await eventually(lambda: client.statistics().node is not None)
                mesh.fabric.break_between(CLIENT_HOST, mesh.hosts["a"])
                await eventually(lambda: client.statistics().node is None)
                breaks += 1

        assert 4 < breaks < 30


async def test_an_ack_for_good_says_when_the_node_of_its_message_is_dead(autojump_clock: MockClock) -> None:
    async with running("abc") as mesh, mesh.client(addresses=[mesh.addresses[2]]) as client:
        async with mesh.client(addresses=[mesh.addresses[0]]) as sender:
            for body in (b"1", b"2"):
                await sender.send("/queue/q", body)
        async with client.subscribe("/queue/q", ack_level="quorum") as messages:
            one, two = [await anext(messages) for _ in range(2)]

            before = await one.ack()
            mesh.kill("a")
            after = await two.ack()

            assert before is not None and not before.is_edge and before.copies is None
            assert after is not None and after.is_edge
            assert await two.ack() is None


async def test_a_client_that_reaches_no_node_warns_once_until_one_is_back(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    async with running("ab") as mesh, mesh.client() as client:
        caplog.clear()
        first = mesh.of(client)
        second = "b" if first == "a" else "a"
        mesh.kill(first)
        await client.send("/queue/q", b"at the other node")
        assert not [text for text in warnings() if "no node" in text], "one node of two is still there"

        for name in (second, first):
            caplog.clear()
            mesh.kill(name)
            await trio.sleep(15)
            (warning,) = [text for text in warnings() if "no node" in text]
            assert all(address in warning for address in mesh.addresses)
            await mesh.start(first)
            await client.send("/queue/q", b"back")


async def test_the_warning_names_first_the_nodes_that_refuse_the_login(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    users = (User(name="ann", password_hash=argon2.PasswordHasher(1, 8, 1).hash("right"), groups=("administrator",)),)
    async with running("abc", users=users) as mesh:
        mesh.kill("c")
        with trio.move_on_after(30):
            async with mesh.client():
                raise AssertionError("a client without login is admitted")

        (warning,) = [one.getMessage() for one in caplog.records if "no node admits the client" in one.getMessage()]
        refused, others = warning.split(mesh.addresses[2])
        assert refused.count("login-required") == 2
        assert "login-required" not in others
