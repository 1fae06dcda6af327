"""A peer with consumers, as a queue of this node sees it: how much it may be lent, and how much it was."""

from qmq.broker.consumers.consumer_class import PLAIN, key_of
from qmq.broker.messages.message import Message
from qmq.broker.selectors import Selector
from qmq.model.dots import Dot


class Borrower:
    """A peer that offered credit for a queue, for one class of its consumers (`consumer_class`).

    Credit is a limit on the count ever lent over the present link, so that an offer can be repeated or overtaken
    without harm. `lent` is all that this peer has from us, of any queue, and outlives the link.
    """

    __slots__ = ("key", "lent", "lent_as", "limit", "peer", "priority", "selector", "sent", "since_us", "waiting")

    def __init__(
        self,
        peer: str,
        lent: dict[Dot, Message],
        lent_as: str = PLAIN,
        selector: Selector | None = None,
        since_us: int = 0,
        priority: int = 0,
    ) -> None:
        self.peer = peer
        self.lent_as = lent_as
        self.selector = selector
        self.since_us = since_us
        self.priority = priority
        self.key = key_of(peer, lent_as)
        self.limit = 0
        self.sent = 0
        self.lent = lent
        self.waiting = False
