"""The statistics of a mesh: frozen snapshots of all links, for the status, tests and metrics."""

from collections.abc import Mapping
from dataclasses import dataclass

from qmq.model.dots import Origin
from qmq.replication.links.link import Link
from qmq.replication.links.listener import MeshListener
from qmq.replication.links.registry import LinkRegistry
from qmq.storage.log.fsync_times import Durations


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatistics:
    """One peer. `out` is our link to it (we follow), `in` is its link to us (it follows)."""

    name: str
    out_state: str
    """`down`, `connecting`, `up` or `caught-up`."""
    in_state: str
    """`down` or `up`."""
    out_since_us: int
    """Wall clock, µs; 0 when the link has never been up."""
    in_since_us: int
    dialled: int
    """How often we dialled it."""
    peers_version: int
    """Of its peers file; 0 when no link is up."""
    origin: Origin | None
    """Its present incarnation, when any link is up."""
    lag: dict[Origin, int]
    """Per origin, how many records durable here it has not reported as received. Empty when its link is down."""
    record_bytes_in: int
    record_bytes_out: int
    """Journal bytes over the present links."""
    delays: Durations
    """Of its records, from acceptance there to arrival here; live."""
    topics_dropped: int
    """Topic messages for it that no link took, since the start."""
    topics_via: str | None
    """The node that topic messages for it go through: itself when a link is up, None when there is no route."""
    topics_wanted: int
    """Names and patterns that it wants, as known here."""
    last_error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshStatistics:
    peers: tuple[PeerStatistics, ...]
    refused: int
    """Connections to the mesh listener that were turned away."""
    topics_relayed: int
    """Topic messages and replies passed on from one node to another that it has no link with."""
    topics_unrelayed: int
    """Those that could not be passed on."""
    topics_late: int
    """Topic messages that came twice, or after later ones of their node, and were not delivered."""


def mesh_statistics(
    registry: LinkRegistry, links: Mapping[str, Link], listener: MeshListener, topics_dropped: Mapping[str, int]
) -> MeshStatistics:
    """A snapshot. `topics_dropped`: per peer, topic messages that no link took."""
    return MeshStatistics(
        peers=tuple(
            _peer_statistics(registry, name, link, listener, topics_dropped[name]) for name, link in links.items()
        ),
        refused=listener.refused,
        topics_relayed=registry.routes.relayed,
        topics_unrelayed=registry.routes.unrelayed,
        topics_late=registry.host.broker.topic_router.sequence_filter.late,
    )


def _peer_statistics(
    registry: LinkRegistry, name: str, link: Link, listener: MeshListener, topics_dropped: int
) -> PeerStatistics:
    served = listener.served.get(name)
    serving = registry.servings.get(name)
    following = link.following
    present = following or serving
    partner = None if present is None else present.partner
    return PeerStatistics(
        name=name,
        out_state=link.state,
        in_state="down" if serving is None else "up",
        out_since_us=link.since_us,
        in_since_us=0 if served is None else served.since_us,
        dialled=link.dialled,
        peers_version=0 if partner is None else partner.peers_version,
        origin=None if partner is None else partner.origin,
        lag={} if serving is None else serving.feed.lag(registry.host.path.durable_vector()),
        record_bytes_in=0 if following is None else following.bytes_received,
        record_bytes_out=0 if serving is None else serving.feed.bytes_sent,
        delays=link.delays,
        topics_dropped=topics_dropped,
        topics_via=name if serving is not None else registry.routes.next_hop_of(name),
        topics_wanted=registry.routes.interest_count(name),
        last_error=link.last_error or listener.last_errors.get(name, ""),
    )
