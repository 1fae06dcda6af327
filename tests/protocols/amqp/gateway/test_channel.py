"""Delivery tags, acks of several, and confirms of one channel."""

from typing import Any

import pytest
from pamqp import frame

from qmq.protocols.amqp.codec.refusals import AmqpRefusal, ReplyCode
from qmq.protocols.amqp.gateway.channel import Channel


def methods(data: bytes) -> list[tuple[str, int, bool]]:
    found = []
    while data:
        size, _, method = frame.unmarshal(data)
        data = data[size:]
        found.append((method.name, method.delivery_tag, method.multiple))  # type: ignore[union-attr]
    return found


def channel(unacked: int = 0, confirms: int = 0) -> Channel:
    made = Channel(1, "1")
    made.confirms = True
    made.last_tag = unacked
    made.unacked = {tag: _named(tag) for tag in range(1, unacked + 1)}
    for _ in range(confirms):
        made.next_confirm()
    return made


def _named(tag: int) -> Any:
    return f"delivery {tag}"


def test_an_ack_of_one_takes_one() -> None:
    made = channel(unacked=3)

    assert made.take(2, False) == {2: _named(2)}
    assert list(made.unacked) == [1, 3]


def test_an_ack_of_several_takes_all_up_to_its_tag_and_zero_takes_all() -> None:
    made = channel(unacked=5)
    made.take(2, False)

    assert made.take(3, True) == {1: _named(1), 3: _named(3)}
    assert made.take(0, True) == {4: _named(4), 5: _named(5)}
    assert made.take(0, True) == {}


@pytest.mark.parametrize(("tag", "multiple"), [(9, False), (9, True), (0, False), (1, True)])
def test_an_unknown_tag_is_refused(tag: int, multiple: bool) -> None:
    made = channel(unacked=3)
    made.take(1, False)

    with pytest.raises(AmqpRefusal, match="unknown delivery tag") as caught:
        made.take(tag, multiple)
    assert caught.value.reply is ReplyCode.PRECONDITION_FAILED


def test_confirms_in_order_are_one_method() -> None:
    made = channel(confirms=5)

    assert methods(made.confirm([1, 2, 3])) == [("Basic.Ack", 3, True)]
    assert methods(made.confirm([4])) == [("Basic.Ack", 4, False)]


def test_a_confirm_says_nothing_about_an_older_publish_that_waits() -> None:
    made = channel(confirms=4)

    assert methods(made.confirm([2, 3])) == [("Basic.Ack", 2, False), ("Basic.Ack", 3, False)]
    assert methods(made.confirm([1, 4])) == [("Basic.Ack", 4, True)]


def test_a_refused_publish_is_nacked_once_and_never_acked() -> None:
    made = channel(confirms=3)

    assert methods(made.refuse_publish(2)) == [("Basic.Nack", 2, False)]
    assert made.refuse_publish(2) == b""
    assert made.confirm([2]) == b""
    assert methods(made.confirm([1, 3])) == [("Basic.Ack", 3, True)]


def test_a_closing_channel_confirms_nothing() -> None:
    made = channel(confirms=2)
    made.close(AmqpRefusal(ReplyCode.NOT_FOUND, "x"))

    assert made.confirm([1]) == b"" and made.refuse_publish(2) == b""
