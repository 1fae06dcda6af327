"""Classes of consumers, as peers name them to each other."""

import pytest

from qmq.broker.consumers.consumer_class import PLAIN, class_of, offer_name, read_class, split_offer
from qmq.broker.selectors import compile_selector
from qmq.errors import Refused

RED = compile_selector("color = 'red'")


@pytest.mark.parametrize(("selector", "since_us"), [(None, 0), (RED, 0), (None, 17), (RED, 17)])
def test_a_class_says_the_selector_and_since_when_it_is_exclusive(selector: object, since_us: int) -> None:
    of = class_of(selector, since_us)  # type: ignore[arg-type]

    assert read_class(of) == (selector, since_us)
    assert split_offer(offer_name("/queue/jobs", of)) == ("/queue/jobs", of)


def test_plain_consumers_are_offered_under_the_name_of_their_queue() -> None:
    assert class_of(None, 0) == PLAIN
    assert offer_name("/queue/jobs", PLAIN) == "/queue/jobs"


@pytest.mark.parametrize("of", ["color = 'red'", "color =\x000", "\0", "\0-1", "\0x", "\0" + "9" * 19])
def test_a_class_that_makes_no_sense_is_refused(of: str) -> None:
    with pytest.raises(Refused):
        read_class(of)
