"""Classes of consumers, as peers name them to each other."""

import pytest

from qmq.broker.consumers.consumer_class import (
    PLAIN,
    PRIORITY_MAX,
    class_of,
    offer_name,
    read_class,
    split_offer,
)
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope, Message
from qmq.broker.queues.selective.ordered_buffer import is_ordered
from qmq.broker.selectors import compile_selector
from qmq.errors import Refused
from qmq.model.dots import Origin

RED = compile_selector("color = 'red'")


@pytest.mark.parametrize(("selector", "since_us"), [(None, 0), (RED, 0), (None, 17), (RED, 17)])
@pytest.mark.parametrize("priority", [0, 1, -1, PRIORITY_MAX, -PRIORITY_MAX])
def test_a_class_says_the_selector_the_priority_and_since_when_it_is_exclusive(
    selector: object, since_us: int, priority: int
) -> None:
    of = class_of(selector, since_us, priority)  # type: ignore[arg-type]

    assert read_class(of) == (selector, since_us, priority)
    assert is_ordered(borrowed(of)) is bool(since_us)
    assert split_offer(offer_name("/queue/jobs", of)) == ("/queue/jobs", of)


def test_plain_consumers_are_offered_under_the_name_of_their_queue() -> None:
    assert class_of(None, 0, 0) == PLAIN
    assert offer_name("/queue/jobs", PLAIN) == "/queue/jobs"


def borrowed(of: str) -> Message:
    message = Message(Envelope("/queue/jobs", DestinationKind.QUEUE, b"", True), b"", Origin("b", 1), 1, 0)
    message.lent_as = of
    return message


@pytest.mark.parametrize(
    "of", ["\x00x\x000", "\x000\x000", "\x00+1\x000", "\x0001\x000", "\x009223372036854775808\x000"]
)
def test_a_priority_that_makes_no_sense_is_refused(of: str) -> None:
    with pytest.raises(Refused):
        read_class(of)


@pytest.mark.parametrize("of", ["color = 'red'", "color =\x000", "\0", "\0-1", "\0x", "\0" + "9" * 19])
def test_a_class_that_makes_no_sense_is_refused(of: str) -> None:
    with pytest.raises(Refused):
        read_class(of)
