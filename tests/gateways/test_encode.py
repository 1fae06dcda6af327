"""MESSAGE frames as clients see them: the quick way of writing them says what the plain one would."""

import pytest

from qmq.broker.destination import Kind
from qmq.broker.message import Envelope, Message
from qmq.dots import Origin
from qmq.gateways.encode import encode_run, subscription_prefix, tail_for, tail_of
from qmq.wire.stomp import Connection, Frame, Role, Version, encode_frame

HERE = Origin("a", 0xAB)
THERE = Origin("b", 1)


def frames(data: bytes, version: Version = Version.V12) -> list[Frame]:
    codec = Connection(Role.CLIENT)
    found = codec.receive(encode_frame("CONNECTED", [("version", version.text)]) + data)
    assert codec.error is None
    return found[1:]


@pytest.mark.parametrize("version", [Version.V10, Version.V11, Version.V12])
def test_a_message_is_named_by_its_dot_whoever_sent_the_one_before(version: Version) -> None:
    envelope = Envelope("/topic/t", Kind.TOPIC, b"kind:x\n", False)
    messages = [
        Message(envelope, b"body", origin, sequence, 0)
        for origin, sequence in [(HERE, 1), (HERE, -1), (THERE, 7), (THERE, -12), (HERE, 10**15)]
    ]
    prefix = subscription_prefix(version, "1", False)

    told = frames(encode_run(prefix, [tail_for(message, version) for message in messages]), version)

    assert [frame.head.headers["message-id"] for frame in told] == [message.message_id for message in messages]
    assert {frame.head.headers["destination"] for frame in told} == {"/topic/t"}
    assert {frame.head.headers["kind"] for frame in told} == {"x"}


def test_a_tail_is_made_once() -> None:
    message = Message(Envelope("/topic/t", Kind.TOPIC, b"", False), b"\0\n", HERE, 5, 0)

    assert tail_of(message) is tail_of(message)
    assert frames(encode_run(b"MESSAGE\n", [tail_of(message)]))[0].body == b"\0\n"
