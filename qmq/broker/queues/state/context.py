"""What all queues of one node share: deliveries, deadlines, clocks, and the messages that this node serves."""

from collections.abc import Callable

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Delivery, Subscription
from qmq.broker.messages.deadlines import Deadlines
from qmq.broker.messages.message import Message
from qmq.broker.messages.peer_clocks import PeerClocks
from qmq.broker.messages.totals import NodeTotals
from qmq.broker.queues.state.served_messages import OwnedMessages


class QueueContext:
    """`expire` is called with a message that its queue has just removed from its order because its time has passed."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.deliveries: dict[int, Delivery] = {}
        """tag → delivery, of all sessions."""
        self.tag = 0
        """The last one given; never used again."""
        self.deadlines = Deadlines()
        self.clocks = PeerClocks()
        self.owned = OwnedMessages(node)
        self.totals = NodeTotals()
        self.expire: Callable[[Message, Outcome], None] = _nothing
        self.is_disk_full: Callable[[], bool] = _never
        self.is_fenced: Callable[[], bool] = _never
        """Whether another node may serve what is here by now: then nothing of it is given up."""
        self.memory_bytes = 0
        """What own messages that live in memory only take, near enough for a bound."""
        self.dirty_queues: dict[str, None] = {}
        """Names of queues in which another consumer may be next; checked when the present decision is finished."""
        self.waiting_elsewhere: dict[str, set[str]] = {}
        """Queue → owners that have said that messages wait there for plain consumers of this node."""
        self.turns: dict[Subscription, None] = {}
        """Those for which a place of their connection prefetch is kept, or was until just now."""
        self.withdrawn: dict[tuple[str, str], None] = {}
        """(queue, class): an ordered message returns to its owner, so nothing may be on its way here meanwhile."""


def _never() -> bool:
    return False


def _nothing(message: Message, out: Outcome) -> None:
    raise AssertionError("a context expires messages only as part of a registry")
