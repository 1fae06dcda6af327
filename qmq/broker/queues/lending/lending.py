"""Lending: the owner's side of queue messages that consumers of peers get (docs/queues.md).

A peer with consumers offers credit per queue and class of consumers (`consumer_class`). The owner lends messages
against it. They stay lent until a settle comes (from the peer itself or by the journal), the peer returns them, or the
peer is given up. Credit ends with the link; lent messages stay lent, because the peer's client may be working on them.

`borrowing` is the other side, and says how both count an offer.
"""

from collections.abc import Collection, Iterable

from qmq.broker.consumers.borrower import Borrower
from qmq.broker.consumers.consumer_class import WITHDRAWN, asking_offer, read_class, split_offer
from qmq.broker.consumers.outcome import Outcome, Return
from qmq.broker.consumers.subscription import Asks
from qmq.broker.messages.lifecycle import Back
from qmq.broker.queues.queues import Queues
from qmq.model.dots import Dot


class Lending:
    """What this node lends. Offers have names: see `consumer_class.offer_name`."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self.lent = queues.owned.lent
        self._lends_no_more = False
        # Peers that can borrow from this node now (their link to it is up) -> offer -> credit. It counts per link, so
        # it is kept here for queues that are forgotten meanwhile.
        self._borrowing: dict[str, dict[str, Borrower]] = {}

    def borrower_connected(self, peer: str) -> None:
        """`peer` opened a new link to us: its old credit is void."""
        self.borrower_lost(peer)
        self._borrowing[peer] = {}

    def borrower_lost(self, peer: str) -> None:
        """The link from `peer` ended: its credit dies; what it was lent stays lent."""
        for name, borrower in self._borrowing.pop(peer, {}).items():
            self._dismiss(name, borrower)

    def _dismiss(self, name: str, borrower: Borrower) -> None:
        borrower.limit = borrower.sent = 0
        queue = self._queues.by_name.get(split_offer(name)[0])
        if queue is not None:
            queue.line_up_peer(borrower)
            queue.dismiss(borrower)
            self._queues.note_consumers(queue)
            self._queues.forget_if_idle(queue)

    def offer(self, peer: str, name: str, limit: int, out: Outcome) -> None:
        """`peer` lets us lend it up to `limit` messages under that name in all over this link, or withdraws it.

        Raises Refused for a class of consumers that makes no sense.
        """
        offered = self._borrowing.get(peer)
        if offered is None:
            return
        borrower = offered.get(name)
        if limit == WITHDRAWN:
            if borrower is not None:
                del offered[name]
                self._dismiss(name, borrower)
            out.peer_forgotten.setdefault(peer, []).append(name)
            return
        if self._lends_no_more:
            return
        queue_name, of = split_offer(name)
        if borrower is None:
            selector, since_us, priority = read_class(of)
            lent = self.lent.setdefault(peer, {})
            borrower = offered[name] = Borrower(peer, lent, of, selector, since_us, priority)
        queue = self._queues.get(queue_name)
        queue.admit(borrower)
        self._queues.note_consumers(queue)
        asks = limit < WITHDRAWN
        borrower.limit = asking_offer(limit) if asks else limit
        queue.line_up_peer(borrower)
        if queue.asking_borrowers is not None:
            queue.asking_borrowers.pop(borrower, None)
        if asks and not of:
            has_room = borrower.limit > borrower.sent
            if has_room and self._queues.held:
                out.peer_waiting.setdefault(peer, {})[name] = False
            else:
                queue.asking_borrowers = queue.asking_borrowers or {}
                queue.asking_borrowers[borrower] = has_room
        self._queues.dispatch(queue, out)

    def cease(self) -> None:
        """Lend nothing more, for this node is about to end; what is lent stays with its consumers."""
        self._lends_no_more = True
        for offered in self._borrowing.values():
            for name, borrower in offered.items():
                self._dismiss(name, borrower)
            offered.clear()

    @property
    def is_lending(self) -> bool:
        """Whether peers that can be heard have something from us, and have neither settled nor returned it."""
        return any(self.lent.get(peer) for peer in self._borrowing)

    def settled(self, peer: str, dots: Iterable[Dot]) -> None:
        """`peer` says that its consumers settled these; it has logged that for the durable ones."""
        lent = self.lent.get(peer, {})
        for dot in dots:
            message = lent.pop(dot, None)
            if message is None or message.settled:
                continue
            if message.envelope.durable:
                self._queues.settlement.settled_elsewhere(message.envelope.destination, dot, dot.sequence, None)
            else:
                queue = self._queues.get(message.envelope.destination)
                queue.forget(message)
                self._queues.forget_if_idle(queue)

    def returned(self, peer: str, returns: Iterable[tuple[Dot, Back, Asks | None]], out: Outcome) -> None:
        """`peer` gives messages back."""
        lent = self.lent.get(peer, {})
        handoff = self._queues.handoff
        back: dict[str, list[Return]] = {}
        for dot, why, asks in returns:
            message = lent.pop(dot, None)
            if handoff.lent_before:
                handoff.came_back(peer, dot)
            if message is None:
                handoff.not_with(peer, dot)
            elif not message.settled:
                back.setdefault(message.envelope.destination, []).append(Return(message, why, asks))
        for name, messages in back.items():
            queue = self._queues.get(name)
            if queue.selective is not None:
                for message, _, _ in messages:
                    queue.selective.not_lent(message)
            self._queues.redelivery.take_back(queue, messages, out)

    def with_peer(self, peer: str) -> set[Dot]:
        """What consumers of `peer` have of the messages that this node serves, or is about to."""
        return {*self.lent.get(peer, {}), *self._queues.handoff.held_by(peer)}

    def give_up(self, peer: str, dots: Collection[Dot], out: Outcome) -> int:
        """Take these back from consumers of `peer`, which may have seen them. Returns how many of them were lent.

        To be called when the records that `peer` made of settles are here, else what it settled is delivered again.
        """
        handoff = self._queues.handoff
        for dot in handoff.held_by(peer):
            if dot in dots:
                handoff.not_with(peer, dot)
                handoff.came_back(peer, dot)
        lost = [(dot, Back.RELEASED, None) for dot in self.lent.get(peer, {}) if dot in dots]
        self.returned(peer, lost, out)
        return len(lost)
