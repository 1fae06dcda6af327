"""Evicts messages that no selector matches, so that a consumer finds its message behind any number of others.

If a priority level has more messages in the queue store, it keeps in memory those that some consumer wants, whether
that consumer has room or not. All others are only in the store. When a consumer begins that may want them, the level is
read again from its beginning.
"""

from collections import deque
from typing import Final, NamedTuple

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.message import Message
from qmq.broker.queues.state.priority_level import PriorityLevel
from qmq.broker.queues.state.queue_state import QueueState
from qmq.broker.selectors import Selector, SelectorCosts, selects

UNWANTED_MAX: Final = 1000
"""Messages of one level that no consumer wants and no checkpoint has stored since the start; more ask for one."""


EVICT_FROM: Final = 1000
"""A priority level with more in the store evicts what no consumer wants when it has more than this in memory."""

KEPT_MAX: Final = 10_000
"""Messages of one level that wait in memory for consumers without room, while others look for theirs behind them."""

LET_GO_BYTES: Final = 8 << 20
"""Of bodies and headers, likewise."""

KEPT_BYTES_MAX: Final = 64 << 20
"""Of bodies and headers, likewise; one page may go over."""


COST_SHARE: Final = 32
"""As much as a question besides: so much of the cost of selectors (`SelectorCosts`)."""


class Sifted(NamedTuple):
    """How far one pass has looked for messages that no consumer wants, over several turns: up to which place, 0 at its
    end; how many wanted ones it has met, and unwanted ones that must stay."""

    place: int
    wanted: int
    unwanted: int


NOTHING_SIFTED: Final = Sifted(0, 0, 0)


def load_on(
    queue: QueueState,
    level: PriorityLevel,
    selectors: list[Selector] | None,
    refused: list[Selector | None],
    skipped: set[int],
    sifted: dict[int, Sifted],
    out: Outcome,
    left: int,
) -> None:
    """Look further than what is in memory of `level`, if idle consumers want none of it, or little is left.

    `selectors`: of all consumers; None if nothing may be evicted because of them. `refused`: of the idle consumers,
    which have just refused all of it. At most `left` questions are asked: `sifted` has how far they sufficed, and the
    queue has another turn.
    """
    if queue.is_loading or not (refused or len(level.ready) < EVICT_FROM // 4):
        return
    wanted = len(level.ready)
    if wanted >= KEPT_MAX and selectors is None:
        return
    size = level.ready_bytes()
    if (wanted > EVICT_FROM or size > LET_GO_BYTES) and selectors is not None:
        before = sifted.pop(level.priority, NOTHING_SIFTED)
        others = [one for one in selectors if one not in refused]
        now, has_dropped = evict_unmatched(queue, level, others, before, left)
        if has_dropped:
            skipped.add(level.priority)
        if now.place:
            sifted[level.priority] = now
            queue.shared.deadlines.watch(queue, max(1, out.now_us))
            return
        wanted = now.wanted
        size = level.ready_bytes()
    if wanted < KEPT_MAX and size < KEPT_BYTES_MAX:
        queue.load(out)


def evict_unmatched(
    queue: QueueState, level: PriorityLevel, selectors: list[Selector], before: Sifted, left: int
) -> tuple[Sifted, bool]:
    """Drop from memory what no selector lets through, from where the turn `before` ended, with `left` questions. (How
    far that was, whether something went)."""
    owned = queue.shared.owned
    costs = SelectorCosts(selectors)
    messages = list(level.ready)
    begin = at = level.index_after(before.place)
    kept: list[Message] = []
    dropped: list[Message] = []
    wanted, unwanted = before.wanted, before.unwanted
    while at < len(messages) and left > 0:
        message = messages[at]
        at += 1
        if message.settled:
            continue
        left -= 1 + costs.of(len(message.envelope.headers)) // COST_SHARE
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
        level.ready = deque([*messages[:begin], *kept, *messages[at:]])
        queue.put_away(dropped)
        owned.evicted(dropped)
    place = messages[at - 1].place if at < len(messages) else 0
    return Sifted(place, wanted, unwanted), bool(dropped)


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
    tail: list[Message] = []
    dropped: list[Message] = []
    for message in level.ready:
        if message.settled:
            continue
        if owned.is_evictable(message):
            dropped.append(message)
        elif owned.is_unsaved(message):
            tail.append(message)
        else:
            kept.append(message)
    level.wait_again(tail)
    tail.extend(level.tail or ())
    level.ready, level.tail = kept, tail or None
    level.rewind()
    queue.put_away(dropped)
    owned.evicted(dropped)
