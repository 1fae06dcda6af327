"""Checks of bodies: what they cost gives others their turn."""

from qmq.broker.consumers.outcome import COST_MAX
from tests.gateways.test_copies import rules_of, send
from tests.gateways.test_stomp import Client

AVRO = {"content_type": "avro/binary"}


def test_others_have_their_turn_when_the_bodies_of_a_read_have_cost_enough() -> None:
    client = Client()
    rules_of(client).body_check = lambda destination: lambda body: COST_MAX // 2
    rules_of(client).generation += 1

    turns = client.outcomes(*[send("/queue/q", receipt=str(number), **AVRO) for number in range(5)])

    assert [len(out.records) for out in turns] == [2, 2, 1]
