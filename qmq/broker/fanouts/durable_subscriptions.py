"""Durable subscriptions of fanouts: which client has a name, what is in flight to it, and how its cursor moves.

A name has at most one subscription on a node at a time (an **attachment**), and a cursor that outlives it. The last one
to attach has the name. The one before, on this node or another, is ended with an error that names the new one. A name
belongs to the user that began it; rights are the gateway's business.

Nothing of a fanout waits here: the reader of the log offers message after message, and delivers what the credit
allows. The cursor moves when a message is settled. What moved is recorded once per Outcome, and every node learns it
from the journal.

A message is handed out with its **claims**: the ranges of sequences that are done when it is settled. They begin behind
what was looked at before it, so what a selector left out, or what is no message of this fanout, is done with it.

Surprising: a gap notice is handed out like a message, needs its ACK and claims what is missing; so it comes again when
the connection dies before it was read. And `redelivered` is set rather too often than too seldom:
after a crash no node knows what had been delivered, only how much of it there can have been.
"""

from collections.abc import Collection, Iterable
from itertools import count

from qmq.broker.consumers.outcome import Eviction, Outcome
from qmq.broker.consumers.subscription import (
    NOTHING_IN_FLIGHT,
    Attachment,
    Claim,
    Delivery,
    FanoutDelivery,
    StartAt,
    Subscription,
)
from qmq.broker.messages.message import Envelope, Message, Moved
from qmq.errors import Refused
from qmq.model.cursors import DELETIONS_MAX, Cursor, Move, Name, surplus_deletions
from qmq.model.dots import Dot, Origin, Vector, merge
from qmq.model.lost_ranges import LostRanges

FIRST_TAG = 1 << 56
"""Tags of queue deliveries count from 1 and never come so far."""


class DurableSubscriptions:
    """All durable subscriptions that this node knows of. `deliveries` is shared with the queues: tag → delivery."""

    def __init__(self, origin: Origin, deliveries: dict[int, Delivery], durables_max: int = 1000) -> None:
        self.by_name: dict[Name, Cursor] = {}
        self.attached: dict[Name, Attachment] = {}
        self.given_up: Vector = {}
        """Per origin, up to where this node will never get records that it lacks."""
        self.lost_ranges = LostRanges()
        """That, and what is nowhere any more: what readers get a gap notice of."""
        self._origin = origin
        self._deliveries = deliveries
        self.durables_max = durables_max
        """Of the whole mesh, used or not. Those that are there stay, also when it becomes less."""
        self._new_tag = count(FIRST_TAG).__next__

    # Names

    def check_attach(self, name: Name, session: int, *, may_create: bool = True) -> None:
        """Refuse what `attach` cannot do for that session. Nothing changes.

        `may_create`: a node that has just come back may not know what was made meanwhile, and would begin it again.
        """
        attachment = self.attached.get(name)
        if attachment is not None and attachment.subscription.session == session:
            raise Refused("durable-in-use", f"This connection uses the durable subscription {name.text} already.")
        if not self.is_begun(name):
            if not may_create:
                raise Refused("not-caught-up", "This node has just started and does not know that name yet: try again.")
            if sum(1 for known in self.by_name.values() if known.created_us) >= self.durables_max:
                most = self.durables_max
                raise Refused("too-many-durables", f"There are {most} durable subscriptions; UNSUBSCRIBE deletes one.")

    def is_begun(self, name: Name) -> bool:
        """Whether a subscription that attaches to `name` continues one."""
        cursor = self.by_name.get(name)
        return cursor is not None and cursor.created_us > 0

    def owner_of(self, name: Name) -> str:
        """The user that a name belongs to; "": there is none."""
        cursor = self.by_name.get(name)
        return "" if cursor is None or cursor.owner is None else cursor.owner[1]

    def attach(
        self, subscription: Subscription, name: Name, have: Vector, now_us: int, out: Outcome, user: str = ""
    ) -> None:
        """`subscription` of `user` has `name` from now on; where there was none, it begins as its `start` says.

        `have`: all that this node has now, for `next`. Call `check_attach` first, and end the attachment that is there.
        """
        assert name not in self.attached
        cursor = self.by_name.get(name)
        if cursor is None:
            cursor = self.by_name[name] = Cursor(name)
        is_new = not cursor.created_us
        if is_new:
            wanted = subscription.start
            found = wanted.before if isinstance(wanted, StartAt) else have if wanted == "next" else wanted
            start = dict(found) if isinstance(found, dict) else {}
            cursor.apply(Move(name, max(now_us, cursor.deleted_us + 1), cursor.deleted_us, start=start))
            is_new = not isinstance(wanted, dict)
        holder = cursor.new_holder(self._origin, now_us)
        attachment = Attachment(cursor, subscription, holder, is_new, user)
        if user and cursor.owner is None:
            cursor.owner = (max(now_us, cursor.created_us), user)
        self.attached[name] = attachment
        subscription.durable = attachment
        snapshot = cursor.snapshot(credit=subscription.credit, holder=holder)
        cursor.apply(snapshot)
        out.moves.append(snapshot)

    def detach(self, subscription: Subscription, out: Outcome) -> None:
        """The subscription ends; its name and cursor stay."""
        attachment = subscription.durable
        if attachment is None or self.attached.get(attachment.name) is not attachment:
            return
        del self.attached[attachment.name]
        out.freed.pop(attachment, None)
        out.moved.pop(attachment, None)
        for tag in subscription.in_flight:
            self._deliveries.pop(tag, None)
        subscription.in_flight = NOTHING_IN_FLIGHT
        subscription.message_ids = None
        attachment.again.clear()
        if attachment.cursor.created_us:
            move = attachment.moved()
            if attachment.cursor.holder == attachment.holder:
                move.delivered_up_to = attachment.handed_out()  # else the node that took over records it
            attachment.cursor.apply(move)
            out.moves.append(move)

    def find(self, destination: str | None, client: str, name: str) -> list[Name]:
        """The durable subscriptions that are called so; of any destination when that is None."""
        return [
            known
            for known, cursor in self.by_name.items()
            if known.client == client
            and known.name == name
            and destination in (None, known.destination)
            and cursor.created_us
        ]

    def delete(self, name: Name, now_us: int, out: Outcome) -> None:
        """Forget a name and its cursor, on every node. Raises Refused while a connection uses it."""
        if name in self.attached:
            raise Refused("durable-in-use", f"The durable subscription {name.text} is in use by another connection.")
        cursor = self.by_name[name]
        move = Move(name, 0, max(now_us, cursor.created_us))
        cursor.apply(move)
        out.moves.append(move)
        self._forget_deletions()

    def delete_all(self, destination: str, now_us: int, out: Outcome) -> None:
        """`delete` all of a fanout that is deleted, also those that are in use: the caller ends their subscriptions."""
        for name, cursor in list(self.by_name.items()):
            if name.destination == destination and cursor.created_us:
                move = Move(name, 0, max(now_us, cursor.created_us))
                cursor.apply(move)
                out.moves.append(move)
        self._forget_deletions()

    def accept(self, move: Move, out: Outcome) -> None:
        """A record of another node, or of a previous run of this one."""
        cursor = self.by_name.get(move.name)
        if cursor is None:
            cursor = self.by_name[move.name] = Cursor(move.name)
        attachment = self.attached.get(move.name)
        if attachment is None:
            cursor.apply(move)
            if not cursor.created_us:
                self._forget_deletions()
            return
        before, owner = cursor.start or {}, cursor.owner
        why: Refused | None = None
        if cursor.apply(move):
            why = Refused("durable-deleted", "The durable subscription was deleted on another node.")
        elif move.start is not None and any(move.start.get(origin, 0) < last for origin, last in before.items()):
            # What lies between was passed by. Only a new attachment looks at it.
            why = Refused("durable-merged", "Another node created this durable subscription earlier; connect again.")
        elif cursor.holder is not None and cursor.holder > attachment.holder:
            why = taken_over(move.name, f"node {cursor.holder[1].node}")
        elif cursor.owner != owner and cursor.owner is not None and cursor.owner[1] != attachment.user:
            why = Refused("not-allowed", "Another user began this durable subscription on another node earlier.")
        if why is not None:
            out.evictions.append(Eviction(attachment.subscription.session, why, attachment.subscription.id))

    def restore(self, cursors: dict[Name, Cursor], given_up: Vector, lost_ranges: LostRanges) -> None:
        """What the stores know at a start."""
        self.by_name.update(cursors)
        self._forget_deletions()
        self.lost_ranges = lost_ranges
        for origin, through in given_up.items():
            self.give_up(origin, through)

    def give_up(self, origin: Origin, through: int) -> None:
        """No node that can be reached has records of `origin` up to there that are not here."""
        merge(self.given_up, {origin: through})
        self.lost_ranges.add(origin, through)

    def forget_origins(self, forgotten: Collection[Origin]) -> None:
        """Nothing of these is left in the mesh, so no cursor needs to name them."""
        for cursor in self.by_name.values():
            cursor.forget_origins(forgotten)
        for origin in [origin for origin in self.given_up if origin in forgotten]:
            del self.given_up[origin]
        self.lost_ranges.forget(forgotten)

    def _forget_deletions(self) -> None:
        if len(self.by_name) > DELETIONS_MAX:
            for cursor in surplus_deletions(self.by_name.values()):
                del self.by_name[cursor.name]

    # Messages

    def hand_out(self, attachment: Attachment, message: Message) -> FanoutDelivery | None:
        """Hand out the next message of the log; None when it was before, or is done. Needs `free` credit.

        Messages of one origin are offered in order.
        """
        origin, sequence = message.origin, message.sequence
        reached = attachment.reached(origin)
        if sequence <= reached:
            return None
        attachment.delivered_up_to[origin] = sequence
        if attachment.cursor.is_done(origin, sequence):
            return None
        return self._hand(attachment, message, ((origin, reached, sequence),), attachment.is_redelivery(message))

    def gaps(self, attachment: Attachment, lost_ranges: Iterable[Dot]) -> list[Claim]:
        """What is missing for good of `lost_ranges` (per origin, how far it is lost), and was not looked at yet.

        It counts as looked at from now on. A new subscription begins behind it instead.
        """
        missing: list[Claim] = []
        for origin, through in lost_ranges:
            reached = attachment.reached(origin)
            if through <= reached:
                continue
            attachment.delivered_up_to[origin] = through
            lost = attachment.cursor.missing(origin, reached, through)
            if lost is None:
                continue
            if attachment.is_new:
                attachment.claim([(origin, reached, through)])
            else:
                missing.append((origin, lost[0] - 1, lost[1]))
        return missing

    def hand_out_gap(
        self, attachment: Attachment, notice: Envelope, claims: tuple[Claim, ...], number: int
    ) -> FanoutDelivery:
        """Hand out a notice of what is missing. `number` is a memory-only sequence of this node's origin."""
        message = Message(notice, b"", self._origin, -number, 0)
        return self._hand(attachment, message, claims, False)

    def hand_out_again(self, attachment: Attachment) -> list[FanoutDelivery]:
        """Hand out what the client refused, in its old order."""
        waiting, attachment.again = attachment.again, []
        return [self._hand(attachment, handed.message, handed.claims, True) for handed in waiting]

    def _hand(
        self, attachment: Attachment, message: Message, claims: tuple[Claim, ...], redelivered: bool
    ) -> FanoutDelivery:
        tag = self._new_tag()
        handed = FanoutDelivery(tag, attachment.subscription, message, claims, redelivered)
        attachment.subscription.hold(handed)
        self._deliveries[tag] = handed
        return handed

    def settle(self, deliveries: list[Delivery], out: Outcome) -> None:
        """These are done; all of one subscription. The record is made by `Broker.finish`."""
        for handed in self._take_back(deliveries, out):
            attachment = handed.subscription.durable
            assert attachment is not None, "only durable subscriptions are handed fanout messages"
            attachment.claim(handed.claims)
            out.moved[attachment] = None

    def give_back(self, deliveries: list[Delivery], out: Outcome) -> None:
        """The client refuses these; all of one subscription. They are handed out again when the server says so."""
        for handed in self._take_back(deliveries, out):
            attachment = handed.subscription.durable
            assert attachment is not None, "only durable subscriptions are handed fanout messages"
            attachment.again.append(handed)

    def _take_back(self, deliveries: list[Delivery], out: Outcome) -> list[FanoutDelivery]:
        taken: list[FanoutDelivery] = []
        for handed in deliveries:
            assert isinstance(handed, FanoutDelivery), "queue deliveries are settled by the queues"
            subscription = handed.subscription
            del subscription.in_flight[handed.tag]
            del self._deliveries[handed.tag]
            if subscription.message_ids is not None:
                subscription.message_ids.pop(handed.message.message_id, None)
            if subscription.durable is not None:
                out.freed[subscription.durable] = None
            taken.append(handed)
        return taken

    # Records

    def records(self, out: Outcome, sequence: int, now_us: int) -> list[Moved]:
        """What `out` did to cursors, as records from `sequence` on: one for each subscription that moved."""
        moves = [*out.moves, *(attachment.moved() for attachment in out.moved if attachment.cursor.created_us)]
        out.moves, out.moved = [], {}
        return [Moved(move, number, now_us) for number, move in enumerate(moves, sequence)]


def taken_over(name: Name, by: str) -> Refused:
    """Why a subscription of `name` ends when another one has come."""
    return Refused("durable-taken-over", f"The durable subscription {name.text} goes on at {by}.")
