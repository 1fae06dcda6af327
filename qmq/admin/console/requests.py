"""Requests of the console to its node, and of that node to its peers.

They are control requests like all others: over STOMP, over HTTP, and with the same permissions. They stand apart from
`admin.control` only because they keep something between two requests: an index, rates, the last hour.

| request | right | response |
|---|---|---|
| `/control/overview` | observe | `nodes`: what each node says of itself |
| `/control/history` | observe | `nodes`: the last hour of each node |
| `/control/list/queue` with `sort` | observe | `destinations`: one page |
| `/control/audit` | administer `/system/audit` | `rows`: the last events of the audit |
| `/control/rights` | for oneself: none | what a client may do |
| `/control/password-hash` | administer definitions | the hash of a passcode, for the definition of a user |
"""

import json
from collections.abc import Callable, Mapping
from typing import ClassVar, Final, Protocol

import argon2
from msgspec import Struct

from qmq.access.rights import Rights
from qmq.access.rules import ACTIONS, Action, Principal
from qmq.admin.console.history import History, HistoryContext
from qmq.admin.console.overview import Overview, OverviewContext
from qmq.admin.console.queue_pages import (
    ConsoleCall,
    FirstQueues,
    FirstsCall,
    PageRequest,
    QueuePages,
    QueuePagesContext,
    QueueRows,
    RowsCall,
    merged_rows,
    names_of_page,
)
from qmq.admin.system import AUDIT, SystemTopics
from qmq.broker.messages.destination import is_pattern
from qmq.errors import Refused
from qmq.mesh.peers.calls import Facts, Replies, need
from qmq.mesh.peers.rpc import PeerRpc
from qmq.mesh.peers.verb_request import ControlResponse, is_for_mesh

LIST: Final = "/control/list/queue"
OVERVIEW: Final = "/control/overview"
HISTORY: Final = "/control/history"
AUDITED: Final = "/control/audit"
RIGHTS: Final = "/control/rights"
HASH: Final = "/control/password-hash"
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
    """What a node says of itself. `keeps_pages`: a console is open, which asks for pages next."""

    name: ClassVar = "overview"
    keeps_pages: bool = False

    def check(self, reply: Facts) -> None:
        need(reply, node=str, links=list, conditions=list)


class HistoryCall(ConsoleCall[Facts], frozen=True):
    """The last hour of a node."""

    name: ClassVar = "history"

    def check(self, reply: Facts) -> None:
        need(reply, at_us=list)


class AuditRows(Struct, frozen=True):
    rows: list[Facts]

    def __post_init__(self) -> None:
        for row in self.rows:
            need(row, at_us=int)


class AuditCall(ConsoleCall[AuditRows], frozen=True):
    """The last events of the audit of a node."""

    name: ClassVar = "audit"


class ConsoleContext(HistoryContext, OverviewContext, QueuePagesContext, Protocol):
    peer_rpc: PeerRpc
    system: SystemTopics

    def rights_of(self, principal: Principal | None) -> Rights: ...


def is_of_console(headers: Mapping[str, str]) -> bool:
    """Whether this control request is one of these."""
    destination = headers["destination"]
    return destination in (OVERVIEW, HISTORY, AUDITED, RIGHTS, HASH) or (
        destination.rstrip("/") == LIST and "sort" in headers
    )


class ConsoleRequests:
    """This node's side of the console."""

    def __init__(self, context: ConsoleContext) -> None:
        self._context = context
        self.history = History(context)
        self._pages = QueuePages(context)
        self._overview = Overview(context)

    async def respond(
        self,
        headers: Mapping[str, str],
        body: bytes,
        principal: Principal | None,
        check_right: Callable[[str, Mapping[str, str]], None],
    ) -> ControlResponse:
        """The response to one of these requests. Raises Refused."""
        destination = headers["destination"]
        if destination == RIGHTS:
            return _response(self._rights(headers, principal))
        if destination == HASH:
            self._context.rights_of(principal).check(*GENERAL["definitions"])
            return _response(await self._hash(body))
        if destination == AUDITED:
            self._context.rights_of(principal).check(Action.ADMINISTER, AUDIT)
        else:
            check_right(destination, headers)
        is_mesh = is_for_mesh(headers)
        if destination.rstrip("/") == LIST:
            return _response(await self._page(PageRequest(headers), is_mesh=is_mesh))
        if destination == AUDITED:
            found, missing = await self._context.peer_rpc.ask_all(AuditCall(), is_mesh=is_mesh)
            rows = sorted([row for one in found.values() for row in one.rows], key=lambda row: -row["at_us"])
            return _response({"rows": rows, "nodes_missing": missing})
        call = HistoryCall() if destination == HISTORY else OverviewCall()
        return _response(self._of_nodes(await self._context.peer_rpc.ask_all(call, is_mesh=is_mesh)))

    async def overview(self) -> Facts:
        """What all nodes say of themselves, for all tabs."""
        return self._of_nodes(await self._context.peer_rpc.ask_all(OverviewCall(keeps_pages=True)))

    def _of_nodes(self, replies: Replies[Facts]) -> Facts:
        return {"node": self._context.settings.name, "nodes": replies.by_node, "nodes_missing": replies.missing}

    async def _page(self, asked: PageRequest, *, is_mesh: bool) -> Facts:
        ask_all = self._context.peer_rpc.ask_all
        firsts, missing = await ask_all(asked.call, is_mesh=is_mesh)
        names, more = names_of_page(asked, list(firsts.values()))
        rows, silent = await ask_all(RowsCall(names), is_mesh=is_mesh)
        return {
            "destinations": merged_rows(names, list(rows.values())),
            "more": more,
            "queues": max(one.queues for one in firsts.values()),
            "age_seconds": firsts[self._context.settings.name].age_seconds,
            "nodes_missing": sorted({*missing, *silent}),
        }

    def _rights(self, headers: Mapping[str, str], principal: Principal | None) -> Facts:
        """What the client may do, or with `user` another one."""
        context = self._context
        asked = headers.get("user")
        if asked is not None and (principal is None or asked != principal.name):
            context.rights_of(principal).check_control(f"{USERS}{asked}")
            principal = Principal(asked)
        rights = context.rights_of(principal)
        about = headers.get("about", "")
        if about and is_pattern(about) and not about.endswith("*"):
            raise Refused("bad-destination", "The header about is a destination, or the beginning of one with *.")
        facts: Facts = {
            "node": context.settings.name,
            "user": None if principal is None else principal.name,
            "may": {name: rights.allows(action, on) for name, (action, on) in GENERAL.items()},
        }
        if about:
            facts["about"] = {action.value: rights.allows(action, about) for action in ACTIONS}
        return facts

    async def _hash(self, body: bytes) -> Facts:
        """What the definition of a user has in place of its passcode. Takes about a tenth of a second, in a thread."""
        try:
            passcode = json.loads(body)["passcode"]
        except (ValueError, TypeError, KeyError):
            passcode = None
        if not isinstance(passcode, str) or not 1 <= len(passcode) <= PASSCODE_CHARS_MAX:
            raise Refused("bad-body", f'The body is {{"passcode": …}}, with 1 to {PASSCODE_CHARS_MAX} characters.')
        hasher = argon2.PasswordHasher()
        return {"password_hash": await self._context.environment.run_blocking(hasher.hash, passcode)}

    # Of one node

    async def overview_here(self, call: OverviewCall) -> Facts:
        if call.keeps_pages:
            self._pages.keep()
        return await self._overview.facts()

    def history_here(self, call: HistoryCall) -> Facts:
        return self.history.facts()

    def audited_here(self, call: AuditCall) -> AuditRows:
        return AuditRows(list(self._context.system.audited))

    async def firsts_here(self, call: FirstsCall) -> FirstQueues:
        return await self._pages.firsts(call)

    async def rows_here(self, call: RowsCall) -> QueueRows:
        return await self._pages.rows(call)


def _response(facts: Facts) -> ControlResponse:
    """The facts are in the body; a RECEIPT has no room for them."""
    return ControlResponse({}, json.dumps(facts, separators=(",", ":")).encode())
