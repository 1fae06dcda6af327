"""Messages that a client takes: as many as it asks for, when it asks, and none in between.

Its subscriptions **pull**: each gets only what it is granted. A take grants room to one subscription after the other
until enough has come, waits, and withdraws what is left. A message is **taken** when it is durable, the take has it,
and the caller is given it: it is in flight then, and its ack timeout has begun.

Whatever else came goes back as if no client had seen it: what exceeds the count, what comes from a second queue at the
same time, what is not durable when the time is over; and all of it if the take is cancelled or the session ends. So no
message is in flight that no client has. A message of another node comes in the same way, once that node has lent it.

A session takes once at a time; what it has taken may be settled meanwhile.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import Final

import trio

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Delivery, Subscription
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.totals import Totals
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.waker import Waker
from qmq.replication.mesh import Mesh

EMPTY_SECONDS: Final = 0.1
"""What a take that may not wait gives messages that are on disk, on another node, or not durable yet."""

LINGER_SECONDS: Final = 0.02
"""After the first message a take waits so long for more of them: pages and peers need a moment."""

TURN_TAKES: Final = 16
"""After so many takes that need not wait, other tasks have a turn."""

TAKEN_BYTES_MAX: Final = 16 << 20
"""Of the bodies of one take, which its caller holds as a whole; one larger message comes alone."""

Begin = Callable[[], Awaitable[Subscription | None]]
"""Begins a subscription that pulls, or finds one. None if there can be none, and the take ends. Raises Refused."""


class PullConsumer:
    """What one session takes. Its encoder passes deliveries of these subscriptions to `delivered`."""

    def __init__(self, engine: EngineParts, links: Mesh, session: int) -> None:
        self._session = session
        self._broker = engine.broker
        self._environment = engine.environment
        self._path = engine.path
        self._deadlines = engine.deadlines
        self._links = links
        self._came: list[Delivery] = []
        """What is durable and not given to the caller yet."""
        self._changed = Waker()
        self._is_interrupted = False
        self.is_stopping = False
        self.is_taking = False
        self.has_left = False
        """Whether the client has left while it was waited for."""
        self._at_once = 0
        """Takes that found all at once."""
        self._released: dict[str, Subscription] = {}
        """Those that get nothing more, and have messages in flight."""

    async def take(
        self,
        begins: Iterable[Begin],
        count: int,
        seconds: float,
        until_left: Callable[[], Awaitable[None]] | None = None,
        *,
        waits_for_commit: bool = False,
    ) -> list[Delivery]:
        """The next messages, at most `count`, after at most `seconds`; of several queues the first ones go first.

        `until_left` returns when the client has left: then nothing is taken. With `waits_for_commit` messages that are
        decided when the time is over, or the client has left, are waited for and taken. Raises Refused.
        """
        self.is_taking, self._is_interrupted, self.has_left = True, False, False
        granted: list[Subscription] = []
        taken: list[Delivery] = []
        try:
            for begin in begins:
                subscription = await begin()
                if subscription is None:
                    self._is_interrupted = True
                    break
                granted.append(subscription)
                self._grant(subscription, count)
                if subscription.free < count:
                    break
            if len(_fitting(self._came)) == len(self._came) < count:
                async with trio.open_nursery() as nursery:
                    if until_left is not None:
                        nursery.start_soon(self._end_when_left, until_left)
                    await self._wait(granted, count, seconds, waits_for_commit)
                    nursery.cancel_scope.cancel()
            else:
                # A client that asks again and again leaves a turn to others.
                self._at_once += 1
                if self._at_once % TURN_TAKES == 0:
                    await trio.lowlevel.checkpoint()
            if waits_for_commit or not self.has_left:
                taken = _fitting(self._came[:count])
        finally:
            self.is_taking = False
            self._came = []
            self._withdraw(granted, taken)
        # Some may have been taken back since they came.
        taken = [one for one in taken if one.tag in self._broker.queues.deliveries]
        for delivery in taken:
            delivery.sent = True
        return taken

    def delivered(self, deliveries: list[Delivery], totals: Totals | None = None) -> None:
        """These are durable. Called in the midst of a delivery, so nothing is decided here."""
        # What was given back before its commit is in flight no more.
        came = [one for one in deliveries if one.tag in one.subscription.in_flight]
        if totals is not None:
            totals.delivered += len(came)
            totals.redelivered += sum([one.message.attempts != 0 for one in came])
        if self.is_taking:
            self._came += came
            self._changed.wake()

    def leave(self) -> None:
        """The client has left: the take that is under way ends."""
        self.has_left = True
        self._changed.wake()

    def interrupt(self) -> None:
        """The take that is under way ends now, with what has come."""
        self._is_interrupted = True
        self._changed.wake()

    def stop(self) -> None:
        """No take waits any more: each ends with what has come."""
        self.is_stopping = True
        self._changed.wake()

    def _grant(self, subscription: Subscription, count: int) -> None:
        out = Outcome(self._session, self._environment.now_us())
        self._broker.queues.grant(subscription, count, out)
        self._path.submit(out)

    def _may_come(self, granted: Iterable[Subscription], count: int) -> bool:
        """Whether messages may come that are not in line here."""
        if self._links.followers():
            return True
        for subscription in granted:
            queue = self._broker.queues.by_name.get(subscription.destination)
            if subscription.free < count or (queue is not None and (queue.is_loading or not queue.is_counted)):
                return True
        return False

    async def _wait(self, granted: Sequence[Subscription], count: int, seconds: float, waits_for_commit: bool) -> None:
        came, lingers = self._came, bool(seconds)
        if not came and not seconds and self._may_come(granted, count):
            seconds = EMPTY_SECONDS
        deadline = trio.current_time() + seconds
        while len(_fitting(came)) == len(came) < count and self._session in self._broker.sessions:
            if self.is_stopping:
                return
            self._changed.clear()
            left = 0.0 if self._is_interrupted or self.has_left else deadline - trio.current_time()
            if came and lingers:
                left = min(left, LINGER_SECONDS)
            if left <= 0:
                if not waits_for_commit or not any(map(_unsent, granted)):
                    return
                left = EMPTY_SECONDS
            before = len(came)
            await self._changed.wait(left)
            self._path.check()
            came[:] = [one for one in came if one.tag in self._broker.queues.deliveries]
            if came and len(came) == before:
                return

    async def _end_when_left(self, until_left: Callable[[], Awaitable[None]]) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await until_left()
        self.leave()

    def _withdraw(self, granted: Iterable[Subscription], taken: Sequence[Delivery]) -> None:
        """Nothing more comes, and what has come and is not taken goes back."""
        queues = self._broker.queues
        for subscription in granted:
            if not subscription.closed:
                queues.withdraw(subscription)
                self._give_back([one for one in _unsent(subscription) if one not in taken])

    def _give_back(self, deliveries: list[Delivery]) -> None:
        if deliveries:
            out = Outcome(self._session, self._environment.now_us())
            self._broker.queues.redelivery.give_back(deliveries, Back.UNSEEN, out)
            self._path.submit(out)

    def extend(self, delivery: Delivery) -> None:
        """The ack timeout of a message begins again."""
        self._broker.queues.extend(delivery, self._environment.now_us())
        self._deadlines.decided()

    # The end of subscriptions

    def release(self, subscription: Subscription) -> None:
        """It gets nothing more, and is no consumer of its queue. It ends when nothing is in flight to it."""
        if subscription.closed:
            return
        out = Outcome(self._session, self._environment.now_us())
        # First: what is given back may go to any consumer.
        self._broker.queues.cease(subscription, out)
        self._path.submit(out)
        self._give_back([one for one in subscription.in_flight.values() if not one.sent])
        self._released[subscription.id] = subscription
        self.reap()

    def resume(self, subscription: Subscription) -> None:
        """One that was released, and has not ended, is a consumer of its queue again."""
        del self._released[subscription.id]
        out = Outcome(self._session, self._environment.now_us())
        subscription.since_us = 0
        self._broker.queues.subscribe(subscription, out)
        self._path.submit(out)

    def reap(self) -> None:
        """End those that were released and of which nothing is in flight any more."""
        idle = [one for one in self._released.values() if one.closed or not one.in_flight]
        for subscription in idle:
            del self._released[subscription.id]
            if not subscription.closed:
                out = Outcome(self._session, self._environment.now_us())
                self._broker.subscriptions.unsubscribe(self._session, subscription.id, out)
                self._path.submit(out)


PullOf = Callable[[int], PullConsumer]
"""Makes that of a session."""


def pull_consumers(engine: EngineParts, links: Mesh) -> PullOf:
    """Of the sessions of a node."""
    return partial(PullConsumer, engine, links)


def _unsent(subscription: Subscription) -> list[Delivery]:
    """What has come to it since the last take, which has settled the fate of all before."""
    return list(takewhile(lambda one: not one.sent, reversed(subscription.in_flight.values())))[::-1]


def _fitting(deliveries: list[Delivery]) -> list[Delivery]:
    """The first ones, whose bodies fit into one take."""
    size = 0
    for at, delivery in enumerate(deliveries):
        size += len(delivery.message.body)
        if at and size > TAKEN_BYTES_MAX:
            return deliveries[:at]
    return deliveries
