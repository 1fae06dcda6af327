"""Messages that nobody will take: settled where they were, accepted anew in a dead letter queue, in one breath.

One record says both, so however the log is cut a message is in its queue or among the dead letters, never in both and
never in neither. (While a member of the mesh may be too old to know that record, there are two in one batch.) The
letter carries the sender's headers, and in front of them why it is there. What limited the message's life (`expires`,
`ttl`, `delay`) is left out: it has had its effect.
"""

import re
from collections.abc import Callable
from typing import Final

from qmq.broker.destination import Kind
from qmq.broker.message import Envelope, Message
from qmq.broker.outcome import Outcome
from qmq.dots import Dot

REJECTED: Final = "rejected"
DELIVERY_LIMIT: Final = "delivery-limit"
EXPIRED: Final = "expired"
OVERFLOW: Final = "overflow"

_LEFT_OUT = re.compile(
    rb"^(?:dead-letter-reason|dead-letter-from|dead-letter-id|dead-letter-deliveries"
    rb"|expires|expiration|ttl|delay|AMQ_SCHEDULED_DELAY):[^\n]*\n",
    re.MULTILINE,
)


Publish = Callable[[Envelope, bytes, Outcome, str, Dot | None], int]
"""Accepts a message of this node without asking whether it fits; see `Broker._accept_letter`."""


class DeadLetters:
    """See the module's opening."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish

    def accept(self, message: Message, reason: str, target: str, out: Outcome) -> int:
        """Put a copy of `message` into the queue `target`.

        Returns the sequence of the record by which `message` itself is settled; 0: it is the caller's to settle.
        """
        envelope = message.envelope
        headers = b"dead-letter-reason:%b\ndead-letter-from:%b\n%bdead-letter-deliveries:%d\n%b" % (
            reason.encode(),
            _escaped(envelope.destination),
            # What never got into its queue has no id.
            b"dead-letter-id:%b\n" % _escaped(message.message_id) if message.sequence else b"",
            message.attempts,
            _LEFT_OUT.sub(b"", envelope.headers),
        )
        letter = Envelope(target, Kind.QUEUE, headers, envelope.durable)
        dot = message.dot if message.sequence > 0 else None
        return self._publish(letter, message.body, out, envelope.destination, dot)


def _escaped(text: str) -> bytes:
    """As a STOMP 1.2 header value ("Value Encoding")."""
    text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace(":", "\\c")
    return text.encode()
