"""Publishing, consuming, acks, confirms and returns over AMQP."""

from collections.abc import Iterator
from typing import Any

import pytest
import trio
from pamqp import commands, frame
from trio.testing import MockClock

from qmq.protocols.amqp.dialogue import AmqpDialogue
from tests.node.rig import Rig, eventually, stick
from tests.protocols.amqp.mesh import AmqpMesh
from tests.protocols.amqp.rig import LISTENER, AmqpClient, Message, amqp_node, connect

CONFIRM = commands.Confirm.Select()


async def confirming(client: AmqpClient) -> None:
    await client.call(1, CONFIRM, commands.Confirm.SelectOk)


async def confirmed(client: AmqpClient, last: int) -> None:
    """Wait until all publishes up to `last` are acknowledged."""
    seen: set[int] = set()
    while seen != set(range(1, last + 1)):
        ack = await client.next(commands.Basic.Ack)
        low = 1 if ack.multiple else ack.delivery_tag
        seen |= set(range(low, ack.delivery_tag + 1))


async def test_a_message_comes_with_its_properties_and_routing(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()
        await client.consume()
        await client.publish("jobs", b"one", delivery_mode=2, content_type="a/b", headers={"x": [1, 2]})

        (message,) = await client.messages(1)

        assert message.body == b"one"
        assert (message.method.exchange, message.method.routing_key) == ("", "jobs")
        assert (message.method.consumer_tag, message.method.delivery_tag, message.method.redelivered) == ("c", 1, False)
        assert (message.properties.content_type, message.properties.headers) == ("a/b", {"x": [1, 2]})


async def test_large_and_empty_bodies_are_whole(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig, frame_max=4096)
        await client.declare()
        await client.consume()
        await client.publish("jobs", b"", b"x" * 100_000, b"y" * 4088)

        assert await client.bodies(3) == [b"", b"x" * 100_000, b"y" * 4088]


async def test_confirms_come_when_the_messages_are_recorded_and_are_merged(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()
        await confirming(client)
        await client.publish("jobs", *[b"%d" % number for number in range(50)], delivery_mode=2)

        ack = await client.next(commands.Basic.Ack)

        assert ack.multiple and ack.delivery_tag > 1
        if ack.delivery_tag < 50:
            await confirmed(client, 50)


async def test_what_was_confirmed_is_there_after_a_restart(autojump_clock: MockClock) -> None:
    rig = Rig(amqp=(LISTENER,))
    async with rig.run():
        client = await connect(rig)
        await client.declare()
        await confirming(client)
        await client.publish("jobs", b"kept", delivery_mode=2)
        await client.publish("jobs", b"lost", delivery_mode=1)
        await confirmed(client, 2)
    async with rig.run():
        client = await connect(rig)
        await client.consume()

        assert await client.bodies(1) == [b"kept"]
        await client.nothing()


async def test_an_ack_settles_and_a_lost_connection_requeues(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()
        await client.consume()
        await client.publish("jobs", b"1", b"2", b"3", delivery_mode=2)
        assert await client.bodies(3) == [b"1", b"2", b"3"]
        await client.send(1, commands.Basic.Ack(2, True))
        await client.declare("other")
        client.pipe.close()

        other = await connect(rig)
        await other.consume()
        (message,) = await other.messages(1)

        assert (message.body, message.method.redelivered) == (b"3", True)


async def test_acks_of_several_cover_all_consumers_of_the_channel(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        for queue in ("a", "b"):
            await client.declare(queue)
            await client.consume(queue, tag=queue)
        for number in range(3):
            await client.publish("a", b"a%d" % number)
            await client.publish("b", b"b%d" % number)
        await client.messages(6)
        await client.send(1, commands.Basic.Ack(0, True))

        counts = [(await client.declare(queue, passive=True)).message_count for queue in ("a", "b")]
        client.pipe.close()
        other = await connect(rig)

        assert counts == [0, 0]
        assert [(await other.declare(queue)).message_count for queue in ("a", "b")] == [0, 0]


async def test_a_nack_requeues_at_once_and_without_end(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()
        await client.consume()
        await client.publish("jobs", b"poison")
        for tag in range(1, 40):
            (message,) = await client.messages(1)
            assert message.method.delivery_tag == tag
            await client.send(1, commands.Basic.Nack(tag, False, True))

        assert (await client.messages(1))[0].method.redelivered


async def test_an_unknown_delivery_tag_closes_only_its_channel(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.channel(2)
        await client.send(1, commands.Basic.Ack(5))

        assert await client.closed(1) == (406, "PRECONDITION_FAILED - unknown delivery tag 5")
        assert (await client.declare(channel=2)).queue == "jobs"
        await client.channel(1)
        assert (await client.declare(channel=1)).queue == "jobs"


async def test_closing_a_channel_requeues_what_it_has(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.channel(2)
        await client.declare()
        await client.consume()
        await client.publish("jobs", b"1")
        await client.messages(1)
        await client.call(1, commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)
        await client.consume(channel=2)

        (message,) = await client.messages(1)

        assert message.method.redelivered


async def test_a_cancelled_consumer_keeps_what_it_has_unacked(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()
        await client.consume()
        await client.publish("jobs", b"1", delivery_mode=2)
        await client.messages(1)
        await client.call(1, commands.Basic.Cancel("c"), commands.Basic.CancelOk)
        await client.publish("jobs", b"2", delivery_mode=2)
        await client.consume(tag="d")

        (message,) = await client.messages(1)
        await client.send(1, commands.Basic.Ack(1))
        await client.send(1, commands.Basic.Ack(message.method.delivery_tag))

        assert message.body == b"2"
        assert (await client.declare(passive=True)).consumer_count == 1
        client.pipe.close()
        assert (await (await connect(rig)).declare(passive=True)).message_count == 0


async def test_a_cancelled_consumer_gets_nothing_that_is_recorded_later(autojump_clock: MockClock) -> None:
    async with AmqpMesh("a").run() as mesh:
        client, publisher = await mesh.client("a"), await mesh.client("a")
        await client.declare()
        await client.consume()
        mesh.slow_disk("a", 2.0, exactly=True)
        await publisher.publish("jobs", b"1", delivery_mode=2)
        await trio.sleep(0.1)

        await client.call(1, commands.Basic.Cancel("c"), commands.Basic.CancelOk)

        await client.nothing(5.0)
        assert (await client.declare(passive=True)).message_count == 1


async def test_prefetch_bounds_each_consumer_or_the_whole_channel(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()
        await client.publish("jobs", *[b"%d" % number for number in range(9)])
        await client.call(1, commands.Basic.Qos(0, 2), commands.Basic.QosOk)
        await client.consume(tag="a")
        await client.consume(tag="b")
        assert len(await client.messages(4)) == 4
        await client.nothing()

        await client.channel(2)
        await client.call(2, commands.Basic.Qos(0, 1, True), commands.Basic.QosOk)
        await client.consume(tag="a", channel=2)
        await client.consume(tag="b", channel=2)
        assert len(await client.messages(1)) == 1
        await client.nothing()

        await client.call(2, commands.Basic.Qos(0, 3, True), commands.Basic.QosOk)
        assert len(await client.messages(2)) == 2
        await client.nothing()


async def test_py_amqp_bounds_the_channel_at_once_as_it_expects(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig, properties={"product": "py-amqp"})
        await client.declare()
        await client.call(1, commands.Basic.Qos(0, 1), commands.Basic.QosOk)
        await client.consume()
        await client.publish("jobs", b"1", b"2", b"3")
        await client.messages(1)
        await client.nothing()

        await client.call(1, commands.Basic.Qos(0, 2), commands.Basic.QosOk)

        assert await client.bodies(1) == [b"2"]


async def test_without_prefetch_more_comes_than_a_stomp_consumer_may_have(autojump_clock: MockClock) -> None:
    async with amqp_node(limits={"prefetch_max": 100}) as rig:
        client = await connect(rig)
        await client.declare()
        await client.consume()
        await client.publish("jobs", *[b"x"] * 300)

        assert len(await client.messages(300)) == 300


async def test_what_was_got_without_ack_is_settled_whatever_follows(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()
        await client.publish("jobs", b"1")
        unknown = b"\x01\x00\x01\x00\x00\x00\x04\x00\x3c\x03\xe7\xce"

        await client.pipe.send_all(frame.marshal(commands.Basic.Get(0, "jobs", True), 1) + unknown)
        assert await client.bodies(1) == [b"1"]
        await client.closed(0)

        other = await connect(rig)
        assert (await other.declare(passive=True)).message_count == 0


async def test_a_message_is_got_and_an_empty_queue_says_so(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()
        await client.publish("jobs", b"1", b"2")

        got = await client.call(1, commands.Basic.Get(0, "jobs"), Message)
        assert (got.body, got.method.message_count) == (b"1", 1)
        got = await client.call(1, commands.Basic.Get(0, "jobs", True), Message)
        assert (got.body, got.method.message_count) == (b"2", 0)
        await client.call(1, commands.Basic.Get(0, "jobs"), commands.Basic.GetEmpty)
        await client.send(1, commands.Basic.Nack(1, False, True))
        assert (await client.call(1, commands.Basic.Get(0, "jobs"), Message)).method.redelivered


async def test_what_another_client_got_and_has_not_acked_does_not_wait(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client, other = await connect(rig), await connect(rig)
        await client.declare()
        await client.publish("jobs", b"1", b"2")

        await client.call(1, commands.Basic.Get(0, "jobs"), Message)

        assert (await other.declare(passive=True)).message_count == 1
        got = await other.call(1, commands.Basic.Get(0, "jobs"), Message)
        assert (got.body, got.method.message_count) == (b"2", 0)


async def test_a_get_without_ack_takes_one_message(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()
        await client.publish("jobs", b"1", b"2", b"3")

        got = await client.call(1, commands.Basic.Get(0, "jobs", True), Message)
        assert (got.body, got.method.message_count) == (b"1", 2)
        await client.nothing()
        assert (await client.declare(passive=True)).message_count == 2
        assert (await client.call(1, commands.Basic.Get(0, "jobs", True), Message)).body == b"2"


async def test_a_node_that_stops_lets_a_client_that_polls_finish(autojump_clock: MockClock) -> None:
    rig = Rig(amqp=(LISTENER,), limits={"drain_seconds": 20.0})
    async with rig.run():
        client = await connect(rig)
        await client.declare()
        await client.publish("jobs", b"1", b"2", delivery_mode=2)
        await client.call(1, commands.Basic.Get(0, "jobs"), Message)
        rig.alive.stop()
        await trio.sleep(0.5)

        await client.call(1, commands.Basic.Get(0, "jobs"), commands.Basic.GetEmpty)
        await client.send(1, commands.Basic.Ack(1))

        assert (await client.closed(0))[0] == 320
    async with rig.run():
        client = await connect(rig)
        assert (await client.call(1, commands.Basic.Get(0, "jobs"), Message)).body == b"2"


async def test_a_get_is_not_bounded_by_the_prefetch_of_the_channel(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()
        await client.declare("other")
        await client.publish("jobs", b"1", b"2")
        await client.publish("other", b"3")
        await client.call(1, commands.Basic.Qos(0, 1, True), commands.Basic.QosOk)
        await client.consume()
        await client.messages(1)

        assert (await client.call(1, commands.Basic.Get(0, "other"), Message)).body == b"3"
        # Consumers that begin later are bounded still.
        await client.publish("other", b"4")
        await client.consume("other", "d")
        await client.nothing()


async def test_a_message_that_is_recorded_slowly_is_got_once(autojump_clock: MockClock) -> None:
    async with AmqpMesh("a").run() as mesh:
        client, publisher = await mesh.client("a"), await mesh.client("a")
        await client.declare()
        await client.publish("jobs", b"1", delivery_mode=2)
        await client.call(1, commands.Basic.Get(0, "jobs"), Message)
        mesh.slow_disk("a", 1.0, exactly=True)
        await publisher.publish("jobs", b"2", delivery_mode=2)

        got = None
        while not isinstance(got, Message):
            got = await client.call(1, commands.Basic.Get(0, "jobs"), Message | commands.Basic.GetEmpty)

        assert (got.body, got.method.delivery_tag) == (b"2", 2)
        await client.nothing()


async def test_more_messages_are_got_than_a_connection_has_subscriptions(autojump_clock: MockClock) -> None:
    async with amqp_node(limits={"subscriptions_max": 3}) as rig:
        client = await connect(rig)
        await client.declare()
        await client.publish("jobs", *[b"%d" % number for number in range(10)])
        for number in range(10):
            assert (await client.call(1, commands.Basic.Get(0, "jobs"), Message)).body == b"%d" % number
        await client.send(1, commands.Basic.Ack(0, True))

        assert (await client.declare()).message_count == 0
        assert len(rig.alive.broker.sessions[next(iter(rig.alive.sessions))].subscriptions) == 0


async def test_a_mandatory_message_without_a_queue_is_returned_and_confirmed(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await confirming(client)
        await client.publish("nowhere", b"back", mandatory=True, message_id="m1")
        returned = await client.next(Message)
        ack = await client.next(commands.Basic.Ack)

        assert (returned.method.reply_code, returned.method.routing_key, returned.body) == (312, "nowhere", b"back")
        assert returned.properties.message_id == "m1" and ack.delivery_tag == 1
        await client.publish("nowhere", b"gone")
        assert (await client.next(commands.Basic.Ack)).delivery_tag == 2
        assert "/queue/nowhere" not in rig.alive.broker.queues.by_name


async def test_a_message_that_is_too_large_closes_the_channel_and_says_the_bound(autojump_clock: MockClock) -> None:
    async with amqp_node(limits={"body_bytes_max": 1000}) as rig:
        client = await connect(rig)
        await client.declare()
        await client.publish("jobs", b"x" * 1001)

        code, text = await client.closed(1)

        assert code == 406 and "1001 bytes; limits.body_bytes_max of this node is 1000" in text


async def test_a_full_queue_nacks_and_without_confirms_drops(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare(arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        await client.publish("jobs", b"1", b"2")
        await confirming(client)
        await client.publish("jobs", b"3")

        assert (await client.next(commands.Basic.Nack)).delivery_tag == 1
        assert (await client.declare(passive=True)).message_count == 1


async def test_recover_delivers_again(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()
        await client.consume()
        await client.publish("jobs", b"1")
        await client.messages(1)
        await client.call(1, commands.Basic.Recover(True), commands.Basic.RecoverOk)

        (message,) = await client.messages(1)

        assert message.method.redelivered and message.method.delivery_tag == 2


async def test_a_transaction_is_all_or_nothing(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()
        await client.declare("in")
        await client.publish("in", b"work", delivery_mode=2)
        await client.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
        await client.consume("in")
        await client.messages(1)
        await client.publish("jobs", b"no")
        await client.send(1, commands.Basic.Ack(1))
        await client.call(1, commands.Tx.Rollback(), commands.Tx.RollbackOk)
        assert (await client.declare(passive=True)).message_count == 0

        await client.publish("jobs", b"yes")
        await client.send(1, commands.Basic.Ack(1))
        await client.call(1, commands.Tx.Commit(), commands.Tx.CommitOk)

        assert (await client.declare(passive=True)).message_count == 1
        client.pipe.close()
        assert (await (await connect(rig)).declare("in", passive=True)).message_count == 0


@pytest.mark.parametrize("does_publish", [True, False])
async def test_commit_ok_is_sent_when_publishes_and_acks_are_durable(
    autojump_clock: MockClock, does_publish: bool
) -> None:
    async with AmqpMesh("a").run() as mesh:
        client = await mesh.client("a")
        await client.declare()
        await client.publish("jobs", b"work", delivery_mode=2)
        await client.consume()
        await client.messages(1)
        await client.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
        if does_publish:
            await client.publish("jobs", b"yes", delivery_mode=2)
        else:
            await client.send(1, commands.Basic.Ack(1))
        mesh.slow_disk("a", 4.0, exactly=True)
        begun = trio.current_time()
        await client.call(1, commands.Tx.Commit(), commands.Tx.CommitOk)

        # Seconds of the mock clock. A call of the disk has done its work after three quarters of its time.
        assert trio.current_time() - begun >= 3


@pytest.mark.parametrize("is_late", [True, False])
async def test_a_transaction_with_a_message_that_was_taken_back_is_not_committed(
    autojump_clock: MockClock, is_late: bool
) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare(arguments={"x-consumer-timeout": 1000})
        await client.declare("out")
        await client.publish("jobs", b"in")
        await client.consume()
        await client.messages(1)
        await client.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
        await client.publish("out", b"made of it")
        frames = [commands.Basic.Ack(1), commands.Tx.Commit()]
        if not is_late:
            await client.send(1, frames.pop(0))
        await client.messages(1)  # Delivered again.
        await client.send(1, *frames)

        assert (await client.closed())[0] == 406
        await client.channel()
        assert (await client.declare("out", passive=True)).message_count == 0


async def test_a_transaction_may_recover_what_was_taken_back(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare(arguments={"x-consumer-timeout": 1000})
        await client.publish("jobs", b"in")
        await client.consume()
        await client.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
        await client.messages(2)
        await client.call(1, commands.Basic.Recover(True), commands.Basic.RecoverOk)
        await client.call(1, commands.Tx.Commit(), commands.Tx.CommitOk)

        assert await client.bodies(1) == [b"in"]


async def test_a_commit_that_too_few_nodes_confirm_closes_its_channel(autojump_clock: MockClock) -> None:
    async with AmqpMesh("a", "b", "c", mesh={"receipt_short": "refuse"}).run() as mesh:
        client, other = await mesh.client("a"), await mesh.client("a")
        await client.declare()
        await client.consume()
        await client.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
        mesh.cut("a", "b")
        mesh.cut("a", "c")
        await client.publish("jobs", b"1", delivery_mode=2)
        await client.send(1, commands.Tx.Commit())

        code, text = await client.closed()

        assert (code, "It was accepted" in text) == (406, True)
        await client.channel()
        await other.consume()
        assert set(await other.bodies(1)) == {b"1"}


async def test_a_reply_goes_to_the_pseudo_queue_of_the_requester(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        asks, answers = await connect(rig), await connect(rig)
        await asks.declare("rpc")
        await asks.consume("amq.rabbitmq.reply-to", no_ack=True)
        await asks.publish("rpc", b"2+2", reply_to="amq.rabbitmq.reply-to", correlation_id="7")
        await answers.consume("rpc", no_ack=True)
        (request,) = await answers.messages(1)
        await answers.publish(request.properties.reply_to, b"4", correlation_id=request.properties.correlation_id)

        (reply,) = await asks.messages(1)

        assert (reply.body, reply.properties.correlation_id, reply.method.consumer_tag) == (b"4", "7", "c")


async def test_a_reply_that_no_client_waits_for_ends_no_channel(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        asks, answers = await connect(rig), await connect(rig)
        await asks.declare("rpc")
        await asks.consume("amq.rabbitmq.reply-to", no_ack=True)
        await asks.publish("rpc", b"2+2", reply_to="amq.rabbitmq.reply-to")
        await answers.consume("rpc")
        (request,) = await answers.messages(1)
        await confirming(answers)
        await asks.call(1, commands.Basic.Cancel("c"), commands.Basic.CancelOk)

        await answers.publish(request.properties.reply_to, b"4")
        # As RabbitMQ: it is dropped, or returned if it is mandatory, and confirmed.
        assert (await answers.next(commands.Basic.Ack)).delivery_tag == 1
        await answers.publish(request.properties.reply_to, b"4", mandatory=True)
        (returned,) = await answers.messages(1)
        assert (returned.method.reply_code, returned.body) == (312, b"4")
        assert (await answers.next(commands.Basic.Ack)).delivery_tag == 2

        await answers.send(1, commands.Basic.Ack(request.method.delivery_tag))
        await answers.publish("/reply-queue/none", b"4")
        assert (await answers.next(commands.Basic.Ack)).delivery_tag == 3


async def test_a_reply_with_further_routing_keys_is_refused_as_such(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare("rpc")
        await client.consume("amq.rabbitmq.reply-to", no_ack=True)
        await client.publish("rpc", b"2+2", reply_to="amq.rabbitmq.reply-to")
        request = await client.call(1, commands.Basic.Get(0, "rpc", True), Message)

        await client.publish(request.properties.reply_to, b"4", headers={"CC": ["rpc"]})

        code, text = await client.closed()
        assert code == 406
        assert "a reply has no CC and no BCC" in text


async def test_a_requester_that_leaves_before_its_reply_is_decided_ends_no_channel(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.channel(2)
        await client.declare("rpc")
        await client.consume("amq.rabbitmq.reply-to", "replies", channel=2, no_ack=True)
        await client.publish("rpc", b"2+2", reply_to="amq.rabbitmq.reply-to", channel=2)
        await client.consume("rpc", no_ack=True)
        (request,) = await client.messages(1)
        await confirming(client)

        reply = client.publishing(request.properties.reply_to, b"4")
        await client.pipe.send_all(reply + frame.marshal(commands.Basic.Cancel("replies"), 2))

        await client.next(commands.Basic.CancelOk)
        await confirmed(client, 1)
        await client.nothing()


@pytest.mark.parametrize("passive", [True, False])
async def test_a_client_may_ask_whether_there_are_direct_replies(autojump_clock: MockClock, passive: bool) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)

        declared = await client.declare("amq.rabbitmq.reply-to", passive=passive)

        # As RabbitMQ 3.10.8.
        assert (declared.queue, declared.message_count, declared.consumer_count) == ("amq.rabbitmq.reply-to", 0, 1)
        assert not rig.alive.settings_parts.declared_queues.texts


@pytest.mark.parametrize("passive", [True, False])
async def test_a_server_may_ask_whether_its_requester_still_waits(autojump_clock: MockClock, passive: bool) -> None:
    async with amqp_node() as rig:
        asks, answers = await connect(rig), await connect(rig)
        await asks.declare("rpc")
        await asks.consume("amq.rabbitmq.reply-to", no_ack=True)
        await asks.publish("rpc", b"2+2", reply_to="amq.rabbitmq.reply-to")
        await answers.consume("rpc", no_ack=True)
        (request,) = await answers.messages(1)
        address = request.properties.reply_to

        declared = await answers.declare(address, passive=passive)
        await asks.call(1, commands.Basic.Cancel("c"), commands.Basic.CancelOk)

        assert (declared.queue, declared.message_count, declared.consumer_count) == (address, 0, 1)
        await answers.send(1, commands.Queue.Declare(0, address, passive=passive))
        assert (await answers.closed())[0] == 404
        assert set(rig.alive.settings_parts.declared_queues.texts) == {"/queue/rpc"}


async def test_properties_that_no_header_of_stomp_could_have_reach_both(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client, stomp = await connect(rig), await rig.connect()
        await client.declare()
        said = {"big": "x" * 20_000, "table": {"a": [1]}, "kind": "letter"}
        await client.publish("jobs", b"one", delivery_mode=2, headers=said)
        await stomp.send("SUBSCRIBE\nid:1\ndestination:/queue/jobs\nack:client\n\n")
        headers = (await stomp.next("MESSAGE")).head.headers
        await stomp.send("UNSUBSCRIBE\nid:1\n\n")
        await client.consume()

        (message,) = await client.messages(1)

        assert headers["kind"] == "letter" and not {"big", "table", "amqp-properties"} & headers.keys()
        assert message.properties.headers == said


async def test_stomp_and_amqp_clients_share_a_queue(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        stomp = await rig.connect()
        await client.declare()
        await client.publish("jobs", b"hello", delivery_mode=2, content_type="a/b", headers={"colour": "red", "n": 1})
        await stomp.send("SUBSCRIBE\nid:1\ndestination:/queue/jobs\n\n")
        headers = (await stomp.next("MESSAGE")).head.headers
        await stomp.send("UNSUBSCRIBE\nid:1\n\n")
        await stomp.send("SEND\ndestination:/queue/jobs\ncontent-type:text/plain\nsize:big\nreceipt:1\n\nback")
        await stomp.receipt()
        await client.consume()
        (message,) = await client.messages(1)

        assert (headers["content-type"], headers["colour"], headers["n"]) == ("a/b", "red", "1")
        assert (message.body, message.properties.content_type) == (b"back", "text/plain")
        assert message.properties.headers == {"size": "big"} and message.properties.delivery_mode == 2


async def test_late_confirms_of_a_channel_are_none_of_the_next_with_its_number(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()
        await confirming(client)
        close = commands.Channel.Close(200, "", 0, 0)
        select = commands.Confirm.Select()
        await client.pipe.send_all(client.publishing("jobs", b"old", delivery_mode=2))
        await client.send(1, close, commands.Channel.Open(), select)
        await client.next(commands.Confirm.SelectOk)
        with trio.move_on_after(5):
            while True:
                await client._read()

        assert not [found for _, found in client.received if isinstance(found, commands.Basic.Ack)]


async def test_an_ack_in_a_transaction_looks_at_no_other_delivery(autojump_clock: MockClock) -> None:
    class Counting(dict[int, Any]):
        looked_at = 0

        def __iter__(self) -> Iterator[int]:
            for tag in super().__iter__():
                self.looked_at += 1
                yield tag

        def keys(self) -> Any:
            return list(self)

    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()
        await client.publish("jobs", *[b"x"] * 50)
        await client.consume()
        await client.messages(50)
        await client.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
        (session,) = rig.alive.sessions.values()
        assert isinstance(session.dialogue, AmqpDialogue)
        state = next(iter(session.dialogue.encoder.channels.values()))
        state.unacked = unacked = Counting(state.unacked)

        await client.send(1, *[commands.Basic.Ack(tag) for tag in range(1, 51)])
        await client.call(1, commands.Tx.Commit(), commands.Tx.CommitOk)

        assert not unacked
        assert unacked.looked_at == 0


async def test_a_queue_that_is_deleted_while_its_consumer_leaves_harms_no_other(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client, other = await connect(rig), await connect(rig)
        await client.declare()
        await client.consume()
        session = next(iter(rig.alive.sessions.values()))
        # The task of a deletion runs a moment after it, when the connection may have been left.
        (notify,) = rig.alive.settings_parts.queue_watchers._watchers["/queue/jobs"].values()
        client.pipe.close()
        await session.closed.wait()
        await eventually(lambda: not hasattr(session, "dialogue"))

        notify()
        await trio.sleep(1)

        await other.declare("others")


async def test_commands_in_one_write_are_answered_in_their_order(autojump_clock: MockClock) -> None:
    async with AmqpMesh("a").run() as mesh:
        client = await mesh.client("a")
        await client.declare()
        mesh.slow_disk("a", 1.0, exactly=True)

        await client.publish("jobs", b"1", delivery_mode=2)
        await client.send(
            1,
            commands.Basic.Consume(0, "jobs", "c"),
            commands.Basic.Qos(0, 1),
            commands.Basic.Consume(0, "jobs", "d"),
            commands.Queue.Declare(0, "jobs", durable=True),
        )
        await client.next(commands.Queue.DeclareOk)

        answers = [found.name for _, found in client.received if not isinstance(found, Message)]
        assert answers == ["Basic.ConsumeOk", "Basic.QosOk", "Basic.ConsumeOk"]


async def test_a_consumer_has_its_own_prefetch_within_that_of_the_channel(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()
        await client.publish("jobs", *[b"x"] * 9)
        await client.call(1, commands.Basic.Qos(0, 5, True), commands.Basic.QosOk)
        await client.call(1, commands.Basic.Qos(0, 2), commands.Basic.QosOk)

        await client.consume()
        await client.messages(2)
        await client.nothing()


async def test_a_prefetch_of_the_channel_bounds_the_consumers_that_it_has(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        for queue in ("jobs", "other"):
            await client.declare(queue)
        await client.call(1, commands.Basic.Qos(0, 2), commands.Basic.QosOk)
        for queue in ("jobs", "other"):
            await client.consume(queue, queue)
        await client.publish("jobs", b"1")
        await client.messages(1)

        await client.call(1, commands.Basic.Qos(0, 2, True), commands.Basic.QosOk)
        await client.publish("jobs", b"2", b"3")
        await client.publish("other", b"4")
        assert await client.bodies(1) == [b"2"]
        await client.nothing()

        await client.send(1, commands.Basic.Ack(2, True))
        assert sorted(await client.bodies(2)) == [b"3", b"4"]


async def test_nothing_is_answered_after_the_close_of_the_connection(autojump_clock: MockClock) -> None:
    rig = Rig(amqp=(LISTENER,), limits={"drain_seconds": 20.0})
    async with rig.run():
        client = await connect(rig)
        await client.declare()
        await client.publish("jobs", b"1")
        await client.call(1, commands.Basic.Get(0, "jobs"), Message)
        rig.alive.stop()
        await trio.sleep(0.5)

        await client.send(1, commands.Basic.Consume(0, "jobs", "c"))
        assert (await client.closed(0))[0] == 320
        await client.send(2, commands.Channel.Open())

        await client.until_ended()
        assert client.received == []


async def test_a_message_got_without_ack_is_settled_before_anything_else_is_decided(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with amqp_node() as rig:
        client, other = await connect(rig), await connect(rig)
        await client.declare()
        await client.publish("jobs", b"1")
        await client.declare(passive=True)
        (getter, _), slot = rig.alive.sessions, rig.alive.engine.path.slot
        calls: list[int] = []

        async def one_slot(session: int = 0, *, asks: bool = False) -> None:
            calls.append(session)
            if session == getter and calls.count(getter) > 1:
                await trio.sleep_forever()
            await slot(session, asks=asks)

        monkeypatch.setattr(rig.alive.engine.path, "slot", one_slot)
        await client.call(1, commands.Basic.Get(0, "jobs", True), Message)
        rig.alive.sessions[getter].finish()
        await client.until_ended()

        await other.call(1, commands.Basic.Get(0, "jobs"), commands.Basic.GetEmpty)


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        (commands.Tx.Commit(), commands.Tx.CommitOk),
        (commands.Tx.Rollback(), commands.Tx.RollbackOk),
        (commands.Basic.Qos(0, 1), commands.Basic.QosOk),
        (commands.Basic.Consume(0, "jobs", "c"), commands.Basic.ConsumeOk),
        (commands.Channel.Close(0, "", 0, 0), commands.Channel.CloseOk),
    ],
    ids=lambda value: value.name if isinstance(value, commands.base.Frame) else "",
)
async def test_commit_ok_comes_when_all_is_durable_and_before_the_answer_to_what_follows(
    autojump_clock: MockClock, method: Any, answer: Any
) -> None:
    async with AmqpMesh("a").run() as mesh:
        client = await mesh.client("a")
        await client.declare()
        await client.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
        mesh.slow_disk("a", 1.0, exactly=True)
        began = trio.current_time()

        publish = client.publishing("jobs", b"x", delivery_mode=2)
        await client.pipe.send_all(publish + frame.marshal(commands.Tx.Commit(), 1) + frame.marshal(method, 1))

        # No frame is skipped: the first one that is no message is commit-ok.
        await client.next(commands.Tx.CommitOk)
        assert not client.received
        # Three quarters of a call of the disk pass before it has done its work.
        assert trio.current_time() - began >= 0.75
        await client.next(answer)


async def test_a_message_that_a_get_gave_back_unsent_does_not_end_the_next_get(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client, publisher = await connect(rig), await connect(rig)
        await client.declare()
        await client.declare("other")
        await publisher.publish("jobs", b"0", delivery_mode=2)
        await trio.sleep(1)
        await client.call(1, commands.Basic.Get(0, "jobs"), Message)
        is_free = stick(rig)
        await publisher.publish("jobs", b"1", delivery_mode=2)
        await trio.sleep(0.01)
        await client.send(1, commands.Basic.Get(0, "jobs"))
        await client.next(commands.Basic.GetEmpty)
        await client.send(1, commands.Basic.Get(0, "jobs"))
        await trio.sleep(0.06)
        # Because of this one the message waits for the next append, when it is delivered again.
        await publisher.publish("other", b"x", delivery_mode=2)
        await trio.sleep(0.01)
        is_free.set()

        assert (await client.next(Message)).body == b"1"


async def test_the_consumer_whose_turn_it_is_keeps_it_when_its_channel_is_bounded(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        first, second = await connect(rig), await connect(rig)
        await first.declare(arguments={"x-single-active-consumer": True})
        await first.consume()
        await second.consume()

        await first.call(1, commands.Basic.Qos(0, 5, True), commands.Basic.QosOk)
        await first.publish("jobs", b"1", b"2")

        assert await first.bodies(2) == [b"1", b"2"]
        await second.nothing()
