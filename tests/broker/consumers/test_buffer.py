"""Declared buffers of subscriptions: which messages wait, which are dropped, and how a hole is reported."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmq.broker.consumers.buffer import MESSAGES_UNBOUNDED, Buffer, Overflow

ROOM = 1 << 20


def bounded(overflow: Overflow, *, messages: int = MESSAGES_UNBOUNDED, size: int = ROOM) -> Buffer:
    return Buffer(size, messages, overflow)


def filled(buffer: Buffer, *rests: bytes, room: int = ROOM) -> list[bool]:
    return [buffer.add(rest, room - buffer.bytes) for rest in rests]


def test_what_waits_comes_out_in_order_and_nothing_is_marked() -> None:
    buffer = bounded(Overflow.DISCONNECT)

    filled(buffer, b"one", b"two", b"three")

    assert len(buffer) == 3 and buffer.bytes == 11
    assert buffer.take(4) == [(0, b"one"), (0, b"two")]
    assert buffer.take(1) == [(0, b"three")]
    assert (len(buffer), buffer.bytes, buffer.dropped) == (0, 0, 0)


def test_at_its_bound_it_asks_for_a_disconnect_and_keeps_what_it_has() -> None:
    buffer = bounded(Overflow.DISCONNECT, messages=2)

    assert filled(buffer, b"1", b"2", b"3") == [True, True, False]
    assert [rest for _, rest in buffer.take(ROOM)] == [b"1", b"2"]


def test_the_oldest_are_dropped_and_the_first_that_is_left_says_how_many() -> None:
    buffer = bounded(Overflow.DROP_OLDEST, messages=2)

    assert all(filled(buffer, b"1", b"2", b"3", b"4", b"5"))

    assert buffer.take(ROOM) == [(3, b"4"), (0, b"5")]
    assert (buffer.dropped, buffer.unsaid) == (3, 0)


def test_the_newest_are_dropped_and_the_next_that_comes_says_how_many() -> None:
    buffer = bounded(Overflow.DROP_NEWEST, messages=2)
    filled(buffer, b"1", b"2", b"3", b"4")
    assert buffer.take(1) == [(0, b"1")]

    filled(buffer, b"5", b"6")

    assert buffer.take(ROOM) == [(0, b"2"), (2, b"5")]
    assert buffer.unsaid == 1, "6 was dropped, and the next message will say so"


def test_as_many_old_ones_go_as_a_large_one_needs() -> None:
    buffer = bounded(Overflow.DROP_OLDEST, size=10)

    filled(buffer, b"aaaa", b"bbbb", b"c", b"dddddddd")

    assert buffer.take(ROOM) == [(2, b"c"), (0, b"dddddddd")]


@pytest.mark.parametrize("overflow", [Overflow.DROP_OLDEST, Overflow.DROP_NEWEST])
def test_one_that_never_fits_is_dropped_alone(overflow: Overflow) -> None:
    buffer = bounded(overflow, size=10)
    filled(buffer, b"one", b"x" * 11, b"two")

    assert buffer.take(ROOM) == [(0, b"one"), (1, b"two")]
    assert buffer.dropped == 1


def test_a_bound_of_no_messages_lets_none_wait() -> None:
    buffer = bounded(Overflow.DROP_OLDEST, messages=0)

    assert all(filled(buffer, b"1", b"2"))

    assert (len(buffer), buffer.unsaid) == (0, 2)


def test_what_the_connection_has_left_counts_too() -> None:
    buffer = bounded(Overflow.DROP_OLDEST)
    filled(buffer, b"1234")

    assert buffer.add(b"5678", 3)
    assert buffer.add(b"xxxxxxxxxx", 0)

    assert buffer.take(ROOM) == [(1, b"5678")]
    assert buffer.unsaid == 1


Steps = st.lists(st.one_of(st.integers(1, 12), st.none()), max_size=60)


@given(Steps, st.sampled_from([Overflow.DROP_OLDEST, Overflow.DROP_NEWEST]), st.integers(0, 4), st.integers(4, 20))
def test_every_message_is_taken_in_order_or_counted_where_it_is_missing(
    steps: Steps, overflow: Overflow, messages: int, size: int
) -> None:
    buffer = Buffer(size, messages, overflow)
    out: list[tuple[int, bytes]] = []
    sent = 0

    for step in steps:
        if step is None:
            out += buffer.take(8)
        else:
            assert buffer.add(b"%c" % sent * step, ROOM)
            sent += 1
        assert len(buffer) <= messages and buffer.bytes <= size
    out += buffer.take(ROOM)

    position = 0
    for missed, rest in out:
        assert rest[0] == position + missed
        position += missed + 1
    assert sent - position == buffer.unsaid
    assert buffer.bytes == 0
