"""`stats`, `stats-tube`, `stats-job` and `list-tubes`: what beanstalkd shows, from all nodes of the mesh.

Jobs, tubes and connections are those of the mesh. Commands and process are those of the node that is asked. `file` and
the binlog are always 0, because a job is in the journal of every node.
"""

import os
import platform
import resource
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass
from typing import Any, Final

import trio

from qmq.admin.facts.node_facts import NodeIdentity
from qmq.admin.facts.queue_catalog import QueueCatalog
from qmq.broker.messages.message import Message
from qmq.engine.checkpoint.queue_pager import FAR_US
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.served_rows import served_rows
from qmq.engine.turns import in_turns
from qmq.mesh.peers.calls import CallTable
from qmq.mesh.peers.rpc import PeerRpc
from qmq.protocols.beanstalk.calls import (
    CheckJob,
    DeleteJob,
    FindJob,
    FirstJob,
    KickJob,
    KickTube,
    PauseTube,
    ServerCounts,
    TubeCounts,
    TubeNames,
    Tubes,
)
from qmq.protocols.beanstalk.codec.commands import BeanstalkVerb
from qmq.protocols.beanstalk.codec.replies import Scalar
from qmq.protocols.beanstalk.gateway.jobs import (
    QUEUE,
    JobState,
    buried_queue_of,
    delay_seconds_of,
    is_buried,
    is_urgent,
    job_priority,
    put_at_us,
    queue_of,
    ttr_us,
    tube_of,
)
from qmq.protocols.beanstalk.jobs import FoundJob
from qmq.protocols.beanstalk.part import BeanstalkPart, names_of

LISTED_MAX: Final = 10_000
"""Tubes of one list, and queues of one sum."""

AT_ONCE: Final = 10_000
"""Jobs that are looked at in one turn."""

DELAYED_MAX: Final = 10_000
"""Delayed jobs of one tube that are counted in the store."""

COMMANDS: Final = (
    BeanstalkVerb.PUT,
    BeanstalkVerb.PEEK,
    BeanstalkVerb.PEEK_READY,
    BeanstalkVerb.PEEK_DELAYED,
    BeanstalkVerb.PEEK_BURIED,
    BeanstalkVerb.RESERVE,
    BeanstalkVerb.RESERVE_WITH_TIMEOUT,
    BeanstalkVerb.DELETE,
    BeanstalkVerb.RELEASE,
    BeanstalkVerb.USE,
    BeanstalkVerb.WATCH,
    BeanstalkVerb.IGNORE,
    BeanstalkVerb.BURY,
    BeanstalkVerb.KICK,
    BeanstalkVerb.TOUCH,
    BeanstalkVerb.STATS,
    BeanstalkVerb.STATS_JOB,
    BeanstalkVerb.STATS_TUBE,
    BeanstalkVerb.LIST_TUBES,
    BeanstalkVerb.LIST_TUBE_USED,
    BeanstalkVerb.LIST_TUBES_WATCHED,
    BeanstalkVerb.PAUSE_TUBE,
)
"""Those that `stats` counts, in its order."""

COUNTED: Final = ("urgent", "ready", "reserved", "delayed", "buried")


@dataclass(eq=False, repr=False)
class JobStatistics:
    """What this node knows, and with its peers the mesh."""

    _part: BeanstalkPart
    engine: InitVar[EngineParts]
    _rpc: PeerRpc
    _catalog: QueueCatalog
    _identity: NodeIdentity

    def __post_init__(self, engine: EngineParts) -> None:
        self._broker = engine.broker
        self._store = engine.store
        self._environment = engine.environment

    # In the mesh

    def of_job(self, job: int, found: FoundJob) -> dict[str, Scalar]:
        """`stats-job`."""
        message = found.message
        counts = self._part.counts_of(message, is_reserved=found.state is JobState.RESERVED)
        return {
            "id": job,
            "tube": found.tube,
            "state": found.state.value,
            "pri": job_priority(message),
            "age": max(0, self._environment.now_us() - put_at_us(message)) // 1_000_000,
            "delay": delay_seconds_of(message),
            "ttr": ttr_us(message) // 1_000_000,
            "time-left": found.left_us // 1_000_000,
            "file": 0,
            "reserves": counts.reserves,
            "timeouts": counts.timeouts,
            "releases": counts.releases,
            "buries": counts.buries,
            "kicks": counts.kicks,
        }

    async def of_tube(self, tube: str) -> dict[str, Scalar] | None:
        """`stats-tube`; None for a tube that no node knows."""
        total = _sum((await self._rpc.ask_all(TubeCounts(tube))).by_node.values())
        if not total["is_known"]:
            return None
        seconds, left = self._part.pause_of(tube)
        return {
            "name": tube,
            **_current("jobs-", total, *COUNTED),
            "total-jobs": total["put"],
            **_current("", total, "using", "watching", "waiting"),
            "cmd-delete": total["delete"],
            "cmd-pause-tube": total["pause"],
            "pause": seconds,
            "pause-time-left": left,
        }

    async def of_server(self, job_bytes_max: int) -> dict[str, Scalar]:
        """`stats`."""
        total = _sum((await self._rpc.ask_all(ServerCounts())).by_node.values())
        part, identity = self._part, self._identity
        usage = resource.getrusage(resource.RUSAGE_SELF)
        facts: dict[str, Scalar] = {**_current("jobs-", total, *COUNTED)}
        facts |= {f"cmd-{verb.value}": part.commands[verb.value] for verb in COMMANDS}
        system = os.uname()
        return facts | {
            "job-timeouts": part.timeouts,
            "total-jobs": total["put"],
            "max-job-size": job_bytes_max,
            **_current("", total, "tubes", "connections", "producers", "workers", "waiting"),
            "total-connections": total["all_connections"],
            "pid": os.getpid(),
            "version": f'"{identity.software}"',
            "rusage-utime": usage.ru_utime,
            "rusage-stime": usage.ru_stime,
            "uptime": int(trio.current_time() - identity.started_seconds),
            "binlog-oldest-index": 0,
            "binlog-current-index": 0,
            "binlog-records-migrated": 0,
            "binlog-records-written": 0,
            "binlog-max-size": 0,
            "draining": self._broker.subscriptions.is_stopping,
            "id": identity.incarnation,
            "hostname": system.nodename,
            "os": system.version,
            "platform": platform.machine(),
        }

    async def tube_names(self) -> list[str]:
        """`list-tubes`: those with jobs, the first `LISTED_MAX` of each node, and those that connections use or
        watch."""
        names: dict[str, None] = {}
        for found in (await self._rpc.ask_all(TubeNames())).by_node.values():
            names |= dict.fromkeys(found.tubes)
        return ["default", *sorted(name for name in names if name != "default")]

    # Requests of peers

    def calls(self) -> CallTable[Any]:
        """What a node answers of its peers about jobs and tubes."""
        jobs, changes = self._part.jobs, self._part.changes
        return CallTable(
            [
                FindJob.by(lambda parts, call: jobs.answer_find(call)),
                FirstJob.by(lambda parts, call: jobs.answer_first(call)),
                *(one.by(lambda parts, call: changes.answer_change(call)) for one in (CheckJob, DeleteJob, KickJob)),
                KickTube.by(lambda parts, call: changes.answer_kick(call)),
                PauseTube.by(lambda parts, call: self._pause_here(call)),
                TubeCounts.by(lambda parts, call: self._tube_here(call.tube)),
                ServerCounts.by(lambda parts, call: self._server_here()),
                TubeNames.by(lambda parts, call: self._tubes_here()),
            ]
        )

    def _pause_here(self, call: PauseTube) -> dict[str, Any]:
        self._part.pause(call.tube, call.seconds)
        return {}

    async def _tubes_here(self) -> Tubes:
        return Tubes(list(await self._names_here()))

    async def _tube_here(self, tube: str) -> dict[str, int]:
        queue, buried = queue_of(tube), buried_queue_of(tube)
        queues = self._broker.queues
        known = queues.by_name.get(queue)
        depth = await self._catalog.depth(queue)
        depth_buried = await self._catalog.depth(buried)
        reserved = own = 0
        async for deliveries in in_turns([*queues.in_flight_of(queue), *queues.in_flight_of(buried)], AT_ONCE):
            reserved += len(deliveries)
            for delivery in deliveries:
                own += delivery.message.owner is None and delivery.subscription.destination == queue
        lent = sum(
            message.envelope.destination == queue for one in queues.owned.lent.values() for message in one.values()
        )
        delayed = await self._delayed(queue)
        ready = max(0, depth - own - lent - delayed)
        urgent = (
            0
            if known is None
            else sum(len(level.ready) + len(level.tail or ()) for level in known.levels if is_urgent(level.priority))
        )
        users = self._part.users
        counts = self._part.by_tube.get(tube, Counter())
        facts = {
            "urgent": min(urgent, ready),
            "ready": ready,
            "reserved": reserved,
            "delayed": delayed,
            "buried": depth_buried,
            "using": sum(user.used == tube for user in users),
            "watching": sum(tube in user.watched for user in users),
            "waiting": sum(user.is_waiting and tube in user.watched for user in users),
            **{what: counts[what] for what in ("put", "delete", "pause")},
        }
        is_named = tube in names_of(users) or known is not None
        return {**facts, "is_known": int(is_named or bool(depth or depth_buried))}

    async def _delayed(self, name: str) -> int:
        """Jobs of a queue that wait for their time, in memory or in the store."""
        now_us = self._environment.now_us()
        queues = self._broker.queues
        queue = queues.by_name.get(name)
        held: list[Message] = []
        async for entries in in_turns(() if queue is None else queue.delayed or (), AT_ONCE):
            held += [message for _, _, message in entries if not message.settled]
        if queue is not None and not queue.stored and queue.is_counted:
            return len(held)
        if queue is None and not queues.owned.has_stored:
            return 0
        rows = await self._environment.run_blocking(
            served_rows(self._broker, self._store).due, name, now_us, FAR_US, DELAYED_MAX
        )
        known = {message.dot for message in held}
        return len(held) + sum(row.dot not in known and not queues.paging.is_settled(name, row.dot) for row in rows)

    async def _names_here(self) -> dict[str, None]:
        """Tubes with jobs of this node, and those of its connections."""
        stored = await self._environment.run_blocking(served_rows(self._broker, self._store).listing, QUEUE, LISTED_MAX)
        names: list[str] = []
        async for listed in self._catalog.in_memory():
            names += [queue.name for queue in listed if queue.depth]
        names += [name for name, messages, _ in stored if messages]
        tubes = dict.fromkeys([tube_of(name) for name in names[:LISTED_MAX] if name.startswith(QUEUE)])
        return {**dict.fromkeys(sorted(names_of(self._part.users))), **tubes}

    async def _server_here(self) -> dict[str, int]:
        queues = self._broker.queues
        now_us = self._environment.now_us()
        total: Counter[str] = Counter()
        async for listed in self._catalog.in_memory():
            for queue in listed:
                delayed = 0
                async for entries in in_turns(queue.delayed or (), AT_ONCE):
                    delayed += sum(not message.settled and due_us > now_us for due_us, _, message in entries)
                total["buried" if is_buried(queue.name) else "ready"] += queue.depth - delayed
                total["delayed"] += delayed
                if not is_buried(queue.name):
                    total["urgent"] += sum(len(one.ready) for one in queue.levels if is_urgent(one.priority))
        stored = await self._environment.run_blocking(served_rows(self._broker, self._store).listing, QUEUE, LISTED_MAX)
        for name, messages, _ in stored:
            if name not in queues.by_name:
                total["buried" if is_buried(name) else "ready"] += messages
        async for deliveries in in_turns(queues.deliveries.values(), AT_ONCE):
            total["reserved"] += len(deliveries)
            for delivery in deliveries:
                if delivery.message.owner is None:
                    total["buried" if is_buried(delivery.subscription.destination) else "ready"] -= 1
        total["ready"] = max(0, total["ready"] - sum(map(len, queues.owned.lent.values())))
        users = self._part.users
        return {
            **{what: total[what] for what in COUNTED},
            "put": sum(counts["put"] for counts in self._part.by_tube.values()),
            "tubes": len(await self._names_here()),
            "connections": len(users),
            "producers": sum(user.is_producer for user in users),
            "workers": sum(user.is_worker for user in users),
            "waiting": sum(user.is_waiting for user in users),
            "all_connections": self._part.connections,
        }


def _current(prefix: str, total: Mapping[str, int], *names: str) -> dict[str, int]:
    return {f"current-{prefix}{what}": total[what] for what in names}


def _sum(found: Iterable[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for counts in found:
        total.update(counts)
    return total
