"""The links of one node to and from its peers, as rows for `/control/links`."""

from typing import Any, Protocol

from qmq.replication.links.statistics import PeerStatistics
from qmq.replication.mesh import Mesh
from qmq.server.runtime.contexts import Engine


class LinksContext(Engine, Protocol):
    mesh: Mesh | None


def link_rows(context: LinksContext) -> dict[str, Any]:
    """A row for each peer: the link to it (`out`), and the link from it (`in`). None for a node without a mesh."""
    peers = [] if context.mesh is None else context.mesh.statistics().peers
    return {"links": len(peers), "rows": [_row(context.origin.node, peer) for peer in peers]}


def _row(node: str, peer: PeerStatistics) -> dict[str, Any]:
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
