"""Which retained values of topics one connected peer has not been sent.

A value that a client sets travels to every peer as the message that it is, in order with the other topic messages.
What is left for here: all values when a link begins, those whose message found no room on the link, and those of
other origins that the peer does not hear from themselves. Of these only the present value counts, so nothing but
names waits: a slow link costs at most one entry per topic.

Surprising: a value whose message is on its way is not sent from here as well (`sent`), because that could overtake the
messages before it. Only when such messages were dropped may that happen, and then they are late news anyway. Pure;
`wake` is called when there is something to take.
"""

from bisect import bisect_right
from collections.abc import Callable

from qmq.broker.messages.message import Message, Retain
from qmq.model.dots import Origin

SCAN_MAX = 4096
"""Names looked at for one turn of the link."""

VALUE_BYTES_MAX = 15 << 20
"""What fits into one frame of a link with all that belongs to it; a larger value stays on the node that took it, as
a topic message of that size does."""


class RetainedValue:
    """What is kept of one topic: its last message, or the mark that it was removed; and when that happened here."""

    __slots__ = ("change", "message")

    def __init__(self, message: Message, change: int) -> None:
        self.message = message
        self.change = change

    @property
    def is_removed(self) -> bool:
        return self.message.envelope.retain is Retain.REMOVE


class RetainedTable:
    """Values and removal marks by the name of their topic."""

    def __init__(self) -> None:
        self.values: dict[str, RetainedValue] = {}
        self.names: list[str] = []
        """All names in `values`, sorted."""


class RetainedSync:
    """One peer. Nothing is sent before `follows` was called once."""

    __slots__ = ("_changed", "_direct", "_only", "_position", "_retained", "_sent", "_wake")

    def __init__(self, retained: RetainedTable, wake: Callable[[], None]) -> None:
        self._retained = retained
        self._wake = wake
        self._changed: dict[str, None] = {}
        # Origins that the peer follows at their own node; None until it has said so.
        self._direct: frozenset[Origin] | None = None
        # The walk over all names: where it is (None: over), and whose values it is about (None: all).
        self._position: str | None = None
        self._only: frozenset[Origin] | None = None
        # Names whose message has gone out since the walk began.
        self._sent: dict[str, None] = {}

    @property
    def is_due(self) -> bool:
        """Whether `take` may have something."""
        return self._direct is not None and (bool(self._changed) or self._position is not None)

    def follows(self, direct: frozenset[Origin]) -> None:
        """The peer names the origins that it follows at their own nodes: no other node need send it their values."""
        before = self._direct
        self._direct = direct
        if before is not None and before <= direct:
            return
        # Recent values of origins that it does not follow any more may not have reached it.
        self._only = None if before is None or self._position is not None else before - direct
        self._position = ""
        self._wake()

    def mark(self, name: str) -> None:
        """The value of `name` must still be sent to the peer."""
        self._changed[name] = None
        self._wake()

    def pass_on(self, name: str, origin: Origin) -> None:
        """As `mark`, for a value of `origin` that came from another peer."""
        if self._direct is None or origin not in self._direct:
            self.mark(name)

    def sent(self, name: str) -> None:
        """A message that sets or removes the value of `name` is on its way to the peer."""
        self._changed.pop(name, None)
        if self._position is not None:
            self._sent[name] = None

    def take(self, bytes_max: int) -> list[Message]:
        """Values and marks to send now, about `bytes_max`; may be none although more is due."""
        found: list[Message] = []
        left = bytes_max
        values = self._retained.values
        while self._changed and left > 0:
            name, _ = self._changed.popitem()
            value = values.get(name)
            if value is not None:
                left = self._add(value.message, found, left)
                if left < 0:
                    self._changed[name] = None
        if self._position is not None and left > 0:
            self._walk(found, left)
        return found

    def _walk(self, found: list[Message], left: int) -> None:
        names, values = self._retained.names, self._retained.values
        assert self._position is not None
        index = bisect_right(names, self._position)
        end = min(len(names), index + SCAN_MAX)
        while index < end and left > 0:
            name = names[index]
            message = values[name].message
            if name not in self._sent and self._is_wanted(message.origin):
                left = self._add(message, found, left)
                if left < 0:
                    return
            self._position = name
            index += 1
        if index >= len(names):
            self._position = None
            self._sent = {}

    def _add(self, message: Message, found: list[Message], left: int) -> int:
        """Take `message`; returns how many bytes are left then, below 0 when it must wait for the next turn."""
        envelope = message.envelope
        size = len(envelope.destination) + len(envelope.headers) + len(message.body)
        if size > VALUE_BYTES_MAX:
            return left
        if found and size > left:
            return -1
        found.append(message)
        return left - size if size < left else 0

    def _is_wanted(self, origin: Origin) -> bool:
        if self._direct is not None and origin in self._direct:
            return False
        return self._only is None or origin in self._only
