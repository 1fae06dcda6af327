"""Control requests: SENDs to control destinations, and the function that responds to each.

`qmq.verbs` declares what there is: forms, options, rights, audit. A verb that changes something is refused as a whole,
or its response says what it did; it is an event of `/system/audit`, a dry run included. The response is in the headers
of the RECEIPT. With `reply-to` a message with a JSON body follows as well, which has room for long lists.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

import msgspec

from qmq.access.rules import Action, Principal
from qmq.admin import control, mesh_messages
from qmq.admin.bulk_jobs import CLIENT_LEFT, NOT_SERVING, BulkJob, all_until
from qmq.admin.connection_lists import ListContext, kick, list_connections, list_links
from qmq.admin.definitions import DefinitionsControlContext, definitions_response
from qmq.admin.deletion import DeleteContext, QueueDeletionContext, delete_fanout, delete_queue, delete_retained
from qmq.admin.mesh_jobs import MeshJobs
from qmq.admin.routing_requests import RoutingRequests
from qmq.admin.status import STATUS_BYTES_MAX
from qmq.broker.messages.destination import DestinationKind, is_pattern, kind_of
from qmq.broker.selectors import compile_selector
from qmq.errors import Refused
from qmq.mesh.parts import MeshParts
from qmq.mesh.peers.calls import Facts
from qmq.mesh.peers.verb_request import ROWS_AT_ONCE, ControlResponse, encode_facts
from qmq.model.routing_names import PREFIX
from qmq.settings.definitions.declare import DeclareRequests
from qmq.settings.definitions.exclusive_queues import ExclusiveQueues
from qmq.settings.definitions.paused_queues import PausedQueues
from qmq.settings.definitions.policy_sources import policies_of
from qmq.verbs import messages, nodes, queues
from qmq.verbs.lists import QueuePage
from qmq.verbs.table import VERBS, needs_of, verb_of
from qmq.verbs.verb import CONTROL, VerbRequest, options_of

PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "delivery": ("delivery",),
    "acceptance": ("acceptance",),
    "both": ("delivery", "acceptance"),
}
"""What pause and resume are about, by their option `part`."""


class Console(Protocol):
    async def respond(self, asked: VerbRequest[Any]) -> ControlResponse:
        """The response to a verb that needs what the console keeps between two requests."""


class VerbContext(
    control.ControlContext,
    DefinitionsControlContext,
    DeleteContext,
    QueueDeletionContext,
    mesh_messages.MeshMessagesContext,
    ListContext,
    Protocol,
):
    @property
    def console(self) -> Console: ...

    mesh_parts: MeshParts
    mesh_jobs: MeshJobs
    paused_queues: PausedQueues
    declare_requests: DeclareRequests
    exclusive_queues: ExclusiveQueues
    routing_requests: RoutingRequests


async def control_response(
    context: VerbContext,
    headers: Mapping[str, str],
    principal: Principal | None = None,
    address: str = "",
    session: int = 0,
    body: bytes = b"",
) -> ControlResponse:
    """The response of the node to a SEND of `principal`, from `address`, in this session, with these headers and body.

    Raises Refused when the client may not make this request, and for an unknown one; then nothing has changed.
    """
    destination = headers["destination"]
    verb, name = verb_of(destination, headers)
    if verb is not nodes.Status:  # It has a response for each client.
        context.rights_of(principal).check_needs(needs_of(destination, headers))
    if verb is None or (name and verb.form == verb.word()):
        known = ", ".join(f"{CONTROL}{one.form}" for one in VERBS.values())
        raise Refused("bad-destination", f"Control destinations are {known}.")
    about = destination.removeprefix(f"{CONTROL}{verb.word()}")
    asked = VerbRequest(verb.read(headers), about, headers, principal, address, session, body)
    if verb.changes:
        await _prepare(context, asked)
    response = await RESPOND[verb.word()](context, asked)
    if isinstance(response, ControlResponse):
        return response
    facts = response
    if asked.verb != "retire":
        facts = {**_subject(asked), **facts, **({"dry_run": asked.is_dry_run} if verb.changes else {})}
    if verb.changes:
        _audit(context, asked, facts)
    return await _encoded(facts, has_body="reply-to" in headers)


async def _prepare(context: VerbContext, asked: VerbRequest[Any]) -> None:
    """What every change needs. Raises Refused."""
    if not asked.options.takes_body and asked.body.strip() not in (b"", b"{}"):
        # A purge with {"count": 5} must not be one of all messages.
        raise Refused("bad-body", f"{asked.verb} takes no body: its options are headers, or the query over HTTP.")
    is_declared = isinstance(asked.options, queues.Declare) and not asked.options.passive
    if is_declared and context.exclusive_queues.is_orphan(asked.about):
        # The connection that had it is gone: the queue ends, as it would end by itself. First what can be refused.
        options = msgspec.structs.replace(asked.options, dry_run=True, replace=True)
        await _declare(context, asked._replace(options=options))
        if not asked.is_dry_run:
            await delete_queue(context, asked.about, queues.Delete(force=True), asked.user)
        return
    try:
        context.exclusive_queues.check(asked.about, asked.session)
    except Refused:
        if not getattr(asked.options, "force", False):
            raise
        context.rights_of(asked.principal).check(Action.ADMINISTER, asked.about)


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


def _audit(context: VerbContext, asked: VerbRequest[Any], facts: Facts) -> None:
    count = facts.get("connections", facts.get("messages", facts.get("changed", 0)))
    said = {**_subject(asked), "count": count, "dry_run": asked.is_dry_run}
    for name, option in options_of(VERBS[asked.verb]).items():
        if option.audited and name in asked.headers:
            said[option.audited] = asked.headers[name]
    said |= {name: facts[name] for name in ("to", "reason", "nodes_missing") if facts.get(name)}
    context.system.audit(asked.verb, user=asked.user, address=asked.address, **said)
    counts = [facts[name] for name in ("connections", "messages", "changed") if name in facts]
    context.system.log_verb(asked.verb, asked.user, asked.address, said, changes=not counts or any(counts))


async def _move(context: VerbContext, asked: VerbRequest[queues.MoveMessages]) -> Facts:
    target = asked.options.to
    _check_queue(target, "The header to")
    if target == asked.about:
        raise Refused("bad-destination", f"{target} is moved to itself.")
    return {"to": target, **await _in_bulk(context, asked, target)}


async def _in_bulk(context: VerbContext, asked: VerbRequest[queues.BulkVerb], target: str = "") -> Facts:
    _check_queue(asked.about, asked.verb)
    selector = asked.options.selector.strip()
    if selector:
        compile_selector(selector)
    jobs = context.mesh_jobs
    job = BulkJob(
        verb=asked.verb,
        queue=asked.about,
        id=jobs.new_id(),
        target=target,
        selector=selector,
        count=asked.options.count,
        is_dry_run=asked.is_dry_run,
    )

    def check_client() -> None:
        session = context.sessions.get(asked.session)
        if session is not None and session.has_left:
            raise Refused(CLIENT_LEFT, "The client that asked for it has left.")

    facts = await (jobs.everywhere(job, check_client) if asked.is_mesh else jobs.here(job, all_until(check_client)))
    facts.pop("serves", None)
    if context.declared_queues.definitions_of(asked.about):
        facts.pop("known", None)
    if not asked.is_mesh and facts["reason"].startswith(NOT_SERVING):
        raise Refused(NOT_SERVING, facts["reason"].partition(": ")[2])
    return facts


def _check_queue(destination: str, what: str) -> None:
    is_queue = destination.startswith("/queue/") and kind_of(destination) is DestinationKind.QUEUE
    if not is_queue or is_pattern(destination):
        raise Refused("bad-destination", f"{what} names one queue, /queue/NAME.")


async def _pause_or_resume(context: VerbContext, asked: VerbRequest[queues.PauseQueue | queues.ResumeQueue]) -> Facts:
    """Pause or resume parts of a queue, on all nodes."""
    _check_queue(asked.about, asked.verb)
    parts = dict.fromkeys(PARTS[asked.options.part], isinstance(asked.options, queues.PauseQueue))
    if asked.is_dry_run:
        return context.paused_queues.of(asked.about)._replace(**parts)._asdict()
    return await context.paused_queues.set(asked.about, parts, asked.user)


async def _delete(context: VerbContext, asked: VerbRequest[queues.Delete]) -> Facts:
    if is_pattern(asked.about):
        raise Refused("bad-pattern", "A destination is deleted by its name; patterns are not supported.")
    kind = kind_of(asked.about)
    if kind is DestinationKind.FANOUT:
        return await delete_fanout(context, asked.about, is_dry_run=asked.is_dry_run)
    if kind is DestinationKind.TOPIC:
        return await delete_retained(context, asked.about, is_dry_run=asked.is_dry_run)
    if kind is DestinationKind.QUEUE:
        return await delete_queue(context, asked.about, asked.options, asked.user)
    if kind is DestinationKind.EXCHANGE:
        return await context.routing_requests.delete_exchange(asked)
    raise Refused("not-supported", f"Queues, topics, fanouts and exchanges can be deleted, not {asked.about}.")


async def _declare(context: VerbContext, asked: VerbRequest[queues.Declare]) -> Facts:
    if asked.about.startswith(PREFIX):
        return await context.routing_requests.declare_exchange(asked)
    _check_queue(asked.about, asked.verb)

    async def is_in_use() -> bool:
        if asked.about in context.broker.queues.by_name:
            return True
        first = VerbRequest(messages.Peek(count=1), asked.about, {}, asked.principal)
        return bool((await mesh_messages.peek(context, first))["messages"])

    return await context.declare_requests.declare(asked, is_in_use)


async def _retire(context: VerbContext, asked: VerbRequest[nodes.Retire]) -> Facts:
    name = asked.about.removeprefix("/")
    if asked.options.majority_lost:
        return await context.mesh_parts.decommission.retire_lost({one for one in name.split(",") if one})
    return await context.mesh_parts.decommission.retire(name, force=asked.options.force)


async def _list(context: VerbContext, asked: VerbRequest[Any]) -> ControlResponse:
    is_page = isinstance(asked.options, QueuePage)
    return await (context.console.respond(asked) if is_page else control.respond(context, asked))


async def _policies(context: VerbContext, asked: VerbRequest[Any]) -> Facts:
    return policies_of(context.settings, context.definitions, context.declared_queues, asked.about)


async def _of_console(context: VerbContext, asked: VerbRequest[Any]) -> ControlResponse:
    return await context.console.respond(asked)


RESPOND: Final[dict[str, Callable[[VerbContext, VerbRequest[Any]], Awaitable[Facts | ControlResponse]]]] = {
    "purge": _in_bulk,
    "move": _move,
    "redrive": _in_bulk,
    "pause": _pause_or_resume,
    "resume": _pause_or_resume,
    "delete": _delete,
    "declare": _declare,
    "bind": lambda context, asked: context.routing_requests.bind(asked),
    "unbind": lambda context, asked: context.routing_requests.unbind(asked),
    "exchanges": lambda context, asked: context.routing_requests.list_exchanges(asked),
    "bindings": lambda context, asked: context.routing_requests.list_bindings(asked),
    "peek": mesh_messages.peek,
    "get": mesh_messages.get,
    "trace": mesh_messages.trace,
    "connections": list_connections,
    "kick": kick,
    "links": list_links,
    "retire": _retire,
    "status": control.status,
    "policies": _policies,
    "list": _list,
    **dict.fromkeys(["count-msgs", "count-subscribers", "list-subscribers", "conditions"], control.respond),
    **dict.fromkeys(["overview", "history", "audit", "rights", "password-hash"], _of_console),
    **dict.fromkeys([word for word in VERBS if word.startswith("definitions/")], definitions_response),
}
"""Verb → what responds to it. Facts become headers and a body, and of a change an event of the audit."""
