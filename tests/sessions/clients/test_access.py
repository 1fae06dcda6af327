"""What users may do on a node with users, and what a change of their permissions does to connected clients."""

from contextlib import AsyncExitStack

import argon2
import pytest
from trio.testing import MockClock

from qmq.config import Address, ListenerSettings, NodeSettings, PermissionSettings, User
from qmq.node.reload import Reloader
from qmq.sessions.clients.admission import LOGINS_AT_ONCE
from tests.node.rig import HOST, PORT, Client, Rig, eventually, send, subscribe
from tests.support.defined import changed, redefine

PASSWORD_HASH = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("secret")

READ = (
    send("/control/count-msgs/queue/q", "", "r"),
    send("/control/count-subscribers/queue/q", "", "r"),
    send("/control/list/queue", "", "r"),
    send("/control/list-subscribers/queue/q", "", "r"),
    subscribe("/system/events"),
    subscribe("/system/peers"),
    subscribe("/system/stats"),
)
ADMIN = (
    send("/control/retire/c", "", "r", force="true"),
    send("/control/retire/c", "", "r", majority_lost="true"),
    subscribe("/system/journal"),
)


def users(*groups: str) -> tuple[User, ...]:
    """One of each group, named like it; `none` is in no group."""
    return tuple(
        User(name=group, password_hash=PASSWORD_HASH, groups=() if group == "none" else (group,)) for group in groups
    )


def may(user: str, actions: str, *destinations: str) -> PermissionSettings:
    return PermissionSettings(user=user, allow=tuple(actions.split(",")), destinations=destinations)


def may_not(user: str, actions: str, *destinations: str) -> PermissionSettings:
    return PermissionSettings(user=user, deny=tuple(actions.split(",")), destinations=destinations)


async def answer(client: Client, frame: str) -> str:
    """`done`, or the error-code."""
    await client.send(frame)
    while True:
        found = await client.any()
        if found.head.command == "RECEIPT":
            return "done"
        if found.head.command == "ERROR":
            return found.head.headers["error-code"]


async def log_in(rig: Rig, user: str | None) -> Client:
    headers = {} if user is None else {"login": user, "passcode": "secret"}
    return await rig.connect(**headers)


async def answers(rig: Rig, user: str | None, frames: tuple[str, ...]) -> list[str]:
    """Each on a connection of its own, because most refusals end it."""
    return [await answer(await log_in(rig, user), frame) for frame in frames]


def reloader(rig: Rig, **changes: object) -> Reloader:
    return Reloader(rig.alive, rig.alive.settings, None, lambda: (changed(rig.settings, **changes), None))


@pytest.mark.parametrize("user", ["none", "client", "observer", "operator", None])
async def test_only_an_administrator_retires_a_node_and_reads_the_journal(
    autojump_clock: MockClock, user: str | None
) -> None:
    async with Rig(users=users("none", "client", "observer", "operator", "administrator"), anonymous=True).run() as rig:
        assert await answers(rig, user, ADMIN) == ["not-allowed"] * 3
        # Alone, the node has no other node to retire, which is another answer.
        assert await answers(rig, "administrator", ADMIN) == ["bad-node", "bad-node", "done"]


@pytest.mark.parametrize(
    ("user", "said"),
    [("none", "not-allowed"), (None, "not-allowed"), ("client", "not-allowed"), ("observer", "done")],
)
async def test_counts_lists_and_system_topics_are_for_observers(
    autojump_clock: MockClock, user: str | None, said: str
) -> None:
    async with Rig(users=users("none", "client", "observer"), anonymous=True).run() as rig:
        assert await answers(rig, user, READ) == [said] * len(READ)


async def test_a_user_without_group_and_permission_may_do_nothing(autojump_clock: MockClock) -> None:
    async with Rig(users=users("none")).run() as rig:
        frames = (
            send("/queue/q", "", "r"),
            send("/fanout/f", "", "r"),
            subscribe("/queue/q"),
            subscribe("/fanout/f", id="d", durable="true"),
        )
        assert await answers(rig, "none", frames) == ["not-allowed"] * 4
        assert rig.alive.broker.send_limits.logged_fanouts == set()
        assert rig.alive.broker.queues.by_name == {}
        assert not rig.alive.broker.durable_subscriptions.attached


async def test_a_client_without_login_has_the_permissions_of_anonymous(autojump_clock: MockClock) -> None:
    rows = (may("anonymous", "subscribe", "/topic/public.*"),)
    async with Rig(users=users("client"), permissions=rows, anonymous=True).run() as rig:
        frames = (subscribe("/topic/public.*"), subscribe("/topic/*"), send("/topic/public.a", "", "r"))
        assert await answers(rig, None, frames) == ["done", "not-allowed", "not-allowed"]


async def test_a_header_block_that_one_user_may_send_is_refused_for_another(autojump_clock: MockClock) -> None:
    """What is worked out once for a header block is shared by all sessions of the node."""
    async with Rig(users=users("client", "none")).run() as rig:
        allowed, refused = await log_in(rig, "client"), await log_in(rig, "none")
        for _ in range(2):
            assert await answer(allowed, send("/queue/q", "", "r")) == "done"

        assert await answer(refused, send("/queue/q", "", "r")) == "not-allowed"


async def test_the_retry_of_another_user_says_nothing_about_a_queue(autojump_clock: MockClock) -> None:
    retry = send("/queue/q", "", "r", dedup_id="1", redelivered="true")
    async with Rig(users=users("client", "none")).run() as rig:
        assert await answer(await log_in(rig, "client"), retry) == "done"

        assert await answer(await log_in(rig, "none"), retry) == "not-allowed"


async def test_a_consumer_names_no_dead_letter_queue_to_which_it_may_not_send(autojump_clock: MockClock) -> None:
    rows = (may("none", "subscribe", "/queue/q"),)
    async with Rig(users=users("none"), permissions=rows).run() as rig:
        frames = (subscribe("/queue/q", ack="client", dead_letter="/queue/other"), subscribe("/queue/q"))
        assert await answers(rig, "none", frames) == ["not-allowed", "done"]


async def test_a_subscription_ends_when_its_client_may_not_send_to_its_dead_letter_queue_any_more(
    autojump_clock: MockClock,
) -> None:
    rows = (may("none", "subscribe", "/queue/q"), may("none", "send", "/queue/other"))
    async with Rig(users=users("none"), permissions=rows).run() as rig:
        consumer = await log_in(rig, "none")
        assert await answer(consumer, subscribe("/queue/q", ack="client", dead_letter="/queue/other")) == "done"

        await redefine(rig.alive, permissions=rows[:1])

        error = (await consumer.until_closed())[-1].head.headers
        assert (error["error-code"], error["subscription"]) == ("not-allowed", "0")


@pytest.mark.parametrize(
    ("destination", "source"), [("/topic/a", "/topic/a"), ("/exchange/amq.topic/k", "/exchange/amq.topic")]
)
async def test_a_subscription_with_a_queue_of_its_own_ends_when_its_source_is_not_allowed_any_more(
    autojump_clock: MockClock, destination: str, source: str
) -> None:
    rows = (may("none", "send,subscribe,declare", "/queue/*"), may("none", "subscribe", source))
    async with Rig(users=users("none"), permissions=rows).run() as rig:
        consumer = await log_in(rig, "none")
        assert await answer(consumer, subscribe(destination, id="d", durable="true")) == "done"
        await redefine(rig.alive, permissions=(*rows, may("none", "send", "/topic/q")))
        assert await answer(consumer, send("/topic/q", "", "r")) == "done"

        await redefine(rig.alive, permissions=rows[:1])

        error = (await consumer.until_closed())[-1].head.headers
        assert (error["error-code"], error["subscription"]) == ("not-allowed", "d")


async def test_a_durable_subscription_is_deleted_by_a_user_that_may_subscribe(autojump_clock: MockClock) -> None:
    delete = "UNSUBSCRIBE\nid:d\ndestination:/fanout/f\ndurable:true\nreceipt:r\n\n"
    async with Rig(users=users("client", "none")).run() as rig:
        owner = await log_in(rig, "client")
        assert await answer(owner, subscribe("/fanout/f", id="d", durable="true")) == "done"
        await owner.send("DISCONNECT\n\n")
        await owner.until_closed()

        assert await answer(await log_in(rig, "none"), delete) == "not-allowed"
        assert await answer(await log_in(rig, "client"), delete) == "done"


async def test_each_of_alike_messages_is_refused_once_the_permission_is_taken_away(autojump_clock: MockClock) -> None:
    async with Rig(users=users("none"), permissions=(may("none", "send,subscribe", "/topic/t"),)).run() as rig:
        sender = await rig.connect(login="none", passcode="secret", on_error="keep-open")
        listener = await log_in(rig, "none")
        assert await answer(listener, subscribe("/topic/t")) == "done"
        await sender.send(*[send("/topic/t", "1")] * 5)
        assert [(await listener.next("MESSAGE")).body for _ in range(5)] == [b"1"] * 5

        await redefine(rig.alive, permissions=(may("none", "subscribe", "/topic/t"),))
        await sender.send(*[send("/topic/t", "2")] * 5)

        codes = [(await sender.any()).head.headers["error-code"] for _ in range(5)]
        assert codes == ["not-allowed"] * 5


async def test_a_permission_that_is_taken_away_ends_the_subscription_and_loses_nothing(
    autojump_clock: MockClock,
) -> None:
    rows = (may("none", "send,subscribe", "/queue/q"), may("none", "subscribe", "/queue/other", "/topic/t"))
    async with Rig(users=users("none", "client"), permissions=rows).run() as rig:
        consumer, keeper = (
            await log_in(rig, "none"),
            await rig.connect(login="none", passcode="secret", on_error="keep-open"),
        )
        assert await answer(consumer, subscribe("/queue/q", ack="client")) == "done"
        assert await answer(keeper, send("/queue/q", "1", "r")) == "done"
        assert (await consumer.next("MESSAGE")).body == b"1"
        assert await answer(keeper, subscribe("/queue/q", ack="client")) == "done"
        assert await answer(keeper, subscribe("/queue/other", id="other")) == "done"
        assert await answer(keeper, subscribe("/topic/t", id="light")) == "done"

        lowered = (may("none", "subscribe", "/queue/other"),)
        await redefine(rig.alive, permissions=lowered)

        error = (await consumer.until_closed())[-1].head.headers
        assert (error["error-code"], error["subscription"]) == ("not-allowed", "0")
        ended = {(await keeper.any()).head.headers["subscription"] for _ in range(2)}
        assert ended == {"0", "light"}
        assert await answer(keeper, send("/queue/q", "2", "r")) == "not-allowed"
        other = await log_in(rig, "client")
        assert await answer(other, send("/queue/other", "3", "r")) == "done"
        assert (await keeper.next("MESSAGE")).body == b"3"
        await other.send(subscribe("/queue/q"))
        assert (await other.next("MESSAGE")).body == b"1"


@pytest.mark.parametrize("further", ["", "/queue/other", "/exchange/amq.topic/k"])
async def test_a_transaction_is_not_committed_when_its_messages_may_not_be_sent_any_more(
    autojump_clock: MockClock, further: str
) -> None:
    kept, _, key = further.rpartition("/")
    first, keys = ("/queue/q", {}) if not further else (f"{kept}/q", {"routing_keys": f'["{key}"]'})
    rows = (may("none", "send", first, *([further] if further else [])),)
    async with Rig(users=users("none"), permissions=rows).run() as rig:
        client = await log_in(rig, "none")
        await client.send("BEGIN\ntransaction:t\nreceipt:r\n\n", send(first, "1", transaction="t", **keys))
        await client.receipt()

        left = (may("none", "send", first),) if further else ()
        await redefine(rig.alive, permissions=left)

        assert await answer(client, "COMMIT\ntransaction:t\nreceipt:r\n\n") == "not-allowed"
        assert rig.alive.broker.queues.by_name == {}


async def test_a_move_needs_the_right_to_administer_both_queues(autojump_clock: MockClock) -> None:
    rows = (may("none", "administer,send,subscribe", "/queue/a", "/queue/b"), may("none", "send,subscribe", "/queue/c"))
    async with Rig(users=users("none"), permissions=rows).run() as rig:
        frames = (
            send("/control/move/queue/a", "", "r", to="/queue/b"),
            send("/control/move/queue/a", "", "r", to="/queue/c"),
            send("/control/move/queue/c", "", "r", to="/queue/a"),
        )
        assert await answers(rig, "none", frames) == ["done", "not-allowed", "not-allowed"]


async def test_a_redrive_needs_the_right_for_every_queue(autojump_clock: MockClock) -> None:
    rows = (may("none", "administer", "/queue/dead"), may("client", "administer", "/queue/*"))
    frames = (send("/control/redrive/queue/dead", "", "r"),)
    async with Rig(users=users("none", "client"), permissions=rows).run() as rig:
        assert await answers(rig, "none", frames) == ["not-allowed"]
        assert await answers(rig, "client", frames) == ["done"]


async def test_an_operator_may_follow_the_page_on_poisoned_queues(autojump_clock: MockClock) -> None:
    verbs = (
        *("list/queue", "peek/queue/q", "trace/x-1-1", "get/x-1-1", "connections", "kick/x/1"),
        *("pause/queue/q", "resume/queue/q", "purge/queue/q", "redrive/queue/q", "delete/queue/q"),
    )
    frames = tuple(send(f"/control/{verb}", "", "r") for verb in verbs)
    move = (send("/control/move/queue/q", "", "r", to="/queue/quarantine"),)
    async with Rig(users=users("operator")).run() as rig:
        assert "not-allowed" not in await answers(rig, "operator", frames)
        # What it moves it sends.
        assert await answers(rig, "operator", move) == ["not-allowed"]
        await redefine(rig.alive, permissions=(may("operator", "send", "/queue/*"),))
        assert await answers(rig, "operator", move) == ["done"]


async def test_an_operator_without_subscribe_sees_no_bodies(autojump_clock: MockClock) -> None:
    rows = (may_not("operator", "subscribe", "/*"),)
    frames = (
        *(send(f"/control/{verb}", "", "r") for verb in ("peek/queue/q", "get/x-1-1", "purge/queue/q")),
        subscribe("/queue/q"),
    )
    async with Rig(users=users("operator"), permissions=rows).run() as rig:
        assert await answers(rig, "operator", frames) == ["not-allowed", "not-allowed", "done", "not-allowed"]


async def test_a_denied_queue_is_denied_to_a_client_as_well(autojump_clock: MockClock) -> None:
    rows = (may_not("client", "send", "/queue/q"),)
    async with Rig(users=users("client"), permissions=rows).run() as rig:
        frames = (send("/queue/q", "", "r"), send("/queue/p", "", "r"))
        assert await answers(rig, "client", frames) == ["not-allowed", "done"]


async def test_once_there_is_a_user_loopback_asks_for_a_login_too(autojump_clock: MockClock) -> None:
    async with Rig(users=users("none")).run() as rig:
        client = await rig.dial("127.0.0.1")
        await client.send("CONNECT\naccept-version:1.2\nhost:x\n\n")

        assert [frame.head.headers["error-code"] for frame in await client.until_closed()] == ["login-required"]


async def test_a_node_without_users_serves_loopback_as_a_developer_and_says_so(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "qmq.node"):
        async with Rig().run() as rig:
            assert await answers(rig, None, ADMIN) == ["bad-node", "bad-node", "done"]
    assert "no users are configured: every client on this machine may do everything" in caplog.text


async def test_a_node_with_users_does_not_say_that_it_is_open(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "qmq.node"):
        async with Rig(users=users("none")).run():
            pass
    assert "no users" not in caplog.text


async def test_the_first_user_ends_connections_without_login_unless_they_are_written_down(
    autojump_clock: MockClock,
) -> None:
    for anonymous, stays in ((None, False), (True, True)):
        async with Rig(anonymous=anonymous).run() as rig:
            client = await rig.connect("127.0.0.1", on_error="keep-open")

            await redefine(rig.alive, users=users("none"))

            if stays:
                assert await answer(client, send("/queue/q", "", "r")) == "not-allowed"
                assert await answer(client, READ[0]) == "not-allowed"
            else:
                assert (await client.until_closed())[-1].head.headers["error-code"] == "login-required"


@pytest.mark.parametrize(("user", "code"), [("client", "user-removed"), (None, "login-required")])
async def test_a_login_that_has_not_begun_its_session_is_refused_when_users_change(
    autojump_clock: MockClock, user: str | None, code: str
) -> None:
    async with Rig(users=() if user is None else users(user)).run() as rig:
        client = await rig.dial("127.0.0.1")
        login = "" if user is None else f"login:{user}\npasscode:secret\n"
        async with AsyncExitStack() as storm:
            for _ in range(LOGINS_AT_ONCE):
                await storm.enter_async_context(rig.alive.session_parts.login_path.admission.turns)
            await client.send(f"CONNECT\naccept-version:1.2\nhost:x\n{login}\n")
            await eventually(lambda: rig.alive.session_parts.login_path.admission.turns.statistics().tasks_waiting == 1)
            await redefine(rig.alive, users=users("none"))

        assert [frame.head.headers["error-code"] for frame in await client.until_closed()] == [code]


async def test_a_user_without_the_right_any_more_gets_no_more_of_the_journal(autojump_clock: MockClock) -> None:
    async with Rig(users=users("administrator", "observer")).run() as rig:
        reader, other = await log_in(rig, "administrator"), await log_in(rig, "observer")
        assert await answer(reader, subscribe("/system/journal")) == "done"
        assert await answer(other, subscribe("/system/peers")) == "done"
        lowered = (users("administrator")[0].replace({"groups": ("observer",)}), *users("observer"))

        await redefine(rig.alive, users=lowered)

        assert (await reader.until_closed())[-1].head.headers["error-code"] == "not-allowed"
        await eventually(lambda: len(rig.alive.sessions) == 1)
        assert await answer(other, READ[0]) == "done"


async def test_a_file_without_its_last_user_opens_no_node(autojump_clock: MockClock) -> None:
    async with Rig(users=users("none")).run() as rig:
        assert await reloader(rig, definitions={"user": {}}).reload()
        for _ in range(2):
            client = await rig.dial("127.0.0.1")
            await client.send("CONNECT\naccept-version:1.2\nhost:x\n\n")
            assert [frame.head.headers["error-code"] for frame in await client.until_closed()] == ["login-required"]
            await redefine(rig.alive, users=())


def test_a_listener_serves_without_login_by_its_address_its_word_and_whether_there_are_users() -> None:
    loopback, outside = Address(HOST, PORT), Address("10.0.0.1", PORT)
    served = {
        (address.host, said, has_users): ListenerSettings(
            address=address, anonymous=said, insecure=True
        ).serves_anonymous(has_users=has_users)
        for address, words in ((loopback, (None, True, False)), (outside, (None, False)))
        for said in words
        for has_users in (False, True)
    }

    assert {case for case, is_served in served.items() if is_served} == {
        (HOST, None, False),
        (HOST, True, False),
        (HOST, True, True),
    }
    assert NodeSettings().stomp[0].serves_anonymous(has_users=False)
