"""The copies that a header block leaves to a message, and the share of each copy."""

import pytest

from qmq.broker.messages.copy_budget import copies_left, share_line
from qmq.broker.messages.limits import COPIES_MAX


@pytest.mark.parametrize(
    ("headers", "left"),
    [
        (b"", COPIES_MAX),
        (b"a:1\nqmq-copies-left:7\nb:2\n", 7),
        (b"qmq-copies-left:0\n", 0),
        (b"qmq-copies-left:%d\n" % (COPIES_MAX + 1), COPIES_MAX),
        (b"qmq-copies-left:999999999\n", COPIES_MAX),
        # A sender's header that ends alike, and what no node writes.
        (b"x-qmq-copies-left:7\n", COPIES_MAX),
        (b"a:qmq-copies-left:7\n", COPIES_MAX),
        (b"qmq-copies-left:-1\n", COPIES_MAX),
    ],
)
def test_message_has_what_its_header_says_and_never_more_than_all(headers: bytes, left: int) -> None:
    assert copies_left(headers) == left


@pytest.mark.parametrize(("left", "count", "share"), [(7, 2, 3), (7, 7, 1), (7, 8, 0), (7, 1, 7), (7, 0, 7)])
def test_each_copy_has_its_part_rounded_down(left: int, count: int, share: int) -> None:
    assert copies_left(share_line(left, count)) == share


def test_one_copy_of_a_message_that_has_all_needs_no_header() -> None:
    assert share_line(COPIES_MAX, 1) == b""
    assert copies_left(share_line(COPIES_MAX, 2)) == COPIES_MAX // 2
