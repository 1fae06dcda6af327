"""Due times and expiry of one queue.

`deadlines` holds the times at which to look. Messages that are only in the store become due there, and are loaded when
a consumer has room for them.
"""

import heapq

from qmq.broker.consumers.outcome import COST_MAX, Outcome
from qmq.broker.messages.message import MAYBE_SEEN, Message
from qmq.broker.messages.send_options import PRIORITY_DEFAULT
from qmq.broker.queues.dispatch.queue import Queue

AT_ONCE = 2_000
"""Messages of one queue that expire or become due without a break; the others follow after other queues had a turn."""

EXPIRY_PAUSE_US = 1_000_000
"""Between two looks through a queue for expired messages; what is about to be delivered is looked at anyway."""


def on_deadline(queue: Queue, out: Outcome) -> None:
    """Some delayed messages are due, or some ready ones have expired: put the first in line, remove the others."""
    now_us = out.now_us
    delayed = queue.delayed
    if delayed is not None:
        due: list[Message] = []
        while delayed and delayed[0][0] <= now_us and len(due) < AT_ONCE:
            due.append(heapq.heappop(delayed)[2])
        if not delayed:
            queue.delayed = None
        # What comes back goes to its old place, and what was never in line to the end of what is in memory.
        due = [message for message in due if not message.settled]
        queue.push_back([message for message in due if not _is_new(message)])
        for message in filter(_is_new, due):
            mature(queue, message)
    if queue.is_wanted and queue.may_load_due(now_us):
        queue.load(out)
    if queue.expires_us and queue.expires_us <= now_us:
        _expire(queue, out)
    _watch(queue, now_us)


def _is_new(message: Message) -> bool:
    """Whether it waits for the delay that its sender asked for, not for one after a failure."""
    return not message.attempts or message.attempts == MAYBE_SEEN


def mature(queue: Queue, message: Message) -> None:
    """A message that was never in line is due: it goes to the end of what is in memory."""
    options = message.envelope.options
    queue.placed += 1
    message.place = queue.placed
    queue.level(PRIORITY_DEFAULT if options is None else options.level).append_due(message)
    if options is not None:
        if options.exact and queue.selective is not None:
            queue.selective.back_in_line(message, options.level)
        queue.will_expire(queue.shared.clocks.expiry(message))


def _expire(queue: Queue, out: Outcome) -> None:
    """Remove what has expired and waits in memory, wherever it stands, and learn when to look again."""
    now_us = out.now_us
    if queue.shared.is_fenced() or (queue.rules.keeps_dropped and queue.shared.is_disk_full()):
        queue.expires_us = now_us + EXPIRY_PAUSE_US
        return
    next_us = count = 0
    for message in list(queue.waiting()):  # A dead letter may come into the same queue.
        options = message.envelope.options
        if options is None or not options.is_timed or message.settled:
            continue
        expires_us = queue.shared.clocks.expiry(message)
        if queue.rules.keeps_dropped and 0 < expires_us:
            # Its owner may be back until then, with the dead letter.
            expires_us = max(expires_us, queue.shared.owned.dead_letters_from_us.get(message.origin.node, 0))
        if 0 < expires_us <= now_us:
            if count == AT_ONCE or out.cost >= COST_MAX:
                queue.expires_us = now_us
                return
            count += 1
            queue.shared.expire(message, out)
        elif expires_us and (not next_us or expires_us < next_us):
            next_us = expires_us
    queue.expires_us = max(next_us, now_us + EXPIRY_PAUSE_US) if next_us else 0


def _watch(queue: Queue, now_us: int) -> None:
    """Ask to be looked at again when the next message is due or expires."""
    if queue.delayed:
        queue.shared.deadlines.watch(queue, queue.delayed[0][0])
    if queue.stored_due_us > now_us:
        queue.shared.deadlines.watch(queue, queue.stored_due_us)
    if queue.expires_us:
        queue.shared.deadlines.watch(queue, queue.expires_us)
