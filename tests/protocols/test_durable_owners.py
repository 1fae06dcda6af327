"""What a durable subscription of another user holds is not shown, in any protocol."""

from typing import Any

import pytest
from pamqp import commands
from trio.testing import MockClock

from qmq.config import Address
from qmq.protocols.beanstalk.listener import BeanstalkListenerSettings
from qmq.protocols.http.listener import HttpListenerSettings
from tests.node.rig import HOST, Rig, eventually, send, subscribe
from tests.protocols.amqp.rig import LISTENER as AMQP_LISTENER
from tests.protocols.amqp.rig import connect
from tests.protocols.beanstalk.rig import BEANSTALK_PORT, BeanstalkClient
from tests.protocols.http.rig import WEB_PORT, dial
from tests.protocols.stomp.test_durable_owners import ROWS, USERS, T, begin, log_in, said
from tests.sessions.clients.test_access import may

NAME = "subscription.audit.5a3ba24f0820"
BURIED = f"{NAME}.buried"
QUEUES = pytest.mark.parametrize("queue", [NAME, BURIED], ids=["waiting", "buried"])
MANAGE = (
    *(may(user, "subscribe", "/control/*") for user in ("victim", "sub")),
    may("sub", "send,subscribe,declare", "/queue/own"),
)


def listener(user: str) -> BeanstalkListenerSettings:
    return BeanstalkListenerSettings(address=Address(HOST, BEANSTALK_PORT), user=user)


def rig_for(user: str) -> Rig:
    """`user` is that of the beanstalkd listener."""
    return Rig(
        users=USERS,
        permissions=(*ROWS, *MANAGE),
        beanstalk=(listener(user),),
        amqp=(AMQP_LISTENER,),
        http=(HttpListenerSettings(address=Address(HOST, WEB_PORT)),),
    )


def serve_as(rig: Rig, user: str) -> None:
    """From the next start on, beanstalkd clients are this user."""
    rig.settings = rig.settings.replace({"beanstalk": (listener(user),)})
    rig.fabric = type(rig.fabric)(rig.fabric.rng)


async def keep(rig: Rig, queue: str = NAME) -> None:
    """One message of the durable subscription of the victim waits in `queue`."""
    await begin(rig, "victim", T)
    assert await said(await log_in(rig, "victim"), send(T, "kept", "r")) == "done"
    if queue == BURIED:
        client = await beanstalk(rig)
        await client.ask(f"watch {NAME}")
        job, _ = await client.reserve()
        assert await client.ask(f"bury {job} 1") == b"BURIED"
    await eventually(lambda: rig.alive.broker.queues.by_name[f"/queue/{queue}"].ready)


async def beanstalk(rig: Rig) -> BeanstalkClient:
    return BeanstalkClient(await rig.fabric.dial("10.0.0.1", HOST, BEANSTALK_PORT))


@pytest.mark.parametrize("user", ["sub", "victim", "keeper"])
async def test_a_beanstalkd_client_sees_it_as_its_user_or_one_that_may_administer_it(
    user: str, autojump_clock: MockClock
) -> None:
    rig = rig_for("victim")
    async with rig.run():
        await keep(rig)
        client = await beanstalk(rig)
        assert await client.ask(f"use {NAME}") == f"USING {NAME}".encode()
        found = await client.ask("peek-ready")
        assert found.endswith(b"\nkept")
        job = found.split()[1].decode()
    serve_as(rig, user)
    async with rig.run():
        client = await beanstalk(rig)
        await client.ask(f"use {NAME}")
        asked = ("peek-ready", f"peek {job}", f"stats-job {job}", f"stats-tube {NAME}")

        answers = [(await client.ask(line)).split()[0] for line in asked]

        is_shown = user != "sub"
        assert all((answer in (b"FOUND", b"OK")) is is_shown for answer in answers), answers
        assert (NAME in await client.names("list-tubes")) is is_shown
        if not is_shown:
            changes = (f"delete {job}", "kick 1", f"kick-job {job}", f"reserve-job {job}")
            replies = {await client.ask(line) for line in changes}
            assert replies <= {b"INTERNAL_ERROR", b"NOT_FOUND"}, replies


async def test_nor_are_the_jobs_that_its_user_has_buried(autojump_clock: MockClock) -> None:
    rig = rig_for("victim")
    async with rig.run():
        await keep(rig)
        client = await beanstalk(rig)
        await client.ask(f"watch {NAME}")
        job, _ = await client.reserve()
        assert await client.ask(f"bury {job} 1") == b"BURIED"
        await client.ask(f"use {NAME}")
        assert (await client.ask("peek-buried")).startswith(b"FOUND")
    serve_as(rig, "sub")
    async with rig.run():
        client = await beanstalk(rig)
        await client.ask(f"use {NAME}")
        asked = ("peek-buried", f"peek {job}", f"stats-job {job}", f"delete {job}", f"kick-job {job}")

        answers = [(await client.ask(line)).split()[0] for line in asked]

        assert not {b"FOUND", b"OK", b"DELETED", b"KICKED"} & set(answers), answers


@QUEUES
@pytest.mark.parametrize(
    "method",
    [
        commands.Queue.Declare(0, passive=True),
        commands.Queue.Declare(0, durable=True),
        commands.Basic.Get(0),
        commands.Basic.Consume(0, consumer_tag="c"),
    ],
    ids=["passive declare", "declare", "get", "consume"],
)
async def test_no_amqp_client_of_another_user_sees_it(method: Any, queue: str, autojump_clock: MockClock) -> None:
    rig = rig_for("victim")
    async with rig.run():
        await keep(rig, queue)
        client = await connect(rig, response="\0sub\0secret")
        method.queue = queue

        await client.send(1, method)

        assert (await client.closed())[0] == 403


@QUEUES
async def test_no_http_client_of_another_user_sees_it(queue: str, autojump_clock: MockClock) -> None:
    rig = rig_for("victim")
    async with rig.run():
        await keep(rig, queue)
        (message,) = rig.alive.broker.queues.by_name[f"/queue/{queue}"].ready

        for user, status in (("sub", 403), ("victim", 200)):
            client = await dial(rig, user=user)
            for path in (f"peek/queue/{queue}", f"get/{message.message_id}"):
                assert (await client.get(f"/v1/control/{path}")).status == status, path
            received = await client.post(f"/v1/queues/{queue}/receive", {"wait_seconds": 0})
            assert received.status == status


@QUEUES
async def test_no_stomp_client_of_another_user_sees_it_or_lets_it_become_dead_letters(
    queue: str, autojump_clock: MockClock
) -> None:
    rig = rig_for("victim")
    name = f"/queue/{queue}"
    dead_letters = {"dead_letter": "/queue/own", "message-ttl-seconds": "1"}
    requests = (
        subscribe(name),
        subscribe(name, browser="true"),
        subscribe(name, dead_letter="/queue/own"),
        subscribe(name, **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "own", "x-message-ttl": "1"}),
        subscribe("/topic/v.t", durable="true", x_queue_name=queue),
        send(f"/control/declare{name}", "", "r", **dead_letters),
        send(f"/control/declare{name}", "", "r", replace="true", **dead_letters),
    )
    async with rig.run():
        await keep(rig, queue)

        for request in requests:
            assert await said(await log_in(rig, "sub"), request) == "not-allowed", request

        victim = await log_in(rig, "victim")
        assert await said(victim, subscribe(name)) == "done"
        assert await victim.messages(1) == [b"kept"]
