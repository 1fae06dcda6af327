"""Restores what earlier runs of this node left unsettled, before anything is served.

In a mesh the queues deliver nothing before peers have reported what they have settled meanwhile and what they hold
(`StartHold`).
"""

from qmq.broker.broker import Broker
from qmq.environment import Environment
from qmq.mesh.peers.dedup_query import replay_ids
from qmq.record_codec import Replay
from qmq.storage.catalog.facts import UNSEEN
from qmq.storage.store import Store


def restore(broker: Broker, replay: Replay, store: Store, environment: Environment) -> None:
    """Bring `broker` to the state that `store` has recovered."""
    recovered = store.recovered
    broker.send_limits.logged_fanouts.update(store.fanouts())
    broker.deletions = recovered.deletions
    broker.durable_subscriptions.restore(recovered.cursors, recovered.given_up, recovered.lost)
    own = {dot for dot in recovered.tombstones if dot.origin.node == broker.origin.node}
    broker.queues.owned.settled_early.update(own)
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
        replay.restore(dot.origin, record)
    replay_ids(store.journal, broker.dedup, broker.deletions, environment.now_us())
