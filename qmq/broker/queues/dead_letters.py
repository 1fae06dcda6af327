"""Messages that nobody will take: settled where they were, accepted anew in a dead letter queue, in one breath.

One record says both, so however the log is cut a message is in its queue or among the dead letters, never in both and
never in neither. The letter carries the sender's headers, and in front of them why it is there. What limited the
message's life (`expires`, `ttl`, `delay`) is left out: it has had its effect. What its new queue gives to messages that
do not say comes last.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.destination import DestinationKind, is_pattern, kind_of
from qmq.broker.messages.message import Envelope, Message
from qmq.dots import Dot
from qmq.errors import Refused

REJECTED: Final = "rejected"
DELIVERY_LIMIT: Final = "delivery-limit"
EXPIRED: Final = "expired"
OVERFLOW: Final = "overflow"

_LEFT_OUT = re.compile(
    rb"^(?:dead-letter-reason|dead-letter-from|dead-letter-id|dead-letter-deliveries"
    rb"|expires|expiration|ttl|delay|AMQ_SCHEDULED_DELAY):[^\n]*\n",
    re.MULTILINE,
)

_STAYS_BEHIND = re.compile(
    rb"^(?:expires|expiration|ttl|delay|AMQ_SCHEDULED_DELAY"
    rb"|dedup-id|qmq-dedup-id|_AMQ_DUPL_ID|dedup-sender|dedup-retry):[^\n]*\n",
    re.MULTILINE,
)
_SOURCE = re.compile(rb"^dead-letter-from:([^\n]*)\n", re.MULTILINE)
_ESCAPE = re.compile(r"\\[nrc\\]")
_CHARACTERS = {r"\n": "\n", r"\r": "\r", r"\c": ":", "\\\\": "\\"}

Publish = Callable[[Envelope, bytes, Outcome, str, Dot | None], int]
"""Accepts a message of this node without asking whether it fits; see `Broker._accept_letter`."""


LETTER_OVERHEAD_BYTES: Final = 4096
"""More than a letter says of itself, and its record beside it, with the longest names."""


def letter_bytes_of(message: Message) -> int:
    """What the letter of `message` takes at most."""
    return len(message.body) + len(message.envelope.headers) + LETTER_OVERHEAD_BYTES


class DeadLetters:
    """See the module's opening."""

    def __init__(self, publish: Publish, defaults_of: Callable[[str], Mapping[str, str]]) -> None:
        self._publish = publish
        self._defaults_of = defaults_of

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
            max(message.attempts, 0),
            _LEFT_OUT.sub(b"", envelope.headers),
        )
        return self._accept(message, target, headers, out)

    def move(
        self, message: Message, target: str, due_us: int, expires_us: int, out: Outcome, *, is_redrive: bool
    ) -> int:
        """Put `message` into the queue `target`, with its headers; returns the same as `accept`.

        It is due at `due_us` and expires at `expires_us`, 0: at once and never. A redriven message loses what its dead
        letter said. The dedup id stays behind: with it the copy could count as an attempt of the SEND that had the id.
        """
        headers = _STAYS_BEHIND.sub(b"", message.envelope.headers)
        if is_redrive:
            headers = _LEFT_OUT.sub(b"", headers)
        if due_us > out.now_us:
            headers = b"delay:%d\n%b" % ((due_us - out.now_us) // 1000 + 1, headers)
        if expires_us:
            headers = b"expires:%d\n%b" % (expires_us // 1000, headers)
        return self._accept(message, target, headers, out)

    def _accept(self, message: Message, target: str, headers: bytes, out: Outcome) -> int:
        envelope = message.envelope
        for name, value in self._defaults_of(target).items():
            line = b"%b:" % name.encode()
            if not headers.startswith(line) and b"\n" + line not in headers:
                headers += b"%b%b\n" % (line, value.encode())
        letter = Envelope(target, DestinationKind.QUEUE, headers, envelope.durable)
        dot = message.dot if message.sequence > 0 else None
        return self._publish(letter, message.body, out, envelope.destination, dot)


def source_of(message: Message) -> str:
    """The queue that a dead letter comes from; "" if `message` is no dead letter of a queue.

    A node of an earlier version let senders set the header, so it may be anything.
    """
    found = _SOURCE.search(message.envelope.headers)
    if found is None:
        return ""
    source = _ESCAPE.sub(lambda escape: _CHARACTERS[escape[0]], found[1].decode("utf-8", "replace"))
    try:
        is_queue = kind_of(source) is DestinationKind.QUEUE and not is_pattern(source)
    except Refused:
        return ""
    return source if is_queue else ""


def _escaped(text: str) -> bytes:
    """As a STOMP 1.2 header value ("Value Encoding")."""
    text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace(":", "\\c")
    return text.encode()
