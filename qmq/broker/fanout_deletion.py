"""Deleting a fanout: up to a vector, on every node, as one record."""

from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import Eviction, Outcome
from qmq.broker.messages.message import Deleted
from qmq.broker.send_limits import RECORD_OVERHEAD_BYTES
from qmq.errors import Refused
from qmq.model.deletions import DELETIONS_MAX, Deletion
from qmq.model.dots import Dot


def delete(broker: Broker, destination: str, now_us: int, out: Outcome) -> None:
    """Delete all messages of the fanout that this node has, and its durable subscriptions, on every node.

    What this node does not have yet, and what is sent from now on, stays. Current subscribers are disconnected.
    Raises Refused when too many deletions are remembered.
    """
    if broker.deletions.count >= DELETIONS_MAX:
        raise Refused(
            "too-many-deletions", f"The node holds its maximum of {DELETIONS_MAX} deletions; try again later."
        )
    before = {origin: last for origin, last in broker.received().items() if last}
    before[broker.origin] = broker.next_sequence - 1
    deletion = Deletion(destination, Dot(broker.origin, broker.next_sequence), now_us, before)
    out.records.append(Deleted(destination, before, broker.next_sequence, now_us))
    out.record_bytes += RECORD_OVERHEAD_BYTES * (2 + len(before))
    broker.next_sequence += 1
    broker.durable_subscriptions.delete_all(destination, now_us, out)
    accept(broker, deletion, out)


def accept(broker: Broker, deletion: Deletion, out: Outcome) -> None:
    """A fanout was deleted, here or on another node."""
    if not broker.deletions.add(deletion):
        return
    destination = deletion.destination
    broker.send_limits.logged_fanouts.discard(destination)
    broker.dedup.forget_fanout(destination, deletion.before)
    why = Refused("destination-deleted", f"{destination} was deleted. Subscribe again for what is sent from now on.")
    out.evictions += [
        Eviction(subscription.session, why, subscription.id)
        for subscription in broker.subscriptions.fanouts.get(destination, ())
    ]
    out.deletions.append(deletion)
