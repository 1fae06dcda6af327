"""Jobs by their ids, in the whole mesh, and the first ones of a tube.

A job is found by the node that serves its message, so all are asked. A job whose node cannot be reached is not found.
"""

from functools import partial
from typing import Any, Final, NamedTuple

from qmq.admin.inspection.message_search import parse_message_id
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope, Message
from qmq.engine.checkpoint.queue_pager import FAR_US
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.served_rows import served_rows
from qmq.mesh.peers.rpc import PeerRpc
from qmq.model.dots import Dot
from qmq.protocols.beanstalk.aliases import Aliases
from qmq.protocols.beanstalk.calls import BeanstalkCall, FindJob, FirstJob, JobFacts
from qmq.protocols.beanstalk.gateway.jobs import (
    JobState,
    buried_queue_of,
    dots_of,
    id_of,
    is_buried,
    queue_of,
    tube_of,
    urgency_of,
)
from qmq.storage.format.queue_store import QueueRow

SENT_BODY_BYTES_MAX: Final = 128 << 10
"""Of the body in a response to a peer; a longer one is read from the store of the node that asks."""

FIRST_ROWS: Final = 100
"""Rows of a queue that are looked at for one that no client has reserved."""


class FoundJob(NamedTuple):
    """A job: the message that it is now, and the node that serves it."""

    message: Message
    node: str
    state: JobState
    left_us: int = 0
    """Until it is ready, or its reservation ends."""

    @property
    def job(self) -> int:
        return id_of(self.message)

    @property
    def tube(self) -> str:
        return tube_of(self.message.envelope.destination)


class JobFinder:
    """The jobs that this node serves, and requests about those of its peers."""

    def __init__(self, engine: EngineParts, rpc: PeerRpc) -> None:
        self._engine = engine
        self._broker = engine.broker
        self._environment = engine.environment
        self._rpc = rpc
        self._aliases = Aliases(engine)

    # In the mesh

    async def find(self, job: int) -> FoundJob | None:
        """The job with this id.

        A job that is buried or kicked becomes a new message of the node where that happens. Until the owner of the old
        one has the record of that, it reports the job as reserved. So one that is not reserved counts, or the latest.
        """
        here = await self._find_here(job)
        if here is not None and here.state is not JobState.RESERVED:
            return here
        found = await self._ask_peers(FindJob(job))
        found += [] if here is None else [here]
        return max(found, key=lambda one: (one.state is not JobState.RESERVED, one.message.timestamp_us), default=None)

    async def first(self, tube: str, state: JobState) -> FoundJob | None:
        """The next job of a tube in this state, of those that the nodes find first."""
        found = [] if (here := await self._first_here(tube, state)) is None else [here]
        found += await self._ask_peers(FirstJob(tube, state.value))
        if state is JobState.DELAYED:
            return min(found, key=lambda one: one.left_us, default=None)
        return min(found, key=_order, default=None)

    # Requests of peers

    async def answer_find(self, call: FindJob) -> JobFacts:
        return _facts(await self._find_here(call.job))

    async def answer_first(self, call: FirstJob) -> JobFacts:
        return _facts(await self._first_here(call.tube, JobState(call.state)))

    async def _ask_peers(self, call: BeanstalkCall[JobFacts]) -> list[FoundJob]:
        replies, _ = await self._rpc.ask(call)
        found = [await self._found_of(node, facts) for node, facts in replies.items() if facts.found]
        return [one for one in found if one is not None]

    async def _found_of(self, node: str, facts: JobFacts) -> FoundJob | None:
        """What a peer has found; None if its body is not here."""
        dot = parse_message_id(facts.dot)
        body = await self._body(dot) if facts.body is None else facts.body
        if body is None:
            return None
        envelope = Envelope(facts.queue, DestinationKind.QUEUE, facts.headers, True)
        message = Message(envelope, body, dot.origin, dot.sequence, facts.at_us)
        message.attempts = facts.attempts
        return FoundJob(message, node, JobState(facts.state), facts.left_us)

    async def _body(self, dot: Dot) -> bytes | None:
        """The body of a message of any node, from the store; None if it is not here."""
        await self._engine.bring_up_stores()
        rows = await self._rows(dot)
        message = self._engine.replay.message_of_row(rows[0]) if rows else None
        return None if message is None else message.body

    # What this node serves

    async def _find_here(self, job: int) -> FoundJob | None:
        message = self._in_memory(job)
        queues = self._broker.queues
        if message is None and queues.owned.has_stored:
            await self._engine.bring_up_stores()
            message = await self._stored(job)
            if message is None:
                await self._aliases.search()
                message = self._in_memory(job) or await self._stored(job)
        return None if message is None else self._state_of(message)

    def _dots(self, job: int) -> list[Dot]:
        serves = self._broker.queues.owned.serves
        origins = [origin for origin in self._engine.path.received_vector() if origin.node in serves]
        return [*dots_of(job, origins), *self._aliases.of(job)]

    def _in_memory(self, job: int) -> Message | None:
        owned = self._broker.queues.owned.by_origin
        for dot in self._dots(job):
            message = owned.get(dot.origin, {}).get(dot.sequence)
            # By its dot alone it may be another job, which has been given its id again.
            if message is not None and not message.settled and id_of(message) == job:
                return message
        return None

    async def _stored(self, job: int) -> Message | None:
        for dot in self._dots(job):
            message = await self.row(dot)
            if message is None:
                self._aliases.forget(job, dot)
            elif id_of(message) == job:
                return message
        return None

    async def row(self, dot: Dot) -> Message | None:
        """An unsettled message that only the store has."""
        for row in await self._rows(dot):
            if not self._broker.queues.paging.is_settled(row.queue, dot):
                return self._engine.replay.message_of_row(row)
        return None

    async def _rows(self, dot: Dot) -> list[QueueRow]:
        """The row of a message in the store; none if it is settled there."""
        unsettled = self._engine.store.queues.unsettled
        return await self._environment.run_blocking(unsettled, dot.origin, dot.sequence - 1, dot.sequence, 1)

    def _state_of(self, message: Message) -> FoundJob:
        queues = self._broker.queues
        now_us = self._environment.now_us()
        here, dot = self._broker.origin.node, message.dot
        for delivery in queues.in_flight_of(message.envelope.destination):
            # Nearly all have another number, which takes less time to see.
            if delivery.message.sequence == dot.sequence and delivery.message.dot == dot:
                return FoundJob(message, here, JobState.RESERVED, max(0, delivery.deadline_us - now_us))
        if any(dot in lent for lent in queues.owned.lent.values()) or dot in queues.owned.elsewhere:
            return FoundJob(message, here, JobState.RESERVED)
        return self._waiting(message)

    def _waiting(self, message: Message) -> FoundJob:
        """A job that no client has reserved."""
        here, now_us = self._broker.origin.node, self._environment.now_us()
        if is_buried(message.envelope.destination):
            return FoundJob(message, here, JobState.BURIED)
        due_us = self._broker.queues.shared.clocks.due(message)
        return FoundJob(message, here, JobState.DELAYED if due_us > now_us else JobState.READY, max(0, due_us - now_us))

    async def _first_here(self, tube: str, state: JobState) -> FoundJob | None:
        name = buried_queue_of(tube) if state is JobState.BURIED else queue_of(tube)
        queues = self._broker.queues
        queue = queues.by_name.get(name)
        if state is not JobState.DELAYED and queue is not None and queue.is_counted:
            for level in queue.levels:
                for message in level.ready:
                    if not message.settled:
                        return self._waiting(message)._replace(state=state)
                if level.behind:
                    break
        if queue is None and not queues.owned.has_stored:
            return None
        await self._engine.bring_up_stores()
        rows = await self._environment.run_blocking(
            partial(self._first_rows, name, self._environment.now_us(), is_delayed=state is JobState.DELAYED)
        )
        messages = [one for row in rows if (one := self._engine.replay.message_of_row(row)) is not None]
        for one in self._broker.bulk_settlement.waiting(name, messages):
            found = self._waiting(one)
            if found.state is state:
                return found
        return None

    def _first_rows(self, queue: str, now_us: int, *, is_delayed: bool) -> list[Any]:
        """In a worker thread: rows of a queue, in the order of delivery, or those that are due first."""
        rows = served_rows(self._broker, self._engine.store)
        if is_delayed:
            return list(rows.due(queue, now_us, FAR_US, FIRST_ROWS))
        head = rows.heads([queue], now_us).get(queue)
        found: list[Any] = []
        for priority in () if head is None else head.priorities:
            found += rows.page(queue, priority, None, now_us, FIRST_ROWS - len(found))
            if len(found) >= FIRST_ROWS:
                break
        return found


def _order(found: FoundJob) -> tuple[int, int, int]:
    """The order of ready or buried jobs of several nodes."""
    return urgency_of(found.message)


def _facts(found: FoundJob | None) -> JobFacts:
    """A job for a peer."""
    if found is None:
        return JobFacts(found=False)
    message = found.message
    return JobFacts(
        found=True,
        dot=str(message.dot),
        queue=message.envelope.destination,
        headers=message.envelope.headers,
        body=message.body if len(message.body) <= SENT_BODY_BYTES_MAX else None,
        at_us=message.timestamp_us,
        attempts=message.attempts,
        state=found.state.value,
        left_us=found.left_us,
    )
