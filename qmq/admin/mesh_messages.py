"""`/control/peek`, `/control/get` and `/control/trace` across nodes.

Every node has the durable messages of all, so this node answers alone where it can. Peers are asked for what only they
have: memory-only messages, a message that is not here or not any more, and a journal that reaches further back. Each
peer may take as long as `FIND_SECONDS`, because it may have to search its journal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import msgspec

from qmq.access.rules import Action
from qmq.admin.bulk_jobs import UNKNOWN
from qmq.admin.inspection import messages
from qmq.admin.inspection.message_search import Event
from qmq.broker.broker import Broker
from qmq.broker.messages.destination import DestinationKind, is_pattern, kind_of
from qmq.errors import Refused
from qmq.gateways.bound_queues import subscriber_of
from qmq.gateways.durable_headers import check_owner
from qmq.mesh.peers.calls import Facts, PeerCall, Text, need
from qmq.mesh.peers.rpc import PeerRpc
from qmq.sessions.clients.access import Access
from qmq.settings.definitions.declared_queues import DeclaredQueues
from qmq.settings.definitions.queue_lifetimes import QueueLifetimes
from qmq.verbs.messages import Get, Peek, Trace
from qmq.verbs.table import needs_of
from qmq.verbs.verb import Effect, Verb, VerbRequest

FIND_SECONDS: Final = 10.0
"""For a search of the stores of all peers together."""

HIDDEN: Final = "?"
"""In place of the name of a destination."""

PEEK_MAX: Final = 1000


class MessageCall(PeerCall[Facts], frozen=True):
    """What a node has of a message (`get`), or its journal says of it (`trace`). No facts: it does not have it.

    The reply is facts in JSON in one line, null without any, and behind it the body of the message.
    """

    kind: ClassVar = "message"
    what: Literal["get", "trace"]
    id: Text

    @classmethod
    def encode_reply(cls, reply: Facts) -> bytes:
        body = b"".join([messages.take_body(row) for row in reply.get("rows", ())])
        return msgspec.json.encode(reply or None) + b"\n" + body

    @classmethod
    def decode_reply(cls, data: bytes) -> Facts:
        line, _, body = data.partition(b"\n")
        facts = msgspec.json.decode(line, type=Facts | None) or {}
        if "rows" in facts:
            need(facts, rows=list)
            for row in facts["rows"]:
                need(row)
                row |= messages.fields_of_body(body)
        return facts

    def check(self, reply: Facts) -> None:
        if not reply:
            return
        need(reply, messages=int, destination=str)
        if self.what == "trace":
            need(reply, events=list, is_whole=bool)
            for event in reply["events"]:
                need(event, node=str, record=str, event=str, at_us=int)
        elif len(reply.get("rows", ())) != 1:
            raise ValueError("a message has one row")


@dataclass(eq=False, repr=False)
class MessageVerbs:
    """Responds to them, and to the requests of peers."""

    _broker: Broker
    _rpc: PeerRpc
    _messages: messages.Messages
    _access: Access
    _declared_queues: DeclaredQueues
    _queue_lifetimes: QueueLifetimes

    async def peek(self, asked: VerbRequest[Peek]) -> Facts:
        """A page of the messages of a destination. Memory-only ones of all nodes come first."""
        about = asked.about
        if is_pattern(about):
            raise Refused("bad-pattern", "One destination is looked at; patterns are not supported.")
        self._check_owner(asked, about)
        self._queue_lifetimes.used(about)
        count, offset = min(asked.options.count, PEEK_MAX), asked.options.offset
        if kind_of(about) is not DestinationKind.QUEUE:
            return {"offset": offset, **await self._messages.peek(about, count, offset)}
        rows, more, left, missing = await self._memory_only(about, count, offset)
        if not more:
            # At least one, also if the page is full: only then it is known whether more follow.
            facts = await self._messages.peek(about, max(1, count - len(rows)), left)
            more = facts["more"] or len(rows) + facts["messages"] > count
            rows = (rows + facts["rows"])[:count]
        facts = {"offset": offset, "messages": len(rows), "more": more, "rows": rows}
        facts |= {"nodes_missing": missing} if missing else {}
        if rows or offset or about in self._broker.queues.by_name or self._declared_queues.definitions_of(about):
            return facts
        return {**facts, **UNKNOWN}

    async def _memory_only(self, queue: str, count: int, offset: int) -> tuple[list[Facts], bool, int, list[str]]:
        """Memory-only messages behind the first `offset`, node after node: at most `count`; whether more of them
        follow; what is left of `offset` behind all of them; and the names of the nodes that do not answer.
        """
        call = messages.MemoryMessagesCall(queue, 1 if offset else count)
        found, missing = await self._rpc.ask_all(call)
        offsets: dict[str, int] = {}
        if offset:
            # How many each node has is known now, and so how many of each are left out.
            for node, one in found.items():
                offsets[node] = max(0, min(offset, one.held))
                offset -= offsets[node]
            if all(offsets[node] >= one.held for node, one in found.items()):
                return [], False, offset, missing
            again, silent = await self._rpc.ask_all(messages.MemoryMessagesCall(queue, count, offsets))
            # A node that has missed the first question does not know what it leaves out.
            found = {node: one for node, one in again.items() if node in offsets}
            missing = sorted({*missing, *silent})
        here = self._broker.origin.node
        # With bodies of any length.
        found[here] = await self._messages.memory_rows(queue, count, offsets.get(here, 0))
        rows: list[Facts] = []
        for one in found.values():
            rows += one.rows
            if one.more or len(rows) > count:
                # A page has no gap: what a node could not send at once is on the next one.
                return rows[:count], True, 0, missing
        return rows, False, offset, missing

    async def get(self, asked: VerbRequest[Get]) -> Facts:
        """One message by its id, of the first node that has it. Raises Refused if no node that answers does, and for a
        client that may not read its destination.
        """
        message_id = asked.about.removeprefix("/")
        try:
            facts = await self._messages.get(message_id)
        except Refused as refused:
            if refused.code != messages.UNKNOWN_MESSAGE:
                raise
            found, missing = await self._ask_peers(MessageCall("get", message_id))
            if not found:
                names = f" These did not answer: {', '.join(missing)}." if missing else ""
                raise Refused(refused.code, f"No node has the message {message_id} any more.{names}") from refused
            facts = next(iter(found.values()))
        self._check_found(asked, str(facts.get("destination")))
        self._check_owner(asked, str(facts.get("destination")))
        self._queue_lifetimes.used(str(facts.get("destination")))
        return facts

    async def trace(self, asked: VerbRequest[Trace]) -> Facts:
        """What journals say of a message, and what each node says of the present. Raises Refused for a client that may
        not observe its destination; other destinations that it may not observe are HIDDEN.
        """
        message_id = asked.about.removeprefix("/")
        facts = await self._messages.trace(message_id)
        silent: list[str] = []
        if not facts["is_whole"] or not _has_acceptance(facts):
            others, silent = await self._ask_peers(MessageCall("trace", message_id))
            facts = _merged([facts, *[{"unsettled": False, **one} for one in others.values()]])
        named = [str(event["destination"]) for event in facts["events"] if event["event"] == "accepted"]
        for destination in {facts["destination"], *named} - {""}:
            self._check_found(asked, destination)
        rights = self._access.rights_of(asked.principal)
        for event in facts["events"]:
            if "destination" in event and not rights.allows(Action.OBSERVE, str(event["destination"])):
                event["destination"] = HIDDEN
        records = [event["record"] for event in facts["events"]]
        found, missing = await self._rpc.ask_all(messages.WhereaboutsCall(message_id, records))
        for event in facts["events"]:
            record = event.pop("record")
            there = found.get(event["node"])
            if there is not None and record in there.settled_by:
                event["by"] = there.settled_by[record]
        copies = [node for node, one in found.items() if one.has_record]
        unknown = [f"copy and deliveries on {node}: no answer" for node in missing]
        unknown += [f"the journal of {node}: no answer" for node in silent if node not in missing]
        if not facts.pop("is_whole"):
            unknown.insert(0, "the end: the search has stopped at its bound")
        if not (facts["events"] or facts["messages"]):
            why = "it is forgotten" if copies else "no node that answered knows this message-id"
            unknown.insert(0, f"everything: {why}")
        elif not _has_acceptance(facts):
            unknown.insert(0, "acceptance and what followed at once: no journal that was asked reaches back so far")
        in_flight = [consumer for one in found.values() for consumer in one.in_flight]
        return {**facts, "copies": copies, "in_flight": in_flight, "unknown": unknown, "nodes_missing": missing}

    async def answer(self, call: MessageCall) -> Facts:
        """The reply of this node. Raises Refused for what is no message-id."""
        found = self._messages
        try:
            return await (found.trace if call.what == "trace" else found.get)(call.id)
        except Refused as refused:
            if refused.code != messages.UNKNOWN_MESSAGE:
                raise
            return {}

    def _check_found(self, asked: VerbRequest[Verb], destination: str) -> None:
        """A message-id says nothing of the destination, and can be guessed."""
        self._access.rights_of(asked.principal).check_needs(
            needs_of(asked.destination, asked.headers, Effect(found=destination))
        )

    def _check_owner(self, asked: VerbRequest[Verb], destination: str) -> None:
        """What a durable subscription holds is for the user that began it."""
        owner = subscriber_of(destination, self._declared_queues.begun_by)
        check_owner(self._access.rights_of(asked.principal), destination, owner)

    async def _ask_peers(self, call: MessageCall) -> tuple[dict[str, Facts], list[str]]:
        """The facts of each peer that has any, by node, and the names of those that gave no answer in time."""
        replies, silent = await self._rpc.ask(call, FIND_SECONDS)
        return {peer: facts for peer, facts in replies.items() if facts}, silent


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
