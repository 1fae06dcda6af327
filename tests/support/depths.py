"""How much really waits in the queues of a node, counted message by message."""

from collections import Counter

from qmq.node.node import Node
from qmq.storage.queues.choice import stored_rows


def depths(node: Node) -> Counter[str]:
    """Queue → messages that the node serves and nobody has settled, in memory or only in its queue store."""
    queues = node.broker.queues
    found: Counter[str] = Counter()
    for owner in queues.owned.serves:
        for row in stored_rows(node.store.queues, owner):
            known = row.dot.sequence in queues.owned.by_origin.get(row.dot.origin, {})
            if not known and not queues.paging.pending_deletes.has(row.queue, row.dot):
                found[row.queue] += 1
    for queue in queues.by_name.values():
        found[queue.name] += queue.held
    return +found
