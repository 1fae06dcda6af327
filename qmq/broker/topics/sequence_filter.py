"""Topic messages of other nodes, each delivered once and in order, whichever way they came.

A node numbers what it sends; so of each incarnation only the highest number delivered is kept. What comes with a lower
one was delivered already, or has been overtaken on another way, and is dropped and counted: topics promise at most
once, and order per origin. Pure.
"""

from qmq.broker.messages.message import Message
from qmq.model.dots import Origin

ORIGINS_MAX = 4096
"""Incarnations that are remembered; at the bound the one heard first is forgotten."""


class SequenceFilter:
    """What was delivered of every origin. `late` counts what was not."""

    def __init__(self) -> None:
        self.late = 0
        self._last: dict[Origin, int] = {}

    def unseen(self, messages: list[Message]) -> list[Message]:
        """Those of one frame that may be delivered now, all of one origin and in its order. They count as delivered."""
        first, last = messages[0], messages[-1]
        highest = self._last.get(first.origin)
        if highest is None:
            if len(self._last) >= ORIGINS_MAX:
                del self._last[next(iter(self._last))]
            highest = 0
        # Numbers of memory-only messages go downwards.
        if highest > first.sequence >= last.sequence and first.origin == last.origin:
            self._last[first.origin] = last.sequence
            return messages
        return [message for message in messages if self._is_unseen(message)]

    def _is_unseen(self, message: Message) -> bool:
        if message.sequence < self._last.get(message.origin, 0):
            self._last[message.origin] = message.sequence
            return True
        self.late += 1
        return False
