"""What each command of a beanstalkd client does, and its reply.

Puts, deletes, releases and buries of one read are decided together (`decisions`); every other command after those
before it. The replies wait for the disk, the commands do not.

These commands share what their client has: the tube in use, those that are watched, and the jobs that are reserved. The
commands that only look at jobs and tubes are in `inspection`.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from qmq.access.rights import Rights
from qmq.access.rules import Action
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Delivery
from qmq.broker.messages.copy_budget import COPIES_LEFT
from qmq.broker.messages.message import Message
from qmq.engine.parts import EngineParts
from qmq.errors import Refused
from qmq.gateways.rules import Rules
from qmq.protocols.beanstalk.codec import replies as reply
from qmq.protocols.beanstalk.codec.commands import BeanstalkCommand, BeanstalkVerb
from qmq.protocols.beanstalk.decisions import Decisions, PutJob, SettleJob
from qmq.protocols.beanstalk.gateway import jobs
from qmq.protocols.beanstalk.gateway.encoder import BeanstalkEncoder, OrderedReplies, ReplySlot, refusal_reply
from qmq.protocols.beanstalk.inspection import INSPECTIONS, Inspection
from qmq.protocols.beanstalk.jobs import FoundJob
from qmq.protocols.beanstalk.part import DEFAULT_TUBE, BeanstalkPart
from qmq.protocols.beanstalk.statistics import JobStatistics
from qmq.sessions.clients.refusals import Refusals
from qmq.sessions.clients.session import ClientSession
from qmq.sessions.frame_loop import FrameLoops
from qmq.sessions.pull_consumer import PullConsumer
from qmq.verbs.queues import PauseQueue
from qmq.verbs.verb import NO_HEADERS
from qmq.wire.stomp import Frame, Head

HEADS_MAX: Final = 256
"""Different puts of a connection that are remembered; at the bound all are forgotten."""


@dataclass(frozen=True, slots=True)
class BeanstalkParts:
    """What the beanstalkd connections of one node are built of: parts of this room, and of others."""

    part: BeanstalkPart
    statistics: JobStatistics
    engine: EngineParts
    loops: FrameLoops
    rules: Rules
    refusals: Refusals
    tubes_max: int
    """That one connection may watch."""


class BeanstalkCommands:
    """The commands of one client, and what they have set: the tube it uses, and those that it watches."""

    def __init__(
        self,
        parts: BeanstalkParts,
        session: ClientSession,
        rights: Rights,
        encoder: BeanstalkEncoder,
        replies: OrderedReplies,
        pull: PullConsumer,
        job_bytes_max: int,
    ) -> None:
        self._parts = parts
        self._broker = parts.engine.broker
        self._environment = parts.engine.environment
        self._path = parts.engine.path
        self._pull = pull
        self._session = session
        self._rights = rights
        self._replies = replies
        self._part = part = parts.part
        self._inspection = Inspection(part, parts.statistics, rights, parts.rules, session.id, job_bytes_max)
        self._check = self._inspection.check
        self._heads: dict[tuple[str, int, int, int], Head] = {}
        self.used = DEFAULT_TUBE
        self.watched: dict[str, None] = {DEFAULT_TUBE: None}
        self.is_producer = self.is_worker = False
        self.has_left = False
        sets = frozenset({jobs.ID, COPIES_LEFT})
        gateway = self._gateway = parts.loops.gateway_of(session, encoder, rights, is_atomic=True, sets=sets)
        decisions = Decisions(parts.loops, parts.engine, part, session, gateway, encoder, replies, pull)
        self._decisions, self._reservations = decisions, decisions.reservations
        self.flush = decisions.flush
        self._part.users.add(self)
        self._part.connections += 1

    @property
    def is_waiting(self) -> bool:
        return not self.has_left and self._reservations.is_waiting

    def wake(self) -> None:
        self._reservations.wake()

    @property
    def is_over(self) -> bool:
        """Nothing further is obeyed."""
        return self.has_left or self._session.ending or self._session.finishing

    async def obey(self, command: BeanstalkCommand) -> None:
        """Decide a command, or collect it until `flush`."""
        self._part.commands[command.verb.value] += 1
        handler = AT_ONCE.get(command.verb)
        if handler is not None:
            handler(self, command)
            return
        if command.verb is BeanstalkVerb.DELETE and self._delete_reserved(command):
            return
        await self._decisions.flush()
        if self.is_over:
            return
        slot = self._replies.slot()
        self._session.outbox.flush()
        try:
            inspect = INSPECTIONS.get(command.verb)
            if inspect is not None:
                await inspect(self._inspection, command, slot)
            else:
                await HANDLERS[command.verb](self, command, slot)
        except Refused as refused:
            self._refuse(refused, slot)

    def _refuse(self, refused: Refused, slot: ReplySlot) -> None:
        self._parts.refusals.note_client(self._session, refused)
        slot.fill(refusal_reply(refused))

    def finish(self) -> None:
        """The client gets no job any more."""
        self._pull.stop()

    def stop(self) -> None:
        self._part.users.discard(self)

    def leave(self) -> None:
        """The connection has ended."""
        self.has_left = True
        self._reservations.forget()
        del self._decisions, self._reservations, self._gateway, self.flush

    # Commands that are decided together, or need no decision

    def _put_job(self, command: BeanstalkCommand) -> None:
        self.is_producer = True
        priority, delay, ttr, _ = command.numbers
        key = (self.used, priority, delay, ttr)
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            head = self._heads[key] = jobs.put_head(self.used, priority, delay, ttr)
        self._part.count(self.used, "put")
        self._decisions.add(PutJob(self._replies.slot(is_put=True), head, command.body))

    def _release(self, command: BeanstalkCommand) -> None:
        job, priority, delay = command.numbers
        delivery = self._reservations.of(job)
        if delivery is None:
            self._replies.reply(reply.NOT_FOUND)
            return
        self._reservations.done(job)
        slot = self._replies.slot(reply.RELEASED)
        message = delivery.message
        queue = message.envelope.destination
        if priority == jobs.job_priority(message) and not delay and queue == jobs.queue_of(jobs.tube_of(queue)):
            self._part.released(job)
            self._decisions.add(SettleJob(slot, delivery, is_released=True))
            return
        counts = self._part.carried(message, is_reserved=True)
        head = self._next_head(
            message, jobs.queue_of(jobs.tube_of(queue)), priority, delay, counts._replace(releases=counts.releases + 1)
        )
        self._decisions.add(PutJob(slot, head, message.body, delivery))

    def _bury(self, command: BeanstalkCommand) -> None:
        job, priority = command.numbers
        delivery = self._reservations.of(job)
        if delivery is None:
            self._replies.reply(reply.NOT_FOUND)
            return
        self._reservations.done(job)
        message = delivery.message
        counts = self._part.carried(message, is_reserved=True)
        queue = jobs.buried_queue_of(jobs.tube_of(message.envelope.destination))
        head = self._next_head(message, queue, priority, 0, counts._replace(buries=counts.buries + 1))
        self._decisions.add(PutJob(self._replies.slot(reply.BURIED), head, message.body, delivery))

    def _touch(self, command: BeanstalkCommand) -> None:
        delivery = self._reservations.of(command.numbers[0])
        if delivery is not None:
            self._reservations.touch(delivery)
        self._replies.reply(reply.NOT_FOUND if delivery is None else reply.TOUCHED)

    def _use(self, command: BeanstalkCommand) -> None:
        self.used = command.tube
        self._replies.reply(reply.using(self.used))

    def _watch(self, command: BeanstalkCommand) -> None:
        if command.tube not in self.watched and len(self.watched) >= self._parts.tubes_max:
            self._replies.reply(reply.OUT_OF_MEMORY)
            return
        self.watched[command.tube] = None
        self._replies.reply(reply.watching(len(self.watched)))

    def _ignore_tube(self, command: BeanstalkCommand) -> None:
        if command.tube in self.watched and len(self.watched) == 1:
            self._replies.reply(reply.NOT_IGNORED)
            return
        self.watched.pop(command.tube, None)
        self._reservations.reap(self.watched)
        self._replies.reply(reply.watching(len(self.watched)))

    def _list_used(self, command: BeanstalkCommand) -> None:
        self._replies.reply(reply.using(self.used))

    def _list_watched(self, command: BeanstalkCommand) -> None:
        self._replies.reply(reply.yaml_list(self.watched))

    # Commands with a decision of their own

    async def _delete(self, command: BeanstalkCommand, slot: ReplySlot) -> None:
        job = command.numbers[0]
        found = await self._part.jobs.find(job)
        if found is None or found.state is jobs.JobState.RESERVED:
            slot.fill(reply.NOT_FOUND)
            return
        self._check(Action.SUBSCRIBE, found.message.envelope.destination)
        is_deleted = await self._part.changes.delete(found)
        self._part.count(found.tube, "delete")
        slot.fill(_changed(is_deleted, reply.DELETED))

    def _delete_reserved(self, command: BeanstalkCommand) -> bool:
        """Delete a job that this connection has reserved; False for another one."""
        job = command.numbers[0]
        delivery = self._reservations.of(job)
        if delivery is None:
            return False
        self._reservations.done(job)
        self._part.count(jobs.tube_of(delivery.message.envelope.destination), "delete")
        self._decisions.add(SettleJob(self._replies.slot(reply.DELETED), delivery))
        return True

    async def _reserve(self, command: BeanstalkCommand, slot: ReplySlot) -> None:
        self.is_worker = True
        seconds = float(command.numbers[0]) if command.numbers else None
        await self._reservations.reserve(list(self.watched), slot, seconds, self._session.until_left)

    async def _reserve_job(self, command: BeanstalkCommand, slot: ReplySlot) -> None:
        """The job becomes a new message here that this connection has, and the former one is settled by its node."""
        job = command.numbers[0]
        self.is_worker = True
        found = await self._part.jobs.find(job)
        if found is None or found.state is jobs.JobState.RESERVED or self.is_over:
            slot.fill(reply.NOT_FOUND)
            return
        delivery = await self._taken(found) if await self._part.changes.waits(found) else None
        if delivery is None:
            slot.fill(reply.NOT_FOUND)
            return
        is_mine: bool | None = False
        with suppress(Refused):
            is_mine = await self._part.changes.delete(found)
        if is_mine is False:
            # Another one has it: there must not be two of them.
            await self._withdraw(delivery)
        if self.is_over:
            return
        # If the node of the former message does not respond, there may be two of them; else there might be none.
        if is_mine is not False and self._reservations.is_valid(delivery):
            slot.fill(reply.reserved(job, delivery.message.body))
            return
        self._reservations.done(job)
        slot.fill(reply.NOT_FOUND)

    async def _withdraw(self, delivery: Delivery) -> None:
        """Settle the copy of a job; if its reservation has ended meanwhile, it waits in its tube."""
        if self._reservations.is_valid(delivery):
            out = Outcome(self._session.id, self._environment.now_us())
            self._broker.settle([delivery], out)
            self._path.submit(out)
        else:
            with suppress(Refused):
                here = self._broker.origin.node
                await self._part.changes.delete(FoundJob(delivery.message, here, jobs.JobState.READY))

    async def _taken(self, found: FoundJob) -> Delivery | None:
        """The delivery of a copy of a job to this connection; None if that cannot be. Durable on return."""
        message, queue = found.message, jobs.queue_of(found.tube)
        self._check(Action.SUBSCRIBE, message.envelope.destination)
        # Those that earlier calls have left behind: a connection has a bound of them.
        self._reservations.reap(self.watched)
        subscription = await self._reservations.subscription(found.tube)
        if subscription is None:
            return None
        counts = self._part.carried(message, is_reserved=False)
        head = self._next_head(message, queue, jobs.job_priority(message), 0, counts)
        await self._path.slot(self._session.id)
        if self.is_over:
            return None
        out = Outcome(self._session.id, self._environment.now_us())
        copy = self._gateway.send_to(Frame(head, message.body, None), subscription, out.now_us, out)
        delivery = None if copy is None else next(reversed(subscription.in_flight.values()))
        if delivery is not None:
            self._reservations.keep(delivery)
        self._path.submit(out)
        await self._path.flushed()
        if delivery is not None:
            delivery.sent = True
        return delivery

    def _next_head(self, message: Message, queue: str, priority: int, delay: int, counts: jobs.JobCounts) -> Head:
        ahead_us = self._broker.clocks.apart_us(message.origin.node) or 0
        return jobs.next_head(message, queue, priority, delay, counts, ahead_us)

    async def _kick(self, command: BeanstalkCommand, slot: ReplySlot) -> None:
        tube = self.used
        self._check_kick(tube)
        self._check(Action.SUBSCRIBE, jobs.buried_queue_of(tube))
        slot.fill(reply.kicked(await self._part.changes.kick_tube(tube, command.numbers[0])))

    async def _kick_job(self, command: BeanstalkCommand, slot: ReplySlot) -> None:
        found = await self._part.jobs.find(command.numbers[0])
        if found is None or found.state not in (jobs.JobState.BURIED, jobs.JobState.DELAYED):
            slot.fill(reply.NOT_FOUND)
            return
        self._check_kick(found.tube)
        self._check(Action.SUBSCRIBE, found.message.envelope.destination)
        slot.fill(_changed(await self._part.changes.kick(found), reply.KICKED_ONE))

    def _check_kick(self, tube: str) -> None:
        self._check(Action.SUBSCRIBE, jobs.queue_of(tube))
        self._check(Action.SEND, jobs.queue_of(tube))

    async def _peek_first(self, command: BeanstalkCommand, slot: ReplySlot) -> None:
        state = PEEKED[command.verb]
        found = await self._part.jobs.first(self.used, state)
        self._inspection.show(found, 0 if found is None else found.job, slot)

    async def _pause_tube(self, command: BeanstalkCommand, slot: ReplySlot) -> None:
        tube = command.tube
        self._rights.check_needs(PauseQueue.needs(jobs.queue_of(tube), NO_HEADERS, None))
        if await self._parts.statistics.of_tube(tube) is None:
            slot.fill(reply.NOT_FOUND)
            return
        if not await self._part.pause_everywhere(tube, command.numbers[0]):
            slot.fill(reply.OUT_OF_MEMORY)
            return
        self._part.count(tube, "pause")
        slot.fill(reply.PAUSED)

    async def _quit(self, command: BeanstalkCommand, slot: ReplySlot) -> None:
        slot.fill(b"")
        self._session.end_in_order()


def _changed(done: bool | None, word: bytes) -> bytes:
    """The reply to a change of a job; None: whether it is done is not known."""
    return reply.INTERNAL_ERROR if done is None else word if done else reply.NOT_FOUND


PEEKED: Final = {
    BeanstalkVerb.PEEK_READY: jobs.JobState.READY,
    BeanstalkVerb.PEEK_DELAYED: jobs.JobState.DELAYED,
    BeanstalkVerb.PEEK_BURIED: jobs.JobState.BURIED,
}

AT_ONCE: Final[Mapping[BeanstalkVerb, Callable[[BeanstalkCommands, BeanstalkCommand], None]]] = {
    BeanstalkVerb.PUT: BeanstalkCommands._put_job,
    BeanstalkVerb.RELEASE: BeanstalkCommands._release,
    BeanstalkVerb.BURY: BeanstalkCommands._bury,
    BeanstalkVerb.TOUCH: BeanstalkCommands._touch,
    BeanstalkVerb.USE: BeanstalkCommands._use,
    BeanstalkVerb.WATCH: BeanstalkCommands._watch,
    BeanstalkVerb.IGNORE: BeanstalkCommands._ignore_tube,
    BeanstalkVerb.LIST_TUBE_USED: BeanstalkCommands._list_used,
    BeanstalkVerb.LIST_TUBES_WATCHED: BeanstalkCommands._list_watched,
}

HANDLERS: Final[Mapping[BeanstalkVerb, Callable[[BeanstalkCommands, BeanstalkCommand, ReplySlot], Awaitable[None]]]] = {
    BeanstalkVerb.DELETE: BeanstalkCommands._delete,
    BeanstalkVerb.RESERVE: BeanstalkCommands._reserve,
    BeanstalkVerb.RESERVE_WITH_TIMEOUT: BeanstalkCommands._reserve,
    BeanstalkVerb.RESERVE_JOB: BeanstalkCommands._reserve_job,
    BeanstalkVerb.KICK: BeanstalkCommands._kick,
    BeanstalkVerb.KICK_JOB: BeanstalkCommands._kick_job,
    BeanstalkVerb.PEEK_READY: BeanstalkCommands._peek_first,
    BeanstalkVerb.PEEK_DELAYED: BeanstalkCommands._peek_first,
    BeanstalkVerb.PEEK_BURIED: BeanstalkCommands._peek_first,
    BeanstalkVerb.PAUSE_TUBE: BeanstalkCommands._pause_tube,
    BeanstalkVerb.QUIT: BeanstalkCommands._quit,
}
