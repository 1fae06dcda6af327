"""The verbs that count and list: conditions, destinations and subscribers, of one node or of all.

Each node responds about itself, and the node of the client merges the responses. Counts are summed; rows of one
destination become one row. Fanouts are the exception: every node has a copy of the same messages, so the largest count
is taken. If a node does not respond in time, its share is missing, and the response names that node. The requests that
count are those of ocamlmq, with its header names.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import trio
from msgspec import Meta

from qmq.admin.facts.conditions import Conditions
from qmq.admin.facts.counts import Counts, Page, condition_rows, row_key, sum_rows
from qmq.admin.facts.fanout_lag import DURABLES, FanoutLag
from qmq.admin.facts.queue_catalog import QueueCatalog
from qmq.admin.facts.status import STATUS_BYTES_MAX
from qmq.admin.facts.totals import Row, rates_between
from qmq.broker.messages.destination import DestinationKind, kind_of
from qmq.errors import Refused
from qmq.mesh.peers.calls import Facts, PeerCall, Text, need
from qmq.mesh.peers.rpc import PeerRpc
from qmq.mesh.peers.verb_request import ControlResponse
from qmq.verbs.verb import CONTROL, VerbRequest

STATUS = "/control/status"
COUNT_MESSAGES = "/control/count-msgs"
COUNT_SUBSCRIBERS = "/control/count-subscribers"
LIST = "/control/list"
LIST_SUBSCRIBERS = "/control/list-subscribers"
CONDITIONS = "/control/conditions"
PAST = f"{CONDITIONS}/past"

# Request → the kinds of destinations that it concerns.
QUESTIONS: Mapping[str, tuple[DestinationKind, ...]] = {
    COUNT_MESSAGES: (DestinationKind.QUEUE,),
    COUNT_SUBSCRIBERS: (DestinationKind.QUEUE, DestinationKind.TOPIC, DestinationKind.FANOUT),
    LIST: (DestinationKind.QUEUE, DestinationKind.TOPIC, DestinationKind.FANOUT),
    LIST_SUBSCRIBERS: (DestinationKind.QUEUE, DestinationKind.TOPIC, DestinationKind.FANOUT),
    CONDITIONS: (),
}
FACTS: Mapping[str, str] = {
    COUNT_MESSAGES: "num_messages",
    COUNT_SUBSCRIBERS: "num_subscribers",
    LIST: "destinations",
    LIST_SUBSCRIBERS: "subscribers",
    CONDITIONS: "conditions",
}
"""The name of each fact in the response; headers have a hyphen where it has an underscore."""

ROWS_DEFAULT = 100
ROWS_MAX = 1000
ANSWER_BYTES_MAX = 256 << 10
"""Of one node's rows: a page has fewer rows when their names are long."""


class ControlRequest(PeerCall[Facts], frozen=True):
    """`about` is a destination, for LIST a prefix of one, and for CONDITIONS the destination of the request.

    The reply is a number or a list, as FACTS names it; `next`: behind which key more of the list follow.
    """

    kind: ClassVar = "control"
    what: Text
    about: Text
    after: Text = ""
    limit: Annotated[int, Meta(ge=1, le=ROWS_MAX)] = ROWS_DEFAULT
    oldest: bool = False
    """Whether queues are listed with the age of their oldest message."""

    def __post_init__(self) -> None:
        kinds = QUESTIONS.get(self.what)
        if kinds is None or not (
            self.about in (CONDITIONS, PAST)
            if self.what == CONDITIONS
            else self.concerns in kinds or (self.what == LIST_SUBSCRIBERS and self.about == EVERY)
        ):
            raise ValueError(f"requests of peers are {', '.join(QUESTIONS)}")

    @property
    def concerns(self) -> DestinationKind | None:
        """None: it is about no kind of destination, or all."""
        return KINDS.get(self.about[: self.about.find("/", 1) + 1])

    @property
    def is_count(self) -> bool:
        return self.what in (COUNT_MESSAGES, COUNT_SUBSCRIBERS)

    def check(self, reply: Facts) -> None:
        name = FACTS[self.what]
        need({"next": "", **reply}, **{name: int if self.is_count else list}, next=str)
        for row in () if self.is_count else reply[name]:
            try:
                row_key(row)
            except (TypeError, KeyError) as error:
                raise ValueError("a row without what it is about") from error


EVERY = "/"
"""LIST_SUBSCRIBERS about all destinations."""

KINDS = {"/queue/": DestinationKind.QUEUE, "/topic/": DestinationKind.TOPIC, "/fanout/": DestinationKind.FANOUT}


class ListVerbs:
    """Responds to them, and to the requests of peers."""

    def __init__(
        self, rpc: PeerRpc, node: str, catalog: QueueCatalog, counts: Counts, lag: FanoutLag, conditions: Conditions
    ) -> None:
        self._rpc = rpc
        self._node = node
        self._catalog = catalog
        self._counts = counts
        self._lag = lag
        self._conditions = conditions

    async def respond(self, asked: VerbRequest[Any]) -> ControlResponse:
        """The response to the other verbs. Raises Refused."""
        facts = await self.merged(request_of(asked), getattr(asked.options, "rate_seconds", 0), is_mesh=asked.is_mesh)
        return _answer(facts, in_body="reply-to" in asked.headers)

    async def merged(self, request: ControlRequest, seconds: int = 0, *, is_mesh: bool) -> Facts:
        """The facts of this node or of all, with rates over `seconds` if not 0."""
        rates: dict[str, dict[str, float]] = {}
        began = trio.current_time()
        found, missing = await self._rpc.ask_all(request, is_mesh=is_mesh)
        if seconds and request.what in (LIST, LIST_SUBSCRIBERS):
            await trio.sleep(seconds)
            before, took = found, trio.current_time() - began
            found, missing = await self._rpc.ask_all(request, is_mesh=is_mesh)
            rates = _rates(request, before, found, took)
        facts = together(request, list(found.values()))
        for row in facts[FACTS[request.what]] if rates else ():
            row |= rates.get(row_key(row), {})
        if request.what == LIST_SUBSCRIBERS:
            facts |= await self._lag.durable_facts(request.about)
        if is_mesh:
            facts["nodes_asked"] = len(found) + len(missing)
            facts["nodes_answered"] = len(found)
            if missing:
                facts["nodes_missing"] = missing
        return facts

    async def queue_row(self, queue: str) -> Facts | None:
        """The row of a queue in the mesh, as far as nodes respond; None if none has it."""
        facts = await self.merged(ControlRequest(LIST, queue, limit=1), is_mesh=True)
        # The name itself comes first among those that begin with it.
        return next((row for row in facts[FACTS[LIST]] if row["destination"] == queue), None)

    async def answer(self, request: ControlRequest) -> Facts:
        """The facts of this node alone."""
        what, about = request.what, request.about
        if what == COUNT_MESSAGES:
            return {FACTS[what]: await self._catalog.depth(about)}
        if what == COUNT_SUBSCRIBERS:
            return {FACTS[what]: sum(1 for _ in self._counts.subscribers_of(about))}
        if what == LIST:
            assert request.concerns is not None, about
            page = await self._counts.destination_rows(
                request.concerns, about, request.after, request.limit, with_ages=request.oldest
            )
        elif what == CONDITIONS:
            reported = self._conditions
            found = reported.past() if about == PAST else reported.present()
            page = condition_rows(found, self._node, request.after, request.limit)
        elif about == EVERY:
            page = self._counts.all_subscriber_rows(request.after, request.limit)
        else:
            page = await self._lag.subscribers_page(about, request.after, request.limit)
        return _page_facts(FACTS[what], page)


def _rates(
    request: ControlRequest, before: dict[str, Facts], after: dict[str, Facts], seconds: float
) -> dict[str, dict[str, float]]:
    """The rates of each destination, of the nodes that have responded both times."""
    both = before.keys() & after.keys()
    name = FACTS[request.what]
    samples = [together(request, [sample[node] for node in both])[name] for sample in (before, after)]
    began = {row_key(row): row for row in samples[0]}
    return {key: rates_between(began[key], row, seconds) for row in samples[1] if (key := row_key(row)) in began}


def request_of(asked: VerbRequest[Any]) -> ControlRequest:
    """What each node is asked. Raises Refused."""
    what, about, options = f"{CONTROL}{asked.verb}", asked.about, asked.options
    known = about in ("", "/past") if what == CONDITIONS else what == LIST_SUBSCRIBERS and not about
    if known:
        about = asked.destination if what == CONDITIONS else EVERY
    elif what == LIST:
        about = about.removesuffix("*") if about.count("/") > 1 else f"{about}/"
        known = any(about.startswith(prefix) for prefix in KINDS)
    else:
        known = kind_of(about) in QUESTIONS[what]
    if not known:
        raise Refused("bad-destination", f"The request is {CONTROL}{options.form}.")
    if what in (COUNT_MESSAGES, COUNT_SUBSCRIBERS):
        return ControlRequest(what, about)
    return ControlRequest(what, about, options.after, options.limit, what == LIST and options.oldest)


def _page_facts(name: str, page: Page) -> Facts:
    rows = page.rows
    size = kept = 0
    while kept < len(rows) and size < ANSWER_BYTES_MAX:
        size += len(json.dumps(rows[kept]))
        kept += 1
    return _with_rows(name, rows[:kept], page.next if kept == len(rows) else row_key(rows[kept - 1]))


def _with_rows(name: str, rows: list[Row], after: str) -> Facts:
    facts: Facts = {name: rows}
    if after:
        facts["next"] = after
    return facts


def together(request: ControlRequest, all_facts: list[Facts]) -> Facts:
    """Merge the facts of several nodes into one result."""
    name = FACTS[request.what]
    if request.is_count:
        return {name: sum(facts[name] for facts in all_facts)}
    # A page that is not the last ends at its last row. Rows beyond the shortest such page are incomplete: some node has
    # not sent its own.
    ends = [facts["next"] for facts in all_facts if "next" in facts]
    end = min(ends, default="")
    merged: dict[str, Row] = {}
    for facts in all_facts:
        for row in facts[name]:
            key = row_key(row)
            if not end or key <= end:
                merged[key] = sum_rows(request.concerns, merged[key], row) if key in merged else row
    keys = sorted(merged)
    kept = keys[: request.limit]
    return _with_rows(name, [merged[key] for key in kept], kept[-1] if len(kept) < len(keys) else end)


def _answer(facts: Facts, *, in_body: bool) -> ControlResponse:
    """The rows go into the body only, if there is one. Otherwise a header has as many as clients accept in one line."""
    body = json.dumps(facts, separators=(",", ":")).encode()
    headers: dict[str, str] = {}
    for name, value in facts.items():
        if not isinstance(value, list):
            headers[name.replace("_", "-")] = str(value)
        elif name == "nodes_missing":
            headers["nodes-missing"] = ",".join(value)
        elif not in_body and name != DURABLES:
            texts = _fitting(value)
            headers[name] = f"[{','.join(texts)}]"
            if len(texts) < len(value):
                headers["next"] = row_key(value[len(texts) - 1])
    return ControlResponse(headers, body)


def _fitting(rows: list[Row]) -> list[str]:
    """As many rows, each as JSON, as fit one header line; at least one."""
    kept: list[str] = []
    size = 0
    for row in rows:
        text = json.dumps(row, separators=(",", ":"))
        # STOMP escapes these two, and the reader's limit applies to the line as sent.
        size += len(text) + text.count(":") + text.count("\\") + 1
        if kept and size > STATUS_BYTES_MAX:
            break
        kept.append(text)
    return kept
