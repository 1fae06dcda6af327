from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmq.broker.consumers.borrower import Borrower
from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.subscription import Ack, Subscription
from qmq.broker.messages.message import Message
from qmq.broker.messages.rules import DEFAULT_RULES
from qmq.broker.queues.dispatch.queue import Queue
from qmq.broker.queues.state.context import QueueContext
from qmq.model.dots import Origin
from tests.broker.rig import JOBS, NOW_US, message_of

A = Origin("a", 1)


def queue_of(*bodies: bytes) -> Queue:
    queue = Queue(JOBS, DEFAULT_RULES, QueueContext("a"))
    for sequence, body in enumerate(bodies, 1):
        queue.push(message_of(A, sequence, body), NOW_US)
    return queue


def consumer(queue: Queue, credit: int = 10) -> Subscription:
    subscription = Subscription(1, "s", JOBS, Ack.CLIENT_INDIVIDUAL, credit, b"")
    queue.subscriptions.append(subscription)
    queue.line_up(subscription)
    return subscription


def borrower(queue: Queue, limit: int, peer: str = "b") -> Borrower:
    borrower = Borrower(peer, {})
    borrower.limit = limit
    queue.admit(borrower)
    queue.line_up_peer(borrower)
    return borrower


def bodies_of(subscription: Subscription) -> list[bytes]:
    return [delivery.message.body for delivery in subscription.in_flight.values()]


def taken_by(queue: Queue, *bodies: bytes) -> list[Message]:
    """Take the first messages off the head, as a consumer would."""
    taken = take(queue, len(bodies))
    assert [message.body for message in taken] == list(bodies)
    return taken


def take(queue: Queue, count: int) -> list[Message]:
    """The first `count` messages off the head."""
    (level,) = queue.levels
    return [level.ready.popleft() for _ in range(count)]


def ready(queue: Queue) -> list[bytes]:
    return [message.body for message in queue.ready]


def test_consumers_take_turns() -> None:
    queue = queue_of(b"1", b"2", b"3", b"4", b"5")
    first, second = consumer(queue), consumer(queue)

    queue.dispatch(Outcome())

    assert bodies_of(first) == [b"1", b"3", b"5"]
    assert bodies_of(second) == [b"2", b"4"]


def test_consumer_gets_no_more_than_its_credit_and_the_others_go_on() -> None:
    queue = queue_of(b"1", b"2", b"3", b"4", b"5")
    narrow, wide = consumer(queue, credit=1), consumer(queue, credit=3)

    queue.dispatch(Outcome())

    assert bodies_of(narrow) == [b"1"]
    assert bodies_of(wide) == [b"2", b"3", b"4"]
    assert ready(queue) == [b"5"]


def test_consumer_without_any_credit_gets_nothing() -> None:
    queue = queue_of(b"1")
    consumer(queue, credit=0)

    queue.dispatch(Outcome())

    assert ready(queue) == [b"1"]


def test_consumer_that_left_the_line_gets_nothing_and_is_not_kept() -> None:
    queue = queue_of(b"1")
    gone = consumer(queue)

    queue.leave_line(gone)
    queue.leave_line(gone)
    queue.dispatch(Outcome())

    assert not gone.in_flight and not gone.waiting
    assert not queue.in_line


def test_consumer_stands_in_line_once() -> None:
    queue = queue_of()
    subscription = consumer(queue)

    queue.line_up(subscription)

    assert list(queue.in_line) == [subscription]


def test_local_consumers_come_before_peers() -> None:
    queue = queue_of(b"1", b"2", b"3")
    peer = borrower(queue, limit=5)
    local = consumer(queue, credit=2)
    out = Outcome()

    queue.dispatch(out)

    assert bodies_of(local) == [b"1", b"2"]
    assert [message.body for message in out.peer_deliveries["b"]] == [b"3"]
    assert list(peer.lent.values()) == out.peer_deliveries["b"]


def test_peers_take_turns_within_their_limits() -> None:
    queue = queue_of(b"1", b"2", b"3", b"4", b"5")
    borrower(queue, limit=1, peer="b")
    borrower(queue, limit=3, peer="c")
    out = Outcome()

    queue.dispatch(out)

    assert {peer: [m.body for m in lent] for peer, lent in out.peer_deliveries.items()} == {
        "b": [b"1"],
        "c": [b"2", b"3", b"4"],
    }
    assert ready(queue) == [b"5"]


def test_peer_whose_limit_is_cut_leaves_the_line_and_comes_back_with_a_higher_one() -> None:
    queue = queue_of()
    peer = borrower(queue, limit=2)

    peer.limit = 0
    queue.line_up_peer(peer)
    assert not queue.peers_in_line

    peer.limit = 1
    queue.line_up_peer(peer)
    assert list(queue.peers_in_line) == [peer]


def test_settled_messages_are_skipped_wherever_they_stand() -> None:
    queue = queue_of(b"1", b"2", b"3", b"4")
    messages = list(queue.ready)
    for message in (messages[0], messages[2]):
        queue.forget(message)
    subscription = consumer(queue)

    queue.dispatch(Outcome())

    assert bodies_of(subscription) == [b"2", b"4"]
    assert queue.depth == 2
    assert not queue.ready


def test_bytes_and_depth_count_bodies_until_they_are_settled() -> None:
    queue = queue_of(b"four", b"to")
    messages = list(queue.ready)
    assert (queue.depth, queue.body_bytes) == (2, 6)

    for message in messages:
        queue.forget(message)

    assert (queue.depth, queue.body_bytes) == (0, 0)
    assert queue.idle


def test_queue_is_idle_only_without_messages_consumers_and_peers_that_have_some() -> None:
    assert queue_of().idle
    assert not queue_of(b"1").idle

    consumed, lending = queue_of(), queue_of()
    consumer(consumed)
    peer = borrower(lending, limit=1)
    assert not consumed.idle
    assert not lending.idle

    peer.sent = 1
    assert not lending.idle, "its consumers are there, with room or without"
    lending.dismiss(peer)
    assert lending.idle


def test_messages_that_come_back_together_stand_at_the_head_in_order() -> None:
    queue = queue_of(b"1", b"2", b"3")

    queue.push_back(taken_by(queue, b"1", b"2"))

    assert ready(queue) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]])
def test_messages_that_come_back_one_by_one_stand_in_their_old_order(order: list[int]) -> None:
    queue = queue_of(b"1", b"2", b"3", b"4", b"5")
    taken = taken_by(queue, b"1", b"2", b"3", b"4")

    for index in order:
        queue.push_back([taken[index]])

    assert ready(queue) == [b"1", b"2", b"3", b"4", b"5"]


@given(st.integers(0, 40), st.permutations(range(30)))
def test_every_order_of_coming_back_restores_the_order_of_coming_in(left: int, order: list[int]) -> None:
    queue = queue_of(*(b"%03d" % number for number in range(30 + left)))
    taken = take(queue, 30)

    for index in order:
        queue.push_back([taken[index]])

    assert ready(queue) == sorted(ready(queue))
    assert len(queue.ready) == 30 + left


class Watched(deque[Message]):
    """What is ready, and how often one looked at a message of it that is not the first."""

    looks = 0

    def __getitem__(self, index):  # type: ignore[no-untyped-def, override]  # as deque's, counted
        self.looks += 1
        return super().__getitem__(index)


def test_message_that_comes_back_looks_at_few_of_those_that_wait() -> None:
    queue = queue_of(*(b"m" for _ in range(10_000)))
    taken = take(queue, 3)
    level = queue.levels[0]
    level.ready = ready = Watched(level.ready)

    for index in (0, 2, 1):
        queue.push_back([taken[index]])

    assert 0 < ready.looks <= 12


def test_message_that_comes_back_behind_many_others_looks_at_few_of_them() -> None:
    queue = queue_of(*(b"m" for _ in range(10_000)))
    taken = take(queue, 5_000)
    queue.push_back(taken[:-1])
    level = queue.levels[0]
    level.ready = ready = Watched(level.ready)

    queue.push_back(taken[-1:])

    assert 0 < ready.looks <= 40
    assert queue.ready[4_999] is taken[-1]


def test_tags_are_never_used_again() -> None:
    shared = QueueContext("a")
    queue = Queue(JOBS, DEFAULT_RULES, shared)
    subscription = consumer(queue)
    for sequence in (1, 2):
        queue.push(message_of(A, sequence), NOW_US)
        queue.dispatch(Outcome())
        (tag,) = shared.deliveries
        assert tag == sequence
        shared.deliveries.clear()
        subscription.in_flight.clear()
