"""The administrative verbs: `/control/VERB/…`, one function each, and the table that finds them.

A verb changes something, or shows what no count shows. It is refused as a whole, or its response says what it did. Each
one that changes something is an event of `/system/audit`, a dry run included.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from qmq.access.rules import Action
from qmq.admin import mesh_messages
from qmq.admin.bulk_jobs import CLIENT_LEFT, NOT_SERVING, BulkJob, all_until
from qmq.admin.connection_lists import ListContext, kick, list_connections, list_links
from qmq.admin.deletion import DeleteContext, QueueDeletionContext, delete_fanout, delete_queue, delete_retained
from qmq.admin.mesh_jobs import MeshJobs
from qmq.admin.status import STATUS_BYTES_MAX
from qmq.admin.system import SystemTopics
from qmq.broker.messages.destination import DestinationKind, is_pattern, kind_of
from qmq.broker.selectors import compile_selector
from qmq.errors import Refused
from qmq.gateways.headers import is_said
from qmq.mesh.membership.decommission import Decommission
from qmq.mesh.peers.peer_json import Facts
from qmq.mesh.peers.verb_request import ROWS_AT_ONCE, ControlResponse, VerbRequest, encode_facts
from qmq.model.routing_names import PREFIX
from qmq.settings.definitions.declare import DeclareContext, declare_queue
from qmq.settings.definitions.paused_queues import NOT_PAUSED, PausedQueues
from qmq.settings.routing import requests
from qmq.settings.routing.requests import RoutingRequests

CONTROL: Final = "/control/"
NAMED_IN_AUDIT: Final[Mapping[str, str]] = {
    "selector": "selector",
    "part": "part",
    "reason": "reason",
    "user": "kicked_user",
    "address": "kicked_address",
    "source": "source",
    "key": "key",
}
"""Headers of a request that say what it is about, and the fields of the event that have their values."""
SUBJECTS: Final[Mapping[str, str]] = {
    "get": "message_id",
    "trace": "message_id",
    "connections": "connection",
    "kick": "connection",
    "links": "link",
    "retire": "retired_node",
    "exchanges": "exchange",
    "bindings": "binding",
}
"""Verbs that are not about a destination, and the field that says what they are about."""
PAUSE_DEFAULT: Final = "delivery"
PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "delivery": ("delivery",),
    "acceptance": ("acceptance",),
    "both": ("delivery", "acceptance"),
}
"""Values of the header `part` of pause and resume."""


class VerbContext(
    DeclareContext,
    DeleteContext,
    QueueDeletionContext,
    mesh_messages.MeshMessagesContext,
    ListContext,
    RoutingRequests,
    Protocol,
):
    decommission: Decommission
    mesh_jobs: MeshJobs
    paused_queues: PausedQueues
    system: SystemTopics


async def _move(context: VerbContext, asked: VerbRequest) -> Facts:
    target = asked.headers.get("to", "")
    _check_queue(target, "The header to")
    if target == asked.about:
        raise Refused("bad-destination", f"{target} is moved to itself.")
    return {"to": target, **await _in_bulk(context, asked, target)}


async def _in_bulk(context: VerbContext, asked: VerbRequest, target: str = "") -> Facts:
    _check_queue(asked.about, asked.verb)
    selector = asked.headers.get("selector", "").strip()
    if selector:
        compile_selector(selector)
    jobs = context.mesh_jobs
    job = BulkJob(
        verb=asked.verb,
        queue=asked.about,
        id=jobs.new_id(),
        target=target,
        selector=selector,
        count=asked.messages_max,
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


async def _pause_or_resume(context: VerbContext, asked: VerbRequest) -> Facts:
    """Pause or resume parts of a queue, on all nodes."""
    is_paused = asked.verb == "pause"
    _check_queue(asked.about, asked.verb)
    part = asked.headers.get("part", PAUSE_DEFAULT if is_paused else "both")
    if part not in PARTS:
        raise Refused("bad-part", f"The header part is one of {', '.join(PARTS)}.")
    parts = dict.fromkeys(PARTS[part], is_paused)
    if asked.is_dry_run:
        return context.paused_queues.after(asked.about, parts) or NOT_PAUSED._asdict()
    return await context.paused_queues.set(asked.about, parts, asked.user)


async def _delete(context: VerbContext, asked: VerbRequest) -> Facts:
    if is_pattern(asked.about):
        raise Refused("bad-pattern", "A destination is deleted by its name; patterns are not supported.")
    kind = kind_of(asked.about)
    if kind is DestinationKind.FANOUT:
        return await delete_fanout(context, asked.about, is_dry_run=asked.is_dry_run)
    if kind is DestinationKind.TOPIC:
        return await delete_retained(context, asked.about, is_dry_run=asked.is_dry_run)
    if kind is DestinationKind.QUEUE:
        return await delete_queue(context, asked.about, asked.headers, asked.user)
    if kind is DestinationKind.EXCHANGE:
        return await requests.delete_exchange(context, asked)
    raise Refused("not-supported", f"Queues, topics, fanouts and exchanges can be deleted, not {asked.about}.")


async def _declare(context: VerbContext, asked: VerbRequest) -> Facts:
    if asked.about.startswith(PREFIX):
        return await requests.declare_exchange(context, asked)
    _check_queue(asked.about, asked.verb)

    async def is_in_use() -> bool:
        if asked.about in context.broker.queues.by_name:
            return True
        return bool((await mesh_messages.peek(context, asked._replace(headers={"count": "1"})))["messages"])

    return await declare_queue(
        context, asked.about, asked.headers, asked.body, asked.principal, asked.session, is_in_use
    )


async def _retire(context: VerbContext, asked: VerbRequest) -> Facts:
    name = asked.about.removeprefix("/")
    if is_said(asked.headers, "majority-lost"):
        return await context.decommission.retire_lost({one for one in name.split(",") if one})
    return await context.decommission.retire(name, force=is_said(asked.headers, "force"))


class Verb(NamedTuple):
    """How to use it, and the function that does it."""

    form: str
    run: Callable[[VerbContext, VerbRequest], Awaitable[Facts]]
    is_audited: bool = True


VERBS: Final[Mapping[str, Verb]] = {
    "purge": Verb("purge/queue/NAME", _in_bulk),
    "move": Verb("move/queue/NAME", _move),
    "redrive": Verb("redrive/queue/NAME", _in_bulk),
    "pause": Verb("pause/queue/NAME", _pause_or_resume),
    "resume": Verb("resume/queue/NAME", _pause_or_resume),
    "delete": Verb("delete/queue|topic|fanout|exchange/NAME", _delete),
    "declare": Verb("declare/queue|exchange/NAME", _declare),
    "bind": Verb("bind/queue|exchange/NAME", requests.bind),
    "unbind": Verb("unbind/queue|exchange/NAME", requests.unbind),
    "exchanges": Verb("exchanges", requests.list_exchanges, is_audited=False),
    "bindings": Verb("bindings", requests.list_bindings, is_audited=False),
    "peek": Verb("peek/queue|topic|fanout/NAME", mesh_messages.peek, is_audited=False),
    "get": Verb("get/MESSAGE-ID", mesh_messages.get, is_audited=False),
    "trace": Verb("trace/MESSAGE-ID", mesh_messages.trace, is_audited=False),
    "connections": Verb("connections", list_connections, is_audited=False),
    "kick": Verb("kick/CONNECTION", kick),
    "links": Verb("links", list_links, is_audited=False),
    "retire": Verb("retire/NODE", _retire),
}

TAKE_BODY: Final = frozenset({"declare", "bind", "unbind"})


def verb_of(destination: str) -> str | None:
    """The verb that a control destination names; None for another request."""
    verb = destination.removeprefix(CONTROL).partition("/")[0]
    return verb if verb in VERBS else None


async def run_verb(context: VerbContext, asked: VerbRequest) -> ControlResponse:
    """Do what a verb asks for. Raises Refused; then nothing has changed."""
    verb = VERBS[asked.verb]
    if verb.is_audited and asked.verb not in TAKE_BODY and asked.body.strip() not in (b"", b"{}"):
        # A purge with {"count": 5} must not be one of all messages.
        raise Refused("bad-body", f"{asked.verb} takes no body: its options are headers, or the query over HTTP.")
    is_declared = asked.verb == "declare" and not is_said(asked.headers, "passive")
    if is_declared and context.exclusive_queues.is_orphan(asked.about):
        # The connection that had it is gone: the queue ends, as it would end by itself. First what can be refused.
        await verb.run(context, asked._replace(headers={**asked.headers, "dry-run": "true", "replace": "true"}))
        if not asked.is_dry_run:
            await delete_queue(context, asked.about, {"force": "true"}, asked.user)
    elif verb.is_audited:
        _check_exclusive(context, asked)
    facts = await verb.run(context, asked)
    if asked.verb != "retire":
        facts = {**_subject(asked), **facts, **({"dry_run": asked.is_dry_run} if verb.is_audited else {})}
    if verb.is_audited:
        _audit(context, asked, facts)
    body = await encode_facts(facts)
    headers: dict[str, str] = {}
    for name, fact in facts.items():
        # A list may be longer than a header line may be; then it is only in the body, and not encoded twice.
        if isinstance(fact, list) and ("reply-to" in asked.headers or len(fact) > ROWS_AT_ONCE):
            continue
        text = _text(fact)
        if not isinstance(fact, list) or len(text) <= STATUS_BYTES_MAX:
            headers[name.replace("_", "-")] = text
    return ControlResponse(headers, body)


def _check_exclusive(context: VerbContext, asked: VerbRequest) -> None:
    """Raises Refused when the request would change an exclusive queue of another connection, unless it is forced."""
    try:
        context.exclusive_queues.check(asked.about, asked.session)
    except Refused:
        if not is_said(asked.headers, "force"):
            raise
        context.rights_of(asked.principal).check(Action.ADMINISTER, asked.about)


def _subject(asked: VerbRequest) -> dict[str, str]:
    """What the request is about: a destination, or the id or name of something else; nothing if it names none."""
    name = SUBJECTS.get(asked.verb)
    if name is None:
        return {"destination": asked.about}
    return {name: asked.about.removeprefix("/")} if asked.about else {}


def _audit(context: VerbContext, asked: VerbRequest, facts: Facts) -> None:
    count = facts.get("connections", facts.get("messages", facts.get("changed", 0)))
    said = {**_subject(asked), "count": count, "dry_run": asked.is_dry_run}
    said |= {field: asked.headers[name] for name, field in NAMED_IN_AUDIT.items() if name in asked.headers}
    said |= {name: facts[name] for name in ("to", "reason", "nodes_missing") if facts.get(name)}
    context.system.audit(asked.verb, user=asked.user, address=asked.address, **said)
    counts = [facts[name] for name in ("connections", "messages", "changed") if name in facts]
    context.system.log_verb(asked.verb, asked.user, asked.address, said, changes=not counts or any(counts))


def _text(fact: Any) -> str:
    if type(fact) is str:
        return fact
    return ",".join(fact) if isinstance(fact, list) and all(type(one) is str for one in fact) else json.dumps(fact)
