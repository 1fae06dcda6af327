"""The pages of the management API of RabbitMQ, of the whole mesh."""

from collections.abc import Callable
from typing import Any

from qmq.admin.console.requests import ConsoleRequests
from qmq.admin.list_verbs import LIST, ControlRequest, together
from qmq.mesh.peers.calls import Facts
from qmq.mesh.peers.rpc import PeerRpc
from qmq.protocols.http.gateway.management import QUEUES_MAX, ManagementCall, management_response, management_status
from qmq.protocols.http.pages import PageResponse
from qmq.settings.routing.definitions import VhostDefinitions


class ManagementPages:
    """Made by `node`, which asks the others."""

    def __init__(self, node: str, console: ConsoleRequests, rpc: PeerRpc, vhosts: VhostDefinitions) -> None:
        self._node = node
        self._console = console
        self._rpc = rpc
        self._vhosts = vhosts

    async def page(self, call: ManagementCall, is_over: Callable[[], bool]) -> PageResponse:
        """The response to a call. Nothing further is asked when it `is_over`."""
        vhosts = self._vhosts.declared
        rows: list[Any] = []
        facts: Facts = {} if call.about else await self._console.overview()
        after: str | None = "" if call.about else None
        while after is not None and not is_over() and len(rows) < QUEUES_MAX:
            asked = ControlRequest(LIST, call.about, after, call.limit)
            facts = together(asked, list((await self._rpc.ask_all(asked)).by_node.values()))
            rows += call.rows_of(facts, vhosts)
            after = facts.get("next") if call.what == "queues" else None
        response = management_response(call, facts, rows, self._node, vhosts)
        return PageResponse(management_status(call, response), response)
