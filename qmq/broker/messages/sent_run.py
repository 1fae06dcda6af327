"""Messages of one sender that differ in their bodies only, and are in no journal: one object, until each is needed.

A topic message of a run that only plain subscribers hear is its body, its number, and what it shares with the others.
"""

from qmq.broker.messages.message import Envelope, Message
from qmq.model.dots import Origin


class SentRun:
    """At least one message. They are numbered from -`first` downwards; `tails` belongs to `qmq.gateways.encode`."""

    __slots__ = ("_messages", "bodies", "envelope", "first", "origin", "tails", "timestamp_us")

    def __init__(self, envelope: Envelope, bodies: list[bytes], origin: Origin, first: int, timestamp_us: int) -> None:
        self.envelope = envelope
        self.bodies = bodies
        self.origin = origin
        self.first = first
        self.timestamp_us = timestamp_us
        self.tails: list[bytes] | None = None
        self._messages: list[Message] | None = None

    @property
    def messages(self) -> list[Message]:
        """Each of them; made when they are first asked for."""
        if self._messages is None:
            envelope, origin, timestamp_us = self.envelope, self.origin, self.timestamp_us
            self._messages = [
                Message(envelope, body, origin, -number, timestamp_us)
                for number, body in enumerate(self.bodies, self.first)
            ]
        return self._messages
