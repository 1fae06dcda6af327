"""Records for what an Outcome has collected: moved cursors, failed deliveries and settles.

One call of a client can settle many messages of one queue, and one chunk can have several calls. So these are collected
while the chunk is decided. At its end they become one record for each cursor and queue.
"""

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.fanouts.durable_subscriptions import DurableSubscriptions
from qmq.broker.messages.message import Attempts, Settle
from qmq.broker.queues.queues import Queues
from qmq.broker.send_limits import RECORD_OVERHEAD_BYTES


def collect_records(
    queues: Queues, durable_subscriptions: DurableSubscriptions, out: Outcome, next_sequence: int, now_us: int
) -> int:
    """Add the records to `out`, the first with `next_sequence`; returns the first sequence that is free then."""
    for moved in durable_subscriptions.records(out, next_sequence, now_us):
        out.records.append(moved)
        out.record_bytes += RECORD_OVERHEAD_BYTES * (2 + len(moved.move.done) + len(moved.move.start or ()))
        next_sequence += 1
    for queue, counts in out.attempts.items():
        out.records.append(Attempts(queue, counts, next_sequence, now_us))
        out.record_bytes += RECORD_OVERHEAD_BYTES + 12 * len(counts)
        next_sequence += 1
    out.attempts = {}
    if not out.settles:
        return next_sequence
    for queue, dots in out.settles.items():
        out.records.append(Settle(queue, dots, next_sequence, now_us))
        out.record_bytes += RECORD_OVERHEAD_BYTES + 10 * len(dots)
        queues.paging.pending_deletes.recorded(queue, dots, next_sequence)
        if out.borrowed_settled:
            for dot in dots:
                owner = out.borrowed_settled.get(dot)
                if owner is not None:
                    queues.owned.settled_here.setdefault(owner, {})[dot] = next_sequence
        next_sequence += 1
    out.settles = {}
    return next_sequence
