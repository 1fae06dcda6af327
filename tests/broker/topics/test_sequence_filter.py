"""Topic messages of peers are delivered once and in order, whichever route they took."""

import pytest

from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope, Message
from qmq.broker.topics import sequence_filter
from qmq.broker.topics.sequence_filter import SequenceFilter
from qmq.model.dots import Origin

A, A2, B = Origin("a", 1), Origin("a", 2), Origin("b", 1)
TOPIC = Envelope("/topic/t", DestinationKind.TOPIC, b"", False)


def messages(origin: Origin, *numbers: int) -> list[Message]:
    return [Message(TOPIC, b"", origin, -number, 0) for number in numbers]


def numbers(found: list[Message]) -> list[int]:
    return [-message.sequence for message in found]


def test_a_frame_with_news_only_is_passed_on_whole() -> None:
    told = SequenceFilter()
    frame = messages(A, 1, 2, 5)

    assert told.unseen(frame) is frame
    assert numbers(told.unseen(messages(A, 6))) == [6]
    assert told.late == 0


def test_a_second_copy_is_not_delivered_whichever_part_of_it_came_before() -> None:
    told = SequenceFilter()
    told.unseen(messages(A, 1, 2, 3))

    assert numbers(told.unseen(messages(A, 2, 3, 4, 5))) == [4, 5]
    assert numbers(told.unseen(messages(A, 1, 5))) == []
    assert told.late == 4


def test_what_was_overtaken_on_another_way_is_dropped_and_counted() -> None:
    told = SequenceFilter()
    told.unseen(messages(A, 10))

    assert told.unseen(messages(A, 8, 9)) == []
    assert told.late == 2


def test_incarnations_and_nodes_are_counted_apart() -> None:
    told = SequenceFilter()
    told.unseen(messages(A, 10))

    assert numbers(told.unseen(messages(A2, 1))) == [1]
    assert numbers(told.unseen(messages(B, 1))) == [1]
    assert numbers(told.unseen([*messages(A, 9, 11), *messages(B, 1, 2)])) == [11, 2]


def test_of_too_many_incarnations_the_first_one_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_filter, "ORIGINS_MAX", 2)
    told = SequenceFilter()
    for origin in (A, A2, B):
        told.unseen(messages(origin, 5))

    assert numbers(told.unseen(messages(B, 5))) == []
    assert numbers(told.unseen(messages(A, 5))) == [5]
