"""What operators did to a simulated mesh, as the checks need it, and what nodes did for them.

Clients write what they asked for and were told. `observed` writes what bulk jobs did on each node: when a job began
there, which messages the node had by then, and what was settled when it had ended. No client can see that.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import trio

from qmq.definitions.definition import Definition, Key, Version
from qmq.definitions.table import DefinitionTable
from qmq.definitions.tombstones import TombstoneRounds
from qmq.dots import Dot, Origin, Vector
from qmq.server.admin import bulk_jobs
from qmq.server.admin.bulk_jobs import BulkContext, BulkJob, run_bulk_job
from qmq.storage.format.batch import batch_records
from qmq.storage.format.failure_records import unpack_dead
from qmq.storage.format.record import RecordKind, unpack_dots
from qmq.storage.log.journal import Journal

OPERATED = ("/queue/operated-a", "/queue/operated-b")
"""Operators purge, move, pause and delete them, and change their policies."""

BURIED = "/queue/operated-dead"
"""The dead letters of OPERATED, which operators redrive."""

GUARDED = "/queue/guarded"
"""One user may use it, and then not, and then again."""

READER = "reader"
"""The user."""

DEFINED = ("/queue/defined-x", "/queue/defined-y", "/fanout/defined")
"""Of these only policies change."""

SOURCE = "/topic/source"
BOUND = ("/queue/bound-a", "/queue/bound-b")
"""Operators bind them to SOURCE and unbind them, and no consumer comes before the end."""

READ_BYTES = 1 << 20

PAGE_MESSAGES = 2
"""Of a page of a job, so that faults come between two pages."""

# Of the passcode "reader", with the least work that argon2 allows.
HASH = "$argon2id$v=19$m=8,t=1,p=1$rJXiCugc2Xc$layWSItZyhpJx7eM66C0jQ"


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a definition that was confirmed."""

    key: Key
    version: Version
    by: str
    """The node."""


@dataclass(slots=True)
class Job:
    """One bulk job on one node. `had`: what the node had received when it began."""

    node: str
    job: BulkJob
    had: Vector
    began: float
    ended: float | None = None
    messages: int = 0


@dataclass(slots=True)
class Given:
    """A message of an operated queue as a consumer was given it."""

    id: str
    queue: str
    dot: Dot
    node: str
    since: float
    """When the consumer had come."""
    is_final: bool
    """Whether nothing was changed any more."""


@dataclass(slots=True)
class Operations:
    """The whole of it."""

    changes: list[Change] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    settled: dict[tuple[str, Dot], float] = field(default_factory=dict)
    """(node, message) → when a job ended on that node, whose journal had it as settled, virtual seconds."""
    given: list[Given] = field(default_factory=list)
    denials: dict[tuple[str, str], tuple[frozenset[Version], float]] = field(default_factory=dict)
    """(node, action) → the definitions on that node that deny it to READER, and since when they are these."""
    bound: dict[tuple[str, str], tuple[Version | None, float]] = field(default_factory=dict)
    """(node, queue) → the binding of the queue that the node has, and since when that is so."""
    expected: dict[str, dict[str, bool]] = field(default_factory=dict)
    """Message that was sent to SOURCE → each queue of which it is certain whether it gets a copy."""
    begun: trio.Event = field(default_factory=trio.Event)
    """The next job begins, on whichever node."""
    is_restored: bool = False
    """Nothing is paused any more, and no operator changes anything."""

    async def until_job(self) -> str:
        """Wait until a job begins that moves messages; the node on which it does."""
        while True:
            await self.begun.wait()
            if self.jobs[-1].job.verb in ("move", "redrive"):
                return self.jobs[-1].node

    def deny(self, node: str, action: str, versions: frozenset[Version]) -> None:
        """At this moment `node` has these definitions that deny `action` to READER."""
        if not versions:
            self.denials.pop((node, action), None)
        elif self.denials.get((node, action), ((), 0.0))[0] != versions:
            self.denials[node, action] = versions, trio.current_time()

    def bind(self, node: str, queue: str, version: Version | None) -> None:
        """At this moment `node` has this binding of `queue`."""
        if (node, queue) not in self.bound or self.bound[node, queue][0] != version:
            self.bound[node, queue] = version, trio.current_time()

    def denied_for(self, node: str, action: str) -> float:
        """For how many seconds `node` has known that READER may not do this; 0.0: it may."""
        now = trio.current_time()
        return now - self.denials.get((node, action), ((), now))[1]


def settled_in(journal: Journal) -> Iterator[Dot]:
    """The messages that records of `journal` settle where they were."""
    position = journal.start
    while read := journal.read(position, READ_BYTES):
        for start, head, batch in read:
            position = start + head.size
            for record in batch_records(batch):
                if record.kind == RecordKind.SETTLE:
                    yield from unpack_dots(record.body)
                elif record.kind == RecordKind.DEAD:
                    yield unpack_dead(record.body)[1]


@contextmanager
def observed(operations: Operations) -> Iterator[None]:
    """Write down what jobs do. Pages are short, tombstones are old at once, and passwords cost nothing."""
    obsolete = TombstoneRounds.obsolete

    async def run(context: BulkContext, job: BulkJob, *more: Any) -> dict[str, Any]:
        node = context.broker.origin.node
        entry = Job(node, job, dict(context.received_vector()), trio.current_time())
        operations.jobs.append(entry)
        operations.begun.set()
        operations.begun = trio.Event()
        facts = await run_bulk_job(context, job, *more)
        entry.ended = trio.current_time()
        entry.messages = facts["messages"]
        if facts["messages"] and not job.is_dry_run:
            for dot in settled_in(context.store.journal):
                operations.settled.setdefault((node, dot), entry.ended)
        return facts

    def obsolete_at_once(
        rounds: TombstoneRounds, table: DefinitionTable, members: Any, older_than_us: int, forgotten: set[Origin]
    ) -> list[Definition]:
        return obsolete(rounds, table, members, 1 << 62, forgotten)

    with (
        patch("qmq.server.admin.mesh_jobs.run_bulk_job", run),
        patch.object(bulk_jobs, "page_limit", lambda messages, body_bytes: PAGE_MESSAGES),
        patch.object(TombstoneRounds, "obsolete", obsolete_at_once),
        patch("qmq.server.clients.login._hash_of_no_user", lambda: HASH),
    ):
        yield
