"""A durable name belongs to the user that began it: on every node, over restarts, and in both kinds of destinations."""

import pytest
from trio.testing import MockClock

from qmq.config import ListenerSettings
from tests.node.mesh_rig import MeshRig, isolate, rejoin
from tests.node.rig import Client, Rig, eventually, send, subscribe
from tests.sessions.clients.test_access import may, users
from tests.support.defined import changed, redefine

F, T = "/fanout/v.f", "/topic/v.t"
USERS = tuple(user.replace({"groups": ()}) for user in users("victim", "sub", "keeper"))
ROWS = (
    may("victim", "send,subscribe,declare", F, T, "/queue/subscription.*"),
    may("sub", "send,subscribe,declare", "/fanout/v.*", "/topic/v.*", "/queue/subscription.*"),
    may("keeper", "subscribe,declare,administer", "/fanout/*", "/topic/*", "/queue/*"),
)


async def log_in(rig: Rig | MeshRig, user: str | None, *node: str) -> Client:
    login = {} if user is None else {"login": user, "passcode": "secret"}
    return await rig.connect(*node, on_error="keep-open", **login)


async def said(client: Client, frame: str) -> str:
    """The receipt, or the code of the refusal."""
    await client.send(frame)
    while True:
        found = await client.any()
        if found.head.command in ("RECEIPT", "ERROR"):
            return found.head.headers.get("error-code", "done")


def follow(destination: str, id: str = "audit") -> str:
    return subscribe(destination, id, durable="true")


def forget(destination: str) -> str:
    return f"UNSUBSCRIBE\nid:audit\ndestination:{destination}\ndurable:true\nreceipt:u\n\n"


async def begin(rig: Rig | MeshRig, user: str | None, destination: str, *node: str) -> None:
    """Begin it, and leave."""
    client = await log_in(rig, user, *node)
    assert await said(client, follow(destination)) == "done"
    await client.send("DISCONNECT\n\n")
    await client.until_closed()


@pytest.mark.parametrize("destination", [F, T])
async def test_another_user_neither_deletes_nor_continues_a_durable_subscription(
    autojump_clock: MockClock, destination: str
) -> None:
    rig = Rig(users=USERS, permissions=ROWS)
    for life in range(2):
        async with rig.run():
            if not life:
                await begin(rig, "victim", destination)
                publisher = await log_in(rig, "victim")
                for body in "123":
                    assert await said(publisher, send(destination, body, "r")) == "done"
            other = await log_in(rig, "sub")
            assert await said(other, forget(destination)) == "not-allowed"
            assert await said(await log_in(rig, "sub"), follow(destination)) == "not-allowed"
            # Its own ones are its own.
            assert await said(await log_in(rig, "sub"), follow(destination, f"own {life}")) == "done"
            if life:
                victim = await log_in(rig, "victim")
                assert await said(victim, follow(destination)) == "done"
                assert await victim.messages(3) == [b"1", b"2", b"3"]
                assert await said(other, follow(destination)) == "not-allowed"
                assert await said(victim, forget(destination)) == "done"


@pytest.mark.parametrize("destination", [F, T])
async def test_a_user_that_may_administer_it_continues_and_deletes_it(
    autojump_clock: MockClock, destination: str
) -> None:
    async with Rig(users=USERS, permissions=ROWS).run() as rig:
        await begin(rig, "victim", destination)
        await begin(rig, "keeper", destination)

        # It is still of the user that began it.
        assert await said(await log_in(rig, "sub"), follow(destination)) == "not-allowed"
        assert await said(await log_in(rig, "keeper"), forget(destination)) == "done"
        assert await said(await log_in(rig, "sub"), follow(destination)) == "done"


@pytest.mark.parametrize("destination", [F, T])
async def test_one_of_before_belongs_to_the_first_user_that_continues_it(
    autojump_clock: MockClock, destination: str
) -> None:
    rig = Rig()
    async with rig.run():
        await begin(rig, None, destination)
    rig.settings = changed(
        rig.settings,
        users=USERS,
        permissions=(*ROWS, may("anonymous", "subscribe", "/topic/v.*", "/fanout/v.*", "/queue/*")),
        stomp=(ListenerSettings(address=rig.settings.stomp[0].address, anonymous=True),),
    )
    async with rig.run():
        # A client without login is no user: nothing becomes its own.
        await begin(rig, None, destination)
        await begin(rig, "victim", destination)

        assert await said(await log_in(rig, "sub"), follow(destination)) == "not-allowed"
        assert await said(await log_in(rig, None), follow(destination)) == "not-allowed"
        assert await said(await log_in(rig, "sub"), forget(destination)) == "not-allowed"
    async with rig.run():
        assert await said(await log_in(rig, "sub"), follow(destination)) == "not-allowed"


@pytest.mark.parametrize("destination", [F, T])
async def test_its_owner_counts_on_every_node_and_after_a_takeover(autojump_clock: MockClock, destination: str) -> None:
    mesh = MeshRig("a", "b", "c", users=USERS, permissions=ROWS)
    async with mesh.run():
        await begin(mesh, "victim", destination, "a")
        await eventually(
            lambda: all(
                mesh.nodes[name].settings_parts.routing.bindings()
                or mesh.nodes[name].broker.durable_subscriptions.by_name
                for name in "bc"
            )
        )
        await mesh.kill("a")

        assert await said(await log_in(mesh, "sub", "b"), forget(destination)) == "not-allowed"
        await begin(mesh, "victim", destination, "c")
        assert await said(await log_in(mesh, "sub", "b"), follow(destination)) == "not-allowed"
        # A node that joins again has it from the others.
        await mesh.start("a")
        assert await said(await log_in(mesh, "sub", "a"), follow(destination)) == "not-allowed"


async def test_of_two_users_that_begin_a_name_behind_a_cut_it_belongs_to_the_earlier_one(
    autojump_clock: MockClock,
) -> None:
    mesh = MeshRig("a", "b", "c", users=USERS, permissions=ROWS)
    async with mesh.run():
        isolate(mesh, "a")
        await begin(mesh, "victim", F, "a")
        sub = await log_in(mesh, "sub", "b")
        assert await said(sub, follow(F)) == "done"

        rejoin(mesh, "a")

        error = (await sub.any()).head.headers
        assert (error["error-code"], error["subscription"]) in [("not-allowed", "audit"), ("durable-merged", "audit")]
        assert await said(await log_in(mesh, "sub", "b"), follow(F)) == "not-allowed"
        await begin(mesh, "victim", F, "b")
        cursors = [mesh.nodes[name].broker.durable_subscriptions.by_name for name in "abc"]
        await eventually(lambda: len({one.owner for known in cursors for one in known.values()}) == 1)


async def test_a_subscription_of_a_queue_that_the_client_names_is_shared_by_the_rights_for_that_queue(
    autojump_clock: MockClock,
) -> None:
    rows = (
        *ROWS,
        may("victim", "send,subscribe,declare", "/queue/named"),
        may("sub", "subscribe,declare", "/queue/named"),
    )
    async with Rig(users=USERS, permissions=rows).run() as rig:
        named = subscribe(T, "audit", durable="true", x_queue_name="named")
        assert await said(await log_in(rig, "victim"), named) == "done"

        assert await said(await log_in(rig, "sub"), named) == "done"
        # But only the user that declared the queue deletes it so.
        delete = forget(T).replace("durable:true", "durable:true\nx-queue-name:named")
        assert await said(await log_in(rig, "sub"), delete) == "not-allowed"


async def test_a_queue_whose_name_only_begins_like_that_of_a_durable_subscription_is_shared(
    autojump_clock: MockClock,
) -> None:
    async with Rig(users=USERS, permissions=ROWS).run() as rig:
        declared = send("/control/declare/queue/subscription.events", '{"ttl_seconds": 60}', "d")
        assert await said(await log_in(rig, "victim"), declared) == "done"

        assert await said(await log_in(rig, "sub"), subscribe("/queue/subscription.events", "q")) == "done"


async def test_the_queue_of_a_durable_subscription_is_no_way_to_it_for_another_user(autojump_clock: MockClock) -> None:
    async with Rig(users=USERS, permissions=ROWS).run() as rig:
        await begin(rig, "victim", T)
        assert await said(await log_in(rig, "victim"), send(T, "kept", "r")) == "done"
        (binding,) = rig.node.settings_parts.routing.bindings()
        queue = binding.queue

        for more in ({}, {"browser": "true"}, {"auto_delete": "true"}):
            assert await said(await log_in(rig, "sub"), subscribe(queue, "q", **more)) == "not-allowed"
        unbind = send(f"/control/unbind{queue}", "", "u", source=T)
        assert await said(await log_in(rig, "sub"), unbind) == "not-allowed"
        await eventually(lambda: rig.node.broker.queues.by_name[queue].ready)
        (message,) = rig.node.broker.queues.by_name[queue].ready
        gets = may("sub", "subscribe", "/control/get/*"), may("victim", "subscribe", "/control/get/*")
        await redefine(rig.alive, permissions=(*ROWS, *gets))
        for look in (f"/control/peek{queue}", f"/control/get/{message.message_id}"):
            assert await said(await log_in(rig, "sub"), send(look, "", "p")) == "not-allowed"
            assert await said(await log_in(rig, "victim"), send(look, "", "p")) == "done"
        other = subscribe("/topic/v.other", "q", x_queue_name=queue.removeprefix("/queue/"))
        assert await said(await log_in(rig, "sub"), other) == "not-allowed"

        administer = may("sub", "administer", "/queue/*")
        await redefine(rig.alive, permissions=(*ROWS, administer))
        sub = await log_in(rig, "sub")
        assert await said(sub, subscribe(queue, "q", browser="true")) == "done"
        assert await sub.messages(1) == [b"kept"]
        assert await said(sub, subscribe(queue, "again")) == "done"
        assert await sub.messages(1) == [b"kept"]
        await redefine(rig.alive, permissions=ROWS)
        assert (await sub.any()).head.headers["error-code"] == "not-allowed"
        # The user that began it may read its queue under that name, too, and take its binding away.
        victim = await log_in(rig, "victim")
        assert await said(victim, subscribe(queue, "q")) == "done"
        assert await said(victim, unbind) == "done"


@pytest.mark.parametrize("destination", [F, T])
async def test_a_user_that_may_not_administer_it_any_more_keeps_only_its_own_ones(
    autojump_clock: MockClock, destination: str
) -> None:
    async with Rig(users=USERS, permissions=ROWS).run() as rig:
        await begin(rig, "victim", destination)
        administer = may("sub", "administer", F, "/queue/*")
        await redefine(rig.alive, permissions=(*ROWS, administer))
        sub = await log_in(rig, "sub")
        for id in ("audit", "own"):
            assert await said(sub, follow(destination, id)) == "done"

        await redefine(rig.alive, permissions=ROWS)

        error = (await sub.any()).head.headers
        assert (error["error-code"], error["subscription"]) == ("not-allowed", "audit")
        victim = await log_in(rig, "victim")
        assert await said(victim, follow(destination)) == "done"
        assert await said(await log_in(rig, "victim"), send(destination, "kept", "r")) == "done"
        assert await sub.messages(1) == await victim.messages(1) == [b"kept"]
