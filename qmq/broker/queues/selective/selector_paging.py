"""Evicts messages that no selector matches, so that a consumer finds its message behind any number of others.

If a priority level has more messages in the queue store, it keeps in memory those that some consumer wants, whether
that consumer has room or not. All others are only in the store. When a consumer begins that may want them, the level is
read again from its beginning.
"""

from collections import deque
from typing import Final

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.message import Message
from qmq.broker.queues.state.priority_level import PriorityLevel
from qmq.broker.queues.state.queue_state import QueueState
from qmq.broker.selectors import Selector, selects

UNWANTED_MAX: Final = 1000
"""Messages of one level that no consumer wants and no checkpoint has stored since the start; more ask for one."""


EVICT_FROM: Final = 1000
"""A priority level with more in the store evicts what no consumer wants when it has more than this in memory."""

KEPT_MAX: Final = 10_000
"""Messages of one lane that wait in memory for consumers without room, while others look for theirs behind them."""

LET_GO_BYTES: Final = 8 << 20
"""Of bodies and headers, likewise."""

KEPT_BYTES_MAX: Final = 64 << 20
"""Of bodies and headers, likewise; one page may go over."""


def load_on(
    queue: QueueState,
    level: PriorityLevel,
    selectors: list[Selector] | None,
    skipped: set[int],
    out: Outcome,
    *,
    has_idle: bool,
) -> None:
    """Look further than what is in memory of `level`, if `has_idle` consumers want none of it, or little is left.

    `selectors`: of all consumers; None if nothing may be evicted because of them.
    """
    if queue.is_loading or not (has_idle or len(level.ready) < EVICT_FROM // 4):
        return
    wanted = len(level.ready)
    if wanted >= KEPT_MAX and selectors is None:
        return
    size = level.ready_bytes()
    if (wanted > EVICT_FROM or size > LET_GO_BYTES) and selectors is not None:
        wanted, has_dropped = evict_unmatched(queue, level, selectors)
        if has_dropped:
            skipped.add(level.priority)
            size = level.ready_bytes()
    if wanted < KEPT_MAX and size < KEPT_BYTES_MAX:
        queue.load(out)


def evict_unmatched(queue: QueueState, level: PriorityLevel, selectors: list[Selector]) -> tuple[int, bool]:
    """Drop from memory what no selector lets through. (How many wanted ones stay, whether something went)."""
    owned = queue.shared.owned
    kept: deque[Message] = deque()
    dropped: list[Message] = []
    wanted = unwanted = 0
    for message in level.ready:
        if message.settled:
            continue
        if any(selects(selector, message.envelope) for selector in selectors):
            wanted += 1
        elif owned.is_evictable(message):
            dropped.append(message)
            continue
        else:
            unwanted += 1
        kept.append(message)
    if unwanted > UNWANTED_MAX:
        owned.needs_checkpoint = True
    if dropped:
        level.ready = kept
        queue.put_away(dropped)
        owned.evicted(dropped)
    return wanted, bool(dropped)


def restart_scans(queue: QueueState, skipped: set[int]) -> None:
    """What no consumer wanted, of the levels that are `skipped`, must not be overtaken by what has come since."""
    for level in queue.levels:
        if level.priority in skipped:
            _restart_scan(queue, level)
    skipped.clear()


def _restart_scan(queue: QueueState, level: PriorityLevel) -> None:
    """Begin again at the front of what the store has of `level`. No page of a load is taken after this."""
    owned = queue.shared.owned
    kept: deque[Message] = deque()
    fresh: list[Message] = []
    dropped: list[Message] = []
    for message in level.ready:
        if message.settled:
            continue
        if owned.is_evictable(message):
            dropped.append(message)
        elif owned.is_unsaved(message):
            fresh.append(message)
        else:
            kept.append(message)
    level.wait_again(fresh)
    fresh.extend(level.fresh or ())
    level.ready, level.fresh = kept, fresh or None
    level.rewind()
    queue.put_away(dropped)
    owned.evicted(dropped)
