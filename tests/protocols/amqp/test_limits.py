"""Limits of users, and what operators see of connections: for AMQP clients as for those of other protocols."""

import itertools
from typing import Any

import argon2
import pytest
import trio
from pamqp import commands
from trio.testing import MockClock

from qmq.broker.consumers.outcome import COST_MAX
from qmq.broker.routing import matchers
from qmq.broker.routing.table import ROUTE_COST_MAX
from qmq.broker.topics.word_trie import NODE_COST, WordNode, walk
from qmq.build import BUILD
from qmq.config import User, UserLimitSettings
from qmq.protocols.amqp.dialogue import AmqpDialogue
from qmq.protocols.amqp.publishes import HEADS_MAX
from tests.node.rig import eventually, send
from tests.protocols.amqp.rig import AmqpClient, amqp_node, connect
from tests.support.depths import depths

HASH = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("secret")


def limited(*, groups: tuple[str, ...] = ("client",), **limits: int) -> dict[str, Any]:
    return {
        "users": (User(name="ann", password_hash=HASH, groups=groups),),
        "user_limits": (UserLimitSettings(user="ann", **limits),),
    }


async def with_confirms(client: AmqpClient) -> None:
    await client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)


async def test_a_fast_publisher_is_slowed_to_its_rate(autojump_clock: MockClock) -> None:
    async with amqp_node(**limited(messages_per_second_max=20)) as rig:
        ann = await connect(rig, response="\0ann\0secret")
        await ann.declare()
        await with_confirms(ann)
        began = trio.current_time()

        await ann.publish("jobs", *[b"x"] * 100)
        confirmed = 0
        while confirmed < 100:
            confirmed = (await ann.next(commands.Basic.Ack)).delivery_tag

        # 20 of them at once: what a second allows.
        assert trio.current_time() - began == pytest.approx(4.0, abs=0.3)


async def test_a_channel_that_is_refused_does_not_wait_for_the_rate_of_what_followed(
    autojump_clock: MockClock,
) -> None:
    async with amqp_node(**limited(groups=(), messages_per_second_max=20)) as rig:
        ann = await connect(rig, response="\0ann\0secret")
        began = trio.current_time()

        await ann.publish("jobs", *[b"x"] * 200, exchange="amq.direct")
        code, _ = await ann.closed()

        assert code == 403
        await ann.channel()
        assert trio.current_time() - began < 5.0


async def test_one_subscription_too_many_closes_its_channel_and_no_other(autojump_clock: MockClock) -> None:
    async with amqp_node(**limited(subscriptions_max=1)) as rig:
        ann = await connect(rig, response="\0ann\0secret")
        await ann.channel(2)
        await ann.declare()
        await ann.consume()

        await ann.send(2, commands.Basic.Consume(0, "jobs", "second"))
        code, text = await ann.closed(2)

        assert code == 406
        assert "The user ann may have 1 subscriptions here." in text
        await ann.publish("jobs", b"still consumed")
        assert await ann.bodies(1) == [b"still consumed"]


async def test_a_user_with_all_its_queues_may_declare_these_again(autojump_clock: MockClock) -> None:
    async with amqp_node(**limited(queues_max=1)) as rig:
        ann = await connect(rig, response="\0ann\0secret")
        await ann.declare("one")
        await ann.declare("one")

        await ann.send(1, commands.Queue.Declare(0, "two", durable=True))
        code, text = await ann.closed()

        assert code == 406
        assert "maximum of 1 queues" in text


async def test_a_publish_to_queues_that_hold_too_much_is_nacked(autojump_clock: MockClock) -> None:
    async with amqp_node(**limited(held_bytes_max=1000)) as rig:
        ann = await connect(rig, response="\0ann\0secret")
        await ann.declare()
        await with_confirms(ann)

        await ann.publish("jobs", b"x" * 900)
        await ann.next(commands.Basic.Ack)
        await ann.publish("jobs", b"x" * 900)

        assert (await ann.next(commands.Basic.Nack)).delivery_tag == 2


async def test_one_connection_too_many_is_refused_with_a_reason(autojump_clock: MockClock) -> None:
    async with amqp_node(**limited(connections_max=1)) as rig:
        await connect(rig, response="\0ann\0secret")

        with pytest.raises(AssertionError, match="at most 1 connections"):
            await connect(rig, response="\0ann\0secret")


async def test_metrics_count_connections_of_this_protocol(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        await connect(rig)

        assert (
            'qmq_connections{protocol="amqp"} 1'
            in (await rig.alive.protocols.of("http").shared.metrics.read()).decode()
        )


async def test_a_get_that_is_refused_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    async with amqp_node(**limited(subscriptions_max=1)) as rig:
        ann = await connect(rig, response="\0ann\0secret")
        await ann.channel(2)
        await ann.declare()
        await ann.consume()
        for _ in range(3):
            await ann.send(2, commands.Basic.Get(0, "jobs"))
            assert (await ann.closed(2))[0] == 406
            await ann.channel(2)
        (session,) = rig.alive.sessions.values()
        assert isinstance(session.dialogue, AmqpDialogue)

        assert len(session.dialogue.encoder.consumers) == 1


@pytest.mark.parametrize("timeout", ["1000", -1, True, 10**16])
async def test_a_consumer_with_an_invalid_timeout_is_refused(autojump_clock: MockClock, timeout: object) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()

        await client.send(1, commands.Basic.Consume(0, "jobs", "c", arguments={"x-consumer-timeout": timeout}))

        assert (await client.closed())[0] == 406


async def test_deliveries_that_were_taken_back_are_forgotten_at_last(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()
        await client.publish("jobs", *[b"x"] * 100)
        await client.consume(arguments={"x-consumer-timeout": 100})
        (session,) = rig.alive.sessions.values()
        assert isinstance(session.dialogue, AmqpDialogue)
        (state,) = session.dialogue.encoder.channels.values()

        messages = await client.messages(10_000)

        assert len(state.unacked) < 5000
        # A late ack is no error of the client, and those in flight are all there.
        await client.send(1, commands.Basic.Ack(messages[-500].method.delivery_tag))
        await client.call(1, commands.Basic.Qos(0, 1), commands.Basic.QosOk)
        in_flight = sum(one.subscription.in_flight.get(one.tag) is one for one in state.unacked.values())
        assert in_flight == len(next(iter(rig.alive.broker.sessions[session.id].subscriptions.values())).in_flight)


async def test_a_connection_remembers_few_different_publishes_however_many_channels_it_has(
    autojump_clock: MockClock,
) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        for channel in range(2, 6):
            await client.channel(channel)
        await client.pipe.send_all(
            b"".join(
                client.publishing(f"key {number}", b"x", exchange="amq.direct", channel=channel)
                for channel in range(1, 6)
                for number in range(200)
            )
        )
        await client.call(1, commands.Basic.Qos(0, 1), commands.Basic.QosOk)
        (session,) = rig.alive.sessions.values()
        assert isinstance(session.dialogue, AmqpDialogue)

        assert 0 < len(session.dialogue.publishes.heads) <= HEADS_MAX


async def test_bytes_of_methods_that_publish_nothing_are_limited_too(autojump_clock: MockClock) -> None:
    async with amqp_node(**limited(bytes_per_second_max=2048)) as rig:
        ann = await connect(rig, response="\0ann\0secret")
        await ann.declare()
        began = trio.current_time()

        for _ in range(400):
            await ann.declare(passive=True)

        # Each has 25 bytes.
        assert trio.current_time() - began >= 2.5


async def test_publishes_that_no_queue_gets_count_as_messages_too(autojump_clock: MockClock) -> None:
    async with amqp_node(**limited(messages_per_second_max=20)) as rig:
        ann = await connect(rig, response="\0ann\0secret")
        await with_confirms(ann)
        began = trio.current_time()

        await ann.publish("none", *[b"x"] * 100)
        confirmed = 0
        while confirmed < 100:
            confirmed = (await ann.next(commands.Basic.Ack)).delivery_tag

        assert trio.current_time() - began == pytest.approx(4.0, abs=0.3)


@pytest.mark.parametrize("method", [commands.Basic.Get(0, "jobs"), commands.Basic.Consume(0, "jobs", "c", nowait=True)])
async def test_a_consumer_of_one_destination_too_many_closes_its_channel(
    method: Any, autojump_clock: MockClock
) -> None:
    """A publish would get a basic.nack, and end nothing."""
    async with amqp_node(limits={"destinations_max": 3}) as rig:
        client = await connect(rig)
        await client.declare()
        others = await rig.connect()
        await others.send(*[send(f"/queue/{n}", "x", f"{n}") for n in range(3)])
        for n in range(3):
            assert await others.receipt() == f"{n}"

        await client.send(1, method)

        code, text = await client.closed()
        assert (code, "The node has its maximum of 3 destinations." in text) == (406, True)


async def test_a_queue_that_is_deleted_while_its_consumer_waits_for_its_rate_is_not_consumed(
    autojump_clock: MockClock,
) -> None:
    async with amqp_node(limits={"bytes_per_second_per_address_max": 2000}) as rig:
        client, publisher = await connect(rig), await connect(rig)
        await client.declare()
        await trio.sleep(30)
        await publisher.declare("other")
        await publisher.publish("other", b"x" * 40_000)
        await trio.sleep(0.2)
        await client.send(1, commands.Basic.Consume(0, "jobs", "c"))
        await trio.sleep(1)
        admin = await rig.connect(host="10.0.0.2")
        await admin.send(send("/control/delete/queue/jobs", "", "deleted", force="true"))
        await admin.receipt()

        code, text = await client.closed()

        assert code == 404 and "has been deleted" in text
        assert "/queue/jobs" not in rig.alive.broker.queues.by_name


class Steps(trio.abc.Instrument):
    """The most nodes of pattern trees that one step of a task has visited."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = self.most = self.all = 0

        def counted(root: WordNode[object], words: list[str], found: dict[object, None]) -> int:
            visited = walk(root, words, found)
            self.now += visited
            return visited

        patch.setattr(matchers, "walk", counted)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.most = max(self.most, self.now)
        self.all += self.now
        self.now = 0


@pytest.mark.skipif(BUILD == "compiled", reason="counts calls within what is compiled")
@pytest.mark.parametrize("mandatory", [False, True])
async def test_publishes_that_visit_many_patterns_are_obeyed_in_turns(
    mandatory: bool, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()
        for words in itertools.product("a*", repeat=8):
            await client.call(1, commands.Queue.Bind(0, "jobs", "amq.topic", ".".join(words)), commands.Queue.BindOk)
        steps = Steps(monkeypatch)
        trio.lowlevel.add_instrument(steps)

        keys = [f"a.a.a.a.a.a.a.{number}" for number in range(1000)]
        publishes = [
            client.publishing(keys[at], b"", "amq.topic", mandatory, headers={"CC": keys[at + 1 : at + 10]})
            for at in range(0, 1000, 10)
        ]
        await client.pipe.send_all(b"".join(publishes))
        await eventually(lambda: depths(rig.alive)["/queue/jobs"] == 100)

        assert steps.all * NODE_COST > 3 * COST_MAX
        assert steps.most * NODE_COST < COST_MAX + ROUTE_COST_MAX
