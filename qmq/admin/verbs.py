"""Control requests: SENDs to control destinations, and the function that responds to each.

`qmq.verbs` declares what there is: forms, options, rights, audit. A verb that changes something is refused as a whole,
or its response says what it did; it is an event of `/system/audit`, a dry run included. The response is in the headers
of the RECEIPT. With `reply-to` a message with a JSON body follows as well, which has room for long lists.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from qmq.access.rules import Action, Principal
from qmq.admin.backups import BackupVerbs
from qmq.admin.connection_lists import ConnectionVerbs
from qmq.admin.console.requests import ConsoleRequests
from qmq.admin.definitions import DefinitionVerbs
from qmq.admin.facts.status import STATUS_BYTES_MAX
from qmq.admin.facts.system import SystemTopics
from qmq.admin.list_verbs import ListVerbs
from qmq.admin.mesh_messages import MessageVerbs
from qmq.admin.node_verbs import NodeVerbs
from qmq.admin.queue_verbs import BulkVerbs, QueueVerbs
from qmq.admin.rights_verbs import RightsVerbs
from qmq.admin.routing_requests import RoutingRequests
from qmq.errors import Refused
from qmq.mesh.peers.calls import Facts
from qmq.mesh.peers.verb_request import ROWS_AT_ONCE, ControlResponse, encode_facts
from qmq.sessions.clients.access import Access
from qmq.settings.definitions.exclusive_queues import ExclusiveQueues
from qmq.verbs import nodes, queues
from qmq.verbs.lists import QueuePage
from qmq.verbs.table import VERBS, needs_of, verb_of
from qmq.verbs.verb import CONTROL, VerbRequest, options_of


@dataclass(frozen=True, slots=True)
class Responders:
    """What responds to the verbs, by subject."""

    bulk: BulkVerbs
    queues: QueueVerbs
    routing: RoutingRequests
    messages: MessageVerbs
    connections: ConnectionVerbs
    nodes: NodeVerbs
    backups: BackupVerbs
    lists: ListVerbs
    rights: RightsVerbs
    definitions: DefinitionVerbs
    console: ConsoleRequests


class Verbs:
    """Checks rights, has the right part respond, audits and encodes."""

    def __init__(
        self, access: Access, system: SystemTopics, exclusive_queues: ExclusiveQueues, responders: Responders
    ) -> None:
        self._access = access
        self._system = system
        self._exclusive_queues = exclusive_queues
        self._responders = responders

    async def respond(
        self, session: int, principal: Principal | None, address: str, headers: Mapping[str, str], body: bytes = b""
    ) -> ControlResponse:
        """The response to a SEND of `principal`, from `address`, in this session, with these headers and this body.

        Raises Refused when the client may not make this request, and for an unknown one; then nothing has changed.
        """
        destination = headers["destination"]
        verb, name = verb_of(destination, headers)
        if verb is not nodes.Status:  # It has a response for each client.
            self._access.rights_of(principal).check_needs(needs_of(destination, headers))
        if verb is None or (name and verb.form == verb.word()):
            known = ", ".join(f"{CONTROL}{one.form}" for one in VERBS.values())
            raise Refused("bad-destination", f"Control destinations are {known}.")
        about = destination.removeprefix(f"{CONTROL}{verb.word()}")
        asked = VerbRequest(verb.read(headers), about, headers, principal, address, session, body)
        found = await self._respond(asked)
        return found if isinstance(found, ControlResponse) else await _encoded(found, has_body="reply-to" in headers)

    async def do(self, asked: VerbRequest[Any]) -> Facts:
        """The facts of a verb that has any, of a request that is no text. Raises Refused as `respond`."""
        self._access.rights_of(asked.principal).check_needs(needs_of(asked.destination, asked.headers))
        found = await self._respond(asked)
        assert not isinstance(found, ControlResponse), asked.verb
        return found

    async def _respond(self, asked: VerbRequest[Any]) -> Facts | ControlResponse:
        changes = asked.options.changes
        if changes:
            await self._prepare(asked)
        facts = await RESPOND[asked.verb](self._responders, asked)
        if isinstance(facts, ControlResponse):
            return facts
        if changes:
            facts = {**facts, "changed": _changed(facts)}
        if asked.verb != "retire":
            facts = {**_subject(asked), **facts, **({"dry_run": asked.is_dry_run} if changes else {})}
        if changes:
            self._audit(asked, facts)
        return facts

    async def _prepare(self, asked: VerbRequest[Any]) -> None:
        """What every change needs. Raises Refused."""
        if not asked.options.takes_body and asked.body.strip() not in (b"", b"{}"):
            # A purge with {"count": 5} must not be one of all messages.
            raise Refused("bad-body", f"{asked.verb} takes no body: its options are headers, or the query over HTTP.")
        is_declared = isinstance(asked.options, queues.Declare) and not asked.options.passive
        if is_declared and self._exclusive_queues.is_orphan(asked.about):
            await self._responders.queues.end_orphan(asked)
            return
        try:
            self._exclusive_queues.check(asked.about, asked.session)
        except Refused:
            if not getattr(asked.options, "force", False):
                raise
            self._access.rights_of(asked.principal).check(Action.ADMINISTER, asked.about)

    def _audit(self, asked: VerbRequest[Any], facts: Facts) -> None:
        count = facts.get("connections", facts.get("messages", facts.get("changed", 0)))
        said = {**_subject(asked), "count": count, "dry_run": asked.is_dry_run}
        for name, option in options_of(VERBS[asked.verb]).items():
            if option.audited and name in asked.headers:
                said[option.audited] = asked.headers[name]
        said |= {name: facts[name] for name in ("to", "reason", "nodes_missing") if facts.get(name)}
        self._system.audit(asked.verb, user=asked.user, address=asked.address, **said)
        counts = [facts[name] for name in ("connections", "messages", "changed") if name in facts]
        self._system.log_verb(asked.verb, asked.user, asked.address, said, changes=not counts or any(counts))


def _changed(facts: Facts) -> int:
    """How much has changed, or would in a dry run: as the verb says, else what it counts; 1 if it counts nothing."""
    count: int = next((facts[name] for name in ("changed", "messages", "connections") if name in facts), 1)
    return count


async def _encoded(facts: Facts, *, has_body: bool) -> ControlResponse:
    headers: dict[str, str] = {}
    for name, fact in facts.items():
        # A list may be longer than a header line may be; then it is only in the body, and not encoded twice.
        if isinstance(fact, list) and (has_body or len(fact) > ROWS_AT_ONCE):
            continue
        text = _text(fact)
        if not isinstance(fact, list) or len(text) <= STATUS_BYTES_MAX:
            headers[name.replace("_", "-")] = text
    return ControlResponse(headers, await encode_facts(facts))


def _text(fact: Any) -> str:
    if type(fact) is str:
        return fact
    return ",".join(fact) if isinstance(fact, list) and all(type(one) is str for one in fact) else json.dumps(fact)


def _subject(asked: VerbRequest[Any]) -> dict[str, str]:
    """What the request is about: a destination, or the id or name of something else; nothing if it names none."""
    subject = asked.options.subject
    if subject == "destination":
        return {subject: asked.about}
    return {subject: asked.about.removeprefix("/")} if asked.about else {}


async def _list(responders: Responders, asked: VerbRequest[Any]) -> ControlResponse:
    is_page = isinstance(asked.options, QueuePage)
    return await (responders.console.respond(asked) if is_page else responders.lists.respond(asked))


Respond = Callable[[Responders, VerbRequest[Any]], Awaitable[Facts | ControlResponse]]

RESPOND: Final[dict[str, Respond]] = {
    "purge": lambda to, asked: to.bulk.respond(asked),
    "move": lambda to, asked: to.bulk.move(asked),
    "redrive": lambda to, asked: to.bulk.respond(asked),
    "pause": lambda to, asked: to.queues.pause_or_resume(asked),
    "resume": lambda to, asked: to.queues.pause_or_resume(asked),
    "delete": lambda to, asked: to.queues.delete(asked),
    "declare": lambda to, asked: to.queues.declare(asked),
    "bind": lambda to, asked: to.routing.bind(asked),
    "unbind": lambda to, asked: to.routing.unbind(asked),
    "exchanges": lambda to, asked: to.routing.list_exchanges(asked),
    "bindings": lambda to, asked: to.routing.list_bindings(asked),
    "peek": lambda to, asked: to.messages.peek(asked),
    "get": lambda to, asked: to.messages.get(asked),
    "trace": lambda to, asked: to.messages.trace(asked),
    "connections": lambda to, asked: to.connections.connections(asked),
    "kick": lambda to, asked: to.connections.kick(asked),
    "links": lambda to, asked: to.connections.links(asked),
    "drain": lambda to, asked: to.nodes.drain(asked),
    "undrain": lambda to, asked: to.nodes.undrain(asked),
    "backup": lambda to, asked: to.backups.begin_or_end(asked),
    "backup-piece": lambda to, asked: to.backups.piece(asked),
    "retire": lambda to, asked: to.nodes.retire(asked),
    "status": lambda to, asked: to.nodes.status(asked),
    "policies": lambda to, asked: to.nodes.policies(asked),
    "list": _list,
    **dict.fromkeys(
        ["count-msgs", "count-subscribers", "list-subscribers", "conditions"],
        lambda to, asked: to.lists.respond(asked),
    ),
    "rights": lambda to, asked: to.rights.rights(asked),
    "password-hash": lambda to, asked: to.rights.password_hash(asked),
    **dict.fromkeys(["overview", "history", "queue-history", "audit"], lambda to, asked: to.console.respond(asked)),
    **dict.fromkeys(
        [word for word in VERBS if word.startswith("definitions/")], lambda to, asked: to.definitions.respond(asked)
    ),
}
"""Verb → what responds to it. Facts become headers and a body, and of a change an event of the audit."""
