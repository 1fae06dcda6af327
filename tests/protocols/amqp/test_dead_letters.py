"""Dead letters of AMQP clients: where they go, and what `x-death` says."""

import pytest
from pamqp import commands
from trio.testing import MockClock

from qmq.protocols.amqp.codec.properties import read_properties
from qmq.protocols.amqp.gateway.messages import delivered_properties
from tests.protocols.amqp.rig import amqp_node, connect


async def test_a_reject_drops_unless_a_dead_letter_queue_is_declared(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare("plain")
        await client.declare("dead")
        await client.declare("kept", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
        for queue in ("plain", "kept", "dead"):
            await client.consume(queue, tag=queue)
        await client.publish("plain", b"gone", delivery_mode=2)
        await client.publish("kept", b"saved", delivery_mode=2)
        for message in await client.messages(2):
            await client.send(1, commands.Basic.Reject(message.method.delivery_tag, False))

        (message,) = await client.messages(1)

        assert (message.method.consumer_tag, message.body) == ("dead", b"saved")
        assert message.properties.headers["x-death"][0]["queue"] == "kept"
        await client.nothing()
        assert rig.alive.broker.queues.by_name.get("/queue/dead-letters") is None


async def test_work_is_tried_again_through_the_default_exchange_for_as_long_as_its_consumer_rejects(
    autojump_clock: MockClock,
) -> None:
    def to(queue: str) -> dict[str, object]:
        return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}

    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare("work", arguments=to("work.retry"))
        await client.declare("work.retry", arguments={"x-message-ttl": 1000, **to("work")})
        await client.consume("work")
        await client.publish("work", b"x", delivery_mode=2)

        for _ in range(40):
            (message,) = await client.messages(1)
            await client.send(1, commands.Basic.Reject(message.method.delivery_tag, False))
        (message,) = await client.messages(1)

        deaths = message.properties.headers["x-death"]
        assert [(one["queue"], one["reason"], one["count"]) for one in deaths] == [
            ("work.retry", "expired", 40),
            ("work", "rejected", 40),
        ]


async def test_a_message_that_goes_round_by_a_queue_with_a_ttl_counts_its_deaths(autojump_clock: MockClock) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        for name in ("again", "later"):
            await client.call(1, commands.Exchange.Declare(0, name, "topic"), commands.Exchange.DeclareOk)
        await client.declare(arguments={"x-dead-letter-exchange": "later"})
        await client.declare(
            "wait",
            arguments={
                "x-message-ttl": 1000,
                "x-dead-letter-exchange": "again",
                "x-dead-letter-routing-key": "job.old",
            },
        )
        await client.call(1, commands.Queue.Bind(0, "wait", "later", "#"), commands.Queue.BindOk)
        await client.call(1, commands.Queue.Bind(0, "jobs", "again", "job.*"), commands.Queue.BindOk)
        await client.consume()
        await client.publish("job.new", b"retry me", exchange="again", delivery_mode=2, headers={"mine": 1})

        for _ in range(3):
            (message,) = await client.messages(1)
            await client.send(1, commands.Basic.Reject(message.method.delivery_tag, False))
        (message,) = await client.messages(1)

        assert (message.method.exchange, message.method.routing_key) == ("again", "job.old")
        headers = message.properties.headers
        assert headers["mine"] == 1
        assert headers["x-death"] == [
            {"count": 3, "reason": "expired", "queue": "wait", "exchange": "later", "routing-keys": ["job.new"]},
            {"count": 3, "reason": "rejected", "queue": "jobs", "exchange": "again", "routing-keys": ["job.new"]},
        ]
        assert headers["x-first-death-queue"] == "jobs"
        assert headers["x-first-death-exchange"] == "again"


@pytest.mark.parametrize("is_rejected", [True, False], ids=["rejected", "expired"])
async def test_a_letter_has_the_expiration_of_its_message_in_x_death_only(
    autojump_clock: MockClock, is_rejected: bool
) -> None:
    async with amqp_node() as rig:
        client = await connect(rig)
        await client.declare("dead")
        await client.declare("jobs", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
        if is_rejected:
            await client.consume("jobs", tag="jobs")
        await client.publish("jobs", b"1", delivery_mode=2, expiration="3000", headers={"x-death": "forged"})
        if is_rejected:
            (message,) = await client.messages(1)
            assert message.properties.expiration == "3000"
            await client.send(1, commands.Basic.Reject(message.method.delivery_tag, False))
        await client.consume("dead", tag="dead")

        (letter,) = await client.messages(1)

        assert letter.properties.expiration is None
        (death,) = letter.properties.headers["x-death"]
        assert death["original-expiration"] == "3000"


def test_the_count_of_deaths_has_64_bits_on_the_wire() -> None:
    headers = {"dead-letter-reason": "rejected", "dead-letter-from": "/queue/jobs", "amqp-type": "t"}

    block = delivered_properties(headers, "/queue/dead")

    assert b"\x05countl\x00\x00\x00\x00\x00\x00\x00\x01" in block
    table = read_properties(block).headers
    assert table is not None and [row["count"] for row in table["x-death"]] == [1]
