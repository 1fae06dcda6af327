"""Paging: which messages of this node are in memory and which only in the queue store, and how they move between both.

Checkpoints write the store from the journal, so it is always a little behind. Two rules make up for that:

- Rows of messages that are in memory (`Queues.owned`) are skipped when the store returns them again.
- Messages that are settled and may still be in the store are remembered (`pending_deletes`) and skipped, until a
  checkpoint has applied the record of the settle. If a settle is known only from a peer's frame, the message is
  remembered until its record arrives.

So an old page of the store does no harm, as long as no checkpoint ends between reading it and applying it. The caller
ensures that. A message leaves memory only when a finished checkpoint has written it to the store.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.message import MAYBE_SEEN, SEEN, Message
from qmq.broker.queues.dispatch.queue import Queue
from qmq.broker.queues.dispatch.registry import QueueRegistry
from qmq.broker.queues.paging import backlog
from qmq.broker.queues.paging.pending_deletes import PendingDeletes
from qmq.broker.queues.state.exact_level import exact_of
from qmq.broker.queues.state.priority_level import is_spare
from qmq.model.dots import Dot, Origin, Vector
from qmq.model.levels import EXACT_MAX

ALL = (1 << 63) - 1
"""Beyond every sequence."""

PAGE_MESSAGES = 1000
PAGE_BYTES = 4 << 20
"""Aimed at, by the mean size of the queue's messages."""


def page_limit(messages: int, body_bytes: int) -> int:
    """How many to ask for of a queue that holds so much."""
    return backlog.fitting(PAGE_MESSAGES, PAGE_BYTES, messages, body_bytes + 200 * max(1, messages))


class Load(NamedTuple):
    """A question to the store about one queue. `priority` None: count it first, then begin with its highest."""

    queue: str
    priority: int | None
    after: Dot | None
    until_us: int
    """Pages hold what was due by then."""
    due_after_us: int
    """Not 0: what has become due since, up to `until_us`, instead of a page."""
    limit: int
    exact: int = 0
    """In a level with exact numbers: that of `after`."""


class LoadedPage(NamedTuple):
    """The answer. `messages` (of the store, in order) are fewer than the limit when that was all of the level."""

    counted: tuple[int, int, tuple[int, ...], int] | None
    """Messages, body bytes, priorities (high first), next due time; None when it was not asked."""
    priority: int | None
    messages: list[Message]
    next_due_us: int


class Pager:
    """See the module's opening."""

    def __init__(self, origin: Origin, registry: QueueRegistry) -> None:
        self.origin = origin
        self._registry = registry
        self._owned = registry.owned
        self.pending_deletes = PendingDeletes()
        self.begun = 0
        """Own messages up to this may stand in the store."""
        # Queues with very many messages due at the same time -> how many to ask for at once.
        self._due_limits: dict[str, int] = {}
        # Queues that were counted while a checkpoint was under way.
        self.vague: dict[str, None] = {}
        # Failed deliveries that the store does not know of yet: from records of other nodes, or from a start without
        # room for a checkpoint. And what of them the checkpoint under way takes.
        self.attempts: dict[Dot, int] = {}
        self._attempts_taken: dict[Dot, int] = {}
        self.is_unseen = False
        """Whether no consumer had seen what earlier lives of this node left: the last one ended in order."""
        self._elsewhere_through = 0
        """Of this life, up to where another node may have handed out what is in the store."""

    @property
    def bytes_in_memory(self) -> int:
        """Of their bodies. Looks at each of them."""
        return sum([len(message.body) for owned in self._owned.by_origin.values() for message in owned.values()])

    def depth(self, queue_name: str, messages: int, body_bytes: int) -> tuple[int, int]:
        """Unsettled messages of a queue and bytes of their bodies, when the store has so much of it.

        While a checkpoint is under way, what it has taken already may count twice.
        """
        queue = self._registry.by_name.get(queue_name)
        if queue is not None and queue.is_counted:
            return queue.depth, queue.body_bytes
        left, left_bytes = self._left(queue_name, queue, messages, body_bytes)
        return (left, left_bytes) if queue is None else (left + queue.held, left_bytes + queue.held_bytes)

    def _left(self, name: str, queue: Queue | None, messages: int, body_bytes: int) -> tuple[int, int]:
        """What the store has of a queue beyond what is in memory, when it has so much in all."""
        known = 0 if queue is None else self._known_in_store(queue)
        left = max(0, messages - known - self.pending_deletes.covered(name, self._owned.covered))
        return left, body_bytes * left // max(1, messages)

    def recount(self, queue_name: str, messages: int, body_bytes: int) -> None:
        """A queue that was counted while a checkpoint was under way is counted again. Not while one is."""
        queue = self._registry.by_name.get(queue_name)
        if queue is not None and queue.is_counted and backlog.has_more(queue):
            queue.stored, queue.stored_bytes = self._left(queue_name, queue, messages, body_bytes)

    # Settles

    def starts_with(self, vector: Vector) -> None:
        """What the store holds when the node starts."""
        self._owned.covered = dict(vector)

    def settled_before(self, queue: str, dots: Iterable[Dot]) -> None:
        """An earlier life settled `dots`; the next checkpoint takes them out of the store."""
        for origin, sequence in dots:
            self.pending_deletes.add(queue, origin, sequence, 1)

    def may_be_stored(self, message: Message) -> bool:
        """Whether a checkpoint has put `message` into the store, or may be about to."""
        return message.sequence <= self.begun or message.origin != self.origin

    def settled_by(self, queue: str, dot: Dot, record: Dot | None) -> None:
        """An own message that was in memory was settled by another node's record, or (None) by its word.

        A word is remembered in any case: its record may miss the checkpoint that takes the message.
        """
        if record is None or dot.sequence <= self.begun or dot.origin != self.origin:
            self.pending_deletes.add(queue, dot.origin, dot.sequence, 0 if record is None else record)

    def settled_unseen(self, queue_name: str, dot: Dot, record: Dot | None) -> None:
        """An own message that is not in memory was settled elsewhere, or this is the record of what we know."""
        origin, sequence = dot
        known = self.pending_deletes.record(queue_name, origin, sequence)
        if known is not None:
            if record is not None and known == 0:
                if sequence > self.begun and origin == self.origin:
                    # The next checkpoint takes both, or neither.
                    self.pending_deletes.forget(queue_name, origin, sequence)
                else:
                    self.pending_deletes.add(queue_name, origin, sequence, record)
            return
        if not self._owned.has_stored:
            return
        self.pending_deletes.add(queue_name, origin, sequence, 0 if record is None else record)
        queue = self._registry.by_name.get(queue_name)
        if queue is not None and queue.is_counted:
            backlog.stored_settled(queue, 0)

    def failed_unseen(self, dot: Dot, count: int) -> None:
        """A record says how often a message that is not in memory has failed."""
        self.attempts[dot] = max(count, self.attempts.get(dot, 0))

    def recall_attempts(self, message: Message) -> None:
        """A message comes into memory, with what the store knows of its failures: perhaps there were more."""
        if self.attempts:
            message.attempts = max(message.attempts, self.attempts.pop(message.dot, SEEN))

    def take_stored(self, message: Message) -> bool:
        """A message that is only in the store is settled without being loaded; False when it is known otherwise."""
        queue, dot = message.envelope.destination, message.dot
        if dot.sequence in self._owned.by_origin.get(dot.origin, {}) or self.is_settled(queue, dot):
            return False
        self.pending_deletes.add(queue, dot.origin, dot.sequence, 0)
        return True

    def is_settled(self, queue: str, dot: Dot) -> bool:
        """Whether the message `dot` is settled and the store may still have it."""
        return self.pending_deletes.has(queue, dot)

    # Checkpoints

    def checkpoint_begins(self) -> None:
        """From now on every settle is remembered: which messages the checkpoint takes is known when it is done.

        Its range of the journal must hold all that was decided before this call.
        """
        self.begun = ALL
        self._attempts_taken = dict(self.attempts)

    def checkpoint_done(self, vector: Vector) -> None:
        """The store holds everything that `vector` covers. Not while a load is under way."""
        self._owned.covered = dict(vector)
        for dot, count in self._attempts_taken.items():
            if self.attempts.get(dot) == count:
                del self.attempts[dot]
        self._attempts_taken = {}
        self.begun = vector.get(self.origin, 0)
        self.pending_deletes.taken(vector, self.origin)

    def owned_in_memory(self) -> list[Message]:
        """Durable messages of this node that are in memory: as many as `QueuePager` lets in between two checkpoints,
        however long a queue of memory-only messages is.
        """
        return [message for owned in self._owned.by_origin.values() for message in owned.values()]

    def queues_to_evict(self, messages: list[Message]) -> dict[str, None]:
        """The queues of those of `messages` that the store can give back."""
        covered = self._owned.covered
        names: dict[str, None] = {}
        for message in messages:
            if message.envelope.destination not in names and is_spare(message, covered, True):
                names[message.envelope.destination] = None
        return names

    def evict(self, queue: Queue) -> int:
        """Drop from memory what the store has of `queue`; returns how many. Not while a load is under way.

        It looks at all that waits in memory, memory-only messages as well, so call it for `queues_to_evict` only. Where
        both kinds wait in one queue, it takes 0.5 µs for each of them, in one turn.
        """
        if queue.is_loading or not queue.held:
            return 0
        if not queue.is_wanted:
            waiting = [message for message in queue.waiting() if not message.settled]
            covered = self._owned.covered
            # The last one first: a queue that is sent to has messages behind the checkpoint.
            if (
                len(waiting) == queue.held
                and is_spare(waiting[-1], covered, True)
                and all([is_spare(message, covered, True) for message in waiting])
            ):
                # Nothing of it is left here, so nothing need be known of it: the common end among a million queues.
                self._owned.evicted(waiting)
                queue.is_counted = False
                self._registry.drop(queue)
                return len(waiting)
        dropped = backlog.evict(queue, self._owned.covered)
        self._owned.evicted(dropped)
        if dropped:
            self._registry.forget_if_idle(queue)
        return len(dropped)

    # Loads

    def next_load(self, queue: Queue, now_us: int) -> Load | None:
        """What to ask for `queue`, which has asked for more; None when nothing is missing any more: then `take_none`
        follows.
        """
        if not queue.is_counted:
            return Load(queue.name, None, None, now_us, 0, PAGE_MESSAGES)
        if queue.may_load_due(now_us):
            limit = self._due_limits.get(queue.name) or page_limit(queue.stored, queue.stored_bytes)
            return Load(queue.name, None, None, now_us, max(1, queue.loaded_until_us), limit)
        level = backlog.next_behind(queue)
        if level is None:
            return None
        limit = page_limit(queue.stored, queue.stored_bytes)
        return Load(queue.name, level.priority, level.after, queue.loaded_until_us, 0, limit, level.after_exact)

    def take(self, load: Load, found: LoadedPage, out: Outcome) -> None:
        """The store has answered."""
        registry = self._registry
        queue = registry.by_name.get(load.queue)
        if queue is None:
            return
        queue.is_loading = False
        if load.due_after_us:
            self._take_due(queue, load, found, out)
        else:
            if found.counted is not None:
                messages, body_bytes, priorities, due_us = found.counted
                left, left_bytes = self._left(queue.name, queue, messages, body_bytes)
                backlog.count(queue, left, left_bytes, priorities, due_us, load.until_us)
                if self.begun == ALL:
                    self.vague[queue.name] = None
            level = None if found.priority is None else queue.level(found.priority)
            if level is not None and level.behind:
                fetched = found.messages
                after = fetched[-1].dot if fetched else load.after
                exact = exact_of(fetched[-1]) if fetched else load.exact
                news = self._news(queue, fetched, out, seen_beyond=-1 if load.after is None else load.exact)
                backlog.take_page(queue, level, news, after, exact, len(fetched) < load.limit)
        registry.dispatch(queue, out)
        registry.forget_if_idle(queue)

    def take_none(self, queue: Queue, out: Outcome) -> None:
        """There was nothing to ask the store for."""
        queue.is_loading = False
        # Consumers that have come meanwhile waited for a load.
        self._registry.dispatch(queue, out)
        self._registry.forget_if_idle(queue)

    def _take_due(self, queue: Queue, load: Load, found: LoadedPage, out: Outcome) -> None:
        fetched = found.messages
        until_us, next_due_us = load.until_us, found.next_due_us
        if len(fetched) == load.limit:
            # The page may have ended among messages that are due at the same time. Those are asked for once more, and
            # when they fill a page by themselves, with a larger one.
            clocks = queue.shared.clocks
            first_us, last_us = clocks.due(fetched[0]), clocks.due(fetched[-1])
            until_us, next_due_us = last_us - 1, last_us
            self._due_limits[queue.name] = load.limit * (4 if first_us == last_us else 1)
        else:
            self._due_limits.pop(queue.name, None)
        backlog.take_due(queue, self._news(queue, fetched, out), next_due_us, until_us)

    def _is_of_before(self, message: Message) -> bool:
        """Whether another than this life of this node may have handed `message` out."""
        origin = message.origin
        if origin == self.origin:
            return message.sequence <= self._elsewhere_through
        return not self.is_unseen or origin.node != self.origin.node

    def served_elsewhere(self) -> None:
        """Until now another node may have handed out what the store has of this one."""
        self.is_unseen = False
        self._elsewhere_through = self._owned.covered.get(self.origin, 0)

    def leaves_unseen(self, stored: Collection[Origin]) -> bool:
        """Whether no message is with a consumer, nor was any that may be delivered. Failures do not count: they are
        on record.

        Nor any in the store that is not of this life; `stored` says whose messages are there.
        """
        before = [origin for origin in stored if origin != self.origin or self._elsewhere_through]
        if not self.is_unseen and any([origin.node == self.origin.node for origin in before]):
            return False
        if self._registry.deliveries or any(self._owned.lent.values()) or self.pending_deletes.awaits_records():
            return False
        owned = self._owned.by_origin.values()
        return all([message.attempts >= 0 for messages in owned for message in messages.values()])

    def settle_outside_memory(self, message: Message, out: Outcome) -> None:
        """Settle a message of a served node that comes in, or that the queue store returns: it needs no consumer."""
        queue, dot = message.envelope.destination, message.dot
        self._owned.elsewhere.pop(dot, None)
        self.pending_deletes.add(queue, *dot, 0)
        out.settles.setdefault(queue, []).append(dot)

    def lend_elsewhere(self, message: Message) -> bool:
        """Count a message as lent to the peer whose consumers have it since before it was served here, if any has."""
        peer = self._owned.elsewhere.pop(message.dot, None)
        if peer is None:
            return False
        message.attempts = message.attempts or MAYBE_SEEN
        self._owned.by_origin[message.origin][message.sequence] = message
        self._registry.get(message.envelope.destination).count_in(message)
        self._registry.count_as_lent(message, peer)
        return True

    def _known_in_store(self, queue: Queue) -> int:
        """How many of the messages in memory the store has, too: of those that are durable, whatever waits."""
        known = self.owned_in_memory()
        if queue.held < len(known):
            known = queue.waiting()
            known += [one.message for one in queue.in_flight() if one.message.owner is None]
            for lent in self._owned.lent.values():
                known += [message for message in lent.values() if message.envelope.destination == queue.name]
        covered, name = self._owned.covered, queue.name
        return sum(
            1
            for m in known
            if not m.settled and 0 < m.sequence <= covered.get(m.origin, 0) and m.envelope.destination == name
        )

    def _news(
        self, queue: Queue, messages: list[Message], out: Outcome, *, seen_beyond: int = EXACT_MAX
    ) -> list[Message]:
        """Those that are neither in memory nor settled; from now on they are in memory.

        `seen_beyond`: those with a higher exact number, -1 for all, are the first ones of their number in the store, or
        of their level if they have none. There stands what was with consumers when this node or its owner went away.
        Nothing says which of them were.
        """
        news: list[Message] = []
        for message in messages:
            by_sequence = self._owned.by_origin[message.origin]
            if message.sequence not in by_sequence and not self.is_settled(queue.name, message.dot):
                if self._registry.first_attempts.is_superseded(message):
                    self.settle_outside_memory(message, out)
                    backlog.stored_settled(queue, len(message.body))
                    continue
                if self._owned.elsewhere and self.lend_elsewhere(message):
                    continue
                by_sequence[message.sequence] = message
                self.recall_attempts(message)
                if exact_of(message) > seen_beyond and not message.attempts and self._is_of_before(message):
                    message.attempts = MAYBE_SEEN
                news.append(message)
        return news
