"""Requests of the console to its node, and of that node to its peers.

They are verbs like all others, over STOMP and over HTTP. They stand apart only because they keep something between two
requests: an index, rates, the last hour.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Final

from msgspec import Struct

from qmq.admin.console.history import History, HistoryCall
from qmq.admin.console.overview import Overview
from qmq.admin.console.queue_history import QueueHistoryCall
from qmq.admin.console.queue_pages import (
    ConsoleCall,
    QueuePages,
    RowsCall,
    firsts_call,
    merged_rows,
    names_of_page,
)
from qmq.admin.facts.system import SystemTopics
from qmq.engine.parts import EngineParts
from qmq.mesh.peers.calls import Facts, Replies, need
from qmq.mesh.peers.rpc import PeerRpc
from qmq.mesh.peers.verb_request import ControlResponse, in_body
from qmq.verbs.lists import QueuePage
from qmq.verbs.nodes import ShowAudit
from qmq.verbs.verb import Verb, VerbRequest

OVERVIEW: Final = "/control/overview"


class OverviewCall(ConsoleCall[Facts], frozen=True):
    """What a node says of itself."""

    name: ClassVar = "overview"

    def check(self, reply: Facts) -> None:
        need(reply, node=str, links=list, conditions=list)


class AuditRows(Struct, frozen=True):
    rows: list[Facts]

    def __post_init__(self) -> None:
        for row in self.rows:
            need(row, at_us=int)


class AuditCall(ConsoleCall[AuditRows], frozen=True):
    """The last events of the audit of a node."""

    name: ClassVar = "audit"


class ConsoleRequests:
    """This node's side of the console."""

    def __init__(
        self,
        engine: EngineParts,
        rpc: PeerRpc,
        system: SystemTopics,
        history: History,
        pages: QueuePages,
        overview: Overview,
    ) -> None:
        self._node = engine.broker.origin.node
        self._rpc = rpc
        self._system = system
        self.history = history
        self.pages = pages
        self.of_node = overview
        self._verbs: Mapping[str, Callable[[VerbRequest[Any]], Awaitable[Facts]]] = {
            "overview": self._overviews,
            "history": self._histories,
            "queue-history": self._queue_histories,
            "audit": self._audited,
            "list": self._page,
        }

    async def respond(self, asked: VerbRequest[Any]) -> ControlResponse:
        """The response to one of these verbs. Raises Refused."""
        return await in_body(await self._verbs[asked.verb](asked))

    async def _overviews(self, asked: VerbRequest[Verb]) -> Facts:
        return self._of_nodes(await self._rpc.ask_all(OverviewCall(), is_mesh=asked.is_mesh))

    async def _histories(self, asked: VerbRequest[Verb]) -> Facts:
        """The last hour of each node; of one that does not answer, what its peers have seen of it."""
        found, missing = await self._rpc.ask_all(HistoryCall(), is_mesh=asked.is_mesh)
        seen = {name: await self.history.of_silent(name) for name in missing}
        return self._of_nodes(Replies({**found, **{name: one for name, one in seen.items() if one["at_us"]}}, missing))

    async def _queue_histories(self, asked: VerbRequest[Verb]) -> Facts:
        """The last hour of a queue, of each node that has seen some of it."""
        call = QueueHistoryCall(asked.about)
        return self._of_nodes(await self._rpc.ask_all(call, is_mesh=asked.is_mesh))

    async def _audited(self, asked: VerbRequest[ShowAudit]) -> Facts:
        """The last events of the audit, the newest first."""
        found, missing = await self._rpc.ask_all(AuditCall(), is_mesh=asked.is_mesh)
        rows = sorted([row for one in found.values() for row in one.rows], key=lambda row: -row["at_us"])
        return {"rows": rows, "nodes_missing": missing}

    async def overview(self) -> Facts:
        """What all nodes say of themselves, for all tabs."""
        return self._of_nodes(await self._rpc.ask_all(OverviewCall()))

    def _of_nodes(self, replies: Replies[Facts]) -> Facts:
        return {"node": self._node, "nodes": replies.by_node, "nodes_missing": replies.missing}

    async def _page(self, asked: VerbRequest[QueuePage]) -> Facts:
        page, ask_all = asked.options, self._rpc.ask_all
        firsts, missing = await ask_all(firsts_call(page), is_mesh=asked.is_mesh)
        names, more = names_of_page(page, list(firsts.values()))
        rows, silent = await ask_all(RowsCall(names), is_mesh=asked.is_mesh)
        return {
            "destinations": merged_rows(names, list(rows.values())),
            "more": more,
            "queues": max(one.queues for one in firsts.values()),
            "age_seconds": firsts[self._node].age_seconds,
            "nodes_missing": sorted({*missing, *silent}),
        }

    def audited_here(self, call: AuditCall) -> AuditRows:
        """The reply of this node."""
        return AuditRows(list(self._system.audited))
