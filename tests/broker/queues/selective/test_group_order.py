"""First deliveries of a group are in order, and no consumer starves behind it (docs/queues.md, "Message groups")."""

import pytest

from qmq.broker.consumers.consumer_class import WITHDRAWN, class_of, offer_name
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import Message
from qmq.broker.queues.selective.dispatcher import SelectiveDispatcher
from qmq.broker.queues.state.priority_level import PriorityLevel
from qmq.broker.selectors import compile_selector
from qmq.build import BUILD
from qmq.model.dots import Dot, Origin

from ...rig import JOBS, Client, Node, check_accounts, message_of

A = Origin("a", 1)
B = Origin("b", 1)
GROUP = b"JMSXGroupID:g\n"


def of_kind(kind: str) -> bytes:
    return GROUP + f"k:{kind}\n".encode()


def consumer(node: Node, kind: str = "", credit: int = 10) -> Client:
    client = node.client()
    client.subscribe(selector=f"k = '{kind}'" if kind else "", credit=credit)
    return client


def offer_of(kind: str) -> str:
    return offer_name(JOBS, class_of(compile_selector(f"k = '{kind}'"), 0))


def loan(number: int, owner: str = "b") -> Message:
    return message_of(Origin(owner, 1), number, b"%d" % number, owner=owner, headers=GROUP)


# On the node that accepted them


def test_group_waits_for_the_consumer_of_its_next_message_and_not_for_those_that_never_rest() -> None:
    node = Node()
    for number in range(100):
        node.send(b"a%d" % number, headers=of_kind("a"))
    node.send(b"for b", headers=of_kind("b"))
    for number in range(100):
        node.send(b"later a%d" % number, headers=of_kind("a"))
    first, second = consumer(node, "a", credit=2), consumer(node, "b")

    finished = 0
    while not second.bodies:
        first.ack(first.inbox[finished])
        finished += 1
        check_accounts(node)

    assert finished == 100 == len(first.bodies)
    second.ack_all()
    assert first.bodies[100:] == [b"later a0", b"later a1"]


def test_consumer_without_credit_holds_its_group_also_for_others() -> None:
    node = Node()
    busy, idle = consumer(node, "a", credit=1), consumer(node, "b")
    node.send(b"of no group", headers=b"k:a\n")

    node.send(b"1", headers=of_kind("a"))
    node.send(b"2", headers=of_kind("b"))

    assert (busy.bodies, idle.bodies) == ([b"of no group"], [])
    check_accounts(node)
    busy.ack_all()
    assert (busy.bodies, idle.bodies) == ([b"of no group", b"1"], [b"2"])


def test_message_that_no_consumer_matches_is_passed_over_and_is_the_next_when_one_comes() -> None:
    node = Node()
    first = consumer(node, "a", credit=1)
    for number, kind in enumerate("bababa"):
        node.send(b"%d" % number, headers=of_kind(kind))

    assert first.bodies == [b"1"]
    second = consumer(node, "b", credit=1)
    check_accounts(node)
    assert (first.bodies, second.bodies) == ([b"1"], [])
    first.ack_all()

    assert (first.bodies, second.bodies) == ([b"1"], [b"0"])
    second.ack_all()
    assert (first.bodies, second.bodies) == ([b"1", b"3"], [b"0", b"2"])


def test_group_goes_on_when_its_next_message_is_gone_or_has_failed() -> None:
    node = Node()
    busy, idle = consumer(node, "a", credit=1), consumer(node, "b")
    node.send(b"of no group", headers=b"k:a\n")
    for number, kind in enumerate("ab"):
        node.send(b"%d" % number, headers=of_kind(kind))
    waiting = node.queues.by_name[JOBS].ready[0]

    node.decide(lambda out: node.queues.redelivery.remove(waiting, None, out))

    assert idle.bodies == [b"1"]
    idle.nack(idle.inbox[0])
    node.send(b"2", headers=of_kind("b"))
    assert idle.bodies == [b"1", b"2"]
    check_accounts(node)
    assert busy.bodies == [b"of no group"]


def test_messages_of_a_group_with_a_lower_priority_wait_for_the_next_one() -> None:
    node = Node()
    busy, idle = consumer(node, "a", credit=1), consumer(node, "b")
    node.send(b"of no group", headers=b"k:a\n")

    node.send(b"high", headers=of_kind("a") + b"priority:9\n")
    node.send(b"low", headers=of_kind("b") + b"priority:1\n")

    assert idle.bodies == []
    busy.ack_all()
    check_accounts(node)
    assert (busy.bodies, idle.bodies) == ([b"of no group", b"high"], [b"low"])


def test_group_that_was_lent_is_not_followed_under_the_next_offer_of_the_same_name() -> None:
    node = Node()
    node.lending.borrower_connected("b")
    node.offer("b", 2)
    for number in range(1, 5):
        node.send(b"%d" % number, headers=GROUP)

    # Its consumer has left, and another one has come. The messages are still on their way back.
    node.offer("b", WITHDRAWN)
    node.offer("b", 9)

    assert [message.sequence for message in node.lending.lent["b"].values()] == [1, 2]
    returns = [(Dot(A, number), Back.UNSEEN, None) for number in (1, 2)]
    out = node.decide(lambda out: node.lending.returned("b", returns, out))
    assert [message.sequence for message in out.peer_deliveries["b"]] == [1, 2, 3, 4]
    check_accounts(node)


def test_group_waits_for_the_node_that_has_returned_some_of_it_and_offers_0_again() -> None:
    node = Node()
    for peer in "bc":
        node.lending.borrower_connected(peer)
        node.offer(peer, 9)
    node.send(b"1", headers=GROUP)
    (chosen,) = [peer for peer in "bc" if node.lending.lent.get(peer)]

    def reset_offer(out: Outcome) -> None:
        node.lending.offer(chosen, JOBS, WITHDRAWN, out)
        node.lending.offer(chosen, JOBS, 0, out)

    out = node.decide(reset_offer)
    assert out.peer_forgotten == {chosen: [JOBS]}
    out = node.decide(lambda out: node.lending.returned(chosen, [(Dot(A, 1), Back.UNSEEN, None)], out))
    node.send(b"2", headers=GROUP)

    assert out.peer_deliveries == {}
    assert node.ready() == [b"1", b"2"]
    assert [m.body for m in node.offer(chosen, 9).peer_deliveries[chosen]] == [b"1", b"2"]
    check_accounts(node)


def test_peers_consumer_gets_the_next_message_of_a_group_that_the_consumer_here_does_not_match() -> None:
    node = Node()
    node.lending.borrower_connected("b")
    here = consumer(node, "a")
    node.offer("b", 5, offer_of("b"))

    node.send(b"1", headers=of_kind("a"))
    node.send(b"2", headers=of_kind("b"))
    node.send(b"3", headers=of_kind("a"))
    assert (here.bodies, node.lending.lent["b"]) == ([b"1"], {})
    here.ack_all()

    assert [message.body for message in node.lending.lent["b"].values()] == [b"2"]
    assert here.bodies == [b"1"]
    node.decide(lambda out: node.lending.settled("b", [Dot(A, 2)]))
    assert here.bodies == [b"1", b"3"]


@pytest.mark.skipif(BUILD == "compiled", reason="counts calls within what is compiled")
def test_next_message_of_a_group_is_found_without_a_walk_through_all_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node()
    clients = [consumer(node, kind, credit=1) for kind in "ab"]
    for number in range(2000):
        node.send(headers=of_kind("ab"[number % 2]))
    looked = 0
    taker_of = SelectiveDispatcher._taker_of

    def counted(selective: SelectiveDispatcher, message: Message, level: PriorityLevel) -> object:
        nonlocal looked
        looked += 1
        return taker_of(selective, message, level)

    monkeypatch.setattr(SelectiveDispatcher, "_taker_of", counted)
    for number in range(100):
        clients[number % 2].ack(clients[number % 2].inbox[-1])

    assert sum(len(client.bodies) for client in clients) == 101
    assert looked < 4000, "once through all of it, and then from one to the next"


# On the node that borrows them


def test_what_comes_behind_a_loan_that_was_declined_goes_back_too() -> None:
    node = Node()
    node.borrowing.owner_connected("b")
    client = consumer(node)
    node.borrowing.offers()

    # As after a pause: only then the lender is known to serve still.
    node.decide(lambda out: node.borrowing.decline(loan(1), out, is_stale=False))
    out = node.borrow(loan(2))

    assert client.bodies == []
    assert [(message.sequence, why) for message, why, _ in out.peer_returns["b"]] == [(2, Back.UNSEEN)]
    assert node.borrowing.offers() == [("b", JOBS, WITHDRAWN), ("b", JOBS, 0)]


def test_offer_that_was_reset_is_raised_once_when_the_owner_has_forgotten_it() -> None:
    node = Node()
    node.borrowing.owner_connected("b")
    client = consumer(node)
    node.borrowing.offers()
    node.decide(lambda out: node.borrowing.decline(loan(1), out, is_stale=False))
    node.borrowing.offers()
    out = node.borrow(loan(2))
    assert [message.sequence for message, _, _ in out.peer_returns["b"]] == [2]
    assert node.borrowing.offers() == [], "what comes before the answer goes back without another withdrawal"

    node.decide(lambda out: node.borrowing.forgotten("b", [JOBS]))
    assert node.borrowing.offers() == [("b", JOBS, 10)]
    node.borrow(loan(1), loan(2))

    assert client.bodies == [b"1", b"2"]
    check_accounts(node)


def test_what_comes_together_with_the_answer_goes_back_before_the_offer_is_raised() -> None:
    node = Node()
    node.borrowing.owner_connected("b")
    consumer(node)
    node.borrowing.offers()
    node.decide(lambda out: node.borrowing.decline(loan(1), out, is_stale=False))
    node.borrowing.offers()

    def late(out: Outcome) -> None:
        node.borrowing.borrow(loan(2), out)
        node.borrowing.forgotten("b", [JOBS])

    # A link sends offers before returns.
    assert [message.sequence for message, _, _ in node.decide(late).peer_returns["b"]] == [2]
    assert node.borrowing.offers() == [("b", JOBS, WITHDRAWN), ("b", JOBS, 0)]
    node.decide(lambda out: node.borrowing.forgotten("b", [JOBS]))
    assert node.borrowing.offers() == [("b", JOBS, 10)]


def test_offer_that_was_withdrawn_twice_is_made_again_after_both_answers() -> None:
    node = Node()
    node.borrowing.owner_connected("b")
    client = consumer(node)
    node.borrowing.offers()
    node.decide(lambda out: node.borrowing.decline(loan(1), out, is_stale=False))
    node.borrowing.offers()
    client.leave()
    assert node.borrowing.offers() == [("b", JOBS, WITHDRAWN)]
    consumer(node)

    for expected in ([], [("b", JOBS, 10)]):
        assert node.borrowing.offers() == []
        node.decide(lambda out: node.borrowing.forgotten("b", [JOBS]))
        assert node.borrowing.offers() == expected
    assert not node.borrowing.is_withdrawing


def test_offer_is_only_withdrawn_from_an_owner_that_has_not_begun_to_lend() -> None:
    node = Node()
    node.borrowing.owner_connected("b")
    first = consumer(node)
    node.borrow(loan(1))
    node.borrowing.owner_connected("b")  # Its link has broken and begun again.
    consumer(node)
    assert node.borrowing.offers() == [("b", JOBS, 19)]

    first.leave()

    assert node.borrowing.offers() == [("b", JOBS, WITHDRAWN)]
    node.decide(lambda out: node.borrowing.forgotten("b", [JOBS]))
    assert node.borrowing.offers() == [("b", JOBS, 10)]


def test_what_comes_while_something_is_buffered_is_delivered_behind_it() -> None:
    node = Node()
    node.borrowing.owner_connected("b")
    client = consumer(node, credit=1)
    node.borrow(loan(1), loan(2))
    node.queues.held = True

    client.ack(client.inbox[0])
    node.borrow(loan(3))
    client.ack_all()

    assert client.bodies == [b"1", b"2", b"3"]
    check_accounts(node)


def test_messages_of_each_node_follow_their_own_to_one_consumer_whatever_others_have_of_the_group() -> None:
    node = Node()
    for owner in ("b", "c"):
        node.borrowing.owner_connected(owner)
    node.lending.borrower_connected("c")
    node.offer("c", 9)
    node.send(b"own", headers=GROUP)
    first = consumer(node, credit=1)
    node.borrow(loan(1), loan(2))
    holder = first

    others = [consumer(node, credit=9) for _ in range(5)]
    node.borrowing.offers()
    node.decide(lambda out: node.borrowing.forgotten("b", [JOBS]))
    node.borrow(loan(3))

    assert [client.bodies for client in others] == [[]] * 5
    holder.ack_all()
    assert holder.bodies[-3:] == [b"1", b"2", b"3"]
    check_accounts(node)


def test_consumer_that_comes_gets_a_borrowed_group_that_would_be_its_own_when_that_is_free() -> None:
    node = Node()
    node.borrowing.owner_connected("b")
    first = consumer(node)
    node.borrowing.offers()
    node.borrow(*(message_of(B, n, b"%d" % n, owner="b", headers=b"JMSXGroupID:g%d\n" % n) for n in range(1, 9)))

    consumer(node)

    assert len(first.bodies) == 8
    assert node.borrowing.offers() == [("b", JOBS, WITHDRAWN), ("b", JOBS, 0)]
