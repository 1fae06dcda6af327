"""Purge, move and redrive: an operator settles the messages of a queue that wait, one page at a time.

The caller passes pages: messages of the queue store, in its order, and messages that are only in memory. Messages that
are with a consumer, here or on a peer, stay with it. One record settles a moved message and accepts it in its new
queue, as for a dead letter. So wherever the journal is cut, the message is in exactly one of the two queues.
"""

from collections.abc import Callable, Iterator
from heapq import heapify
from typing import Final

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope, Message
from qmq.broker.queues.dead_letters import source_of
from qmq.broker.queues.dispatch.queue import Queue
from qmq.broker.queues.queues import Queues
from qmq.errors import Refused

NO_SOURCE: Final = "no-source"

FORGOTTEN_AT_ONCE: Final = 1_000
"""In one turn, less than a millisecond."""

CheckSend = Callable[[Envelope, int], None]
"""Raises Refused when a message with this envelope and so many bytes is not accepted now."""


class BulkSettlement:
    """See the module's opening. Call only while this node may deliver what it serves (`Queues.held` is not set)."""

    def __init__(self, queues: Queues, check_send: CheckSend) -> None:
        self._queues = queues
        self._check_send = check_send

    def waiting(self, queue: str, messages: list[Message]) -> list[Message]:
        """Those of `messages` that wait in `queue`, in the same order.

        A message of the store that is in memory, too, is returned as it is in memory.
        """
        owned, paging = self._queues.owned, self._queues.paging
        found: list[Message] = []
        for message in messages:
            dot = message.dot
            known = owned.by_origin.get(dot.origin, {}).get(dot.sequence)
            if known is None and dot.sequence > 0:
                is_elsewhere = dot.origin.node not in owned.serves or dot in owned.elsewhere
                if is_elsewhere or paging.is_settled(queue, dot):
                    continue
            one = message if known is None else known
            if not one.settled and not any([dot in lent for lent in owned.lent.values()]):
                found.append(one)
        # Very many may be in flight, and often one is asked about: hardly any of them has its number.
        numbers = {one.sequence for one in found}
        deliveries = self._queues.in_flight_of(queue)
        consumed = {one.message.dot for one in deliveries if one.message.sequence in numbers}
        return [one for one in found if one.dot not in consumed] if consumed else found

    def in_memory(self, queue: str) -> list[Message]:
        """The messages of `queue` that wait in memory, the highest priority first; some may be settled."""
        known = self._queues.by_name.get(queue)
        return [] if known is None else known.waiting()

    def purge(self, messages: list[Message], out: Outcome) -> int:
        """Settle these `waiting` messages; returns how many."""
        return sum([self._queues.redelivery.remove(message, None, out) for message in messages])

    def move(self, messages: list[Message], target: str, out: Outcome) -> tuple[int, Refused | None]:
        """Move these `waiting` messages of one queue, in order, to the queue `target`; "": to where each came from.

        Returns how many were moved, and why the first of the others was not.
        """
        moved = 0
        refusals: dict[str, Refused] = {}
        for message in messages:
            if self._queues.first_attempts.is_superseded(message):
                # Its retry is a message of its own: two copies would be two messages.
                self._queues.redelivery.remove(message, None, out)
                continue
            queue = target or source_of(message)
            if queue in refusals:
                continue
            try:
                self._check(message, queue)
            except Refused as refused:
                refusals[queue] = refused
                continue
            moved += self._move(message, queue, not target, out)
        return moved, next(iter(refusals.values()), None)

    def hasten(self, message: Message, lines: bytes, out: Outcome) -> bool:
        """Make this `waiting` message, which is delayed, ready at once: as a new message with these header lines, too.

        Returns whether it is done.
        """
        expires_us = self._queues.shared.clocks.expiry(message)
        dead_letters, queue = self._queues.redelivery.dead_letters, message.envelope.destination
        return self._queues.redelivery.remove(
            message,
            lambda one, effects: dead_letters.move(one, queue, 0, expires_us, effects, is_redrive=False, lines=lines),
            out,
        )

    def forgetting(self, name: str) -> Iterator[None]:
        """Forget what memory still holds of settled messages, FORGOTTEN_AT_ONCE of them in each turn. Between two the
        queue goes on.
        """
        queue = self._queues.by_name.get(name)
        if queue is None:
            return
        for level in queue.levels:
            for _ in level.forget_settled(FORGOTTEN_AT_ONCE):
                # A search for expired messages counts places in a line that has fewer now: it begins again.
                queue.expiry_scan = None
                yield

    def finish(self, name: str, out: Outcome, *, is_deleted: bool = False) -> None:
        """The last page is settled, and memory has forgotten it (`forgetting`). With `is_deleted`, forget also the
        name.

        Settled messages that are delayed go in one turn: 0.1 s of 500,000, about as many memory-only ones as
        `queue_memory_bytes_max` lets in if the operator does not raise it.
        """
        queue = self._queues.by_name.get(name)
        if queue is not None:
            self._clear(queue, out)
        if is_deleted and name not in self._queues.by_name:
            self._queues.stored_names.discard(name)

    def _clear(self, queue: Queue, out: Outcome) -> None:
        if queue.delayed is not None:
            queue.delayed = [entry for entry in queue.delayed if not entry[2].settled] or None
            heapify(queue.delayed or [])
        self._queues.dispatch(queue, out)
        self._queues.forget_if_idle(queue)

    def _check(self, message: Message, target: str) -> None:
        if not target:
            raise Refused(NO_SOURCE, f"{message.message_id} does not say which queue it comes from.")
        if target == message.envelope.destination:
            raise Refused("bad-destination", f"{message.message_id} comes from {target} itself.")
        envelope = Envelope(target, DestinationKind.QUEUE, b"", message.envelope.durable)
        self._check_send(envelope, len(message.body))
        queue = self._queues.by_name.get(target)
        # A queue that drops what does not fit takes it from clients; a message that is kept must not be lost so.
        if queue is not None and not queue.fits(1, len(message.body)):
            raise Refused("queue-full", f"{target} has no room for {message.message_id}.")

    def _move(self, message: Message, target: str, is_redrive: bool, out: Outcome) -> bool:
        options = message.envelope.options
        clocks = self._queues.shared.clocks
        due_us = expires_us = 0
        if options is not None and options.is_timed:
            due_us = clocks.due(message)
            expires_us = 0 if is_redrive else clocks.expiry(message)
        dead_letters = self._queues.redelivery.dead_letters
        return self._queues.redelivery.remove(
            message,
            lambda one, effects: dead_letters.move(one, target, due_us, expires_us, effects, is_redrive=is_redrive),
            out,
        )
