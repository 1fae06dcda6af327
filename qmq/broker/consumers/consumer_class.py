"""Classes of consumers: peers lend to all consumers of one class under one name, because all may get the same messages.

Most consumers are plain, and their class is "". Consumers with the same selector are in one class. An exclusive
consumer is in a class with the time at which it began, so that the mesh agrees on the first one. Consumers of the same
priority are in one class. A peer is offered credit for a queue (plain), or for a queue and a class; no STOMP header can
contain the NUL between the two.
"""

import re
from typing import Final

from qmq.broker.selectors import Selector, compile_selector
from qmq.errors import Refused

PLAIN: Final = ""

WITHDRAWN: Final = -1
"""The limit of an offer that is no more."""


def asking_offer(limit: int) -> int:
    """An offer with this limit that also asks whether messages wait, and the inverse of it: less than WITHDRAWN."""
    return WITHDRAWN - 1 - limit


PRIORITY_MAX: Final = (1 << 63) - 1
"""Of a consumer; the least is as far below 0."""

_PRIORITY: Final = re.compile(r"-?[1-9][0-9]{0,18}")


def class_of(selector: Selector | None, since_us: int, priority: int = 0) -> str:
    """The class of a consumer with this selector; `since_us`: when it began, if it is exclusive, else 0."""
    if selector is None and not since_us and not priority:
        return PLAIN
    text = "" if selector is None else selector.text
    return f"{text}\0{priority}\0{since_us}" if priority else f"{text}\0{since_us}"


def offer_name(queue: str, of: str) -> str:
    """What credit for a class of consumers of a queue is called between peers."""
    return f"{queue}\0{of}" if of else queue


def split_offer(name: str) -> tuple[str, str]:
    """(queue, class); the inverse of `offer_name`."""
    queue, _, of = name.partition("\0")
    return queue, of


def key_of(peer: str, of: str) -> str:
    """What a class of a peer's consumers is called here."""
    return f"{peer}\0{of}" if of else peer


def read_class(of: str) -> tuple[Selector | None, int, int]:
    """(selector, since_us, priority) of a class as a peer names it. Raises Refused for what is none."""
    if of == PLAIN:
        return None, 0, 0
    said, nul, since = of.rpartition("\0")
    text, has_priority, priority = said.partition("\0")
    if (
        not nul
        or not (since.isascii() and since.isdigit() and len(since) <= 18)
        or (has_priority and not (_PRIORITY.fullmatch(priority) and abs(int(priority)) <= PRIORITY_MAX))
    ):
        raise Refused(
            "bad-selector", "A class of consumers is a selector, a priority, and the time of an exclusive one."
        )
    return (compile_selector(text) if text else None), int(since), int(priority or 0)
