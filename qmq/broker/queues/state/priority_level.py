"""The messages of one level of one queue (`qmq.model.levels`), of which memory holds only the first.

    ready ─────────▶ the next to be delivered, in order
    (queue store) ─▶ those after them, when the level is `behind`: loaded page by page from `after` on
    tail ──────────▶ accepted since, and not in the store before the next checkpoint

While a level is behind, what is accepted waits in `tail`; when the store has been read to its end, `tail` follows
`ready` and the level is whole again. A checkpoint may take messages out of memory at either end of the gap, because
from then on the store has them. A message is loaded once: rows that are in memory, or settled since the last
checkpoint, are known by their dots and passed over.
"""

from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from qmq.broker.messages.message import MAYBE_SEEN, Message
from qmq.model.dots import Dot, Vector

NOTHING_READY: Final[deque[Message]] = deque(maxlen=0)


class PriorityLevel:
    """`after`: rows of the store beyond this dot are not in memory; None: all of them. A level with exact numbers has
    that of `after` in `after_exact`. The module `exact_level` has such levels."""

    __slots__ = ("after", "after_exact", "behind", "tail", "priority", "ready")

    def __init__(self, priority: int, behind: bool) -> None:
        self.priority = priority
        self.behind = behind
        self.after: Dot | None = None
        self.after_exact = 0
        # A million queues may have one message each, in `tail`: they share an empty `ready` that takes nothing.
        self.ready: deque[Message] = NOTHING_READY if behind else deque()
        """In order of `place`; settled messages may stand in it until they are reached."""
        self.tail: list[Message] | None = None

    def append(self, message: Message) -> None:
        """A message that was just accepted."""
        if not self.behind:
            self.ready.append(message)
        elif self.tail is None:
            self.tail = [message]
        else:
            self.tail.append(message)

    def append_due(self, message: Message) -> None:
        """A message of memory that has become due: it goes to the end of what is in memory."""
        self.ready_of_its_own().append(message)

    def push_back(self, message: Message) -> None:
        """Put a message back where it was in the order: at or near the head."""
        ready = self.ready_of_its_own()
        if not ready or message.place < ready[0].place:
            ready.appendleft(message)
        else:
            ready.insert(self._position(message.place), message)

    def _position(self, place: int) -> int:
        """Index in `ready` for what belongs behind its head: near it, only other messages that came back are before."""
        ready = self.ready
        low, high = 1, 2
        while high < len(ready) and ready[high].place < place:
            low, high = high + 1, 2 * high
        return bisect(ready, place, low, min(high, len(ready)), key=place_of)

    def index_after(self, place: int) -> int:
        """Index of the first message in `ready` behind `place`."""
        ready = self.ready
        return 0 if not ready or ready[0].place > place else bisect(ready, place, key=place_of)

    def look_through(self, after: int, most: int) -> list[Message]:
        """The first messages in `ready` behind the place `after`, in order, `most` at the most. Settled ones leave it.

        A deque is slow in its middle, but is turned quickly.
        """
        ready = self.ready
        begin = self.index_after(after)
        ready.rotate(-begin)
        found = [ready.popleft() for _ in range(min(most, len(ready) - begin))]
        ready.extendleft([message for message in reversed(found) if not message.settled])
        ready.rotate(begin)
        return found

    def ready_bytes(self) -> int:
        """Of bodies and headers in `ready`; all are looked at."""
        return sum([len(message.body) + len(message.envelope.headers) for message in self.ready])

    def let_go(self, messages: list[Message]) -> None:
        """These leave memory: the store must be read from before all of them.

        It has an order among origins that need not be the level's, so with several of them it is read from its
        beginning; what is in memory is passed over.
        """
        origin = messages[0].origin
        first = min([message.sequence for message in messages]) - 1
        after: Dot | None = Dot(origin, first)
        # Mostly they have one object, and comparing two of them costs as much as all else here.
        if any([message.origin is not origin and message.origin != origin for message in messages]):
            after = None
        elif self.behind:
            here = self.after
            after = Dot(origin, min(first, here.sequence)) if here is not None and here.origin == origin else None
        self.after = after
        self.behind = True

    def evict(self, covered: Vector, keep: int, is_cold: bool) -> list[Message]:
        """Let go of what the store has, but for the first `keep`; see `is_spare`. Returns it.

        What is behind that and not in the store follows it: what was accepted since, and memory-only messages.
        """
        tail: list[Message] = []
        removed: list[Message] = []
        if len(self.ready) > keep:
            waiting = list(self.ready)
            stay = waiting[:keep]
            for message in waiting[keep:]:
                if is_spare(message, covered, is_cold):
                    removed.append(message)
                elif removed and (message.sequence < 0 or message.sequence > covered.get(message.origin, 0)):
                    tail.append(message)
                elif not message.settled:
                    stay.append(message)
            if removed:
                self.ready = deque(stay)
        self.evict_tail(covered, is_cold, removed, tail)
        if removed:
            self.let_go(removed)
        self.tail = (tail or None) if self.behind else None
        return removed

    def evict_tail(self, covered: Vector, is_cold: bool, removed: list[Message], tail: list[Message]) -> None:
        """Add each unsettled message of `tail` to one of the two lists."""
        for message in self.tail or ():
            if is_spare(message, covered, is_cold):
                removed.append(message)
            elif not message.settled:
                tail.append(message)

    def keep_only(self, stays: Callable[[Message], bool]) -> None:
        """Forget what is in memory, but for that."""
        if self.ready:
            self.ready = deque([message for message in self.ready if stays(message)])
        self.tail = [message for message in self.tail or () if stays(message)] or None

    def forget_settled(self, most: int) -> Iterator[None]:
        """Forget settled messages that stand here, after a look at `most` in each step. Between two steps the level may
        change in any way; what joins it meanwhile may be missed.
        """
        place = 0
        while found := self.look_through(place, most):
            place = found[-1].place
            yield
        begin = 0
        while self.tail is not None and begin < len(self.tail):
            waiting = [message for message in self.tail[begin : begin + most] if not message.settled]
            self.tail[begin : begin + most] = waiting
            begin += len(waiting)
            self.tail = self.tail or None
            yield

    def take_page(self, messages: Sequence[Message], placed: int, after: Dot | None, exact: int) -> int:
        """The next messages from the store, in order, and how far it has been read. Return `placed`, the last place in
        the queue that is taken."""
        ready = self.ready_of_its_own()
        for message in messages:
            placed += 1
            message.place = placed
            ready.append(message)
        self.after = after
        return placed

    def number_tail(self, placed: int) -> int:
        """Give places behind `placed` to what was accepted since. Return the last one."""
        for message in self.tail or ():
            placed += 1
            message.place = placed
        return placed

    def wait_again(self, messages: list[Message]) -> None:
        """These were ready, and wait in `tail` now, while the store is read up to them."""

    def take_oldest(self) -> Message | None:
        """Take the message out that is ready and has waited longest among those of the lowest priority."""
        ready = self.ready
        while ready:
            message = ready.popleft()
            if not message.settled:
                return message
        return None

    def rewind(self) -> None:
        """The store is to be read from the beginning of this level."""
        self.behind = True
        self.after = None

    def close_gap(self) -> None:
        """The store has been read to its end: what was accepted since follows."""
        self.behind = False
        self.after = None
        self.ready_of_its_own().extend(self.tail or ())
        self.tail = None

    def ready_of_its_own(self) -> deque[Message]:
        """`ready`, to put something in."""
        if self.ready is NOTHING_READY:
            self.ready = deque()
        return self.ready


def place_of(message: Message) -> int:
    """Where in its queue a message stands."""
    return message.place


def is_spare(message: Message, covered: Vector, is_cold: bool) -> bool:
    """Whether the store can give `message` back as it is in memory.

    One that came due in memory is found again only when the queue is counted again (`is_cold`).
    """
    if message.settled or message.sequence < 0:
        return False
    if message.attempts and message.attempts != MAYBE_SEEN:
        return False
    if message.sequence > covered.get(message.origin, 0):
        return False
    options = message.envelope.options
    return is_cold or options is None or not options.delay_us
