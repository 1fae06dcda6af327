"""The commands of a beanstalkd client that look at jobs, tubes and the server, and change nothing."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from qmq.access.rights import Rights
from qmq.access.rules import Action
from qmq.errors import Refused
from qmq.gateways.bound_queues import subscriber_of
from qmq.gateways.durable_headers import check_owner
from qmq.gateways.rules import Rules
from qmq.protocols.beanstalk.codec import replies as reply
from qmq.protocols.beanstalk.codec.commands import BeanstalkCommand, BeanstalkVerb
from qmq.protocols.beanstalk.gateway.encoder import ReplySlot
from qmq.protocols.beanstalk.gateway.jobs import queue_of
from qmq.protocols.beanstalk.jobs import FoundJob
from qmq.protocols.beanstalk.part import BeanstalkPart
from qmq.protocols.beanstalk.statistics import JobStatistics


@dataclass(eq=False, repr=False)
class Inspection:
    """What one client, whose session is `session_id`, may see."""

    _part: BeanstalkPart
    _statistics: JobStatistics
    _rights: Rights
    _rules: Rules
    _session_id: int
    _job_bytes_max: int

    def check(self, action: Action, destination: str) -> None:
        """Raises Refused for what the client may not do. That it may receive what a queue holds is refused, too, for a
        queue that is exclusive to another connection, or of a durable subscription of another user.
        """
        self._rights.check(action, destination)
        if action is Action.SUBSCRIBE:
            self._rules.lock(destination, self._session_id)
            self._check_owner(destination)

    def _check_owner(self, queue: str) -> None:
        check_owner(self._rights, queue, subscriber_of(queue, self._rules.begun_by))

    def show(self, found: FoundJob | None, job: int, slot: ReplySlot) -> None:
        if found is None:
            slot.fill(reply.NOT_FOUND)
            return
        self.check(Action.SUBSCRIBE, found.message.envelope.destination)
        slot.fill(reply.found(job, found.message.body))

    async def _peek(self, command: BeanstalkCommand, slot: ReplySlot) -> None:
        self.show(await self._part.jobs.find(command.numbers[0]), command.numbers[0], slot)

    async def _stats_job(self, command: BeanstalkCommand, slot: ReplySlot) -> None:
        job = command.numbers[0]
        found = await self._part.jobs.find(job)
        if found is None:
            slot.fill(reply.NOT_FOUND)
            return
        self.check(Action.SUBSCRIBE, found.message.envelope.destination)
        slot.fill(reply.yaml_map(self._statistics.of_job(job, found)))

    def _may_see(self, tube: str) -> bool:
        rights, queue = self._rights, queue_of(tube)
        try:
            self._check_owner(queue)
        except Refused:
            return False
        return rights.allows(Action.SEND, queue) or rights.allows(Action.SUBSCRIBE, queue)

    async def _stats_tube(self, command: BeanstalkCommand, slot: ReplySlot) -> None:
        facts = await self._statistics.of_tube(command.tube) if self._may_see(command.tube) else None
        slot.fill(reply.NOT_FOUND if facts is None else reply.yaml_map(facts))

    async def _stats(self, command: BeanstalkCommand, slot: ReplySlot) -> None:
        slot.fill(reply.yaml_map(await self._statistics.of_server(self._job_bytes_max)))

    async def _list_tubes(self, command: BeanstalkCommand, slot: ReplySlot) -> None:
        names = await self._statistics.tube_names()
        slot.fill(reply.yaml_list([name for name in names if self._may_see(name)]))


INSPECTIONS: Final[Mapping[BeanstalkVerb, Callable[[Inspection, BeanstalkCommand, ReplySlot], Awaitable[None]]]] = {
    BeanstalkVerb.PEEK: Inspection._peek,
    BeanstalkVerb.STATS_JOB: Inspection._stats_job,
    BeanstalkVerb.STATS_TUBE: Inspection._stats_tube,
    BeanstalkVerb.STATS: Inspection._stats,
    BeanstalkVerb.LIST_TUBES: Inspection._list_tubes,
}
