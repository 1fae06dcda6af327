"""First attempts whose retry is recorded too: which of two records with one dedup id is settled, and when."""

import pytest

from qmq.broker.messages.dedup import SECONDS
from qmq.broker.messages.message import Message
from qmq.model.dots import Dot, Origin

from ..rig import JOBS, NOW_US, SECOND_US, Node, check_accounts, envelope

B = Origin("b", 7)
C = Origin("c", 9)
OLD = Origin("a", 0)
FIRST = b"dedup-id:x\n"
RETRY = b"dedup-id:x\ndedup-retry:true\n"


def record(origin: Origin, sequence: int, headers: bytes, at_us: int = NOW_US, destination: str = JOBS) -> Message:
    return Message(envelope(destination, headers=headers), b"%d" % sequence, origin, sequence, at_us)


def accept(node: Node, *messages: Message) -> None:
    for message in messages:
        node.decide(lambda out, message=message: node.broker.accept(message, out))
        check_accounts(node)


def test_a_first_attempt_is_settled_when_the_record_of_its_retry_comes() -> None:
    node = Node()
    node.send(b"first", headers=FIRST)

    accept(node, record(B, 5, RETRY))

    assert node.settled_dots() == [Dot(node.origin, 1)]
    assert node.depth() == 0


def test_a_first_attempt_that_comes_after_its_retry_is_settled_and_given_to_no_consumer() -> None:
    node = Node()
    client = node.client()
    client.subscribe()

    accept(node, record(B, 5, RETRY), record(OLD, 3, FIRST))

    assert node.settled_dots() == [Dot(OLD, 3)]
    assert client.inbox == []


def test_a_first_attempt_that_a_consumer_has_is_settled_and_does_not_come_back() -> None:
    node = Node()
    client = node.client()
    client.subscribe()
    node.send(b"first", headers=FIRST)

    accept(node, record(B, 5, RETRY))
    client.nack(client.inbox[0])
    check_accounts(node)

    assert client.bodies == [b"first"]
    assert node.settled_dots() == [Dot(node.origin, 1)]
    assert node.depth() == 0


def test_a_first_attempt_that_is_lent_is_settled_and_does_not_come_back() -> None:
    node = Node()
    node.lending.borrower_connected("c")
    node.offer("c", 5)
    node.send(b"first", headers=FIRST)

    accept(node, record(B, 5, RETRY))

    assert node.settled_dots() == [Dot(node.origin, 1)]
    assert not node.queues.owned.lent["c"]


@pytest.mark.parametrize("retry_first", [False, True])
def test_a_retry_never_gives_way(retry_first: bool) -> None:
    node = Node()
    messages = [record(OLD, 3, RETRY), record(B, 5, FIRST)]

    accept(node, *(messages if retry_first else reversed(messages)))
    accept(node, record(C, 1, RETRY))

    assert node.settled_dots() == []
    assert node.depth() == 1


def test_two_first_attempts_both_stay() -> None:
    node = Node()
    node.send(b"first", headers=FIRST)

    accept(node, record(B, 5, FIRST), record(OLD, 3, FIRST))

    assert node.settled_dots() == []
    assert node.depth() == 2


@pytest.mark.parametrize(
    "others", [b"dedup-id:y\ndedup-retry:true\n", b"dedup-retry:true\ndedup-sender:z\ndedup-id:x\n"]
)
def test_the_retry_of_another_message_settles_nothing(others: bytes) -> None:
    node = Node()
    node.send(b"first", headers=FIRST)

    accept(node, record(B, 5, others), record(B, 6, RETRY, destination="/queue/others"))

    assert node.settled_dots() == []
    assert node.depth() == 1


def test_a_retry_in_memory_only_settles_nothing() -> None:
    node = Node()
    node.send(b"retry", headers=RETRY, durable=False)

    accept(node, record(OLD, 3, FIRST))

    assert node.settled_dots() == []
    assert node.depth() == 2


def test_a_dead_letter_does_not_give_way_to_a_message_that_was_sent_to_its_queue() -> None:
    node = Node()

    accept(node, record(OLD, 3, b"dead-letter-reason:rejected\n" + FIRST), record(B, 6, RETRY))

    assert node.settled_dots() == []


def test_dead_letters_with_one_id_are_two_messages() -> None:
    node = Node()
    accept(node, record(OLD, 3, b"dead-letter-reason:rejected\n" + FIRST))

    accept(node, record(B, 5, b"dead-letter-reason:rejected\n" + RETRY), record(OLD, 4, FIRST))

    assert node.settled_dots() == []
    assert node.depth() == 2


@pytest.mark.parametrize("apart", [-SECONDS - 1, -SECONDS, SECONDS, SECONDS + 1])
def test_attempts_with_more_than_the_window_between_them_are_two_messages(apart: int) -> None:
    node = Node()
    node.broker.clocks.heard(B, NOW_US - 3600 * SECOND_US, NOW_US)  # whose clock is an hour behind
    node.send(b"first", headers=FIRST)

    accept(node, record(B, 5, RETRY, NOW_US + (apart - 3600) * SECOND_US))

    assert node.settled_dots() == ([Dot(node.origin, 1)] if abs(apart) <= SECONDS else [])


@pytest.mark.parametrize("is_first", [True, False], ids=["first attempt first", "retry first"])
@pytest.mark.parametrize("apart", [SECONDS, SECONDS + 1])
def test_attempts_are_compared_again_when_the_clock_of_the_retry_is_heard(*, is_first: bool, apart: int) -> None:
    """A relay has brought the retry, before there was a link with its node."""
    node = Node()
    first, retry = record(OLD, 3, FIRST), record(B, 5, RETRY, NOW_US + (apart - 3600) * SECOND_US)
    accept(node, *((first, retry) if is_first else (retry, first)))
    assert node.settled_dots() == []

    for heard in (0, NOW_US - 3600 * SECOND_US):
        node.decide(lambda out, heard=heard: node.queues.settlement.clock_heard(B, heard, out))
        check_accounts(node)

    assert node.settled_dots() == ([Dot(OLD, 3)] if apart <= SECONDS else [])


def test_so_many_first_attempts_wait_for_a_clock() -> None:
    node = Node()
    node.queues.first_attempts.unjudged_max = 2
    for number in range(3):
        name = b"dedup-id:%d\n" % number
        long_ago_us = NOW_US - 2 * SECONDS * SECOND_US
        accept(node, record(OLD, 3 + number, name))
        accept(node, record(B, 5 + number, name + b"dedup-retry:true\n", long_ago_us))

    assert node.queues.first_attempts.take_unjudged() == [Dot(OLD, 4), Dot(OLD, 5)]


def test_a_node_that_does_not_serve_the_first_attempt_leaves_it_to_the_one_that_does() -> None:
    node = Node()

    accept(node, record(B, 5, FIRST), record(C, 1, RETRY))

    assert node.settled_dots() == []
