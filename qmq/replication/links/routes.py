"""Interest of the nodes of the mesh, and the route of topic messages to each node.

A node sends three things to each neighbour, over either connection of the pair: the interest of its own subscribers
(`InterestState`), its other neighbours (`Reach`), and the interest of those neighbours that the other side cannot
reach. So a node knows the interest of all nodes at most one node away; `Broker.interest` holds it by node name.
Topic messages go directly to a node while there is a link with it. Otherwise they go through the first node, by name,
that reports a link with it. A node relays only messages that come from their origin. A message therefore takes at most
two hops and no loop is possible. While routes change, `broker.topics.sequence_filter` drops repeated and late messages.

Interest that a peer confirms is in force there, and at every node to which that peer relays. `confirmed` is the version
that all reachable nodes have. Nothing here is durable. An origin without any link is forgotten. If a difference does
not fit the known version, the whole state is requested again. Pure.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Message
from qmq.errors import MeshError
from qmq.model.dots import Origin
from qmq.replication.interest.aggregation import Aggregation
from qmq.replication.interest.interest import NEVER, PATTERNS_MAX, InterestState
from qmq.replication.links.host import Host
from qmq.replication.links.interest_publisher import InterestPublisher
from qmq.replication.links.outbox import LinkOutbox
from qmq.replication.protocol.frames import Heard, InterestPart, Passed, Paths, Reach

REACH_MAX: Final = 16
"""Origins in one Reach: twice the nodes of a mesh."""


@dataclass(slots=True, eq=False)
class Neighbour:
    """One incarnation of a node with a link to this node; `outbox` belongs to its newest connection."""

    origin: Origin
    outbox: LinkOutbox
    publisher: InterestPublisher = field(init=False)
    reach: frozenset[Origin] | None = None
    """Its other neighbours, without this node; None until its first Reach."""
    reach_number: int = -1
    confirmed: int = NEVER
    """The version of this node's interest that it has confirmed."""
    passed: dict[Origin, int] = field(default_factory=dict)
    """The confirmed versions of other origins that it cannot reach."""
    sent_confirmations: dict[Origin, int] = field(default_factory=dict)
    """The versions that this node has confirmed to it."""
    arriving: dict[Origin, tuple[int, list[dict[str, bool]]]] = field(default_factory=dict)
    """Received parts of the interest of an origin, without the last one, and their common number."""

    def missing_ranges(self, origin: Origin) -> bool:
        """Whether it gets the interest of that origin from this node only."""
        return self.reach is not None and origin not in self.reach and origin != self.origin


class Routes:
    """See the module's opening. `changed` is called when `confirmed` or `is_ready` may have become better."""

    def __init__(self, host: Host, members: frozenset[str], changed: Callable[[], None]) -> None:
        self.changed = changed
        self.neighbours: dict[Origin, Neighbour] = {}
        self.relayed = 0
        """Topic messages and replies relayed from one node to another."""
        self.unrelayed = 0
        """Messages without a route, or without room on it."""
        self._host = host
        self.members = members
        self._number = 0
        self._aggregate = Aggregation(host.broker.topics)
        self._own = InterestState()
        self._known: dict[Origin, InterestState] = {}
        # The incarnation of each node whose interest counts, and the neighbours through which others are reached.
        self._active: dict[str, Origin] = {}
        self._via: dict[str, Neighbour] = {}
        self._outboxes: dict[Origin, dict[LinkOutbox, None]] = {}

    # What the node asks

    @property
    def version(self) -> int:
        """The version of the present interest of local subscribers."""
        return self._own.version

    @property
    def confirmed(self) -> int:
        """The version that is in force at all reachable nodes."""
        return min([neighbour.confirmed for neighbour in self.neighbours.values()], default=self._own.version)

    @property
    def is_ready(self) -> bool:
        """Whether the interest of all neighbours is known."""
        return all(origin in self._known for origin in self.neighbours)

    def next_hop_of(self, node: str) -> str | None:
        """The node through which `node` is reached: itself if there is a link, None if there is no route."""
        active = self._active.get(node)
        if active in self.neighbours:
            return node
        via = self._via.get(node)
        return None if via is None else via.origin.node

    def interest_count(self, node: str) -> int:
        """How many names and patterns that node wants, as known here."""
        active = self._active.get(node)
        state = None if active is None else self._known.get(active)
        return 0 if state is None else len(state.patterns)

    # What the node sends

    def own_changed(self, patterns: Iterable[str]) -> None:
        """Local subscribers began or ended to want these topics."""
        changes = self._aggregate.change(patterns)
        if changes:
            self._own.advance(self._own.version + 1, changes)
            for neighbour in self.neighbours.values():
                neighbour.publisher.mark(self._host.origin)

    def send(self, node: str, messages: list[Message]) -> int:
        """Topic messages for a node without an own link; returns how many had no route."""
        active = self._active.get(node)
        next_hop = None if active is None else self.neighbours.get(active)
        if next_hop is None:
            next_hop = self._via.get(node)
        return len(messages) if next_hop is None else next_hop.outbox.put_passed(node, messages)

    def send_replies(self, peer: Origin, messages: list[Message]) -> int:
        """Replies for sessions of an incarnation without a link; returns how many had no route."""
        next_hop = self._via.get(peer.node) if self._active.get(peer.node) == peer else None
        return len(messages) if next_hop is None else next_hop.outbox.put_passed(peer.node, messages)

    # Links

    def links_changed(self, links: Iterable[tuple[Origin, LinkOutbox]]) -> None:
        """These connections are open now. A new one is used at once: an older one may be dead already."""
        current: dict[Origin, dict[LinkOutbox, None]] = {}
        for origin, outbox in links:
            current.setdefault(origin, {})[outbox] = None
        before, self._outboxes = self._outboxes, current
        lost = [self.neighbours.pop(origin) for origin in before if origin not in current]
        added: list[Neighbour] = []
        for origin, outboxes in current.items():
            news = [outbox for outbox in outboxes if outbox not in before.get(origin, {})]
            neighbour = self.neighbours.get(origin)
            if neighbour is None:
                neighbour = self.neighbours[origin] = Neighbour(origin, news[-1])
                added.append(neighbour)
                self._start_publisher(neighbour)
            elif news or neighbour.outbox not in outboxes:
                neighbour.outbox.publisher = None
                neighbour.outbox = news[-1] if news else next(iter(outboxes))
                self._start_publisher(neighbour)
                neighbour.outbox.put(self._reach_for(neighbour))
        if not lost and not added:
            return
        for ended in lost:
            for neighbour in self.neighbours.values():
                neighbour.publisher.forget(ended.origin)
                neighbour.passed.pop(ended.origin, None)
                state = self._known.get(ended.origin)
                if state is not None and not neighbour.missing_ranges(ended.origin):
                    # It will relay the interest of that origin to us, and need not send all of it again.
                    neighbour.outbox.put(Heard([(ended.origin, state.version)]))
        for neighbour in self.neighbours.values():
            neighbour.outbox.put(self._reach_for(neighbour))
        self._refresh()
        self._confirm_all()
        self.changed()

    def _start_publisher(self, neighbour: Neighbour) -> None:
        """It may have forgotten what it confirmed, so it receives at least the versions."""
        own = self._host.origin
        confirmed = {own: neighbour.confirmed, **neighbour.passed}
        neighbour.publisher = neighbour.outbox.publisher = InterestPublisher(
            self._state_of, neighbour.outbox.wake, confirmed, self._next_number
        )
        neighbour.publisher.mark(own, always=True)
        for origin in self.neighbours:
            if neighbour.missing_ranges(origin):
                neighbour.publisher.mark(origin, always=True)

    def _reach_for(self, neighbour: Neighbour) -> Reach:
        return Reach(self._next_number(), frozenset(origin for origin in self.neighbours if origin != neighbour.origin))

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _state_of(self, origin: Origin) -> InterestState | None:
        return self._own if origin == self._host.origin else self._known.get(origin)

    # What comes in

    def take(self, peer: Origin, frame: Paths, out: Outcome) -> None:
        """Apply one frame of `peer`. Raises MeshError; nothing has changed then."""
        if isinstance(frame, Passed):
            self._pass(peer, frame, out)
            return
        neighbour = self.neighbours.get(peer)
        if neighbour is None:
            return  # its connection has just lost its place
        match frame:
            case Reach(number, origins):
                if len(origins) > REACH_MAX:
                    raise MeshError("bad-frame", f"a link with more than {REACH_MAX} others at once")
                if number <= neighbour.reach_number:
                    return
                neighbour.reach_number = number
                self._reaches(neighbour, origins)
            case InterestPart():
                self._take_interest(neighbour, frame)
            case Heard(versions):
                for origin, version in versions:
                    if origin == self._host.origin or origin in self.neighbours:
                        self._take_confirmation(neighbour, origin, version)

    def _pass(self, peer: Origin, passed: Passed, out: Outcome) -> None:
        messages, here = passed.messages, self._host.origin.node
        if not messages:
            return
        origin = messages[0].origin
        if origin.node == here:
            raise MeshError("bad-frame", f"topic messages of {here} were passed to itself")
        if origin.node not in self.members:
            self.unrelayed += len(messages)
            return  # It has left, or the peer has learnt before this node that it joined.
        if passed.target == here:
            broker = self._host.broker
            if messages[0].envelope.kind is DestinationKind.REPLY:
                for message in messages:
                    broker.replies.from_peer(message, out)
            else:
                broker.topic_router.accept_all(messages, out)
            return
        if origin.node != peer.node:
            raise MeshError("bad-frame", f"topic messages of {origin.node} were passed on twice")
        active = self._active.get(passed.target)
        next_hop = None if active is None else self.neighbours.get(active)
        dropped = len(messages) if next_hop is None else next_hop.outbox.put_passed(passed.target, messages)
        self.unrelayed += dropped
        self.relayed += len(messages) - dropped

    def _reaches(self, neighbour: Neighbour, origins: frozenset[Origin]) -> None:
        neighbour.reach = origins - {self._host.origin}
        for origin in neighbour.arriving.keys() - neighbour.reach - {neighbour.origin}:
            del neighbour.arriving[origin]
        for origin in self.neighbours:
            if neighbour.missing_ranges(origin):
                neighbour.publisher.mark(origin, always=True)
            elif origin != neighbour.origin:
                neighbour.publisher.forget(origin)
                neighbour.passed.pop(origin, None)
        self._refresh()
        self._confirm_all()

    def _take_interest(self, neighbour: Neighbour, frame: InterestPart) -> None:
        origin = frame.origin
        is_own = origin == neighbour.origin
        if not is_own and (origin in self.neighbours or origin not in (neighbour.reach or ())):
            return  # its own frames count, or it is no longer where it was
        state = self._known.get(origin)
        version = NEVER if state is None else state.version
        changed: dict[str, bool] = {}
        if frame.base == NEVER:
            number, parts = neighbour.arriving.get(origin, (-1, []))
            if frame.part == 0 and frame.whole > number:
                number, parts = neighbour.arriving[origin] = frame.whole, []
            if number != frame.whole:
                return  # given up; a newer connection brings, or has brought, a later one
            if frame.part != len(parts):
                del neighbour.arriving[origin]
                neighbour.outbox.put(Heard([(origin, NEVER)]))
                return
            if not (frame.patterns or frame.is_last):
                raise MeshError("bad-frame", f"a part of the interest of {origin.node} without patterns")
            parts.append(frame.patterns)
            if sum(map(len, parts)) > PATTERNS_MAX:
                raise MeshError("bad-frame", f"{origin.node} subscribes to more than {PATTERNS_MAX} topics")
            if not frame.is_last:
                return
            del neighbour.arriving[origin]
            if frame.version > version:
                if state is None:
                    state = self._known[origin] = InterestState(NEVER)
                changed = state.replace(frame.version, [pattern for part in parts for pattern in part])
        elif state is None or frame.base > version:
            neighbour.outbox.put(Heard([(origin, NEVER)]))
            return
        elif frame.version > version:
            changed = state.advance(frame.version, frame.patterns)
        assert state is not None
        self._in_force(origin, state, changed)
        neighbour.sent_confirmations.pop(origin, None)
        self._confirm(origin, neighbour)
        self.changed()

    def _in_force(self, origin: Origin, state: InterestState, changed: dict[str, bool]) -> None:
        """Route messages by the new interest of `origin`; neighbours that cannot reach it receive the change."""
        if self._active.get(origin.node) == origin:
            interest = self._host.broker.interest
            for pattern, wanted in changed.items():
                (interest.add if wanted else interest.remove)(pattern, origin.node)
        if origin in self.neighbours:
            for other in self.neighbours.values():
                if other.missing_ranges(origin):
                    other.publisher.mark(origin, always=True)
        if state.left_out:
            state.left_out = 0
            self._host.conditions.add_event(
                "interest-full", f"{origin.node} subscribes to more than {PATTERNS_MAX} topics"
            )

    def _take_confirmation(self, neighbour: Neighbour, origin: Origin, version: int) -> None:
        own = origin == self._host.origin
        if version == NEVER:
            neighbour.publisher.knows(origin, NEVER)
            if own or neighbour.missing_ranges(origin):
                neighbour.publisher.mark(origin)
        elif own:
            neighbour.confirmed = max(neighbour.confirmed, version)
            self.changed()
        elif neighbour.missing_ranges(origin):
            neighbour.passed[origin] = max(neighbour.passed.get(origin, NEVER), version)
            self._confirm_to_itself(origin)
        else:
            neighbour.publisher.knows(
                origin, version
            )  # it has lost its link with that origin; its next Reach will show it

    # What we confirm

    def _confirm_all(self) -> None:
        for origin in self.neighbours:
            self._confirm_to_itself(origin)

    def _confirm_to_itself(self, origin: Origin) -> None:
        neighbour = self.neighbours.get(origin)
        if neighbour is not None:
            self._confirm(origin, neighbour)

    def _confirm(self, origin: Origin, neighbour: Neighbour) -> None:
        """Send `neighbour` the version of `origin` that is in force here and at the nodes to which we relay it."""
        state = self._known.get(origin)
        if state is None:
            return
        version = state.version
        if origin == neighbour.origin:
            passed = [
                other.passed.get(origin, NEVER) for other in self.neighbours.values() if other.missing_ranges(origin)
            ]
            version = min(version, *passed) if passed else version
        if version > neighbour.sent_confirmations.get(origin, NEVER):
            neighbour.sent_confirmations[origin] = version
            neighbour.outbox.put(Heard([(origin, version)]))

    # Routes

    def _refresh(self) -> None:
        """Compute again which incarnation of each node counts, and its route."""
        active = {origin.node: origin for origin in self.neighbours}
        via: dict[str, Neighbour] = {}
        reachable = set(self.neighbours)
        for neighbour in sorted(self.neighbours.values(), key=lambda found: found.origin):
            for origin in sorted(neighbour.reach or ()):
                if origin.node not in self.members or origin.node == self._host.origin.node:
                    continue
                reachable.add(origin)
                if active.setdefault(origin.node, origin) == origin and origin not in self.neighbours:
                    via.setdefault(origin.node, neighbour)
        interest = self._host.broker.interest
        for node, origin in self._active.items():
            if active.get(node) != origin:
                for pattern in self._patterns_of(origin):
                    interest.remove(pattern, node)
        for node, origin in active.items():
            if self._active.get(node) != origin:
                for pattern in self._patterns_of(origin):
                    interest.add(pattern, node)
        self._active, self._via = active, via
        self._host.broker.replies.relayed = frozenset(active[node] for node in via)
        self._known = {origin: state for origin, state in self._known.items() if origin in reachable}

    def _patterns_of(self, origin: Origin) -> Iterable[str]:
        state = self._known.get(origin)
        return () if state is None else state.patterns
