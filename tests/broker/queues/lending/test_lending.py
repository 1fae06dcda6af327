import pytest

from qmq.broker.consumers.consumer_class import WITHDRAWN
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Ack
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import Message
from qmq.broker.queues.lending.borrowing import ANY_QUEUE
from qmq.broker.queues.selective.consumers import BUFFERED_MAX
from qmq.model.dots import Dot, Origin

from ...rig import JOBS, Client, Node, check_accounts, check_empty, message_of

A = Origin("a", 1)
B = Origin("b", 1)
C = Origin("c", 1)
SETTLE = Dot(B, 100)
"""The record with which b settled something."""


def owner(*bodies: bytes, durable: bool = True) -> Node:
    """Node a with messages, connected to its borrower b."""
    node = Node("a")
    for body in bodies:
        node.send(body, durable=durable)
    node.lending.borrower_connected("b")
    return node


def borrower(*owners: str) -> Node:
    """Node a that can borrow from `owners`."""
    node = Node("a")
    for name in owners or ("b",):
        node.borrowing.owner_connected(name)
    return node


def lent_to(node: Node, peer: str = "b") -> list[bytes]:
    return [message.body for message in node.lending.lent.get(peer, {}).values()]


def dots(*sequences: int) -> list[Dot]:
    return [Dot(A, sequence) for sequence in sequences]


# Owner's side


def test_peer_gets_as_many_messages_as_it_offered_credit_for() -> None:
    node = owner(b"1", b"2", b"3")

    out = node.offer("b", 2)

    assert [message.body for message in out.peer_deliveries["b"]] == [b"1", b"2"]
    assert node.ready() == [b"3"]
    assert node.depth() == 3
    check_accounts(node)


def test_limit_counts_what_was_ever_lent_over_the_link() -> None:
    node = owner(b"1", b"2", b"3")
    node.offer("b", 1)
    node.lending.settled("b", dots(1))

    assert not node.offer("b", 1).peer_deliveries
    assert [m.body for m in node.offer("b", 2).peer_deliveries["b"]] == [b"2"]
    check_accounts(node)


def test_new_message_goes_to_a_peer_with_credit_at_once() -> None:
    node = owner()
    node.offer("b", 1)

    assert [m.body for m in node.send(b"1").peer_deliveries["b"]] == [b"1"]
    assert not node.send(b"2").peer_deliveries


def test_credit_of_a_peer_that_is_not_connected_is_ignored() -> None:
    node = Node()
    node.send(b"1")

    assert not node.offer("b", 5).peer_deliveries
    check_accounts(node)


def test_cut_limit_stops_lending() -> None:
    node = owner()
    node.offer("b", 5)
    node.offer("b", 0)

    assert not node.send(b"1").peer_deliveries
    check_accounts(node)


def test_lent_message_that_its_peer_settled_is_gone() -> None:
    node = owner(b"1")
    node.offer("b", 1)

    node.lending.settled("b", dots(1))

    assert node.settled_dots() == []
    node.offer("b", WITHDRAWN)
    check_empty(node)


@pytest.mark.parametrize("first", ["nudge", "journal"])
def test_settle_counts_once_by_nudge_and_journal_in_either_order(first: str) -> None:
    node = owner(b"1", b"2")
    node.offer("b", 2)
    ways = {
        "nudge": lambda: node.lending.settled("b", dots(1)),
        "journal": lambda: node.broker.accept_settles(JOBS, dots(1), {A: 2}, SETTLE),
    }

    ways.pop(first)()
    assert node.depth() == 1
    assert lent_to(node) == [b"2"]
    ways.popitem()[1]()

    assert node.depth() == 1
    check_accounts(node)


def test_settled_message_is_not_lent_for_ever_when_the_nudge_is_lost() -> None:
    node = owner(b"1")
    node.offer("b", 1)

    node.lending.borrower_lost("b")
    node.broker.accept_settles(JOBS, dots(1), {A: 1}, SETTLE)

    check_empty(node)


def test_settle_by_a_peer_that_does_not_have_the_message_is_ignored() -> None:
    node = owner(b"1", b"2")
    node.offer("b", 1)

    node.lending.settled("c", dots(1))
    node.lending.settled("b", dots(2))
    node.lending.settled("b", [Dot(B, 1)])

    assert node.depth() == 2
    check_accounts(node)


def test_returned_message_goes_to_the_head_and_counts_as_an_attempt_only_when_seen() -> None:
    node = owner(b"1", b"2", b"3")
    node.offer("b", 2)

    node.decide(
        lambda out: node.lending.returned("b", [(Dot(A, 1), Back.UNSEEN, None), (Dot(A, 2), Back.RELEASED, None)], out)
    )

    assert node.ready() == [b"1", b"2", b"3"]
    client = node.client()
    client.subscribe()
    assert client.attempts == [0, 1, 0]
    check_accounts(node)


def test_messages_returned_one_by_one_keep_their_order() -> None:
    node = owner(b"1", b"2", b"3")
    node.offer("b", 3)

    for sequence in (1, 2, 3):
        node.decide(lambda out: node.lending.returned("b", [(Dot(A, sequence), Back.UNSEEN, None)], out))  # noqa: B023

    assert node.ready() == [b"1", b"2", b"3"]


def test_message_returned_twice_or_by_a_stranger_stands_in_line_once() -> None:
    node = owner(b"1")
    node.offer("b", 1)

    for peer in ("c", "b", "b"):
        node.decide(lambda out: node.lending.returned(peer, [(Dot(A, 1), Back.RELEASED, None)], out))  # noqa: B023

    assert node.ready() == [b"1"]
    check_accounts(node)


def test_returned_message_that_was_settled_meanwhile_stays_gone() -> None:
    node = owner(b"1")
    node.offer("b", 1)
    node.broker.accept_settles(JOBS, dots(1), {A: 1}, SETTLE)

    node.decide(lambda out: node.lending.returned("b", [(Dot(A, 1), Back.RELEASED, None)], out))

    node.offer("b", WITHDRAWN)
    check_empty(node)


def test_returned_message_goes_to_an_idle_consumer_here() -> None:
    node = owner(b"1")
    node.offer("b", 1)
    client = node.client()
    client.subscribe()

    node.decide(lambda out: node.lending.returned("b", [(Dot(A, 1), Back.UNSEEN, None)], out))

    assert client.bodies == [b"1"]


def test_lost_link_kills_credit_and_leaves_lent_messages_lent() -> None:
    node = owner(b"1", b"2")
    node.offer("b", 1)

    node.lending.borrower_lost("b")

    assert lent_to(node) == [b"1"]
    assert node.ready() == [b"2"]
    assert not node.send(b"3").peer_deliveries
    check_accounts(node)


def test_credit_starts_again_with_a_new_link() -> None:
    node = owner(b"1", b"2", b"3")
    node.offer("b", 2)

    node.lending.borrower_connected("b")

    assert not node.decide(lambda out: node.queues.dispatch(node.queues.get(JOBS), out)).peer_deliveries
    assert [m.body for m in node.offer("b", 1).peer_deliveries["b"]] == [b"3"]
    check_accounts(node)


def test_given_up_messages_return_and_the_others_stay_lent() -> None:
    node = owner(b"1", b"2", b"3")
    node.offer("b", 3)
    node.lending.borrower_lost("b")
    taken_back: list[int] = []

    node.decide(lambda out: taken_back.append(node.lending.give_up("b", dots(1, 3), out)))

    assert taken_back == [2]
    assert node.ready() == [b"1", b"3"]
    assert lent_to(node) == [b"2"]
    check_accounts(node)


def test_peer_that_was_given_up_can_still_settle_by_the_journal() -> None:
    node = owner(b"1")
    node.offer("b", 1)
    node.decide(lambda out: node.lending.give_up("b", dots(1), out))
    client = node.client()
    client.subscribe()

    node.lending.settled("b", dots(1))
    assert node.depth() == 1
    node.broker.accept_settles(JOBS, dots(1), {A: 1}, SETTLE)
    client.leave()
    node.offer("b", WITHDRAWN)

    check_empty(node)


def test_memory_only_message_is_lent_settled_and_returned_like_any_other() -> None:
    node = owner(b"1", b"2", durable=False)
    node.offer("b", 2)
    first, second = Dot(A, -1), Dot(A, -2)

    node.lending.settled("b", [first])
    node.decide(lambda out: node.lending.returned("b", [(second, Back.RELEASED, None)], out))

    assert node.ready() == [b"2"]
    assert node.depth() == 1
    check_accounts(node)


def test_links_that_come_and_go_leave_no_peers_in_line() -> None:
    node = owner()
    client = node.client()
    client.subscribe()

    for _ in range(100):
        node.lending.borrower_connected("b")
        node.offer("b", 5)
    assert len(node.queues.by_name[JOBS].peers_in_line) == 1
    node.lending.borrower_lost("b")

    assert not node.queues.by_name[JOBS].peers_in_line
    client.leave()
    check_empty(node)


def test_queues_of_consumers_that_left_a_peer_are_forgotten_while_its_link_is_up() -> None:
    node = owner()

    for number in range(100):
        name = f"/queue/reply-{number}"
        node.offer("b", 1, name)
        node.send(b"1", name)
        node.lending.settled("b", [Dot(A, number + 1)])
        node.offer("b", 2, name)
        out = node.offer("b", WITHDRAWN, name)
        assert out.peer_forgotten == {"b": [name]}

    check_empty(node)
    assert not any(node.lending._borrowing.values())


def test_credit_of_an_empty_queue_goes_on_counting() -> None:
    node = owner(b"1")
    node.offer("b", 1)
    node.lending.settled("b", dots(1))
    node.send(b"2")
    node.send(b"3")

    out = node.offer("b", 2)

    assert [m.body for m in out.peer_deliveries["b"]] == [b"2"]
    assert node.ready() == [b"3"]
    check_accounts(node)


def test_a_node_that_is_about_to_end_lends_nothing_more_and_still_answers_withdrawals() -> None:
    node = owner(b"1", b"2", b"3")
    node.offer("b", 1)

    node.lending.cease()
    later = node.offer("b", 3)
    back = node.offer("b", WITHDRAWN)

    assert not later.peer_deliveries
    assert back.peer_forgotten == {"b": [JOBS]}
    assert (lent_to(node), node.ready()) == ([b"1"], [b"2", b"3"])
    check_accounts(node)


def test_what_a_linked_peer_has_is_waited_for_until_it_is_settled() -> None:
    node = owner(b"1")
    node.offer("b", 1)
    assert node.lending.is_lending

    node.lending.settled("b", dots(1))

    assert not node.lending.is_lending


def test_what_a_peer_without_a_link_has_is_not_waited_for() -> None:
    node = owner(b"1")
    node.offer("b", 1)

    node.lending.borrower_lost("b")

    assert (lent_to(node), node.lending.is_lending) == ([b"1"], False)


# Borrower's side


def borrowed(sequence: int, body: bytes = b"m", origin: Origin = B) -> Message:
    return message_of(origin, sequence, body, owner=origin.node)


def test_free_credit_is_offered_to_every_owner_in_equal_shares() -> None:
    node = borrower("b", "c")
    node.client().subscribe(credit=10)

    assert node.borrowing.offers() == [("b", JOBS, 5), ("c", JOBS, 5)]
    assert node.borrowing.offers() == []


def test_little_credit_is_offered_to_all() -> None:
    node = borrower("b", "c")
    node.client().subscribe(credit=1)

    assert node.borrowing.offers() == [("b", JOBS, 1), ("c", JOBS, 1)]


def test_credit_is_offered_to_an_owner_that_connects_later() -> None:
    node = Node()
    node.client().subscribe(credit=4)
    assert node.borrowing.offers() == []

    node.borrowing.owner_connected("b")

    assert node.borrowing.offers() == [("b", JOBS, 4)]


def test_a_class_is_offered_nothing_while_much_waits_for_one_of_its_consumers() -> None:
    node = borrower()
    clients = node.client(), node.client()
    for client in clients:
        client.subscribe(credit=1)
    loans = [message_of(B, n, owner="b", headers=b"message_group:g") for n in range(1, BUFFERED_MAX + 2)]

    node.borrow(*loans[:-1])
    assert node.borrowing.offers() == [("b", JOBS, BUFFERED_MAX + 1)]
    node.borrow(loans[-1])
    assert node.borrowing.offers() == []  # one has no room, 20 wait for it, and the other has room

    (busy,) = [client for client in clients if client.inbox]
    busy.ack_all()
    assert node.borrowing.offers() == [("b", JOBS, BUFFERED_MAX + 3)]
    check_accounts(node)


def test_nothing_is_offered_for_queues_without_consumers() -> None:
    node = borrower()
    client = node.client()
    client.subscribe()
    client.leave()

    assert node.borrowing.offers() == []


def test_offer_is_withdrawn_when_the_last_consumer_leaves() -> None:
    node = borrower()
    client = node.client()
    client.subscribe(credit=4)
    assert node.borrowing.offers() == [("b", JOBS, 4)]

    client.leave()

    assert node.borrowing.offers() == [("b", JOBS, WITHDRAWN)]


def test_an_owner_may_lend_until_it_has_answered_the_withdrawal() -> None:
    node = borrower()
    client = node.client()
    client.subscribe(credit=4)
    node.borrowing.offers()
    client.leave()
    node.borrowing.offers()
    assert node.borrowing.is_withdrawing

    node.borrowing.forgotten("b", [JOBS])

    assert not node.borrowing.is_withdrawing


def test_each_owner_can_be_asked_to_confirm_what_was_returned() -> None:
    node = borrower("b", "c")

    assert node.borrowing.confirm_returns() == [("b", ANY_QUEUE, WITHDRAWN), ("c", ANY_QUEUE, WITHDRAWN)]

    node.borrowing.forgotten("b", [ANY_QUEUE])
    assert node.borrowing.is_withdrawing
    node.borrowing.forgotten("c", [ANY_QUEUE])
    assert not node.borrowing.is_withdrawing
    assert node.borrowing.offers() == []


def test_offer_is_raised_when_half_of_it_is_used_and_free_again() -> None:
    node = borrower()
    client = node.client()
    client.subscribe(credit=4)
    node.borrowing.offers()

    node.borrow(borrowed(1))
    client.ack_all()
    assert node.borrowing.offers() == []
    node.borrow(borrowed(2))
    client.ack_all()

    assert node.borrowing.offers() == [("b", JOBS, 6)]


class Pair:
    """Node b borrows from node a; what one tells the other arrives at once, in order."""

    def __init__(self) -> None:
        self.a, self.b = Node("a"), Node("b")
        self.a.lending.borrower_connected("b")
        self.b.borrowing.owner_connected("a")
        self.frames: list[str] = []
        self.lost = False

    def tell(self) -> None:
        """Exchange until neither has anything to say."""
        while True:
            before = len(self.frames)
            for _, name, limit in self.b.borrowing.offers():
                self.frames.append(f"credit {limit}")
                self._told_b(self.a.offer("b", limit, name))
            if len(self.frames) == before:
                return

    def send(self, body: bytes = b"m", destination: str = JOBS, headers: bytes = b"") -> None:
        self._told_b(self.a.send(body, destination, headers=headers))

    def _told_b(self, out: Outcome) -> None:
        """What a decision of a means for b, and what b answers."""
        if not self.lost:
            lent = [borrowed_copy(message) for message in out.peer_deliveries.get("b", ())]
            if lent:
                self.frames.append("lend")
                self.told_a(self.b.borrow(*lent))
        if names := out.peer_forgotten.get("b"):
            self.frames.append("forgotten")
            self.told_a(self.b.decide(lambda out: self.b.borrowing.forgotten("a", names)))

    def told_a(self, out: Outcome) -> None:
        """What a decision of b means for a."""
        self.tell()
        for told in (out.peer_settled_now, out.peer_settled_after):
            if dots := told.get("a"):
                self._told_b(self.a.decide(lambda out: self.a.lending.settled("b", dots)))  # noqa: B023
        if returns := out.peer_returns.get("a"):
            self.frames.append("returned")
            back = [(message.dot, why, asks) for message, why, asks in returns]
            self._told_b(self.a.decide(lambda out: self.a.lending.returned("b", back, out)))

    def ack(self, client: Client) -> None:
        for delivery in [d for d in client.inbox if d.tag in self.b.queues.deliveries]:
            self.told_a(client.ack(delivery))


def borrowed_copy(message: Message) -> Message:
    copy = Message(message.envelope, message.body, message.origin, message.sequence, message.timestamp_us)
    copy.owner, copy.attempts, copy.lent_as = "a", message.attempts, message.lent_as
    return copy


def test_ten_thousand_queues_that_a_peer_used_once_leave_nothing_on_either_side() -> None:
    """Each reply queue of a busy service lives for one message; a link may last for months."""
    pair = Pair()
    client = pair.b.client()

    for number in range(10_000):
        name = f"/queue/reply-{number}"
        client.subscribe(name, credit=1)
        pair.tell()
        pair.send(b"1", name)
        pair.ack(client)
        client.unsubscribe()
        pair.tell()
        client.inbox.clear()

    check_empty(pair.a)
    assert not any(pair.a.lending._borrowing.values())
    b = pair.b.borrowing
    assert not any((*b._received.values(), *b._offered.values(), *b._withdrawing.values(), *b._special.values()))
    assert not pair.b.queues.by_name


def test_withdrawn_offer_is_not_made_again_before_the_owner_has_forgotten_it() -> None:
    node = borrower()
    client = node.client()
    client.subscribe(credit=4)
    node.borrowing.offers()
    node.borrow(borrowed(1))
    client.unsubscribe()
    assert node.borrowing.offers() == [("b", JOBS, WITHDRAWN)]

    client.subscribe(credit=4)
    assert node.borrowing.offers() == []
    node.decide(lambda out: node.borrowing.forgotten("b", [JOBS]))

    assert node.borrowing.offers() == [("b", JOBS, 4)]


def test_what_was_on_its_way_when_an_offer_was_withdrawn_goes_back_unseen() -> None:
    node = borrower()
    client = node.client()
    client.subscribe(credit=4)
    node.borrowing.offers()
    client.unsubscribe()
    node.borrowing.offers()

    out = node.borrow(borrowed(1, b"1"))

    assert [(m.body, why) for m, why, _ in out.peer_returns["b"]] == [(b"1", Back.UNSEEN)]
    assert node.borrowing.offers() == []


def test_owner_that_forgets_twice_or_unasked_changes_nothing() -> None:
    node = borrower()
    node.client().subscribe(credit=4)
    node.borrowing.offers()
    node.borrow(borrowed(1))

    node.decide(lambda out: node.borrowing.forgotten("b", [JOBS]))
    node.decide(lambda out: node.borrowing.forgotten("c", [JOBS]))

    assert node.borrowing._received["b"] == {JOBS: 1}


def test_withdrawing_what_was_never_offered_is_answered_too() -> None:
    out = owner().offer("b", WITHDRAWN)

    assert out.peer_forgotten == {"b": [JOBS]}
    assert out.needs_commit, "what was lent before is told before"


def test_full_consumer_on_a_peer_costs_a_few_frames_and_not_one_more_for_every_message() -> None:
    pair = Pair()
    client = pair.b.client()
    client.subscribe(credit=2)
    pair.tell()
    # Taken by messages of b's own, of which a knows nothing.
    pair.b.send(b"own")
    pair.b.send(b"own")

    for _ in range(50):
        pair.send()

    assert pair.frames == ["credit 2", "lend", "credit 1", "returned"]
    assert len(pair.a.ready()) == 50
    check_accounts(pair.a)


def test_owner_that_used_all_its_credit_is_offered_the_last_free_place() -> None:
    node = borrower()
    client = node.client()
    client.subscribe(credit=10)
    node.borrowing.offers()
    node.borrow(*(borrowed(n) for n in range(1, 11)))
    assert node.borrowing.offers() == []

    client.ack(client.inbox[0])

    assert node.borrowing.offers() == [("b", JOBS, 11)]


def test_share_of_a_lost_owner_goes_to_the_others() -> None:
    node = borrower("b", "c")
    node.client().subscribe(credit=10)
    node.borrowing.offers()

    node.borrowing.owner_lost("b")

    assert node.borrowing.offers() == [("c", JOBS, 10)]


def test_offers_do_not_look_at_every_consumer() -> None:
    node = borrower()
    for _ in range(3):
        node.client().subscribe(credit=5)
    node.borrowing.offers()
    queue = node.queues.by_name[JOBS]
    queue.subscriptions, kept = queue.subscriptions[:1], queue.subscriptions

    node.queues.touched[JOBS] = None
    node.borrowing.owner_connected("c")
    offers = node.borrowing.offers()
    queue.subscriptions = kept

    assert ("c", JOBS, 8) in offers


def test_borrowed_message_goes_to_a_consumer() -> None:
    node = borrower()
    client = node.client()
    client.subscribe()

    out = node.borrow(borrowed(1, b"1"))

    assert client.bodies == [b"1"]
    assert not out.needs_commit
    assert node.borrowing.borrowed_from("b") == [Dot(B, 1)]
    check_accounts(node)


def test_settle_of_a_borrowed_message_is_recorded_before_it_is_sent_to_the_owner() -> None:
    node = borrower()
    client = node.client()
    client.subscribe()
    node.borrow(borrowed(1))

    out = client.ack(client.inbox[0])

    assert node.settled_dots() == [Dot(B, 1)]
    assert out.peer_settled_after == {"b": [Dot(B, 1)]}
    assert not out.peer_settled_now
    assert out.needs_commit


def test_settle_of_a_borrowed_memory_only_message_is_sent_without_a_record() -> None:
    node = borrower()
    client = node.client()
    client.subscribe()
    node.borrow(borrowed(-1))

    out = client.ack(client.inbox[0])

    assert out.peer_settled_now == {"b": [Dot(B, -1)]}
    assert not out.needs_commit


@pytest.mark.parametrize("verb", ["nack", "leave", "unsubscribe"])
def test_borrowed_message_that_its_client_gives_back_returns_to_its_owner_with_the_reason(verb: str) -> None:
    node = borrower()
    client = node.client()
    client.subscribe()
    node.borrow(borrowed(1))

    if verb == "nack":
        out = client.nack(client.inbox[0])
    else:
        out = client.leave() if verb == "leave" else client.unsubscribe()

    reasons = {"nack": Back.FAILED, "leave": Back.RELEASED, "unsubscribe": Back.LEFT}
    assert [(m.dot, why) for m, why, _ in out.peer_returns["b"]] == [(Dot(B, 1), reasons[verb])]
    assert node.depth() == 0
    assert node.borrowing.borrowed_from("b") == []
    check_accounts(node)


def test_borrowed_message_without_a_free_consumer_is_returned_unseen() -> None:
    node = borrower()
    client = node.client()
    client.subscribe(credit=1)
    node.borrow(borrowed(1))

    out = node.borrow(borrowed(2))

    assert [(m.dot, why) for m, why, _ in out.peer_returns["b"]] == [(Dot(B, 2), Back.UNSEEN)]
    assert client.bodies == [b"m"]
    check_accounts(node)


def test_borrowed_message_without_any_consumer_leaves_no_queue_behind() -> None:
    node = borrower()

    out = node.borrow(borrowed(1))

    assert len(out.peer_returns["b"]) == 1
    check_empty(node)


def test_message_lent_over_a_link_that_is_gone_is_dropped() -> None:
    node = borrower()
    client = node.client()
    client.subscribe()
    node.borrowing.owner_lost("b")

    out = node.borrow(borrowed(1))

    assert client.bodies == []
    assert not out.peer_returns


def test_message_over_the_offer_costs_one_return_and_the_next_offer_is_right() -> None:
    node = borrower("b", "c")
    client = node.client()
    client.subscribe(credit=1)
    assert node.borrowing.offers() == [("b", JOBS, 1), ("c", JOBS, 1)]
    node.borrow(borrowed(1))
    assert node.borrowing.offers() == [("c", JOBS, 0)]

    out = node.borrow(borrowed(1, origin=C))
    assert len(out.peer_returns["c"]) == 1
    assert node.borrowing.offers() == [("c", JOBS, 1)]
    client.ack_all()

    assert node.borrowing.offers() == [("b", JOBS, 2), ("c", JOBS, 2)]


def test_message_settled_here_that_its_owner_lends_again_is_settled_again_and_not_delivered() -> None:
    node = borrower()
    client = node.client()
    client.subscribe()
    node.borrow(borrowed(1))
    client.ack_all()
    node.borrowing.owner_lost("b")
    node.borrowing.owner_connected("b")

    out = node.borrow(borrowed(1))

    assert len(client.inbox) == 1
    assert out.peer_settled_after == {"b": [Dot(B, 1)]}
    assert node.settled_dots() == [Dot(B, 1)]


def test_owner_learns_on_reconnect_what_is_in_flight_or_settled_here_without_its_knowledge() -> None:
    node = borrower("b", "c")
    client = node.client()
    client.subscribe()
    node.borrow(borrowed(1), borrowed(2), borrowed(1, origin=C))
    client.ack(client.inbox[0])
    node.borrowing.owner_lost("b")

    assert sorted(node.borrowing.borrowed_from("b")) == [Dot(B, 1), Dot(B, 2)]
    assert node.borrowing.borrowed_from("c") == [Dot(C, 1)]


def test_settles_are_remembered_until_their_owner_has_the_record() -> None:
    node = borrower()
    client = node.client()
    client.subscribe()
    node.borrow(borrowed(1), borrowed(2))
    client.ack(client.inbox[0])
    client.ack(client.inbox[1])

    node.borrowing.owner_has("b", 1)
    assert list(node.queues.owned.settled_here["b"]) == [Dot(B, 2)]
    node.borrowing.owner_has("b", 2)
    client.leave()

    check_empty(node)


def test_borrowed_messages_may_be_handed_out_while_own_ones_are_held() -> None:
    node = borrower()
    node.queues.held = True
    node.queues.intake.restore(message_of(A, 1, b"own"))
    client = node.client()
    client.subscribe(credit=1)

    node.borrow(borrowed(1, b"theirs"))

    assert client.bodies == [b"theirs"]


def test_own_message_comes_before_a_borrowed_one_when_a_consumer_has_one_place() -> None:
    node = borrower()
    client = node.client()
    client.subscribe(credit=1, ack=Ack.CLIENT)
    node.borrow(borrowed(1, b"theirs"))
    node.send(b"own")

    client.ack(client.inbox[0])

    assert client.bodies == [b"theirs", b"own"]
    check_accounts(node)


def test_offers_start_again_when_an_owner_connects_again_before_its_old_link_was_missed() -> None:
    node = borrower()
    node.client().subscribe(credit=4)
    node.borrowing.offers()

    node.borrowing.owner_connected("b")

    assert node.borrowing.offers() == [("b", JOBS, 4)]


def test_a_consumer_that_was_busy_when_the_node_began_to_serve_gets_what_the_store_has() -> None:
    node = borrower("b")
    node.queues.owned.has_stored = True
    node.queues.held = True
    client = node.client()
    client.subscribe(credit=1)
    node.borrow(message_of(B, 1, owner="b"))
    out = node.decide(node.queues.release_hold)
    assert out.loads == []

    out = client.ack(client.inbox[0])

    assert list(out.loads) == [JOBS]
