"""Which consumer may get which message of a queue: selectors, groups, exclusive consumers and windows, on one node."""

from collections.abc import Mapping

import pytest

from qmq.broker.consumers.connection_prefetch import ConnectionPrefetch
from qmq.broker.consumers.consumer_class import WITHDRAWN, asking_offer, class_of, offer_name
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Subscription
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import Message
from qmq.broker.messages.rules import QueueRules
from qmq.broker.queues.selective.dispatcher import LOOKED_MAX
from qmq.broker.queues.selective.group_choice import rendezvous
from qmq.broker.queues.selective.selector_paging import COST_SHARE
from qmq.broker.queues.state.priority_level import PriorityLevel
from qmq.broker.selectors import Selector
from qmq.build import BUILD
from qmq.model.dots import Dot, Origin

from ...rig import JOBS, SECOND_US, Client, Node, check_accounts, message_of

A = Origin("a", 1)
B = Origin("b", 1)
RED = b"color:red\n"
BLUE = b"color:blue\n"
MORE = "/queue/more"


def group(name: str) -> bytes:
    return f"JMSXGroupID:{name}\n".encode()


def consumer(node: Node, **asks: object) -> Client:
    client = node.client()
    client.subscribe(**asks)  # type: ignore[arg-type]
    return client


def borrow(node: Node, sequence: int, body: bytes, *, headers: bytes = b"", lent_as: str = "") -> None:
    message = message_of(B, sequence, body, owner="b", headers=headers)
    message.lent_as = lent_as
    node.borrow(message)


# Selectors


def test_message_goes_to_the_next_in_line_that_wants_it() -> None:
    node = Node()
    red = consumer(node, selector="color = 'red'")
    anything = consumer(node)

    for body, headers in ((b"1", BLUE), (b"2", RED), (b"3", RED), (b"4", b"")):
        node.send(body, headers=headers)

    assert sorted(red.bodies + anything.bodies) == [b"1", b"2", b"3", b"4"]
    assert set(red.bodies) <= {b"2", b"3"} and red.bodies
    check_accounts(node)


@pytest.mark.skipif(BUILD == "compiled", reason="counts calls within what is compiled")
def test_one_dispatch_asks_costly_selectors_only_so_much_and_the_next_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node()
    for number in range(300):
        node.send(b"%d" % number, headers=b"t:%d\n" % number)
    node.send(b"last", headers=b"t:a1a2a\n")
    asked: list[Selector] = []
    matches = Selector.matches

    def counted(selector: Selector, properties: Mapping[str, str]) -> bool:
        asked.append(selector)
        return matches(selector, properties)

    monkeypatch.setattr(Selector, "matches", counted)

    picky = consumer(node, selector=" OR ".join(["t LIKE '%a_a_a%'"] * 40))
    first = len(asked)
    turns = 0
    while not picky.bodies:
        turns += 1
        node.later(1)

    # One dispatch when it joins, and one when all have been asked whose turn it is.
    assert first * asked[0].cost < 2 * (LOOKED_MAX * COST_SHARE + asked[0].cost)
    assert turns > 1 and picky.bodies == [b"last"]
    assert len(asked) == 301


@pytest.mark.skipif(BUILD == "compiled", reason="counts calls within what is compiled")
def test_consumers_without_room_that_a_group_asks_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    for number in range(50):
        node.send(b"taken", headers=b"t:full\n")
        consumer(node, selector=f"t = 'full' OR t = 'other {number}'", credit=1)
    for number in range(500):
        node.send(b"%d" % number, headers=b"t:%d\nmessage_group:g%d\n" % (number, number))
    asked = 0
    matches = Selector.matches

    def counted(selector: Selector, properties: Mapping[str, str]) -> bool:
        nonlocal asked
        asked += 1
        return matches(selector, properties)

    monkeypatch.setattr(Selector, "matches", counted)

    consumer(node, selector="t = 'none'")

    assert 50 < asked <= 4 * LOOKED_MAX  # for the group, whether any wants it, and in line


def test_message_that_no_consumer_wants_stays_and_others_go_past_it() -> None:
    node = Node()
    node.send(b"1", headers=BLUE)
    node.send(b"2", headers=RED)
    red = consumer(node, selector="color = 'red'")
    node.send(b"3", headers=RED)

    assert red.bodies == [b"2", b"3"]
    assert node.ready() == [b"1"]
    assert consumer(node).bodies == [b"1"]
    check_accounts(node)


def test_message_that_comes_back_goes_to_another_that_wants_it() -> None:
    node = Node()
    first = consumer(node, selector="color = 'red'")
    node.send(b"1", headers=RED)
    blue, second = consumer(node, selector="color = 'blue'"), consumer(node, selector="color = 'red'")

    first.leave()

    assert (second.bodies, second.attempts, blue.bodies) == ([b"1"], [1], [])
    check_accounts(node)


def test_consumer_sees_each_unwanted_message_once_and_not_again_for_every_ack() -> None:
    node = Node()
    for _ in range(500):
        node.send(b"blue", headers=BLUE)
    red = consumer(node, selector="color = 'red'", credit=1)
    selective = node.queues.by_name[JOBS].selective
    assert selective is not None
    looked: list[Message] = []
    taker_of = selective._taker_of

    class Counting:
        def __call__(self, message: Message, level: PriorityLevel) -> object:
            looked.append(message)
            return taker_of(message, level)

    for _ in range(20):
        for _ in range(10):
            node.send(b"blue", headers=BLUE)
        node.send(b"red", headers=RED)
    type(selective)._taker_of, kept = Counting(), type(selective)._taker_of  # type: ignore[method-assign,assignment]
    try:
        red.ack_all()
    finally:
        type(selective)._taker_of = kept  # type: ignore[method-assign]

    assert len(red.bodies) == 20
    assert len(looked) <= 250


def test_ready_messages_beyond_the_bound_of_one_look_are_looked_at_when_time_goes_on() -> None:
    node = Node()
    for _ in range(5000):
        node.send(b"blue", headers=BLUE, durable=False)
    node.send(b"red", headers=RED)

    red = consumer(node, selector="color = 'red'")
    looks = 0
    while not red.bodies:
        node.later(0)
        looks += 1

    assert 1 <= looks <= 3
    check_accounts(node)


def test_peer_borrows_only_what_its_consumers_want() -> None:
    node = Node()
    node.lending.borrower_connected("b")
    node.offer("b", 5, f"{JOBS}\0color = 'red'\x000")

    node.send(b"1", headers=BLUE)
    out = node.send(b"2", headers=RED)

    assert [(m.body, m.lent_as) for m in out.peer_deliveries["b"]] == [(b"2", "color = 'red'\x000")]
    assert node.ready() == [b"1"]
    check_accounts(node)


def test_classes_of_consumers_are_offered_apart_and_withdrawn_apart() -> None:
    node = Node()
    node.borrowing.owner_connected("b")
    red, plain = consumer(node, selector="color = 'red'", credit=4), consumer(node, credit=3)
    name = f"{JOBS}\0color = 'red'\x000"

    assert sorted(node.borrowing.offers()) == [("b", JOBS, 3), ("b", name, 4)]
    red.leave()
    assert node.borrowing.offers() == [("b", name, WITHDRAWN)]
    plain.leave()
    assert node.borrowing.offers() == [("b", JOBS, WITHDRAWN)]
    node.decide(lambda out: node.borrowing.forgotten("b", [name, JOBS]))
    assert not node.borrowing._special
    assert not node.queues.by_name


def test_borrowed_message_goes_to_the_class_that_it_was_lent_to() -> None:
    node = Node()
    node.borrowing.owner_connected("b")
    plain, red = consumer(node), consumer(node, selector="color = 'red'")

    borrow(node, 1, b"1", headers=RED, lent_as="color = 'red'\x000")
    borrow(node, 2, b"2", headers=RED)

    assert (plain.bodies, red.bodies) == ([b"2"], [b"1"])
    check_accounts(node)


def test_queue_is_plain_again_when_its_picky_consumers_have_left() -> None:
    node = Node()
    consumer(node)
    red = consumer(node, selector="color = 'red'")
    assert node.queues.by_name[JOBS].selective is not None

    red.leave()

    assert node.queues.by_name[JOBS].selective is None
    check_accounts(node)


# Exclusive consumers


def test_exclusive_consumer_gets_everything_and_others_stand_by() -> None:
    node = Node()
    plain = consumer(node)
    first, second = consumer(node, exclusive=True, credit=2), consumer(node, exclusive=True)

    for body in (b"1", b"2", b"3"):
        node.send(body)

    assert (plain.bodies, first.bodies, second.bodies) == ([], [b"1", b"2"], [])
    assert node.ready() == [b"3"]
    check_accounts(node)


def test_next_exclusive_consumer_begins_with_what_the_first_had_in_flight() -> None:
    node = Node()
    first, second = consumer(node, exclusive=True, credit=2), consumer(node, exclusive=True)
    for body in (b"1", b"2", b"3"):
        node.send(body)

    first.leave()

    assert second.bodies == [b"1", b"2", b"3"]
    assert second.attempts == [1, 1, 0]
    check_accounts(node)


def test_exclusive_consumer_waits_for_what_others_had_before_it() -> None:
    node = Node()
    plain = consumer(node, credit=1)
    node.send(b"1")
    node.send(b"2")

    exclusive = consumer(node, exclusive=True)
    assert exclusive.bodies == []
    plain.ack_all()

    assert (plain.bodies, exclusive.bodies) == ([b"1"], [b"2"])
    check_accounts(node)


def test_policy_makes_every_consumer_exclusive() -> None:
    node = Node(rules=QueueRules(exclusive=True))
    first, second = consumer(node), consumer(node)

    node.send(b"1")
    node.send(b"2")

    assert (first.bodies, second.bodies) == ([b"1", b"2"], [])
    check_accounts(node)


@pytest.mark.parametrize(("since_us", "who"), [(1, "peer"), (10**15, "here")])
def test_consumer_that_began_first_is_the_one_wherever_it_is(since_us: int, who: str) -> None:
    node = Node()
    node.lending.borrower_connected("b")
    here = consumer(node, exclusive=True)
    node.offer("b", 5, f"{JOBS}\0\0{since_us}")

    out = node.send(b"1")

    assert here.bodies == ([b"1"] if who == "here" else [])
    assert bool(out.peer_deliveries) == (who == "peer")
    check_accounts(node)


def test_standby_on_this_node_begins_when_the_peers_consumer_is_gone_and_nothing_is_with_it() -> None:
    node = Node()
    node.lending.borrower_connected("b")
    name = f"{JOBS}\0\0001"
    node.offer("b", 1, name)
    node.send(b"1")
    node.send(b"2")
    here = consumer(node, exclusive=True)

    node.offer("b", WITHDRAWN, name)
    assert here.bodies == []
    node.decide(lambda out: node.lending.returned("b", [(Dot(A, 1), Back.RELEASED, None)], out))

    assert here.bodies == [b"1", b"2"]
    check_accounts(node)


def test_only_the_first_of_the_exclusive_consumers_here_has_credit_and_peers_know_all() -> None:
    node = Node()
    node.borrowing.owner_connected("b")
    first = consumer(node, exclusive=True, credit=4)
    node.now_us += 1
    consumer(node, exclusive=True, credit=7)
    consumer(node, credit=9)
    first_name, second_name = f"{JOBS}\0\x001000000", f"{JOBS}\0\x001000001"

    assert sorted(node.borrowing.offers()) == [("b", JOBS, 0), ("b", first_name, 4), ("b", second_name, 0)]
    first.leave()

    assert node.borrowing.offers() == [("b", first_name, WITHDRAWN), ("b", second_name, 7)]


def test_exclusive_consumer_whose_loan_of_one_owner_is_declined_stays_known_to_the_others() -> None:
    node = Node()
    for owner in ("b", "c"):
        node.borrowing.owner_connected(owner)
    consumer(node, exclusive=True, credit=4)
    class_name = class_of(None, 1000000)
    node.borrowing.offers()
    loan = message_of(B, 1, owner="b")
    loan.lent_as = class_name

    # As after a pause: only then the lender is known to serve still.
    node.decide(lambda out: node.borrowing.decline(loan, out, is_stale=False))
    withdrawn = node.borrowing.offers()

    assert ("b", offer_name(JOBS, class_name), WITHDRAWN) in withdrawn
    assert node.borrowing.offers() == []


def test_exclusive_consumer_that_is_full_with_messages_of_its_node_is_known_to_the_other_owners() -> None:
    here, there = Node("a"), Node("b")
    here.borrowing.owner_connected("b")
    there.lending.borrower_connected("a")
    for _ in range(5):
        here.send()
    busy = consumer(here, exclusive=True, credit=2)
    there.now_us = here.now_us + SECOND_US
    later = consumer(there, exclusive=True)

    offer_all(here, there)
    there.send(b"of b")

    assert (len(busy.bodies), later.bodies) == (2, [])
    assert there.ready() == [b"of b"]
    check_accounts(there)
    busy.ack_all()
    assert lent_by(offer_all(here, there)) == [b"of b"]


def test_group_waits_for_its_consumer_that_is_full_with_messages_of_its_node() -> None:
    here, there = Node("a"), Node("b")
    here.borrowing.owner_connected("b")
    there.lending.borrower_connected("a")
    for _ in range(5):
        here.send()
    consumer(here, credit=2)
    later = consumer(there)
    of_here = next(name for name in "ghijklmnopqrs" if rendezvous(name.encode(), ["a", "b"]) == "a")

    offer_all(here, there)
    there.send(b"of b", headers=group(of_here))

    assert later.bodies == []
    assert there.ready() == [b"of b"]
    check_accounts(there)


def offer_all(borrower: Node, owner: Node) -> list[Outcome]:
    """Let `owner` hear what `borrower` offers it."""
    offers = borrower.borrowing.offers()
    return [owner.offer(borrower.name, limit, name) for peer, name, limit in offers if peer == owner.name]


def lent_by(outcomes: list[Outcome]) -> list[bytes]:
    return [message.body for out in outcomes for lent in out.peer_deliveries.values() for message in lent]


# Groups


def test_messages_of_a_group_go_to_one_consumer_in_order_and_groups_are_spread() -> None:
    node = Node()
    clients = [consumer(node, credit=100) for _ in range(4)]

    for number in range(100):
        node.send(b"%d" % number, headers=group(f"g{number % 10}"))

    for name in range(10):
        mine = [b"%d" % number for number in range(name, 100, 10)]
        holders = [client for client in clients if set(client.bodies) & set(mine)]
        assert len(holders) == 1
        assert [body for body in holders[0].bodies if body in mine] == mine
    assert sum(bool(client.bodies) for client in clients) > 1
    check_accounts(node)


def test_group_waits_for_its_consumer_and_others_go_on() -> None:
    node = Node()
    clients = [consumer(node, credit=1) for _ in range(2)]
    by_group: dict[str, Client] = {}
    for name in "abcdefgh":
        node.send(name.encode(), headers=group(name))
        for client in clients:
            if name.encode() in client.bodies:
                by_group.setdefault(name, client)
    (first, one), (_, other) = list(by_group.items())[:2]
    assert one is not other

    node.send(b"later", headers=group(first))
    node.send(b"free")
    assert b"free" in node.ready()
    other.ack(other.inbox[-1])

    assert b"later" not in other.bodies
    check_accounts(node)


def test_group_has_one_consumer_while_its_messages_are_out_though_another_one_comes() -> None:
    node = Node()
    first = consumer(node, credit=100)
    for name in range(20):
        node.send(b"1", headers=group(f"g{name}"))

    second = consumer(node, credit=100)
    for name in range(20):
        node.send(b"2", headers=group(f"g{name}"))
    moved = len(node.ready())
    assert (len(first.bodies), second.bodies) == (40 - moved, [])
    assert 0 < moved < 20
    check_accounts(node)
    first.ack_all()

    assert second.bodies == [b"2"] * moved
    check_accounts(node)


def test_group_moves_to_its_new_consumer_though_a_backlog_keeps_the_old_one_full() -> None:
    node = Node()
    first = consumer(node, credit=2)
    name = next(name for name in "ghijklmnopqrs" if rendezvous(name.encode(), ["a", "b"]) == "b")
    for _ in range(10):
        node.send(headers=group(name))
    node.lending.borrower_connected("b")
    node.offer("b", 5)

    first.ack_all()

    assert len(first.bodies) == 2
    assert len(lent_to(node)) == 5
    check_accounts(node)


def lent_to(node: Node, peer: str = "b") -> list[bytes]:
    return [message.body for message in node.lending.lent.get(peer, {}).values()]


def test_owners_agree_about_the_node_of_a_group() -> None:
    names = ["a", "b", "c"]
    chosen = {group: rendezvous(group, names) for group in (b"%d" % n for n in range(300))}

    assert all(rendezvous(group, reversed(names)) == node for group, node in chosen.items())
    assert {list(chosen.values()).count(name) > 50 for name in names} == {True}
    without = {group: rendezvous(group, ["a", "b"]) for group in chosen}
    assert all(without[group] == node for group, node in chosen.items() if node != "c")


def test_borrowed_messages_of_a_group_wait_for_their_consumer_instead_of_overtaking_each_other() -> None:
    node = Node()
    node.borrowing.owner_connected("b")
    client = consumer(node, credit=1)

    for number in (1, 2, 3):
        borrow(node, number, b"%d" % number, headers=group("g"))
    assert client.bodies == [b"1"]
    assert node.borrowing.borrowed_from("b") == [Dot(B, 1), Dot(B, 2), Dot(B, 3)]
    check_accounts(node)
    client.ack_all()

    assert client.bodies == [b"1", b"2", b"3"]
    check_accounts(node)


def test_group_goes_back_whole_when_its_consumer_ends_and_what_was_on_its_way_follows() -> None:
    node = Node()
    node.borrowing.owner_connected("b")
    client = consumer(node, credit=1)
    other = consumer(node, credit=5)
    node.borrowing.offers()
    for number in (1, 2):
        borrow(node, number, b"%d" % number, headers=group("g"))
    if not client.bodies:
        client, other = other, client

    out = client.leave()
    assert sorted(m.body for m, _, _ in out.peer_returns["b"]) == [b"1", b"2"]
    assert node.borrowing.offers() == [("b", JOBS, WITHDRAWN), ("b", JOBS, 0)]
    borrow(node, 3, b"3", headers=group("g"))

    assert other.bodies == []
    check_accounts(node)


# Windows


def test_window_bounds_what_all_subscriptions_of_a_client_have_in_flight() -> None:
    node = Node()
    client, window = node.client(), ConnectionPrefetch(2)
    for name in (JOBS, MORE):
        client.subscribe(name, id=name, window=window)

    for number in range(3):
        node.send(b"jobs %d" % number)
        node.send(b"more %d" % number, MORE)

    assert client.bodies == [b"jobs 0", b"more 0"]
    check_accounts(node)


def test_queues_take_turns_in_a_window() -> None:
    node = Node()
    for _ in range(3):
        node.send(b"jobs")
        node.send(b"more", MORE)
    client, window = node.client(), ConnectionPrefetch(1)
    for name in (JOBS, MORE):
        client.subscribe(name, id=name, window=window)

    client.ack_all()

    assert client.bodies == [b"jobs", b"more"] * 3
    check_accounts(node)


def test_window_takes_turns_over_its_queues_whichever_node_has_the_messages() -> None:
    here, there = Node("a"), Node("b")
    here.borrowing.owner_connected("b")
    there.lending.borrower_connected("a")
    for number in range(8):
        here.send(b"jobs %d" % number)
    for number in range(3):
        there.send(b"more %d" % number, MORE)
    client, window = here.client(), ConnectionPrefetch(1)
    for name in (JOBS, MORE):
        client.subscribe(name, id=name, window=window)
    talk(here, there)

    for _ in range(11):
        client.ack(client.inbox[-1])
        check_accounts(here)
        talk(here, there)
        check_accounts(there)

    assert client.bodies[:6] == [b"jobs 0", b"more 0", b"jobs 1", b"more 1", b"jobs 2", b"more 2"]
    assert client.bodies[6:] == [b"jobs %d" % number for number in range(3, 8)]


def test_place_that_is_kept_for_another_nodes_message_is_free_when_that_is_gone() -> None:
    here, there = Node("a"), Node("b")
    here.borrowing.owner_connected("b")
    there.lending.borrower_connected("a")
    for number in range(3):
        here.send(b"%d" % number)
    there.send(b"more", MORE)
    client, window = here.client(), ConnectionPrefetch(1)
    for name in (JOBS, MORE):
        client.subscribe(name, id=name, window=window)
    talk(here, there)
    consumer(there, destination=MORE)

    client.ack(client.inbox[-1])
    assert client.bodies == [b"0"]
    assert window.turn is not None
    talk(here, there)

    assert client.bodies == [b"0", b"1"]
    check_accounts(here)


@pytest.mark.parametrize("how", ["link", "subscription"])
def test_place_that_is_kept_is_free_when_the_link_or_the_subscription_ends(how: str) -> None:
    here, there = Node("a"), Node("b")
    here.borrowing.owner_connected("b")
    there.lending.borrower_connected("a")
    for number in range(3):
        here.send(b"%d" % number)
    there.send(b"more", MORE)
    client, window = here.client(), ConnectionPrefetch(1)
    for name in (JOBS, MORE):
        client.subscribe(name, id=name, window=window)
    talk(here, there)
    client.ack(client.inbox[-1])
    assert window.turn is not None

    if how == "link":
        here.decide(lambda out: here.borrowing.owner_lost("b"))
    else:
        client.unsubscribe(MORE)

    assert client.bodies == [b"0", b"1"]
    assert window.turn is None
    check_accounts(here)


@pytest.mark.parametrize("credit", [1, 2])
def test_place_that_is_kept_goes_to_a_message_of_any_node(credit: int) -> None:
    here, there = Node("a"), Node("b")
    for peer in ("b", "c"):
        here.borrowing.owner_connected(peer)
    there.lending.borrower_connected("a")
    for number in range(2):
        here.send(b"%d" % number)
    there.send(b"more", MORE)
    client, window = here.client(), ConnectionPrefetch(2)
    client.subscribe(JOBS, id=JOBS, window=window)
    client.subscribe(MORE, id=MORE, window=window, credit=credit)
    talk(here, there)
    here.decide(lambda out: here.borrowing.waiting("c", {MORE: False}))
    for delivery in list(client.inbox):
        client.ack(delivery)
    assert (window.turn is not None, window.room) == (True, 1)

    message = message_of(Origin("c", 1), 1, b"c", MORE, owner="c", headers=group("g"))
    here.borrow(message)

    check_accounts(here)
    assert window.turn is None
    assert b"c" in client.bodies


@pytest.mark.parametrize("when", ["before", "after"])
def test_no_place_is_kept_for_messages_of_which_an_exclusive_consumer_gets_all(when: str) -> None:
    here, there = Node("a"), Node("b")
    here.borrowing.owner_connected("b")
    here.lending.borrower_connected("c")
    there.lending.borrower_connected("a")
    for number in range(3):
        here.send(b"%d" % number)
    there.send(b"more", MORE)
    client, window = here.client(), ConnectionPrefetch(1)
    for name in (JOBS, MORE):
        client.subscribe(name, id=name, window=window)
    talk(here, there)
    exclusive = offer_name(MORE, class_of(None, 1))

    if when == "before":
        here.offer("c", 0, exclusive)
    client.ack(client.inbox[-1])
    if when == "after":
        assert window.turn is not None
        here.offer("c", 0, exclusive)

    assert window.turn is None
    assert client.bodies == [b"0", b"1"]
    check_accounts(here)

    here.offer("c", WITHDRAWN, exclusive)
    client.ack(client.inbox[-1])
    talk(here, there)
    assert client.bodies == [b"0", b"1", b"more"]
    check_accounts(here)


def test_owner_that_may_not_serve_does_not_keep_a_window_waiting() -> None:
    here, there = Node("a"), Node("b")
    here.borrowing.owner_connected("b")
    there.lending.borrower_connected("a")
    for number in range(3):
        here.send(b"%d" % number)
    there.send(b"more", MORE)
    client, window = here.client(), ConnectionPrefetch(1)
    for name in (JOBS, MORE):
        client.subscribe(name, id=name, window=window)
    talk(here, there)
    there.queues.held = True

    client.ack(client.inbox[-1])
    talk(here, there)
    assert client.bodies == [b"0", b"1"]
    talk(here, there, there.decide(there.queues.release_hold))
    client.ack(client.inbox[-1])
    talk(here, there)
    assert client.bodies == [b"0", b"1", b"more"]
    check_accounts(there)


def talk(borrower: Node, owner: Node, *before: Outcome) -> None:
    """Let offers, loans and answers go to and fro until nothing is said any more."""
    outcomes = [*before, *offer_all(borrower, owner)]
    for _ in range(20):
        if not outcomes:
            return
        for out in outcomes:
            for messages in out.peer_deliveries.values():
                borrower.borrow(*(lent(message, owner.name) for message in messages))
            for queues in out.peer_waiting.values():
                borrower.decide(lambda out: borrower.borrowing.waiting(owner.name, queues))  # noqa: B023
        outcomes = offer_all(borrower, owner)
    raise AssertionError("they never come to rest")


def lent(message: Message, owner: str) -> Message:
    copy = Message(message.envelope, message.body, message.origin, message.sequence, message.timestamp_us)
    copy.owner, copy.attempts, copy.lent_as = owner, message.attempts, message.lent_as
    return copy


def test_window_without_room_is_not_offered_and_offered_again_when_there_is() -> None:
    node = Node()
    node.borrowing.owner_connected("b")
    client, window = node.client(), ConnectionPrefetch(1)
    for name in (JOBS, MORE):
        client.subscribe(name, id=name, window=window, credit=5)
    assert node.borrowing.offers() == [("b", JOBS, 1), ("b", MORE, 1)]

    borrow(node, 1, b"1")
    out = node.borrow(message_of(B, 2, b"2", MORE, owner="b"))
    assert [why for _, why, _ in out.peer_returns["b"]] == [Back.UNSEEN]
    assert node.borrowing.offers() == [("b", JOBS, asking_offer(1)), ("b", MORE, asking_offer(1))]
    client.ack_all()

    assert node.borrowing.offers() == [("b", JOBS, 2), ("b", MORE, 2)]
    check_accounts(node)


def test_subscription_that_ends_leaves_the_round() -> None:
    node = Node()
    client, window = node.client(), ConnectionPrefetch(1)
    for name in (JOBS, MORE):
        client.subscribe(name, id=name, window=window)
        node.send(b"m", name)
        node.send(b"m", name)

    client.unsubscribe(MORE)
    client.ack_all()

    assert len(client.bodies) == 2
    assert node.ready(MORE) == [b"m", b"m"]
    check_accounts(node)


def test_free_place_of_a_window_passes_over_subscriptions_that_are_full() -> None:
    node = Node()
    client, window = node.client(), ConnectionPrefetch(2)
    for name in (JOBS, MORE):
        client.subscribe(name, id=name, window=window, credit=1)
        for number in range(2):
            node.send(b"%d" % number, name)
    assert client.bodies == [b"0", b"0"]

    client.ack(client.inbox[0])

    assert [subscription_of(d) for d in client.inbox] == [JOBS, MORE, JOBS]
    check_accounts(node)


def subscription_of(delivery: object) -> str:
    subscription = delivery.subscription  # type: ignore[attr-defined]
    assert isinstance(subscription, Subscription)
    return subscription.destination


def test_message_that_its_groups_holder_did_not_want_goes_to_another_one_when_the_group_is_free() -> None:
    node = Node()
    red, blue = node.client(), node.client()
    red.subscribe(selector="color = 'red'")
    blue.subscribe(selector="color = 'blue'")
    node.send(b"1", headers=b"color:red\nJMSXGroupID:g\n")
    node.send(b"2", headers=b"color:blue\nJMSXGroupID:g\n")
    assert (red.bodies, blue.bodies) == ([b"1"], [])

    red.ack(red.inbox[0])
    node.send(b"3", headers=b"color:blue\nJMSXGroupID:g\n")

    assert blue.bodies == [b"2", b"3"]


@pytest.mark.parametrize("name", ["a", "b", "c", "d"])
def test_group_of_which_one_consumer_wants_a_part_waits_for_nothing_when_it_is_free(name: str) -> None:
    node = Node()
    plain, red = consumer(node, credit=1), consumer(node, selector="color = 'red'", credit=1)
    for number, color in enumerate((b"", b"", RED, RED)):
        node.send(b"%d" % number, headers=color + group(name))

    # When the second is settled, the group is free, and what is red may go to either.
    for _ in range(4):
        check_accounts(node)
        for client in (plain, red):
            for delivery in client.inbox[-1:]:
                if delivery.tag in node.queues.deliveries:
                    client.ack(delivery)

    assert sorted(plain.bodies + red.bodies) == [b"0", b"1", b"2", b"3"]
    check_accounts(node)
