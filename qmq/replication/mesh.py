"""The mesh as one node sees it: a listener, a link to every peer, and what the node tells them.

`run` is one nursery for all of it. The tell methods never wait and never fail; when the link in question is down:

    send_topics                dropped and counted: topics promise no delivery
    offer, interest_changed    dropped: both are told anew, as a whole, when the link begins
    settled                    dropped: a durable settle also travels in the journal; a memory-only message that was
                               settled is delivered once more, because its owner cannot know
    give_back                  dropped: the owner sees it missing from the next `Held`
    lend                       the messages return to their queues, unseen, and are dispatched anew
"""

import ssl
from dataclasses import dataclass

import trio

from qmq.broker.message import Message
from qmq.dots import Dot, Origin
from qmq.replication.frames import Credit, Returned, Settled
from qmq.replication.handshake import Identity
from qmq.replication.host import Host, Peers, Settings
from qmq.replication.hub import Hub
from qmq.replication.link import Link
from qmq.replication.listener import MeshListener

OFFERS_PER_FRAME = 4096
DOTS_PER_FRAME = 16_384


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
    """Per origin, how many records durable here it has not told to have received. Empty when its link is down."""
    record_bytes_in: int
    record_bytes_out: int
    """Journal bytes over the present links."""
    topics_dropped: int
    """Topic messages that its link did not take, since the start."""
    last_error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshStatistics:
    peers: tuple[PeerStatistics, ...]
    refused: int
    """Connections to the mesh listener that were turned away."""


class Mesh:
    """All links of `node`. `listen_tls` must ask for certificates, `dial_tls` must show one; both or neither."""

    def __init__(
        self,
        host: Host,
        *,
        peers: Peers,
        node: str,
        settings: Settings,
        listen_tls: ssl.SSLContext | None = None,
        dial_tls: ssl.SSLContext | None = None,
    ) -> None:
        identity = Identity(
            mesh=peers.mesh,
            peers_version=peers.version,
            origin=host.origin,
            members=frozenset(peer.name for peer in peers.nodes),
            secret=peers.secret,
            beat_ms=max(1, round(settings.beat_seconds * 1000)),
        )
        self._hub = Hub(host, identity)
        self._address = next(peer.mesh for peer in peers.nodes if peer.name == node)
        self._listener = MeshListener(self._hub, settings, listen_tls)
        self._links = {
            peer.name: Link(self._hub, peer, settings, dial_tls) for peer in peers.nodes if peer.name != node
        }
        self._topics_dropped = dict.fromkeys(self._links, 0)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen and dial until cancelled; started when the port is open. Raises OSError when it cannot be had."""
        await self._listener.listen(self._address)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listener.run)
            for link in self._links.values():
                nursery.start_soon(link.run)
            task_status.started()

    # Told by the node

    def send_topics(self, peer: str, messages: list[Message]) -> None:
        """Topic messages that `peer` wants."""
        serving = self._hub.servings.get(peer)
        if serving is None:
            self._topics_dropped[peer] += len(messages)
        else:
            dropped = serving.outbox.topics_dropped
            serving.outbox.put_topics(messages)
            self._topics_dropped[peer] += serving.outbox.topics_dropped - dropped

    def lend(self, peer: str, messages: list[Message]) -> None:
        """Messages that the broker has lent to `peer`; they are durable by now, where they have to be."""
        serving = self._hub.servings.get(peer)
        if serving is not None:
            serving.outbox.put_lends(messages)
            return
        self._hub.unlent.setdefault(peer, []).extend(messages)
        self._listener.return_unlent_soon()

    def settled(self, peer: str, dots: list[Dot]) -> None:
        """Messages lent by `peer` that are settled here."""
        following = self._hub.followings.get(peer)
        if following is not None:
            for start in range(0, len(dots), DOTS_PER_FRAME):
                following.outbox.put(Settled(dots[start : start + DOTS_PER_FRAME]))

    def give_back(self, peer: str, returns: list[tuple[Message, bool]]) -> None:
        """Messages lent by `peer` that nobody here can have; True where a client has seen it."""
        following = self._hub.followings.get(peer)
        if following is not None:
            following.outbox.put(Returned([(message.dot, seen) for message, seen in returns]))

    def offer(self, offers: list[tuple[str, str, int]]) -> None:
        """(peer, queue, limit) as `Lending.offers` gives them."""
        by_peer: dict[str, list[tuple[str, int]]] = {}
        for peer, queue, limit in offers:
            by_peer.setdefault(peer, []).append((queue, limit))
        for peer, limits in by_peer.items():
            following = self._hub.followings.get(peer)
            if following is not None:
                for start in range(0, len(limits), OFFERS_PER_FRAME):
                    following.outbox.put(Credit(limits[start : start + OFFERS_PER_FRAME]))

    def interest_changed(self, changes: dict[str, bool]) -> None:
        """Topic patterns that local subscribers want from now on (True), or no more."""
        for following in self._hub.followings.values():
            following.tell_interest(changes)

    # Asked by console, tests and metrics

    def statistics(self) -> MeshStatistics:
        """A snapshot."""
        return MeshStatistics(
            peers=tuple(self._peer_statistics(name) for name in self._links), refused=self._listener.refused
        )

    def _peer_statistics(self, name: str) -> PeerStatistics:
        link = self._links[name]
        served = self._listener.served.get(name)
        serving = self._hub.servings.get(name)
        following = link.following
        partner = None
        if following is not None:
            partner = following.partner
        elif serving is not None:
            partner = serving.partner
        return PeerStatistics(
            name=name,
            out_state=link.state,
            in_state="down" if serving is None else "up",
            out_since_us=link.since_us,
            in_since_us=0 if served is None else served.since_us,
            dialled=link.dialled,
            peers_version=0 if partner is None else partner.peers_version,
            origin=None if partner is None else partner.origin,
            lag={} if serving is None else serving.feed.lag(self._hub.host.durable_vector()),
            record_bytes_in=0 if following is None else following.bytes_received,
            record_bytes_out=0 if serving is None else serving.feed.bytes_sent,
            topics_dropped=self._topics_dropped[name],
            last_error=link.last_error or self._listener.last_errors.get(name, ""),
        )
