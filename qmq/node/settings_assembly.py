"""Builds the parts of the settings room, in the order of what they depend on."""

from collections.abc import Callable, Collection, Mapping

from qmq.access.rules import Principal
from qmq.broker.routing.table import RoutingTable
from qmq.config import NodeSettings
from qmq.engine.parts import EngineParts
from qmq.engine.runtime.condition_group import ConditionGroup
from qmq.engine.runtime.contexts import NodeBasics
from qmq.engine.runtime.heartbeats import Heartbeats
from qmq.mesh.peers.rpc import PeerRpc
from qmq.model.dots import Vector
from qmq.model.members import Membership
from qmq.replication.mesh import Mesh
from qmq.settings.definitions.archives import ArchiveDefinitions
from qmq.settings.definitions.declared_queues import DeclaredQueues
from qmq.settings.definitions.deleted_queues import DeletedQueues, Drop
from qmq.settings.definitions.exclusive_queues import ExclusiveQueues
from qmq.settings.definitions.file_entries import FileDefinitions
from qmq.settings.definitions.live import Changes, LiveDefinitions
from qmq.settings.definitions.paused_queues import PausedQueues
from qmq.settings.definitions.policies import PolicyKind
from qmq.settings.definitions.queue_lifetimes import QueueLifetimes
from qmq.settings.definitions.queue_watchers import QueueWatchers
from qmq.settings.definitions.schemas import SchemaDefinitions
from qmq.settings.definitions.sync import DefinitionSync
from qmq.settings.definitions.users import LimitDefinitions, UserDefinitions
from qmq.settings.effects import DefinitionEffects
from qmq.settings.file_check import errors_in
from qmq.settings.limits.holdings import Holdings
from qmq.settings.limits.usage import ClientUsages
from qmq.settings.parts import SettingsParts
from qmq.settings.routing.definitions import RoutingDefinitions, VhostDefinitions
from qmq.settings.routing.left_behind import LeftBehind
from qmq.settings.rules_of_settings import Policies


def settings_parts(
    engine: EngineParts,
    mesh: Mesh,
    membership: Membership,
    rpc: PeerRpc,
    beats: Heartbeats,
    node: NodeBasics,
    table: RoutingTable,
    pending: Changes,
    *,
    use: Callable[[NodeSettings], None],
    groups_of: Callable[[Principal], Collection[str]],
    late_peers: Callable[[], Mapping[str, Vector]],
    is_clock_in_doubt: Callable[[], bool],
    drop: Drop,
) -> SettingsParts:
    """`pending`: entries of the node file that count from now on. `use` lets settings apply. The other functions are
    those of parts that are built later; none is called before these are.
    """
    broker = engine.broker
    definitions = LiveDefinitions(
        engine,
        mesh,
        membership,
        node,
        engine.store.recovered.definitions,
        pending,
        # A change asks the peers, and what they say is merged into the definitions.
        lambda keys: sync.knows_latest(keys),
    )
    sync: DefinitionSync = DefinitionSync(engine, mesh, membership, rpc, node, definitions, late_peers)
    user_limits = LimitDefinitions(definitions, groups_of)
    paused = PausedQueues(engine, node, definitions)
    declared = DeclaredQueues(
        broker,
        mesh,
        membership,
        node,
        definitions,
        table,
        # What a user holds is the queues that it has declared.
        lambda user: holdings.check_room(user),
    )
    holdings: Holdings = Holdings(engine, node, declared, user_limits)
    exclusive = ExclusiveQueues(broker, mesh, membership, node, definitions, declared)
    policies = Policies(membership, node, declared, paused, holdings)
    rules = policies.gateway_rules(table, exclusive.check)

    routing = RoutingDefinitions(node, definitions, table, rules)
    vhosts = VhostDefinitions(definitions, table, rules)
    users = UserDefinitions(node, definitions)
    schemas = SchemaDefinitions(node, definitions, declared, policies.of, rules)
    usages = ClientUsages(broker, beats, node, user_limits)
    effects = DefinitionEffects(engine, node, policies, rules, schemas, holdings, usages, use)
    policy_kind = PolicyKind(membership, node, definitions, effects.policies_changed)

    lifetimes = QueueLifetimes(broker, mesh, membership, rpc, beats, node, declared)
    deleted = DeletedQueues(engine, membership, node, definitions, is_clock_in_doubt, drop)
    watchers = QueueWatchers()

    user_limits.follow(effects.limits_changed)
    declared.follow(
        changed=(lifetimes.changed, exclusive.changed, holdings.changed, schemas.declarations_changed),
        deleted=(deleted.drop, watchers.deleted),
        replan=rules.replan,
    )
    engine.replay.follow(definitions=definitions.received)
    engine.path.follow(definitions.decided)
    engine.path.follow(lifetimes.decided)
    return SettingsParts(
        definitions,
        sync,
        FileDefinitions(definitions, sync, ConditionGroup(node, "reload"), errors_in),
        policy_kind,
        policies,
        rules,
        effects,
        schemas,
        ArchiveDefinitions(definitions),
        routing,
        vhosts,
        users,
        user_limits,
        holdings,
        usages,
        declared,
        paused,
        deleted,
        exclusive,
        lifetimes,
        watchers,
        LeftBehind(definitions, declared, routing, users),
    )
