"""Who may ask what of a node, who may change the mesh, and what a client without login may once there are users."""

import argon2
import pytest
from trio.testing import MockClock

from qmq.config import Address, Control, ListenerSettings, NodeSettings, User
from qmq.server.reload import Reloader
from tests.server.rig import HOST, PORT, Client, Rig, eventually, send, subscribe

PASSWORD_HASH = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash("secret")

READ = (
    send("/control/count-msgs/queue/q", "", "r"),
    send("/control/count-subscribers/queue/q", "", "r"),
    send("/control/list/queue", "", "r"),
    send("/control/list-subscribers/queue/q", "", "r"),
    subscribe("/system/events"),
    subscribe("/system/peers"),
)
ADMIN = (
    send("/control/retire/c", "", "r", force="true"),
    send("/control/retire/c", "", "r", majority_lost="true"),
    subscribe("/system/journal"),
)


def users(*controls: Control) -> tuple[User, ...]:
    """One of each right, named like it."""
    return tuple(User(name=control, password_hash=PASSWORD_HASH, control=control) for control in controls)


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
    return Reloader(rig.alive, rig.alive.settings, None, lambda: (rig.settings.model_copy(update=changes), None))


@pytest.mark.parametrize("user", ["none", "read", None])
async def test_only_an_administrator_retires_a_node_and_reads_the_journal(
    autojump_clock: MockClock, user: str | None
) -> None:
    async with Rig(users=users("none", "read", "admin"), anonymous=True).run() as rig:
        assert await answers(rig, user, ADMIN) == ["not-allowed"] * 3
        # Alone, the node has nobody to retire, which is another answer.
        assert await answers(rig, "admin", ADMIN) == ["bad-node", "bad-node", "done"]


@pytest.mark.parametrize(("user", "said"), [("none", "not-allowed"), (None, "not-allowed"), ("read", "done")])
async def test_counts_lists_and_system_topics_are_for_those_who_may_read(
    autojump_clock: MockClock, user: str | None, said: str
) -> None:
    async with Rig(users=users("none", "read"), anonymous=True).run() as rig:
        assert await answers(rig, user, READ) == [said] * len(READ)


async def test_a_refusal_says_which_right_is_missing(autojump_clock: MockClock) -> None:
    async with Rig(users=users("read")).run() as rig:
        client = await log_in(rig, "read")

        await client.send(ADMIN[0])

        error = await client.next("ERROR")
        assert error.head.headers["message"] == (
            'This user may not use /control/retire/c: it needs control = "admin" in [[users]].'
        )


async def test_a_user_has_no_right_that_the_file_does_not_say(autojump_clock: MockClock) -> None:
    assert User(name="app", password_hash=PASSWORD_HASH).control == "none"


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

            assert await reloader(rig, users=users("none")).reload()

            if stays:
                assert await answer(client, send("/queue/q", "", "r")) == "done"
                assert await answer(client, READ[0]) == "not-allowed"
            else:
                assert (await client.until_closed())[-1].head.headers["error-code"] == "login-required"


async def test_who_may_read_the_journal_no_more_is_sent_no_more_of_it(autojump_clock: MockClock) -> None:
    async with Rig(users=users("admin", "read")).run() as rig:
        reader, other = await log_in(rig, "admin"), await log_in(rig, "read")
        assert await answer(reader, subscribe("/system/journal")) == "done"
        assert await answer(other, subscribe("/system/peers")) == "done"
        lowered = (users("admin")[0].model_copy(update={"control": "read"}), *users("read"))

        assert await reloader(rig, users=lowered).reload()

        assert (await reader.until_closed())[-1].head.headers["error-code"] == "not-allowed"
        await eventually(lambda: len(rig.alive.sessions) == 1)
        assert await answer(other, READ[0]) == "done"


async def test_the_last_user_who_goes_opens_the_node_and_that_is_said(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with Rig(users=users("none")).run() as rig:
        with caplog.at_level("INFO", "qmq.node"):
            assert await reloader(rig, users=()).reload()

        client = await rig.connect("127.0.0.1")
        assert await answer(client, READ[0]) == "done"
    assert "no users are configured" in caplog.text


def test_a_listener_serves_without_login_by_its_address_its_word_and_whether_there_are_users() -> None:
    loopback, outside = Address(HOST, PORT), Address("10.0.0.1", PORT)
    served = {
        (address.host, said, has_users): ListenerSettings(address=address, anonymous=said).serves_anonymous(
            has_users=has_users
        )
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
