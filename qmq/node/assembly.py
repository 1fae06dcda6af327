"""Builds the parts of each room, in the order of what they depend on: one function for each room.

A function returns its parts as one frozen group. `qmq.node.parts` calls them.
"""

from collections.abc import Callable

from qmq.broker.broker import Broker
from qmq.config import MeshSettings, NodeSettings, PeersFile
from qmq.engine.checkpoint.checkpoints import Checkpoints
from qmq.engine.checkpoint.queue_count import QueueCount
from qmq.engine.checkpoint.queue_pager import QueuePager
from qmq.engine.commit.commits import Commits
from qmq.engine.commit.committed_tail import CommittedTail
from qmq.engine.commit.receipts import Receipts
from qmq.engine.commit.recent_settles import RecentSettles
from qmq.engine.commit.replica_acks import ReplicaAcks
from qmq.engine.commit_path import CommitPath
from qmq.engine.deadline_timer import DeadlineTimer
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.certificates import Certificates
from qmq.engine.runtime.contexts import NodeBasics
from qmq.engine.runtime.damage_report import DamageReport
from qmq.environment import Environment
from qmq.gateways.rules import Rules
from qmq.mesh.host import MeshHost
from qmq.mesh.link_reports import LinkReports
from qmq.mesh.membership.adopt_queues import CoveringDeletions, QueueAdoption
from qmq.mesh.membership.clock_check import ClockCheck
from qmq.mesh.membership.decommission import Decommission
from qmq.mesh.membership.members import LiveMembership
from qmq.mesh.membership.start_hold import StartHold
from qmq.mesh.membership.takeover import Takeover
from qmq.mesh.parts import MeshParts
from qmq.mesh.peers.dedup_query import DedupQuery
from qmq.mesh.peers.rpc import PeerRpc
from qmq.mesh.repair.catch_up import CatchUp
from qmq.mesh.repair.fanout_logs import FanoutRepair
from qmq.mesh.repair.incarnation_gc import IncarnationGc
from qmq.mesh.repair.losses import Losses
from qmq.mesh.repair.quarantine_restore import QuarantineRestore
from qmq.mesh.repair.queue_store import QueueStoreRepair
from qmq.mesh.repair.requests import RepairResponder
from qmq.model.members import Membership
from qmq.record_codec import Replay
from qmq.replication.mesh import Mesh
from qmq.sessions.clients.session import ClientSession
from qmq.storage.catalog.incarnations import Seals
from qmq.storage.store import Store


def engine_parts(
    broker: Broker,
    store: Store,
    environment: Environment,
    replay: Replay,
    node: NodeBasics,
    storage_now_us: Callable[[], int],
    sessions: dict[int, ClientSession],
) -> EngineParts:
    """`storage_now_us`: the time that the stores use. `sessions` stays live."""
    limits, storage = node.settings.limits, node.settings.storage
    damage = DamageReport(store, node)
    commits = Commits(store.journal, min(limits.commit_pending_bytes_max, storage.unnoticed_bytes_max))
    pager = QueuePager(
        broker,
        store,
        environment,
        replay,
        damage,
        messages_kept=limits.queue_messages_in_memory_max,
        bytes_kept=limits.queue_bytes_in_memory_max,
        checkpoint_bytes=storage.checkpoint_bytes,
    )
    checkpoints = Checkpoints(commits, pager, broker, store, environment, node, node, storage_now_us)
    checkpoints.follow(lambda report: damage.check())
    deadlines = DeadlineTimer(broker, environment)
    recent_settles = RecentSettles(broker.origin.node, sessions)
    return EngineParts(
        broker,
        store,
        environment,
        replay,
        damage,
        commits,
        CommittedTail(commits, replay, damage),
        pager,
        deadlines,
        QueueCount(broker, store, environment),
        checkpoints,
        recent_settles,
        CommitPath(broker, environment, commits, pager, checkpoints, deadlines, recent_settles),
    )


def mesh_of(host: MeshHost, peers: PeersFile | None, settings: NodeSettings, certificates: Certificates) -> Mesh:
    """The links of the node; without a peers file it has none."""
    own, tls = settings.mesh, settings.mesh.tls
    listen_tls, dial_tls = (None, None) if peers is None or tls is None else certificates.for_links(tls)
    takeover_ms = round(own.takeover_after_seconds * 1000) if own.takeover else 0
    return Mesh(host, peers=peers, settings=own, takeover_ms=takeover_ms, listen_tls=listen_tls, dial_tls=dial_tls)


def mesh_parts(
    engine: EngineParts,
    mesh: Mesh,
    rpc: PeerRpc,
    membership: Membership,
    seals: Seals,
    peers: PeersFile | None,
    node: NodeBasics,
    deletions: CoveringDeletions,
    rules: Rules,
    settings: MeshSettings,
    *,
    stop: Callable[[], None],
    is_clock_trusted: bool,
) -> MeshParts:
    losses = Losses(engine, node.add_event)
    quarantine = QuarantineRestore(engine, mesh, rpc, seals, losses)
    rows = QueueStoreRepair(engine, mesh, rpc, quarantine, node.add_event)
    catch_up = CatchUp(engine, mesh, rpc, losses, rows)
    fanout_repair = FanoutRepair(engine, mesh, rpc)
    collector = IncarnationGc(engine, node, mesh, rpc, seals, quarantine)
    members = LiveMembership(engine, node, mesh, membership, peers, seals, stop)
    takeover = Takeover(engine, node, mesh, members, catch_up, seals, settings)
    start_hold = StartHold(engine.broker, mesh, membership, takeover, catch_up, settings)
    adoption = QueueAdoption(engine, mesh, membership, rpc, takeover, seals, deletions, settings)
    dedup_query = DedupQuery(engine, mesh, rpc)
    clock_check = ClockCheck(engine, mesh, membership, node, is_trusted=is_clock_trusted)
    acks = ReplicaAcks(
        membership.peers, settings.receipt_degrade_seconds, settings.interest_confirm_seconds, takeover.settled_through
    )
    receipts = Receipts(
        acks,
        mesh.routes,
        refuses=settings.receipt_short == "refuse",
        has_disk=node.settings.directory is not None,
    )
    reports = LinkReports(engine, mesh, members, rpc, catch_up, start_hold, receipts, rules)

    rows.follow(catch_up.schedule)
    catch_up.hold_with(start_hold)
    takeover.follow(paused=dedup_query.was_away, terms=receipts.terms_changed)
    members.report_to(reports)
    reports.follow(
        links=(
            start_hold.wake,
            takeover.links_changed,
            members.links_changed,
            rpc.links_changed,
            dedup_query.links_changed,
        ),
        caught_up=(
            lambda peer: fanout_repair.schedule(),
            lambda peer: rows.schedule(),
            lambda peer: clock_check.schedule(),
            lambda peer: dedup_query.links_changed(),
            lambda peer: takeover.wake(),
            members.caught_up_with,
            lambda peer: collector.wake(),
            lambda peer: quarantine.wake(),
            lambda peer: start_hold.wake(),
        ),
        durable=(quarantine.wake,),
        members=(adoption.wake, quarantine.wake, start_hold.wake, takeover.wake),
    )
    engine.checkpoints.follow(collector.checkpoint_done)
    engine.damage.follow(fanout_repair.schedule)
    engine.damage.follow(rows.schedule, of_rows=True)
    engine.replay.follow(terms=takeover.noted, seals=collector.seals_received)
    mesh.never_again(seals.forgotten)
    # Before its first report a member counts as having nothing: what only this node has must not be dropped.
    engine.checkpoints.members_changed(membership.peers)
    return MeshParts(
        members,
        takeover,
        start_hold,
        dedup_query,
        Decommission(engine, mesh, members, rpc),
        adoption,
        clock_check,
        catch_up,
        fanout_repair,
        rows,
        quarantine,
        collector,
        RepairResponder(engine, seals, rows.searched_for),
        receipts,
        reports,
    )
