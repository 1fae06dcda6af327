"""`/control/peek`, `/control/get` and `/control/trace` across nodes.

Every node has the durable messages of all, so this node answers alone where it can. Peers are asked for what only they
have: memory-only messages, a message that is not here or not any more, and a journal that reaches further back. Each
peer may take as long as `FIND_SECONDS`, because it may have to search its journal.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import trio

from qmq.access.requests import Effect
from qmq.access.rights import Rights
from qmq.access.rules import Action, Principal
from qmq.admin.bulk_jobs import UNKNOWN
from qmq.admin.inspection import messages
from qmq.admin.inspection.message_search import Event
from qmq.admin.mesh_queries import QueryContext, ask_nodes
from qmq.broker.messages.destination import DestinationKind, is_pattern, kind_of
from qmq.errors import Refused
from qmq.gateways.bound_queues import is_own_name
from qmq.gateways.durable_headers import check_owner
from qmq.mesh.peers.kinds import RequestKind
from qmq.mesh.peers.peer_json import Facts, decode_json, facts_of
from qmq.mesh.peers.verb_request import VerbRequest
from qmq.replication.protocol.frames import PeerRequest
from qmq.settings.definitions.declared_queues import DeclaredQueues

FIND_SECONDS: Final = 10.0
"""For a search of the stores of all peers together."""

HIDDEN: Final = "?"
"""In place of the name of a destination."""

PEEK_DEFAULT: Final = 10
PEEK_MAX: Final = 1000


class MeshMessagesContext(QueryContext, Protocol):
    declared_queues: DeclaredQueues

    @property
    def rights_of(self) -> Callable[[Principal | None], Rights]: ...


async def peek(context: MeshMessagesContext, asked: VerbRequest) -> Facts:
    """A page of the messages of a destination. Memory-only ones of all nodes come first."""
    about = asked.about
    if is_pattern(about):
        raise Refused("bad-pattern", "One destination is looked at; patterns are not supported.")
    _check_owner(context, asked, about)
    context.queue_lifetimes.used(about)
    count = min(asked.messages_max or PEEK_DEFAULT, PEEK_MAX)
    offset = asked.offset
    if kind_of(about) is not DestinationKind.QUEUE:
        return {"offset": offset, **await messages.peek(context, about, count, offset)}
    rows, more, left, missing = await _memory_only(context, about, count, offset)
    if not more:
        # At least one, also if the page is full: only then it is known whether more follow.
        facts = await messages.peek(context, about, max(1, count - len(rows)), left)
        more = facts["more"] or len(rows) + facts["messages"] > count
        rows = (rows + facts["rows"])[:count]
    facts = {"offset": offset, "messages": len(rows), "more": more, "rows": rows}
    facts |= {"nodes_missing": missing} if missing else {}
    if rows or offset or about in context.broker.queues.by_name or context.declared_queues.definitions_of(about):
        return facts
    return {**facts, **UNKNOWN}


async def _memory_only(
    context: MeshMessagesContext, queue: str, count: int, offset: int
) -> tuple[list[Facts], bool, int, list[str]]:
    """Memory-only messages behind the first `offset`, node after node: at most `count`; whether more of them follow;
    what is left of `offset` behind all of them; and the names of the nodes that do not answer.
    """
    wanted: dict[str, Any] = {"queue": queue, "count": 1 if offset else count}
    found, missing = await ask_nodes(context, messages.MEMORY_ONLY, wanted, is_mesh=True)
    if offset:
        # How many each node has is known now, and so how many of each are left out.
        offsets: dict[str, int] = {}
        for node, one in found.items():
            offsets[node] = max(0, min(offset, one["held"]))
            offset -= offsets[node]
        if all(offsets[node] >= one["held"] for node, one in found.items()):
            return [], False, offset, missing
        wanted |= {"count": count, "offsets": offsets}
        again, silent = await ask_nodes(context, messages.MEMORY_ONLY, wanted, is_mesh=True)
        # A node that has missed the first question does not know what it leaves out.
        found = {node: one for node, one in again.items() if node in offsets}
        missing = sorted({*missing, *silent})
    here = context.origin.node
    # With bodies of any length.
    found[here] = messages.memory_rows(context, queue, count, wanted.get("offsets", {}).get(here, 0))
    rows: list[Facts] = []
    for one in found.values():
        rows += [row for row in one["rows"] if isinstance(row, dict)]
        if one["more"] or len(rows) > count:
            # A page has no gap: what a node could not send at once is on the next one.
            return rows[:count], True, 0, missing
    return rows, False, offset, missing


async def get(context: MeshMessagesContext, asked: VerbRequest) -> Facts:
    """One message by its id, of the first node that has it. Raises Refused if no node that answers does, and for a
    client that may not read its destination.
    """
    message_id = asked.about.removeprefix("/")
    try:
        facts = await messages.get(context, message_id)
    except Refused as refused:
        if refused.code != messages.UNKNOWN_MESSAGE:
            raise
        found, missing = await _ask_each(context, "get", message_id)
        if not found:
            names = f" These did not answer: {', '.join(missing)}." if missing else ""
            raise Refused(refused.code, f"No node has the message {message_id} any more.{names}") from refused
        facts = next(iter(found.values()))
    _check_found(context, asked, str(facts.get("destination")))
    _check_owner(context, asked, str(facts.get("destination")))
    context.queue_lifetimes.used(str(facts.get("destination")))
    return facts


async def trace(context: MeshMessagesContext, asked: VerbRequest) -> Facts:
    """What journals say of a message, and what each node says of the present. Raises Refused for a client that may not
    observe its destination; other destinations that it may not observe are HIDDEN.
    """
    message_id = asked.about.removeprefix("/")
    facts = await messages.trace(context, message_id)
    silent: list[str] = []
    if not facts["is_whole"] or not _has_acceptance(facts):
        others, silent = await _ask_each(context, "trace", message_id)
        facts = _merged([facts, *others.values()])
    named = [str(event["destination"]) for event in facts["events"] if event["event"] == "accepted"]
    for destination in {facts["destination"], *named} - {""}:
        _check_found(context, asked, destination)
    rights = context.rights_of(asked.principal)
    for event in facts["events"]:
        if "destination" in event and not rights.allows(Action.OBSERVE, str(event["destination"])):
            event["destination"] = HIDDEN
    wanted = {"id": message_id, "records": [event["record"] for event in facts["events"]]}
    found, missing = await ask_nodes(context, "whereabouts", wanted, is_mesh=True)
    for event in facts["events"]:
        record = event.pop("record")
        by = found.get(event.get("node"), {}).get("settled_by")
        if isinstance(by, dict) and record in by:
            event["by"] = by[record]
    copies = [node for node, one in found.items() if one["has_record"]]
    unknown = [f"copy and deliveries on {node}: no answer" for node in missing]
    unknown += [f"the journal of {node}: no answer" for node in silent if node not in missing]
    if not facts.pop("is_whole"):
        unknown.insert(0, "the end: the search has stopped at its bound")
    if not (facts["events"] or facts["messages"]):
        why = "it is forgotten" if copies else "no node that answered knows this message-id"
        unknown.insert(0, f"everything: {why}")
    elif not _has_acceptance(facts):
        unknown.insert(0, "acceptance and what followed at once: no journal that was asked reaches back so far")
    in_flight = [consumer for one in found.values() for consumer in one["in_flight"]]
    return {**facts, "copies": copies, "in_flight": in_flight, "unknown": unknown, "nodes_missing": missing}


def _check_found(context: MeshMessagesContext, asked: VerbRequest, destination: str) -> None:
    """A message-id says nothing of the destination, and can be guessed."""
    context.rights_of(asked.principal).check_control(asked.destination, asked.headers, Effect(found=destination))


def _check_owner(context: MeshMessagesContext, asked: VerbRequest, destination: str) -> None:
    """What a durable subscription holds is for the user that began it."""
    if is_own_name(destination):
        owner = context.declared_queues.begun_by(destination) or ""
        check_owner(context.rights_of(asked.principal), destination, owner)


def _has_acceptance(facts: Facts) -> bool:
    return any(event["event"] == "accepted" for event in facts["events"])


def _merged(all_facts: Sequence[Facts]) -> Facts:
    """What several nodes say of one message: each event once, in the order of time."""
    events: dict[tuple[str, str], Event] = {}
    for facts in all_facts:
        for event in facts["events"]:
            events.setdefault((event["record"], event["event"]), event)
    having = [facts for facts in all_facts if facts["messages"]]
    return {
        **(having or all_facts)[0],
        "events": sorted(events.values(), key=lambda event: event["at_us"]),
        "is_whole": any(facts["is_whole"] for facts in all_facts),
    }


async def respond_about_message(context: MeshMessagesContext, request: bytes) -> bytes:
    """The response to a peer: facts as JSON in one line, and behind it the body of the message. Raises Refused.

    The facts are null if this node does not have the message.
    """
    try:
        asked = decode_json(request)
        what, message_id = asked["what"], str(asked["id"])
    except (ValueError, TypeError, KeyError) as error:
        raise Refused("bad-destination", "a request about a message names what and id") from error
    try:
        facts = await (messages.trace if what == "trace" else messages.get)(context, message_id)
    except Refused as refused:
        if refused.code != messages.UNKNOWN_MESSAGE:
            raise
        return b"null\n"
    body = b"".join([messages.take_body(row) for row in facts.get("rows", ())])
    return json.dumps(facts).encode() + b"\n" + body


async def _ask_each(context: MeshMessagesContext, what: str, message_id: str) -> tuple[dict[str, Facts], list[str]]:
    """The facts of each peer that has any, by node, and the names of those that gave no answer in time."""
    found: dict[str, Facts] = {}
    silent: list[str] = []
    request = PeerRequest(RequestKind.MESSAGE, json.dumps({"what": what, "id": message_id}).encode())

    async def ask(peer: str) -> None:
        answer = await context.peer_rpc.ask_one(peer, request, FIND_SECONDS)
        facts = None if answer is None else _facts_of(what, answer)
        if answer is None:
            silent.append(peer)
        elif facts is not None:
            found[peer] = facts

    async with trio.open_nursery() as nursery:
        for peer in context.peer_names:
            nursery.start_soon(ask, peer)
    return {peer: found[peer] for peer in sorted(found)}, sorted(silent)


def _facts_of(what: str, answer: bytes) -> Facts | None:
    """The facts in a response; None when there are none, or they are not valid."""
    line, _, body = answer.partition(b"\n")
    if what == "trace":
        facts = facts_of(line, {"messages": int, "destination": str, "events": list, "is_whole": bool})
        types = {"node": str, "record": str, "event": str, "at_us": int}
        if facts is None or not all(_has(event, types) for event in facts["events"]):
            return None
        return {"unsettled": False, **facts}
    facts = facts_of(line, {"messages": int, "destination": str, "rows": list})
    if facts is None or len(facts["rows"]) != 1 or not isinstance(facts["rows"][0], dict):
        return None
    facts["rows"][0] |= messages.fields_of_body(body)
    return facts


def _has(event: Any, types: Mapping[str, type]) -> bool:
    return isinstance(event, dict) and all(type(event.get(name)) is wanted for name, wanted in types.items())
