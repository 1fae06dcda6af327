"""The levels of a queue: which messages are delivered before which.

Messages of a higher level are delivered first. There is one level for each priority from 0 to 9, numbered like it,
with messages in order of acceptance. Below each of them is another one, for messages with an **exact number**: these
are delivered by that number, low first, and in order of acceptance if it is the same. beanstalkd has such numbers.

Like `dots`, this module is open to the layers and imports none of them: the broker and the queue store agree on it.
"""

import re
from typing import Final

EXACT_LEVEL: Final = -10
"""Added to a priority, this is the level below it for messages with an exact number."""

EXACT_HEADER: Final = "beanstalk-priority"
EXACT_MAX: Final = (1 << 32) - 1

EXACT_TOPS: Final = (0, 3, 15, 127, 1023, 16_383, 65_535, (1 << 24) - 1, (1 << 31) - 1, EXACT_MAX)
"""The last of the exact numbers of each priority, from 9 down to 0. The first one of each priority means no more than
the priority itself. So the numbers that applications use most (0, 1024, 65,536, 2³¹) need no level of their own."""

_EXACT_LINE: Final = re.compile(rb"^beanstalk-priority:([^\n]*)$", re.MULTILINE)


def exact_first(priority: int) -> int:
    """The first exact number of a priority."""
    return 0 if priority >= 9 else EXACT_TOPS[8 - priority] + 1


def exact_number(headers: bytes, priority: int) -> int:
    """The exact number of a message with this header block; 0: none of this priority, or its first one."""
    if b"beanstalk-priority:" not in headers:
        return 0
    found = _EXACT_LINE.search(headers)
    if found is None or not found[1].isdigit() or len(found[1]) > 10:
        return 0
    number = int(found[1])
    return number if exact_first(priority) < number <= EXACT_TOPS[9 - priority] else 0


def delivery_order(level: int) -> int:
    """Higher is delivered first."""
    return 2 * level if level >= 0 else 2 * (level - EXACT_LEVEL) - 1


def priority_of_level(level: int) -> int:
    """0–9."""
    return level if level >= 0 else level - EXACT_LEVEL
