"""Which consumer has a message group, or would have it when the group is free.

The choice follows from the names of the consumers (`rendezvous`), so nothing is kept but a cache of it.
"""

from typing import Final

from qmq.broker.consumers.borrower import Borrower
from qmq.broker.consumers.subscription import Subscription
from qmq.broker.messages.message import Message
from qmq.broker.queues.selective.consumers import Consumers
from qmq.broker.queues.selective.outstanding import Outstanding
from qmq.broker.queues.selective.rendezvous import accepts, choose
from qmq.broker.queues.state.queue_state import QueueState

CHOICES_MAX: Final = 4096
"""Groups whose choice is remembered."""


class GroupChoice:
    """The groups of one queue."""

    __slots__ = ("_choices", "_consumers", "_outstanding", "_queue")

    def __init__(self, queue: QueueState, consumers: Consumers, outstanding: Outstanding) -> None:
        self._queue = queue
        self._consumers = consumers
        self._outstanding = outstanding
        self._choices: dict[bytes, Subscription | Borrower] = {}

    def forget(self) -> None:
        """The consumers have changed."""
        self._choices.clear()

    def holder_of(self, group: bytes, message: Message) -> Subscription | Borrower | None:
        """The consumer that may have this message of `group`, with room or without; None: none now."""
        held = self._outstanding.groups.get(group)
        if held is not None:
            if held.epoch != self._outstanding.epoch and not self._consumers.selectors:
                chosen = self._choose(group, message)
                if held.holder != (chosen.key if isinstance(chosen, Borrower) else chosen):
                    return None
                held.epoch = self._outstanding.epoch
            holder = held.holder
            taker = (self._queue.borrowers or {}).get(holder) if isinstance(holder, str) else holder
            if taker is None or accepts(taker, message):
                return taker
            held.was_unwanted = True
            return None
        if self._consumers.selectors:
            return choose(self._queue, group, message)
        return self._choose(group, message)

    def _choose(self, group: bytes, message: Message) -> Subscription | Borrower | None:
        """The one of all consumers that the group goes to when it is free; none has a selector."""
        chosen = self._choices.get(group)
        if chosen is None:
            chosen = choose(self._queue, group, message)
            if chosen is not None:
                if len(self._choices) >= CHOICES_MAX:
                    self._choices.clear()
                self._choices[group] = chosen
        return chosen
