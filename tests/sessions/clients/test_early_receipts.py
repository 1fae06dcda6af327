"""Receipts of a transaction's frames: with its COMMIT, or at once where a frame, a listener or a user asks for that."""

import pytest
from trio.testing import MockClock

from qmq.config import ListenerSettings, User
from qmq.sessions.clients.login import Logins
from tests.node.rig import Client, Rig, send, subscribe
from tests.support.depths import depths

BEGIN = "BEGIN\ntransaction:t\nreceipt:begun\n\n"
COMMIT = "COMMIT\ntransaction:t\nreceipt:committed\n\n"


def answering_early(rig: Rig) -> Rig:
    """As if its listener said so in the node file."""
    (listener,) = rig.settings.stomp
    early = ListenerSettings(address=listener.address, anonymous=True, receipts_before_commit=True)
    rig.settings = rig.settings.replace({"stomp": (early,)})
    return rig


async def begun(client: Client) -> Client:
    await client.send(BEGIN)
    assert await client.receipt() == "begun"
    return client


@pytest.mark.parametrize("destination", ["/queue/q", "/fanout/f", "/topic/t"])
async def test_a_send_that_asks_for_accepted_is_answered_before_its_commit(
    autojump_clock: MockClock, destination: str
) -> None:
    async with Rig().run() as rig:
        client = await begun(await rig.connect())

        await client.send(send(destination, "one", "early", transaction="t", receipt_level="accepted"))

        assert await client.receipt() == "early"
        await client.send(COMMIT)
        assert await client.receipt() == "committed"
        assert not client.frames


async def test_a_send_that_asks_for_nothing_is_answered_with_its_commit(autojump_clock: MockClock) -> None:
    async with Rig().run() as rig:
        client = await begun(await rig.connect())
        await client.send(send("/queue/q", "one", "in", transaction="t"), send("/topic/none", "", "beside"))
        assert await client.receipt() == "beside"

        await client.send(COMMIT)

        assert [await client.receipt(), await client.receipt()] == ["in", "committed"]


async def test_the_commit_of_sends_that_were_answered_early_waits_for_the_disk_all_the_same(
    autojump_clock: MockClock,
) -> None:
    rig = Rig()
    async with rig.run():
        client = await begun(await rig.connect())
        await client.send(send("/queue/q", "one", "early", transaction="t", receipt_level="accepted"))
        await client.receipt()
        before = rig.alive.engine.commits.groups

        await client.send(COMMIT)

        assert await client.receipt() == "committed"
        assert rig.alive.engine.commits.groups > before


async def test_what_was_answered_early_is_gone_when_it_is_not_committed(autojump_clock: MockClock) -> None:
    rig = answering_early(Rig())
    async with rig.run():
        client = await begun(await rig.connect())
        await client.send(send("/queue/q", "one", "early", transaction="t"))
        assert await client.receipt() == "early"

        await client.send("ABORT\ntransaction:t\nreceipt:aborted\n\n")

        assert await client.receipt() == "aborted"
        assert not depths(rig.alive).get("/queue/q")


async def test_a_listener_may_answer_all_frames_of_a_transaction_at_once(autojump_clock: MockClock) -> None:
    rig = answering_early(Rig())
    async with rig.run():
        client = await rig.connect()
        await client.send(subscribe("/queue/q", ack="client-individual"))
        await client.send(send("/queue/q", "one"), send("/queue/q", "two"))
        tags = [(await client.next("MESSAGE")).head.headers["ack"] for _ in range(2)]
        await client.receipt()
        await begun(client)

        for frame in (
            send("/queue/other", "x", "r", transaction="t"),
            f"ACK\nid:{tags[0]}\ntransaction:t\nreceipt:r\n\n",
            f"NACK\nid:{tags[1]}\ntransaction:t\nreceipt:r\n\n",
        ):
            await client.send(frame)
            assert await client.receipt() == "r"
        assert not depths(rig.alive).get("/queue/other")

        await client.send(COMMIT)
        assert await client.receipt() == "committed"
        assert depths(rig.alive)["/queue/other"] == 1


@pytest.mark.parametrize(
    ("of_listener", "of_user", "expected"), [(False, True, True), (True, False, False), (True, None, True)]
)
async def test_what_the_user_says_counts_before_what_the_listener_says(
    of_listener: bool, of_user: bool | None, expected: bool
) -> None:
    rig = answering_early(Rig()) if of_listener else Rig()
    user = User(name="perl", groups=("client",), receipts_before_commit=of_user)
    logins = Logins((), rig.settings.limits, None)  # type: ignore[arg-type]  # nothing here asks the world
    logins.change((user,), rig.settings.limits)

    assert logins.answers_early("perl", rig.settings.stomp[0]) is expected
    assert logins.answers_early(None, rig.settings.stomp[0]) is of_listener
