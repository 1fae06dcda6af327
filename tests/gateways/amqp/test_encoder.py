"""Confirms of a connection: each goes to the channel that has published, and to no later one with its number."""

from qmq.gateways.amqp.channel import Channel
from qmq.gateways.amqp.encoder import AmqpEncoder, SharedContents


def test_a_late_confirm_is_none_of_the_next_channel_with_the_same_number() -> None:
    encoder = AmqpEncoder(SharedContents(), lambda queue: 0)
    old, new = Channel(1, "1"), Channel(1, "2")
    late = old.next_confirm()
    encoder.channels["2"] = new
    receipt = new.next_confirm()

    assert encoder.receipts([late]) == b""
    assert encoder.receipts([receipt]) != b""
