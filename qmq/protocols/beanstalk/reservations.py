"""What one beanstalkd connection watches and has reserved.

A watched tube is a subscription that pulls: it gets a message only when one is granted to it. A reservation grants one
to each watched tube, the most urgent first, until one has a message; then it withdraws what is left. If a message comes
from two tubes at the same time, the second one goes back as if it had not been seen.

A reserved job is a delivery; it is valid until it is settled, comes back, or its time is over.
"""

from collections.abc import Awaitable, Callable, Collection
from typing import Final, Protocol

import trio

from qmq.broker.broker import Broker
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Delivery, Subscription
from qmq.broker.messages.lifecycle import Back
from qmq.engine.deadline_timer import DeadlineTimer
from qmq.engine.runtime.waker import Waker
from qmq.environment import Environment
from qmq.errors import Refused
from qmq.model.levels import delivery_order
from qmq.protocols.beanstalk.codec.replies import DEADLINE_SOON, TIMED_OUT, reserved
from qmq.protocols.beanstalk.gateway.encoder import ReplySlot
from qmq.protocols.beanstalk.gateway.jobs import TTR_SECONDS_DEFAULT, id_of, queue_of, urgency_of
from qmq.protocols.beanstalk.part import BeanstalkPart
from qmq.wire.stomp import Frame, Head, Version

EMPTY_SECONDS: Final = 0.1
"""What a reservation that may not wait gives messages that are only on disk, or on another node."""

SAFETY_US: Final = 1_000_000
"""Before the end of a reservation, in which the client is not made to wait for another job."""

KNOWN_SPARE: Final = 64
"""Deliveries that have ended and are still remembered, at least."""


class ReservationContext(Protocol):
    broker: Broker
    environment: Environment
    deadline_timer: DeadlineTimer

    def submit(self, out: Outcome) -> None: ...

    def linked_peers(self) -> Collection[str]: ...

    def spawn(self, task: Callable[[], object]) -> None: ...


class Reservations:
    """Those of one connection. `subscribe` obeys a SUBSCRIBE, and raises Refused."""

    def __init__(
        self,
        context: ReservationContext,
        part: BeanstalkPart,
        session: int,
        subscribe: Callable[[Frame], Awaitable[None]],
    ) -> None:
        self._context = context
        self._part = part
        self._session = session
        self._subscribe = subscribe
        self.changed = Waker()
        self._subscriptions: dict[str, Subscription] = {}
        """Tube → its subscription, once something was reserved of it."""
        self._known: dict[int, None] = {}
        """Tags of the deliveries that a reservation has taken."""
        self._due: dict[int, ReplySlot | None] = {}
        """Tag → where its job goes when it is delivered; None: elsewhere."""
        self._reserved: dict[int, Delivery] = {}
        """Job → its delivery."""
        self._waiting: ReplySlot | None = None
        self.is_stopping = False

    # Jobs

    def of(self, job: int) -> Delivery | None:
        """The delivery of a job that this connection has reserved."""
        delivery = self._reserved.get(job)
        if delivery is not None and not self.is_valid(delivery):
            self._ended(job, delivery)
            return None
        return delivery

    def is_due(self, job: int) -> bool:
        """Whether a job is reserved by this connection, and its delivery is still to come."""
        delivery = self._reserved.get(job)
        return delivery is not None and delivery.tag in self._due

    def _ended(self, job: int, delivery: Delivery) -> None:
        """A reservation has ended without the client."""
        del self._reserved[job]
        session = self._context.broker.sessions.get(self._session)
        if session is not None and session.was_late(delivery.tag):
            self._part.timeouts += 1

    def is_valid(self, delivery: Delivery) -> bool:
        """Whether the job is still reserved by it."""
        return self._context.broker.queues.deliveries.get(delivery.tag) is delivery

    def done(self, job: int) -> None:
        """The client has given up the job: it is settled, or comes back."""
        self._reserved.pop(job, None)

    def keep(self, delivery: Delivery) -> None:
        """What was to be done with the job is refused: it stays reserved."""
        if self.is_valid(delivery):
            self._reserved[id_of(delivery.message)] = delivery

    def touch(self, delivery: Delivery) -> None:
        """The time of a reservation begins again."""
        self._context.broker.queues.extend(delivery, self._context.environment.now_us())
        self._context.deadline_timer.decided()

    # Reserving

    async def take_ready(self, tubes: list[str], slot: ReplySlot) -> bool:
        """Fill `slot` with the next job of the tubes if one is ready here. Else `reserve` must follow at once.

        Raises Refused for a tube that may not be watched.
        """
        self._clean()
        # From the first grant on: a message may come while the next tube is subscribed to.
        self._waiting = slot
        try:
            is_done = await self._try(tubes, slot)
        except Refused:
            self._end_waiting()
            raise
        if is_done:
            self._end_waiting()
        return is_done

    def _end_waiting(self) -> None:
        """The reservation gets nothing more."""
        self._waiting = None
        self._withdraw()

    async def reserve(
        self,
        tubes: list[str],
        slot: ReplySlot,
        seconds: float | None,
        until_left: Callable[[], Awaitable[None]],
    ) -> None:
        """Fill `slot` with the next job of the tubes when it comes, at most after so long, None for ever.

        Call `take_ready` before. Returns when the job is decided, or there is none.
        """
        deadline = trio.current_time() + (1e9 if seconds is None else seconds or self._grace(tubes))
        assert self._waiting is slot, "take_ready comes first"
        try:
            async with trio.open_nursery() as nursery:
                if seconds != 0:
                    nursery.start_soon(self._end_when_left, until_left, slot)
                await self._wait(tubes, slot, deadline)
                nursery.cancel_scope.cancel()
        finally:
            self._end_waiting()

    def wake(self) -> None:
        """A pause has begun or ended, or the connection ends."""
        self.changed.wake()

    @property
    def is_waiting(self) -> bool:
        return self._waiting is not None

    async def _end_when_left(self, until_left: Callable[[], Awaitable[None]], slot: ReplySlot) -> None:
        """A client that has ended its half is not kept waiting."""
        try:
            await until_left()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        if self._waiting is slot:
            self._waiting = None
            slot.fill(TIMED_OUT)
            self.changed.wake()

    async def _wait(self, tubes: list[str], slot: ReplySlot, deadline: float) -> None:
        while slot.data is None and not self.is_stopping:
            if self._claim(slot):
                return
            now = trio.current_time()
            soon = self._safety_seconds()
            if soon is not None and soon <= 0:
                slot.fill(DEADLINE_SOON)
                return
            if now >= deadline:
                slot.fill(TIMED_OUT)
                return
            until = deadline if soon is None else min(deadline, now + soon)
            paused = [at for tube in tubes if (at := self._part.paused_until(tube))]
            await self.changed.wait_until(min([until, *paused]))
            if slot.data is None and not self.is_stopping and await self._try(tubes, slot):
                return

    async def _try(self, tubes: list[str], slot: ReplySlot) -> bool:
        """Grant a message to each tube, the most urgent first, until one has it: then the reservation is done."""
        for tube in sorted(tubes, key=self._urgency) if len(tubes) > 1 else tubes:
            subscription = await self.subscription(tube)
            if subscription is None:
                return True
            if self._part.paused_until(tube):
                self._context.broker.queues.withdraw(subscription)
            elif subscription.free <= 0:
                out = Outcome(self._session, self._context.environment.now_us())
                self._context.broker.queues.grant(subscription, out)
                self._context.submit(out)
            if self._claim(slot) or slot.data is not None:
                return True
        return False

    async def subscription(self, tube: str) -> Subscription | None:
        """The subscription of a tube, which has nothing granted. None if the session has ended. Raises Refused."""
        known = self._subscriptions.get(tube)
        if known is not None and not known.closed:
            return known
        headers = {
            "destination": queue_of(tube),
            "id": tube,
            "ack": "client-individual",
            "delivery-limit": "0",
            "redelivery-delay": "0",
            "ack-timeout": str(TTR_SECONDS_DEFAULT),
        }
        await self._subscribe(Frame(Head("SUBSCRIBE", headers, Version.V12), b"", None))
        # Its turn may have come after the end of the session: then nothing was subscribed to.
        session = self._context.broker.sessions.get(self._session)
        found = None if session is None else session.subscriptions.get(tube)
        if found is not None:
            self._subscriptions[tube] = found
        return found

    def _urgency(self, tube: str) -> tuple[int, int, int]:
        """Where a tube stands among those that may have a job: by the priority and the age of its next one."""
        queue = self._context.broker.queues.by_name.get(queue_of(tube))
        for level in () if queue is None else queue.levels:
            for message in level.ready:
                if not message.settled:
                    return urgency_of(message)
            if level.behind:
                return (-delivery_order(level.priority), level.after_exact, 0)
        return (2, 0, 0)

    def _claim(self, slot: ReplySlot) -> bool:
        """Take a message that has come for the reservation; what came besides goes back when it is delivered."""
        for subscription in self._subscriptions.values():
            last = next(reversed(subscription.in_flight.values()), None)
            if last is not None and last.tag not in self._known and slot.data is None:
                self._take(last, slot)
                self._end_waiting()
                return True
        return False

    def take_for(self, delivery: Delivery) -> None:
        """A delivery that was given to this connection without a reservation: its job is not sent by itself."""
        self._take(delivery, None)

    def _take(self, delivery: Delivery, slot: ReplySlot | None) -> None:
        self._known[delivery.tag] = None
        self._due[delivery.tag] = slot
        self._reserved[id_of(delivery.message)] = delivery

    def _give_back(self, delivery: Delivery) -> None:
        out = Outcome(self._session, self._context.environment.now_us())
        self._context.broker.queues.redelivery.give_back([delivery], Back.UNSEEN, out)
        self._context.submit(out)

    def delivered(self, delivery: Delivery) -> None:
        """A message is durable, and comes to this connection. Called in the midst of a delivery, so nothing is decided
        here: what came besides goes back when the task of the connection runs."""
        tag = delivery.tag
        if tag in self._due:
            slot = self._due.pop(tag)
        elif self._waiting is not None:
            slot, self._waiting = self._waiting, None
            self._take(delivery, slot)
            del self._due[tag]
            self.changed.wake()
        else:
            self._context.spawn(self._give_back_what_came)
            return
        delivery.sent = True
        if slot is not None:
            slot.fill(reserved(id_of(delivery.message), delivery.message.body))

    async def _give_back_what_came(self) -> None:
        await trio.lowlevel.checkpoint()
        for subscription in self._subscriptions.values():
            for delivery in [one for one in subscription.in_flight.values() if one.tag not in self._known]:
                self._give_back(delivery)

    def _withdraw(self) -> None:
        queues = self._context.broker.queues
        for subscription in self._subscriptions.values():
            if not subscription.closed:
                queues.withdraw(subscription)

    # Times

    def _grace(self, tubes: list[str]) -> float:
        """For how long a reservation that may not wait waits after all."""
        if self._context.linked_peers():
            return EMPTY_SECONDS
        queues = self._context.broker.queues
        for tube in tubes:
            queue = queues.by_name.get(queue_of(tube))
            if queue is not None and (queue.is_loading or not queue.is_counted):
                return EMPTY_SECONDS
        return 0.0

    def _safety_seconds(self) -> float | None:
        """Until the last second of a reservation begins; None while nothing is reserved."""
        deadlines = [
            delivery.deadline_us
            for subscription in self._subscriptions.values()
            for delivery in subscription.in_flight.values()
            if delivery.deadline_us and delivery.tag in self._known
        ]
        if not deadlines:
            return None
        return (min(deadlines) - SAFETY_US - self._context.environment.now_us()) / 1_000_000

    # The watch list

    def ignore(self, tube: str) -> None:
        """Nothing more is reserved of a tube. Its subscription ends when nothing of it is reserved."""
        subscription = self._subscriptions.get(tube)
        if subscription is not None and not subscription.in_flight:
            del self._subscriptions[tube]
            if not subscription.closed:
                out = Outcome(self._session, self._context.environment.now_us())
                self._context.broker.subscriptions.unsubscribe(self._session, tube, out)
                self._context.submit(out)

    def reap(self, watched: dict[str, None]) -> None:
        """End subscriptions of tubes that are not watched any more."""
        for tube in [tube for tube in self._subscriptions if tube not in watched]:
            self.ignore(tube)

    def _clean(self) -> None:
        if len(self._known) > KNOWN_SPARE + 2 * sum(len(one.in_flight) for one in self._subscriptions.values()):
            deliveries = self._context.broker.queues.deliveries
            self._known = {tag: None for tag in self._known if tag in deliveries}
            self._due = {tag: slot for tag, slot in self._due.items() if tag in deliveries}
            for job, delivery in list(self._reserved.items()):
                if delivery.tag not in deliveries:
                    self._ended(job, delivery)

    def forget(self) -> None:
        """The connection has ended."""
        self._subscriptions.clear()
        self._reserved.clear()
        self._known.clear()
        self._due.clear()
