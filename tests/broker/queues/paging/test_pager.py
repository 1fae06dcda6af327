"""Paging, one situation at a time: which messages are in memory and which only in the store (histories:
`test_paging_histories`).
"""

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from benchmarks.work import work_of
from qmq.broker.consumers.subscription import Subscription
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import Envelope, Message, Settle
from qmq.broker.messages.rules import DEAD_LETTERS, QueueRules
from qmq.broker.queues.dispatch import expiry, queue
from qmq.broker.queues.dispatch.queue import Queue
from qmq.broker.queues.paging import backlog, pager
from qmq.broker.queues.selective import selector_paging
from qmq.engine.checkpoint import queue_pager
from qmq.errors import Refused
from qmq.model.dots import Dot, Origin

from ...paging_rig import OLD, RED, WANTS_RED, PagedNode
from ...rig import JOBS, SECOND_US, Node, envelope

PAGE, WINDOW = 3, 4
TWENTY = b"priority:6\nbeanstalk-priority:20\n"


@pytest.fixture(autouse=True)
def small_pages() -> Iterator[None]:
    with (
        patch.object(pager, "PAGE_MESSAGES", PAGE),
        patch.object(backlog, "WINDOW", WINDOW),
        patch.object(queue, "LOW_WATER", 2),
    ):
        yield


def cold_node(count: int, headers: bytes = b"") -> tuple[PagedNode, list[Dot]]:
    """A node with that many messages, all of them only in the store."""
    node = PagedNode()
    dots = [node.send(headers=headers) for _ in range(count)]
    node.checkpoint()
    assert node.evict() == count
    return node, dots


def held_by(subscription: Subscription) -> list[Dot]:
    return [delivery.message.dot for delivery in subscription.in_flight.values()]


def jobs(node: PagedNode) -> Queue:
    return node.queues.by_name[JOBS]


def drain(node: PagedNode, subscription: Subscription) -> list[Dot]:
    """Acknowledge everything, also what comes in return; in order of delivery."""
    seen: list[Dot] = []
    node.load_all()
    while subscription.in_flight:
        delivery = next(iter(subscription.in_flight.values()))
        seen.append(delivery.message.dot)
        node.ack(delivery)
        node.load_all()
    return seen


def test_queue_without_consumers_leaves_nothing_in_memory() -> None:
    node, _ = cold_node(10)

    assert not node.queues.by_name
    assert node.queues.owned.in_memory == 0
    assert node.load_all() == 0


def test_consumer_of_a_stored_queue_gets_all_of_it_in_order() -> None:
    node, dots = cold_node(10)

    assert drain(node, node.subscribe(credit=2)) == dots


def test_only_so_much_is_loaded_as_consumers_have_use_for() -> None:
    node, _ = cold_node(100)

    node.subscribe(credit=1)
    node.load_all()

    assert node.queues.owned.in_memory <= 2 * PAGE
    assert jobs(node).depth == 100


def test_what_is_accepted_while_messages_are_in_the_store_waits_behind_them() -> None:
    node, dots = cold_node(5)
    later = [node.send() for _ in range(2)]

    assert drain(node, node.subscribe(credit=1)) == dots + later


def test_stored_message_of_a_lower_priority_waits_for_all_stored_ones_of_a_higher() -> None:
    node = PagedNode()
    low = [node.send(headers=b"priority:1\n") for _ in range(4)]
    high = [node.send(headers=b"priority:8\n") for _ in range(4)]
    node.checkpoint()
    node.evict()
    low.append(node.send(headers=b"priority:1\n"))

    assert drain(node, node.subscribe(credit=1)) == high + low


def test_nothing_leaves_memory_before_a_checkpoint_has_put_it_into_the_store() -> None:
    node = PagedNode()
    for _ in range(3):
        node.send()
    assert node.evict() == 0

    node.checkpoint_begins()
    node.checkpoint_reads()
    late = node.send()
    node.checkpoint_applies()
    node.checkpoint_done()

    assert node.evict() == 3
    assert list(node.queues.owned.by_origin[node.origin]) == [late.sequence]


def test_queue_with_consumers_keeps_its_first_messages_in_memory() -> None:
    node = PagedNode()
    subscription = node.subscribe(credit=1)
    dots = [node.send() for _ in range(20)]
    node.checkpoint()

    assert node.evict() == 20 - 1 - WINDOW
    assert jobs(node).depth == 20
    assert drain(node, subscription) == dots


def test_queue_with_consumers_keeps_fewer_of_large_messages() -> None:
    node = PagedNode()
    subscription = node.subscribe(credit=1)
    dots = [node.send(body=b"x" * 1000) for _ in range(20)]
    node.checkpoint()

    with patch.object(backlog, "WINDOW_BYTES", 2000):
        assert node.evict() == 20 - 1 - 2

    assert drain(node, subscription) == dots


def test_large_messages_are_not_loaded_long_before_their_turn() -> None:
    node = PagedNode()
    dots = [node.send(body=b"x" * 1000) for _ in range(20)]
    node.checkpoint()
    assert node.evict() == 20

    with patch.object(queue, "LOW_WATER", 10), patch.object(queue, "LOW_WATER_BYTES", 1000):
        subscription = node.subscribe(credit=1)
        seen: list[Dot] = []
        most = 0
        node.load_all()
        while subscription.in_flight:
            most = max(most, jobs(node).held)
            seen += held_by(subscription)
            node.ack(next(iter(subscription.in_flight.values())))
            node.load_all()

    assert seen == dots
    assert most <= 1 + PAGE


def test_a_page_is_bounded_where_large_messages_come_after_many_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pager, "PAGE_MESSAGES", 100)
    monkeypatch.setattr(queue_pager, "LOAD_BYTES", 2500)
    node = PagedNode()
    dots = [node.send(body=b"x" * (1000 if 500 <= n < 520 else 1)) for n in range(540)]
    node.checkpoint()
    node.evict()
    subscription = node.subscribe(credit=1)
    seen: list[Dot] = []
    while len(seen) < len(dots):
        while node.wanted:
            node.ask()
            assert sum(len(row.body) for answer in node.answers for row in answer.rows) <= 2500 + 1000
            node.take()
        (delivery,) = subscription.in_flight.values()
        seen.append(delivery.message.dot)
        node.ack(delivery)

    assert seen == dots


def test_what_consumers_have_or_have_failed_at_stays_in_memory() -> None:
    node = PagedNode(lambda name: QueueRules(redelivery_us_min=60 * SECOND_US))
    subscription = node.subscribe(credit=2)
    failed, held, _ = (node.send() for _ in range(3))
    node.nack(subscription.in_flight[1])
    node.leave(subscription)
    other = node.subscribe(credit=1)
    node.checkpoint()

    node.evict()

    assert set(node.queues.owned.by_origin[node.origin]) >= {failed.sequence, *(dot.sequence for dot in held_by(other))}
    assert node.queues.owned.in_memory < 4
    assert held in node.open_dots(JOBS)


def test_message_that_another_page_brings_again_is_passed_over() -> None:
    node, dots = cold_node(4)
    first = node.subscribe(credit=1)
    node.load_all()
    assert held_by(first) == dots[:1]
    node.checkpoint()
    node.evict()

    assert drain(node, first) == dots


@pytest.mark.parametrize("moment", ["before", "between heads and page", "after"])
def test_checkpoint_may_write_at_any_moment_of_a_load(moment: str) -> None:
    node, dots = cold_node(3)
    new = [node.send() for _ in range(3)]
    node.checkpoint_begins()
    node.checkpoint_reads()
    subscription = node.subscribe(credit=10)
    if moment == "before":
        node.checkpoint_applies()
    node.ask(node.checkpoint_applies if moment == "between heads and page" else lambda: None)
    if moment == "after":
        node.checkpoint_applies()
    node.take()
    node.checkpoint_done()

    assert drain(node, subscription) == dots + new
    assert node.open_dots(JOBS) == set()


# Settles of what the store has


def test_message_settled_elsewhere_while_it_is_only_in_the_store_is_never_delivered() -> None:
    node, dots = cold_node(3)
    node.records_coming.append((JOBS, [dots[1]]))

    node.record_comes()

    assert drain(node, node.subscribe()) == [dots[0], dots[2]]
    node.checkpoint()
    assert not node.paging.pending_deletes


def test_settle_is_remembered_until_a_checkpoint_has_taken_its_record() -> None:
    node, dots = cold_node(1)
    drain(node, node.subscribe())
    assert list(node.paging.pending_deletes) == [(JOBS, *dots[0], node.broker.next_sequence - 1)]

    node.checkpoint()

    assert not node.paging.pending_deletes
    assert node.store.is_empty("a")


def test_settle_of_what_no_checkpoint_has_seen_costs_nothing() -> None:
    node = PagedNode()
    subscription = node.subscribe()
    for _ in range(3):
        node.send()
        drain(node, subscription)

    assert not node.paging.pending_deletes


def test_settle_that_is_decided_but_not_durable_when_a_checkpoint_begins_is_in_it_or_remembered() -> None:
    node = PagedNode()
    node.queues.owned.has_stored = True
    dot = node.send()
    node.commit()
    subscription = node.subscribe()
    drain(node, subscription)
    node.leave(subscription)

    node.checkpoint()

    assert drain(node, node.subscribe()) == []
    assert node.settled == {dot}


def test_settle_during_a_checkpoint_is_remembered_although_the_message_is_in_no_row_yet() -> None:
    node = PagedNode()
    dot = node.send()
    subscription = node.subscribe()
    node.checkpoint_begins()
    node.checkpoint_reads()
    drain(node, subscription)
    assert list(node.paging.pending_deletes) == [(JOBS, *dot, node.broker.next_sequence - 1)]
    node.checkpoint_applies()
    node.checkpoint_done()
    assert node.paging.pending_deletes

    node.checkpoint()

    assert not node.paging.pending_deletes


def test_word_of_a_peer_counts_although_a_checkpoint_comes_before_its_record() -> None:
    node = PagedNode()
    node.queues.owned.has_stored = True
    dot = node.send()
    node.commit()
    node.offer(1)
    node.load_all()
    assert node.lent() == [dot]
    node.peer_settles([dot])
    node.word_comes([dot])

    node.checkpoint()

    assert drain(node, node.subscribe()) == []
    node.record_comes()
    node.checkpoint()
    assert not node.paging.pending_deletes
    assert node.store.is_empty("a")


def test_record_that_comes_before_any_checkpoint_ends_the_memory_of_its_word() -> None:
    node = PagedNode()
    dot = node.send()
    node.commit()
    node.offer(1)
    node.peer_settles([dot])
    node.word_comes([dot])
    assert list(node.paging.pending_deletes) == [(JOBS, *dot, 0)]

    node.record_comes()

    assert not node.paging.pending_deletes


# Depth


def test_depth_counts_what_is_in_memory_and_in_the_store_once() -> None:
    node, _ = cold_node(9)
    node.send(headers=b"priority:9\n")
    node.offer(1)
    node.load_all()
    node.checkpoint()
    node.evict()
    node.send()

    node.subscribe(credit=1)
    node.load_all()

    assert jobs(node).is_counted
    assert jobs(node).depth == len(node.open_dots(JOBS)) == 11


def test_depth_counts_a_lent_message_that_is_not_saved_yet() -> None:
    node = PagedNode()
    for _ in range(9):
        node.send()
    node.checkpoint()
    node.send(headers=b"priority:9\n")
    node.offer(1)
    node.evict()

    node.subscribe(credit=1)
    node.load_all()

    assert jobs(node).depth == 10


def test_depth_does_not_count_what_is_settled_but_still_in_the_store() -> None:
    node, _ = cold_node(9)
    first = node.subscribe(credit=2)
    node.load_all()
    for delivery in list(first.in_flight.values()):
        node.ack(delivery)
    node.leave(first)
    node.checkpoint_begins()
    node.checkpoint_reads()
    node.checkpoint_applies()
    node.checkpoint_done()
    node.evict()

    node.subscribe(credit=1)
    node.load_all()

    assert jobs(node).depth == 7


# Times


def test_stored_message_is_not_loaded_before_it_is_due() -> None:
    node, dots = cold_node(2, b"delay:500\n")
    subscription = node.subscribe()
    node.load_all()
    assert held_by(subscription) == []
    assert node.queues.owned.in_memory == 0

    node.wait(500_000)
    node.load_all()

    assert held_by(subscription) == dots


def test_large_messages_that_become_due_together_are_loaded_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pager, "PAGE_MESSAGES", 100)
    monkeypatch.setattr(pager, "PAGE_BYTES", 2500)
    node = PagedNode()
    dots = []
    for _ in range(30):
        dots.append(node.send(headers=b"delay:500\n", body=b"x" * 1000))
        node.wait(1)
    node.checkpoint()
    node.evict()
    subscription = node.subscribe(credit=100)
    node.load_all()

    node.wait(500_000)
    while node.wanted:
        node.ask()
        assert all(len(answer.rows) <= 4 for answer in node.answers)
        node.take()
        node.wait(0)

    assert held_by(subscription) == dots


@pytest.mark.parametrize("credit", [1, 50, 500])
def test_of_many_stored_messages_that_are_due_only_some_are_in_memory(
    monkeypatch: pytest.MonkeyPatch, credit: int
) -> None:
    monkeypatch.setattr(pager, "PAGE_MESSAGES", 10)
    node, dots = cold_node(5)
    for _ in range(200):
        dots.append(node.send(headers=b"delay:500\n"))
        node.wait(1)
    node.checkpoint()
    node.evict()
    subscription = node.subscribe(credit=credit)
    node.load_all()
    node.wait(500_000)
    node.load_all()

    assert len(subscription.in_flight) == min(credit, 205)
    assert node.queues.owned.in_memory <= min(credit, 205) + 3 * 10
    assert drain(node, subscription) == dots
    assert node.open_dots(JOBS) == set()


def test_more_stored_messages_than_a_page_holds_may_be_due_at_the_same_time() -> None:
    node, dots = cold_node(5 * PAGE + 1, b"delay:500\n")
    subscription = node.subscribe(credit=100)
    node.load_all()

    node.wait(500_000)
    node.load_all()

    assert held_by(subscription) == dots


def test_stored_messages_that_became_due_without_a_consumer_are_there_for_the_next_one() -> None:
    node = PagedNode()
    first, late = node.send(), node.send(headers=b"delay:500\n")
    node.checkpoint()
    node.evict()
    subscription = node.subscribe(credit=1)
    node.load_all()
    node.leave(subscription)
    node.wait(500_000)

    assert set(drain(node, node.subscribe())) == {first, late}


def test_stored_message_that_expires_unseen_is_settled_and_gone() -> None:
    node, dots = cold_node(1, b"ttl:1000\n")

    node.wait(SECOND_US)
    node.sweep()

    assert node.settled == set(dots)
    assert not node.queues.by_name
    assert drain(node, node.subscribe()) == []


def test_stored_message_that_is_also_in_memory_is_left_to_its_queue_by_the_sweep() -> None:
    node, dots = cold_node(1, b"ttl:1000\n")
    subscription = node.subscribe()
    node.load_all()
    node.wait(SECOND_US)

    node.sweep()

    assert node.settled == set()
    assert held_by(subscription) == dots


def test_expired_message_that_the_sweep_finds_twice_is_settled_once() -> None:
    node, dots = cold_node(1, b"ttl:1000\n")
    node.wait(SECOND_US)

    node.sweep()
    node.sweep()

    settles = [record for _, record in node._records() if isinstance(record, Settle)]
    assert [record.dots for record in settles] == [dots]


def test_stored_message_that_expires_is_kept_where_the_policy_names_a_dead_letter_queue() -> None:
    node = PagedNode(lambda name: QueueRules(keeps_dropped=True))
    node.send(headers=b"ttl:1000\n")
    node.checkpoint()
    node.evict()
    node.wait(SECOND_US)

    node.sweep()

    (letter,) = node.queues.by_name[DEAD_LETTERS].waiting()
    assert letter.envelope.headers.startswith(b"dead-letter-reason:expired\n")


# Other lives


def test_restart_finds_the_backlog_in_the_store_and_restores_nothing() -> None:
    node = PagedNode()
    dots = [node.send() for _ in range(5)]
    node.commit()

    node.restart()

    assert node.queues.owned.in_memory == 0
    assert drain(node, node.subscribe(credit=2)) == dots


def test_restart_without_room_restores_what_the_store_lacks_behind_what_it_has() -> None:
    node, dots = cold_node(3)
    dots += [node.send() for _ in range(3)]
    subscription = node.subscribe(credit=1)
    node.load_all()
    node.ack(next(iter(subscription.in_flight.values())))
    node.commit()

    node.restart(has_room=False)

    assert drain(node, node.subscribe(credit=2)) == dots[1:]
    node.checkpoint()
    assert not node.paging.pending_deletes


def test_message_of_an_earlier_life_stays_in_memory_until_a_checkpoint_has_it() -> None:
    node = PagedNode()
    node.checkpoint()
    dot = node.old_message_comes()

    assert node.evict() == 0
    assert drain(node, node.subscribe()) == [dot]


def test_settle_that_came_before_its_message_keeps_it_out_of_the_store_too() -> None:
    node = PagedNode()
    node.records_coming.append((JOBS, [Dot(OLD, 1)]))
    node.record_comes()
    node.old_message_comes()

    node.checkpoint()

    assert node.store.is_empty("a")
    assert not node.store.tombstones()
    assert not node.queues.by_name


# Returns and pages


def test_message_that_a_peer_returns_stands_before_what_is_loaded_later() -> None:
    node, dots = cold_node(8)
    node.offer(1)
    node.load_all()
    assert node.lent() == dots[:1]

    node.peer_returns(dots[:1], Back.RELEASED)

    assert drain(node, node.subscribe(credit=1)) == dots


def test_letter_of_a_stored_message_is_made_when_its_consumer_rejects_it() -> None:
    node, dots = cold_node(2)
    subscription = node.subscribe(credit=1)
    node.load_all()

    node.nack(next(iter(subscription.in_flight.values())), Back.REJECTED)
    node.load_all()

    records = [record for _, record in node._records()]
    letters = [r for r in records if isinstance(r, Message) and r.envelope.destination == DEAD_LETTERS]
    assert len(letters) == 1
    assert held_by(subscription) == dots[1:]
    assert node.settled == {dots[0]}


def test_messages_of_an_exact_number_keep_their_order_when_the_store_is_read_again() -> None:
    node, dots = cold_node(8, headers=TWENTY)
    subscription = node.subscribe(credit=1)
    node.load_all()
    dots.append(node.send(headers=TWENTY))

    node.decide(node.queues.handoff.rows_changed)

    assert drain(node, subscription) == dots


def test_message_of_an_exact_number_that_no_client_has_seen_comes_first_again_after_the_store_is_read() -> None:
    node, dots = cold_node(8, headers=TWENTY)
    node.offer(2)
    node.load_all()
    node.offer(0)
    node.checkpoint()
    node.decide(lambda out: node.lending.offer("b", JOBS, -1, out))
    node.evict()
    node.peer_returns(dots[:2], Back.UNSEEN)

    assert drain(node, node.subscribe(credit=1)) == dots


def test_what_the_store_takes_while_it_is_to_be_read_again_is_not_overtaken() -> None:
    node, dots = cold_node(1, headers=TWENTY)
    node.subscribe(credit=1)
    node.load_all()
    dots += [node.send(headers=TWENTY) for _ in range(2)]
    node.checkpoint()
    dots.append(node.send(headers=TWENTY))
    node.decide(node.queues.handoff.rows_changed)

    assert node.evict() == 2

    assert drain(node, node.subscriptions[0]) == dots


@pytest.mark.parametrize("headers", [b"", TWENTY])
def test_what_no_consumer_wanted_is_not_overtaken_when_the_store_is_read_again(headers: bytes) -> None:
    node, dots = cold_node(12, headers=headers)
    with patch.object(selector_paging, "EVICT_FROM", 4):
        picky = node.subscribe(selector=WANTS_RED)
        node.load_all()
    selective = jobs(node).selective
    assert selective is not None and selective.has_passed_over
    dots.append(node.send(headers=headers))

    node.decide(node.queues.handoff.rows_changed)

    subscription = node.subscribe(credit=1)
    node.leave(picky)
    assert drain(node, subscription) == dots


def test_consumer_that_comes_before_a_load_turns_out_to_be_of_nothing_gets_what_others_did_not_want() -> None:
    node = PagedNode(lambda name: QueueRules(messages_max=12, overflow="drop-oldest"))
    for _ in range(12):
        node.send()
    node.checkpoint()
    node.evict()
    with patch.object(selector_paging, "EVICT_FROM", 4):
        node.subscribe(selector=WANTS_RED)
        node.load_all()
    # Room is made of what is in memory, then by a load; but the store has nothing that was not read.
    while not jobs(node).is_loading:
        node.send()

    subscription = node.subscribe(credit=100)
    node.load_all()

    assert set(held_by(subscription)) == node.open_dots(JOBS)


def test_page_that_passes_over_new_messages_does_not_hide_them_when_they_leave_memory() -> None:
    node = PagedNode()
    node.queues.owned.has_stored = True
    subscription = node.subscribe(credit=1)
    dots = [node.send() for _ in range(4)]
    node.checkpoint_begins()
    node.checkpoint_reads()
    node.checkpoint_applies()
    node.ask()
    node.take()
    node.checkpoint_done()

    node.evict()

    assert drain(node, subscription) == dots


def test_messages_of_an_earlier_life_that_came_late_do_not_hide_those_of_this_one() -> None:
    node = PagedNode()
    subscription = node.subscribe(credit=1)
    for _ in range(5):
        node.send()
    node.checkpoint()
    for _ in range(2):
        node.old_message_comes()
    node.send()
    node.checkpoint()

    node.evict()

    assert len(drain(node, subscription)) == 8
    assert node.open_dots(JOBS) == set()


def test_delayed_messages_that_leave_memory_come_back_when_they_are_due() -> None:
    node = PagedNode()
    subscription = node.subscribe(credit=1)
    node.send()
    for _ in range(3):
        node.send(headers=b"delay:500\n")
    for _ in range(6):
        node.send()
    node.checkpoint()
    node.evict()

    node.wait(500_000)

    assert len(drain(node, subscription)) == 10
    assert node.open_dots(JOBS) == set()


def test_delayed_messages_that_leave_memory_after_they_were_due_are_found_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(expiry, "AT_ONCE", 2)
    node, stored = cold_node(2, b"delay:500\n")
    subscription = node.subscribe(credit=100)
    node.load_all()
    late = [node.send(headers=b"delay:500\n") for _ in range(6)]
    node.wait(500_000)
    # The store is asked, and takes over what is in memory, before all that is due there has had its turn.
    node.ask()
    node.take()
    node.checkpoint()

    assert node.evict() > 0
    assert set(drain(node, subscription)) == {*stored, *late}


@pytest.mark.parametrize("applied", ["before the heads", "after the heads"])
def test_depth_that_was_counted_during_a_checkpoint_is_right_when_all_is_loaded(applied: str) -> None:
    node, _ = cold_node(2)
    for _ in range(2):
        node.send()
    node.checkpoint_begins()
    node.checkpoint_reads()
    if applied == "before the heads":
        node.checkpoint_applies()
    node.subscribe(credit=1)
    node.load_all()
    if applied == "after the heads":
        node.checkpoint_applies()
    node.checkpoint_done()

    assert jobs(node).depth == 4


# Consumers that want only some messages


def test_picky_consumer_finds_its_message_behind_any_number_of_stored_others() -> None:
    node = PagedNode()
    others = [node.send() for _ in range(50)]
    red = node.send(headers=RED)
    node.checkpoint()
    node.evict()

    assert drain(node, node.subscribe(selector=WANTS_RED)) == [red]
    assert drain(node, node.subscribe()) == others


def test_consumer_with_a_selector_gets_what_became_due_in_the_store_while_none_wanted_it() -> None:
    node = PagedNode(lambda name: QueueRules(messages_max=100))
    dots = [node.send(headers=RED + b"delay:500\n") for _ in range(3)]
    node.checkpoint()
    node.evict()
    node.send()
    node.load_all()
    node.wait(500_000)

    subscription = node.subscribe(selector=WANTS_RED)
    node.load_all()

    assert held_by(subscription) == dots


def test_room_is_made_of_the_oldest_of_the_lowest_priority_also_when_they_are_only_in_the_store() -> None:
    node = PagedNode(lambda name: QueueRules(messages_max=20, overflow="drop-oldest"))
    for headers in (b"priority:9\n", b""):
        for _ in range(10):
            node.send(headers=headers)
    node.checkpoint()
    node.evict()

    new = []
    for number in range(30):
        new.append(node.send())
        node.load_all()
        if number % 5 == 4:
            node.checkpoint()
            node.evict()

    assert all(dot in node.sent for dot in new), "a new message was dropped instead of an old one"
    assert set(new[-9:]) <= set(node.open_dots(JOBS))


@pytest.mark.parametrize("begins_anew", ["restart", "evict"])
def test_bounded_queue_that_is_only_in_the_store_is_counted_at_its_first_message(begins_anew: str) -> None:
    node = PagedNode(lambda name: QueueRules(messages_max=3))
    for _ in range(3):
        node.send()
    node.commit()
    node.checkpoint()
    if begins_anew == "restart":
        node.restart()
    else:
        node.evict()

    # Nothing in memory knows yet how many there are: this one is taken, and the store is asked.
    node.send()
    assert node.load_all() > 0

    with pytest.raises(Refused) as refused:
        node.broker.send_limits.check_send(Envelope(JOBS, DestinationKind.QUEUE, b"", durable=True), 1)
    assert refused.value.code == "queue-full"


def test_bounded_queue_that_is_counted_is_not_loaded_for_each_message() -> None:
    node = PagedNode(lambda name: QueueRules(messages_max=3))
    node.send()
    node.load_all()

    node.send()

    assert not node.wanted


def test_a_first_attempt_that_is_only_in_the_store_is_settled_at_its_load() -> None:
    node = PagedNode()
    first = node.send(headers=b"dedup-id:x\n")
    other = node.send()
    node.checkpoint()
    assert node.evict() == 2
    retry = Message(envelope(JOBS, headers=b"dedup-id:x\ndedup-retry:true\n"), b"5", Origin("b", 7), 5, node.now_us)
    node.decide(lambda out: node.broker.accept(retry, out))

    consumer = node.subscribe()
    node.load_all()

    assert [delivery.message.dot for delivery in consumer.in_flight.values()] == [other]
    assert first in node.settled
    assert node.queues.by_name[JOBS].depth == 1
    node.ack(next(iter(consumer.in_flight.values())))
    node.checkpoint()
    assert node.store.is_empty("a")


def test_memory_only_messages_cost_an_eviction_and_a_count_nothing() -> None:
    steps = []
    for waiting in (10, 1000):
        node = PagedNode()
        for _ in range(waiting):
            only_here = envelope(durable=False)
            node.decide(lambda out: node.broker.send(only_here, b"m", node.now_us, out))  # noqa: B023  # called at once
        node.send()
        node.checkpoint()
        paging, jobs = node.paging, node.queues.by_name[JOBS]

        assert list(paging.queues_to_evict(paging.owned_in_memory())) == [JOBS]
        assert paging._known_in_store(jobs) == 1
        steps.append(work_of(lambda: paging._known_in_store(jobs)).steps)  # noqa: B023  # called at once
        paging.evict(jobs)
        assert not paging.queues_to_evict(paging.owned_in_memory())
        assert paging._known_in_store(jobs) == 0
        node.send()
        assert len(paging.owned_in_memory()) == 1
        assert not paging.queues_to_evict(paging.owned_in_memory()), "the store does not have it yet"

    assert steps[1] < 2 * steps[0]


def test_what_the_store_has_of_an_earlier_life_may_have_been_seen_until_it_is_known_that_it_was_not() -> None:
    node = Node()
    paging, own = node.queues.paging, node.queues.origin
    before = own._replace(incarnation=own.incarnation + 1)

    assert not paging.leaves_unseen([own, before])
    assert paging.leaves_unseen([own, Origin("b", 1)])
    paging.is_unseen = True
    assert paging.leaves_unseen([own, before])


def test_what_a_consumer_has_is_seen() -> None:
    node = Node()
    node.queues.paging.is_unseen = True
    client = node.client()
    client.subscribe()
    node.send(b"1")

    assert not node.queues.paging.leaves_unseen([])
    client.ack_all()
    assert node.queues.paging.leaves_unseen([])
