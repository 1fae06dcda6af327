"""A node without a disk says so, in a condition and in each receipt, and gives no level that it does not have."""

import pytest
from trio.testing import MockClock

from qmq.config import DestinationPolicy, DestinationSettings
from qmq.config.node import MEMORY
from tests.node.rig import Client, Rig, send, subscribe
from tests.support.conditions import present

COMMIT = "COMMIT\ntransaction:t\nreceipt:committed\n\n"


async def levels_of(client: Client, count: int) -> dict[str, str | None]:
    """The next receipts, each with the level that it says."""
    heads = [(await client.next("RECEIPT")).head.headers for _ in range(count)]
    return {head["receipt-id"]: head.get("receipt-level") for head in heads}


async def refusal(rig: Rig, frame: str) -> tuple[str, str]:
    """Code and message of the ERROR that answers `frame`."""
    client = await rig.connect()
    await client.send(frame)
    *_, error = await client.until_closed()
    return error.head.headers["error-code"], error.head.headers["message"]


async def test_receipts_about_durable_messages_say_accepted(autojump_clock: MockClock) -> None:
    async with Rig(data=MEMORY).run() as rig:
        client = await rig.connect()

        await client.send(
            send("/queue/q", "one", "queue"),
            send("/fanout/f", "one", "fanout", receipt_level="accepted"),
            send("/topic/t", "one", "topic"),
        )

        said = await levels_of(client, 3)
        assert said == {"queue": "accepted", "fanout": "accepted", "topic": None}


async def test_a_settle_and_a_repeated_send_say_it_too(autojump_clock: MockClock) -> None:
    async with Rig(data=MEMORY).run() as rig:
        client = await rig.connect()
        await client.send(subscribe("/queue/q", ack="client-individual"))
        await client.send(send("/queue/q", "one", "once", dedup_id="1"))
        message = await client.next("MESSAGE")
        await levels_of(client, 2)

        await client.send(
            f"ACK\nid:{message.head.headers['ack']}\nreceipt:ack\n\n", send("/queue/q", "one", "again", dedup_id="1")
        )

        assert await levels_of(client, 2) == {"ack": "accepted", "again": "accepted"}


async def test_sends_of_a_transaction_are_answered_with_its_commit(autojump_clock: MockClock) -> None:
    async with Rig(data=MEMORY).run() as rig:
        client = await rig.connect()
        await client.send("BEGIN\ntransaction:t\nreceipt:begun\n\n", send("/queue/q", "one", "in", transaction="t"))
        assert await client.receipt() == "begun"
        await client.send(send("/topic/none", "", "beside"))
        assert await client.receipt() == "beside"

        await client.send(COMMIT)

        assert await levels_of(client, 2) == {"in": "accepted", "committed": "accepted"}


async def test_a_message_to_a_topic_in_the_transaction_hides_nothing(autojump_clock: MockClock) -> None:
    async with Rig(data=MEMORY).run() as rig:
        client = await rig.connect()
        both = [send("/queue/q", "one", "in", transaction="t"), send("/topic/t", "", transaction="t")]

        await client.send("BEGIN\ntransaction:t\n\n", *both, COMMIT)

        assert await levels_of(client, 2) == {"in": "accepted", "committed": "accepted"}


@pytest.mark.parametrize("level", ["fsync", "replicas=1"])
async def test_a_level_that_needs_a_disk_is_refused(autojump_clock: MockClock, level: str) -> None:
    async with Rig(data=MEMORY).run() as rig:
        of_send = await refusal(rig, send("/queue/q", "one", "r", receipt_level=level))
        of_commit = await refusal(
            rig, f"BEGIN\ntransaction:t\n\n\0COMMIT\ntransaction:t\nreceipt:c\nreceipt-level:{level}\n\n"
        )

    assert of_send == of_commit
    assert of_send[0] == "bad-receipt-level"
    assert "is accepted: this node keeps everything in memory" in of_send[1]


async def test_an_ack_level_that_needs_a_majority_is_refused(autojump_clock: MockClock) -> None:
    async with Rig(data=MEMORY).run() as rig:
        commit = "COMMIT\ntransaction:t\nreceipt:c\nack-level:quorum\n\n"

        code, message = await refusal(rig, f"BEGIN\ntransaction:t\n\n\0{commit}")

    assert code == "bad-ack-level"
    assert "is edge: this node keeps everything in memory" in message


async def test_what_policies_say_of_levels_does_not_count(autojump_clock: MockClock) -> None:
    policy = DestinationPolicy(pattern="/queue/>", receipt="fsync", ack_level="quorum")
    async with Rig(data=MEMORY, destinations=DestinationSettings(policies=(policy,))).run() as rig:
        client = await rig.connect()
        await client.send(subscribe("/queue/q", ack="client-individual"), send("/queue/q", "one", "sent"))
        message = await client.next("MESSAGE")

        await client.send(f"ACK\nid:{message.head.headers['ack']}\nreceipt:ack\n\n")

        said = await levels_of(client, 3)
        assert (said["sent"], said["ack"]) == ("accepted", "accepted")


async def test_the_operator_is_shown_what_is_not_promised(autojump_clock: MockClock) -> None:
    async with Rig(data=MEMORY).run() as rig:
        (condition,) = present(rig.alive)

    assert (condition["code"], condition["severity"]) == ("no-disk", "info")
    assert "at most 256 MiB" in condition["message"]
