"""What all queues of one node share: deliveries, deadlines, clocks, and the messages that this node serves."""

from collections.abc import Callable

from qmq.broker.consumers.outcome import Outcome, Return
from qmq.broker.consumers.subscription import Delivery, Subscription
from qmq.broker.messages.deadline_heap import Deadlines
from qmq.broker.messages.lifecycle import Back
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
        self.memory_messages = 0
        """How many these are."""
        self.dirty_queues: dict[str, None] = {}
        """Names of queues in which another consumer may be next; checked when the present decision is finished."""
        self.waiting_elsewhere: dict[str, set[str]] = {}
        """Queue → owners that have said that messages wait there for plain consumers of this node."""
        self.ceased: dict[str, dict[Subscription, None]] = {}
        """Queue → consumers that get nothing more, have not ended, and had something in flight when they ceased."""
        self.turns: dict[Subscription, None] = {}
        """Those for which a place of their connection prefetch is kept, or was until just now."""
        self.withdrawn: dict[tuple[str, str, str], None] = {}
        """(lender, "" for all; queue; class): an ordered message returns, so nothing may be on its way here meanwhile.
        The next offers withdraw these."""

    def return_to_owner(self, returned: Return, out: Outcome) -> None:
        """A borrowed message goes back. If it may be delivered again at once, the next ones of its group must not come
        before it.
        """
        message = returned.message
        lender = message.owner or ""
        out.peer_returns.setdefault(lender, []).append(returned)
        if is_ordered(message) and returned.why in (Back.UNSEEN, Back.RELEASED, Back.LEFT):
            self.withdrawn[lender, message.envelope.destination, message.lent_as] = None

    def end_ceased(self, subscription: Subscription) -> None:
        """It ends, or is a consumer again."""
        ceased = self.ceased.get(subscription.destination)
        if ceased is not None:
            ceased.pop(subscription, None)
            if not ceased:
                del self.ceased[subscription.destination]

    def is_withdrawn(self, message: Message) -> bool:
        """Whether its offer is about to be withdrawn."""
        if not self.withdrawn:
            return False
        queue, of = message.envelope.destination, message.lent_as
        return (message.owner or "", queue, of) in self.withdrawn or ("", queue, of) in self.withdrawn


def is_ordered(message: Message) -> bool:
    """Whether a message that is lent to us must not be overtaken: it has a group, or an exclusive consumer."""
    options = message.envelope.options
    if options is not None and options.group:
        return True
    return not (message.lent_as == "" or message.lent_as.endswith("\0" + "0"))


def _never() -> bool:
    return False


def _nothing(message: Message, out: Outcome) -> None:
    raise AssertionError("a context expires messages only as part of a registry")
