"""The copies that a message may still become: a budget, which is divided when a message becomes several.

A message begins with COPIES_MAX. Each of N copies has the Nth part of what was left, rounded down, in a header that
only nodes set. So a message, its copies and all of their dead letters are COPIES_MAX at most at any time: on all nodes,
and after restarts, takeovers and adoptions, because the header is in the record. What becomes one message keeps what it
has. A redrive by an operator begins with COPIES_MAX again.

A message without the header has all of it: nearly all are never copied to several queues.
"""

import re
from typing import Final

from qmq.broker.messages.limits import COPIES_MAX

COPIES_LEFT: Final = "qmq-copies-left"

_LEFT: Final = re.compile(rb"^qmq-copies-left:([0-9]{1,9})\n", re.MULTILINE)


def copies_left(headers: bytes) -> int:
    """How many messages one with this header block may become."""
    found = _LEFT.search(headers) if b"qmq-copies-left:" in headers else None
    return COPIES_MAX if found is None else min(int(found[1]), COPIES_MAX)


def share_line(left: int, count: int) -> bytes:
    """The header line of each of `count` messages that one becomes which has so much `left`; none for all of it."""
    share = left // max(count, 1)
    return b"" if share >= COPIES_MAX else b"%b:%d\n" % (COPIES_LEFT.encode(), share)
