"""What a message with a dedup id adds to the known ids, whether a client sent it here or a peer took it over a link."""

from qmq.broker.messages.dedup import Dedup, is_dead_letter, is_retry
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Message
from qmq.model.dots import Dot


def learn_id_of(message: Message, dedup: Dedup, now_us: int) -> Dot | None:
    """Remember the dedup id of `message`; the dot that had it before, if `message` is a retry in a queue."""
    envelope = message.envelope
    key = envelope.key
    assert key is not None
    known = dedup.find(key, now_us)
    is_queue = envelope.kind is DestinationKind.QUEUE
    dedup.learn(key, message.dot, now_us, "" if is_queue else envelope.destination)
    if not is_queue or not envelope.durable or not is_retry(envelope.headers):
        return None
    if is_dead_letter(envelope.headers):
        return None
    dedup.learn_retry(key, message.origin.node, message.timestamp_us)
    return known
