"""The status of a node: one frozen snapshot that the CLI, tests and operators all read."""

import json
from collections.abc import Mapping
from heapq import nsmallest
from itertools import islice
from typing import Any, Protocol

from msgspec import to_builtins

from qmq.admin.conditions import Conditions
from qmq.admin.counts import CountsContext, known_names
from qmq.admin.facts.node_facts import FactsReader
from qmq.admin.facts.queue_catalog import KEPT_FROM_SECONDS
from qmq.admin.node_status import (
    DurableRow,
    FanoutRow,
    MembershipStatus,
    PeerRow,
    QueueSummary,
    RetiredNode,
)
from qmq.broker.messages.destination import DestinationKind
from qmq.engine.runtime.contexts import Committing, Engine, MeshPeers
from qmq.engine.runtime.recent import Recent
from qmq.mesh.parts import MeshParts
from qmq.replication.mesh import Mesh
from qmq.sessions.clients.session import ClientSession
from qmq.sessions.clients.subscriber_buffers import SlowSubscription
from qmq.sessions.delivery.journal_reads import JournalReads

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

    def __init__(self, context: CountsContext) -> None:
        self._context = context
        nothing: tuple[list[QueueSummary], list[FanoutRow]] = [], []
        self._found = Recent(context, self._find, nothing, short_seconds=KEPT_FROM_SECONDS)

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
        context, broker = self._context, self._context.broker
        sizes = await context.queue_catalog.deepest(DESTINATIONS_SHOWN)
        queues = [
            queue_row(context, name, depth)
            for name, (depth, _) in sizes.items()
            if depth or name in broker.queues.by_name
        ]
        names = nsmallest(DESTINATIONS_SHOWN, known_names(context, DestinationKind.FANOUT))
        info = context.store.fanout_info
        infos = await context.environment.run_blocking(lambda: [info(name) for name in names])
        subscribers = broker.subscriptions.fanouts
        return queues, [
            FanoutRow(name, info.records, info.bytes, len(subscribers.get(name, ())))
            for name, info in zip(names, infos, strict=True)
        ]


class StatusContext(Engine, Committing, MeshPeers, Protocol):
    """What a status shows: nearly every part of the node."""

    software: str
    sessions: dict[int, ClientSession]
    facts_reader: FactsReader
    shown_destinations: ShownDestinations
    journal_reads: JournalReads
    mesh_parts: MeshParts
    mesh: Mesh
    conditions: Conditions


FACTS = (
    *("node", "software", "build", "incarnation", "connections", "subscriptions", "delivered", "dropped", "totals"),
    *("traffic", "commits", "fsync", "journal", "held", "disk_full", "memory"),
)
"""Of `NodeFacts`."""


async def status_of(context: StatusContext) -> dict[str, Any]:
    """The status, ready for JSON (docs/administration.md)."""
    found = await context.facts_reader.read()
    broker = context.broker
    dead = islice(reversed(context.mesh_parts.incarnation_gc.seals.forgotten), FORGOTTEN_SHOWN)
    status: dict[str, Any] = to_builtins(
        {
            **found.some(*FACTS),
            "uptime_seconds": round(found.uptime_seconds, 1),
            "queues": context.shown_destinations.queues,
            "fanouts": context.shown_destinations.fanouts,
            "durables": durables_of(context),
            "readers": [{"name": name, "behind": one} for name, one in sorted(context.journal_reads.readers().items())],
            "slow": slow_of(context),
            "membership": membership_of(context),
            "takeover": context.mesh_parts.takeover.statistics(),
            "retained": broker.retained.statistics(),
            "rows": context.mesh_parts.row_repair.statistics(),
            "dedup": {"ids": len(broker.dedup), "asked": context.mesh_parts.dedup_query.asked},
            "peers": [peer.facts() for peer in peers_of(context)],
            "topics": topics_of(context),
            "vector": _vector(context),
            "collected": [str(origin) for origin in dead],
            "conditions": context.conditions.present(),
            "past": context.conditions.past()[:PAST_SHOWN],
        }
    )
    return status


def queue_row(context: Engine, name: str, depth: int) -> QueueSummary:
    """One row of the status; `ready` counts what is in memory."""
    queue = context.broker.queues.by_name.get(name)
    if queue is None:
        return QueueSummary(name, depth, 0, 0)
    return QueueSummary(name, depth, sum(len(level.ready) for level in queue.levels), len(queue.subscriptions))


def peers_of(context: StatusContext) -> list[PeerRow]:
    """All peers; none for a node without a mesh."""
    if context.mesh.is_alone:
        return []
    return [
        PeerRow(
            name=peer.name,
            out="up" if peer.out_state == "caught-up" else peer.out_state,
            in_=peer.in_state,
            caught_up=peer.out_state == "caught-up",
            lag=sum(peer.lag.values()),
            learner=not context.membership.counts(peer.name),
            peers_version=peer.peers_version,
            topics_dropped=peer.topics_dropped,
            topics_via=peer.topics_via,
            topics_wanted=peer.topics_wanted,
            last_error=peer.last_error[:120],
        )
        for peer in context.mesh.statistics().peers
    ]


def membership_of(context: StatusContext) -> MembershipStatus:
    membership = context.membership
    return MembershipStatus(
        peers_version=membership.listing.version,
        members=sorted(membership.members),
        learner=membership.is_learner,
        lists=len(membership.lists),
        retired=[RetiredNode(retirement.node, retirement.adopter) for retirement in membership.retired.values()],
    )


def topics_of(context: StatusContext) -> dict[str, int]:
    """Topic messages that took, or might have taken, more than one route; nothing for a node without a mesh."""
    if context.mesh.is_alone:
        return {}
    found = context.mesh.statistics()
    return {"relayed": found.topics_relayed, "unrelayed": found.topics_unrelayed, "late": found.topics_late}


def durables_of(context: StatusContext) -> list[DurableRow]:
    """Durable subscriptions, those unused on this node first: they may be abandoned."""
    durable_subscriptions = context.broker.durable_subscriptions
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


def slow_of(context: StatusContext) -> list[SlowSubscription]:
    """Subscriptions with a declared buffer whose client does not read at the moment, the slowest first."""
    waiting = [
        SlowSubscription(
            session.id,
            subscription.destination,
            len(subscription.buffer),
            subscription.buffer.bytes,
            subscription.buffer.dropped,
        )
        for session in context.sessions.values()
        for subscription in session.buffered or ()
        if subscription.buffer is not None and not subscription.closed
    ]
    return sorted(waiting, key=lambda row: (-row.dropped, -row.bytes, row.session))[:DESTINATIONS_SHOWN]


async def status_answer(context: StatusContext, more: Mapping[str, Any]) -> str:
    """`status_of`, and `more`, as one line of JSON that fits a header."""
    return _fitting({**await status_of(context), **more})


def public_answer(context: StatusContext, *, has_position: bool) -> str:
    """What a client without the right for the status gets. A client that follows a fanout needs the position, too."""
    position = {"incarnation": f"{context.origin.incarnation:016x}", "vector": _vector(context)}
    return _fitting({"node": context.settings.name, "software": context.software, **(position if has_position else {})})


def _vector(context: StatusContext) -> dict[str, int]:
    return {str(origin): sequence for origin, sequence in context.received_vector().items()}


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
