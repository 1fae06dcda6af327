"""What all queues of one node share: who has what in hand, and what must be looked at when."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Delivery, Subscription
from qmq.broker.messages.deadlines import Deadlines
from qmq.broker.messages.message import Message
from qmq.broker.messages.peer_clocks import PeerClocks
from qmq.dots import Dot

if TYPE_CHECKING:
    from qmq.broker.queues.paging.pager import Pager
    from qmq.broker.queues.queue import Queue


class QueueContext:
    """`expire` is called with a message that its queue has just taken out of line because its time has passed."""

    __slots__ = (
        "clocks",
        "deadlines",
        "deliveries",
        "expire",
        "has_stored",
        "is_disk_full",
        "is_fenced",
        "lent",
        "memory_bytes",
        "node",
        "paging",
        "awake",
        "tag",
        "turns",
        "waiting_elsewhere",
        "withdrawn",
    )

    def __init__(self, node: str, expire: "Callable[[Queue, Message, Outcome], None]") -> None:
        self.node = node
        self.deliveries: dict[int, Delivery] = {}
        """tag → delivery, of all sessions."""
        self.tag = 0
        """The last one given; never used again."""
        self.deadlines = Deadlines()
        self.clocks = PeerClocks()
        self.expire = expire
        self.is_disk_full: Callable[[], bool] = _never
        self.is_fenced: Callable[[], bool] = _never
        """Whether another node may serve what is here by now: then nothing of it is given up."""
        self.has_stored = False
        """Whether the queue store may hold messages of this node that are not in memory."""
        self.paging: Pager | None = None
        self.memory_bytes = 0
        """What own messages that live in memory only take, near enough for a bound."""
        self.lent: dict[str, dict[Dot, Message]] = {}
        """peer → what it has from us: neither settled nor returned nor given up."""
        self.awake: dict[Queue, None] = {}
        """Queues in which it may be somebody else's turn; looked at when the decision under way is finished."""
        self.waiting_elsewhere: dict[str, set[str]] = {}
        """Queue → owners that have said that messages wait there for plain consumers of this node."""
        self.turns: dict[Subscription, None] = {}
        """Those for which a place of their window is kept, or was until just now."""
        self.withdrawn: dict[tuple[str, str], None] = {}
        """(queue, class): an ordered message goes back to its owner, so nothing may be on its way here meanwhile."""


def _never() -> bool:
    return False
