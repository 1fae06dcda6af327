"""Lending queue messages to peers, and borrowing theirs (design 6.4).

Owner's side: a peer with consumers offers credit per queue; the owner lends messages against it and keeps them lent
until a settle comes (by a direct nudge or by the journal), the peer returns them, or the peer is given up. Credit
dies with the link; lent messages do not, because the peer's client may be working on them.

Borrower's side: the free credit of local consumers is offered to every reachable owner in equal shares. When little
is free the shares overlap, so a borrowed message may find no consumer left; it is returned at once and was never
seen by a client, so nothing waits beside idle credit elsewhere.
"""

from collections.abc import Iterable

from qmq.broker.message import Message
from qmq.broker.outcome import Outcome
from qmq.broker.queue import Borrower
from qmq.broker.queues import Queues
from qmq.dots import Dot


class Lending:
    """Both sides of lending on one node."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self.lent = queues.lent
        # Peers that can borrow from us now (their link to us is up) -> queue -> credit. It counts per link, so it is
        # kept here for queues that are forgotten meanwhile.
        self._borrowing: dict[str, dict[str, Borrower]] = {}
        # Owners we can reach -> queue -> messages received over the present link, and the limit last offered.
        self._received: dict[str, dict[str, int]] = {}
        self._offered: dict[str, dict[str, int]] = {}

    # Owner's side

    def borrower_connected(self, peer: str) -> None:
        """`peer` opened a new link to us: its old credit is void."""
        self.borrower_lost(peer)
        self._borrowing[peer] = {}

    def borrower_lost(self, peer: str) -> None:
        """The link from `peer` ended: its credit dies; what it was lent stays lent."""
        for name, borrower in self._borrowing.pop(peer, {}).items():
            borrower.limit = borrower.sent = 0
            queue = self._queues.by_name.get(name)
            if queue is not None:
                queue.line_up_peer(borrower)
                queue.borrowers.pop(peer, None)
                self._queues.forget_if_idle(queue)

    def offer(self, peer: str, queue_name: str, limit: int, out: Outcome) -> None:
        """`peer` lets us lend it up to `limit` messages of the queue in all over this link."""
        offered = self._borrowing.get(peer)
        if offered is None:
            return
        borrower = offered.get(queue_name)
        if borrower is None:
            if not limit:
                return
            borrower = offered[queue_name] = Borrower(peer, self.lent.setdefault(peer, {}))
        queue = self._queues.get(queue_name)
        queue.borrowers[peer] = borrower
        borrower.limit = limit
        queue.line_up_peer(borrower)
        if not limit and not borrower.sent:
            # The count over the link is 0 on both sides, so it need not be remembered: queues come and go.
            del offered[queue_name]
            del queue.borrowers[peer]
        self._queues.dispatch(queue, out)
        self._queues.forget_if_idle(queue)

    def settled(self, peer: str, dots: Iterable[Dot]) -> None:
        """`peer` says that its consumers settled these; it has logged that for the durable ones."""
        lent = self.lent.get(peer, {})
        for dot in dots:
            message = lent.pop(dot, None)
            if message is not None and not message.settled:
                queue = self._queues.get(message.envelope.destination)
                queue.gone(message)
                if message.envelope.durable:
                    self._queues.owned.get(dot.origin, {}).pop(dot.sequence, None)
                self._queues.forget_if_idle(queue)

    def returned(self, peer: str, returns: Iterable[tuple[Dot, bool]], out: Outcome) -> None:
        """`peer` gives messages back; True where a client had seen the message."""
        lent = self.lent.get(peer, {})
        back: dict[str, list[Message]] = {}
        for dot, seen in returns:
            message = lent.pop(dot, None)
            if message is not None and not message.settled:
                message.attempts += seen
                back.setdefault(message.envelope.destination, []).append(message)
        for name, messages in back.items():
            queue = self._queues.get(name)
            queue.push_back(messages)
            self._queues.dispatch(queue, out)

    def give_up(self, peer: str, keep: Iterable[Dot], out: Outcome) -> int:
        """Take back everything lent to `peer` except `keep`; a client may have seen it. Returns how many.

        To be called when the records that `peer` made of settles are here, else what it settled is delivered again.
        """
        kept = set(keep)
        lost = [(dot, True) for dot in self.lent.get(peer, {}) if dot not in kept]
        self.returned(peer, lost, out)
        return len(lost)

    # Borrower's side

    def owner_connected(self, peer: str) -> None:
        """Our link to `peer` is up: from now on our free credit is offered to it too."""
        self._received[peer] = {}
        self._offered[peer] = {}
        for name, queue in self._queues.by_name.items():
            if queue.subscriptions:
                self._queues.touched[name] = None

    def owner_lost(self, peer: str) -> None:
        """Our link to `peer` ended; what we borrowed stays with its consumers."""
        self._received.pop(peer, None)
        self._offered.pop(peer, None)
        for name, queue in self._queues.by_name.items():
            if queue.subscriptions:
                self._queues.touched[name] = None

    def borrow(self, message: Message, out: Outcome) -> None:
        """`message.owner` lends us a message: give it to a consumer, or return it."""
        owner = message.owner or ""
        name = message.envelope.destination
        received = self._received.get(owner)
        if received is None:
            return
        received[name] = received.get(name, 0) + 1
        self._queues.touched[name] = None
        dot = message.dot
        if dot in self._queues.settled_here.get(owner, {}):
            out.peer_settled_after.setdefault(owner, []).append(dot)
            return
        queue = self._queues.get(name)
        if not queue.hand_out(message, out):
            out.peer_returns.setdefault(owner, []).append((message, False))
        self._queues.forget_if_idle(queue)

    def borrowed_from(self, peer: str) -> list[Dot]:
        """What `peer` must not give up for us: in flight to local consumers, or settled here and not known there."""
        in_flight = [d.message.dot for d in self._queues.deliveries.values() if d.message.owner == peer]
        return in_flight + list(self._queues.settled_here.get(peer, {}))

    def owner_has(self, peer: str, sequence: int) -> None:
        """`peer` holds our records up to `sequence`: our settles below it need not be remembered for it."""
        settled = self._queues.settled_here.get(peer)
        while settled:
            dot = next(iter(settled))
            if settled[dot] > sequence:
                return
            del settled[dot]

    def offers(self) -> list[tuple[str, str, int]]:
        """(peer, queue, limit) that the peers must be told now, because the free credit changed enough.

        Raises are told when half the share is new or the peer has run out, cuts only when nothing is free any more:
        an offer too high costs one return, an offer per message would cost a frame per message.
        """
        touched = self._queues.touched
        if not touched:
            return []
        self._queues.touched = {}
        if not self._received:
            return []
        told: list[tuple[str, str, int]] = []
        for name in touched:
            queue = self._queues.by_name.get(name)
            free = 0 if queue is None else queue.free
            share = -(-free // len(self._received)) if free else 0
            for peer, received in self._received.items():
                offered = self._offered[peer]
                limit = received.get(name, 0) + share
                before = offered.get(name, 0)
                left = before - received.get(name, 0)
                if (
                    limit == before
                    or (limit < before and free)
                    or (limit > before and left > 0 and limit - before < share / 2)
                ):
                    continue
                if limit:
                    offered[name] = limit
                else:
                    del offered[name]
                told.append((peer, name, limit))
        return told
