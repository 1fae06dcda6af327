"""Letting go of what nobody wants, so that a consumer with a selector finds its message behind any number of others.

A lane with more in the queue store keeps in memory what is wanted by somebody, with room or without; the rest goes
back to being only in the store. When somebody comes who may want it, the lane is read again from its beginning.
"""

from collections import deque
from typing import TYPE_CHECKING, Final

from qmq.broker.messages.message import Message
from qmq.broker.queues.paging.backlog import put_away
from qmq.broker.queues.priority_level import PriorityLevel
from qmq.broker.selectors import Selector, selects

if TYPE_CHECKING:
    from qmq.broker.queues.queue import Queue

UNWANTED_MAX: Final = 1000
"""Messages of one lane that nobody wants and no checkpoint has put into the store since the start; more ask for one."""


def let_go(queue: "Queue", level: PriorityLevel, selectors: list[Selector]) -> tuple[int, bool]:
    """Drop from memory what no selector lets through. (How many wanted ones stay, whether something went)."""
    paging = queue.shared.paging
    assert paging is not None
    kept: deque[Message] = deque()
    dropped: list[Message] = []
    wanted = unwanted = 0
    for message in level.ready:
        if message.settled:
            continue
        if any(selects(selector, message.envelope) for selector in selectors):
            wanted += 1
        elif paging.is_spare(message):
            dropped.append(message)
            continue
        else:
            unwanted += 1
        kept.append(message)
    if unwanted > UNWANTED_MAX:
        paging.is_crowded = True
    if dropped:
        level.ready = kept
        put_away(queue, dropped)
        paging.let_go(dropped)
    return wanted, bool(dropped)


def rewind(queue: "Queue", level: PriorityLevel) -> None:
    """Begin again at the front of what the store has of `level`. Not while a load is under way."""
    paging = queue.shared.paging
    assert paging is not None
    kept: deque[Message] = deque()
    fresh: list[Message] = []
    dropped: list[Message] = []
    for message in level.ready:
        if message.settled:
            continue
        if paging.is_spare(message):
            dropped.append(message)
        elif paging.is_unsaved(message):
            fresh.append(message)
        else:
            kept.append(message)
    fresh.extend(level.fresh or ())
    level.ready, level.fresh = kept, fresh or None
    level.behind, level.after = True, None
    put_away(queue, dropped)
    paging.let_go(dropped)
