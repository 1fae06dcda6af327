"""The verbs about a node as a whole: its status, the policies that apply, and its retirement."""

from qmq.access.rules import Action
from qmq.admin.control import STATUS
from qmq.admin.facts.status import NodeStatus
from qmq.engine.runtime.contexts import Configured
from qmq.errors import Refused
from qmq.mesh.membership.decommission import Decommission
from qmq.mesh.peers.calls import Facts
from qmq.mesh.peers.verb_request import ControlResponse
from qmq.sessions.clients.access import Access
from qmq.settings.definitions.declared_queues import DeclaredQueues
from qmq.settings.definitions.live import LiveDefinitions
from qmq.settings.definitions.policy_sources import policies_of
from qmq.verbs.nodes import Retire, Status
from qmq.verbs.table import needs_of
from qmq.verbs.verb import Verb, VerbRequest


class NodeVerbs:
    """Responds to them."""

    def __init__(
        self,
        node: Configured,
        access: Access,
        status: NodeStatus,
        decommission: Decommission,
        definitions: LiveDefinitions,
        declared_queues: DeclaredQueues,
    ) -> None:
        self._node = node
        self._access = access
        self._status = status
        self._decommission = decommission
        self._definitions = definitions
        self._declared_queues = declared_queues

    async def status(self, asked: VerbRequest[Status]) -> ControlResponse:
        """The status of this node. A client without the right for it gets the names of node and software. If its header
        `about` names a fanout that it may follow, it gets the position where that begins: the message-ids there show as
        much.
        """
        if asked.is_mesh:
            raise Refused("bad-scope", "A status is that of one node; ask each for its own.")
        rights = self._access.rights_of(asked.principal)
        if rights.has_all(needs_of(STATUS)):
            text = await self._status.text(asked.options.rate_seconds)
        else:
            about = asked.options.about
            is_follower = about.startswith("/fanout/") and rights.allows(Action.SUBSCRIBE, about)
            text = self._status.public_text(has_position=is_follower)
        return ControlResponse({"status": text}, text.encode())

    async def policies(self, asked: VerbRequest[Verb]) -> Facts:
        """Which rules apply to a destination, and where each comes from."""
        return policies_of(self._node.settings, self._definitions, self._declared_queues, asked.about)

    async def retire(self, asked: VerbRequest[Retire]) -> Facts:
        """Retire a node, or with `majority_lost` all that are named. Raises Refused."""
        name = asked.about.removeprefix("/")
        if asked.options.majority_lost:
            return await self._decommission.retire_lost({one for one in name.split(",") if one})
        return await self._decommission.retire(name, force=asked.options.force)
