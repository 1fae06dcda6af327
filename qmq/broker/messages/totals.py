"""How many messages a node has accepted, delivered, acknowledged and so on since its start, by destination.

Plain integers: whatever handles a run of messages adds once, for the whole run. Each event is counted by one node, the
one that does it, so totals of several nodes can be summed.

Memory is bounded, however many destinations there are: beyond `DESTINATIONS_MAX` a destination is counted with the
`others`. Now and then those that have been quiet since the last time make room; their totals are added to `others`.
"""

from operator import attrgetter
from typing import Final

DESTINATIONS_MAX: Final = 10_000
"""Destinations with totals of their own, about 4 MB."""

COUNTED_KINDS: Final = ("/queue/", "/topic/", "/fanout/")

NAMES: Final = (
    "accepted",
    "delivered",
    "acknowledged",
    "redelivered",
    "expired",
    "dead_lettered",
    "removed",
    "refused",
)

_ALL: Final = attrgetter(*NAMES)


class Totals:
    """The totals of one destination, or of several together, since `since_us`."""

    __slots__ = (
        "accepted",
        "acknowledged",
        "dead_lettered",
        "delivered",
        "expired",
        "redelivered",
        "refused",
        "removed",
        "since_us",
        "swept",
    )

    def __init__(self, since_us: int = 0) -> None:
        self.since_us = since_us
        self.accepted = 0
        """Sent by clients of this node, or made here: dead letters, moved messages and copies for queues."""
        self.delivered = 0
        """Sent to clients of this node, once for each."""
        self.acknowledged = 0
        """Of these, what consumers and durable subscriptions have settled; with `ack:auto` what was sent."""
        self.redelivered = 0
        """Of the delivered ones, those marked `redelivered:true`."""
        self.expired = 0
        self.dead_lettered = 0
        """Left their queue as dead letters, whatever the reason."""
        self.removed = 0
        """Left their queue in another way: purged, moved, deleted, dropped or rejected without a dead letter."""
        self.refused = 0
        """SENDs that got an ERROR."""
        self.swept = -1
        """The sum when quiet destinations were looked for last; -1: not yet."""

    def all(self) -> tuple[int, ...]:
        """The totals in the order of NAMES."""
        totals: tuple[int, ...] = _ALL(self)
        return totals

    def add(self, other: "Totals") -> None:
        """These include those of `other` from now on."""
        self.accepted += other.accepted
        self.delivered += other.delivered
        self.acknowledged += other.acknowledged
        self.redelivered += other.redelivered
        self.expired += other.expired
        self.dead_lettered += other.dead_lettered
        self.removed += other.removed
        self.refused += other.refused


class NodeTotals:
    """Those of all destinations of a node. `now_us`: when the node has last decided something."""

    def __init__(self, destinations_max: int = DESTINATIONS_MAX) -> None:
        self._destinations_max = destinations_max
        self.now_us = 0
        self.by_name: dict[str, Totals] = {}
        """Ask here first, for it is faster: `by_name.get(NAME) or begin(NAME)`."""
        self.others = Totals()
        """Destinations without totals of their own, and replies of clients."""
        self.unroutable = 0
        """Messages of exchanges that no binding took, and that were dropped."""
        self._left_out_max = 0
        """How often `others` is still given out before quiet destinations are looked for again."""

    def begin(self, destination: str, now_us: int = 0) -> Totals:
        """The totals of a destination that may have none yet: then they begin now."""
        totals = self.by_name.get(destination)
        if totals is not None:
            return totals
        if not destination.startswith(COUNTED_KINDS):
            return self.others
        if len(self.by_name) >= self._destinations_max:
            # The search goes through all, so it is rare.
            if self._left_out_max > 0:
                self._left_out_max -= 1
                return self.others
            self._left_out_max = self._destinations_max
            self._make_room()
            if len(self.by_name) >= self._destinations_max:
                return self.others
        totals = self.by_name[destination] = Totals(now_us or self.now_us)
        return totals

    def refused(self, destination: str) -> None:
        """A SEND was refused. Its destination may mean nothing, so that gets no totals of its own for it."""
        (self.by_name.get(destination) or self.others).refused += 1

    def node(self) -> Totals:
        """Those of all destinations together."""
        together = Totals()
        several = [self.others.all(), *[one.all() for one in self.by_name.values()]]
        for name, column in zip(NAMES, zip(*several, strict=True), strict=True):
            setattr(together, name, sum(column))
        return together

    def _make_room(self) -> None:
        quiet: list[str] = []
        for destination, totals in self.by_name.items():
            now = sum(totals.all())
            if now == totals.swept:
                quiet.append(destination)
            totals.swept = now
        for destination in quiet:
            self.others.add(self.by_name.pop(destination))
