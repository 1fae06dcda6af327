"""The node, as its links see it (`qmq.replication.links.host.Host`)."""

from qmq.engine.parts import EngineParts
from qmq.model.members import Membership
from qmq.replication.links.host import LinkConditions, LinkFollower, LinkTerms


class MeshHost:
    """Made before the parts that follow links, because they use the links themselves."""

    def __init__(self, engine: EngineParts, membership: Membership, conditions: LinkConditions) -> None:
        self.broker = engine.broker
        self.origin = engine.broker.origin
        self.replay = engine.replay
        self.environment = engine.environment
        self.path = engine.path
        self.log = engine.store.journal
        self.tail = engine.tail
        self.membership = membership
        self.conditions = conditions
        self._follower: LinkFollower | None = None
        self._terms: LinkTerms | None = None

    def report_to(self, follower: LinkFollower, terms: LinkTerms) -> None:
        """Called once, before the first link."""
        self._follower, self._terms = follower, terms

    @property
    def follower(self) -> LinkFollower:
        assert self._follower is not None
        return self._follower

    @property
    def terms(self) -> LinkTerms:
        assert self._terms is not None
        return self._terms
