"""What operators did to a simulated mesh, as the checks need it, and what nodes did for them.

Clients write their requests and the responses. `observed` writes what bulk jobs did on each node: when a job began
there, which messages the node had by then, and what was settled when it had ended. No client can see that.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import trio

from qmq.admin import bulk_jobs
from qmq.admin.bulk_jobs import BulkJob, Coverage, run_bulk_job
from qmq.definitions.definition import Key, Version
from qmq.definitions.table import DefinitionTable, Obsolete
from qmq.definitions.tombstones import TombstoneRounds
from qmq.engine.parts import EngineParts
from qmq.model.dots import Dot, Origin, Vector
from qmq.settings.definitions.live import LiveDefinitions
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

DECLARED = ("/queue/declared-a", "/queue/declared-b")
"""Operators declare and delete them, and no consumer comes before the end."""

VISITED = "/queue/visited-"
"""The names of queues begin so that end by themselves, or with a connection."""

GUEST = "guest"
"""A user that operators add and delete."""

READ_BYTES = 1 << 20

PAGE_MESSAGES = 2
"""Of a page of a job, so that faults come between two pages."""

# Of the passcodes "reader" and "guest", with the least work that argon2 allows.
HASH = "$argon2id$v=19$m=8,t=1,p=1$rJXiCugc2Xc$layWSItZyhpJx7eM66C0jQ"
GUEST_HASH = "$argon2id$v=19$m=8,t=1,p=1$Z3Vlc3RndWVzdA$sBGciy3SpCY"

UNKNOWN_SECONDS = 10.0
"""In which a request has an effect of which the client does not hear."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a definition that was confirmed."""

    key: Key
    version: Version
    by: str
    """The node."""
    is_on_majority: bool = False
    """Whether the node said so."""


@dataclass(slots=True)
class Declaring:
    """A request to declare a queue, and until when it may have had an effect."""

    queue: str
    began: float
    ended: float


@dataclass(slots=True)
class Job:
    """One bulk job on one node. `had`: what the node had received when it began."""

    node: str
    job: BulkJob
    had: Vector
    began: float
    ended: float | None = None
    messages: int = 0
    mark: Version | None = None
    """Of a deletion that the node learned of, whose older messages it drops; None: an operator asked for the job."""


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
    bound: dict[tuple[str, tuple[str, str]], tuple[frozenset[Version], float]] = field(default_factory=dict)
    """(node, see `routing.DECIDING`) → the definitions on that node that decide, and since when they are these."""
    expected: dict[str, dict[str, bool]] = field(default_factory=dict)
    """Message that is copied by bindings → each queue of which it is certain whether it gets a copy."""
    declaring: list[Declaring] = field(default_factory=list)
    under: dict[str, Version] = field(default_factory=dict)
    """Message → the declaration of its queue that its node had all the time until the receipt."""
    written: dict[Version, float] = field(default_factory=dict)
    """Change of a definition → when a node decided it, virtual seconds."""
    consumed_at: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Queue that is deleted with its last consumer → the node of that, and when it confirmed the subscription."""
    guests: dict[str, tuple[Version | None, float]] = field(default_factory=dict)
    """Node → the definition of GUEST that it has, and since when."""
    begun: trio.Event = field(default_factory=trio.Event)
    """The next job begins, on whichever node."""
    is_restored: bool = False
    """Nothing is paused any more, and no operator changes anything."""
    is_clock_in_doubt: bool = False
    """Whether a node still doubted its clock then: it drops no message of a deleted queue."""

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

    def bind(self, node: str, decided: tuple[str, str], versions: frozenset[Version]) -> None:
        """At this moment `node` has these definitions that decide about copies."""
        if (node, decided) not in self.bound or self.bound[node, decided][0] != versions:
            self.bound[node, decided] = versions, trio.current_time()

    def invite(self, node: str, version: Version | None) -> None:
        """At this moment `node` has this definition of GUEST."""
        if node not in self.guests or self.guests[node][0] != version:
            self.guests[node] = version, trio.current_time()

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


def _mark(coverage: Coverage | None = None) -> Version | None:
    """The deletion by which a job drops messages, of what `DeletedQueues` gives it."""
    covers = None if coverage is None else coverage.covers
    return covers.args[0].version if isinstance(covers, partial) else None


@contextmanager
def observed(operations: Operations) -> Iterator[None]:
    """Write down what jobs do. Pages are short, tombstones but those of queues are old at once, and passwords cost
    nothing."""
    obsolete, write = TombstoneRounds.obsolete, LiveDefinitions._write

    async def run(engine: EngineParts, definitions: LiveDefinitions, job: BulkJob, *more: Any) -> dict[str, Any]:
        node = engine.broker.origin.node
        entry = Job(node, job, dict(engine.path.received_vector()), trio.current_time(), mark=_mark(*more))
        operations.jobs.append(entry)
        operations.begun.set()
        operations.begun = trio.Event()
        facts = await run_bulk_job(engine, definitions, job, *more)
        entry.ended = trio.current_time()
        entry.messages = facts["messages"]
        if facts["messages"] and not job.is_dry_run:
            for dot in settled_in(engine.store.journal):
                operations.settled.setdefault((node, dot), entry.ended)
        return facts

    def obsolete_at_once(
        rounds: TombstoneRounds, table: DefinitionTable, members: Any, older_than_us: int, forgotten: set[Origin]
    ) -> Obsolete:
        found = obsolete(rounds, table, members, 1 << 62, forgotten)
        # These must be older than what nodes need to drop the messages of a queue.
        return found._replace(tombstones=[one for one in found.tombstones if one.key.kind != "queue"])

    def write_down(live: LiveDefinitions, key: Key, *more: Any, **said: Any) -> None:
        write(live, key, *more, **said)
        operations.written[live.table.by_key[key].version] = trio.current_time()

    with (
        patch("qmq.admin.bulk_jobs.run_bulk_job", run),
        patch.object(bulk_jobs, "page_limit", lambda messages, body_bytes: PAGE_MESSAGES),
        patch.object(TombstoneRounds, "obsolete", obsolete_at_once),
        patch.object(LiveDefinitions, "_write", write_down),
        patch("qmq.sessions.clients.login._hash_of_no_user", lambda: HASH),
    ):
        yield
