"""How far the search of one queue for expired messages has come.

A queue may have millions of messages in memory. So a search takes several turns, and between two of them the queue
goes on: messages are delivered, come back, and move between the lines of a level. The search finds its place again by
the places of messages, because these only grow along a line. It misses nothing that was in memory when it began and
still waits when it ends: what joins a line later is noted (`QueueState.will_expire`).
"""

from qmq.broker.messages.message import Message
from qmq.broker.queues.state.priority_level import PriorityLevel


class ExpiryScan:
    """`next_us`: when the first of those that were found, or noted, expires; 0: none does."""

    __slots__ = ("next_us", "_is_ready", "_levels", "_index", "_line", "_place")

    def __init__(self, levels: tuple[PriorityLevel, ...]) -> None:
        self.next_us = 0
        self._levels = list(levels)
        """Those that are not finished; the first one is under way."""
        self._place = 0
        """In its `ready`: the place of the last message that was looked at."""
        self._line: object = None
        """The other line under way: the `tail` of the level, or what is delayed. Another object is another line."""
        self._index = 0
        self._is_ready = False
        """Whether the messages that were returned last are of `ready`."""

    def note(self, expires_us: int) -> None:
        """A message waits that expires then; 0: never."""
        if expires_us and (not self.next_us or expires_us < self.next_us):
            self.next_us = expires_us

    def delayed_changed(self) -> None:
        """Delayed messages have changed places. If they are being looked at, some may be missed: look again soon."""
        if not self._levels:
            self.note(1)

    def next(self, delayed: list[tuple[int, int, Message]] | None, most: int) -> list[Message]:
        """The next messages that wait, `most` at the most; some may be settled. None are left when it is empty."""
        while self._levels:
            level = self._levels[0]
            found = level.look_through(self._place, most)
            self._is_ready = bool(found)
            if found:
                self._place = found[-1].place
                return found
            begin = self._begin(level.tail)
            found = (level.tail or [])[begin : begin + most]
            if found:
                self._index += len(found)
                return found
            del self._levels[0]
            self._place = 0
        begin = self._begin(delayed)
        found = [entry[2] for entry in (delayed or [])[begin : begin + most]]
        self._index += len(found)
        return found

    def _begin(self, line: object) -> int:
        if line is not self._line:
            self._line = line
            self._index = 0
        return self._index

    def go_back(self, messages: list[Message]) -> None:
        """These, the last of those that were returned, are to be returned again."""
        if self._is_ready:
            self._place = messages[0].place - 1
        else:
            self._index -= len(messages)
