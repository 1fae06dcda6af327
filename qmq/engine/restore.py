"""Restores what earlier runs of this node left unsettled, before anything is served.

In a mesh the queues deliver nothing before peers have reported what they have settled meanwhile and what they hold
(`StartHold`).
"""

from qmq.engine.parts import EngineParts
from qmq.storage.catalog.facts import UNSEEN


def restore(engine: EngineParts) -> None:
    """Bring the broker to the state that the store has recovered."""
    broker, store = engine.broker, engine.store
    recovered = store.recovered
    broker.send_limits.logged_fanouts.update(store.fanouts())
    broker.deletions = recovered.deletions
    broker.durable_subscriptions.restore(recovered.cursors, recovered.given_up, recovered.lost)
    own = {dot for dot in recovered.tombstones if dot.origin.node == broker.origin.node}
    broker.queues.owned.settled_early.update(own)
    broker.queues.owned.has_stored = not store.queues.is_empty(broker.origin.node)
    paging = broker.queues.paging
    if not recovered.messages:
        paging.starts_with(recovered.vector)
    for queue, dots in recovered.settled.items():
        paging.settled_before(queue, dots)
    paging.attempts.update(recovered.attempts)
    if UNSEEN in store.catalog.facts():
        paging.is_unseen = True
        store.catalog.set_facts({UNSEEN: None})
    for dot, record in recovered.messages:
        engine.replay.restore(dot.origin, record)
