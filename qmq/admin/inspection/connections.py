"""Connections of clients to one node, and its links: their lists, and the end of connections that an operator names."""

from collections.abc import Iterator, Mapping
from heapq import nsmallest
from typing import Annotated, Any, ClassVar, Final

from msgspec import Meta, Struct

from qmq.broker.broker import Broker
from qmq.errors import Refused
from qmq.mesh.peers.calls import AdminQuery, Count, Row, Text
from qmq.replication.links.statistics import PeerStatistics
from qmq.replication.mesh import Mesh
from qmq.sessions.clients.session import ClientSession

ROWS_MAX: Final = 1000
"""Connections in one page."""

REASON_CHARS_MAX: Final = 200


class ConnectionRows(Struct, frozen=True, omit_defaults=True):
    """How many connections a call names, and the first rows of them. `next`: after which one more follow."""

    connections: Count
    rows: list[Row]
    next: Text = ""

    def __post_init__(self) -> None:
        places = [row.get("id") for row in self.rows] + ([self.next] if self.next else [])
        if not all(map(is_place, places)):
            raise ValueError("a row without the id of a connection")


class ConnectionsNamed(AdminQuery[ConnectionRows], frozen=True, omit_defaults=True, kw_only=True):
    """Connections: all, or those of one id, user or address."""

    id: Text | None = None
    user: Text | None = None
    address: Text | None = None


class ConnectionsCall(ConnectionsNamed, frozen=True, omit_defaults=True, kw_only=True):
    """A page of connections: `limit` rows behind the connection `after`."""

    name: ClassVar = "connections"
    limit: Annotated[int, Meta(ge=1, le=ROWS_MAX)] = ROWS_MAX
    after: Text = ""


class KickCall(ConnectionsNamed, frozen=True, omit_defaults=True, kw_only=True):
    """End connections, with `reason` in the ERROR; the connection `but` stays."""

    name: ClassVar = "kick"
    reason: Text
    but: Text
    is_dry_run: bool = False


class LinkRows(Struct, frozen=True):
    """A row for each peer: the link to it (`out`), and the link from it (`in`)."""

    links: Count
    rows: list[Row]


class LinksCall(AdminQuery[LinkRows], frozen=True):
    """The links of a node; none without a mesh."""

    name: ClassVar = "links"


class Connections:
    """Those of one node."""

    def __init__(self, broker: Broker, mesh: Mesh, sessions: Mapping[int, ClientSession]) -> None:
        self._broker = broker
        self._mesh = mesh
        self._sessions = sessions

    def rows(self, call: ConnectionsCall) -> ConnectionRows:
        """The reply of this node. Raises Refused for an `after` that is no id."""
        return self._page(list(self._matching(call)), call.limit, place_of(call.after) if call.after else ("", 0))

    def kick(self, call: KickCall) -> ConnectionRows:
        """The reply of this node. What is in flight to these connections is delivered again."""
        found = list(self._matching(call, call.but))
        rows = self._page(found, ROWS_MAX)
        if not call.is_dry_run:
            for session in found:
                session.evict(Refused("kicked", f"An operator has ended this connection: {call.reason}"))
        return rows

    def links(self, call: LinksCall) -> LinkRows:
        """The reply of this node."""
        peers = self._mesh.statistics().peers
        return LinkRows(len(peers), [_link_row(self._broker.origin.node, peer) for peer in peers])

    def _page(self, found: list[ClientSession], limit: int, after: tuple[str, int] = ("", 0)) -> ConnectionRows:
        behind = [session for session in found if (self._broker.origin.node, session.id) > after]
        page = nsmallest(limit + 1, behind, key=lambda session: session.id)
        rows = [self._row(session) for session in page[:limit]]
        return ConnectionRows(len(found), rows, rows[-1]["id"] if len(page) > limit else "")

    def _matching(self, call: ConnectionsNamed, but: str = "") -> Iterator[ClientSession]:
        node = self._broker.origin.node
        for session in self._sessions.values():
            id = f"{node}/{session.id}"
            pairs = ((call.id, id), (call.user, session.user), (call.address, session.peer_address))
            if id != but and all([wanted is None or wanted == fact for wanted, fact in pairs]):
                yield session

    def _row(self, session: ClientSession) -> dict[str, Any]:
        known = self._broker.sessions.get(session.id)
        subscriptions = [] if known is None else list(known.subscriptions.values())
        return {
            "id": f"{self._broker.origin.node}/{session.id}",
            "node": self._broker.origin.node,
            "user": session.user or "",
            "address": session.peer_address,
            "port": session.peer_port,
            "protocol": session.encoder.protocol,
            "product": session.dialogue.product,
            "subscriptions": 0 if known is None else known.subscribed,
            "in_flight": sum([len(one.in_flight) for one in subscriptions]),
            "bytes_in": session.bytes_in,
            "bytes_out": session.bytes_out,
        }


def place_of(id: Any) -> tuple[str, int]:
    """By what lists of connections are ordered: node, and number there. Raises Refused for what is no id."""
    node, _, number = id.rpartition("/") if isinstance(id, str) else ("", "", "")
    if not node or not (number.isascii() and number.isdigit() and len(number) <= 19):
        raise Refused("bad-after", f"{id!r} is not the id of a connection, NODE/NUMBER.")
    return node, int(number)


def is_place(id: object) -> bool:
    try:
        place_of(id)
    except Refused:
        return False
    return True


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
