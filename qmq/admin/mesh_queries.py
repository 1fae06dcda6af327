"""Short requests to all nodes: each node responds about itself, and the response names those that did not answer.

A query is done at once on each node, and may be done twice if a link ends. What takes longer is a job (`mesh_jobs`).
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from qmq.admin.inspection.connections import ConnectionsContext, connection_rows, kick, link_rows
from qmq.admin.inspection.messages import MEMORY_ONLY, MessagesContext, memory_rows_for_peer, whereabouts
from qmq.engine.runtime.contexts import Engine, MeshPeers
from qmq.errors import Refused
from qmq.mesh.peers.kinds import RequestKind
from qmq.mesh.peers.peer_json import Facts, decode_json, facts_of
from qmq.mesh.peers.rpc import PeerRpc
from qmq.replication.protocol.frames import PeerRequest
from qmq.settings.definitions.queue_lifetimes import USE, QueueLifetimes


class AskContext(Engine, MeshPeers, Protocol):
    peer_rpc: PeerRpc


class QueryContext(ConnectionsContext, MessagesContext, AskContext, Protocol):
    queue_lifetimes: QueueLifetimes


QUERIES: Final[Mapping[str, Callable[[QueryContext, Mapping[str, Any]], Facts]]] = {
    "connections": connection_rows,
    "kick": kick,
    "links": lambda context, wanted: link_rows(context),
    "whereabouts": whereabouts,
    MEMORY_ONLY: memory_rows_for_peer,
    USE: lambda context, wanted: context.queue_lifetimes.answer(wanted),
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
    here = QUERIES[query](context, wanted)
    asked = {"query": query, "wanted": wanted}
    return await ask_mesh(context, here, RequestKind.ADMIN_QUERY, asked, FACTS[query], is_mesh=is_mesh)


async def ask_mesh(
    context: AskContext,
    here: Facts,
    kind: RequestKind,
    asked: Facts,
    types: Mapping[str, type],
    *,
    is_mesh: bool,
) -> tuple[dict[str, Facts], list[str]]:
    """The facts of this node and, with `is_mesh`, of each peer that answers `asked` with what `types` names; and the
    names of the peers that do not.
    """
    found = {context.origin.node: here}
    if not is_mesh:
        return found, []
    answers = await context.peer_rpc.ask(PeerRequest(kind, json.dumps(asked).encode()))
    for peer in sorted(answers):
        facts = facts_of(answers[peer], types)
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
    return json.dumps(query(context, wanted)).encode()
