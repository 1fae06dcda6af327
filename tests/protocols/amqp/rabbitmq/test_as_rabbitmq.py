"""A node does in each case what a real RabbitMQ was recorded to do, or differs on purpose (`cases`)."""

import json
from pathlib import Path

import pytest
from trio.testing import MockClock

from tests.node.rig import HOST
from tests.protocols.amqp.rabbitmq.cases import CASES, DIFFERENCES
from tests.protocols.amqp.rabbitmq.script import Script
from tests.protocols.amqp.rig import AMQP_PORT, AmqpClient, amqp_node

RECORDED = json.loads(Path(__file__).with_name("rabbitmq.json").read_text("utf-8"))


@pytest.mark.parametrize("name", CASES)
async def test_a_node_does_as_rabbitmq_or_differs_on_purpose(autojump_clock: MockClock, name: str) -> None:
    async with amqp_node() as rig:

        async def connect() -> AmqpClient:
            client = AmqpClient(await rig.fabric.dial("10.0.0.1", HOST, AMQP_PORT))
            await client.log_in()
            return client

        script = Script(connect, "c.")
        await script.begin()
        await CASES[name](script)

    if name in DIFFERENCES:
        assert script.said != RECORDED[name], "no difference any more"
    else:
        assert script.said == RECORDED[name]


def test_all_cases_are_recorded_and_each_difference_is_one() -> None:
    assert list(RECORDED) == list(CASES)
    assert set(DIFFERENCES) <= set(CASES)
