"""What one beanstalkd connection watches and has reserved.

A watched tube is a subscription that pulls. A reservation takes one message (`qmq.sessions.pull_consumer`): of the
tubes that are not paused, the most urgent first.

A reserved job is a delivery; it is valid until it is settled, comes back, or its time is over.
"""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from qmq.broker.broker import Broker
from qmq.broker.consumers.orders import Subscribe
from qmq.broker.consumers.subscription import Ack, Asks, Delivery, Subscription
from qmq.environment import Environment
from qmq.model.levels import delivery_order
from qmq.protocols.beanstalk.codec.replies import DEADLINE_SOON, TIMED_OUT, reserved
from qmq.protocols.beanstalk.gateway.encoder import ReplySlot
from qmq.protocols.beanstalk.gateway.jobs import TTR_SECONDS_DEFAULT, id_of, queue_of, urgency_of
from qmq.protocols.beanstalk.part import BeanstalkPart
from qmq.sessions.pull_consumer import PullConsumer

SAFETY_US: Final = 1_000_000
"""Before the end of a reservation, in which the client is not made to wait for another job."""

RESERVED_SPARE: Final = 64
"""Reservations that have ended and are still remembered, at least."""


@dataclass(eq=False, repr=False)
class Reservations:
    """Those of one connection. `subscribe` begins a subscription, and raises Refused."""

    _part: BeanstalkPart
    _broker: Broker
    _environment: Environment
    _session: int
    _pull: PullConsumer
    _subscribe: Callable[[Subscribe], Awaitable[None]]

    def __post_init__(self) -> None:
        self._subscriptions: dict[str, Subscription] = {}
        """Tube → its subscription, once something was reserved of it."""
        self._reserved: dict[int, Delivery] = {}
        """Job → its delivery."""
        self._soonest_us = math.inf
        """No reservation ends before."""

    # Jobs

    def of(self, job: int) -> Delivery | None:
        """The delivery of a job that this connection has reserved."""
        delivery = self._reserved.get(job)
        if delivery is not None and not self.is_valid(delivery):
            self._ended(job, delivery)
            return None
        return delivery

    def _ended(self, job: int, delivery: Delivery) -> None:
        """A reservation has ended without the client."""
        del self._reserved[job]
        session = self._broker.sessions.get(self._session)
        if session is not None and session.was_late(delivery.tag):
            self._part.timeouts += 1

    def is_valid(self, delivery: Delivery) -> bool:
        """Whether the job is still reserved by it."""
        return self._broker.queues.deliveries.get(delivery.tag) is delivery

    def done(self, job: int) -> None:
        """The client has given up the job: it is settled, or comes back."""
        self._reserved.pop(job, None)

    def keep(self, delivery: Delivery) -> None:
        """The job is reserved; or stays so, because what was to be done with it is refused."""
        if self.is_valid(delivery):
            self._soonest_us = min(self._soonest_us, delivery.deadline_us or math.inf)
            self._reserved[id_of(delivery.message)] = delivery

    def touch(self, delivery: Delivery) -> None:
        """The time of a reservation begins again."""
        self._pull.extend(delivery)

    # Reserving

    @property
    def is_waiting(self) -> bool:
        return self._pull.is_taking

    def wake(self) -> None:
        """A pause has begun or ended."""
        self._pull.interrupt()

    async def reserve(
        self,
        tubes: list[str],
        slot: ReplySlot,
        seconds: float | None,
        until_left: Callable[[], Awaitable[None]],
    ) -> None:
        """Fill `slot` with the next job of the tubes when it comes, at most after so long, None for ever.

        A client that has ended its half is not kept waiting. Raises Refused for a tube that may not be watched.
        """
        self._clean()
        deadline = math.inf if seconds is None else trio.current_time() + seconds
        while True:
            now, soon = trio.current_time(), self._safety_seconds()
            pauses = {tube: at for tube in tubes if (at := self._part.paused_until(tube))}
            until = min(deadline, now + soon, *pauses.values()) - now
            begins = [partial(self.subscription, tube) for tube in self._by_urgency(tubes) if tube not in pauses]
            leaving = None if seconds == 0 else until_left
            taken = await self._pull.take(begins, 1, max(0.0, until), leaving, waits_for_commit=True)
            for delivery in taken:
                self.keep(delivery)
                slot.fill(reserved(id_of(delivery.message), delivery.message.body))
            if taken or self._pull.is_stopping or self._session not in self._broker.sessions:
                return
            is_soon = self._safety_seconds() <= 0
            if self._pull.has_left or is_soon or trio.current_time() >= deadline:
                slot.fill(DEADLINE_SOON if is_soon and not self._pull.has_left else TIMED_OUT)
                return

    async def subscription(self, tube: str) -> Subscription | None:
        """The subscription of a tube, which has nothing granted. None if the session has ended. Raises Refused."""
        known = self._subscriptions.get(tube)
        if known is not None and not known.closed:
            return known
        made = Subscription(self._session, tube, queue_of(tube), Ack.CLIENT_INDIVIDUAL, 0, b"")
        made.is_pull = True
        made.asks = Asks(delivery_limit=0, redelivery_us=0)
        made.ack_timeout_us = TTR_SECONDS_DEFAULT * 1_000_000
        await self._subscribe(Subscribe(made))
        session = self._broker.sessions.get(self._session)
        if session is None or session.subscriptions.get(tube) is not made:
            # Its turn has come after the end of the session: nothing was subscribed to.
            self._pull.stop()
            return None
        self._subscriptions[tube] = made
        return made

    def _by_urgency(self, tubes: list[str]) -> list[str]:
        return sorted(tubes, key=self._urgency) if len(tubes) > 1 else tubes

    def _urgency(self, tube: str) -> tuple[int, int, int]:
        """Where a tube stands among those that may have a job: by the priority and the age of its next one."""
        queue = self._broker.queues.by_name.get(queue_of(tube))
        for level in () if queue is None else queue.levels:
            for message in level.ready:
                if not message.settled:
                    return urgency_of(message)
            if level.behind:
                return (-delivery_order(level.priority), level.after_exact, 0)
        return (2, 0, 0)

    # Times

    def _safety_seconds(self) -> float:
        """Until the last second of a reservation may begin; 0 or less if one has begun, infinite without any."""
        now_us = self._environment.now_us()
        if self._soonest_us - SAFETY_US <= now_us:
            self._soonest_us = min(
                [
                    delivery.deadline_us
                    for subscription in self._subscriptions.values()
                    for delivery in subscription.in_flight.values()
                    if delivery.deadline_us
                ],
                default=math.inf,
            )
        return (self._soonest_us - SAFETY_US - now_us) / 1_000_000

    # The watch list

    def ignore(self, tube: str) -> None:
        """Nothing more is reserved of a tube. Its subscription ends when nothing of it is reserved."""
        subscription = self._subscriptions.get(tube)
        if subscription is not None and not subscription.in_flight:
            self._pull.release(self._subscriptions.pop(tube))

    def reap(self, watched: dict[str, None]) -> None:
        """End subscriptions of tubes that are not watched any more."""
        for tube in [tube for tube in self._subscriptions if tube not in watched]:
            self.ignore(tube)

    def _clean(self) -> None:
        if len(self._reserved) > RESERVED_SPARE + 2 * sum(len(one.in_flight) for one in self._subscriptions.values()):
            for job, delivery in list(self._reserved.items()):
                if not self.is_valid(delivery):
                    self._ended(job, delivery)

    def forget(self) -> None:
        """The connection has ended."""
        self._subscriptions.clear()
        self._reserved.clear()
