"""The mesh as one node sees it: a listener, a link to every peer, and what the node sends to them.

`run` is one nursery for all of it. The send methods never wait and never fail. When the link in question is down:

    send_topics, send_replies  relayed by a node that has links with both sides, if there is one; else dropped and
                               counted: topics and replies promise no delivery
    ask, answer                dropped: the requester counts the responses
    offer, routes.own_changed  dropped: both are sent again, as a whole, when the link begins
    settled                    dropped: a durable settle also travels in the journal; a memory-only message that was
                               settled is delivered once more, because its owner cannot know
    give_back                  dropped: the owner sees it missing from the next `Held`
    forget                     dropped: credit dies with the link
    lend                       the messages return to their queues, unseen, and are dispatched again
"""

import logging
from collections.abc import Collection

import trio

from qmq.broker.consumers.outcome import Outcome, Return
from qmq.broker.messages.message import Message
from qmq.environment import Pipe, Tls
from qmq.model.dots import Dot, Origin
from qmq.replication.anti_entropy.gaps import JournalReach, NextRepair
from qmq.replication.links.host import Host, Peers, Settings
from qmq.replication.links.link import Link
from qmq.replication.links.listener import MeshListener
from qmq.replication.links.outbox import LinkOutbox
from qmq.replication.links.registry import LinkRegistry
from qmq.replication.links.reverse_dial import ReverseDial
from qmq.replication.links.statistics import MeshStatistics, mesh_statistics
from qmq.replication.protocol import frames
from qmq.replication.protocol.handshake import PeerIdentity
from qmq.storage.format.missing_range import MissingRange
from qmq.storage.repair.range_snapshot import RangeSnapshot

OFFERS_PER_FRAME = 512
"""A name has up to 1 KiB, and a selector up to 16 KiB."""

DOTS_PER_FRAME = 16_384

log = logging.getLogger("qmq.peer_rpc")


class Mesh:
    """All links of this node; none of a node without a peers file, which may be asked all the same, but is not run.

    `takeover_ms`: silence after which another node may take over, the same on all nodes; 0: takeover is off.
    `listen_tls` must ask for certificates, `dial_tls` must show one; both or neither.
    """

    def __init__(
        self,
        host: Host,
        *,
        peers: Peers | None,
        settings: Settings,
        takeover_ms: int = 0,
        listen_tls: Tls | None = None,
        dial_tls: Tls | None = None,
    ) -> None:
        identity = PeerIdentity(
            mesh="" if peers is None else peers.mesh,
            peers_version=0 if peers is None else peers.version,
            origin=host.origin,
            members=host.membership.members,
            retired=frozenset(host.membership.retired),
            secret=None if peers is None else peers.secret,
            beat_ms=max(1, round(settings.beat_seconds * 1000)),
            takeover_ms=takeover_ms,
        )
        self._registry = LinkRegistry(host, identity)
        self.is_alone = peers is None
        """This node has no peers file, and never a link."""
        self._listener = MeshListener(self._registry, settings, listen_tls)
        self._settings = settings
        self._dial_tls = dial_tls
        self._links: dict[str, Link] = {}
        self._turning = ReverseDial(self._registry, self._links, settings, dial_tls, self._listener.serve_dialled)
        self._listener.turned = self._turned
        self._topics_dropped: dict[str, int] = {}
        self._nursery: trio.Nursery | None = None
        self._registry.peer_came = self._schedule_dial
        self.gaps = self._registry.gaps
        """What peers have dropped."""
        self.routes = self._registry.routes
        self.membership_changed = self._registry.membership_changed
        self.send_membership = self._registry.send_membership
        if peers is not None:
            node = host.origin.node
            self._address = next(peer.mesh for peer in peers.nodes if peer.name == node)
            self.take_up(peers)
        self.replies_dropped = 0
        """Replies that no link took, since the start."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen and dial until cancelled; started when the port is open. Raises OSError when it cannot be had."""
        await self._listener.listen(self._address)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listener.run)
                nursery.start_soon(self._turning.run)
                self._nursery = nursery
                for link in self._links.values():
                    nursery.start_soon(link.run)
                task_status.started()
        finally:
            self._nursery = None  # A node that ends may still be reading a new peers file.

    def _schedule_dial(self, peer: str) -> None:
        link = self._links.get(peer)
        if link is not None:
            link.deliver_first()

    def take_up(self, peers: Peers) -> None:
        """Apply this peers file and `Host.membership` from now on, and notify the peers.

        New nodes are dialled, those with another address dialled there; links with nodes that are no members end.
        """
        members = self._registry.host.membership.peers
        for name in [name for name in self._links if name not in members]:
            self._links.pop(name).stop()
            self._topics_dropped.pop(name)
            self._listener.dismiss(name)
        for peer in peers.nodes:
            link = self._links.get(peer.name)
            if link is not None:
                link.dial_at(peer.mesh)
            elif peer.name in members:
                link = self._links[peer.name] = Link(self._registry, peer, self._settings, self._dial_tls)
                self._topics_dropped[peer.name] = 0
                if self._nursery is not None:
                    self._nursery.start_soon(link.run)
        self.membership_changed()
        self.send_membership()

    def _turned(self, name: str, pipe: Pipe) -> bool:
        link = self._links.get(name)
        return link is not None and link.take(pipe)

    def reconnect(self, peer: str) -> None:
        """End the link by which `peer` is followed, and dial again at once."""
        link = self._links.get(peer)
        if link is not None:
            link.reconnect()

    # Called by the node

    def send_topics(self, peer: str, messages: list[Message]) -> None:
        """Topic messages that `peer` wants."""
        serving = self._registry.servings.get(peer)
        if serving is not None:
            dropped = serving.outbox.topics_dropped
            serving.outbox.put_topics(messages)
            self._topics_dropped[peer] += serving.outbox.topics_dropped - dropped
        elif peer in self._topics_dropped:
            self._topics_dropped[peer] += self.routes.send(peer, messages)

    def send_replies(self, peer: Origin, messages: list[Message]) -> None:
        """Messages for temporary queues of sessions of `peer`."""
        outbox = self._registry.outboxes.get(peer)
        if outbox is None:
            self.replies_dropped += self.routes.send_replies(peer, messages)
        else:
            dropped = outbox.replies_dropped
            outbox.put_replies(messages)
            self.replies_dropped += outbox.replies_dropped - dropped

    def ask(self, number: int, request: frames.PeerRequest) -> list[Origin]:
        """Ask every peer that can be reached now; returns their names. Answers come to `Host.response_received`."""
        for outbox in self._registry.outboxes.values():
            outbox.put(frames.RequestFrame(number, request))
        return list(self._registry.outboxes)

    def ask_one(self, peer: str, number: int, request: frames.PeerRequest) -> list[Origin]:
        """Send a request to one peer, if it is reachable; returns its incarnation, or nothing."""
        found = [origin for origin in self._registry.outboxes if origin.node == peer]
        for origin in found[:1]:
            self._registry.outboxes[origin].put(frames.RequestFrame(number, request))
        return found[:1]

    def links_to(self, peer: Origin) -> Collection[object]:
        """The links that a question to this incarnation, or its answer, may go over now; each is itself only."""
        return [link for link in self._registry.links if link.partner.origin == peer]

    def never_again(self, forgotten: Collection[Origin]) -> None:
        """Nothing of these is taken any more; `forgotten` stays live."""
        self._registry.acceptance.forgotten = forgotten

    def present(self) -> Collection[Origin]:
        """The incarnations of peers that we have a link with."""
        return list(self._registry.outboxes)

    def is_handed_over(self, origin: Origin, last: int) -> bool:
        """Whether each peer that follows us has that much of `origin` durably, and no short frame waits for a link."""
        if any(link.outbox.has_short for link in self._registry.links):
            return False
        return all(serving.feed.has_exactly(origin, last) for serving in self._registry.servings.values())

    def all_have(self, peers: Collection[str], origin: Origin, last: int) -> bool:
        """Whether each of `peers` has reported over its present link exactly this much of `origin` as durable."""
        servings = [self._registry.servings.get(peer) for peer in peers]
        return all(serving is not None and serving.feed.has_exactly(origin, last) for serving in servings)

    def has_none_beyond(self, peer: str, origin: Origin, last: int) -> bool:
        """Whether `peer` has no more of `origin` than that, as its present link knows, and gets none from here now."""
        serving = self._registry.servings.get(peer)
        return serving is not None and serving.feed.has_none_beyond(origin, last)

    # What peers have dropped

    def next_repair(self) -> NextRepair | None:
        """What to do about it now; None when there is nothing to do, or nothing yet."""
        followed = self._registry.followings.items()
        reach = {peer: JournalReach(link.partner.origin, link.had) for peer, link in followed if link.welcomed}
        return self.gaps.next(self._registry.host.path.received_vector(), reach, self._registry.acceptance.forgotten)

    def take_snapshot(self, missing: MissingRange, snapshot: RangeSnapshot, out: Outcome) -> None:
        """Take what a peer had left of what was wanted. Raises MeshError when it cannot be that."""
        registry = self._registry
        have = registry.host.path.received_vector()
        registry.acceptance.take_snapshot(missing.origin, missing.after, snapshot, have, out)
        self._have_grown(out)

    def take_quarantined(self, batches: bytes, out: Outcome) -> None:
        """Take batches back that this node had quarantined. Raises MeshError when they cannot be taken."""
        try:
            self._registry.acceptance.take(batches, self._registry.host.path.received_vector(), out)
        finally:
            self._have_grown(out)

    def _have_grown(self, out: Outcome) -> None:
        """Records have arrived, but not over a link."""
        registry = self._registry
        registry.received_grew(out)
        self.report_durable()
        registry.report_caught_up()

    def report_durable(self) -> None:
        """Let peers learn soon what is durable here, also what they do not wait for."""
        for following in self._registry.followings.values():
            following.request_ack()

    def reachable(self) -> list[str]:
        """Peers that can be asked about repairs now."""
        return [peer for peer, link in self._registry.followings.items() if link.welcomed]

    @property
    def is_catching_up(self) -> bool:
        """Whether this node has no link, or has not yet what a linked peer had when the link began."""
        followings = self._registry.followings.values()
        return not all(link.caught_up for link in followings) if followings else True

    def send_terms(self, peer: str, frame: frames.Terms) -> bool:
        """Send `peer` something about terms: a beat over every link, anything else over one. False when there is none.

        What consumers here hold goes the way of what they give back, which must not overtake it: without that link it
        goes unsaid, and is what the next one begins with (`Held`).
        """
        following, serving = self._registry.followings.get(peer), self._registry.servings.get(peer)
        outboxes = (following,) if isinstance(frame, frames.Holds) else (following, serving)
        links = [link for link in outboxes if link is not None]
        for link in links if isinstance(frame, frames.HeartbeatFrame) else links[:1]:
            link.outbox.put(frame)
        return bool(links)

    def check_absent(self, peer: str) -> None:
        """`peer` has something of what this node serves from now on; it may not be linked."""
        self._listener.check_absent(peer, from_now=True)

    @property
    def node(self) -> str:
        """This node."""
        return self._registry.host.origin.node

    @property
    def members(self) -> set[str]:
        """The other members, linked or not."""
        return set(self._registry.host.membership.peers)

    def has_caught_up_with(self, peer: str) -> bool:
        """Whether this node has everything that `peer` had when a link with it began."""
        return peer in self._registry.caught_up

    def has_synced_with_majority(self) -> bool:
        """Whether this node has everything that a majority had when the links began."""
        return self._registry.host.membership.is_majority({*self._registry.caught_up, self.node})

    def linked(self) -> set[str]:
        """The peers that are linked now, whichever side dialled."""
        return {*self._registry.followings, *self._registry.servings}

    @property
    def features_of_all(self) -> frozenset[str]:
        """The features that this node and every other member have named, each in its last handshake with this node."""
        return self._registry.features_of_all

    def followers(self) -> set[str]:
        """The peers that follow this node now."""
        return set(self._registry.servings)

    def answer(self, peer: Origin, number: int, answer: bytes, way: LinkOutbox) -> None:
        """Respond to a request of `peer` over the link by which it came, or over another if that has ended.

        The peer may have ended any other before it sent the request, and then does not ask again.
        """
        is_open = any(link.outbox is way for link in self._registry.links)
        outbox = way if is_open else self._registry.outboxes.get(peer)
        if outbox is not None and not outbox.put_answer(frames.ResponseFrame(number, answer)):
            log.warning("! no response to %s: its %d bytes are too many for the link", peer.node, len(answer))

    def lend(self, peer: str, messages: list[Message]) -> None:
        """Messages that the broker has lent to `peer`; they are durable by now, where they have to be."""
        serving = self._registry.servings.get(peer)
        if serving is not None:
            serving.outbox.put_lends(messages)
            return
        self._registry.unlent.setdefault(peer, []).extend(messages)
        self._listener.schedule_return()

    def forget(self, peer: str, names: list[str]) -> None:
        """`peer` has withdrawn these offers, and everything lent against them before is with `lend`."""
        serving = self._registry.servings.get(peer)
        if serving is not None:
            unlent = serving.outbox.unlend(set(names))
            if unlent:
                self._registry.unlent.setdefault(peer, []).extend(unlent)
                self._listener.schedule_return()
            for start in range(0, len(names), OFFERS_PER_FRAME):
                serving.outbox.put_offers(frames.Forgotten(names[start : start + OFFERS_PER_FRAME]))

    def waiting(self, peer: str, queues: dict[str, bool]) -> None:
        """Whether messages wait here for consumers of `peer`, which has requested this."""
        serving = self._registry.servings.get(peer)
        if serving is not None:
            serving.outbox.put(frames.Waiting(queues))

    def settled(self, peer: str, dots: list[Dot]) -> None:
        """Messages lent by `peer` that are settled here."""
        following = self._registry.followings.get(peer)
        if following is not None:
            for start in range(0, len(dots), DOTS_PER_FRAME):
                following.outbox.put(frames.Settled(dots[start : start + DOTS_PER_FRAME]))

    def give_back(self, peer: str, returns: list[Return]) -> None:
        """Messages lent by `peer` that no consumer here can take; True where a client has seen it."""
        following = self._registry.followings.get(peer)
        if following is not None:
            dots = [(message.dot, why, asks) for message, why, asks in returns]
            for start in range(0, len(dots), DOTS_PER_FRAME):
                following.outbox.put(frames.Returned(dots[start : start + DOTS_PER_FRAME]))

    def offer(self, offers: list[tuple[str, str, int]]) -> None:
        """(peer, queue, limit) as `Borrowing.offers` gives them."""
        by_peer: dict[str, list[tuple[str, int]]] = {}
        for peer, queue, limit in offers:
            by_peer.setdefault(peer, []).append((queue, limit))
        for peer, limits in by_peer.items():
            following = self._registry.followings.get(peer)
            if following is not None:
                for start in range(0, len(limits), OFFERS_PER_FRAME):
                    following.outbox.put_offers(frames.Credit(limits[start : start + OFFERS_PER_FRAME]))

    # Read by the node

    @property
    def knows_interest(self) -> bool:
        """Whether every peer was tried, and the interest of all reachable ones is known."""
        were_tried = all(link.tried or link.following is not None for link in self._links.values())
        return were_tried and self.routes.is_ready

    # Read by console, tests and metrics

    def statistics(self) -> MeshStatistics:
        return mesh_statistics(self._registry, self._links, self._listener, self._topics_dropped)
