"""The status of a node: one frozen snapshot that the CLI, tests and operators all read."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from heapq import nsmallest
from itertools import islice
from typing import Any

import trio
from msgspec import to_builtins

from qmq.admin.facts.conditions import Conditions
from qmq.admin.facts.counts import known_names
from qmq.admin.facts.node_facts import FactsReader
from qmq.admin.facts.node_status import (
    DurableRow,
    FanoutRow,
    MembershipStatus,
    PeerRow,
    QueueSummary,
    RetiredNode,
)
from qmq.admin.facts.queue_catalog import KEPT_FROM_SECONDS, QueueCatalog
from qmq.admin.facts.totals import rates_between
from qmq.broker.broker import Broker
from qmq.broker.messages.destination import DestinationKind
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.contexts import Tasks
from qmq.engine.runtime.single_flight import SingleFlight
from qmq.mesh.parts import MeshParts
from qmq.mesh.peers.calls import Facts
from qmq.model.members import Membership
from qmq.replication.mesh import Mesh
from qmq.sessions.clients.session import ClientSession
from qmq.sessions.clients.subscriber_buffers import SlowSubscription
from qmq.sessions.delivery.journal_readers import JournalReaders

PAST_SHOWN = 20
STATUS_BYTES_MAX = 8000
"""The response is one header of a RECEIPT, and clients bound header lines (our own at 8 KiB)."""

LOOK_SECONDS = 2.0
"""How long a status waits for the stores."""

DESTINATIONS_SHOWN = 20
FORGOTTEN_SHOWN = 50
"""Dead incarnations of which nothing is left, the newest first."""

LISTS = ("queues", "fanouts", "durables", "readers", "slow", "past", "conditions", "collected", "vector")
"""Lists that are cut when the status is too long."""


class ShownDestinations:
    """The deepest queues of this node and the first of its fanouts, as of the last `refresh`."""

    def __init__(self, engine: EngineParts, tasks: Tasks, catalog: QueueCatalog) -> None:
        self._engine = engine
        self._catalog = catalog
        nothing: tuple[list[QueueSummary], list[FanoutRow]] = [], []
        self._found = SingleFlight(tasks, self._find, nothing, short_seconds=KEPT_FROM_SECONDS)

    @property
    def queues(self) -> list[QueueSummary]:
        return self._found.value[0]

    @property
    def fanouts(self) -> list[FanoutRow]:
        return self._found.value[1]

    async def refresh(self) -> None:
        """Look again; if the stores take longer than LOOK_SECONDS, the last ones stay."""
        await self._found.refresh(LOOK_SECONDS)

    async def _find(self) -> tuple[list[QueueSummary], list[FanoutRow]]:
        engine, broker = self._engine, self._engine.broker
        sizes = await self._catalog.deepest(DESTINATIONS_SHOWN)
        queues = [
            queue_row(broker, name, depth)
            for name, (depth, _) in sizes.items()
            if depth or name in broker.queues.by_name
        ]
        names = nsmallest(DESTINATIONS_SHOWN, known_names(broker, DestinationKind.FANOUT))
        info = engine.store.fanout_info
        infos = await engine.environment.run_blocking(lambda: [info(name) for name in names])
        subscribers = broker.subscriptions.fanouts
        return queues, [
            FanoutRow(name, info.records, info.bytes, len(subscribers.get(name, ())))
            for name, info in zip(names, infos, strict=True)
        ]


FACTS = (
    *("node", "software", "build", "incarnation", "connections", "subscriptions", "delivered", "dropped", "totals"),
    *("traffic", "commits", "fsync", "journal", "held", "disk_full", "memory", "waiting", "in_flight"),
)
"""Of `NodeFacts`."""


class NodeStatus:
    """The status of one node."""

    def __init__(
        self,
        engine: EngineParts,
        mesh: Mesh,
        mesh_parts: MeshParts,
        facts: FactsReader,
        shown: ShownDestinations,
        readers: JournalReaders,
        conditions: Conditions,
        sessions: Mapping[int, ClientSession],
    ) -> None:
        self._engine = engine
        self._mesh = mesh
        self._mesh_parts = mesh_parts
        self._facts = facts
        self._shown = shown
        self._readers = readers
        self._conditions = conditions
        self._sessions = sessions

    async def text(self, rate_seconds: int) -> str:
        """All of it as one line of JSON that fits a header, with rates over `rate_seconds` if not 0."""
        await self._shown.refresh()
        rates = await self._rates(rate_seconds)
        return _fitting({**await self.read(), **rates})

    def public_text(self, *, has_position: bool) -> str:
        """What a client without the right for the status gets. If it follows a fanout, it needs the position, too."""
        origin, identity = self._engine.broker.origin, self._facts.identity
        position = {"incarnation": f"{origin.incarnation:016x}", "vector": self._vector()}
        return _fitting({"node": identity.node, "software": identity.software, **(position if has_position else {})})

    async def read(self) -> dict[str, Any]:
        """The status, ready for JSON (docs/administration.md)."""
        found = await self._facts.read()
        broker = self._engine.broker
        mesh_parts, membership = self._mesh_parts, self._mesh_parts.members.membership
        dead = islice(reversed(mesh_parts.incarnation_gc.seals.forgotten), FORGOTTEN_SHOWN)
        status: dict[str, Any] = to_builtins(
            {
                **found.some(*FACTS),
                "uptime_seconds": round(found.uptime_seconds, 1),
                "queues": self._shown.queues,
                "fanouts": self._shown.fanouts,
                "durables": durables_of(broker),
                "readers": [row._asdict() for row in self._readers.rows()],
                "slow": slow_of(self._sessions.values()),
                "membership": membership_of(membership),
                "takeover": mesh_parts.takeover.statistics(),
                "retained": broker.retained.statistics(),
                "rows": mesh_parts.row_repair.statistics(),
                "dedup": {"ids": len(broker.dedup), "asked": mesh_parts.dedup_query.asked},
                "peers": [peer.facts() for peer in peers_of(self._mesh, membership)],
                "topics": topics_of(self._mesh),
                "vector": self._vector(),
                "collected": [str(origin) for origin in dead],
                "conditions": self._conditions.present(),
                "past": self._conditions.past()[:PAST_SHOWN],
            }
        )
        return status

    def _vector(self) -> dict[str, int]:
        return {str(origin): sequence for origin, sequence in self._engine.path.received_vector().items()}

    async def _rates(self, seconds: int) -> Facts:
        """The rates of all totals of this node over the next `seconds`; nothing for 0 seconds."""
        if not seconds:
            return {}
        began, before = trio.current_time(), await self._facts.read()
        await trio.sleep(seconds)
        took, after = trio.current_time() - began, await self._facts.read()
        # The numbers of this node that have rates.
        first, last = [{**one.totals, **asdict(one.traffic)} for one in (before, after)]
        return {"rates": rates_between(first, last, took)}


def queue_row(broker: Broker, name: str, depth: int) -> QueueSummary:
    """One row of the status; `ready` counts what is in memory."""
    queue = broker.queues.by_name.get(name)
    if queue is None:
        return QueueSummary(name, depth, 0, 0)
    return QueueSummary(name, depth, sum(len(level.ready) for level in queue.levels), len(queue.subscriptions))


def peers_of(mesh: Mesh, membership: Membership) -> list[PeerRow]:
    """All peers; none for a node without a mesh."""
    if mesh.is_alone:
        return []
    return [
        PeerRow(
            name=peer.name,
            out="up" if peer.out_state == "caught-up" else peer.out_state,
            in_=peer.in_state,
            caught_up=peer.out_state == "caught-up",
            lag=sum(peer.lag.values()),
            learner=not membership.counts(peer.name),
            peers_version=peer.peers_version,
            topics_dropped=peer.topics_dropped,
            topics_via=peer.topics_via,
            topics_wanted=peer.topics_wanted,
            last_error=peer.last_error[:120],
        )
        for peer in mesh.statistics().peers
    ]


def membership_of(membership: Membership) -> MembershipStatus:
    return MembershipStatus(
        peers_version=membership.listing.version,
        members=sorted(membership.members),
        learner=membership.is_learner,
        lists=len(membership.lists),
        retired=[RetiredNode(retirement.node, retirement.adopter) for retirement in membership.retired.values()],
    )


def topics_of(mesh: Mesh) -> dict[str, int]:
    """Topic messages that took, or might have taken, more than one route; nothing for a node without a mesh."""
    if mesh.is_alone:
        return {}
    found = mesh.statistics()
    return {"relayed": found.topics_relayed, "unrelayed": found.topics_unrelayed, "late": found.topics_late}


def durables_of(broker: Broker) -> list[DurableRow]:
    """Durable subscriptions, those unused on this node first: they may be abandoned."""
    durable_subscriptions = broker.durable_subscriptions
    attached = durable_subscriptions.attached
    known = [
        DurableRow(
            name.destination,
            name.text,
            name in attached,
            len(attached[name].subscription.in_flight) if name in attached else 0,
        )
        for name, cursor in durable_subscriptions.by_name.items()
        if cursor.created_us
    ]
    return sorted(known, key=lambda row: (row.in_use, row.destination, row.name))[:DESTINATIONS_SHOWN]


def slow_of(sessions: Iterable[ClientSession]) -> list[SlowSubscription]:
    """Subscriptions with a declared buffer whose client does not read at the moment, the slowest first."""
    waiting = [
        SlowSubscription(
            session.id,
            subscription.destination,
            len(subscription.buffer),
            subscription.buffer.bytes,
            subscription.buffer.dropped,
        )
        for session in sessions
        for subscription in session.buffered or ()
        if subscription.buffer is not None and not subscription.closed
    ]
    return sorted(waiting, key=lambda row: (-row.dropped, -row.bytes, row.session))[:DESTINATIONS_SHOWN]


def _fitting(status: dict[str, Any]) -> str:
    """One line of JSON; lists are cut from their ends until it is short enough, or until they are empty."""
    while True:
        text = json.dumps(status, separators=(",", ":"))
        # STOMP escapes these two, and the reader's limit applies to the line as sent.
        if len(text) + text.count(":") + text.count("\\") <= STATUS_BYTES_MAX:
            return text
        lists = [name for name in LISTS if status.get(name)]
        if not lists:
            return text
        longest = max(lists, key=lambda name: len(json.dumps(status[name])))
        if isinstance(status[longest], dict):
            status[longest] = {}
        else:
            # An eighth at a time: of a thousand readers, each cut would cost as much as the whole answer.
            del status[longest][-max(1, len(status[longest]) // 8) :]
        status["cut"] = True
