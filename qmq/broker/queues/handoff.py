"""Hand-off of the queue messages of one node from one serving node to another, in memory: on the node that takes over,
on the one that stops serving, and on nodes whose consumers have some of the messages.

`qmq.broker.takeover` decides which node serves; this module carries that out. No message is sent between nodes, because
every queue store has the rows of all nodes. The node that takes over begins to read the owner's rows, and the other one
drops what it has of them. Records that arrive from the journal while the store is brought up to date are buffered
(`gather`). Messages that consumers elsewhere have count as lent to them. So neither kind is delivered a second time.

Surprising: memory-only messages (`persistent:false`) stay with the node that accepted them, because no other node has
them.
"""

from collections.abc import Iterable, Mapping
from heapq import heapify
from typing import Final

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Delivery
from qmq.broker.messages.message import Message
from qmq.broker.queues.dispatch.queue import Queue
from qmq.broker.queues.dispatch.registry import QueueRegistry
from qmq.broker.queues.intake import Intake
from qmq.broker.queues.paging.pager import Pager
from qmq.broker.queues.settlement import Settlement
from qmq.broker.queues.state.served_messages import Gathered
from qmq.model.dots import Dot

DEAD_LETTERS_WAIT_US: Final = 30_000_000
"""After a takeover, what expires of the owner's messages is not delivered, and not dead-lettered yet. The owner may
have written the dead letter, and delivered it, before any node had the record. When it is back after a pause, the
record is here, and there is one dead letter."""


class Handoff:
    """`serves` names the nodes whose messages this node hands out, itself included as a rule."""

    def __init__(self, registry: QueueRegistry, paging: Pager, intake: Intake, settlement: Settlement) -> None:
        self._registry = registry
        self._owned = registry.owned
        self._paging = paging
        self._intake = intake
        self._settlement = settlement
        self.arriving: set[str] = set()
        """Owners that are about to be served; some of them `gathering`."""
        self.lent_before: dict[str, set[Dot]] = {}
        """Peer → what it was lent before the term in which this node serves, until it has said what of that it holds.
        What is back is none of it any more: it may be lent to the same peer again, in the new term."""

    # Taking over

    def expect(self, owner: str) -> None:
        """From now on remember what peers say that they hold of `owner`, and what they give back or settle."""
        self.arriving.add(owner)

    def gather(self, owner: str) -> None:
        """From now on keep aside what comes of `owner`; the store will be brought up to this moment at least."""
        self._owned.gathering[owner] = Gathered()

    def abandon(self, owner: str) -> None:
        """The takeover has failed: forget what was kept aside."""
        self.arriving.discard(owner)
        self._owned.gathering.pop(owner, None)
        self._owned.forget_elsewhere(owner)

    def hold_elsewhere(self, peer: str, dots: Iterable[Dot]) -> None:
        """Consumers of `peer` have these. What was handed out to others meanwhile stays with both."""
        for dot in dots:
            if dot.origin.node not in self._owned.serves and dot.origin.node not in self.arriving:
                continue
            message = self._owned.by_origin.get(dot.origin, {}).get(dot.sequence)
            if message is None:
                self._owned.elsewhere[dot] = peer
            elif self._registry.get(message.envelope.destination).take_out(message):
                self._registry.count_as_lent(message, peer)

    def hold_only(self, peer: str, owner: str, dots: Iterable[Dot]) -> None:
        """Of what is not in memory of `owner`, consumers of `peer` have these and no others."""
        for dot in self.held_by(peer):
            if dot.origin.node == owner:
                del self._owned.elsewhere[dot]
        self.hold_elsewhere(peer, dots)

    def not_with(self, peer: str, dot: Dot) -> None:
        """Consumers of `peer` do not have this any more."""
        if self._owned.elsewhere.get(dot) == peer:
            del self._owned.elsewhere[dot]

    def came_back(self, peer: str, dot: Dot) -> None:
        """Whatever `peer` says of an earlier term, it is not about this any more."""
        before = self.lent_before.get(peer)
        if before is not None:
            before.discard(dot)
            if not before:
                del self.lent_before[peer]

    def held_by(self, peer: str) -> list[Dot]:
        """What is not in memory and with consumers of `peer`."""
        return [dot for dot, there in self._owned.elsewhere.items() if there == peer]

    def with_peers(self, owner: str) -> dict[str, list[Dot]]:
        """Peer → what it has of `owner`'s messages, as far as this node knows, which has served them."""
        found: dict[str, list[Dot]] = {}
        for peer, lent in self._owned.lent.items():
            found.setdefault(peer, []).extend(dot for dot in lent if dot.origin.node == owner and dot.sequence > 0)
        for dot, peer in self._owned.elsewhere.items():
            if dot.origin.node == owner:
                found.setdefault(peer, []).append(dot)
        return {peer: dots for peer, dots in found.items() if dots}

    def restart(self, owner: str) -> None:
        """This node goes on to serve `owner`, in a new term. What peers have was lent in the old one, which is over for
        those that have not left yet (`ServingSide._is_lent`)."""
        owned = self._owned
        for lent in owned.lent.values():
            for dot, message in list(lent.items()):
                if dot.origin.node == owner and dot.sequence > 0:
                    lent[dot] = owned.by_origin[dot.origin][dot.sequence] = message.copy()
                    selective = self._registry.get(message.envelope.destination).selective
                    if selective is not None:
                        # Those that have not left come back; none of their groups may go before them.
                        selective.outstanding.offer_ends(message)
        self.was_lent_before(owner, self.with_peers(owner))

    def was_lent_before(self, owner: str, dots: Mapping[str, Iterable[Dot]]) -> None:
        """This is what each peer has of `owner` from before the present term."""
        self.forget_before(owner)
        for peer, its in dots.items():
            self.lent_before.setdefault(peer, set()).update(its)

    def take_before(self, peer: str, owner: str) -> list[Dot]:
        """What `peer` was lent of `owner` before the present term; it says now what of that it holds."""
        before = [dot for dot in self.lent_before.get(peer, ()) if dot.origin.node == owner]
        for dot in before:
            self.came_back(peer, dot)
        return sorted(before)

    def forget_before(self, owner: str) -> None:
        """The server of `owner` is decided again."""
        for peer in list(self.lent_before):
            self.take_before(peer, owner)

    def adopt(self, owner: str, tombstones: Iterable[Dot], out: Outcome) -> None:
        """Hand out the messages of `owner` from now on. Its rows are in the store, no load of a page is under way.

        `tombstones` are settles that the store has met before their messages.
        """
        registry, owned = self._registry, self._owned
        gathered = self._owned.gathering.pop(owner, None) or Gathered()
        self.arriving.discard(owner)
        self._owned.serves.add(owner)
        registry.shared.clocks.serve(owner)
        if owner != registry.node:
            owned.dead_letters_from_us[owner] = out.now_us + DEAD_LETTERS_WAIT_US
        registry.serves_own = registry.node in self._owned.serves
        if owner == registry.node:
            self._paging.served_elsewhere()
        owned.has_stored = True
        owned.settled_early.update(dot for dot in tombstones if dot.origin.node == owner)
        self._adopt_deliveries(owner)
        for queue in list(registry.by_name.values()):
            self._drop_buffered(queue, owner)
            _reread(queue)
        for queue_name, dot, record in gathered.settles:
            self._settled_meanwhile(queue_name, dot, record)
        for message in gathered.messages:
            if not self._paging.pending_deletes.has(message.envelope.destination, message.dot):
                self._paging.recall_attempts(message)
                self._intake.take_in(message, out)
        for queue in list(registry.by_name.values()):
            registry.dispatch(queue, out)
            registry.forget_if_idle(queue)

    def rows_changed(self, out: Outcome) -> None:
        """The store has got rows back, or lost some: every queue is read again. No load of a page is under way."""
        registry, owned = self._registry, self._owned
        owned.has_stored = True
        for queue in list(registry.by_name.values()):
            _reread(queue)
            registry.dispatch(queue, out)
            registry.forget_if_idle(queue)

    def _adopt_deliveries(self, owner: str) -> None:
        """What was borrowed and is with consumers here is served here now."""
        registry, owned = self._registry, self._owned
        for delivery in self.in_hand(owner):
            message = delivery.message
            owned.in_hand.pop(message.dot, None)
            if message.owner is not None and not message.settled:
                queue = registry.get(delivery.subscription.destination)
                message.owner = None
                queue.placed += 1
                message.place = queue.placed
                owned.by_origin[message.origin][message.sequence] = message
                queue.held += 1
                queue.held_bytes += len(message.body)
                if queue.selective is not None:
                    queue.selective.outstanding.finished(delivery)
                    queue.selective.outstanding.given(delivery)

    def _settled_meanwhile(self, queue_name: str, dot: Dot, record: Dot | None) -> None:
        owned = self._owned
        if record is None:
            # Settled by a consumer here while it was borrowed: our own record says so.
            for settled in owned.settled_here.values():
                if dot in settled:
                    record = Dot(self._paging.origin, settled[dot])
        self._settlement.settled_elsewhere(queue_name, dot, dot.sequence, record)

    # Ceasing to serve

    def cede(self, owner: str, server: str) -> list[Dot]:
        """`server` hands out the messages of `owner` from now on. Returns those that consumers here still have."""
        self.abandon(owner)
        registry, owned = self._registry, self._owned
        if owner in self._owned.serves:
            self._owned.serves.discard(owner)
            owned.dead_letters_from_us.pop(owner, None)
            registry.shared.clocks.cease(owner)
            registry.serves_own = registry.node in self._owned.serves
            out_of_line = self._lent_of(owner)
            # In one turn: a queue that keeps its messages for longer could deliver what `server` delivers.
            for queue in list(registry.by_name.values()):
                waited = registry.isolated_mode.give_up(queue.name, owner)
                _forget_messages(queue, owner, [*waited, *out_of_line.get(queue.name, ())])
            for origin in [origin for origin in owned.by_origin if origin.node == owner]:
                del owned.by_origin[origin]
            owned.settled_early = {dot for dot in owned.settled_early if dot.origin.node != owner}
        held = self._pass_on(owner, server)
        for queue in list(registry.by_name.values()):
            self._drop_buffered(queue, owner)
            registry.forget_if_idle(queue)
        return held

    def _lent_of(self, owner: str) -> dict[str, list[Message]]:
        """What peers have of `owner`, by queue; it counts as lent no more."""
        found: dict[str, list[Message]] = {}
        for lent in self._owned.lent.values():
            for dot in [dot for dot in lent if dot.origin.node == owner and dot.sequence > 0]:
                message = lent.pop(dot)
                found.setdefault(message.envelope.destination, []).append(message)
        return found

    def _pass_on(self, owner: str, server: str) -> list[Dot]:
        """Send settles and returns of what is with consumers here to `server`."""
        owned = self._owned
        held: list[Dot] = []
        for delivery in self.in_hand(owner):
            delivery.message.owner = server
            held.append(delivery.message.dot)
            if not delivery.message.settled:
                owned.in_hand[delivery.message.dot] = delivery.message
        settled = owned.settled_here.setdefault(server, {})
        for peer, dots in owned.settled_here.items():
            if peer != server:
                for dot in [dot for dot in dots if dot.origin.node == owner]:
                    settled[dot] = dots.pop(dot)
        return held + [dot for dot in settled if dot.origin.node == owner]

    def in_hand(self, owner: str) -> list[Delivery]:
        """Durable queue messages of `owner` with consumers here. What durable subscriptions have is of no queue."""
        return [
            delivery
            for delivery in self._registry.deliveries.values()
            if delivery.message.origin.node == owner
            and delivery.message.sequence > 0
            and delivery.subscription.durable is None
        ]

    def _drop_buffered(self, queue: Queue, owner: str) -> None:
        """No client has seen what waits for a full consumer: its server delivers it again."""
        if queue.selective is not None:
            queue.selective.ordered_buffer.drop_of(owner)


def _forget_messages(queue: Queue, owner: str, out_of_line: Iterable[Message]) -> None:
    """Take everything of `owner` out of `queue`, which then reads the store again. `out_of_line`: what of it is lent,
    or has waited for a consumer, and stands in no line.
    """

    def stays(message: Message) -> bool:
        return message.origin.node != owner or message.sequence < 0 or message.settled

    removed = [message for level in queue.levels for message in (*level.ready, *(level.tail or ()))]
    removed += [entry[2] for entry in queue.delayed or ()]
    removed += out_of_line
    removed += [one.message for one in queue.in_flight() if one.message.owner is None]
    for message in [message for message in removed if not stays(message)]:
        queue.held -= 1
        queue.held_bytes -= len(message.body)
        if queue.selective is not None:
            queue.selective.not_lent(message)
    for level in queue.levels:
        level.keep_only(stays)
    if queue.delayed is not None:
        queue.delayed = [entry for entry in queue.delayed if stays(entry[2])] or None
        heapify(queue.delayed or [])
    _reread(queue)


def _reread(queue: Queue) -> None:
    """The store may have other rows for this queue than before: count and read them from the beginning."""
    if queue.selective is not None:
        queue.selective.poll_again()
    queue.is_counted = False
    queue.stored = queue.stored_bytes = queue.stored_due_us = 0
    for level in queue.levels:
        level.rewind()
