"""How much is in which destination of this node, and who listens: what questions and lists are answered from.

Every look at depths goes through here, so that it does not matter to anybody else whether the messages of a queue are
in memory. Names are gathered on the loop and picked in a worker, because a node may have a hundred thousand of them;
the rows of one page are then filled in on the loop. A picture is true for the moment in which its rows are made.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from typing import TYPE_CHECKING

from qmq.broker.consumers.light_subscriptions import LightSubscriptions, Subscriber
from qmq.broker.messages.destination import DestinationKind, kind_of

if TYPE_CHECKING:
    from qmq.server.node import Node

Row = dict[str, str | int]
"""One line of a list, ready for JSON."""


@dataclass(frozen=True, slots=True)
class Page:
    """Rows in the order of their keys, and the key after which more may follow; "" when nothing does.

    There may be fewer rows than were asked for, even none, and still more to follow: what was picked may have gone.
    """

    rows: list[Row]
    next: str


async def queue_depth(node: "Node", queue_name: str) -> int:
    """Messages that this node serves and nobody has settled, in flight and lent ones included."""
    ask = partial(node.served_rows().heads, [queue_name], 0)
    stored = (await node.environment.run_blocking(ask)).get(queue_name)
    messages, body_bytes = (0, 0) if stored is None else (stored.messages, stored.body_bytes)
    return node.broker.queues.paging.depth(queue_name, messages, body_bytes)[0]


def subscribers_of(node: "Node", destination: str) -> Iterable[Subscriber]:
    """Subscriptions of this node's own clients that get what is sent to `destination`."""
    broker = node.broker
    kind = kind_of(destination)
    if kind is DestinationKind.TOPIC:
        return broker.topics.match(destination)
    if kind is DestinationKind.FANOUT:
        return broker.fanouts.get(destination, ())
    queue = broker.queues.by_name.get(destination)
    return () if queue is None else queue.subscriptions


async def destination_rows(node: "Node", kind: DestinationKind, prefix: str, after: str, limit: int) -> Page:
    """The first `limit` destinations of `kind` whose name begins with `prefix` and comes after `after`.

    Queues: `messages` and `bytes` that this node serves, those `in_flight` (lent ones included), `consumers` here.
    Fanouts: `messages` and `bytes` of this node's copy, `consumers` here. Topics: each name or pattern that somebody
    here is subscribed to, and `consumers`.
    """
    names = _names(node, kind)
    if kind is DestinationKind.QUEUE:
        stored = await node.environment.run_blocking(partial(_stored, node, prefix, after, limit + 1))
        names = list({**dict.fromkeys(names), **dict.fromkeys(stored)})
    picked, after = await node.environment.run_blocking(partial(_pick, names, prefix, after, limit))
    if kind is DestinationKind.FANOUT:
        return Page(await _fanout_rows(node, picked), after)
    if kind is DestinationKind.TOPIC:
        topics = node.broker.topics
        return Page([{"destination": name, "consumers": topics.count(name)} for name in picked], after)
    return Page(_queue_rows(node, picked, stored), after)


def _names(node: "Node", kind: DestinationKind) -> list[str]:
    broker = node.broker
    if kind is DestinationKind.QUEUE:
        return list(broker.queues.by_name)
    if kind is DestinationKind.TOPIC:
        return list(broker.topics)
    return list({**dict.fromkeys(broker.admission.logged_fanouts), **dict.fromkeys(broker.fanouts)})


def _stored(node: "Node", prefix: str, after: str, limit: int) -> dict[str, tuple[int, int]]:
    """Messages and bytes of bodies of the first queues of that name that the queue store has something of."""
    rows = node.served_rows()
    found: dict[str, tuple[int, int]] = {}
    if prefix > after:
        # The listing gives what comes after a name, and the prefix may be one itself.
        found = {queue: (head.messages, head.body_bytes) for queue, head in rows.heads([prefix], 0).items()}
        after = prefix
    for queue, messages, body_bytes in rows.listing(after, limit):
        if queue.startswith(prefix):
            found[queue] = (messages, body_bytes)
    return found


def _pick(names: list[str], prefix: str, after: str, limit: int) -> tuple[list[str], str]:
    """The names of a page, and the last of them when it is not the last page."""
    found = nsmallest(limit + 1, (name for name in names if name.startswith(prefix) and name > after))
    return found[:limit], found[limit - 1] if len(found) > limit else ""


def _queue_rows(node: "Node", names: list[str], stored: dict[str, tuple[int, int]]) -> list[Row]:
    queues = node.broker.queues
    lent = Counter(message.envelope.destination for by_dot in queues.lent.values() for message in by_dot.values())
    rows: list[Row] = []
    for name in names:
        queue = queues.by_name.get(name)
        row: Row = {"destination": name, "messages": 0, "bytes": 0, "in_flight": 0, "consumers": 0}
        row["messages"], row["bytes"] = queues.paging.depth(name, *stored.get(name, (0, 0)))
        if queue is not None:
            own = (sum(d.message.owner is None for d in s.in_flight.values()) for s in queue.subscriptions)
            row["in_flight"] = lent[name] + sum(own)
            row["consumers"] = len(queue.subscriptions)
        if queue is not None or row["messages"]:
            rows.append(row)
    return rows


async def _fanout_rows(node: "Node", names: list[str]) -> list[Row]:
    def read() -> list[tuple[int, int]]:
        found = [node.store.fanout_info(name) for name in names]
        return [(info.records, info.bytes) for info in found]

    facts = await node.environment.run_blocking(read)
    fanouts = node.broker.fanouts
    return [
        {"destination": name, "messages": messages, "bytes": held, "consumers": len(fanouts.get(name, ()))}
        for name, (messages, held) in zip(names, facts, strict=True)
    ]


def subscriber_rows(node: "Node", destination: str, after: str, limit: int) -> Page:
    """Who gets what is sent to `destination`, in the order of their keys."""
    rows = (_subscriber_row(node, destination, subscription) for subscription in subscribers_of(node, destination))
    found = nsmallest(limit + 1, (row for row in rows if row_key(row) > after), key=row_key)
    return Page(found[:limit], row_key(found[limit - 1]) if len(found) > limit else "")


def _subscriber_row(node: "Node", destination: str, subscription: Subscriber) -> Row:
    session = node.sessions.get(subscription.session)
    row: Row = {
        "node": node.settings.name,
        "session": subscription.session,
        "id": subscription.ids[destination] if isinstance(subscription, LightSubscriptions) else subscription.id,
        "user": "" if session is None else session.user or "",
        "address": "" if session is None else session.peer_address,
    }
    if isinstance(subscription, LightSubscriptions):
        return {**row, "destination": destination}
    if kind_of(subscription.destination) is DestinationKind.QUEUE:
        return {**row, "credit": subscription.credit, "in_flight": len(subscription.in_flight)}
    return {**row, "destination": subscription.destination}


def row_key(row: Row) -> str:
    """What lists are ordered by, and what `after` names: a destination, or a subscriber's place in the mesh."""
    if "session" in row:
        return f"{row['node']}/{row['session']:019d}/{row['id']}"
    return str(row["destination"])
