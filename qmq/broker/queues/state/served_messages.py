"""The messages that this node serves: which are in memory, lent, or settled before they came, and what the store has.

A durable message accepted here (by this or an earlier incarnation of this node) belongs to this node until a settle
for its dot is seen, from whichever node. While it is in memory it is in `by_origin`; the others are only in the queue
store. Plain tables: what may be done with a message is decided by `intake`, `settlement`, `redelivery` and `handoff`.
"""

from collections import defaultdict

from qmq.broker.messages.message import Message
from qmq.broker.queues.state.priority_level import is_spare
from qmq.model.dots import Dot, Origin, Vector


class Gathered:
    """What came of an owner's messages during its takeover, in order: new ones, and (queue, dot, settle record)."""

    __slots__ = ("messages", "settles")

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.settles: list[tuple[str, Dot, Dot | None]] = []


class OwnedMessages:
    """See the module's opening. `serves` names the nodes whose messages this node delivers, as a rule itself only."""

    def __init__(self, node: str) -> None:
        self.by_origin: defaultdict[Origin, dict[int, Message]] = defaultdict(dict)
        """Durable ones in memory, by origin and sequence."""
        self.lent: dict[str, dict[Dot, Message]] = {}
        """Peer → what it has from us: neither settled nor returned nor given up."""
        self.settled_early: set[Dot] = set()
        """Settles that came before their message: a node that lost its disk gets both back from peers."""
        self.in_hand: dict[Dot, Message] = {}
        """Messages with consumers here since their server changed, which another consumer may settle meanwhile."""
        self.settled_here: dict[str, dict[Dot, int]] = {}
        """Owner → dots borrowed from it and settled here → sequence of our settle record, until it has that record."""
        self.covered: Vector = {}
        """What the queue store holds of every origin."""
        self.has_stored = False
        """Whether the queue store may hold messages of this node that are not in memory."""
        self.needs_checkpoint = False
        """Whether memory holds much that could be evicted after a checkpoint."""
        self.serves = {node}
        self.dead_letters_from_us: dict[str, int] = {}
        """Other owners that are served → from when on what expires of theirs becomes dead letters."""
        self.gathering: dict[str, Gathered] = {}
        """Owners that are about to be served → what came of them since the takeover began."""
        self.elsewhere: dict[Dot, str] = {}
        """Messages of served and arriving owners that are not in memory, and the peer whose consumers have them."""

    @property
    def in_memory(self) -> int:
        """Durable messages of this node that are in memory."""
        return sum(map(len, self.by_origin.values()))

    def forget_elsewhere(self, owner: str) -> None:
        """Nothing is known any more of messages of `owner` that are with consumers of peers and not in memory."""
        self.elsewhere = {dot: peer for dot, peer in self.elsewhere.items() if dot.origin.node != owner}

    def is_unsaved(self, message: Message) -> bool:
        """Whether the store does not have `message` yet, but will."""
        return message.sequence > self.covered.get(message.origin, 0)

    def is_evictable(self, message: Message) -> bool:
        """Whether the store returns `message` as it is in memory to a reader that reads its level again."""
        return is_spare(message, self.covered, is_cold=False)

    def evicted(self, messages: list[Message]) -> None:
        """These are only in the store from now on."""
        origin: Origin | None = None
        for message in messages:
            if message.origin is not origin:
                origin = message.origin
                owned = self.by_origin[origin]
            del owned[message.sequence]
        if messages:
            self.has_stored = True
