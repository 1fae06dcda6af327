"""Virtual hosts of AMQP: a named one is a prefix of names, which its clients never see."""

from typing import Any

import argon2
import pytest
from pamqp import commands
from trio.testing import MockClock

from qmq.config import PermissionSettings, User
from qmq.definitions.definition import Key
from qmq.errors import Refused
from qmq.settings.routing.definitions import VHOSTS_MAX
from tests.node.rig import Rig, send, subscribe
from tests.protocols.amqp.mesh import AmqpMesh
from tests.protocols.amqp.rig import AmqpClient, Message, amqp_node, connect, dial

HASH = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("secret")


async def declare_vhost(rig: Rig, *names: str) -> None:
    await rig.alive.settings_parts.definitions.change({Key("vhost", name): {} for name in names})


async def exchange(client: AmqpClient, name: str, kind: str = "topic", **arguments: Any) -> None:
    said = {key.replace("_", "-"): value for key, value in arguments.items()}
    await client.call(1, commands.Exchange.Declare(0, name, kind, arguments=said), commands.Exchange.DeclareOk)


async def bind(client: AmqpClient, queue: str, source: str, key: str = "") -> None:
    await client.call(1, commands.Queue.Bind(0, queue, source, key), commands.Queue.BindOk)


async def test_an_undeclared_virtual_host_is_refused(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await dial(rig)

        with pytest.raises(AssertionError, match=r"530.*no virtual host 'shop'"):
            await client.log_in(host="shop")


async def test_names_of_a_virtual_host_have_its_prefix_for_other_protocols_only(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        await declare_vhost(rig, "shop")
        client = await connect(rig, host="shop")
        stomp = await rig.connect()

        declared = await client.declare("orders")
        await client.publish("orders", b"one", delivery_mode=2)
        await client.consume("orders")
        (first,) = await client.messages(1)
        await stomp.send(send("/queue/shop~orders", "two"))
        (second,) = await client.messages(1)
        await client.publish("orders", b"three", delivery_mode=2)
        await client.messages(1)

        assert declared.queue == "orders"
        assert [(one.body, one.method.exchange, one.method.routing_key) for one in (first, second)] == [
            (b"one", "", "orders"),
            (b"two", "", "orders"),
        ]
        assert set(rig.alive.settings_parts.declared_queues.texts) == {"/queue/shop~orders"}


async def test_queues_of_one_name_in_two_virtual_hosts_are_two_queues(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        await declare_vhost(rig, "shop", "bank")
        clients = [await connect(rig, host=host) for host in ("/", "shop", "bank")]
        for number, client in enumerate(clients):
            await client.declare("jobs")
            await client.publish("jobs", b"%d" % number)

        for number, client in enumerate(clients):
            await client.consume("jobs")
            assert await client.bodies(1) == [b"%d" % number]
            await client.nothing()


async def test_a_slash_before_the_name_of_a_virtual_host_counts_for_nothing(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        await declare_vhost(rig, "shop")
        client = await connect(rig, host="/shop")

        await client.declare("orders")

        assert set(rig.alive.settings_parts.declared_queues.texts) == {"/queue/shop~orders"}


async def test_predefined_exchanges_are_those_of_the_virtual_host(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        await declare_vhost(rig, "shop")
        client, other = await connect(rig, host="shop"), await connect(rig)
        for one in (client, other):
            await one.declare("jobs")
            for source in ("amq.topic", "amq.match"):
                await bind(one, "jobs", source, "eu.#")
            await one.consume("jobs")

        await client.publish("eu.new", b"topic", exchange="amq.topic")
        (message,) = await client.messages(1)
        await client.publish("", b"headers", exchange="amq.match")
        await client.messages(1)

        assert (message.method.exchange, message.method.routing_key) == ("amq.topic", "eu.new")
        await other.nothing()
        table = rig.alive.settings_parts.routing.table
        assert sum(1 for _ in table.bindings_of("shop~amq.headers")) == 1


async def test_a_message_that_no_queue_gets_is_returned_without_the_prefix(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        await declare_vhost(rig, "shop")
        client = await connect(rig, host="shop")
        await exchange(client, "orders")

        for name, key in (("orders", "eu"), ("", "nowhere"), ("", "")):
            await client.publish(key, b"back", exchange=name, mandatory=True)
            message = await client.next(Message)

            assert isinstance(message.method, commands.Basic.Return)
            assert (message.method.exchange, message.method.routing_key) == (name, key)


async def test_refusals_name_the_virtual_host(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        await declare_vhost(rig, "shop")
        other = await connect(rig)
        await other.declare("jobs")
        await exchange(other, "orders")
        client = await connect(rig, host="shop")

        for method, code, text in (
            (commands.Queue.Declare(0, "jobs", passive=True), 404, "no queue 'jobs' in vhost 'shop'"),
            (commands.Exchange.Declare(0, "orders", passive=True), 404, "no exchange 'orders' in vhost 'shop'"),
            (commands.Queue.Declare(0, "amq.mine"), 403, "names that begin with amq. are reserved: 'amq.mine'"),
            (commands.Exchange.Declare(0, "amq.mine", "topic"), 403, "names that begin with amq. are reserved"),
            (commands.Exchange.Delete(0, "amq.topic"), 403, "predefined"),
        ):
            await client.send(1, method)
            found = await client.closed()
            assert found[0] == code and text in found[1], found
            await client.channel()


async def test_dead_letters_stay_in_the_virtual_host(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        await declare_vhost(rig, "shop")
        client = await connect(rig, host="shop")
        await exchange(client, "dlx", "direct")
        await client.declare("dead")
        await client.declare("jobs", arguments={"x-dead-letter-exchange": "dlx"})
        await client.declare("bad", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
        await bind(client, "dead", "dlx", "jobs")
        await exchange(client, "in")
        await bind(client, "bad", "in", "a.b")
        for queue in ("jobs", "bad", "dead"):
            await client.consume(queue, tag=queue)

        await client.publish("jobs", b"one")
        (message,) = await client.messages(1)
        await client.send(1, commands.Basic.Reject(message.method.delivery_tag, False))
        (first,) = await client.messages(1)
        await client.publish("a.b", b"two", exchange="in")
        (message,) = await client.messages(1)
        await client.send(1, commands.Basic.Reject(message.method.delivery_tag, False))
        (second,) = await client.messages(1)

        assert (first.method.exchange, first.method.routing_key) == ("dlx", "jobs")
        assert first.properties.headers["x-death"] == [
            {"count": 1, "reason": "rejected", "queue": "jobs", "exchange": "", "routing-keys": ["jobs"]}
        ]
        assert second.properties.headers["x-death"] == [
            {"count": 1, "reason": "rejected", "queue": "bad", "exchange": "in", "routing-keys": ["a.b"]}
        ]
        for name, value in (("queue", "bad"), ("exchange", "in")):
            assert second.properties.headers[f"x-first-death-{name}"] == value


async def test_an_alternate_exchange_is_one_of_the_virtual_host(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        await declare_vhost(rig, "shop")
        client = await connect(rig, host="shop")
        await client.declare("jobs")
        await bind(client, "jobs", "amq.fanout")
        await exchange(client, "orders", "direct", alternate_exchange="amq.fanout")
        await exchange(client, "orders", "direct", alternate_exchange="amq.fanout")
        await client.consume("jobs")

        await client.publish("unbound", b"caught", exchange="orders")

        assert await client.bodies(1) == [b"caught"]
        assert rig.alive.settings_parts.routing.table.exchanges["shop~orders"].alternate == "shop~amq.fanout"


async def test_requests_are_answered_over_stomp_and_amqp(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        await declare_vhost(rig, "shop")
        client, stomp = await connect(rig, host="shop"), await rig.connect()
        await client.declare("requests")
        answers = (await client.declare("", exclusive=True)).queue
        assert answers.startswith("amq.gen-")
        await client.consume(answers, tag="answers")

        await client.publish("requests", b"?", reply_to=answers)
        await stomp.send(subscribe("/queue/shop~requests"))
        await stomp.receipt()
        request = await stomp.next("MESSAGE")
        await stomp.send(send(request.head.headers["reply-to"], "!"))
        (answer,) = await client.messages(1)
        await stomp.send("UNSUBSCRIBE\nid:0\nreceipt:u\n\n")
        await stomp.receipt()
        await client.consume("requests", tag="requests")
        await stomp.send("SEND\ndestination:/queue/shop~requests\nreply-to:/queue/shop~answers\n\n1")
        await stomp.send("SEND\ndestination:/queue/shop~requests\nreply-to:/queue/answers\n\n2")
        first, second = await client.messages(2)

        assert request.head.headers["reply-to"] == f"/queue/shop~{answers}"
        assert answer.body == b"!"
        assert (first.properties.reply_to, second.properties.reply_to) == ("answers", "/queue/answers")


async def test_permissions_see_the_prefix(autojump_clock: MockClock) -> None:
    allowed = PermissionSettings(user="ann", allow=("send", "subscribe", "declare"), destinations=("/queue/shop~*",))
    async with amqp_node(users=(User(name="ann", password_hash=HASH),), permissions=(allowed,)) as rig:
        await declare_vhost(rig, "shop")
        inside, outside = [await connect(rig, response="\0ann\0secret", host=host) for host in ("shop", "/")]

        await inside.declare("jobs")
        await outside.send(1, commands.Queue.Declare(0, "jobs", durable=True))

        assert (await outside.closed())[0] == 403


@pytest.mark.parametrize("name", ["", "a/b", "/", "a~b", "a b", "a*", "x" * 65])
async def test_a_name_that_no_virtual_host_can_have_is_refused(autojump_clock: MockClock, name: str) -> None:
    async with amqp_node() as rig:
        with pytest.raises(Refused, match="name"):
            await declare_vhost(rig, name)
        with pytest.raises(Refused, match="unknown"):
            await rig.alive.settings_parts.definitions.change({Key("vhost", "shop"): {"tracing": True}})


async def test_a_virtual_host_that_is_used_is_not_deleted(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        await declare_vhost(rig, "shop")
        client = await connect(rig, host="shop")
        await client.declare("jobs")
        await bind(client, "jobs", "amq.topic", "a")
        await exchange(client, "orders")
        definitions = rig.alive.settings_parts.definitions

        for left in (
            lambda: client.call(1, commands.Queue.Unbind(0, "jobs", "amq.topic", "a"), commands.Queue.UnbindOk),
            lambda: client.call(1, commands.Queue.Delete(0, "jobs"), commands.Queue.DeleteOk),
            lambda: client.call(1, commands.Exchange.Delete(0, "orders"), commands.Exchange.DeleteOk),
        ):
            with pytest.raises(Refused) as refused:
                await definitions.change({Key("vhost", "shop"): None})
            assert refused.value.code == "vhost-in-use"
            await left()
        await definitions.change({Key("vhost", "shop"): None})

        assert "shop~amq.topic" not in rig.alive.settings_parts.routing.table.exchanges
        other = await dial(rig)
        with pytest.raises(AssertionError, match="530"):
            await other.log_in(host="shop")


async def test_there_are_so_many_virtual_hosts_at_most(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        await declare_vhost(rig, *[f"v{number}" for number in range(VHOSTS_MAX)])

        with pytest.raises(Refused) as refused:
            await declare_vhost(rig, "one-more")

        assert refused.value.code == "too-many-definitions"


async def test_a_virtual_host_and_its_bindings_can_come_in_one_request(autojump_clock: MockClock) -> None:
    binding = {"source": "/exchange/shop~amq.topic", "queue": "/queue/shop~jobs", "key": "a", "arguments": {}}
    async with amqp_node() as rig:
        name = "/exchange/shop~amq.topic /queue/shop~jobs a"
        with pytest.raises(Refused, match="no exchange shop~amq.topic"):
            await rig.alive.settings_parts.definitions.change({Key("binding", name): binding})

        await rig.alive.settings_parts.definitions.change({Key("vhost", "shop"): {}, Key("binding", name): binding})

        client = await connect(rig, host="shop")
        await client.declare("jobs")
        await client.consume("jobs")
        await client.publish("a", b"bound", exchange="amq.topic")
        assert await client.bodies(1) == [b"bound"]


async def test_a_virtual_host_that_another_node_declared_a_moment_ago_is_found(autojump_clock: MockClock) -> None:
    async with AmqpMesh("a", "b").run() as mesh:
        # The record of the change takes long.
        mesh.nodes["a"].engine.replay.follow(definitions=lambda change: None)
        await mesh.nodes["b"].settings_parts.definitions.change({Key("vhost", "shop"): {}})
        there = await mesh.client("a", host="shop")
        here = await mesh.client("b", host="shop")

        await here.declare("jobs")
        await there.publish("jobs", b"across", delivery_mode=2)
        await here.consume("jobs")

        assert await here.bodies(1) == [b"across"]


async def test_direct_replies_and_exclusive_queues_are_in_a_virtual_host_as_in_the_default_one(
    autojump_clock: MockClock,
) -> None:
    async with amqp_node() as rig:
        await declare_vhost(rig, "shop")
        asking, answering = await connect(rig, host="shop"), await connect(rig, host="shop")
        await answering.declare("requests", exclusive=True)
        await answering.consume("requests")
        await asking.consume("amq.rabbitmq.reply-to", tag="replies", no_ack=True)

        await asking.publish("requests", b"?", reply_to="amq.rabbitmq.reply-to")
        (request,) = await answering.messages(1)
        await answering.publish(request.properties.reply_to, b"!", correlation_id="1")
        (reply,) = await asking.messages(1)

        assert (reply.body, reply.method.routing_key) == (b"!", "amq.rabbitmq.reply-to")
        await asking.send(1, commands.Queue.Declare(0, "requests", passive=True))
        assert (await asking.closed())[0] == 405


async def test_exchanges_of_a_virtual_host_are_bound_to_each_other(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        await declare_vhost(rig, "shop")
        client = await connect(rig, host="shop")
        await exchange(client, "orders")
        await client.declare("jobs")
        await bind(client, "jobs", "amq.fanout")
        method = commands.Exchange.Bind(0, "amq.fanout", "orders", "eu.#")
        for _ in range(2):
            await client.call(1, method, commands.Exchange.BindOk)
        await client.consume("jobs")

        await client.publish("eu.new", b"through two", exchange="orders")
        (message,) = await client.messages(1)

        assert (message.method.exchange, message.method.routing_key) == ("orders", "eu.new")
        unbind = commands.Exchange.Unbind(0, "amq.fanout", "orders", "eu.#")
        await client.call(1, unbind, commands.Exchange.UnbindOk)
        await client.publish("eu.new", b"lost", exchange="orders")
        await client.nothing()
        await client.send(1, commands.Exchange.Bind(0, "amq.fanout", "none", ""))
        assert await client.closed() == (404, "NOT_FOUND - no exchange 'none' in vhost 'shop'")


async def test_a_binding_into_a_virtual_host_keeps_it(autojump_clock: MockClock) -> None:
    value = {"source": "/exchange/amq.topic", "exchange": "/exchange/shop~amq.fanout", "key": "", "arguments": {}}
    name = "/exchange/amq.topic /exchange/shop~amq.fanout"
    async with amqp_node() as rig:
        await rig.alive.settings_parts.definitions.change({Key("vhost", "shop"): {}, Key("binding", name): value})

        with pytest.raises(Refused) as refused:
            await rig.alive.settings_parts.definitions.change({Key("vhost", "shop"): None})
        await rig.alive.settings_parts.definitions.change({Key("vhost", "shop"): None, Key("binding", name): None})

        assert refused.value.code == "vhost-in-use"
        assert not rig.alive.settings_parts.vhosts.declared


async def test_carbon_copies_stay_in_the_virtual_host(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        await declare_vhost(rig, "shop")
        outside = await connect(rig)
        await outside.declare("copy")
        client = await connect(rig, host="shop")
        for name in ("jobs", "copy", "blind"):
            await client.declare(name)
            await client.consume(name, tag=name)
        await bind(client, "blind", "amq.direct", "b")

        await client.publish("jobs", b"named", headers={"CC": ["copy", "none"]})
        named = await client.messages(2)
        await client.publish("a", b"routed", exchange="amq.direct", headers={"BCC": ["b"]})
        (routed,) = await client.messages(1)

        assert [(one.method.exchange, one.method.routing_key) for one in named] == [("", "jobs")] * 2
        assert {one.method.consumer_tag for one in named} == {"jobs", "copy"}
        assert (routed.method.exchange, routed.method.routing_key) == ("amq.direct", "a")
        await outside.consume("copy")
        await outside.nothing()
