"""Seeded bugs of queues that several nodes work on: lending, settles, returns."""

from collections.abc import Iterator
from unittest.mock import patch

from qmq.broker.consumers.outcome import Outcome, Return
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import Message
from qmq.broker.queues.dispatch.queue import Queue
from qmq.broker.queues.lending.borrowing import Borrowing
from qmq.broker.queues.lending.lending import Lending
from qmq.broker.queues.selective.group_choice import GroupChoice
from qmq.broker.queues.state.context import QueueContext
from qmq.model.dots import Dot, Vector
from qmq.replication.links.serving_side import ServingSide
from qmq.storage.checkpoints.compaction import Compaction
from tests.simulation.plan import Family
from tests.simulation.plants.registry import ANY_CALL, seeded_bug


@seeded_bug(Family.ALL, "I13")
def loans_never_taken_back() -> Iterator[None]:
    """What a borrower lost with its link is never taken back by its owner."""

    def take_back(serving: ServingSide, have: Vector, out: Outcome, *, late: bool = False) -> int:
        return 0

    with patch.object(ServingSide, "take_back", take_back):
        yield


@seeded_bug(Family.ALL, "I1", "I13", seed=1)
def settled_by_borrower() -> Iterator[None]:
    """A node that borrows a message settles it at once, before a consumer has seen it."""
    borrow = Borrowing.borrow

    def borrow_and_settle(borrowing: Borrowing, message: Message, out: Outcome) -> None:
        borrow(borrowing, message, out)
        borrowing._queues.settlement._settle_borrowed(message, out)

    with patch.object(Borrowing, "borrow", borrow_and_settle):
        yield


@seeded_bug(Family.NONE, "I23", seed=8, nodes=0)
def full_consumers_not_offered() -> Iterator[None]:
    """A class of consumers is offered when it has room for the first time, and unknown to the peers before."""
    real = Borrowing._announce

    def announce_with_room(
        borrowing: Borrowing, name: str, free: int | None, found: list[tuple[str, str, int]], *, asks: bool = False
    ) -> None:
        if free != 0 or any(name in offered for offered in borrowing._offered.values()):
            real(borrowing, name, free, found, asks=asks)

    with patch.object(Borrowing, "_announce", announce_with_room):
        yield


@seeded_bug(Family.NONE, "I23", found_by="tests/broker/queues/selective/test_dispatcher.py")
def groups_never_move() -> Iterator[None]:
    """While messages of a group are out its consumer gets more of them, although the group should move."""
    real = GroupChoice.holder_of

    def holder_of(groups: GroupChoice, group: bytes, message: Message) -> object:
        held = groups._outstanding.groups.get(group)
        if held is not None:
            held.epoch = groups._outstanding.epoch
        return real(groups, group, message)

    with patch.object(GroupChoice, "holder_of", holder_of):
        yield


@seeded_bug(Family.CUTS, "I27", seed=7)
def returned_loans_overtaken() -> Iterator[None]:
    """A node that returns a message of a group, which no client has seen, goes on with later ones."""

    def return_to_owner(shared: QueueContext, returned: Return, out: Outcome) -> None:
        out.peer_returns.setdefault(returned.message.owner or "", []).append(returned)

    with patch.object(QueueContext, "return_to_owner", return_to_owner):
        yield


@seeded_bug(Family.CRASHES, "I7", found_by=ANY_CALL)
def settles_forgotten_by_recovery() -> Iterator[None]:
    """A node that comes back knows its messages and not what was settled of them. Peers make that good."""

    def settle(reduction: Compaction, queue: str, dots: list[Dot]) -> None:
        reduction.changes += len(dots)

    with patch.object(Compaction, "_settle", settle):
        yield


@seeded_bug(Family.ALL, "I1", "I13", seed=1)
def returned_messages_dropped() -> Iterator[None]:
    """What a peer returns is no longer lent and put nowhere."""

    def returned(lending: Lending, peer: str, returns: list[tuple[Dot, Back, object]], out: Outcome) -> None:
        for dot, _, _ in returns:
            lending.lent.get(peer, {}).pop(dot, None)

    with patch.object(Lending, "returned", returned):
        yield


@seeded_bug(Family.ALL, "I13", "I21")
def credit_leaks() -> Iterator[None]:
    """What a message took of a peer's credit does not come back: an offer never rises."""
    offer = Lending.offer

    def offer_once(lending: Lending, peer: str, name: str, limit: int, out: Outcome) -> None:
        known = lending._borrowing.get(peer, {}).get(name)
        offer(lending, peer, name, limit if known is None or limit < 0 else min(limit, known.limit), out)

    with patch.object(Lending, "offer", offer_once):
        yield


@seeded_bug(Family.NONE, "I7")
def lent_messages_stay_ready() -> Iterator[None]:
    """A message that is lent stays in the line of its owner, too."""
    lend = Queue._lend

    def lend_and_keep(queue: Queue, message: Message, out: Outcome) -> bool:
        return lend(queue, message, out) and not queue.subscriptions

    with patch.object(Queue, "_lend", lend_and_keep):
        yield
