"""Requests of the console to its node, and of that node to its peers.

They are verbs like all others, over STOMP and over HTTP. They stand apart only because they keep something between two
requests: an index, rates, the last hour.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Final

import argon2
from msgspec import Struct

from qmq.access.rules import ACTIONS, Action, Principal
from qmq.admin.console.history import History, HistoryCall
from qmq.admin.console.overview import Overview
from qmq.admin.console.queue_pages import (
    ConsoleCall,
    FirstQueues,
    FirstsCall,
    QueuePages,
    QueueRows,
    RowsCall,
    firsts_call,
    merged_rows,
    names_of_page,
)
from qmq.admin.facts.system import AUDIT, SystemTopics
from qmq.broker.messages.destination import is_pattern
from qmq.engine.parts import EngineParts
from qmq.errors import Refused
from qmq.mesh.peers.calls import Facts, Replies, need
from qmq.mesh.peers.rpc import PeerRpc
from qmq.mesh.peers.verb_request import ControlResponse
from qmq.sessions.clients.access import Access
from qmq.verbs.lists import QueuePage
from qmq.verbs.nodes import PasswordHash, ShowAudit, ShowRights
from qmq.verbs.table import needs_of
from qmq.verbs.verb import Verb, VerbRequest

OVERVIEW: Final = "/control/overview"
USERS: Final = "/control/definitions/get/user/"

GENERAL: Final[Mapping[str, tuple[Action, str]]] = {
    "observe": (Action.OBSERVE, "/control/status"),
    "kick": (Action.ADMINISTER, "/control/kick"),
    "retire": (Action.ADMINISTER, "/control/retire/*"),
    "definitions": (Action.ADMINISTER, "/control/definitions/*"),
    "audit": (Action.ADMINISTER, AUDIT),
    "trace": (Action.OBSERVE, "/control/trace/*"),
    "redrive": (Action.ADMINISTER, "/queue/*"),
}
"""What a client may do that is not about one destination."""

PASSCODE_CHARS_MAX: Final = 1024


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
        access: Access,
        system: SystemTopics,
        history: History,
        pages: QueuePages,
        overview: Overview,
    ) -> None:
        self._node = engine.broker.origin.node
        self._environment = engine.environment
        self._rpc = rpc
        self._access = access
        self._system = system
        self.history = history
        self._pages = pages
        self._overview = overview
        self._verbs: Mapping[str, Callable[[VerbRequest[Any]], Awaitable[Facts]]] = {
            "overview": self._overviews,
            "history": self._histories,
            "audit": self._audited,
            "list": self._page,
            "rights": self._rights,
            "password-hash": self._hash,
        }

    async def respond(self, asked: VerbRequest[Any]) -> ControlResponse:
        """The response to one of these verbs. Raises Refused."""
        return _response(await self._verbs[asked.verb](asked))

    async def _overviews(self, asked: VerbRequest[Verb]) -> Facts:
        return self._of_nodes(await self._rpc.ask_all(OverviewCall(), is_mesh=asked.is_mesh))

    async def _histories(self, asked: VerbRequest[Verb]) -> Facts:
        """The last hour of each node; of one that does not answer, what its peers have seen of it."""
        found, missing = await self._rpc.ask_all(HistoryCall(), is_mesh=asked.is_mesh)
        seen = {name: await self.history.of_silent(name) for name in missing}
        return self._of_nodes(Replies({**found, **{name: one for name, one in seen.items() if one["at_us"]}}, missing))

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

    async def _rights(self, asked: VerbRequest[ShowRights]) -> Facts:
        """What the client may do, or with `user` another one."""
        access, principal = self._access, asked.principal
        user, about = asked.options.user, asked.options.about
        if user is not None and (principal is None or user != principal.name):
            access.rights_of(principal).check_needs(needs_of(f"{USERS}{user}"))
            principal = Principal(user)
        rights = access.rights_of(principal)
        if about and is_pattern(about) and not about.endswith("*"):
            raise Refused("bad-destination", "The header about is a destination, or the beginning of one with *.")
        facts: Facts = {
            "node": self._node,
            "user": None if principal is None else principal.name,
            "may": {name: rights.allows(action, on) for name, (action, on) in GENERAL.items()},
        }
        if about:
            facts["about"] = {action.value: rights.allows(action, about) for action in ACTIONS}
        return facts

    async def _hash(self, asked: VerbRequest[PasswordHash]) -> Facts:
        """What the definition of a user has in place of its passcode. Takes about a tenth of a second, in a thread."""
        try:
            passcode = json.loads(asked.body)["passcode"]
        except (ValueError, TypeError, KeyError):
            passcode = None
        if not isinstance(passcode, str) or not 1 <= len(passcode) <= PASSCODE_CHARS_MAX:
            raise Refused("bad-body", f'The body is {{"passcode": …}}, with 1 to {PASSCODE_CHARS_MAX} characters.')
        hasher = argon2.PasswordHasher()
        return {"password_hash": await self._environment.run_blocking(hasher.hash, passcode)}

    # Of one node

    async def overview_here(self, call: OverviewCall) -> Facts:
        return await self._overview.facts()

    def history_here(self, call: HistoryCall) -> Facts:
        return self.history.here(call)

    def audited_here(self, call: AuditCall) -> AuditRows:
        return AuditRows(list(self._system.audited))

    async def firsts_here(self, call: FirstsCall) -> FirstQueues:
        return await self._pages.firsts(call)

    async def rows_here(self, call: RowsCall) -> QueueRows:
        return await self._pages.rows(call)


def _response(facts: Facts) -> ControlResponse:
    """The facts are in the body; a RECEIPT has no room for them."""
    return ControlResponse({}, json.dumps(facts, separators=(",", ":")).encode())
