"""The parts of the admin room, for rooms above it: one value."""

from dataclasses import dataclass

from qmq.admin.console.requests import ConsoleRequests
from qmq.admin.deletion import DestinationDeletion
from qmq.admin.facts.node_facts import FactsReader
from qmq.admin.facts.queue_catalog import QueueCatalog
from qmq.admin.facts.status import NodeStatus
from qmq.admin.inspection.connections import Connections
from qmq.admin.inspection.messages import Messages
from qmq.admin.list_verbs import ListVerbs
from qmq.admin.mesh_jobs import MeshJobs
from qmq.admin.mesh_messages import MessageVerbs
from qmq.admin.verbs import Verbs


@dataclass(frozen=True, slots=True)
class AdminParts:
    """What operators ask and command; see `qmq.admin`."""

    facts: FactsReader
    catalog: QueueCatalog
    status: NodeStatus
    lists: ListVerbs
    connections: Connections
    messages: Messages
    message_verbs: MessageVerbs
    jobs: MeshJobs
    deletion: DestinationDeletion
    console: ConsoleRequests
    verbs: Verbs
