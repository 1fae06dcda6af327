"""Builds the parts of each room, in the order of what they depend on: one function for each room.

A function returns its parts as one frozen group. `qmq.node.parts` calls them, and still builds the parts that get the
node as a context.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from qmq.broker.broker import Broker
from qmq.broker.consumers.subscription import Subscription
from qmq.broker.messages.destination import JOURNAL
from qmq.config import NodeSettings
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
from qmq.engine.runtime.contexts import NodeBasics
from qmq.engine.runtime.damage_report import DamageReport
from qmq.engine.runtime.heartbeats import Heartbeats
from qmq.environment import Environment
from qmq.mesh.membership.takeover import Takeover
from qmq.record_codec import Replay
from qmq.sessions.clients.session import ClientSession
from qmq.sessions.clients.subscriber_buffers import SubscriberBuffers
from qmq.sessions.delivery.browsing import Browsing
from qmq.sessions.delivery.effect_dispatcher import Dispatcher
from qmq.sessions.delivery.fanout_subscribers import FanoutSubscribers
from qmq.sessions.delivery.journal_reads import JournalReads
from qmq.storage.store import Store


@dataclass(frozen=True, slots=True)
class EngineParts:
    """Makes decisions durable; see `qmq.engine`."""

    broker: Broker
    store: Store
    environment: Environment
    replay: Replay
    damage: DamageReport
    commits: Commits
    tail: CommittedTail
    pager: QueuePager
    deadlines: DeadlineTimer
    queue_count: QueueCount
    checkpoints: Checkpoints
    recent_settles: RecentSettles
    path: CommitPath


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
    commits = Commits(store.journal, limits.commit_pending_bytes_max)
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


@dataclass(frozen=True, slots=True)
class DeliveryParts:
    """Passes effects to clients and links; see `qmq.sessions.delivery`."""

    fanout_subscribers: FanoutSubscribers
    receipts: Receipts
    journal_reads: JournalReads
    browsing: Browsing
    dispatcher: Dispatcher


def delivery_parts(
    engine: EngineParts,
    sessions: dict[int, ClientSession],
    buffers: SubscriberBuffers,
    beats: Heartbeats,
    node: NodeBasics,
    takeover: Takeover,
    settings: NodeSettings,
    peer_names: Callable[[], Iterable[str]],
) -> DeliveryParts:
    """`peer_names`: the other members now."""
    broker, store, environment, tail = engine.broker, engine.store, engine.environment, engine.tail
    limits, mesh = settings.limits, settings.mesh
    fanout_subscribers = FanoutSubscribers(
        broker,
        store,
        environment,
        tail,
        buffers,
        node,
        sessions,
        # Readers put into outboxes beside the passes of the dispatcher.
        flush=lambda: dispatcher.flush(),
        buffer_bytes=limits.subscriber_buffer_bytes_default,
    )
    acks = ReplicaAcks(
        peer_names(), mesh.receipt_degrade_seconds, mesh.interest_confirm_seconds, takeover.settled_through
    )
    receipts = Receipts(acks, refuses=mesh.receipt_short == "refuse")
    journal_reads = JournalReads(broker, store, environment, tail, node, sessions)
    browsing = Browsing(broker, store, environment, tail, engine.checkpoints, node, sessions, peer_names=peer_names)

    def serve_apart(subscription: Subscription) -> None:
        (journal_reads if subscription.destination == JOURNAL else browsing).begin(subscription)

    dispatcher: Dispatcher = Dispatcher(
        broker,
        sessions,
        engine.path,
        fanout_subscribers,
        receipts,
        beats,
        outbox_bytes_max=limits.outbox_bytes_max,
        body_bytes_max=limits.body_bytes_max,
        spawn=node.spawn,
        browse=serve_apart,
    )
    engine.path.deliver_to(dispatcher)
    return DeliveryParts(fanout_subscribers, receipts, journal_reads, browsing, dispatcher)
