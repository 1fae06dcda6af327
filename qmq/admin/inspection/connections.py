"""Connections of clients to one node, and its links: their lists, and the end of connections that an operator names."""

from collections.abc import Iterator, Mapping
from heapq import nsmallest
from typing import Any, Final, Protocol

from qmq.engine.runtime.contexts import Engine
from qmq.errors import Refused
from qmq.replication.links.statistics import PeerStatistics
from qmq.replication.mesh import Mesh
from qmq.sessions.clients.session import ClientSession

ROWS_MAX: Final = 1000
"""Connections in one page."""

REASON_CHARS_MAX: Final = 200


class ConnectionsContext(Engine, Protocol):
    sessions: dict[int, ClientSession]
    mesh: Mesh | None


def connection_rows(context: ConnectionsContext, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """How many connections `wanted` names (`id`, `user`, `address`; all without these), and the first rows of them.

    A page begins behind the connection `after` and has `limit` rows. `next`: after which one more follow.
    """
    found = list(_matching(context, wanted))
    limit = wanted.get("limit", ROWS_MAX)
    after = place_of(wanted["after"]) if wanted.get("after") else ("", 0)
    behind = [session for session in found if (context.origin.node, session.id) > after]
    page = nsmallest(limit + 1, behind, key=lambda session: session.id)
    rows = [_row(context, session) for session in page[:limit]]
    return {"connections": len(found), "rows": rows, **({"next": rows[-1]["id"]} if len(page) > limit else {})}


def place_of(id: Any) -> tuple[str, int]:
    """By what lists of connections are ordered: node, and number there. Raises Refused for what is no id."""
    node, _, number = id.rpartition("/") if isinstance(id, str) else ("", "", "")
    if not node or not (number.isascii() and number.isdigit() and len(number) <= 19):
        raise Refused("bad-after", f"{id!r} is not the id of a connection, NODE/NUMBER.")
    return node, int(number)


def kick(context: ConnectionsContext, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """End the connections that `wanted` names, with its `reason` in the ERROR; the session `but` stays.

    What is in flight to them is delivered again.
    """
    facts = connection_rows(context, wanted)
    if not wanted.get("is_dry_run"):
        for session in list(_matching(context, wanted)):
            session.evict(Refused("kicked", f"An operator has ended this connection: {wanted['reason']}"))
    return facts


def _matching(context: ConnectionsContext, wanted: Mapping[str, Any]) -> Iterator[ClientSession]:
    node = context.origin.node
    for session in context.sessions.values():
        facts = {"id": f"{node}/{session.id}", "user": session.user, "address": session.peer_address}
        if facts["id"] != wanted.get("but") and all(
            [wanted[name] == fact for name, fact in facts.items() if name in wanted]
        ):
            yield session


def _row(context: ConnectionsContext, session: ClientSession) -> dict[str, Any]:
    known = context.broker.sessions.get(session.id)
    subscriptions = [] if known is None else list(known.subscriptions.values())
    return {
        "id": f"{context.origin.node}/{session.id}",
        "node": context.origin.node,
        "user": session.user or "",
        "address": session.peer_address,
        "protocol": session.encoder.protocol,
        "subscriptions": 0 if known is None else known.subscribed,
        "in_flight": sum([len(one.in_flight) for one in subscriptions]),
        "bytes_in": session.bytes_in,
        "bytes_out": session.bytes_out,
    }


def link_rows(context: ConnectionsContext) -> dict[str, Any]:
    """A row for each peer: the link to it (`out`), and the link from it (`in`). None for a node without a mesh."""
    peers = [] if context.mesh is None else context.mesh.statistics().peers
    return {"links": len(peers), "rows": [_link_row(context.origin.node, peer) for peer in peers]}


def _link_row(node: str, peer: PeerStatistics) -> dict[str, Any]:
    return {
        "id": f"{node}/{peer.name}",
        "node": node,
        "peer": peer.name,
        "out": peer.out_state,
        "out_since_us": peer.out_since_us,
        "in": peer.in_state,
        "in_since_us": peer.in_since_us,
        "lag": sum(peer.lag.values()),
        "bytes_in": peer.record_bytes_in,
        "bytes_out": peer.record_bytes_out,
        "dialled": peer.dialled,
        "topics_dropped": peer.topics_dropped,
        "last_error": peer.last_error,
    }
