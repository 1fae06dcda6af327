"""A changed passcode ends what was logged in with the old one, in each protocol, and nothing else."""

from contextlib import AsyncExitStack

from trio.testing import MockClock

from qmq.config import Address, User
from qmq.protocols.beanstalk.listener import BeanstalkListenerSettings
from qmq.protocols.http.listener import HttpListenerSettings
from qmq.sessions.clients.admission import LOGINS_AT_ONCE
from tests.node.rig import HOST, Client, Rig, eventually, send, subscribe
from tests.node.test_reload import ANN
from tests.protocols.amqp import rig as amqp_rig
from tests.protocols.beanstalk.rig import BEANSTALK_PORT, BeanstalkClient
from tests.protocols.http import rig as web_rig
from tests.protocols.http.rig import WEB_PORT, basic
from tests.support.defined import redefine

ADMIN = ANN.replace({"groups": ("administrator",)})
BOB = ADMIN.replace({"name": "bob"})
CHANGED = ADMIN.replace({"password_hash": "$argon2id$v=19$m=8,t=1,p=1$v8umVTv/w1PdCilmZO4cww$AAAA"})
LOGIN = {"authorization": basic("ann")}
CODE = "passcode-changed"


def every_listener(*users: User) -> Rig:
    return Rig(
        users=users,
        amqp=(amqp_rig.LISTENER,),
        http=(HttpListenerSettings(address=Address(HOST, WEB_PORT)),),
        beanstalk=(BeanstalkListenerSettings(address=Address(HOST, BEANSTALK_PORT), user="ann"),),
    )


async def error_of(client: Client) -> str:
    return (await client.until_closed())[-1].head.headers["error-code"]


async def test_each_connection_of_the_user_ends_and_no_other(autojump_clock: MockClock) -> None:
    async with every_listener(ADMIN, BOB).run() as rig:
        stomp = await rig.connect("10.0.0.1", login="ann", passcode="secret")
        other = await rig.connect("10.0.0.2", login="bob", passcode="secret")
        await stomp.send(subscribe("/queue/q"))
        await stomp.receipt()
        idle, waiting = await web_rig.dial(rig), await web_rig.dial(rig)
        assert (await idle.get("/v1/control/status", **LOGIN)).status == 200
        await waiting.write(waiting.bytes_of("GET", "/v1/topics/t/events", **LOGIN))
        assert (await waiting.head())[0] == 200
        pulling = await web_rig.dial(rig)
        await pulling.post("/v1/queues/pulled/messages", b"one", **LOGIN)
        assert (await pulling.post("/v1/queues/pulled/receive", {}, **LOGIN)).rows
        jobs = BeanstalkClient(await rig.fabric.dial("10.0.0.1", HOST, BEANSTALK_PORT))
        assert await jobs.ask("use t") == b"USING t"
        amqp = await amqp_rig.connect(rig, response="\0ann\0secret")
        page = await web_rig.dial(rig)
        login = await page.post("/v1/console/login", b"", content_type="application/json", **LOGIN)
        cookie = login.headers["set-cookie"].partition(";")[0]
        tab = await web_rig.dial(rig)
        assert (await tab.get("/v1/console/login", cookie=cookie)).facts["user"] == "ann"

        await redefine(rig.alive, users=(CHANGED, BOB))

        assert await error_of(stomp) == CODE
        for client in (idle, waiting, pulling, page, tab):
            await client.until_closed()
        await jobs.until_closed()
        await amqp.until_ended()
        assert (await (await web_rig.dial(rig)).get("/v1/console/login", cookie=cookie)).status == 401
        assert {session.user for session in rig.alive.sessions.values() if not session.finishing} == {"bob"}
        await other.send(subscribe("/queue/pulled"))
        assert await other.messages(1) == [b"one"]


async def test_a_login_whose_check_was_over_before_the_change_ends_too(autojump_clock: MockClock) -> None:
    async with every_listener(ADMIN, BOB).run() as rig:
        turns = rig.alive.session_parts.login_path.admission.turns
        async with AsyncExitStack() as stack:
            for _ in range(LOGINS_AT_ONCE):
                await stack.enter_async_context(turns)
            client = await rig.dial()
            await client.send("CONNECT\naccept-version:1.2\nhost:x\nlogin:ann\npasscode:secret\n\n")
            await eventually(lambda: turns.statistics().tasks_waiting == 1)

            await redefine(rig.alive, users=(CHANGED, BOB))

        assert await error_of(client) == CODE


async def test_a_user_that_changes_its_own_passcode_is_answered_first(autojump_clock: MockClock) -> None:
    async with every_listener(ADMIN, BOB).run() as rig:
        client = await rig.connect(login="ann", passcode="secret")
        stays = await rig.connect(login="bob", passcode="secret")
        value = f'{{"password_hash": "{CHANGED.password_hash}", "groups": ["administrator"]}}'

        await client.send(send("/control/definitions/put/user/ann", value, "r"))

        assert await client.receipt() == "r"
        assert await error_of(client) == CODE
        await stays.send(send("/queue/q", "x", "still here"))
        assert await stays.receipt() == "still here"
