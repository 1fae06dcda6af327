"""Confirms of a connection: each goes to the channel that has published, and to no later one with its number.

And what sessions share of a message: routing and properties, as a client of each virtual host sees them; and what a
refusal ends: its channel, or the connection.
"""

import pytest
from pamqp import commands, frame

from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope
from qmq.errors import Refused
from qmq.protocols.amqp.codec.methods import short_string
from qmq.protocols.amqp.gateway.channel import Channel
from qmq.protocols.amqp.gateway.encoder import AmqpEncoder, ChannelEncoder, SharedContents
from qmq.protocols.amqp.gateway.names import DEFAULT_VHOST, Vhost


def test_a_late_confirm_is_none_of_the_next_channel_with_the_same_number() -> None:
    encoder = AmqpEncoder(SharedContents(), lambda queue: 0)
    old, new = Channel(1, "1"), Channel(1, "2")
    late = old.next_confirm()
    encoder.channels["2"] = new
    receipt = new.next_confirm()

    assert encoder.receipts([late]) == b""
    assert encoder.receipts([receipt]) != b""


def test_clients_of_each_virtual_host_get_the_names_that_they_know() -> None:
    """A client of / may consume a queue of another virtual host, by its whole name."""
    shared = SharedContents()
    headers = b"exchange:shop~orders\nrouting-key:eu\n"
    envelope = Envelope("/queue/shop~jobs", DestinationKind.QUEUE, headers, True)

    found = [shared.of(envelope, vhost)[0] for vhost in (Vhost("shop", "shop~"), DEFAULT_VHOST)]

    assert found == [short_string("orders") + short_string("eu"), short_string("shop~orders") + short_string("eu")]


@pytest.mark.parametrize(
    ("code", "kind", "number", "reply"),
    [
        ("not-allowed", commands.Channel.Close, 3, 403),
        ("no-such-code", commands.Channel.Close, 3, 406),
        ("stopping", commands.Connection.Close, 0, 320),
    ],
)
def test_a_refusal_ends_its_channel_unless_the_node_is_stopping(
    code: str, kind: type[object], number: int, reply: int
) -> None:
    connection = AmqpEncoder(SharedContents(), lambda queue: 0)
    closing: list[bool] = []
    encoder = ChannelEncoder(connection, Channel(3, "1"), lambda: closing.append(True))

    _, channel, method = frame.unmarshal(encoder.error(Refused(code, "why")))

    assert isinstance(method, kind)
    assert (channel, method.reply_code, closing) == (number, reply, [True])
    assert encoder.error(Refused(code, "why")) == b""


def test_a_refusal_that_nacks_a_publish_ends_the_channel_of_a_consume_without_receipt() -> None:
    encoder = ChannelEncoder(AmqpEncoder(SharedContents(), lambda queue: 0), Channel(3, "1"), bool)
    full = Refused("too-many-destinations", "why")

    assert encoder.error(full) == b""
    encoder.cause = (60, 20)
    assert isinstance(frame.unmarshal(encoder.error(full))[2], commands.Channel.Close)
