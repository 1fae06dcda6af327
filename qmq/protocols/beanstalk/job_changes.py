"""Jobs that are deleted and kicked, in the whole mesh.

A job is decided about by the node that serves its message, so a request goes there. Messages that are with a consumer,
here or elsewhere, are reserved, and left to it. A node that may not deliver yet, because it has just started or takes
over, is waited for.

A request is sent again if its link ends, and its response may be lost. So each request has an id, by which a node knows
what it has done already, or is doing.
"""

from collections.abc import Awaitable, Callable
from dataclasses import InitVar, dataclass
from functools import partial
from typing import Final, TypeVar

import trio

from qmq.admin.bulk_jobs import NOT_SERVING, BulkJob
from qmq.admin.inspection.message_search import parse_message_id
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.message import Message
from qmq.engine.checkpoint.queue_pager import FAR_US
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.served_rows import served_rows
from qmq.errors import Refused
from qmq.mesh.peers.calls import Facts
from qmq.mesh.peers.once import Once
from qmq.mesh.peers.rpc import PeerRpc
from qmq.model.dots import Dot
from qmq.protocols.beanstalk.calls import ChangeJob, CheckJob, DeleteJob, JobDone, JobsKicked, KickJob, KickTube
from qmq.protocols.beanstalk.gateway.jobs import buried_queue_of, is_buried, kick_lines, queue_of, tube_of
from qmq.protocols.beanstalk.jobs import FoundJob, JobFinder
from qmq.replication.mesh import Mesh

KICKED_ROWS: Final = 100
"""Delayed jobs that are kicked at once."""

HELD_SECONDS: Final = 10.0
"""How long a command waits for a node that may not deliver yet."""

HELD_PAUSE_SECONDS: Final = 0.1

REQUESTS_MAX: Final = 1_000
"""Of peers that are remembered with what was done."""

T = TypeVar("T")

Act = Callable[[Message, Outcome], bool]


@dataclass(eq=False, repr=False)
class JobChanges:
    """Changes of the jobs that this node serves, and requests for those of its peers."""

    _engine: EngineParts
    _mesh: Mesh
    _rpc: PeerRpc
    _finder: JobFinder
    _run_bulk_job: Callable[[BulkJob], Awaitable[Facts]]
    spawn: InitVar[Callable[[Callable[[], object]], None]]

    def __post_init__(self, spawn: Callable[[Callable[[], object]], None]) -> None:
        self._broker = self._engine.broker
        self._environment = self._engine.environment
        self._numbers = 0
        self._of_peers = Once[int](spawn, REQUESTS_MAX)

    async def waits(self, found: FoundJob) -> bool:
        """Whether no client has reserved a job, at its node. Raises Refused while that node may not deliver."""
        return await self._do(found, CheckJob) is True

    async def delete(self, found: FoundJob) -> bool | None:
        """Settle a job that no client has reserved; False if it is gone, or reserved by now. Durable on return.

        None: its node does not respond, so it may be settled. Raises Refused while its node may not deliver.
        """
        return await self._do(found, DeleteJob)

    async def kick(self, found: FoundJob) -> bool | None:
        """Make a buried or delayed job ready; returns and raises as `delete`."""
        return await self._do(found, KickJob)

    async def _do(self, found: FoundJob, change: type[ChangeJob]) -> bool | None:
        dot = found.message.dot
        if found.node == self._broker.origin.node:
            return await _when_serving(partial(self._act_here, dot, self._action(change)))
        call = change(str(dot), self._new_id())

        async def ask() -> tuple[bool | None] | None:
            reply = await self._rpc.ask_one(found.node, call)
            if reply is None:
                return (None,)
            return None if reply.done is None else (reply.done,)

        return (await _when_serving(ask))[0]

    def _new_id(self) -> str:
        self._numbers += 1
        return f"{self._broker.origin}/{self._numbers}"

    async def kick_tube(self, tube: str, bound: int) -> int:
        """Make up to `bound` jobs ready: buried ones, or, if there are none, delayed ones.

        Raises Refused if it finds none while a node may not deliver, or does not respond: if that one has buried jobs,
        the delayed ones stay.
        """
        refused: Refused | None = None
        for what in ("buried", "delayed"):
            count = 0
            for node in (self._broker.origin.node, *sorted(self._mesh.followers())):
                if count >= bound:
                    break
                try:
                    count += await self._kick_at(node, tube, bound - count, what)
                except Refused as error:
                    refused = error
            if count:
                return count
            if refused is not None:
                raise refused
        return 0

    async def _kick_at(self, node: str, tube: str, bound: int, what: str) -> int:
        if node == self._broker.origin.node:
            return await _when_serving(partial(self._kick_here, tube, bound, what))
        call = KickTube(tube, bound, what, self._new_id())

        async def ask() -> int | None:
            reply = await self._rpc.ask_one(node, call)
            if reply is None:
                raise Refused(NOT_SERVING, f"The node {node} does not respond; it may have kicked jobs.")
            return reply.count

        return await _when_serving(ask)

    # Requests of peers

    async def answer_change(self, call: ChangeJob) -> JobDone:
        dot, action = parse_message_id(call.dot), self._action(type(call))
        done = await self._of_peers.do(call.id, lambda run: self._act_here(dot, action))
        return JobDone(None if done is None else bool(done))

    async def answer_kick(self, call: KickTube) -> JobsKicked:
        kick = self._kick_here
        return JobsKicked(await self._of_peers.do(call.id, lambda run: kick(call.tube, call.bound, call.what)))

    # What this node serves

    def _action(self, change: type[ChangeJob]) -> Act:
        bulk = self._broker.bulk_settlement
        if change is CheckJob:
            return lambda message, out: True
        if change is DeleteJob:
            return lambda message, out: bulk.purge([message], out) == 1
        return self._kick_one

    def _kick_one(self, message: Message, out: Outcome) -> bool:
        bulk, queue = self._broker.bulk_settlement, message.envelope.destination
        if is_buried(queue):
            moved, refused = bulk.move([message], queue_of(tube_of(queue)), out)
            if refused is not None:
                raise refused
            return moved == 1
        due_us = self._broker.queues.shared.clocks.due(message)
        return due_us > out.now_us and bulk.hasten(message, kick_lines(message), out)

    async def _act_here(self, dot: Dot, act: Act) -> bool | None:
        """Do something with a message that waits here. False if none does; None while this node may not deliver.

        Durable on return. Raises Refused.
        """
        queues, path = self._broker.queues, self._engine.path
        if dot.sequence not in queues.owned.by_origin.get(dot.origin, {}):
            await self._engine.bring_up_stores()
        await path.slot(asks=True)
        # No checkpoint ends between the reading of a row and its settlement.
        async with self._engine.pager.load_lock:
            one = queues.owned.by_origin.get(dot.origin, {}).get(dot.sequence) or await self._finder.row(dot)
            if one is None or dot.origin.node not in queues.owned.serves:
                return False
            if queues.held:
                return None
            waiting = self._broker.bulk_settlement.waiting(one.envelope.destination, [one])
            out = Outcome(now_us=self._environment.now_us())
            done = bool(waiting) and act(waiting[0], out)
            path.submit(out)
        await path.flushed()
        return done

    async def _kick_here(self, tube: str, bound: int, what: str) -> int | None:
        """The number of jobs that this node has made ready; None while it may not deliver."""
        name = buried_queue_of(tube) if what == "buried" else queue_of(tube)
        queues = self._broker.queues
        if name not in queues.by_name and not queues.owned.has_stored:
            return 0
        if queues.held:
            return None
        if what == "buried":
            job = BulkJob(verb="move", queue=name, id=f"kick {tube}", target=queue_of(tube), count=bound)
            return int((await self._run_bulk_job(job))["messages"]) if bound else 0
        count = 0
        while count < bound:
            most = min(KICKED_ROWS, bound - count)
            done = await self._kick_delayed(name, most)
            if done is None:
                return count or None
            count += done
            if done < most:
                break
        return count

    async def _kick_delayed(self, queue: str, most: int) -> int | None:
        path = self._engine.path
        await self._engine.bring_up_stores()
        await path.slot(asks=True)
        bulk = self._broker.bulk_settlement
        async with self._engine.pager.load_lock:
            now_us = self._environment.now_us()
            served = served_rows(self._broker, self._engine.store)
            rows = await self._environment.run_blocking(served.due, queue, now_us, FAR_US, most)
            if self._broker.queues.held:
                return None
            replay = self._engine.replay
            messages = [message for row in rows if (message := replay.message_of_row(row)) is not None]
            out = Outcome(now_us=self._environment.now_us())
            done = [self._kick_one(message, out) for message in bulk.waiting(queue, messages)]
            bulk.finish(queue, out)
            path.submit(out)
        await path.flushed()
        return sum(done)


async def _when_serving(act: Callable[[], Awaitable[T | None]]) -> T:
    """What `act` returns once its node may deliver; until then it returns None. Raises Refused after `HELD_SECONDS`."""
    until = trio.current_time() + HELD_SECONDS
    while (done := await act()) is None:
        if trio.current_time() >= until:
            raise Refused(NOT_SERVING, "The node of this job may not deliver its queue messages now; see its status.")
        await trio.sleep(HELD_PAUSE_SECONDS)
    return done
