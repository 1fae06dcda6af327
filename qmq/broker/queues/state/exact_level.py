"""A level whose messages are in the order of their exact numbers (`qmq.model.levels`): those of beanstalkd.

As in any level, memory holds only the first messages, and the queue store the others. What differs: a message that was
just accepted may belong before others that wait, in memory or in the store.

A message's `place` is its exact number, followed by its place in the queue, as one integer. So places are the order of
delivery here, too. While the level is `behind`, memory has everything up to the place `bound`, and what belongs there
is in `ready`. Everything else waits in `tail` until a page of the store reaches beyond it. What was accepted since
belongs behind all that the store has of its number: until that is read, its place is negative. What came back has its
place.
"""

from bisect import bisect
from collections import deque
from collections.abc import Sequence
from typing import Final

from qmq.broker.messages.message import Message
from qmq.broker.queues.state.priority_level import PriorityLevel, is_spare, place_of
from qmq.model.dots import Dot, Vector

PLACE_BITS: Final = 56
_PLACE_MASK: Final = (1 << PLACE_BITS) - 1


class ExactLevel(PriorityLevel):
    """See the module's opening."""

    __slots__ = ("bound",)

    def __init__(self, priority: int, behind: bool) -> None:
        super().__init__(priority, behind)
        self.bound = 0

    def append(self, message: Message) -> None:
        self._put(message, is_new=True)

    def append_due(self, message: Message) -> None:
        self._put(message, is_new=True)

    def push_back(self, message: Message) -> None:
        self._put(message, is_new=False)

    def _put(self, message: Message, *, is_new: bool) -> None:
        _place(message, abs(message.place))
        if not self.behind or message.place <= self.bound:
            self._insert(message)
            return
        if is_new:
            message.place = -message.place
        if self.tail is None:
            self.tail = [message]
        else:
            self.tail.append(message)

    def _insert(self, message: Message) -> None:
        ready = self.ready_of_its_own()
        if not ready or ready[-1].place < message.place:
            ready.append(message)
        else:
            super().push_back(message)

    def take_page(self, messages: Sequence[Message], placed: int, after: Dot | None, exact: int) -> int:
        reached: list[Message] = []
        for message in messages:
            placed += 1
            _place(message, placed)
            reached.append(message)
        self.after, self.after_exact = after, exact
        self.bound = max(self.bound, exact << PLACE_BITS | placed)
        tail: list[Message] = []
        for message in self.tail or ():
            if message.place > 0:
                is_reached = message.place <= self.bound
            else:
                is_reached = exact_of(message) < exact
                if is_reached:
                    placed += 1
                    _place(message, placed)
            (reached if is_reached else tail).append(message)
        self.tail = tail or None
        self._merge(reached)
        return placed

    def number_tail(self, placed: int) -> int:
        for message in self.tail or ():
            if message.place < 0:
                placed += 1
                _place(message, placed)
        return placed

    def _merge(self, messages: Sequence[Message]) -> None:
        """Insert many at once: to make room in a long `ready` for each of them would take a quadratic time."""
        if messages:
            self.ready = deque(sorted((*self.ready, *messages), key=place_of))

    def close_gap(self) -> None:
        self._merge(self.tail or ())
        self.tail = None
        self.behind = False
        self.after = None
        self.after_exact = self.bound = 0

    def rewind(self) -> None:
        self.tail = [message for message in (*self.ready, *(self.tail or ())) if not message.settled] or None
        self.ready = deque()
        self.behind = True
        self.after = None
        self.after_exact = self.bound = 0

    def evict(self, covered: Vector, keep: int, is_cold: bool) -> list[Message]:
        removed: list[Message] = []
        tail: list[Message] = []
        if len(self.ready) > keep:
            waiting = [message for message in self.ready if not message.settled]
            removed = [message for message in waiting[keep:] if is_spare(message, covered, is_cold)]
            if removed:
                # What follows the first of these waits in `tail`, until the store has been read beyond it again.
                first = removed[0].place
                tail = [one for one in waiting if one.place > first and not is_spare(one, covered, is_cold)]
                self.ready = deque([one for one in waiting if one.place < first])
                self.bound = min(self.bound, first - 1) if self.behind else first - 1
        self.evict_tail(covered, is_cold, removed, tail)
        if removed:
            self.wait_again(tail)
            self.let_go(removed)
        self.tail = (tail or None) if self.behind else None
        return removed

    def wait_again(self, messages: list[Message]) -> None:
        for message in messages:
            if not message.attempts:
                message.place = -abs(message.place)

    def take_oldest(self) -> Message | None:
        ready = self.ready
        while ready and ready[-1].settled:
            ready.pop()
        if not ready:
            return None
        # The last number is the lowest priority.
        index = bisect(ready, exact_of(ready[-1]) << PLACE_BITS, key=place_of)
        while ready[index].settled:
            index += 1
        message = ready[index]
        del ready[index]
        return message

    def let_go(self, messages: list[Message]) -> None:
        exact = min([exact_of(message) for message in messages])
        if self.behind and exact > self.after_exact:
            return
        first = [message for message in messages if exact_of(message) == exact]
        origin = first[0].origin
        after: Dot | None = None
        # The order of the store among origins need not be that of the level: of several, the number is read again.
        if all(message.origin == origin for message in first):
            after = Dot(origin, min([message.sequence for message in first]) - 1)
            if self.behind and exact == self.after_exact:
                here = self.after
                after = min(after, here) if here is not None and here.origin == origin else None
        self.after, self.after_exact = after, exact
        self.behind = True


def _place(message: Message, place: int) -> None:
    message.place = exact_of(message) << PLACE_BITS | (place & _PLACE_MASK)


def exact_of(message: Message) -> int:
    """The exact number of a message; 0: it has none."""
    options = message.envelope.options
    return 0 if options is None else options.exact
