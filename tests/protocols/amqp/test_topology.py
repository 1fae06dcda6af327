"""Queues, exchanges and bindings over AMQP: declared for the mesh, refused with the right codes."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

import argon2
import pytest
import trio
from pamqp import base, commands, frame
from trio.testing import MockClock

from qmq.config import PermissionSettings, User
from qmq.definitions.definition import Key
from tests.protocols.amqp.mesh import AmqpMesh
from tests.protocols.amqp.rig import AmqpClient, Message, amqp_node, connect

HASH: Final = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("x")


async def exchange(client: AmqpClient, name: str, kind: str, **options: Any) -> None:
    await client.call(1, commands.Exchange.Declare(0, name, kind, **options), commands.Exchange.DeclareOk)


async def bind(client: AmqpClient, queue: str, name: str, key: str = "", **arguments: Any) -> None:
    method = commands.Queue.Bind(0, queue, name, key, arguments=arguments)
    await client.call(1, method, commands.Queue.BindOk)


async def routed(client: AmqpClient, queue: str) -> list[bytes]:
    found = []
    while True:
        await client.send(1, commands.Basic.Get(0, queue, True))
        got = await client.next(Message | commands.Basic.GetEmpty)
        if not isinstance(got, Message):
            return found
        found.append(got.body)


async def test_exchanges_of_all_types_route(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        for kind, key, arguments in (
            ("direct", "a.b", {}),
            ("topic", "a.*", {}),
            ("fanout", "", {}),
            ("headers", "", {"colour": "red", "n": 1, "x-match": "all"}),
        ):
            await exchange(client, f"my-{kind}", kind)
            await client.declare(kind)
            await bind(client, kind, f"my-{kind}", key, **arguments)
            await client.publish("a.b", b"yes", exchange=f"my-{kind}", headers={"colour": "red", "n": 1})
        for kind in ("direct", "topic", "headers"):
            await client.publish("x", b"no", exchange=f"my-{kind}", headers={"colour": "red"})

        for kind in ("direct", "topic", "fanout", "headers"):
            assert await routed(client, kind) == [b"yes"], kind


@pytest.mark.parametrize("delay", [500_000, "500000"])
async def test_a_message_to_a_delayed_exchange_waits_for_its_delay_in_each_queue(
    autojump_clock: MockClock, delay: object
) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await exchange(client, "later", "x-delayed-message", arguments={"x-delayed-type": "direct"})
        await exchange(client, "now", "direct")
        for queue, source in (("a", "later"), ("b", "later"), ("c", "now")):
            await client.declare(queue, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
            await bind(client, queue, source, "k")
        await client.declare("dead")
        for source in ("later", "now"):
            await client.publish("k", b"delayed", exchange=source, headers={"x-delay": delay})
        await client.publish("k", b"at once", exchange="later", headers={"x-delay": -5000})
        await client.publish("k", b"at once", exchange="later")

        assert [await routed(client, queue) for queue in "abc"] == [[b"at once"] * 2] * 2 + [[b"delayed"]]
        await trio.sleep(400)
        assert await routed(client, "a") == []
        await trio.sleep(200)
        assert await routed(client, "a") == [b"delayed"]

        await client.send(1, commands.Basic.Get(0, "b", False))
        got = await client.next(Message)
        assert got.properties.headers["x-delay"] == delay
        await client.send(1, commands.Basic.Nack(got.method.delivery_tag, False, False))
        # A dead letter has waited already.
        assert await routed(client, "dead") == [b"delayed"]


@pytest.mark.parametrize("name", ["amq.direct", "amq.topic", "amq.fanout", "amq.headers", "amq.match"])
async def test_predeclared_exchanges_are_there(autojump_clock: MockClock, name: str) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()
        await bind(client, "jobs", name, "k")
        await client.publish("k", b"1", exchange=name)

        assert await routed(client, "jobs") == [b"1"]


async def test_a_message_says_by_which_exchange_it_came(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()
        await bind(client, "jobs", "amq.topic", "a.#")
        await client.consume()
        await client.publish("a.b.c", b"1", exchange="amq.topic", headers={"exchange": "mine"})
        (message,) = await client.messages(1)

        assert (message.method.exchange, message.method.routing_key) == ("amq.topic", "a.b.c")
        assert message.properties.headers == {"exchange": "mine"}


async def test_a_mandatory_publish_to_an_exchange_without_a_match_is_returned(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.publish("k", b"1", exchange="amq.topic", mandatory=True)

        assert (await client.next(Message)).method.reply_code == 312


async def test_a_server_named_queue_is_the_last_one_of_its_channel(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        declared = await client.declare("", exclusive=True)
        await bind(client, "", "amq.fanout")
        await client.consume("")
        await client.publish("", b"1", exchange="amq.fanout")

        assert declared.queue.startswith("amq.gen-")
        assert await client.bodies(1) == [b"1"]


async def test_an_exclusive_queue_is_locked_and_ends_with_its_connection(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        owner, other = await connect(rig), await connect(rig)
        await owner.declare("mine", exclusive=True)
        await owner.declare("mine", exclusive=True)
        for method in (
            commands.Queue.Declare(0, "mine", passive=True),
            commands.Basic.Consume(0, "mine"),
            commands.Queue.Delete(0, "mine"),
            commands.Queue.Purge(0, "mine"),
        ):
            await other.send(1, method)
            assert (await other.closed())[0] == 405, method.name
            await other.channel()
        owner.pipe.close()
        await trio.sleep(5)

        await other.send(1, commands.Queue.Declare(0, "mine", passive=True))
        assert (await other.closed())[0] == 404


@pytest.mark.parametrize("bodies", [[], [b"1"], [b"1", b"2"]], ids=["empty", "one", "more"])
@pytest.mark.parametrize("no_ack", [True, False])
async def test_a_get_deletes_no_auto_delete_queue_and_its_last_consumer_does(
    autojump_clock: MockClock, bodies: list[bytes], no_ack: bool
) -> None:
    async with AmqpMesh("a", "b").run() as rig:
        assert isinstance(rig, AmqpMesh)
        client, other = await rig.client("a"), await rig.client("b")
        await client.declare("short", auto_delete=True)
        await bind(client, "short", "amq.fanout")
        for body in bodies:
            await client.publish("", body, exchange="amq.fanout")
        for one in (client, other):
            await one.send(1, commands.Basic.Get(0, "short", no_ack=no_ack))
            await one.next((Message, commands.Basic.GetEmpty))
        await trio.sleep(20)

        assert all("/queue/short" in node.settings_parts.declared_queues.texts for node in rig.nodes.values())
        await client.publish("", b"later", exchange="amq.fanout", mandatory=True)
        await client.consume("short", no_ack=True)
        await client.messages(1)
        await trio.sleep(1)  # Until the other node knows of this consumer.
        await client.call(1, commands.Basic.Cancel("c"), commands.Basic.CancelOk)
        await trio.sleep(5)
        assert not any(node.settings_parts.declared_queues.texts for node in rig.nodes.values())


async def test_an_auto_delete_queue_goes_with_its_last_consumer(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare("short", auto_delete=True)
        await client.consume("short")
        await client.call(1, commands.Basic.Cancel("c"), commands.Basic.CancelOk)
        await trio.sleep(1)

        await client.send(1, commands.Queue.Declare(0, "short", passive=True))
        assert (await client.closed())[0] == 404


@pytest.mark.parametrize(
    ("method", "code", "text"),
    [
        (commands.Queue.Declare(0, "jobs", durable=False), 406, "durable is not set, requested: false."),
        (commands.Queue.Declare(0, "none", passive=True), 404, "no queue 'none' in vhost '/'"),
        (commands.Queue.Declare(0, "amq.mine"), 403, "reserved"),
        (commands.Queue.Bind(0, "jobs", "none"), 404, "no exchange 'none' in vhost '/'"),
        (commands.Queue.Bind(0, "none", "amq.topic"), 404, "no queue"),
        (commands.Queue.Bind(0, "jobs", ""), 403, "default exchange"),
        (commands.Exchange.Bind(0, "none", "amq.topic"), 404, "no exchange 'none' in vhost '/'"),
        (commands.Exchange.Bind(0, "amq.topic", "none"), 404, "no exchange 'none' in vhost '/'"),
        (commands.Exchange.Bind(0, "", "amq.topic"), 403, "default exchange"),
        (commands.Exchange.Unbind(0, "amq.topic", ""), 403, "default exchange"),
        (commands.Basic.Consume(0, "none"), 404, "no queue"),
        (commands.Basic.Get(0, "none"), 404, "no queue"),
        (commands.Exchange.Declare(0, "none", passive=True), 404, "no exchange"),
        (commands.Exchange.Declare(0, "amq.topic", "direct"), 406, "type is topic, not direct"),
        (commands.Exchange.Declare(0, "amq.mine", "direct"), 403, "reserved"),
        (commands.Exchange.Declare(0, "a b", "direct"), 406, "blanks"),
        (commands.Exchange.Delete(0, "amq.topic"), 403, "predefined"),
        (commands.Confirm.Select(), 406, "transactions has no confirms"),
        (commands.Exchange.Declare(0, "", passive=True), 403, "default exchange"),
        *(
            (commands.Queue.Declare(0, "jobs", durable=True, arguments=arguments), 406, text)
            for arguments, text in (
                ({"x-max-priority": 5}, "x-max-priority is not set, requested: set"),
                ({"x-message-ttl": 2500}, "x-message-ttl is not set, requested: 2500."),
                ({"x-expires": 60000}, "x-expires is not set, requested: 60000."),
                ({"x-consumer-timeout": 1}, "x-consumer-timeout is not set, requested: 1."),
                ({"x-max-length": 7}, "x-max-length is not set, requested: 7;"),
                ({"x-max-length-bytes": 7}, "x-max-length-bytes is not set, requested: 7;"),
                ({"x-delivery-limit": 3}, "x-delivery-limit is not set, requested: 3."),
                ({"x-single-active-consumer": True}, "x-single-active-consumer is not set, requested: true."),
                (
                    {"x-max-length": 7, "x-overflow": "reject-publish"},
                    'x-overflow is not set, requested: "reject-publish".',
                ),
                (
                    {"x-dead-letter-exchange": "amq.topic", "x-dead-letter-routing-key": "k"},
                    'x-dead-letter-exchange is not set, requested: "amq.topic"; '
                    'x-dead-letter-routing-key is not set, requested: "k".',
                ),
                (
                    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
                    'requested: "" with x-dead-letter-routing-key "dead".',
                ),
            )
        ),
        (commands.Queue.Declare(0, "n", arguments={"x-expires": 0}), 406, "x-expires is at least 1, not 0"),
        (commands.Queue.Declare(0, "n", arguments={"x-max-length": 0}), 406, "x-max-length is at least 1 here, not 0"),
    ],
)
async def test_a_refusal_closes_the_channel_with_its_code(
    autojump_clock: MockClock, method: Any, code: int, text: str
) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.channel(2)
        await client.declare()
        await client.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
        await client.send(1, method)

        found = await client.closed(1)

        assert found[0] == code and text in found[1], found
        await client.declare(channel=2)


@pytest.mark.parametrize(
    ("methods", "code"),
    [
        ([commands.Queue.Declare(0, "q", arguments={"x-queue-type": "stream"})], 540),
        ([commands.Basic.Qos(5, 0)], 540),
        ([commands.Basic.Recover(False)], 540),
        ([commands.Exchange.Declare(0, "e", "x-modulus-hash")], 503),
        ([commands.Basic.Consume(0, "jobs", "c"), commands.Basic.Consume(0, "jobs", "c")], 530),
        ([commands.Channel.Open()], 504),
    ],
)
async def test_what_breaks_the_protocol_closes_the_connection(
    autojump_clock: MockClock, methods: list[Any], code: int
) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()
        await client.send(1, *methods)

        assert (await client.closed(0))[0] == code
        await client.until_ended()


async def test_a_publish_that_is_immediate_is_refused_as_in_rabbitmq(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()
        await client.publish("jobs", b"x", immediate=True)

        assert (await client.closed(0))[:2] == (540, "NOT_IMPLEMENTED - immediate=true")


async def test_a_method_on_a_channel_that_is_not_open_closes_the_connection(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.send(7, commands.Queue.Declare(0, "q"))

        assert await client.closed(0) == (504, "CHANNEL_ERROR - channel 7 is not open")


async def test_a_channel_has_any_number_up_to_the_offer_and_one_beyond_is_530(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        before = rig.alive.session_parts.host.budget.bytes
        await client.channel(2047)
        assert rig.alive.session_parts.host.budget.bytes - before >= 4096
        await client.call(2047, commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)
        assert rig.alive.session_parts.host.budget.bytes - before < 4096
        await client.send(2048, commands.Channel.Open())

        assert await client.closed(0) == (530, "NOT_ALLOWED - channel 2048; at most 2047 is agreed")


async def test_a_channel_that_deletes_a_queue_gets_its_answer_before_the_cancel(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig, properties={"capabilities": {"consumer_cancel_notify": True}})
        await client.channel(2)
        await client.declare()
        await client.consume()
        await client.consume(tag="d", channel=2)
        await client.send(1, commands.Queue.Delete(0, "jobs"))
        for _ in range(2):
            await client.next(commands.Basic.Cancel)

        assert [(channel, found.name) for channel, found in client.received] == [(1, "Queue.DeleteOk")]


async def test_an_exclusive_consumer_of_a_queue_with_a_single_active_one_is_refused(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare(arguments={"x-single-active-consumer": True})
        await client.send(1, commands.Basic.Consume(0, "jobs", "c", exclusive=True))

        assert (await client.closed())[0] == 403


async def test_a_routing_key_of_255_bytes_fits_behind_any_exchange(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        long = "e" * 127
        await exchange(client, long, "fanout")
        await client.declare()
        await bind(client, "jobs", long)
        await client.publish("k" * 255, b"1", exchange=long)
        await client.consume()
        (message,) = await client.messages(1)

        assert (message.method.exchange, message.method.routing_key) == (long, "k" * 255)


async def test_what_follows_on_a_closed_channel_is_ignored(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()
        await client.publish("k", b"1", exchange="none")
        await client.publish("jobs", b"2")
        await client.send(1, commands.Queue.Declare(0, "late"))

        assert (await client.closed())[0] == 404
        await client.channel()
        assert (await client.declare(passive=True)).message_count == 0
        assert rig.alive.settings_parts.declared_queues.value_of("/queue/late") is None


@pytest.mark.parametrize("method", [commands.Basic.Cancel("c"), commands.Confirm.Select(), commands.Tx.Select()])
async def test_no_answer_follows_the_close_of_a_channel(autojump_clock: MockClock, method: Any) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()
        await client.consume()
        publish = client.publishing("jobs", b"1", headers={"delay": "soon"})
        await client.pipe.send_all(publish + frame.marshal(method, 1))

        assert (await client.closed())[0] == 406
        await client.nothing()


@pytest.mark.parametrize("method", [commands.Tx.Commit(), commands.Channel.Close(200, "", 0, 0)])
async def test_a_channel_is_closed_behind_the_answer_to_a_consume(autojump_clock: MockClock, method: Any) -> None:
    async with AmqpMesh("a").run() as mesh:
        client, publisher = await mesh.client("a"), await mesh.client("a")
        await client.declare()
        await client.publish("jobs", b"1")
        await client.declare()
        mesh.slow_disk("a", 0.5, exactly=True)
        await publisher.publish("jobs", b"2", delivery_mode=2)
        await trio.sleep(0.1)
        await client.send(1, commands.Basic.Consume(0, "jobs", "c"), method)
        with trio.move_on_after(5.0):
            while True:
                await client._read()

        kinds = [type(found) for _, found in client.received]
        assert kinds[0] is commands.Basic.ConsumeOk
        assert kinds[-1] in (commands.Channel.Close, commands.Channel.CloseOk)


async def test_no_delivery_follows_the_close_of_a_channel(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        owner, client = await connect(rig), await connect(rig)
        await owner.declare("mine", exclusive=True)
        await client.declare()
        await client.consume()
        await client.send(1, commands.Basic.Get(0, "mine"))
        await client.next_of(commands.Channel.Close)

        await owner.publish("jobs", b"1")

        await client.nothing()


async def test_deleting_a_queue_cancels_its_consumers(autojump_clock: MockClock) -> None:
    notified = {"capabilities": {"consumer_cancel_notify": True}}
    async with amqp_node() as rig:
        owner, reader, silent = await connect(rig), await connect(rig, properties=notified), await connect(rig)
        await owner.declare()
        await reader.consume()
        await silent.consume()
        deleted = await owner.call(1, commands.Queue.Delete(0, "jobs"), commands.Queue.DeleteOk)

        assert deleted.message_count == 0
        assert (await reader.next(commands.Basic.Cancel)).consumer_tag == "c"
        await silent.nothing()
        await owner.declare()
        await owner.publish("jobs", b"1")
        await reader.nothing()


@pytest.mark.parametrize("understands", [True, False])
async def test_a_right_that_is_taken_away_cancels_the_consumers_that_the_client_has(
    autojump_clock: MockClock, understands: bool
) -> None:
    users = (User(name="ann", password_hash=HASH),)
    all_of = PermissionSettings(user="ann", allow=("send", "subscribe", "declare"), destinations=("/queue/*",))
    async with amqp_node(users=users, permissions=(all_of,)) as rig:
        properties = {"capabilities": {"consumer_cancel_notify": understands}}
        client = await connect(rig, response="\0ann\0x", properties=properties)
        await client.call(1, commands.Basic.Qos(0, 1, False), commands.Basic.QosOk)
        await client.declare()
        await client.publish("jobs", b"1", b"2", b"3")
        await client.call(1, commands.Basic.Get(0, "jobs"), Message)
        for tag in ("former", "present"):
            await client.consume(tag=tag)
            await client.next(Message)
            if tag == "former":
                await client.call(1, commands.Basic.Cancel(tag), commands.Basic.CancelOk)

        rig.alive.session_parts.login_path.access.change(users, ())

        if understands:
            assert (await client.next(commands.Basic.Cancel)).consumer_tag == "present"
        await client.nothing()
        assert not rig.alive.settings_parts.queue_watchers._watchers


async def test_a_queue_that_is_deleted_ends_no_other_consumer_of_this_tag(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client, other = await connect(rig), await connect(rig)
        await client.declare()
        await client.declare("others")
        await client.consume()
        # The task of a deletion runs a moment after it.
        (notify,) = rig.alive.settings_parts.queue_watchers._watchers["/queue/jobs"].values()
        await client.call(1, commands.Basic.Cancel("c"), commands.Basic.CancelOk)
        await client.consume("others")

        notify()
        await trio.sleep(1)

        await client.call(1, commands.Basic.Cancel("c"), commands.Basic.CancelOk)
        await other.publish("others", b"1")
        await client.nothing()


@pytest.mark.parametrize("method", [commands.Basic.Consume(0, "jobs", "c"), commands.Basic.Get(0, "jobs")])
async def test_a_queue_that_is_deleted_while_a_consumer_begins_is_not_found(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, method: base.Frame
) -> None:
    async with amqp_node() as rig:
        client, other = await connect(rig), await connect(rig)
        await client.declare()
        (waits, _), free, slot = rig.alive.sessions, trio.Event(), rig.alive.engine.path.slot

        async def late_slot(session: int = 0, *, asks: bool = False) -> None:
            if session == waits:
                await free.wait()
            await slot(session, asks=asks)

        monkeypatch.setattr(rig.alive.engine.path, "slot", late_slot)
        await client.send(1, method)
        await trio.sleep(0.1)
        await other.call(1, commands.Queue.Delete(0, "jobs"), commands.Queue.DeleteOk)
        await other.declare()
        await other.publish("jobs", b"1")
        free.set()

        assert (await client.closed())[0] == 404
        await client.nothing()
        await client.channel()
        assert (await client.declare(passive=True)).message_count == 1
        assert not rig.alive.settings_parts.queue_watchers._watchers


async def test_if_unused_and_if_empty_keep_a_queue(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client, reader = await connect(rig), await connect(rig)
        await client.declare()
        await reader.consume()
        await client.send(1, commands.Queue.Delete(0, "jobs", if_unused=True))
        assert (await client.closed())[0] == 406
        await client.channel()
        await client.declare("full")
        await client.publish("full", b"1")
        await client.send(1, commands.Queue.Delete(0, "full", if_empty=True))
        assert (await client.closed())[0] == 406
        await client.channel()

        assert (await client.call(1, commands.Queue.Purge(0, "full"), commands.Queue.PurgeOk)).message_count == 1
        await client.call(1, commands.Queue.Delete(0, "full", if_empty=True), commands.Queue.DeleteOk)
        await client.call(1, commands.Queue.Delete(0, "never"), commands.Queue.DeleteOk)


async def test_what_is_unbound_gets_nothing_more(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()
        await bind(client, "jobs", "amq.direct", "k")
        unbind = commands.Queue.Unbind(0, "jobs", "amq.direct", "k")
        await client.call(1, unbind, commands.Queue.UnbindOk)
        await client.call(1, unbind, commands.Queue.UnbindOk)
        await client.publish("k", b"1", exchange="amq.direct")

        assert await routed(client, "jobs") == []


async def test_an_exchange_is_bound_to_another_and_unbound(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await exchange(client, "in", "headers")
        await client.declare()
        await bind(client, "jobs", "amq.topic", "eu.*")
        arguments = {"x-match": "any", "colour": "red"}
        join = commands.Exchange.Bind(0, "amq.topic", "in", "", arguments=arguments)
        await client.call(1, join, commands.Exchange.BindOk)
        await client.publish("eu.new", b"1", exchange="in", headers={"colour": "red"})
        await client.publish("eu.new", b"2", exchange="in", headers={"colour": "blue"})
        await client.publish("us.new", b"3", exchange="in", headers={"colour": "red"})

        (message,) = [await client.call(1, commands.Basic.Get(0, "jobs", True), Message)]
        assert (message.body, message.method.exchange, message.method.routing_key) == (b"1", "in", "eu.new")
        assert await routed(client, "jobs") == []

        part = commands.Exchange.Unbind(0, "amq.topic", "in", "", arguments=arguments)
        await client.call(1, part, commands.Exchange.UnbindOk)
        await client.call(1, part, commands.Exchange.UnbindOk)
        await client.publish("eu.new", b"4", exchange="in", headers={"colour": "red"})
        assert await routed(client, "jobs") == []


@pytest.mark.parametrize("mandatory", [False, True])
async def test_an_internal_exchange_gets_messages_of_other_exchanges_only(
    autojump_clock: MockClock, mandatory: bool
) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await exchange(client, "inner", "fanout", internal=True)
        await exchange(client, "inner", "fanout", internal=True)
        await client.declare()
        await bind(client, "jobs", "inner")
        join = commands.Exchange.Bind(0, "inner", "amq.topic", "eu.*")
        await client.call(1, join, commands.Exchange.BindOk)
        await client.publish("eu.new", b"1", exchange="amq.topic")
        assert await routed(client, "jobs") == [b"1"]

        await client.publish("eu.new", b"2", exchange="inner", mandatory=mandatory)

        closed = await client.next(commands.Channel.Close)
        assert (closed.reply_code, "internal exchange 'inner'" in closed.reply_text) == (403, True)
        await client.send(1, commands.Channel.CloseOk())
        await client.call(1, commands.Channel.Open(), commands.Channel.OpenOk)
        assert await routed(client, "jobs") == []
        await client.send(1, commands.Exchange.Declare(0, "inner", "fanout"))
        assert (await client.next(commands.Channel.Close)).reply_code == 406


async def test_an_alternate_exchange_is_one_that_the_client_may_send_to(autojump_clock: MockClock) -> None:
    ann = PermissionSettings(user="ann", allow=("declare", "send", "subscribe"), destinations=("/exchange/ann.*",))
    async with amqp_node(users=(User(name="ann", password_hash=HASH),), permissions=(ann,)) as rig:
        client = await connect(rig, response="\0ann\0x")
        await client.call(1, commands.Exchange.Declare(0, "ann.rest", "fanout"), commands.Exchange.DeclareOk)
        for name, alternate in (("ann.a", "ann.rest"), ("ann.b", "amq.fanout")):
            arguments = {"alternate-exchange": alternate}
            await client.send(1, commands.Exchange.Declare(0, name, "fanout", arguments=arguments))
            if alternate == "ann.rest":
                await client.next(commands.Exchange.DeclareOk)

        assert await client.closed() == (
            403,
            "ACCESS_REFUSED - The user ann may not send to /exchange/amq.fanout/*.",
        )
        assert "ann.b" not in rig.node.settings_parts.rules.routing.exchanges


async def test_to_declare_again_what_is_there_writes_nothing(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        for _ in range(2):
            before = rig.alive.store.journal.vector()
            await exchange(client, "e", "topic")
            await client.declare(arguments={"x-max-length": 5})
            await bind(client, "jobs", "e", "k")
            await client.call(1, commands.Exchange.Bind(0, "e", "amq.topic", "k"), commands.Exchange.BindOk)

        assert rig.alive.store.journal.vector() == before


async def test_a_passive_declare_is_a_use_of_a_queue_that_expires(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare(arguments={"x-expires": 60_000})

        for _ in range(3):
            await trio.sleep(40)
            await client.declare(passive=True)

        await trio.sleep(70)
        assert "/queue/jobs" not in rig.alive.settings_parts.declared_queues.texts


async def test_an_exchange_that_another_client_deletes_meanwhile_is_deleted(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await exchange(client, "e", "topic")
        change = rig.alive.settings_parts.definitions.change

        async def late(*args: Any, **more: Any) -> object:
            monkeypatch.undo()
            await change({Key("exchange", "e"): None})
            return await change(*args, **more)

        monkeypatch.setattr(rig.alive.settings_parts.definitions, "change", late)

        await client.call(1, commands.Exchange.Delete(0, "e"), commands.Exchange.DeleteOk)


async def test_a_mandatory_publish_is_returned_when_only_a_header_of_the_node_matches(
    autojump_clock: MockClock,
) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await exchange(client, "h", "headers")
        await client.declare()
        await bind(client, "jobs", "h", persistent="false")

        await client.publish("k", b"1", exchange="h", mandatory=True)

        returned = await client.next(Message)
        assert (returned.method.name, returned.body) == ("Basic.Return", b"1")


@pytest.mark.parametrize("exclusive", [True, False])
async def test_an_exclusive_queue_is_free_when_its_connection_has_got_close_ok(
    autojump_clock: MockClock, exclusive: bool
) -> None:
    async with amqp_node() as rig:
        owner = await connect(rig)
        await owner.declare("mine", exclusive=True)
        await owner.call(0, commands.Connection.Close(200, "", 0, 0), commands.Connection.CloseOk)

        client = await connect(rig)
        await client.declare("mine", exclusive=exclusive)
        owner.pipe.close()
        await client.publish("mine", b"1")

        assert (await client.declare("mine", passive=True)).message_count == 1


async def test_a_queue_that_only_stomp_has_used_exists(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        stomp, client = await rig.connect(), await connect(rig)
        await stomp.send("SEND\ndestination:/queue/plain\nreceipt:1\n\nhello")
        await stomp.receipt()

        assert (await client.declare("plain", passive=True)).message_count == 1
        assert (await client.call(1, commands.Basic.Get(0, "plain", True), Message)).body == b"hello"


async def test_permissions_count_as_for_stomp(autojump_clock: MockClock) -> None:
    users = (User(name="ann", password_hash=HASH),)
    allowed = PermissionSettings(
        user="ann", allow=("send", "subscribe", "declare"), destinations=("/queue/ann.*", "/exchange/amq.topic/ann.*")
    )
    async with amqp_node(users=users, permissions=(allowed,)) as rig:
        client = await connect(rig, response="\0ann\0x")
        await client.declare("ann.jobs")
        await client.publish("ann.jobs", b"1")
        assert await routed(client, "ann.jobs") == [b"1"]
        for step in ("declare", "publish", "exchange"):
            if step == "declare":
                await client.send(1, commands.Queue.Declare(0, "other"))
            elif step == "publish":
                await client.publish("bob.x", b"1", exchange="amq.topic")
            else:
                await client.send(1, commands.Exchange.Declare(0, "mine", "direct"))
            assert (await client.closed())[0] == 403, step
            await client.channel()


async def test_a_producer_declares_what_its_consumers_have_declared_and_needs_send_only(
    autojump_clock: MockClock,
) -> None:
    users = (User(name="app", password_hash=HASH, groups=("client",)), User(name="ann", password_hash=HASH))
    allowed = PermissionSettings(user="ann", allow=("send",), destinations=("/queue/jobs", "/exchange/e/jobs"))
    arguments = {"x-message-ttl": 60_000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    async with amqp_node(users=users, permissions=(allowed,)) as rig:
        app, ann = await connect(rig, response="\0app\0x"), await connect(rig, response="\0ann\0x")
        for client in (app, ann):
            before = rig.alive.store.journal.vector()
            await exchange(client, "e", "direct")
            await client.declare(arguments=arguments)
            await bind(client, "jobs", "e", "jobs")
        await ann.publish("jobs", b"1", exchange="e")
        assert (await ann.declare(passive=True)).queue == "jobs"

        assert rig.alive.store.journal.vector() == before
        assert await routed(app, "jobs") == [b"1"]
        for method in (
            commands.Queue.Declare(0, "new"),
            commands.Exchange.Declare(0, "new", "direct"),
            commands.Queue.Bind(0, "jobs", "e", "other"),
            commands.Queue.Unbind(0, "jobs", "e", "jobs"),
            commands.Exchange.Delete(0, "e"),
            commands.Basic.Consume(0, "jobs"),
        ):
            await ann.send(1, method)
            assert (await ann.closed())[0] == 403, method
            await ann.channel()


async def test_a_consumer_binds_a_queue_that_is_exclusive_to_it_without_send(autojump_clock: MockClock) -> None:
    users = (User(name="app", password_hash=HASH, groups=("client",)), User(name="ann", password_hash=HASH))
    allowed = PermissionSettings(
        user="ann", allow=("subscribe", "declare"), destinations=("/queue/ann.*", "/exchange/news")
    )
    async with amqp_node(users=users, permissions=(allowed,)) as rig:
        app, ann = await connect(rig, response="\0app\0x"), await connect(rig, response="\0ann\0x")
        await exchange(app, "news", "fanout")
        for queue, is_exclusive in (("ann.own", True), ("ann.shared", False)):
            await ann.call(1, commands.Queue.Declare(0, queue, exclusive=is_exclusive), commands.Queue.DeclareOk)
            if is_exclusive:
                await bind(ann, queue, "news")
                await ann.call(1, commands.Queue.Unbind(0, queue, "news", ""), commands.Queue.UnbindOk)
            else:
                await ann.send(1, commands.Queue.Bind(0, queue, "news", ""))
                assert (await ann.closed())[0] == 403


async def test_over_amqp_too_a_rule_of_a_queue_and_a_binding_need_the_rights_for_what_they_do(
    autojump_clock: MockClock,
) -> None:
    users = (User(name="app", password_hash=HASH, groups=("client",)), User(name="dec", password_hash=HASH))
    rows = (
        PermissionSettings(
            user="dec", allow=("send", "subscribe", "declare"), destinations=("/queue/mine.*", "/exchange/mine.*")
        ),
        PermissionSettings(user="dec", allow=("declare",), destinations=("/queue/v.*", "/exchange/v.*")),
    )
    letters = {"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "mine.loot"}
    async with amqp_node(users=users, permissions=rows) as rig:
        app, dec = await connect(rig, response="\0app\0x"), await connect(rig, response="\0dec\0x")
        await app.declare("v.inj")
        await app.call(1, commands.Exchange.Declare(0, "v.ex", "fanout"), commands.Exchange.DeclareOk)
        await exchange(dec, "mine.ex", "fanout")
        for method in (
            commands.Queue.Declare(0, "v.pay", durable=True, arguments=letters),
            commands.Queue.Bind(0, "v.inj", "mine.ex", ""),
            commands.Exchange.Delete(0, "v.ex"),
            commands.Exchange.Declare(0, "v.new", "topic", arguments={"alternate-exchange": "mine.ex"}),
            commands.Exchange.Bind(0, "mine.ex", "v.ex", ""),
        ):
            await dec.send(1, method)
            assert (await dec.closed())[0] == 403, method
            await dec.channel()


async def test_a_declare_counts_messages_and_consumers_here(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()
        await client.publish("jobs", b"1", b"2", delivery_mode=2)
        waiting = await client.declare()
        await client.call(1, commands.Basic.Qos(0, 1), commands.Basic.QosOk)
        await client.consume()
        await client.messages(1)
        consumed = await client.declare()

        assert (waiting.message_count, waiting.consumer_count) == (2, 0)
        assert (consumed.message_count, consumed.consumer_count) == (1, 1)


@pytest.mark.parametrize("value", [datetime(2020, 1, 1, tzinfo=UTC), bytearray(b"x"), Decimal("1.5"), {"a": [1]}])
async def test_an_unbind_with_arguments_that_no_binding_has_closes_its_channel_only(
    autojump_clock: MockClock, value: Any
) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare()

        await client.send(1, commands.Queue.Unbind(0, "jobs", "amq.headers", "", {"a": value}))

        assert (await client.closed())[0] == 406
        await client.channel()


EVE: Final[dict[str, Any]] = {
    "users": (
        User(name="ann", password_hash=HASH, groups=("client",)),
        User(name="eve", password_hash=HASH),
    ),
    "permissions": (
        PermissionSettings(user="eve", allow=("send", "declare"), destinations=("/queue/eve.*", "/exchange/keyed/k.*")),
        PermissionSettings(user="eve", allow=("observe",), destinations=("/queue/seen",)),
    ),
}


@pytest.mark.parametrize(
    "method",
    [
        commands.Queue.Declare(0, "secret", passive=True),
        commands.Queue.Declare(0, "none", passive=True),
        commands.Queue.Declare(0, "secret", durable=True, exclusive=True),
        commands.Queue.Delete(0, "none"),
        commands.Queue.Purge(0, "none"),
        commands.Queue.Bind(0, "none", "amq.topic", "k"),
        commands.Basic.Consume(0, "none"),
        commands.Basic.Get(0, "none"),
    ],
)
async def test_without_a_right_nothing_is_said_of_a_queue(autojump_clock: MockClock, method: Any) -> None:
    async with amqp_node(**EVE) as rig:
        ann = await connect(rig, response="\0ann\0x")
        await ann.declare("secret")
        eve = await connect(rig, response="\0eve\0x")

        await eve.send(1, method)

        assert (await eve.closed())[0] == 403
        await eve.channel()


@pytest.mark.parametrize("name", ["secret", "none"])
@pytest.mark.parametrize(
    "method",
    [
        lambda name: commands.Exchange.Declare(0, name, passive=True),
        lambda name: commands.Exchange.Delete(0, name),
        lambda name: commands.Exchange.Bind(0, name, "amq.topic", "k"),
        lambda name: commands.Exchange.Bind(0, "amq.fanout", name, "k"),
        lambda name: commands.Queue.Bind(0, "eve.jobs", name, "k"),
    ],
    ids=["declare", "delete", "target", "source", "source of queue"],
)
async def test_without_a_right_nothing_is_said_of_an_exchange(
    autojump_clock: MockClock, method: Any, name: str
) -> None:
    async with amqp_node(**EVE) as rig:
        ann = await connect(rig, response="\0ann\0x")
        await exchange(ann, "secret", "topic")
        eve = await connect(rig, response="\0eve\0x")
        await eve.declare("eve.jobs")

        await eve.send(1, method(name))

        assert (await eve.closed())[0] == 403
        await eve.channel()


async def test_a_right_to_some_keys_of_an_exchange_is_enough_to_ask_whether_it_exists(
    autojump_clock: MockClock,
) -> None:
    async with amqp_node(**EVE) as rig:
        ann = await connect(rig, response="\0ann\0x")
        await exchange(ann, "keyed", "topic")
        eve = await connect(rig, response="\0eve\0x")

        await exchange(eve, "keyed", "topic", passive=True)


async def test_any_right_to_a_queue_is_enough_to_ask_whether_it_exists(autojump_clock: MockClock) -> None:
    async with amqp_node(**EVE) as rig:
        ann = await connect(rig, response="\0ann\0x")
        eve = await connect(rig, response="\0eve\0x")
        for queue in ("eve.jobs", "seen"):
            await ann.declare(queue)

            assert (await eve.declare(queue, passive=True)).queue == queue


@pytest.mark.parametrize(("exchange", "key"), [("", "none"), ("amq.topic", "k"), ("none", "k")])
async def test_without_a_right_nothing_is_said_of_where_a_message_would_go(
    autojump_clock: MockClock, exchange: str, key: str
) -> None:
    async with amqp_node(**EVE) as rig:
        eve = await connect(rig, response="\0eve\0x")
        await eve.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)

        await eve.publish(key, b"x", exchange=exchange, mandatory=True)

        assert (await eve.closed())[0] == 403
        await eve.channel()
        assert not eve.received


@pytest.mark.parametrize("name", ["/queue/jobs", "/reply-queue/jobs"])
async def test_a_queue_that_no_routing_key_can_name_is_refused(autojump_clock: MockClock, name: str) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)

        method = commands.Queue.Declare(0, name, durable=True)
        await client.send(1, method)
        code, text = await client.closed()

        assert code == 406
        assert "a name is given without /queue/" in text


async def test_what_a_client_changes_is_audited_as_over_other_protocols(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        audited: list[tuple[str, dict[str, Any]]] = []
        monkeypatch.setattr(rig.alive.system, "audit", lambda event, **facts: audited.append((event, facts)))

        await exchange(client, "logs", "topic")
        await client.declare()
        await bind(client, "jobs", "logs", "a.*")
        await client.call(1, commands.Queue.Purge(0, "jobs"), commands.Queue.PurgeOk)
        await client.call(1, commands.Queue.Unbind(0, "jobs", "logs", "a.*"), commands.Queue.UnbindOk)
        await client.call(1, commands.Queue.Delete(0, "jobs"), commands.Queue.DeleteOk)
        await client.call(1, commands.Exchange.Delete(0, "logs"), commands.Exchange.DeleteOk)

        assert [(event, facts.pop("destination"), facts.pop("count")) for event, facts in audited] == [
            ("declare", "/exchange/logs", 1),
            ("declare", "/queue/jobs", 1),
            ("bind", "/queue/jobs", 1),
            ("purge", "/queue/jobs", 0),
            ("unbind", "/queue/jobs", 1),
            ("delete", "/queue/jobs", 0),
            ("delete", "/exchange/logs", 1),
        ]
        of_client = {"user": None, "address": audited[0][1]["address"], "dry_run": False}
        binding = {**of_client, "source": "/exchange/logs", "key": "a.*"}
        assert [facts for _, facts in audited] == [
            *(of_client, of_client, binding, of_client, binding, of_client, of_client),
        ]
