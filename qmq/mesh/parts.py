"""The parts of the mesh room, for rooms above it: one value."""

from dataclasses import dataclass

from qmq.engine.commit.receipts import Receipts
from qmq.mesh.link_reports import LinkReports
from qmq.mesh.membership.adopt_queues import QueueAdoption
from qmq.mesh.membership.clock_check import ClockCheck
from qmq.mesh.membership.decommission import Decommission
from qmq.mesh.membership.members import LiveMembership
from qmq.mesh.membership.start_hold import StartHold
from qmq.mesh.membership.takeover import Takeover
from qmq.mesh.peers.dedup_query import DedupQuery
from qmq.mesh.repair.catch_up import CatchUp
from qmq.mesh.repair.fanout_logs import FanoutRepair
from qmq.mesh.repair.incarnation_gc import IncarnationGc
from qmq.mesh.repair.quarantine_restore import QuarantineRestore
from qmq.mesh.repair.queue_store import QueueStoreRepair
from qmq.mesh.repair.requests import RepairResponder


@dataclass(frozen=True, slots=True)
class MeshParts:
    """What a node does with its peers; a node without peers has all of them too."""

    members: LiveMembership
    takeover: Takeover
    start_hold: StartHold
    dedup_query: DedupQuery
    decommission: Decommission
    adoption: QueueAdoption
    clock_check: ClockCheck
    catch_up: CatchUp
    fanout_repair: FanoutRepair
    row_repair: QueueStoreRepair
    quarantine_restore: QuarantineRestore
    incarnation_gc: IncarnationGc
    responder: RepairResponder
    receipts: Receipts
    reports: LinkReports
