"""Replies in the order of their commands, whatever becomes known first."""

import itertools

import pytest

from qmq.access.rights import NOT_ALLOWED
from qmq.broker.consumers.subscription import Ack, Delivery, Subscription
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope, Message
from qmq.errors import Refused
from qmq.model.dots import Origin
from qmq.protocols.beanstalk.codec.replies import (
    DELETED,
    DRAINING,
    INTERNAL_ERROR,
    JOB_TOO_BIG,
    NOT_FOUND,
    OUT_OF_MEMORY,
)
from qmq.protocols.beanstalk.gateway.encoder import BeanstalkEncoder, OrderedReplies, refusal_reply
from qmq.protocols.beanstalk.gateway.jobs import id_of


def message(sequence: int = 1) -> Message:
    return Message(Envelope("/queue/t", DestinationKind.QUEUE, b"", True), b"job", Origin("a", 1), sequence, 0)


def rig() -> tuple[list[bytes], OrderedReplies, BeanstalkEncoder]:
    sent: list[bytes] = []
    replies = OrderedReplies(sent.append)
    return sent, replies, BeanstalkEncoder(replies, bool)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_replies_are_sent_in_the_order_of_their_slots(order: tuple[int, ...]) -> None:
    sent, replies, _ = rig()
    slots = [replies.slot() for _ in range(4)]

    for index in order:
        slots[index].fill(b"%d" % index)

    assert b"".join(sent) == b"0123"
    assert replies.count == 0


def test_a_reply_that_is_known_at_once_waits_for_those_before_it() -> None:
    sent, replies, _ = rig()
    replies.reply(b"1")
    slot = replies.slot()
    replies.reply(b"3")
    assert sent == [b"1"]

    slot.fill(b"2")

    assert sent == [b"1", b"23"]


def test_the_first_reply_of_a_slot_counts() -> None:
    sent, replies, _ = rig()
    slot = replies.slot()

    slot.fill(b"1")
    slot.fill(b"2")

    assert sent == [b"1"]


@pytest.mark.parametrize("is_confirmed_first", [False, True])
def test_a_put_is_answered_when_it_has_an_id_and_is_durable(is_confirmed_first: bool) -> None:
    sent, replies, encoder = rig()
    slot = replies.slot(is_put=True)
    receipt, one = replies.receipt(slot), message()

    if is_confirmed_first:
        encoder.receipts([receipt])
        assert sent == []
        slot.decided(one)
    else:
        slot.decided(one)
        assert sent == []
        encoder.receipts([receipt])

    assert sent == [b"INSERTED %d\r\n" % id_of(one)]


def test_a_settle_is_answered_when_it_is_durable() -> None:
    sent, replies, encoder = rig()
    receipt = replies.receipt(replies.slot(DELETED))

    encoder.receipts([receipt, receipt, "unknown"])

    assert sent == [DELETED]


def test_a_refusal_is_the_reply_of_its_command() -> None:
    sent, replies, encoder = rig()
    first, second = replies.slot(is_put=True), replies.slot(is_put=True)
    replies.receipt(first)

    assert encoder.error(Refused("queue-full", "x"), replies.receipt(second)) == b""

    assert encoder.refused_slot is second and sent == []
    first.fill(b"1\r\n")
    assert sent == [b"1\r\n" + OUT_OF_MEMORY]


@pytest.mark.parametrize(
    ("code", "reply"),
    [
        ("body-too-large", JOB_TOO_BIG),
        ("disk-full", OUT_OF_MEMORY),
        ("memory-full", OUT_OF_MEMORY),
        ("too-many-connections", OUT_OF_MEMORY),
        ("queue-paused", DRAINING),
        ("stopping", DRAINING),
        ("unknown-ack", NOT_FOUND),
        (NOT_ALLOWED, INTERNAL_ERROR),
        ("something-new", INTERNAL_ERROR),
    ],
)
def test_each_refusal_has_a_word_of_the_protocol(code: str, reply: bytes) -> None:
    assert refusal_reply(Refused(code, "why")) == reply


def test_deliveries_are_passed_on_and_nothing_is_written() -> None:
    given: list[object] = []
    encoder = BeanstalkEncoder(OrderedReplies(bool), lambda deliveries, totals: given.extend(deliveries))
    subscription = Subscription(1, "t", "/queue/t", Ack.CLIENT_INDIVIDUAL, 1, b"")
    deliveries = [Delivery(1, subscription, message(1)), Delivery(2, subscription, message(2))]

    assert encoder.deliveries(subscription, deliveries) == b""

    assert given == deliveries
