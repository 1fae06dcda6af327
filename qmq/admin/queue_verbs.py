"""The verbs about queues, and about what else is declared and deleted: bulk jobs, pauses, deletions, declarations."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from qmq.admin.bulk_jobs import CLIENT_LEFT, NOT_SERVING, BulkJob, all_until
from qmq.admin.deletion import DestinationDeletion
from qmq.admin.inspection.message_search import is_message_id
from qmq.admin.mesh_jobs import MeshJobs
from qmq.admin.mesh_messages import MessageVerbs
from qmq.admin.routing_requests import RoutingRequests
from qmq.broker.broker import Broker
from qmq.broker.messages.destination import DestinationKind, is_pattern, kind_of
from qmq.broker.selectors import compile_selector
from qmq.errors import Refused
from qmq.mesh.peers.calls import Facts
from qmq.model.routing_names import PREFIX
from qmq.sessions.clients.session import ClientSession
from qmq.settings.definitions.declare import DeclareRequests
from qmq.settings.definitions.declared_queues import DeclaredQueues
from qmq.settings.definitions.paused_queues import PausedQueues
from qmq.verbs import messages, queues
from qmq.verbs.verb import VerbRequest

PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "delivery": ("delivery",),
    "acceptance": ("acceptance",),
    "both": ("delivery", "acceptance"),
}
"""What pause and resume are about, by their option `part`."""


class BulkVerbs:
    """Purge, move and redrive."""

    def __init__(self, jobs: MeshJobs, declared_queues: DeclaredQueues, sessions: Mapping[int, ClientSession]) -> None:
        self._jobs = jobs
        self._declared_queues = declared_queues
        self._sessions = sessions

    async def move(self, asked: VerbRequest[queues.MoveMessages]) -> Facts:
        target = asked.options.to
        _check_queue(target, "The header to")
        if target == asked.about:
            raise Refused("bad-destination", f"{target} is moved to itself.")
        return {"to": target, **await self.respond(asked, target)}

    async def respond(self, asked: VerbRequest[queues.BulkVerb], target: str = "") -> Facts:
        _check_queue(asked.about, asked.verb)
        selector = asked.options.selector.strip()
        if selector:
            compile_selector(selector)
        ids = _message_ids(asked.options.ids)
        if not ids and "ids" in asked.headers:
            raise Refused("bad-ids", "The header ids names no message; leave it out for all messages.")
        count = asked.options.count
        jobs = self._jobs
        job = BulkJob(
            verb=asked.verb,
            queue=asked.about,
            id=jobs.new_id(),
            target=target,
            selector=selector,
            ids=ids,
            # Each is found once, so a job ends with the last of them and need not look at the rest of the queue.
            count=min(count or len(ids), len(ids)) if ids else count,
            is_dry_run=asked.is_dry_run,
        )

        def check_client() -> None:
            session = self._sessions.get(asked.session)
            if session is not None and session.has_left:
                raise Refused(CLIENT_LEFT, "The client that asked for it has left.")

        facts = await (jobs.everywhere(job, check_client) if asked.is_mesh else jobs.here(job, all_until(check_client)))
        facts.pop("serves", None)
        if self._declared_queues.definitions_of(asked.about):
            facts.pop("known", None)
        if not asked.is_mesh and facts["reason"].startswith(NOT_SERVING):
            raise Refused(NOT_SERVING, facts["reason"].partition(": ")[2])
        return facts


@dataclass(eq=False, repr=False)
class QueueVerbs:
    """Pause, resume, delete and declare."""

    _broker: Broker
    _paused_queues: PausedQueues
    _deletion: DestinationDeletion
    _declarations: DeclareRequests
    _routing: RoutingRequests
    _message_verbs: MessageVerbs

    async def pause_or_resume(self, asked: VerbRequest[queues.PauseQueue | queues.ResumeQueue]) -> Facts:
        """Pause or resume parts of a queue, on all nodes."""
        _check_queue(asked.about, asked.verb)
        parts = dict.fromkeys(PARTS[asked.options.part], isinstance(asked.options, queues.PauseQueue))
        return await self._paused_queues.set(asked.about, parts, asked.user, is_dry_run=asked.is_dry_run)

    async def delete(self, asked: VerbRequest[queues.Delete]) -> Facts:
        if is_pattern(asked.about):
            raise Refused("bad-pattern", "A destination is deleted by its name; patterns are not supported.")
        kind = kind_of(asked.about)
        if kind is DestinationKind.FANOUT:
            return await self._deletion.fanout(asked.about, is_dry_run=asked.is_dry_run)
        if kind is DestinationKind.TOPIC:
            return await self._deletion.retained(asked.about, is_dry_run=asked.is_dry_run)
        if kind is DestinationKind.QUEUE:
            return await self._deletion.queue(asked.about, asked.options, asked.user)
        if kind is DestinationKind.EXCHANGE:
            return await self._routing.delete_exchange(asked)
        raise Refused("not-supported", f"Queues, topics, fanouts and exchanges can be deleted, not {asked.about}.")

    async def declare(self, asked: VerbRequest[queues.Declare]) -> Facts:
        if asked.about.startswith(PREFIX):
            return await self._routing.declare_exchange(asked)
        _check_queue(asked.about, asked.verb)

        async def is_in_use() -> bool:
            if asked.about in self._broker.queues.by_name:
                return True
            first = VerbRequest(messages.Peek(count=1), asked.about, {}, asked.principal)
            return bool((await self._message_verbs.peek(first))["messages"])

        return await self._declarations.declare(asked, is_in_use)

    async def end_orphan(self, asked: VerbRequest[queues.Declare]) -> None:
        """End a queue whose connection is gone, as it would end by itself, because it is declared again.

        Raises Refused if the new declaration would be; then nothing has changed.
        """
        await self.declare(asked._replace(options=msgspec.structs.replace(asked.options, dry_run=True, replace=True)))
        if not asked.is_dry_run:
            await self._deletion.queue(asked.about, queues.Delete(force=True), asked.user)


def _check_queue(destination: str, what: str) -> None:
    is_queue = destination.startswith("/queue/") and kind_of(destination) is DestinationKind.QUEUE
    if not is_queue or is_pattern(destination):
        raise Refused("bad-destination", f"{what} names one queue, /queue/NAME.")


def _message_ids(text: str) -> list[str]:
    """Those that a request names, each once. Raises Refused."""
    ids = list(dict.fromkeys(one.strip() for one in text.split(",") if one.strip()))
    for one in ids:
        if not is_message_id(one):
            raise Refused("bad-ids", f"{one!r} is no message-id; the header ids has message-ids with commas.")
    return ids
