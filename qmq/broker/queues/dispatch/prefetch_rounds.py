"""Turns of the subscriptions of a client with a connection prefetch: which is next when the client has room again.

If a subscription has its turn, and its messages wait only at other nodes, one place of the prefetch stays free until a
message has arrived or none waits any more (`QueueContext.turns`).
"""

from qmq.broker.consumers.connection_prefetch import ConnectionPrefetch
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Subscription
from qmq.broker.queues.dispatch.queue import Queue
from qmq.broker.queues.dispatch.registry import QueueRegistry


class PrefetchRounds:
    """Those of all clients of one node."""

    def __init__(self, registry: QueueRegistry) -> None:
        self._registry = registry
        self._shared = registry.shared

    def finish(self, out: Outcome) -> None:
        """Another consumer may be next: after a consumer came or left, or what was lent is settled or returned."""
        registry, shared = self._registry, self._shared
        if shared.turns:
            self._check(out)
        while shared.dirty_queues:
            dirty, shared.dirty_queues = shared.dirty_queues, {}
            for name in dirty:
                queue = registry.by_name.get(name)
                if queue is not None and queue.selective is not None:
                    registry.touched[name] = None
                    if not queue.selective.is_needed:
                        queue.selective = None
                    registry.dispatch(queue, out)
                    registry.forget_if_idle(queue)

    def freed(self, queue: Queue, subscription: Subscription, count: int, out: Outcome) -> None:
        """So many messages of a client with a prefetch are done: the next of its subscriptions has its turn."""
        window = subscription.window
        assert window is not None
        if window.room <= 0:
            for other in window.subscriptions:
                self._registry.touched[other.destination] = None
        window.held -= count
        if window.turn is not subscription:
            queue.leave_line(subscription)
            if not subscription.closed and subscription.free > 0:
                window.wait(subscription)
        self._go_round(window, out)

    def resize(self, window: ConnectionPrefetch[Subscription], most: int, out: Outcome) -> None:
        """The client has another bound from now on. What is in flight above a lower one stays."""
        window.most = most
        for subscription in window.subscriptions:
            self._registry.touched[subscription.destination] = None
        self._go_round(window, out)

    def _go_round(self, window: ConnectionPrefetch[Subscription], out: Outcome) -> None:
        """There may be room: the next of the client's subscriptions has its turn, and so on."""
        while window.room > 0:
            following = window.next()
            if following is None:
                break
            if not following.closed and following.free > 0:
                its = self._registry.get(following.destination)
                its.line_up(following)
                self._registry.dispatch(its, out)
                if following.waiting and window.turn is None and self._may_come(following):
                    its.leave_line(following)
                    window.turn = following
                    self._shared.turns[following] = None
                    self._registry.touched[its.name] = None

    def _may_come(self, subscription: Subscription) -> bool:
        """Whether one of the messages at other nodes is for it: while a consumer is exclusive, none is."""
        name = subscription.destination
        if subscription.lent_as or name not in self._shared.waiting_elsewhere:
            return False
        selective = self._registry.get(name).selective
        return selective is None or selective.consumers.active is None

    def end_turns_of(self, queue_name: str) -> None:
        """A message for the places that are kept is here: they are free for it."""
        for subscription in self._shared.turns:
            if subscription.destination == queue_name:
                self._end_turn(subscription)

    def _end_turn(self, subscription: Subscription) -> None:
        window = subscription.window
        if window is not None and window.turn is subscription:
            window.turn = None
            if not subscription.closed:
                self._registry.get(subscription.destination).line_up(subscription)

    def _check(self, out: Outcome) -> None:
        """Keep no place for what does not come any more; other subscriptions may have it."""
        for subscription in list(self._shared.turns):
            window = subscription.window
            assert window is not None
            if window.turn is not subscription or subscription.closed or not self._may_come(subscription):
                del self._shared.turns[subscription]
                self._end_turn(subscription)
                self._registry.touched[subscription.destination] = None
                self._go_round(window, out)
