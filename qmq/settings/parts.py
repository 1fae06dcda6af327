"""The parts of the settings room, for rooms above it: one value."""

from dataclasses import dataclass

from qmq.gateways.rules import Rules
from qmq.settings.definitions.archives import ArchiveDefinitions
from qmq.settings.definitions.declared_queues import DeclaredQueues
from qmq.settings.definitions.deleted_queues import DeletedQueues
from qmq.settings.definitions.exclusive_queues import ExclusiveQueues
from qmq.settings.definitions.file_entries import FileDefinitions
from qmq.settings.definitions.live import LiveDefinitions
from qmq.settings.definitions.paused_queues import PausedQueues
from qmq.settings.definitions.policies import PolicyKind
from qmq.settings.definitions.queue_lifetimes import QueueLifetimes
from qmq.settings.definitions.queue_watchers import QueueWatchers
from qmq.settings.definitions.schemas import SchemaDefinitions
from qmq.settings.definitions.sync import DefinitionSync
from qmq.settings.definitions.users import LimitDefinitions, UserDefinitions
from qmq.settings.effects import DefinitionEffects
from qmq.settings.limits.holdings import Holdings
from qmq.settings.limits.usage import ClientUsages
from qmq.settings.routing.definitions import RoutingDefinitions, VhostDefinitions
from qmq.settings.routing.left_behind import LeftBehind
from qmq.settings.rules_of_settings import Policies


@dataclass(frozen=True, slots=True)
class SettingsParts:
    """What concerns the mesh and can be changed while it runs; see `docs/definitions.md`."""

    definitions: LiveDefinitions
    sync: DefinitionSync
    file_definitions: FileDefinitions

    policy_kind: PolicyKind
    policies: Policies
    rules: Rules
    effects: DefinitionEffects
    schemas: SchemaDefinitions
    archives: ArchiveDefinitions
    routing: RoutingDefinitions
    vhosts: VhostDefinitions
    users: UserDefinitions

    user_limits: LimitDefinitions
    holdings: Holdings
    usages: ClientUsages

    declared_queues: DeclaredQueues
    paused_queues: PausedQueues
    deleted_queues: DeletedQueues
    exclusive_queues: ExclusiveQueues
    queue_lifetimes: QueueLifetimes
    queue_watchers: QueueWatchers
    left_behind: LeftBehind
