"""A level in the order of exact numbers; `test_paging_histories` has its order across memory and store."""

import random
from collections import deque

from qmq.broker.messages.message import Message
from qmq.broker.queues.state.exact_level import ExactLevel, exact_of
from qmq.model.dots import Origin

from ...rig import message_of

A = Origin("a", 1)
LEVEL = -4


class Line(deque[Message]):
    """Counts what is put in between others."""

    inserted = 0

    def insert(self, index: int, value: Message, /) -> None:
        self.inserted += 1
        super().insert(index, value)


def with_number(number: int, sequence: int) -> Message:
    message = message_of(A, sequence, headers=b"priority:6\nbeanstalk-priority:%d\n" % number)
    message.place = sequence
    return message


def test_a_long_line_is_not_moved_for_each_of_many_messages_that_have_waited_for_the_store() -> None:
    numbers = random.Random(1).choices(range(17, 128), k=1000)
    level = ExactLevel(LEVEL, behind=True)
    for sequence, number in enumerate(numbers, 1):
        level.append(with_number(number, sequence))
    level.ready = line = Line()

    placed = level.take_page([with_number(100, 1001)], 1001, None, 100)
    placed = level.number_tail(placed)
    level.close_gap()

    assert line.inserted == 0
    assert [exact_of(message) for message in level.ready] == sorted([*numbers, 100])
    assert placed == 2002
    places = [message.place for message in level.ready]
    assert places == sorted(places)


def test_what_was_accepted_since_is_behind_what_the_store_has_of_its_number() -> None:
    level = ExactLevel(LEVEL, behind=True)
    for sequence, number in ((10, 20), (11, 30), (12, 20), (13, 17)):
        level.append(with_number(number, sequence))

    placed = level.take_page([with_number(20, 1), with_number(20, 2), with_number(30, 3)], 13, None, 30)

    assert [(exact_of(one), one.sequence) for one in level.ready] == [
        (17, 13),
        (20, 1),
        (20, 2),
        (20, 10),
        (20, 12),
        (30, 3),
    ]
    level.number_tail(placed)
    level.close_gap()
    assert [one.sequence for one in level.ready][-2:] == [3, 11]
