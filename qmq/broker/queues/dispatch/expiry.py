"""Due times and expiry of one queue.

`deadlines` holds the times at which to look. Messages that are only in the store become due there, and are loaded when
a consumer has room for them.
"""

import heapq

from qmq.broker.consumers.outcome import COST_MAX, Outcome
from qmq.broker.messages.message import MAYBE_SEEN, Message
from qmq.broker.messages.send_options import PRIORITY_DEFAULT
from qmq.broker.queues.dispatch.queue import Queue
from qmq.broker.queues.state.expiry_scan import ExpiryScan

AT_ONCE = 2_000
"""Messages of one queue that expire or become due without a break; the others follow after other queues had a turn."""

LOOKED_MAX = 10_000
"""Messages of one queue that are looked at for their expiry in one turn, some 2 ms."""

LOOKED_AT_ONCE = 1000
"""They are taken from their line together."""

DUE_COST = 5
"""What a message costs that has become due (`Outcome.cost`); one that is looked at costs 1."""

EXPIRY_PAUSE_US = 1_000_000
"""Between two looks through a queue for expired messages; what is about to be delivered is looked at anyway."""


def on_deadline(queue: Queue, out: Outcome) -> None:
    """Some delayed messages are due, or some ready ones have expired: put the first in line, remove the others."""
    now_us = out.now_us
    if out.cost >= COST_MAX:
        # In the next turn, before those that had this one.
        queue.shared.deadlines.watch(queue, now_us - 1)
        return
    delayed = queue.delayed
    if delayed is not None:
        due: list[Message] = []
        while delayed and delayed[0][0] <= now_us and len(due) < AT_ONCE:
            due.append(heapq.heappop(delayed)[2])
        if not delayed:
            queue.delayed = None
        if due and queue.expiry_scan is not None:
            queue.expiry_scan.delayed_changed()
        out.cost += DUE_COST * len(due)
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
    """Remove what has expired and waits in memory, wherever it stands, and learn when to look again.

    What is not reached in this turn is looked at in the next one.
    """
    now_us = out.now_us
    if queue.shared.is_fenced() or (queue.rules.keeps_dropped and queue.shared.is_disk_full()):
        queue.expires_us = now_us + EXPIRY_PAUSE_US
        return
    scan = queue.expiry_scan
    if scan is None:
        scan = queue.expiry_scan = ExpiryScan(queue.levels)
    looked = count = 0
    while messages := scan.next(queue.delayed, LOOKED_AT_ONCE):
        for index, message in enumerate(messages):
            options = message.envelope.options
            if options is None or not options.is_timed or message.settled:
                continue
            expires_us = _expiry(queue, message)
            if not 0 < expires_us <= now_us:
                scan.note(expires_us)
                continue
            if count == AT_ONCE or out.cost >= COST_MAX:
                scan.go_back(messages[index:])
                queue.expires_us = now_us
                return
            count += 1
            queue.shared.expire(message, out)
        looked += len(messages)
        out.cost += len(messages)
        if looked >= LOOKED_MAX:
            queue.expires_us = now_us
            return
    queue.expiry_scan = None
    queue.expires_us = max(scan.next_us, now_us + EXPIRY_PAUSE_US) if scan.next_us else 0


def _expiry(queue: Queue, message: Message) -> int:
    """When this node gives up `message`; 0: never."""
    expires_us = queue.shared.clocks.expiry(message)
    if expires_us and queue.rules.keeps_dropped:
        # Its owner may be back until then, with the dead letter.
        return max(expires_us, queue.shared.owned.dead_letters_from_us.get(message.origin.node, 0))
    return expires_us


def _watch(queue: Queue, now_us: int) -> None:
    """Ask to be looked at again when the next message is due or expires."""
    if queue.delayed:
        queue.shared.deadlines.watch(queue, queue.delayed[0][0])
    if queue.stored_due_us > now_us:
        queue.shared.deadlines.watch(queue, queue.stored_due_us)
    if queue.expires_us:
        queue.shared.deadlines.watch(queue, queue.expires_us)
