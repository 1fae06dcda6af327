"""Borrowing: consumers of this node get queue messages of other nodes; the other side of `lending` (docs/queues.md).

The free credit of local consumers is offered to every reachable owner in equal shares. If little is free, the shares
overlap, so a borrowed message may find no free consumer. It is then returned at once, and no client has seen it. So no
message waits while a consumer elsewhere has credit.

Both sides count what was ever lent over a link, per name of an offer. When a name has no consumer left, the borrower
withdraws it (limit -1). The owner takes back what it has not sent yet, forgets its count and reports that. Only then
does the borrower forget its own count, and it may offer the name again. So a queue that was used once leaves nothing
behind, and everything that is lent under a withdrawn name was lent before the withdrawal.

When an ordered message goes back, nothing that is on its way may be delivered before it. Then the borrower withdraws
the offer, and makes it again at once without credit. So the owner goes on counting with these consumers.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from qmq.broker.consumers.consumer_class import PLAIN, WITHDRAWN, asking_offer, offer_name, split_offer
from qmq.broker.consumers.outcome import Outcome, Return
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import Message
from qmq.broker.queues.queues import Queues
from qmq.broker.queues.state.context import is_ordered
from qmq.model.dots import Dot

ANY_QUEUE: Final = "/queue/any"
"""Any name: its withdrawal is answered in its turn, also where nothing was offered under it."""


class Borrowing:
    """What this node offers to borrow, and has borrowed. Offers have names: see `consumer_class.offer_name`."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        # Owners that can be reached -> offer -> messages received over the present link, and the limit last offered.
        self._received: dict[str, dict[str, int]] = {}
        self._offered: dict[str, dict[str, int]] = {}
        # Owners that can be reached -> queues about which they have been asked whether messages wait, and have not
        # said no.
        self._asked: dict[str, set[str]] = {}
        # Owners that can be reached -> offers that they have been asked to forget -> how many answers are to come.
        self._withdrawing: dict[str, dict[str, int]] = {}
        # Owners that have answered a withdrawal over the present link.
        self._answered: set[str] = set()
        # Queue -> names of offers for its special classes that some owner knows.
        self._special: dict[str, dict[str, None]] = {}

    def owner_connected(self, peer: str) -> None:
        """Our link to `peer` is up: from now on our free credit is offered to it too."""
        self.owner_lost(peer)
        self._received[peer] = {}
        self._offered[peer] = {}
        self._asked[peer] = set()
        self._withdrawing[peer] = {}

    def owner_lost(self, peer: str) -> None:
        """Our link to `peer` ended; what we borrowed stays with its consumers, and what they have not got is let go."""
        self._received.pop(peer, None)
        self._answered.discard(peer)
        self._asked.pop(peer, None)
        for name in list(self._queues.shared.waiting_elsewhere):
            self._waits_no_more(peer, name)
        for name in {**self._offered.pop(peer, {}), **self._withdrawing.pop(peer, {})}:
            self._forget_special(name)
        for name, queue in self._queues.by_name.items():
            if queue.subscriptions:
                self._queues.touched[name] = None
            if queue.selective is not None:
                queue.selective.ordered_buffer.drop(peer)

    def forgotten(self, peer: str, names: Iterable[str]) -> None:
        """`peer` knows nothing any more of these offers, which we had withdrawn."""
        withdrawing = self._withdrawing.get(peer, {})
        for name in names:
            if name in withdrawing:
                self._answered.add(peer)
                self._received[peer].pop(name, None)
                withdrawing[name] -= 1
                if withdrawing[name]:
                    continue
                del withdrawing[name]
                self._forget_special(name)
                # A consumer may have come meanwhile.
                self._queues.touched[split_offer(name)[0]] = None

    @property
    def is_withdrawing(self) -> bool:
        """Whether owners that can be reached may still lend us something under an offer that we have withdrawn."""
        return any(self._withdrawing.values())

    def confirm_returns(self) -> list[tuple[str, str, int]]:
        """One more withdrawal for each owner, to be sent like `offers`. What was returned before has arrived there once
        the owner has answered (`is_withdrawing`)."""
        for withdrawing in self._withdrawing.values():
            withdrawing[ANY_QUEUE] = 1
        return [(peer, ANY_QUEUE, WITHDRAWN) for peer in self._withdrawing]

    def waiting(self, peer: str, queues: Mapping[str, bool]) -> None:
        """`peer` says, where it was asked, whether messages wait there for plain consumers here."""
        if peer not in self._received:
            return
        elsewhere = self._queues.shared.waiting_elsewhere
        for name, is_waiting in queues.items():
            queue = self._queues.by_name.get(name)
            if not is_waiting or queue is None or name not in self._asked[peer]:
                self._waits_no_more(peer, name)
                continue
            elsewhere.setdefault(name, set()).add(peer)
            for subscription in queue.subscriptions:
                window = subscription.window
                if (
                    window is not None
                    and window.room <= 0
                    and subscription.free > 0
                    and window.turn is not subscription
                ):
                    queue.leave_line(subscription)
                    window.wait(subscription)

    def _waits_no_more(self, peer: str, name: str) -> None:
        """It has to be asked again. Nothing to do for the name of a class: only queues are asked about."""
        if split_offer(name)[1]:
            return
        owners = self._queues.shared.waiting_elsewhere.get(name)
        if owners is not None:
            owners.discard(peer)
            if not owners:
                del self._queues.shared.waiting_elsewhere[name]
        if peer in self._asked:
            self._asked[peer].discard(name)
        self._queues.touched[name] = None
        queue = self._queues.by_name.get(name)
        if queue is not None and self._queues.shared.turns:
            self._queues.shared.dirty_queues[name] = None

    def _forget_special(self, name: str) -> None:
        queue, of = split_offer(name)
        known = self._special.get(queue)
        if not of or known is None:
            return
        if not any(name in offers for offers in (*self._offered.values(), *self._withdrawing.values())):
            known.pop(name, None)
            if not known:
                del self._special[queue]

    def borrow(self, message: Message, out: Outcome) -> None:
        """`message.owner` lends us a message: give it to a consumer, or return it."""
        owner = message.owner or ""
        destination = message.envelope.destination
        received = self._received.get(owner)
        if received is None:
            return
        name = offer_name(destination, message.lent_as)
        received[name] = received.get(name, 0) + 1
        self._queues.touched[destination] = None
        if not message.lent_as and destination in self._asked[owner]:
            self._waits_no_more(owner, destination)
            self._queues.rounds.end_turns_of(destination)
        dot = message.dot
        if dot in self._queues.owned.settled_here.get(owner, {}):
            out.peer_settled_after.setdefault(owner, []).append(dot)
            return
        options = message.envelope.options
        if options is not None and options.is_timed and self._queues.shared.clocks.has_expired(message, out.now_us):
            out.peer_returns.setdefault(owner, []).append(Return(message, Back.UNSEEN, None))
            return
        queue = self._queues.get(destination)
        is_grouped = options is not None and bool(options.group)
        if queue.selective is None and not is_grouped and not message.lent_as:
            is_taken = queue.hand_out(message, out)
        else:
            selective = queue.pick()
            if is_grouped:
                selective.note_group()
            # While a name is withdrawn, an ordered message would overtake those that go back.
            is_withdrawn = name in self._withdrawing[owner] or self._queues.shared.is_withdrawn(message)
            is_late = is_withdrawn and is_ordered(message)
            is_taken = not is_late and selective.ordered_buffer.take(message, out)
        if not is_taken:
            self._queues.shared.return_to_owner(Return(message, Back.UNSEEN, None), out)
        self._queues.forget_if_idle(queue)

    def decline(self, message: Message, out: Outcome, *, is_stale: bool) -> None:
        """Have nothing to do with a loan: it goes back, unless its lender is no more the one that serves its owner."""
        server = message.owner or ""
        received = self._received.get(server)
        if received is None:
            return
        name = offer_name(message.envelope.destination, message.lent_as)
        received[name] = received.get(name, 0) + 1
        self._queues.touched[message.envelope.destination] = None
        if not is_stale:
            self._queues.shared.return_to_owner(Return(message, Back.UNSEEN, None), out)

    def borrowed_from(self, peer: str) -> list[Dot]:
        """What `peer` must not give up for us: with local consumers, or settled here and not known there."""
        held = [d.message.dot for d in self._queues.deliveries.values() if d.message.owner == peer]
        for queue in self._queues.by_name.values():
            if queue.selective is not None:
                held += [m.dot for m in queue.selective.ordered_buffer.messages() if m.owner == peer]
        return held + list(self._queues.owned.settled_here.get(peer, {}))

    def borrowed(self) -> list[Dot]:
        """As `borrowed_from`, of all peers together."""
        held: dict[str, list[Dot]] = {}
        messages = [delivery.message for delivery in self._queues.deliveries.values()]
        for queue in self._queues.by_name.values():
            if queue.selective is not None:
                messages += queue.selective.ordered_buffer.messages()
        for message in messages:
            if message.owner is not None:
                held.setdefault(message.owner, []).append(message.dot)
        for peer, settled in self._queues.owned.settled_here.items():
            held.setdefault(peer, []).extend(settled)
        return [dot for _, dots in sorted(held.items()) for dot in dots]

    def owner_has(self, peer: str, sequence: int) -> None:
        """`peer` holds our records up to `sequence`: our settles below it need not be remembered for it."""
        settled = self._queues.owned.settled_here.get(peer)
        while settled:
            dot = next(iter(settled))
            if settled[dot] > sequence:
                return
            del settled[dot]

    def offers(self) -> list[tuple[str, str, int]]:
        """(peer, offer, limit) to send to the peers now, because the free credit changed enough.

        A raise is sent when half the share is new or the peer has run out, a cut only when nothing is free any more.
        An offer that is too high costs one return; an offer per message would cost a frame per message.
        """
        touched = self._queues.touched
        if not touched:
            return []
        self._queues.touched = {}
        withdrawn = self._queues.shared.withdrawn
        if withdrawn:
            self._queues.shared.withdrawn = {}
        announced: list[tuple[str, str, int]] = []
        if not self._received:
            return announced
        for lender, queue_name, of in withdrawn:
            self._reset_offer(lender, queue_name, of, announced)
        for name in touched:
            queue = self._queues.by_name.get(name)
            selective = None if queue is None else queue.selective
            if selective is None:
                self._announce(name, queue.free if queue is not None and queue.subscriptions else None, announced)
                free = {}
            else:
                free = selective.free_by_class()
                self._announce(name, free.pop(PLAIN, None), announced, asks=selective.has_window)
                for of in free:
                    self._special.setdefault(name, {})[offer_name(name, of)] = None
            for special in list(self._special.get(name, ())):
                self._announce(special, free.get(split_offer(special)[1]), announced)
        return announced

    def _reset_offer(self, lender: str, queue_name: str, of: str, announced: list[tuple[str, str, int]]) -> None:
        """Withdraw an offer so that nothing more comes under it ("" as `lender`: from all), and offer 0 in its place if
        consumers of that class are here: their messages wait for them, and go to no other node meanwhile.
        """
        name = offer_name(queue_name, of)
        queue = self._queues.by_name.get(queue_name)
        are_here = queue is not None and any([s.lent_as == of and not s.closed for s in queue.subscriptions])
        for peer in [lender] if lender else list(self._received):
            offered = self._offered.get(peer)
            # What comes before the answer goes back anyway.
            if offered is None or name in self._withdrawing[peer] or offered.pop(name, None) is None:
                continue
            self._waits_no_more(peer, name)
            self._await_answer(peer, name)
            announced.append((peer, name, WITHDRAWN))
            # Before an owner has begun to lend, it may keep only the last offer of each name, and answer no withdrawal.
            if are_here and (self._received[peer] or peer in self._answered):
                offered[name] = 0
                announced.append((peer, name, 0))

    def _await_answer(self, peer: str, name: str) -> None:
        """One more withdrawal of this offer is about to be sent."""
        withdrawing = self._withdrawing[peer]
        withdrawing[name] = withdrawing.get(name, 0) + 1

    def _announce(
        self, name: str, free: int | None, announced: list[tuple[str, str, int]], *, asks: bool = False
    ) -> None:
        """Add what to send to each owner about one offer; `free` None: it is withdrawn. `asks`: consumers with a window
        must learn of messages for which they have no room, and whether a reserved place is used.
        """
        waiting = self._queues.shared.waiting_elsewhere.get(name, ()) if asks else ()
        share = -(-free // len(self._received)) if free and self._received else 0
        for peer, received in self._received.items():
            offered = self._offered[peer]
            if free is None:
                if offered.pop(name, None) is not None:
                    self._waits_no_more(peer, name)
                    self._await_answer(peer, name)
                    announced.append((peer, name, WITHDRAWN))
                continue
            if name in self._withdrawing[peer]:
                continue
            limit = received.get(name, 0) + share
            before = offered.get(name, 0)
            left = before - received.get(name, 0)
            # A new one is always sent: which exclusive consumer is first, and which one has a group, depends on
            # consumers without room, too.
            asks_now = asks and (not free or peer in waiting)
            if (
                not (asks_now and name not in self._asked[peer])
                and name in offered
                and (
                    limit == before
                    or (limit < before and free)
                    or (limit > before and left > 0 and limit - before < share / 2)
                )
            ):
                continue
            offered[name] = limit
            if asks_now:
                self._asked[peer].add(name)
            else:
                self._asked[peer].discard(name)
            announced.append((peer, name, asking_offer(limit) if asks_now else limit))
