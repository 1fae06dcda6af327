"""Durable subscriptions of the client: taken up at the next node, taken over, deleted, and twins of one message."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

import qmq.client
from qmq.broker.consumers.outcome import Outcome
from qmq.client.core.feed import IDS_MAX, AckMode, Delivered, Feed
from qmq.client.core.vectors import Progress
from qmq.errors import Refused
from tests.client.rig import Mesh, eventually, running, take

F = "/fanout/f"
PREFETCH = 10


@asynccontextmanager
async def reader(mesh: Mesh, first: int = 0) -> AsyncIterator[tuple[qmq.client.Client, qmq.client.Subscription]]:
    """A client with the durable subscription `mail`, at the node with this number as long as that lives."""
    nodes = mesh.addresses[first:] + mesh.addresses[:first]
    async with mesh.client(addresses=nodes, client_id="ann") as client:
        async with client.subscribe(F, durable="mail", prefetch=PREFETCH) as messages:
            yield client, messages


async def test_it_goes_on_at_the_next_node_with_what_was_not_acknowledged(autojump_clock: MockClock) -> None:
    async with running("abc") as mesh, mesh.client(addresses=mesh.addresses[2:]) as publisher:
        async with reader(mesh) as (client, messages):
            for number in range(3):
                await publisher.send(F, b"%d" % number)
            one, two, three = [await anext(messages) for _ in range(3)]
            await one.ack()
            await three.ack()
            mesh.kill("a")
            await eventually(lambda: client.statistics().logins == 2)

            assert two.is_stale
            async with await anext(messages) as again:
                assert (again.body, again.is_redelivered) == (b"1", True)
            await publisher.send(F, b"3")
            assert await take(messages, 1) == [b"3"]


async def test_nothing_is_lost_and_little_comes_twice_while_its_nodes_die(autojump_clock: MockClock) -> None:
    kills = 5
    sent = [b"%d" % number for number in range(400)]
    got: Counter[bytes] = Counter()
    async with running("abc") as mesh, mesh.client() as publisher, reader(mesh) as (client, messages):
        async with trio.open_nursery() as nursery:

            async def publish() -> None:
                for body in sent:
                    await publisher.send(F, body)
                    await trio.sleep(0.005)

            async def read() -> None:
                async for message in messages:
                    async with message:
                        got[message.body] += 1
                    if got.keys() >= set(sent):
                        return

            nursery.start_soon(publish)
            nursery.start_soon(read)
            for number in range(kills):
                enough = (number + 1) * len(sent) // (kills + 2)
                await eventually(lambda enough=enough: len(got) >= enough)
                await eventually(lambda: client.statistics().node is not None)
                victim = mesh.of(client)
                mesh.kill(victim)
                await trio.sleep(0.3)
                await mesh.start(victim)

    assert set(got) == set(sent)
    # In flight, and acknowledged in the last moment.
    assert got.total() - len(got) <= kills * 2 * PREFETCH


async def test_a_client_whose_name_is_taken_gets_the_reason_and_does_not_come_back(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh, reader(mesh) as (client, messages), mesh.client(client_id="ann") as other:
        async with client.subscribe("/topic/t") as beside, other.subscribe(F, durable="mail") as taken:
            with pytest.raises(Refused, match="durable-taken-over"):
                await anext(messages)
            await trio.sleep(5)
            await other.send(F, b"x")
            assert await take(taken, 1) == [b"x"]
            # What else the client does goes on.
            await eventually(lambda: client.statistics().node is not None)
            await other.send("/topic/t", b"beside")
            assert await take(beside, 1) == [b"beside"]


async def test_one_that_is_deleted_elsewhere_is_not_made_again(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh, reader(mesh) as (_, messages):
        nodes = mesh.nodes
        await eventually(lambda: bool(nodes["b"].broker.durable_subscriptions.by_name))
        name = next(iter(nodes["b"].broker.durable_subscriptions.by_name))
        out = Outcome()
        nodes["b"].broker.durable_subscriptions.delete(name, nodes["b"].environment.now_us(), out)
        nodes["b"].engine.path.submit(out)

        with pytest.raises(Refused, match="durable-deleted"):
            await anext(messages)
        await trio.sleep(5)
        assert not nodes["a"].broker.durable_subscriptions.by_name[name].created_us


async def test_a_node_that_has_just_started_is_left_until_it_knows_the_names(autojump_clock: MockClock) -> None:
    async with running("ab") as mesh:
        mesh.kill("a")
        mesh.kill("b")
        await mesh.start("a")  # some seconds long it waits for b, which may know names

        async with mesh.client(addresses=mesh.addresses[:1], client_id="ann") as client:
            async with client.subscribe(F, durable="mail") as messages:
                assert client.statistics().logins > 1
                assert "not-caught-up" in client.statistics().last_error
                await client.send(F, b"x")
                assert await take(messages, 1) == [b"x"]


async def test_words_that_make_no_sense_are_refused_here(autojump_clock: MockClock) -> None:
    async with running() as mesh, mesh.client() as nameless, mesh.client(client_id="ann") as client:
        with pytest.raises(ValueError, match="client_id"):
            nameless.subscribe(F, durable="mail")
        with pytest.raises(ValueError, match="fanouts"):
            client.subscribe("/queue/q", durable="mail")


def feed() -> Feed:
    return Feed(
        F,
        ack=AckMode.AUTO,
        prefetch=1,
        buffer_bytes_max=1,
        drops_oldest=False,
        start="first",
        seen=Progress(),
        headers={},
    )


@pytest.mark.parametrize("word", ["dedup-id", "qmq-dedup-id", "_AMQ_DUPL_ID"])
def test_a_message_that_two_nodes_have_taken_comes_once(word: str) -> None:
    fanout = feed()

    assert fanout.is_news({"message-id": "a-01-1", word: "x"})
    assert not fanout.is_news({"message-id": "b-01-1", word: "x"})
    assert fanout.is_news({"message-id": "b-01-2", word: "y"})
    assert fanout.is_news({"message-id": "b-01-3"})
    assert fanout.is_news({"message-id": "b-01-4"})


def test_messages_of_two_senders_under_one_dedup_id_are_two_messages() -> None:
    fanout = feed()

    assert fanout.is_news({"message-id": "a-01-1", "dedup-id": "1", "dedup-sender": "ann"})
    assert fanout.is_news({"message-id": "b-01-1", "dedup-id": "1", "dedup-sender": "bob"})
    assert fanout.is_news({"message-id": "c-01-1", "dedup-id": "1"})
    assert not fanout.is_news({"message-id": "c-01-2", "dedup-id": "1", "dedup-sender": "ann"})


def test_a_position_has_the_copies_that_were_passed_over() -> None:
    fanout = feed()

    def comes(message_id: str, dedup_id: str) -> None:
        headers = {"message-id": message_id, "dedup-id": dedup_id}
        if fanout.is_news(headers):
            fanout.put(Delivered(fanout, headers, b"", 1))

    comes("a-01-1", "x")
    comes("b-01-1", "y")
    comes("b-01-2", "x")
    fanout.take()
    assert str(fanout.handed) == "a-01=1"  # b-01-1 is not handed out.
    fanout.take()
    assert str(fanout.handed) == "a-01=1,b-01=2"
    comes("a-01-2", "y")
    assert str(fanout.handed) == "a-01=2,b-01=2"


def test_the_ids_that_are_kept_are_bounded() -> None:
    fanout = feed()
    for number in range(3 * IDS_MAX):
        fanout.is_news({"message-id": f"a-01-{number + 1}", "dedup-id": str(number)})

    assert IDS_MAX <= len(fanout.ids) <= 2 * IDS_MAX
    assert not fanout.is_news({"message-id": "b-01-1", "dedup-id": str(2 * IDS_MAX)})
    assert fanout.is_news({"message-id": "b-01-2", "dedup-id": "0"})


def test_what_one_node_has_taken_twice_under_one_dedup_id_is_two_messages() -> None:
    fanout = feed()

    def comes(message_id: str) -> bool:
        return fanout.is_news({"message-id": message_id, "dedup-id": "order-17"})

    assert comes("a-0000000000000001-5")
    assert not comes("b-0000000000000002-1")
    assert comes("a-0000000000000001-900")
    assert not comes("b-0000000000000002-7")
    assert not comes("a-0000000000000001-900")
