"""Which rows of the queue store this node serves now."""

from qmq.broker.broker import Broker
from qmq.storage.queues.served_rows import ServedRows
from qmq.storage.store import Store


def served_rows(broker: Broker, store: Store) -> ServedRows:
    """The rows of the messages that this node serves now. This may change at the next `await`."""
    queues = broker.queues
    return ServedRows(store.queues, queues.owned.serves, dict(queues.shared.clocks.served_us))
