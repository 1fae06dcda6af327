"""Short requests to all nodes: each node responds about itself, and the response names those that did not answer.

A query is done at once on each node, and may be done twice if a link ends. What takes longer is a job (`mesh_jobs`).
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from qmq.errors import Refused
from qmq.replication.protocol.frames import PeerRequest
from qmq.server.definitions.queue_lifetimes import USE, QueueLifetimes
from qmq.server.inspection.connections import ConnectionsContext, connection_rows, kick
from qmq.server.inspection.messages import MEMORY_ONLY, MessagesContext, memory_rows_for_peer, whereabouts
from qmq.server.peers.kinds import RequestKind
from qmq.server.peers.link_rows import LinksContext, link_rows
from qmq.server.peers.peer_json import decode_json, facts_of
from qmq.server.peers.rpc import PeerRpc

Facts = dict[str, Any]


class QueryContext(ConnectionsContext, LinksContext, MessagesContext, Protocol):
    peer_rpc: PeerRpc
    queue_lifetimes: QueueLifetimes


async def _connections(context: QueryContext, wanted: Mapping[str, Any]) -> Facts:
    return connection_rows(context, wanted)


async def _kick(context: QueryContext, wanted: Mapping[str, Any]) -> Facts:
    return kick(context, wanted)


async def _links(context: QueryContext, wanted: Mapping[str, Any]) -> Facts:
    return link_rows(context)


async def _queue_use(context: QueryContext, wanted: Mapping[str, Any]) -> Facts:
    return context.queue_lifetimes.answer(wanted)


async def _whereabouts(context: QueryContext, wanted: Mapping[str, Any]) -> Facts:
    return whereabouts(context, wanted)


async def _memory_only(context: QueryContext, wanted: Mapping[str, Any]) -> Facts:
    return memory_rows_for_peer(context, wanted)


QUERIES: Final[Mapping[str, Callable[[QueryContext, Mapping[str, Any]], Awaitable[Facts]]]] = {
    "connections": _connections,
    "kick": _kick,
    "links": _links,
    "whereabouts": _whereabouts,
    MEMORY_ONLY: _memory_only,
    USE: _queue_use,
}

FACTS: Final[Mapping[str, Mapping[str, type]]] = {
    "connections": {"connections": int, "rows": list},
    "kick": {"connections": int, "rows": list},
    "links": {"links": int, "rows": list},
    USE: {"queues": dict},
    MEMORY_ONLY: {"rows": list, "more": bool, "held": int},
    "whereabouts": {"has_record": bool, "in_flight": list},
}
"""What the response to each query has at least."""


async def ask_nodes(
    context: QueryContext, query: str, wanted: Mapping[str, Any], *, is_mesh: bool
) -> tuple[dict[str, Facts], list[str]]:
    """The facts of each node that answers, this one first; and with `is_mesh` the names of the nodes that do not."""
    found = {context.origin.node: await QUERIES[query](context, wanted)}
    if not is_mesh:
        return found, []
    answers = await context.peer_rpc.ask(
        PeerRequest(RequestKind.ADMIN_QUERY, json.dumps({"query": query, "wanted": wanted}).encode())
    )
    for peer in sorted(answers):
        facts = facts_of(answers[peer], FACTS[query])
        if facts is not None:
            found[peer] = facts
    return found, sorted(set(context.peer_names) - set(found))


async def respond_to_query(context: QueryContext, request: bytes) -> bytes:
    """The response of this node to a query of a peer. Raises Refused."""
    try:
        asked = decode_json(request)
        query, wanted = QUERIES[asked["query"]], dict(asked["wanted"])
    except (ValueError, TypeError, KeyError) as error:
        raise Refused("bad-destination", f"queries of peers are {', '.join(QUERIES)}") from error
    return json.dumps(await query(context, wanted)).encode()
