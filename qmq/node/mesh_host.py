"""Passes reports of links and members to the parts of the node that act on them.

Implements `qmq.replication.links.host.Host`. Each method returns at once, except for `async` ones and the readers of
the journal, which block and are called in a worker thread.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

import trio

from qmq.admin.system import SystemTopics
from qmq.broker.consumers.outcome import Outcome
from qmq.engine.checkpoint.checkpoints import Checkpoints
from qmq.engine.commit.receipts import Receipts
from qmq.engine.commit_path import CommitPath
from qmq.engine.runtime.contexts import Committing, Engine, JournalTail, MeshPeers, Reporting
from qmq.engine.runtime.waker import Waker
from qmq.gateways.rules import Rules
from qmq.mesh.membership.adopt_queues import QueueAdoption
from qmq.mesh.membership.clock_check import ClockCheck
from qmq.mesh.membership.members import LiveMembership
from qmq.mesh.membership.start_hold import StartHold
from qmq.mesh.membership.takeover import Takeover
from qmq.mesh.peers.dedup_query import DedupQuery
from qmq.mesh.peers.rpc import PeerRpc
from qmq.mesh.repair.catch_up import CatchUp
from qmq.mesh.repair.fanout_logs import FanoutRepair
from qmq.mesh.repair.incarnation_gc import IncarnationGc
from qmq.mesh.repair.quarantine_restore import QuarantineRestore
from qmq.mesh.repair.queue_store import QueueStoreRepair
from qmq.model.dots import Origin, Vector
from qmq.model.members import Membership
from qmq.record_codec import Replay
from qmq.replication.mesh import Mesh
from qmq.settings.definitions.exclusive_queues import ExclusiveQueues
from qmq.settings.definitions.live import LiveDefinitions
from qmq.settings.definitions.queue_lifetimes import QueueLifetimes
from qmq.settings.definitions.sync import DefinitionSync
from qmq.storage.format.lost_record import LostRange, pack_lost
from qmq.storage.format.record import RecordKind


class HostContext(Engine, Committing, JournalTail, MeshPeers, Reporting, Protocol):
    """The parts that act on what the mesh reports."""

    replay: Replay
    rules: Rules
    commit_path: CommitPath
    mesh: Mesh | None
    members: LiveMembership
    takeover: Takeover
    start_hold: StartHold
    receipts: Receipts
    checkpoints: Checkpoints
    clock_check: ClockCheck
    catch_up: CatchUp
    fanout_repair: FanoutRepair
    queue_store_repair: QueueStoreRepair
    quarantine_restore: QuarantineRestore
    queue_adoption: QueueAdoption
    incarnation_gc: IncarnationGc
    dedup_query: DedupQuery
    peer_rpc: PeerRpc
    definitions: LiveDefinitions
    definition_sync: DefinitionSync
    exclusive_queues: ExclusiveQueues
    queue_lifetimes: QueueLifetimes
    system: SystemTopics


class MeshHost:
    """See `Host`."""

    def __init__(self, context: HostContext) -> None:
        self._context = context
        self._caught_up: set[str] = set()
        self._interest_heard = Waker()
        self.origin = context.origin
        self.broker = context.broker
        self.replay = context.replay
        self.environment = context.environment
        self.submit = context.submit
        self.commit_slot = context.commit_slot
        self.flushed = context.flushed
        self.received_vector = context.received_vector
        self.durable_vector = context.durable_vector
        self.journal_durable_end = context.committed_end
        self.journal_grew = context.journal_grew
        journal, members, takeover = context.store.journal, context.members, context.takeover
        self.read_journal = journal.read
        self.read_recent = journal.read_recent
        self.seek_journal = journal.seek
        self.journal_base = journal.base
        self.schedule_repair = context.catch_up.schedule
        self.held_came = context.start_hold.held_received
        self.request_received = context.peer_rpc.request_received
        self.response_received = context.peer_rpc.response_received
        self.terms_came = takeover.received
        self.greet = takeover.greet
        self.peer_knows = members.knows
        self.refused_as_retired = members.refused_as_retired
        self.membership_received = members.membership_received
        self.raise_condition = context.raise_condition
        self.clear_condition = context.clear_condition
        self.add_event = context.add_event

    @property
    def membership(self) -> Membership:
        return self._context.members.membership

    # The journal

    def journal_reach(self) -> tuple[Vector, int]:
        # In this order: records appended in between only make the position later.
        return self._context.store.journal.vector(), self._context.store.journal.end

    # Lost ranges

    def accept_gap(self, origin: Origin, through: int) -> None:
        context = self._context
        context.add_event("gap", f"records of {origin} up to {through} are no longer kept by any reachable peer")
        now_us = context.environment.now_us()
        out = Outcome(now_us=now_us)
        context.broker.note_gap(origin, through, now_us, out)
        context.broker.durable_subscriptions.give_up(origin, through)
        received = context.commit_path.received
        received[origin] = max(through, received.get(origin, 0))
        self.submit(out)

    def note_lost(self, missing: LostRange, out: Outcome) -> None:
        """No member has all of it any more. Fanout readers are notified from now on, and by later runs once `out` is
        durable.
        """
        origin, first, last = missing
        context = self._context
        context.add_event("gap", f"of the records {first} to {last} of {origin} no member has all any more")
        context.broker.note_fact(RecordKind.GONE, pack_lost(missing), out.now_us, out)
        context.broker.durable_subscriptions.lost_ranges.add(origin, last)
        out.lost_ranges.append((origin, first - 1, last))

    # Links

    def links_changed(self) -> None:
        context = self._context
        context.system.links_changed()
        context.start_hold.wake()
        context.takeover.links_changed()
        context.members.links_changed()
        context.peer_rpc.links_changed()
        context.definition_sync.links_changed()
        context.dedup_query.links_changed()
        context.queue_lifetimes.consumers_changed()

    def link_caught_up(self, peer: str) -> None:
        context = self._context
        context.fanout_repair.schedule()
        context.queue_store_repair.schedule()
        self._caught_up.add(peer)
        context.clock_check.schedule()
        context.dedup_query.links_changed()
        context.takeover.wake()
        context.members.caught_up_with(peer)
        context.definition_sync.link_caught_up(peer)
        context.incarnation_gc.wake()
        context.quarantine_restore.wake()
        context.system.links_changed()
        context.start_hold.wake()

    def has_caught_up_with(self, peer: str) -> bool:
        """Whether this node has everything that `peer` had when its link began."""
        return peer in self._caught_up

    def has_synced_with_majority(self) -> bool:
        """Whether this node has everything that a majority had when the links began."""
        return self.membership.is_majority({*self._caught_up, self.origin.node})

    def linked_peers(self) -> Collection[str]:
        """The peers that follow this node now."""
        mesh = self._context.mesh
        return () if mesh is None else mesh.followers()

    def late_peers(self) -> Mapping[str, Vector]:
        """The linked peers that have reported more than this node has, and what of it is missing here."""
        context = self._context
        have, forgotten = context.received_vector(), context.broker.forgotten
        late: dict[str, Vector] = {}
        for peer in () if context.mesh is None else context.mesh.linked():
            reported = context.checkpoints.members.get(peer, {})
            missing = {
                origin: last
                for origin, last in reported.items()
                if have.get(origin, 0) < last and origin not in forgotten
            }
            if missing:
                late[peer] = missing
        return late

    def report_durable(self) -> None:
        """Let peers learn soon what is durable here."""
        if self._context.mesh is not None:
            self._context.mesh.report_durable()

    def interest_progressed(self) -> None:
        self._context.receipts.interest_progressed()
        self._interest_heard.wake()

    async def learn_interest(self, mesh: Mesh, seconds: float) -> None:
        """Wait until a topic message would reach its subscribers on other nodes, at most `seconds`."""
        with trio.move_on_after(seconds):
            while not mesh.knows_interest:
                await self._interest_heard.wait()

    # Takeover

    @property
    def takeover_ms(self) -> int:
        return self._context.takeover.announced_ms

    @property
    def terms_served(self) -> Mapping[str, int]:
        return self._context.takeover.served

    def may_borrow(
        self, peer: str, terms: Mapping[str, int], echo_us: int, owners: set[str]
    ) -> Mapping[str, bool | None]:
        return self._context.takeover.may_borrow(peer, terms, echo_us, owners)

    # Members

    def peer_durable(self, peer: str, vector: Vector) -> None:
        context = self._context
        if peer in context.checkpoints.members:
            context.checkpoints.members[peer] = vector
            context.broker.borrowing.owner_has(peer, vector.get(self.origin, 0))
            self.count_copies_of(peer)
            context.definitions.copies_changed()
            context.definition_sync.peer_reported()
            context.quarantine_restore.wake()

    def count_copies_of(self, peer: str) -> None:
        """Let receipts use what is durable on `peer`, if it counts."""
        context = self._context
        durable = context.checkpoints.members.get(peer, {}) if self.membership.counts(peer) else {}
        context.receipts.peer_durable(peer, durable.get(self.origin, 0))

    def rules_changed(self) -> None:
        """Levels that no policy names may have changed."""
        self._context.rules.replicas_max = len(self._context.peer_names)
        self._context.rules.generation += 1

    def members_changed(self) -> None:
        """Apply the present members to all parts that depend on them."""
        context = self._context
        kept = context.checkpoints.members
        context.checkpoints.members = {name: kept.get(name, {}) for name in context.peer_names}
        context.receipts.enrol(context.peer_names)
        context.exclusive_queues.members_changed()
        self.rules_changed()
        context.queue_adoption.wake()
        context.quarantine_restore.wake()
        context.start_hold.wake()
        context.takeover.wake()
