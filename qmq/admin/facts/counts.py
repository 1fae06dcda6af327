"""Destinations of one node and their subscribers, for control requests and lists; queues are in `queue_catalog`.

A node may have a hundred thousand topics and fanouts: their names are collected on the event loop and selected in a
worker thread. The rows of one page are then filled in on the loop.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from heapq import nsmallest

from qmq.admin.facts.conditions import Condition, urgency_key
from qmq.admin.facts.queue_catalog import OLDEST_AGE, QueueCatalog
from qmq.admin.facts.totals import SINCE, Row, row_totals
from qmq.broker.broker import Broker
from qmq.broker.consumers.light_subscriptions import LightSubscriptions, Subscriber
from qmq.broker.messages.destination import DestinationKind, kind_of
from qmq.engine.parts import EngineParts
from qmq.sessions.clients.session import ClientSession
from qmq.storage.fanouts.reader import FanoutInfo


@dataclass(frozen=True, slots=True)
class Page:
    """Rows in the order of their keys, and the key after which more may follow; "" when nothing does.

    There may be fewer rows than requested, even none, with more to follow: a selected destination may no longer exist.
    """

    rows: list[Row]
    next: str


PICKED_AT_ONCE = 2_000
"""Names of topics or fanouts from which a page is picked on the event loop; more are picked in a worker thread."""

INFOS_AT_ONCE = 100
"""Fanouts whose counts are read on the event loop, if they are in memory."""


class Counts:
    """Those of one node."""

    def __init__(self, engine: EngineParts, catalog: QueueCatalog, sessions: Mapping[int, ClientSession]) -> None:
        self._engine = engine
        self._catalog = catalog
        self._sessions = sessions

    def subscribers_of(self, destination: str) -> Iterable[Subscriber]:
        """Subscriptions of this node's own clients that receive the messages of `destination`."""
        broker = self._engine.broker
        kind = kind_of(destination)
        if kind is DestinationKind.TOPIC:
            return broker.topics.match(destination)
        if kind is DestinationKind.FANOUT:
            return broker.subscriptions.fanouts.get(destination, ())
        queue = broker.queues.by_name.get(destination)
        return () if queue is None else queue.subscriptions

    async def destination_rows(
        self, kind: DestinationKind, prefix: str, after: str, limit: int, *, with_ages: bool = False
    ) -> Page:
        """The first `limit` destinations of `kind` whose name begins with `prefix` and sorts after `after`.

        Queues: `messages` and `bytes` that this node serves, those `in_flight` (including lent ones), `consumers` here.
        Fanouts: `messages` and `bytes` of this node's copy, `consumers` here. Topics: each name or pattern with a
        subscription or totals here, and `consumers`. All have the totals of this node. `with_ages` is about queues.
        """
        if kind is DestinationKind.QUEUE:
            catalog = self._catalog
            if limit == 1 and prefix > after and catalog.is_known(prefix):
                # A page about one queue, which a console asks for again and again: the first of those with this prefix.
                return Page(await catalog.rows([prefix], with_ages=with_ages), prefix)
            picked, after = await catalog.names(prefix, after, limit)
            return Page(await catalog.rows(picked, with_ages=with_ages), after)
        names = known_names(self._engine.broker, kind)
        if len(names) <= PICKED_AT_ONCE:
            picked, after = _pick(names, prefix, after, limit)
        else:
            picked, after = await self._engine.environment.run_blocking(_pick, names, prefix, after, limit)
        if kind is DestinationKind.TOPIC:
            topics = self._engine.broker.topics
            totals = self._engine.broker.totals
            rows = [
                {"destination": name, "consumers": topics.count(name), **row_totals(totals, name)} for name in picked
            ]
            return Page(rows, after)
        return Page(await self._fanout_rows(picked), after)

    async def _fanout_rows(self, names: list[str]) -> list[Row]:
        store = self._engine.store
        infos: list[FanoutInfo] = []
        for name in names[:INFOS_AT_ONCE]:
            info = store.fanout_info_at_once(name)
            if info is None:
                break
            infos.append(info)
        left = names[len(infos) :]
        if left:
            # A thread takes longer than those, but the log must be read, or they are many.
            infos += await self._engine.environment.run_blocking(lambda: [store.fanout_info(name) for name in left])
        fanouts, totals = self._engine.broker.subscriptions.fanouts, self._engine.broker.totals
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

    def subscriber_rows(self, destination: str, after: str, limit: int) -> Page:
        """The subscriptions that receive the messages of `destination`, in the order of their keys."""
        rows = (self._subscriber_row(destination, subscription) for subscription in self.subscribers_of(destination))
        return page_of(rows, after, limit)

    def all_subscriber_rows(self, after: str, limit: int) -> Page:
        """All subscriptions of this node, in the order of their keys; each with its `destination`."""
        found: list[Row] = []
        # Session by session, so that a page of a million subscriptions does not make a million rows.
        for session in sorted(self._engine.broker.sessions):
            key = row_key({"node": self._engine.broker.origin.node, "session": session, "id": ""})
            if len(found) > limit:
                break
            if after < key or after.startswith(key):
                rows = (row for row in self._rows_of(session) if row_key(row) > after)
                found += nsmallest(limit + 1 - len(found), rows, key=row_key)
        return Page(found[:limit], row_key(found[limit - 1]) if len(found) > limit else "")

    def _rows_of(self, session: int) -> Iterator[Row]:
        state = self._engine.broker.sessions[session]
        for subscription in state.subscriptions.values():
            row = self._subscriber_row(subscription.destination, subscription)
            yield {**row, "destination": subscription.destination}
        if state.listener is not None:
            for topic in state.listener.ids:
                yield self._subscriber_row(topic, state.listener)

    def _subscriber_row(self, destination: str, subscription: Subscriber) -> Row:
        session = self._sessions.get(subscription.session)
        row: Row = {
            "node": self._engine.broker.origin.node,
            "session": subscription.session,
            "id": subscription.ids[destination] if isinstance(subscription, LightSubscriptions) else subscription.id,
            "user": "" if session is None else session.user or "",
            "address": "" if session is None else session.peer_address,
            "port": 0 if session is None else session.peer_port,
            "product": "" if session is None else session.dialogue.product,
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


def known_names(broker: Broker, kind: DestinationKind) -> list[str]:
    """Topics with a subscription or totals, or fanouts with a log or a subscription, in no order."""
    if kind is DestinationKind.TOPIC:
        counted = (name for name in broker.totals.by_name if name.startswith("/topic/"))
        return list({**dict.fromkeys(broker.topics), **dict.fromkeys(counted)})
    return list({**dict.fromkeys(broker.send_limits.logged_fanouts), **dict.fromkeys(broker.subscriptions.fanouts)})


def _pick(names: list[str], prefix: str, after: str, limit: int) -> tuple[list[str], str]:
    """The names of a page, each once, and the last of them when more pages follow."""
    found = nsmallest(limit + 1, {name for name in names if name.startswith(prefix) and name > after})
    return found[:limit], found[limit - 1] if len(found) > limit else ""


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


def sum_rows(kind: DestinationKind | None, one: Row, other: Row) -> Row:
    """Merge two rows of one destination. Every node has its own copy of a fanout's messages."""
    row = dict(one)
    for name, value in other.items():
        mine = row.setdefault(name, value)
        if name in one and isinstance(value, int | float) and isinstance(mine, int | float):
            is_copy = kind is DestinationKind.FANOUT and name in ("messages", "bytes")
            row[name] = max(mine, value) if is_copy or name in (SINCE, OLDEST_AGE) else mine + value
    return row
