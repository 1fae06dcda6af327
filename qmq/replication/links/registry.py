"""State that the links of one node share.

A single link does not know which origins its peer need not relay, whether records from another link let a lender take
its messages back, or whether an error was reported a second ago. Pure: the caller passes the time.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import Message
from qmq.errors import MeshError
from qmq.model.dots import Origin
from qmq.replication.anti_entropy.acceptance import NOT_HERE, Acceptance
from qmq.replication.anti_entropy.gaps import Gaps
from qmq.replication.links.host import Host
from qmq.replication.links.outbox import LinkOutbox
from qmq.replication.links.pulling_side import PullingSide
from qmq.replication.links.routes import Routes
from qmq.replication.links.serving_side import ServingSide
from qmq.replication.protocol.conversation import REFUSED
from qmq.replication.protocol.frames import MembershipFrame
from qmq.replication.protocol.handshake import FEATURES, RETIRED_NODE, PeerIdentity

REPORT_SECONDS: Final = 60.0
"""The same code about the same peer is not reported again within this."""

REPORTS_REMEMBERED_MAX: Final = 1000

QUIET: Final = frozenset({NOT_HERE, "silent", "not-reading", "replaced", "login-too-slow"})
"""Codes that are no mistrust: the link ends and is dialled again."""


class LinkRegistry:
    """The open links of one node, by peer."""

    def __init__(self, host: Host, identity: PeerIdentity) -> None:
        self.host = host
        self.identity = identity
        self.acceptance = Acceptance(identity.origin, host.membership.origins_known, host.replay)
        self.routes = Routes(host, identity.members, lambda: host.follower.interest_progressed())
        self.followings: dict[str, PullingSide] = {}
        self.servings: dict[str, ServingSide] = {}
        self.unlent: dict[str, list[Message]] = {}
        """Lent in a decision, but never sent: they go back to their queues."""
        self.outboxes: dict[Origin, LinkOutbox] = {}
        """The outbox for each incarnation of a peer now, whichever side dialled."""
        self.caught_up: set[str] = set()
        """Peers of which this node has had everything that they had when a link began."""
        self.gaps = Gaps()
        self.features_of_all: frozenset[str] = frozenset()
        """The features that this node and every other member have named."""
        # Peer → what it named in its last handshake of this run of the node. It stays when the link ends.
        self._features: dict[str, frozenset[str]] = {}
        self.peer_came: Callable[[str], None] = _ignore_dial
        """Called with each peer that has opened a link to this node."""
        self._reported: dict[tuple[str, str], float] = {}
        # Peer → why the last connection with it was lost, and when that was logged; since a link with it was up.
        self._lost: dict[str, tuple[str, float]] = {}
        # Peer → code and message of the conditions that are over when a link with it opens, or when it is no member.
        self._unlinked: dict[str, dict[str, str]] = {}

    @property
    def links(self) -> list[PullingSide | ServingSide]:
        """Those that this node follows, then those that it serves."""
        return [*self.followings.values(), *self.servings.values()]

    def direct_for(self, peer: str) -> tuple[Origin, ...]:
        """Origins that `peer` need not send us: our own, and those that we follow at their own node.

        Only present incarnations: records of an earlier one may be anywhere, its own node may have lost them.
        """
        others = [
            link.partner.origin
            for link in self.followings.values()
            if link.welcomed and not link.holed and link.peer != peer
        ]
        return (self.host.origin, *sorted(others))

    def direct_changed(self) -> None:
        """A link became open or ended: the other peers begin or cease to relay."""
        for following in self.followings.values():
            following.request_ack()

    def links_changed(self) -> None:
        """A link began or ended: replies and questions go over any that is left, to the incarnation that is there."""
        links = self.links
        self.outboxes = {link.partner.origin: link.outbox for link in links}
        self.host.broker.replies.peers = frozenset(self.outboxes)
        named: dict[str, frozenset[str]] = {}
        for link in links:
            named[link.peer] = link.partner.features & named.get(link.peer, link.partner.features)
        self._features.update(named)
        self._agree_on_features()
        self.routes.links_changed([(link.partner.origin, link.outbox) for link in links])
        self.host.follower.links_changed()
        self.host.follower.schedule_repair()

    def end_conditions(self, peer: str) -> None:
        """`peer` has admitted this node, or was admitted, or is no member: no link with it is refused any more.

        A link that has only begun is not enough: a peer that has proven itself may still refuse this node.
        """
        self._lost.pop(peer, None)
        for code, message in self._unlinked.pop(peer, {}).items():
            self._reported.pop((peer, code), None)
            self.host.conditions.clear_condition(code, message)

    def _agree_on_features(self) -> None:
        peers = self.identity.members - {self.host.origin.node}
        self.features_of_all = frozenset(FEATURES).intersection(
            *(self._features.get(peer, frozenset()) for peer in peers)
        )

    def received_grew(self, out: Outcome) -> None:
        """Records came in, over whichever link: lenders may now know what was lost."""
        have = self.host.path.received_vector()
        for serving in self.servings.values():
            serving.take_back(have, out)

    def report_caught_up(self) -> None:
        """Notify the node of links whose peer is no longer ahead."""
        for following in list(self.followings.values()):
            if following.has_caught_up():
                self.caught_up.add(following.peer)
                self.host.follower.link_caught_up(following.peer)

    def membership_changed(self) -> None:
        """Admission and accepted origins may have changed; sends the membership to the peers."""
        membership = self.host.membership
        self.identity = replace(
            self.identity,
            peers_version=membership.listing.version,
            members=membership.members,
            retired=frozenset(membership.retired),
        )
        self.acceptance.members = membership.origins_known
        self.routes.members = membership.members
        for peer in self._unlinked.keys() - membership.members:
            self.end_conditions(peer)
        self._agree_on_features()

    def send_membership(self) -> None:
        """Send it to every peer, over every link."""
        for link in self.links:
            link.outbox.put(MembershipFrame(self.host.membership.standing))

    def return_unlent(self, out: Outcome) -> None:
        """Put lent messages that never left back into their queues."""
        waiting = self.unlent
        self.unlent = {}
        for peer, messages in waiting.items():
            self.host.broker.lending.returned(peer, [(message.dot, Back.UNSEEN, None) for message in messages], out)

    def is_news(self, peer: str, why: str, now: float) -> bool:
        """Whether a connection with `peer` that was lost because of `why` is worth a line in the log."""
        before = self._lost.get(peer)
        if before is not None and before[0] == why and now - before[1] < REPORT_SECONDS:
            return False
        if len(self._lost) >= REPORTS_REMEMBERED_MAX:
            self._lost.clear()
        self._lost[peer] = (why, now)
        return True

    def report(self, peer: str, error: MeshError, now: float) -> bool:
        """Report to the operator, unless it is a quiet error or is repeated too soon. Whether it is news.

        It is a condition while there is no link with that member. Anything else may be done by a stranger under its
        name, and is an event.
        """
        if error.code == REFUSED + RETIRED_NODE:
            self.host.follower.refused_as_retired(peer)
        key = (peer, error.code)
        last = self._reported.get(key)
        if last is not None and now - last < REPORT_SECONDS:
            return False
        if len(self._reported) >= REPORTS_REMEMBERED_MAX:
            self._reported.clear()
        self._reported[key] = now
        if error.code.removeprefix(REFUSED) in QUIET:
            return True
        message = f"link with {peer or 'an unknown peer'}: {error.message}"
        if peer in self.identity.members and peer not in self.followings and peer not in self.servings:
            before = self._unlinked.setdefault(peer, {}).get(error.code)
            if before is not None and before != message:
                self.host.conditions.clear_condition(error.code, before)
            self._unlinked[peer][error.code] = message
            self.host.conditions.raise_condition(error.code, message)
        else:
            self.host.conditions.add_event(error.code, message)
        return True


def _ignore_dial(peer: str) -> None:
    """What follows from a peer's link where none is dialled."""
