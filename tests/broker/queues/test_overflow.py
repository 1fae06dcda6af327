"""Queues that are full and drop messages instead of refusing them."""

import pytest

from qmq.broker.consumers.outcome import COST_MAX, Outcome
from qmq.broker.consumers.session import HeldFrame
from qmq.broker.messages.limits import BrokerLimits
from qmq.broker.messages.message import Message
from qmq.broker.messages.rules import DEAD_LETTERS, DEFAULT_RULES, Overflow, QueueRules
from qmq.errors import Refused
from qmq.model.dots import Dot, Origin

from ..rig import JOBS, Node, check_accounts, envelope

A = Origin("a", 1)


def node_with(overflow: Overflow, messages_max: int = 3, *, bytes_max: int = 0, keeps: bool = False) -> Node:
    rules = QueueRules(messages_max=messages_max, bytes_max=bytes_max, overflow=overflow, keeps_dropped=keeps)
    return Node(rules_of=lambda name: rules if name == JOBS else DEFAULT_RULES)


def bodies_sent(out: Outcome) -> list[bytes]:
    return [record.body for record in out.records if isinstance(record, Message)]


def test_full_queue_refuses_unless_its_policy_drops() -> None:
    node = node_with("refuse")
    for _ in range(3):
        node.send()

    with pytest.raises(Refused) as refused:
        node.send()

    assert refused.value.code == "queue-full"
    assert node.depth() == 3


def test_full_queue_drops_its_oldest_message_for_a_new_one() -> None:
    node = node_with("drop-oldest")

    for number in range(5):
        node.send(b"%d" % number)

    assert node.ready() == [b"2", b"3", b"4"]
    assert node.settled_dots() == [Dot(A, 1), Dot(A, 2)]
    check_accounts(node)


def test_drop_and_new_message_are_of_one_decision() -> None:
    node = node_with("drop-oldest", 1)
    node.send(b"old")

    out = node.send(b"new")

    assert bodies_sent(out) == [b"new"]
    assert len(out.records) == 2


def test_oldest_of_the_lowest_priority_is_dropped_first() -> None:
    node = node_with("drop-oldest")
    for body, digit in ((b"low", 1), (b"high", 9), (b"low 2", 1)):
        node.send(body, headers=b"priority:%d\n" % digit)

    for _ in range(3):
        node.send(b"new", headers=b"priority:5\n")

    assert node.ready() == [b"high", b"new", b"new"]


def test_of_one_exact_number_the_oldest_message_is_dropped_first() -> None:
    node = node_with("drop-oldest")
    for body, number in ((b"old", 20), (b"high", 17), (b"old 2", 20)):
        node.send(body, headers=b"priority:6\nbeanstalk-priority:%d\n" % number)

    node.send(b"new", headers=b"priority:6\nbeanstalk-priority:20\n")

    assert node.ready() == [b"high", b"old 2", b"new"]


def test_as_many_are_dropped_as_a_large_message_needs() -> None:
    node = node_with("drop-oldest", 0, bytes_max=10)
    for _ in range(5):
        node.send(b"xx")

    node.send(b"y" * 7)

    assert node.ready() == [b"xx", b"y" * 7]
    assert node.queues.by_name[JOBS].body_bytes == 9


def test_what_consumers_have_in_hand_is_not_dropped_the_new_message_is() -> None:
    node = node_with("drop-oldest", 2)
    client = node.client()
    client.subscribe(credit=5)
    node.send(b"1")
    node.send(b"2")

    out = node.send(b"3")

    assert out.records == []
    assert client.bodies == [b"1", b"2"]
    assert node.depth() == 2


def test_full_queue_may_drop_what_is_new_without_a_notice_to_the_sender() -> None:
    node = node_with("drop-newest")
    for number in range(5):
        node.send(b"%d" % number)

    assert node.ready() == [b"0", b"1", b"2"]
    assert node.settled_dots() == []
    assert node.broker.next_sequence == 4
    check_accounts(node)


@pytest.mark.parametrize(("overflow", "dropped"), [("drop-oldest", b"0"), ("drop-newest", b"1")])
def test_dropped_message_is_kept_where_the_policy_names_a_dead_letter_queue(overflow: Overflow, dropped: bytes) -> None:
    node = node_with(overflow, 1, keeps=True)
    for number in range(2):
        node.send(b"%d" % number, headers=b"colour:red\n")

    (letter,) = node.queues.by_name[DEAD_LETTERS].ready
    assert letter.body == dropped
    lines = letter.envelope.headers.decode().splitlines()
    assert lines[:2] == ["dead-letter-reason:overflow", "dead-letter-from:/queue/jobs"]
    # What never got into the queue has no id.
    has_id = [line.startswith("dead-letter-id:") for line in lines[2:3]] == [True]
    assert has_id == (overflow == "drop-oldest")
    assert lines[-3:] == ["dead-letter-deliveries:0", "dead-letter-path:/queue/jobs", "colour:red"]
    assert node.depth() == 1


def test_queue_takes_messages_again_when_there_is_room() -> None:
    node = node_with("drop-newest", 1)
    client = node.client()
    client.subscribe(credit=1)
    node.send(b"1")
    node.send(b"2")
    client.ack(client.inbox[0])

    node.send(b"3")

    assert client.bodies == [b"1", b"3"]


def test_transaction_into_a_full_queue_drops_as_single_messages_do() -> None:
    node = node_with("drop-oldest", 2)
    client = node.client()
    client.begin()
    for number in range(4):
        client.hold(HeldFrame(envelope=envelope(), body=b"%d" % number))

    client.commit()

    assert node.ready() == [b"2", b"3"]


def test_other_queues_are_not_touched() -> None:
    node = node_with("drop-oldest", 1)
    for _ in range(3):
        node.send(b"other", "/queue/other")

    node.send(b"1")
    node.send(b"2")

    assert node.depth("/queue/other") == 3


def test_new_rules_count_from_the_next_message_on() -> None:
    rules = {JOBS: QueueRules(messages_max=1)}
    node = Node(rules_of=lambda name: rules.get(name, DEFAULT_RULES))
    node.send(b"1")
    rules[JOBS] = QueueRules(messages_max=1, overflow="drop-oldest")

    node.queues.rules_changed(list(node.queues.by_name.values()))
    node.send(b"2")

    assert node.ready() == [b"2"]


@pytest.mark.parametrize("headers", [b"", b"priority:6\nbeanstalk-priority:20\n", b"JMSXGroupID:g\n"])
@pytest.mark.parametrize("bound", ["cost", "dead_letters_left"])
def test_what_has_no_room_for_its_letter_in_one_decision_stays_in_line(bound: str, headers: bytes) -> None:
    """Before, it was in no line until the next start: counted and kept, and delivered to no consumer."""
    node = node_with("drop-oldest", 2, keeps=True)
    for body in (b"old", b"old 2"):
        node.send(body, headers=headers)

    def send(out: Outcome) -> None:
        setattr(out, bound, COST_MAX if bound == "cost" else 0)
        node.broker.send(envelope(headers=headers), b"new", node.now_us, out)

    node.decide(send)

    assert node.ready() == [b"old", b"old 2", b"new"]
    check_accounts(node)
    node.send(b"last", headers=headers)
    assert (node.ready(), node.depth(DEAD_LETTERS)) == ([b"new", b"last"], 2)


def test_message_that_can_never_fit_is_dropped_itself_and_nothing_for_it() -> None:
    node = node_with("drop-oldest", 0, bytes_max=10)
    node.send(b"xx")
    node.send(b"xx")

    node.send(b"y" * 11)

    assert node.ready() == [b"xx", b"xx"]
    assert node.settled_dots() == []


@pytest.mark.parametrize("overflow", ["drop-oldest", "drop-newest"])
def test_message_that_can_never_fit_does_not_get_into_an_empty_queue_either(overflow: Overflow) -> None:
    node = node_with(overflow, 0, bytes_max=10)

    node.send(b"y" * 11)

    assert node.depth() == 0
    assert node.journal == []


def test_memory_only_messages_of_all_queues_have_a_bound_and_durable_ones_go_on() -> None:
    node = Node(limits=BrokerLimits(queue_memory_bytes_max=2000))
    for number in range(3):
        node.send(b"x" * 600, f"/queue/{number}", durable=False)

    with pytest.raises(Refused, match="memory-only") as refused:
        node.send(b"x", durable=False)
    assert refused.value.code == "memory-full"
    node.send(b"x")
    client = node.client()
    client.subscribe("/queue/0")
    client.ack_all()
    client.leave()

    node.send(b"x", durable=False)
