"""What a message with a dedup id adds to the known ids, whether a client sent it here or a peer took it over a link.

And what known ids leave of a SEND that is repeated: a fanout and each of its copies have a key of their own.
"""

from collections.abc import Mapping

from qmq.broker.messages.dedup import Dedup, is_dead_letter, is_retry
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope, Message
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


def keys_of(envelope: Envelope) -> list[bytes]:
    """The keys of all that a SEND in this envelope appends: of the message itself, if it is kept, and of its copies."""
    keys = [copy.key for copy in envelope.copies if copy.key is not None]
    if envelope.key is not None and (envelope.kind is DestinationKind.FANOUT or not envelope.copies):
        keys.insert(0, envelope.key)
    return keys


def missing_of(envelope: Envelope, dedup: Dedup, now_us: int, elsewhere: Mapping[bytes, bool]) -> Envelope | None:
    """The envelope of what a SEND in this one, which has a key, must still append. None: it is a duplicate.

    Left out is what this node knows by its key, and what only other nodes have (`elsewhere`): a queue may have been
    purged since the first attempt, or bound. A fanout's message that is there leaves copies without a record.
    """

    def is_missing(key: bytes | None) -> bool:
        return key is None or not (elsewhere.get(key, False) or dedup.find(key, now_us) is not None)

    if not envelope.copies:
        return envelope if is_missing(envelope.key) else None
    copies = [copy for copy in envelope.copies if is_missing(copy.key)]
    if envelope.kind is DestinationKind.FANOUT:
        if is_missing(envelope.key):
            return envelope if len(copies) == len(envelope.copies) else envelope.with_copies(copies)
        envelope = Envelope(envelope.destination, DestinationKind.EXCHANGE, envelope.headers, durable=False)
    elif len(copies) == len(envelope.copies):
        return envelope
    return envelope.with_copies(copies) if copies else None
