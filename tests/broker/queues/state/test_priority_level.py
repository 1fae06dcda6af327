import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmq.broker.messages.message import Message
from qmq.broker.queues.state.priority_level import PriorityLevel
from qmq.model.dots import Dot, Origin

from ...rig import message_of

A = Origin("a", 1)


def placed(place: int) -> Message:
    message = message_of(A, place, b"%d" % place)
    message.place = place
    return message


def places(messages: object) -> list[int]:
    return [message.place for message in messages or ()]  # type: ignore[attr-defined]


def test_whole_partition_takes_new_messages_at_its_end() -> None:
    level = PriorityLevel(4, behind=False)

    for place in (1, 2):
        level.append(placed(place))

    assert places(level.ready) == [1, 2]
    assert level.tail is None


def test_partition_that_is_behind_keeps_new_messages_apart_until_the_gap_is_closed() -> None:
    level = PriorityLevel(4, behind=True)
    level.after = Dot(A, 1)
    level.ready_of_its_own().append(placed(1))
    for place in (8, 9):
        level.append(placed(place))
    assert (places(level.ready), places(level.tail)) == ([1], [8, 9])

    level.close_gap()

    assert places(level.ready) == [1, 8, 9]
    assert (level.behind, level.after, level.tail) == (False, None, None)
    level.append(placed(10))
    assert places(level.ready) == [1, 8, 9, 10]


def test_partition_that_missed_nothing_is_whole_again_when_its_gap_is_closed() -> None:
    level = PriorityLevel(4, behind=True)

    level.close_gap()

    assert (level.behind, places(level.ready)) == (False, [])


@pytest.mark.parametrize(("there", "comes"), [([], 5), ([6, 7], 5), ([1, 7], 5), ([1, 2, 7], 5), ([1, 2], 5)])
def test_message_that_comes_back_stands_where_it_stood(there: list[int], comes: int) -> None:
    level = PriorityLevel(4, behind=False)
    level.ready.extend(map(placed, there))

    level.push_back(placed(comes))

    assert places(level.ready) == sorted([*there, comes])


@given(st.sets(st.integers(1, 60)), st.permutations(range(100, 120)), st.booleans())
def test_whatever_comes_back_in_whatever_order_the_partition_stays_in_order(
    there: set[int], back: list[int], below: bool
) -> None:
    level = PriorityLevel(4, behind=False)
    level.ready.extend(placed(place + 200) for place in sorted(there))

    for place in back:
        level.push_back(placed(place - 100 * below))

    assert places(level.ready) == sorted(places(level.ready))
    assert len(level.ready) == len(there) + len(back)


def test_a_message_that_is_only_in_memory_waits_behind_what_the_store_takes_before_it() -> None:
    level = PriorityLevel(4, behind=False)
    for place in range(1, 7):
        message = placed(place)
        if place in (2, 5):
            message.sequence = -place  # memory-only
        level.append(message)

    gone = level.evict({A: 4}, 1, is_cold=False)

    assert places(gone) == [3, 4]
    assert (places(level.ready), places(level.tail)) == ([1, 2], [5, 6])
    assert level.behind
