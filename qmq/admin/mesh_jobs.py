"""Bulk jobs on all nodes of the mesh: each node settles the messages that it serves.

The node of the client asks the others one after the other, so that `count` bounds the sum. A job may take longer than
a peer request may wait: then the peer answers that the job runs, and is asked again. A request that a link loses is
sent again with the same job id, and a job of one id runs once. A node that gives no answer is named in the response.
What it had done by then stays done.

When the client has left, each node stops at its next page. A peer is asked to stop; it also stops by itself when no
node asks for the result any more.
"""

import logging
from collections.abc import Callable
from functools import partial
from math import inf
from typing import ClassVar, Final

import trio
from msgspec import Struct
from msgspec.structs import replace

from qmq.admin import bulk_jobs
from qmq.broker.messages.message import Message
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import Tasks
from qmq.errors import LogBroken, Refused
from qmq.mesh.peers.calls import Count, Facts, PeerCall, Text
from qmq.mesh.peers.once import Once, Run
from qmq.mesh.peers.rpc import ANSWER_SECONDS, PeerRpc
from qmq.model.members import Membership
from qmq.settings.definitions.live import LiveDefinitions

REPORT_SECONDS: Final = ANSWER_SECONDS / 4
"""After so long a node answers that the job still runs: the answer must arrive while it is waited for."""

PAUSE_SECONDS: Final = 0.1
"""Between two requests for the result of a job: a peer may answer at once that the job still runs."""

UNASKED_SECONDS: Final = 10.0
"""After so long without a request for its result, a job of a peer stops: the node that asked is gone."""

STOP_SECONDS: Final = 10.0
"""For a peer to end a job that it is asked to stop; a page takes less."""

JOBS_KEPT: Final = 64
"""Finished jobs of peers whose result is remembered, for a request that is sent again."""

log = logging.getLogger("qmq.admin")


class JobReply(Struct, frozen=True, omit_defaults=True):
    """The result of a job (`run_bulk_job`), or that it still runs, in the incarnation `origin`."""

    messages: Count | None = None
    reason: Text | None = None
    serves: list[Text] = []
    known: bool = True
    running: bool = False
    origin: Text = ""

    def __post_init__(self) -> None:
        if not self.running and (self.messages is None or self.reason is None):
            raise ValueError("neither the result of a job nor that it runs")


class JobCall(PeerCall[JobReply], frozen=True):
    """Run a job, or go on with what the incarnation `origin` has begun, or stop it."""

    kind: ClassVar = "bulk-job"
    job: bulk_jobs.BulkJob
    origin: Text
    stop: bool


class MeshJobs:
    """Jobs that this node runs for its clients and for peers, one at a time."""

    def __init__(
        self, engine: EngineParts, tasks: Tasks, membership: Membership, rpc: PeerRpc, definitions: LiveDefinitions
    ) -> None:
        self._engine = engine
        self._membership = membership
        self._rpc = rpc
        self._definitions = definitions
        self._turn = trio.CapacityLimiter(1)
        self._of_peers = Once[JobReply](tasks.spawn, JOBS_KEPT)

    def new_id(self) -> str:
        """An id for a job that no other job of the mesh has."""
        return f"{self._engine.broker.origin}-{self._engine.environment.rng.getrandbits(64):016x}"

    async def here(self, job: bulk_jobs.BulkJob, coverage: bulk_jobs.Coverage | None = None) -> Facts:
        """Run `job` on this node only; see `run_bulk_job`."""
        async with self._turn:
            return await bulk_jobs.run_bulk_job(self._engine, self._definitions, job, coverage)

    async def drop(self, queue: str, covers: Callable[[Message], bool], check: Callable[[], None]) -> tuple[int, str]:
        """Settle on this node the messages that `covers` names; how many, and why some are left.

        `check` is called before each page; it raises Refused when the job must end.
        """
        job = bulk_jobs.BulkJob(verb="delete", queue=queue, id=self.new_id(), is_forced=True)
        facts = await self.here(job, bulk_jobs.Coverage(covers, check))
        return facts["messages"], facts["reason"]

    async def everywhere(self, job: bulk_jobs.BulkJob, check: Callable[[], None] = lambda: None) -> Facts:
        """Run `job` on all nodes: the sum of `messages`, the first `reason`, and the nodes that are missing.

        `taken_over` names nodes that are no loss, because another one has served their messages: node → that one.

        Consumers are the reason, whatever hinders another node: because of them a deletion is refused as a whole.
        When `check` raises Refused, the job stops, and nodes that were not asked are missing.
        """
        here = self._engine.broker.origin.node
        messages = asked = 0
        reason = ""
        is_known = False
        unheard: list[str] = []
        served: dict[str, str] = {}
        for name in [here, *sorted(self._membership.peers)]:
            if job.count and messages >= job.count:
                break
            asked += 1
            why = _why_not(check)
            if why:
                reason = reason or why
                unheard.append(name)
                continue
            part = replace(job, count=job.count - messages if job.count else 0)
            reply: JobReply | None
            if name == here:
                reply = JobReply(**await self.here(part, bulk_jobs.all_until(check)))
            else:
                reply = await self._at(name, part, check)
            if reply is None:
                unheard.append(name)
                continue
            served |= {owner: name for owner in reply.serves if owner != name}
            messages += reply.messages or 0
            is_known = is_known or reply.known
            why = reply.reason or ""
            if not reason or why.startswith(bulk_jobs.HAS_CONSUMERS):
                reason = why or reason
            if why.startswith(bulk_jobs.NOT_SERVING):
                unheard.append(name)
        taken_over = {name: served[name] for name in unheard if name in served}
        if taken_over and reason.startswith(bulk_jobs.NOT_SERVING) and len(taken_over) == len(unheard):
            reason = ""
        missing = [name for name in unheard if name not in taken_over]
        return {
            "messages": messages,
            "reason": reason,
            "nodes_asked": asked,
            "nodes_answered": asked - len(unheard),
            "nodes_missing": missing,
            **({"taken_over": taken_over} if taken_over else {}),
            **({} if is_known or missing else bulk_jobs.UNKNOWN),
        }

    async def _at(self, peer: str, job: bulk_jobs.BulkJob, check: Callable[[], None]) -> JobReply | None:
        """The result of a peer; None when it does not answer."""
        origin = ""
        stop_at = inf
        while trio.current_time() < stop_at:
            if stop_at == inf and _why_not(check):
                stop_at = trio.current_time() + STOP_SECONDS
            reply = await self._rpc.ask_one(peer, JobCall(job, origin, stop_at < inf), ANSWER_SECONDS)
            if reply is None or not reply.running:
                return reply
            # A later incarnation does not know what this one has done, and must not begin again.
            origin = reply.origin
            log.debug("= %s still works on %s of %s", peer, job.verb, job.queue)
            await trio.sleep(PAUSE_SECONDS)
        return None

    async def answer(self, call: JobCall) -> JobReply:
        """The reply of this node: the result, or that the job still runs. Raises Refused."""
        job = call.job
        if call.origin and job.id not in self._of_peers:
            raise Refused("bad-destination", f"the job {job.id} was begun by {call.origin}")
        act = partial(self._run, job)
        reply = await self._of_peers.do(job.id, act, seconds=REPORT_SECONDS, is_stopped=call.stop)
        return reply or JobReply(running=True, origin=str(self._engine.broker.origin))

    async def _run(self, job: bulk_jobs.BulkJob, run: Run[JobReply]) -> JobReply:
        def check() -> None:
            if run.is_stopped or trio.current_time() > run.asked_at + UNASKED_SECONDS:
                raise Refused(bulk_jobs.CLIENT_LEFT, "The client that asked for it has left.")

        try:
            return JobReply(**await self.here(job, bulk_jobs.all_until(check)))
        except LogBroken:
            raise
        except Exception:
            log.exception("! %s of %s failed", job.verb, job.queue)
            return JobReply(0, "internal-error: the log of the node says more")


def _why_not(check: Callable[[], None]) -> str:
    """Why `check` says that the job must end; "": it does not."""
    try:
        check()
    except Refused as refused:
        return f"{refused.code}: {refused.message}"
    return ""
