"""Depths and subscribers of the destinations of one node, for control requests and lists.

All depths are read through this module, so other parts need not know whether a queue's messages are in memory. A node
may have a hundred thousand destinations: names are collected on the event loop and selected in a worker thread. The
rows of one page are then filled in on the loop. Each row is correct for the moment in which it is made, but for the
messages in flight, which are counted before.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from heapq import nlargest, nsmallest
from typing import Protocol

import trio

from qmq.admin.conditions import Condition, urgency_key
from qmq.admin.totals import Row, row_totals
from qmq.broker.consumers.light_subscriptions import LightSubscriptions, Subscriber
from qmq.broker.messages.destination import DestinationKind, kind_of
from qmq.broker.queues.queues import Queues
from qmq.engine.checkpoint.queue_ages import oldest_ages_us
from qmq.engine.runtime.contexts import Engine, Tasks
from qmq.engine.runtime.listed_parts import parts_of
from qmq.sessions.clients.session import ClientSession
from qmq.settings.definitions.declared_queues import DeclaredQueues
from qmq.settings.definitions.paused_queues import PausedQueues
from qmq.storage.fanouts.reader import FanoutInfo


@dataclass(frozen=True, slots=True)
class Page:
    """Rows in the order of their keys, and the key after which more may follow; "" when nothing does.

    There may be fewer rows than requested, even none, with more to follow: a selected destination may no longer exist.
    """

    rows: list[Row]
    next: str


COUNT_SECONDS = 2.0
"""How long a status waits for the stores."""

QUEUES_COUNTED = 1000
"""Of those in the queue store, for the status. `qmq queues` lists them all."""

DEEPEST_COUNTED = 200
"""Of the queues in memory, for the status."""

TURN_DELIVERIES = 10_000
"""Deliveries that are counted in one turn of the event loop, about a millisecond."""

FANOUTS_COUNTED = 20

PICKED_AT_ONCE = 2_000
"""Names of topics or fanouts from which a page is picked on the event loop; more are picked in a worker thread."""

INFOS_AT_ONCE = 100
"""Fanouts whose counts are read on the event loop, if they are in memory."""

OLDEST = "oldest_age_us"


class CountsContext(Engine, Tasks, Protocol):
    declared_queues: DeclaredQueues
    paused_queues: PausedQueues
    sessions: dict[int, ClientSession]


class DestinationCounts:
    """Counts of each fanout, of queues in the queue store, and which queues in memory are the deepest, as of the last
    `refresh`.
    """

    def __init__(self, context: CountsContext) -> None:
        self._context = context
        self.fanouts: dict[str, FanoutInfo] = {}
        self.queues: dict[str, tuple[int, int]] = {}
        """Queue → messages and bytes."""
        self.deepest: list[str] = []
        self._counted: trio.Event | None = None

    async def refresh(self) -> None:
        """Count again, for the status; a worker reads what was appended since the last count.

        If the stores take longer than `COUNT_SECONDS`, the last count stays.
        """
        if self._counted is None:
            self._counted = trio.Event()
            self._context.spawn(self._count)
        with trio.move_on_after(COUNT_SECONDS):
            await self._counted.wait()

    async def _count(self) -> None:
        run_blocking = self._context.environment.run_blocking
        self.deepest = await self._deepest()
        names, info = _names(self._context, DestinationKind.FANOUT), self._context.store.fanout_info
        self.fanouts = await run_blocking(lambda: {name: info(name) for name in nsmallest(FANOUTS_COUNTED, names)})
        stored = await run_blocking(self._context.served_rows().listing, None, QUEUES_COUNTED)
        self.queues = {name: (messages, body_bytes) for name, messages, body_bytes in stored}
        assert self._counted is not None
        self._counted.set()
        self._counted = None

    async def _deepest(self) -> list[str]:
        """By what is known of them in memory. Takes turns, for there may be a million."""
        listed = self._context.broker.queues.listed
        found: list[tuple[int, str]] = []
        async for part in parts_of(listed):
            found += [(queue.held + queue.stored, queue.name) for queue in listed[part]]
            if len(found) > 10 * DEEPEST_COUNTED:
                found = nlargest(DEEPEST_COUNTED, found)
        return [name for _, name in nlargest(DEEPEST_COUNTED, found)]


async def queue_depth(context: CountsContext, queue_name: str) -> int:
    """Unsettled messages that this node serves, including those in flight and lent."""
    ask = partial(context.served_rows().heads, [queue_name], 0)
    stored = (await context.environment.run_blocking(ask)).get(queue_name)
    messages, body_bytes = (0, 0) if stored is None else (stored.messages, stored.body_bytes)
    return context.broker.queues.paging.depth(queue_name, messages, body_bytes)[0]


def subscribers_of(context: CountsContext, destination: str) -> Iterable[Subscriber]:
    """Subscriptions of this node's own clients that receive the messages of `destination`."""
    broker = context.broker
    kind = kind_of(destination)
    if kind is DestinationKind.TOPIC:
        return broker.topics.match(destination)
    if kind is DestinationKind.FANOUT:
        return broker.subscriptions.fanouts.get(destination, ())
    queue = broker.queues.by_name.get(destination)
    return () if queue is None else queue.subscriptions


async def destination_rows(context: CountsContext, kind: DestinationKind, prefix: str, after: str, limit: int) -> Page:
    """The first `limit` destinations of `kind` whose name begins with `prefix` and sorts after `after`.

    Queues: `messages` and `bytes` that this node serves, those `in_flight` (including lent ones), `consumers` here.
    Fanouts: `messages` and `bytes` of this node's copy, `consumers` here. Topics: each name or pattern with a
    subscription or totals here, and `consumers`. All have the totals of this node.
    """
    if kind is DestinationKind.QUEUE:
        if limit == 1 and prefix > after and _is_known(context, prefix):
            # A page about one queue, which a console asks for again and again: the first of those with this prefix.
            return Page(await queue_rows(context, [prefix]), prefix)
        in_flight = await _in_flight(context.broker.queues)
        find = partial(_pick_queues, context, _queue_names(context), prefix, after, limit)
        picked, after, stored = await context.environment.run_blocking(find)
        return Page(_queue_rows(context, picked, stored, in_flight), after)
    names = _names(context, kind)
    if len(names) <= PICKED_AT_ONCE:
        picked, after = _pick(names, prefix, after, limit)
    else:
        picked, after = await context.environment.run_blocking(_pick, names, prefix, after, limit)
    if kind is DestinationKind.TOPIC:
        topics = context.broker.topics
        totals = context.broker.totals
        rows = [{"destination": name, "consumers": topics.count(name), **row_totals(totals, name)} for name in picked]
        return Page(rows, after)
    return Page(await _fanout_rows(context, picked), after)


def _is_known(context: CountsContext, queue: str) -> bool:
    """Whether this queue has a row, wherever else it may have messages."""
    return queue in context.broker.queues.by_name or queue in context.declared_queues.texts


def _queue_names(context: CountsContext) -> list[str]:
    """All queues that are not only in the store, some of them twice: a million are copied in a few milliseconds."""
    return [*context.broker.queues.by_name, *context.declared_queues.texts, *context.paused_queues.names()]


def _pick_queues(
    context: CountsContext, names: list[str], prefix: str, after: str, limit: int
) -> tuple[list[str], str, dict[str, tuple[int, int]]]:
    """As `_pick`, with the queues in the store; also what is stored of those on the page."""
    stored = _stored(context, prefix, after, limit + 1)
    return *_pick([*names, *stored], prefix, after, limit), stored


def _names(context: CountsContext, kind: DestinationKind) -> list[str]:
    broker = context.broker
    if kind is DestinationKind.TOPIC:
        counted = (name for name in broker.totals.by_name if name.startswith("/topic/"))
        return list({**dict.fromkeys(broker.topics), **dict.fromkeys(counted)})
    return list({**dict.fromkeys(broker.send_limits.logged_fanouts), **dict.fromkeys(broker.subscriptions.fanouts)})


def _stored(context: CountsContext, prefix: str, after: str, limit: int) -> dict[str, tuple[int, int]]:
    """Messages and body bytes of the first queues with this prefix that are in the queue store."""
    rows = context.served_rows()
    found: dict[str, tuple[int, int]] = {}
    if prefix > after:
        # The store lists names after a given one, and the prefix itself may be a name.
        found = {queue: (head.messages, head.body_bytes) for queue, head in rows.heads([prefix], 0).items()}
        after = prefix
    for queue, messages, body_bytes in rows.listing(after, limit):
        if queue.startswith(prefix):
            found[queue] = (messages, body_bytes)
    return found


def _pick(names: list[str], prefix: str, after: str, limit: int) -> tuple[list[str], str]:
    """The names of a page, each once, and the last of them when more pages follow."""
    found = nsmallest(limit + 1, {name for name in names if name.startswith(prefix) and name > after})
    return found[:limit], found[limit - 1] if len(found) > limit else ""


async def queue_rows(context: CountsContext, names: list[str]) -> list[Row]:
    """The rows of these queues, in this order; none for a queue of which nothing is known."""
    in_flight = await _in_flight(context.broker.queues)
    if not context.broker.queues.has_stored:
        # A console asks for rows again and again, and a thread takes longer than they do.
        return _queue_rows(context, names, {}, in_flight)
    heads = await context.environment.run_blocking(context.served_rows().heads, names, 0)
    stored = {name: (one.messages, one.body_bytes) for name, one in heads.items()}
    return _queue_rows(context, names, stored, in_flight)


def _queue_rows(
    context: CountsContext, names: list[str], stored: dict[str, tuple[int, int]], in_flight: Mapping[str, int]
) -> list[Row]:
    queues = context.broker.queues
    rows: list[Row] = []
    for name in names:
        queue = queues.by_name.get(name)
        row: Row = {"destination": name, "messages": 0, "bytes": 0, "in_flight": 0, "consumers": 0}
        row["messages"], row["bytes"] = queues.paging.depth(name, *stored.get(name, (0, 0)))
        if queue is not None:
            row["in_flight"] = in_flight.get(name, 0)
            row["consumers"] = len(queue.subscriptions)
        paused = context.paused_queues.parts(name)
        if paused:
            row["paused"] = paused
        declared = context.declared_queues.texts.get(name)
        if declared is not None:
            row["declared"] = declared
        row |= row_totals(context.broker.totals, name)
        if queue is not None or paused or declared is not None or row["messages"]:
            rows.append(row)
    return rows


async def _in_flight(queues: Queues) -> Counter[str]:
    """Queue → messages with consumers, lent ones too. Many are counted in turns, so some are counted before others."""
    # Also of consumers that get nothing more: those of a receive over HTTP, for example.
    deliveries = list(queues.deliveries.values())
    counts: Counter[str] = Counter()
    for begin in range(0, len(deliveries), TURN_DELIVERIES):
        if begin:
            await trio.lowlevel.checkpoint()
        part = deliveries[begin : begin + TURN_DELIVERIES]
        counts.update([one.subscription.destination for one in part if one.message.owner is None])
    counts.update(message.envelope.destination for lent in queues.owned.lent.values() for message in lent.values())
    return counts


async def add_ages(context: CountsContext, rows: list[Row]) -> None:
    """Add the age of the oldest message to rows of queues that have one."""
    ages_us = await oldest_ages_us(context, context.served_rows(), [str(row["destination"]) for row in rows])
    for row in rows:
        if str(row["destination"]) in ages_us:
            row[OLDEST] = ages_us[str(row["destination"])]


async def _fanout_rows(context: CountsContext, names: list[str]) -> list[Row]:
    store = context.store
    infos: list[FanoutInfo] = []
    for name in names[:INFOS_AT_ONCE]:
        info = store.fanout_info_at_once(name)
        if info is None:
            break
        infos.append(info)
    left = names[len(infos) :]
    if left:
        # A thread takes longer than those, but the log must be read, or they are many.
        infos += await context.environment.run_blocking(lambda: [store.fanout_info(name) for name in left])
    fanouts, totals = context.broker.subscriptions.fanouts, context.broker.totals
    return [
        {
            "destination": name,
            "messages": info.records,
            "bytes": info.bytes,
            "consumers": len(fanouts.get(name, ())),
            **row_totals(totals, name),
        }
        for name, info in zip(names, infos, strict=True)
    ]


def subscriber_rows(context: CountsContext, destination: str, after: str, limit: int) -> Page:
    """The subscriptions that receive the messages of `destination`, in the order of their keys."""
    rows = (
        _subscriber_row(context, destination, subscription) for subscription in subscribers_of(context, destination)
    )
    return page_of(rows, after, limit)


def all_subscriber_rows(context: CountsContext, after: str, limit: int) -> Page:
    """All subscriptions of this node, in the order of their keys; each with its `destination`."""
    found: list[Row] = []
    # Session by session, so that a page of a million subscriptions does not make a million rows.
    for session in sorted(context.broker.sessions):
        key = row_key({"node": context.settings.name, "session": session, "id": ""})
        if len(found) > limit:
            break
        if after < key or after.startswith(key):
            rows = (row for row in _rows_of(context, session) if row_key(row) > after)
            found += nsmallest(limit + 1 - len(found), rows, key=row_key)
    return Page(found[:limit], row_key(found[limit - 1]) if len(found) > limit else "")


def _rows_of(context: CountsContext, session: int) -> Iterator[Row]:
    state = context.broker.sessions[session]
    for subscription in state.subscriptions.values():
        row = _subscriber_row(context, subscription.destination, subscription)
        yield {**row, "destination": subscription.destination}
    if state.listener is not None:
        for topic in state.listener.ids:
            yield _subscriber_row(context, topic, state.listener)


def _subscriber_row(context: CountsContext, destination: str, subscription: Subscriber) -> Row:
    session = context.sessions.get(subscription.session)
    row: Row = {
        "node": context.settings.name,
        "session": subscription.session,
        "id": subscription.ids[destination] if isinstance(subscription, LightSubscriptions) else subscription.id,
        "user": "" if session is None else session.user or "",
        "address": "" if session is None else session.peer_address,
    }
    if isinstance(subscription, LightSubscriptions):
        return {**row, "destination": destination}
    if kind_of(subscription.destination) is DestinationKind.QUEUE:
        row |= {"credit": subscription.credit, "in_flight": len(subscription.in_flight)}
        return {**row, "delivered": subscription.delivered, "acknowledged": subscription.acknowledged}
    row["destination"] = subscription.destination
    if subscription.durable is None:
        return row
    return {**row, "delivered": subscription.delivered, "acknowledged": subscription.acknowledged}


def condition_rows(reported: list[Condition], node: str, after: str, limit: int) -> Page:
    """One page of conditions or events of this node."""
    rows = [
        {"node": node, **{name: value for name, value in asdict(one).items() if value is not None}} for one in reported
    ]
    return page_of(rows, after, limit)


def page_of(rows: Iterable[Row], after: str, limit: int) -> Page:
    """The first rows after `after`, in the order of their keys."""
    found = nsmallest(limit + 1, (row for row in rows if row_key(row) > after), key=row_key)
    return Page(found[:limit], row_key(found[limit - 1]) if len(found) > limit else "")


def row_key(row: Row) -> str:
    """The key that orders lists and that `after` names: a destination, or a subscriber's address in the mesh."""
    if "severity" in row:
        return urgency_key(row)
    if "session" in row:
        return f"{row['node']}/{row['session']:019d}/{row['id']}"
    return str(row["destination"])
