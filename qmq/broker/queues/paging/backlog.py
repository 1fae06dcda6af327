"""The part of one queue that is only in the queue store: how much it is, and how it is loaded and evicted.

`paging` decides, for all queues, what is requested from the store and which rows of a response are new.
`priority_level` keeps the messages of one priority in order across memory and store.
"""

import heapq

from qmq.broker.messages.message import Message
from qmq.broker.queues.dispatch.expiry import mature
from qmq.broker.queues.dispatch.queue import Queue
from qmq.broker.queues.state.priority_level import PriorityLevel, is_spare
from qmq.model.dots import Dot, Vector

WINDOW = 1000
"""Messages of one level that stay in memory when memory is short and the queue has consumers."""
WINDOW_BYTES = 4 << 20
"""The same for large ones, by the mean size of the queue's messages."""


def next_behind(queue: Queue) -> PriorityLevel | None:
    """The level to be loaded next."""
    for level in reversed(queue.levels) if queue.loads_lowest_first else queue.levels:
        if level.behind:
            return level
    return None


def count(queue: Queue, messages: int, body_bytes: int, priorities: tuple[int, ...], due_us: int, now_us: int) -> None:
    """Learn what the store holds of this queue beyond what is in memory; `due_us`: see `stored_due_us`."""
    queue.is_counted = True
    queue.stored = messages
    queue.stored_bytes = body_bytes
    queue.stored_due_us = due_us
    queue.loaded_until_us = now_us
    for priority in priorities:
        queue.level(priority).behind = True
    for level in queue.levels:
        if level.priority not in priorities:
            close_gap(queue, level)
    if due_us:
        queue.shared.deadlines.watch(queue, due_us)


def take_page(
    queue: Queue, level: PriorityLevel, messages: list[Message], after: Dot | None, exact: int, is_last: bool
) -> None:
    """The next messages of `level` from the store, in order; the rows read reach up to `after` (and `exact`)."""
    for message in messages:
        _take_loaded(queue, message)
    queue.placed = level.take_page(messages, queue.placed, after, exact)
    queue.loads_lowest_first = False
    if is_last:
        close_gap(queue, level)
    elif level.priority < 0 and queue.selective is not None:
        queue.selective.back_in_line(None, level.priority)


def take_due(queue: Queue, messages: list[Message], next_due_us: int, until_us: int) -> None:
    """Messages of the store that have become due."""
    for message in messages:
        _take_loaded(queue, message)
        mature(queue, message)
    queue.due_place = messages[len(messages) // 2].place if messages else 0
    queue.stored_due_us = next_due_us
    queue.loaded_until_us = until_us
    if next_due_us:
        queue.shared.deadlines.watch(queue, next_due_us)
    _all_here(queue)


def _take_loaded(queue: Queue, message: Message) -> None:
    queue.held += 1
    queue.held_bytes += len(message.body)
    queue.stored = max(0, queue.stored - 1)
    queue.stored_bytes = max(0, queue.stored_bytes - len(message.body))
    options = message.envelope.options
    if options is not None and options.is_timed:
        queue.will_expire(queue.shared.clocks.expiry(message))
    if options is not None and options.group:
        queue.pick().note_group()


def close_gap(queue: Queue, level: PriorityLevel) -> None:
    """The store has no more of this level: what was accepted since follows what is ready."""
    queue.placed = level.number_tail(queue.placed)
    level.close_gap()
    if level.priority < 0 and queue.selective is not None:
        queue.selective.back_in_line(None, level.priority)
    _all_here(queue)


def _all_here(queue: Queue) -> None:
    """Whatever was counted: what the store has no more of is not counted any more."""
    if not has_more(queue):
        queue.stored = queue.stored_bytes = 0


def has_more(queue: Queue) -> bool:
    """Whether the store may have something that is not in memory."""
    if queue.stored_due_us or next_behind(queue) is not None:
        return True
    return queue.selective is not None and queue.selective.has_passed_over


def stored_settled(queue: Queue, body_bytes: int) -> None:
    """A message that was only in the store was settled."""
    queue.stored = max(0, queue.stored - 1)
    queue.stored_bytes = max(0, queue.stored_bytes - body_bytes)


def evict(queue: Queue, covered: Vector) -> list[Message]:
    """Take out of memory what the store has: what a finished checkpoint has `covered`.

    Keeps the first of each priority level while a consumer wants them. Not while a load is under way.
    """
    is_cold = not queue.is_wanted
    keep = 0 if is_cold else _window(queue)
    dropped: list[Message] = []
    for level in queue.levels:
        dropped += level.evict(covered, keep, is_cold)
    if queue.delayed is not None:
        later: list[tuple[int, int, Message]] = []
        for entry in queue.delayed:
            if is_spare(entry[2], covered, is_cold=True):
                dropped.append(entry[2])
                queue.stored_due_us = min(queue.stored_due_us or entry[0], entry[0])
                # It may be due already, and the store was asked for what is due up to a later time.
                queue.loaded_until_us = min(queue.loaded_until_us, entry[0] - 1)
            else:
                later.append(entry)
        heapq.heapify(later)
        queue.delayed = later or None
    queue.put_away(dropped)
    if dropped and queue.selective is not None:
        queue.selective.evicted()
    if dropped and is_cold:
        # The next consumer of this queue begins from the store, in its order, and it is counted again.
        queue.is_counted = False
        queue.stored = queue.stored_bytes = queue.stored_due_us = 0
        for level in queue.levels:
            level.rewind()
    elif queue.stored_due_us:
        queue.shared.deadlines.watch(queue, queue.stored_due_us)
    return dropped


def _window(queue: Queue) -> int:
    """How many of a level stay. Consumers that choose look through many for theirs, and would read all of them
    again."""
    if queue.selective is not None:
        return WINDOW
    return fitting(WINDOW, WINDOW_BYTES, queue.held, queue.held_bytes)


def fitting(most: int, bytes_most: int, messages: int, size: int) -> int:
    """How many may be taken of `messages` that have `size` bytes together: by their mean, at least one."""
    return max(1, min(most, bytes_most // max(1, size // max(1, messages))))
