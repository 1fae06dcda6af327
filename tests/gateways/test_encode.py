"""MESSAGE frames as clients see them: the quick way of writing them says what the plain one would."""

import pytest

from qmq.broker.consumers.subscription import Ack, Delivery, Subscription
from qmq.broker.fanouts.gap_notice import GAP_BYTES_MAX, gap_notices
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope, Message
from qmq.client.core.vectors import parse_gap
from qmq.gateways.encode import encode_deliveries, subscription_prefix, tail_for, tail_of
from qmq.model.dots import Origin
from qmq.wire.stomp import Connection, Frame, Role, Version, encode_frame

HERE = Origin("a", 0xAB)
THERE = Origin("b", 1)


def encode_run(prefix: bytes, tails: list[bytes]) -> bytes:
    """All messages of a run for one subscriber, as the node joins them."""
    return prefix + prefix.join(tails)


def frames(data: bytes, version: Version = Version.V12) -> list[Frame]:
    codec = Connection(Role.CLIENT)
    found = codec.receive(encode_frame("CONNECTED", [("version", version.text)]) + data)
    assert codec.error is None
    return found[1:]


@pytest.mark.parametrize("version", [Version.V10, Version.V11, Version.V12])
def test_a_message_is_named_by_its_dot_after_one_of_any_sender(version: Version) -> None:
    envelope = Envelope("/topic/t", DestinationKind.TOPIC, b"kind:x\n", False)
    messages = [
        Message(envelope, b"body", origin, sequence, 0)
        for origin, sequence in [(HERE, 1), (HERE, -1), (THERE, 7), (THERE, -12), (HERE, 10**15)]
    ]
    prefix = subscription_prefix(version, "1", False)

    told = frames(encode_run(prefix, [tail_for(message, version) for message in messages]), version)

    assert [frame.head.headers["message-id"] for frame in told] == [message.message_id for message in messages]
    assert {frame.head.headers["destination"] for frame in told} == {"/topic/t"}
    assert {frame.head.headers["kind"] for frame in told} == {"x"}


@pytest.mark.parametrize("version", [Version.V10, Version.V11, Version.V12])
@pytest.mark.parametrize("ack", list(Ack))
@pytest.mark.parametrize("has_tails", [False, True])
def test_a_delivery_names_its_message_and_tag_after_a_message_of_any_sender(
    version: Version, ack: Ack, has_tails: bool
) -> None:
    envelope = Envelope("/queue/q", DestinationKind.QUEUE, b"kind:x\n", False)
    messages = [
        Message(envelope, b"%d%%b" % sequence, origin, sequence, 0)
        for origin, sequence in [(HERE, 1), (HERE, -1), (THERE, 7), (THERE, -12), (HERE, 10**15), (HERE, 3)]
    ]
    messages[2].attempts = 2
    if has_tails:
        for message in messages:
            tail_of(message)
    subscription = Subscription(1, "0", "/queue/q", ack, 10, subscription_prefix(version, "0", False))
    deliveries = [Delivery(tag, subscription, message) for tag, message in enumerate(messages, 90)]

    told = frames(encode_deliveries(subscription, deliveries, version), version)

    assert [frame.head.headers["message-id"] for frame in told] == [message.message_id for message in messages]
    assert [frame.body for frame in told] == [message.body for message in messages]
    assert {frame.head.headers["kind"] for frame in told} == {"x"}
    tags = [frame.head.headers.get("ack") for frame in told]
    is_tagged = version is Version.V12 and ack is not Ack.AUTO
    assert tags == ([str(tag) for tag in range(90, 96)] if is_tagged else [None] * 6)
    assert [frame.head.headers.get("delivery-count") for frame in told] == [None, None, "3", None, None, None]


def test_a_stomp_1_0_client_sees_a_destination_that_1_0_cannot_write() -> None:
    # No client can send to it any more; an older node has accepted it.
    message = Message(Envelope("/topic/a\nb", DestinationKind.TOPIC, b"", False), b"odd", HERE, 1, 0)

    (frame,) = frames(encode_run(b"MESSAGE\n", [tail_for(message, Version.V10)]), Version.V10)

    assert (frame.head.headers["destination"], frame.body) == ("/topic/a\\nb", b"odd")


def test_a_tail_is_made_once() -> None:
    message = Message(Envelope("/topic/t", DestinationKind.TOPIC, b"", False), b"\0\n", HERE, 5, 0)

    assert tail_of(message) is tail_of(message)
    assert frames(encode_run(b"MESSAGE\n", [tail_of(message)]))[0].body == b"\0\n"


def test_gap_notices_say_everything_in_headers_that_clients_can_take() -> None:
    missing = [(Origin("a-long-name-of-a-node", n), n, n + 5) for n in range(300)]

    notices = gap_notices("/fanout/f", missing)

    assert len(notices) > 1
    told: dict[str, tuple[int, int]] = {}
    for envelope, claims in notices:
        name, _, value = envelope.headers.decode().rstrip("\n").partition(":")
        assert name == "qmq-gap"
        assert len(envelope.headers) <= GAP_BYTES_MAX + 100
        told.update(parse_gap(value))
        assert len(parse_gap(value)) == len(claims)
    assert told == {str(origin): (after + 1, through) for origin, after, through in missing}


@pytest.mark.parametrize("version", [Version.V10, Version.V11, Version.V12])
def test_the_block_of_amqp_properties_is_not_written(version: Version) -> None:
    """It can be longer than a header that clients read; what STOMP understands of it has headers of its own."""
    headers = b"kind:x\namqp-properties:%b\ntype:amqp-properties\\c1\nx-amqp-properties:2\n" % (b"A" * 40_000)
    messages = [Message(Envelope("/queue/q", DestinationKind.QUEUE, headers, True), b"body", HERE, 1, 0)]
    subscription = Subscription(1, "0", "/queue/q", Ack.CLIENT, 10, subscription_prefix(version, "0", False))

    (first,) = frames(encode_run(subscription_prefix(version, "1", False), [tail_for(messages[0], version)]), version)
    (second,) = frames(encode_deliveries(subscription, [Delivery(1, subscription, messages[0])], version), version)

    for frame in (first, second):
        found = frame.head.headers
        assert "amqp-properties" not in found
        assert (found["kind"], found["x-amqp-properties"], frame.body) == ("x", "2", b"body")
        assert found["type"] in ("amqp-properties:1", "amqp-properties\\c1")
