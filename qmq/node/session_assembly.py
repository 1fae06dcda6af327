"""Builds the parts of the sessions room, in the order of what they depend on."""

from collections.abc import Callable

from qmq.admin.parts import AdminParts
from qmq.broker.consumers.subscription import Subscription
from qmq.broker.messages.destination import JOURNAL
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.certificates import Certificates
from qmq.engine.runtime.condition_group import ConditionGroup
from qmq.engine.runtime.contexts import NodeBasics
from qmq.engine.runtime.heartbeats import Heartbeats
from qmq.mesh.parts import MeshParts
from qmq.replication.mesh import Mesh
from qmq.sessions.bound_queues import BoundQueues
from qmq.sessions.client_requests import ClientRequests
from qmq.sessions.clients.access import Access
from qmq.sessions.clients.admission import Admission
from qmq.sessions.clients.authentication import login_checks
from qmq.sessions.clients.draining import Draining
from qmq.sessions.clients.listeners import ClientListeners
from qmq.sessions.clients.login import Logins
from qmq.sessions.clients.login_path import LoginPath
from qmq.sessions.clients.memory_budget import MemoryBudget, default_bytes_max
from qmq.sessions.clients.refusals import Audit, Refusals
from qmq.sessions.clients.session import ClientSession
from qmq.sessions.clients.session_host import SessionHost
from qmq.sessions.clients.subscriber_buffers import SubscriberBuffers
from qmq.sessions.clients.traffic import Traffic
from qmq.sessions.delivery.browsing import Browsing
from qmq.sessions.delivery.effect_dispatcher import Dispatcher, Spans
from qmq.sessions.delivery.fanout_subscribers import FanoutSubscribers
from qmq.sessions.delivery.journal_readers import BEHIND, JournalReaders
from qmq.sessions.delivery.journal_reads import JournalReads
from qmq.sessions.frame_loop import FrameLoops
from qmq.sessions.parts import SessionParts
from qmq.settings.parts import SettingsParts
from qmq.verbs.queues import Delete


def session_parts(
    engine: EngineParts,
    links: Mesh,
    mesh: MeshParts,
    of_mesh: SettingsParts,
    node: NodeBasics,
    sessions: dict[int, ClientSession],
    beats: Heartbeats,
    certificates: Certificates,
    audit: Audit,
    admin: Callable[[], AdminParts],
    stop: Callable[[], None],
) -> SessionParts:
    """`audit` notes an event of the audit. The parts of `admin` use these, and are there when a client requests."""
    environment, settings, limits = engine.environment, node.settings, node.settings.limits
    users, rules, usages, exclusive = of_mesh.users, of_mesh.rules, of_mesh.usages, of_mesh.exclusive_queues
    admission, refusals, traffic = Admission(limits), Refusals(beats, audit), Traffic()
    checks = login_checks(environment, node, settings)
    logins = Logins(users.users, limits, environment, checks, of_mesh.user_limits.of)
    access = Access(engine, sessions, rules, settings.authentication, users.users, users.permissions)
    budget = MemoryBudget(environment, node, limits.memory_bytes_max or default_bytes_max())
    buffers = SubscriberBuffers(limits.outbox_bytes_max, budget.change)
    fanout_subscribers, journal_reads, browsing, dispatcher = _delivery(
        engine, mesh, of_mesh, node, sessions, buffers, beats
    )
    after_delivery = dispatcher.selecting.after_delivery
    left = exclusive.session_ended
    host = SessionHost(engine, node, node, sessions, usages, budget, beats, traffic, left, after_delivery)
    users.follow(
        lambda: logins.change(users.users, node.settings.limits),
        lambda: access.change(users.users, users.permissions),
        of_mesh.effects.limits_changed,
    )
    bound_queues = BoundQueues(
        of_mesh.definitions,
        of_mesh.declared_queues,
        of_mesh.queue_lifetimes,
        lambda queue, user: admin().deletion.queue(queue, Delete(force=True), user),
    )
    requests = ClientRequests(
        engine,
        lambda *request: admin().verbs.respond(*request),
        lambda request: admin().verbs.do(request),
        lambda queue: admin().lists.queue_row(queue),
        bound_queues,
    )
    return SessionParts(
        LoginPath(node, environment, beats, admission, logins, access, refusals, audit),
        host,
        ClientListeners(host, node, admission, refusals, certificates),
        Draining(node, engine, links, mesh.members, host, admission, stop),
        FrameLoops(engine, rules, usages, refusals, mesh.dedup_query, requests),
        buffers,
        fanout_subscribers,
        journal_reads,
        browsing,
        dispatcher,
    )


def _delivery(
    engine: EngineParts,
    mesh: MeshParts,
    of_mesh: SettingsParts,
    node: NodeBasics,
    sessions: dict[int, ClientSession],
    buffers: SubscriberBuffers,
    beats: Heartbeats,
) -> tuple[FanoutSubscribers, JournalReads, Browsing, Dispatcher]:
    """What passes effects to clients and links; see `qmq.sessions.delivery`."""
    limits, membership = node.settings.limits, mesh.members.membership
    fanout_subscribers = FanoutSubscribers(
        engine,
        buffers,
        node,
        sessions,
        # Readers put into outboxes beside the passes of the dispatcher.
        lambda: dispatcher.flush(),
        limits.subscriber_buffer_bytes_default,
    )
    readers = JournalReaders(engine.store.journal, sessions, of_mesh.archives, beats, ConditionGroup(node, BEHIND))
    journal_reads = JournalReads(engine, node, sessions, of_mesh.archives, readers)
    browsing = Browsing(engine, node, sessions, lambda: membership.peers)

    def serve_apart(subscription: Subscription) -> None:
        (journal_reads if subscription.destination == JOURNAL else browsing).begin(subscription)

    dispatcher: Dispatcher = Dispatcher(
        engine,
        sessions,
        fanout_subscribers,
        mesh.receipts,
        beats,
        _spans(engine),
        outbox_bytes_max=limits.outbox_bytes_max,
        body_bytes_max=limits.body_bytes_max,
        spawn=node.spawn,
        browse=serve_apart,
    )
    engine.path.deliver_to(dispatcher)
    return fanout_subscribers, journal_reads, browsing, dispatcher


def _spans(engine: EngineParts) -> Spans | None:
    if (tracer := engine.environment.tracer) is None:
        return None
    from qmq.sessions.delivery.broker_spans import BrokerSpans  # of an extra

    return BrokerSpans(tracer, engine.broker.origin, engine.environment.now_us)
