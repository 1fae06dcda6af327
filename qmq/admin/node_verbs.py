"""The verbs about a node as a whole: its status, the policies that apply, its drain, and its retirement."""

from dataclasses import dataclass
from typing import Literal

import trio

from qmq.access.rules import Action
from qmq.admin.facts.status import NodeStatus
from qmq.admin.inspection.connections import REASON_CHARS_MAX
from qmq.admin.list_verbs import STATUS
from qmq.engine.runtime.contexts import Configured
from qmq.errors import Refused
from qmq.mesh.membership.decommission import Decommission
from qmq.mesh.peers.calls import Facts
from qmq.mesh.peers.rpc import PeerRpc
from qmq.mesh.peers.verb_request import ControlResponse
from qmq.sessions.clients.access import Access
from qmq.sessions.clients.draining import DRAINING, HAND_OVER_SECONDS, DrainCall, Draining, DrainState
from qmq.settings.definitions.declared_queues import DeclaredQueues
from qmq.settings.definitions.live import LiveDefinitions
from qmq.settings.definitions.policy_sources import policies_of
from qmq.verbs.nodes import Drain, Retire, Status, Undrain
from qmq.verbs.table import needs_of
from qmq.verbs.verb import Verb, VerbRequest

DRAIN_POLL_SECONDS = 0.1
"""Between two questions how far a drain is."""

LAST_CONNECTIONS_SECONDS = 10.0
"""For the last connections to close, after the time in which clients may finish."""


@dataclass(eq=False, repr=False)
class NodeVerbs:
    """Responds to them."""

    _node: Configured
    _access: Access
    _status: NodeStatus
    _decommission: Decommission
    _definitions: LiveDefinitions
    _declared_queues: DeclaredQueues
    _draining: Draining
    _rpc: PeerRpc

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

    async def drain(self, asked: VerbRequest[Drain]) -> Facts:
        """Drain a node, and wait until it is done, for a bounded time. Raises Refused."""
        before = (await self._ask_drain(asked)).state
        state = await self._ask_drain(asked, "drain")
        seconds = self._node.settings.limits.drain_seconds + HAND_OVER_SECONDS + LAST_CONNECTIONS_SECONDS
        with trio.move_on_after(seconds):
            while state.state == DRAINING and not asked.is_dry_run:
                await trio.sleep(DRAIN_POLL_SECONDS)
                state = await self._ask_drain(asked)
        if asked.options.stop and state.state == "drained":
            state = await self._ask_drain(asked, "stop")
        changed = before == "serving" or (asked.options.stop and before == "drained")
        return self._drain_facts(asked, state, int(changed))

    async def undrain(self, asked: VerbRequest[Undrain]) -> Facts:
        """End the drain of a node. Raises Refused."""
        before = (await self._ask_drain(asked)).state
        return self._drain_facts(asked, await self._ask_drain(asked, "undrain"), int(before != "serving"))

    def _drain_facts(self, asked: VerbRequest[Drain] | VerbRequest[Undrain], state: DrainState, changed: int) -> Facts:
        return {
            "drained_node": self._drained(asked),
            "state": state.state,
            "connections": state.connections,
            "changed": changed,
        }

    def _drained(self, asked: VerbRequest[Drain] | VerbRequest[Undrain]) -> str:
        return asked.about.removeprefix("/") or self._node.settings.name

    async def _ask_drain(
        self, asked: VerbRequest[Drain] | VerbRequest[Undrain], want: Literal["", "drain", "undrain", "stop"] = ""
    ) -> DrainState:
        name = self._drained(asked)
        call = DrainCall(
            want="" if asked.is_dry_run else want, reason=getattr(asked.options, "reason", "")[:REASON_CHARS_MAX]
        )
        if name == self._node.settings.name:
            return self._draining.answer(call, asked.session)
        state = await self._rpc.ask_one(name, call)
        if state is None:
            raise Refused("not-reachable", f"The node {name} does not answer here; is the name right?")
        return state

    async def retire(self, asked: VerbRequest[Retire]) -> Facts:
        """Retire a node, or with `majority_lost` all that are named. Raises Refused."""
        name = asked.about.removeprefix("/")
        if asked.options.majority_lost:
            return await self._decommission.retire_lost({one for one in name.split(",") if one})
        return await self._decommission.retire(name, force=asked.options.force)
