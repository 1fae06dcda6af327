"""Purge, move and redrive: which messages are settled, and what their copies say."""

import pytest

from benchmarks.work import work_of
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import DeadLetter, Message, Settle
from qmq.broker.messages.rules import DEAD_LETTERS, QueueRules
from qmq.broker.queues.bulk_settlement import FORGOTTEN_AT_ONCE
from qmq.errors import Refused

from ..rig import JOBS, SECOND_US, Node, check_accounts, check_empty

OTHER = "/queue/other"


def waiting(node: Node, queue: str = JOBS) -> list[Message]:
    bulk = node.broker.bulk_settlement
    return bulk.waiting(queue, bulk.in_memory(queue))


def purge(node: Node, queue: str = JOBS) -> list[object]:
    """Purge all of it; the records."""
    before = len(node.journal)
    node.decide(lambda out: node.broker.bulk_settlement.purge(waiting(node, queue), out))
    assert not any(node.broker.bulk_settlement.forgetting(queue))
    node.decide(lambda out: node.broker.bulk_settlement.finish(queue, out))
    return list(node.journal[before:])


def move(node: Node, target: str = OTHER, queue: str = JOBS) -> tuple[int, str | None]:
    """Move all of it; how many, and the code of a refusal."""
    found: list[tuple[int, Refused | None]] = []
    node.decide(lambda out: found.append(node.broker.bulk_settlement.move(waiting(node, queue), target, out)))
    assert not any(node.broker.bulk_settlement.forgetting(queue))
    node.decide(lambda out: node.broker.bulk_settlement.finish(queue, out))
    ((moved, refused),) = found
    return moved, None if refused is None else refused.code


def bodies(node: Node, queue: str) -> list[bytes]:
    return [message.body for message in waiting(node, queue)]


def headers(node: Node, queue: str) -> list[str]:
    (message,) = waiting(node, queue)
    return message.envelope.headers.decode().splitlines()


def test_a_look_at_one_message_takes_no_list_of_all_that_is_in_flight() -> None:
    allocated = []
    for in_flight in (10, 1000):
        node = Node()
        node.client().subscribe(credit=in_flight)
        for _ in range(in_flight + 1):
            node.send()
        bulk = node.broker.bulk_settlement
        one = bulk.in_memory(JOBS)

        assert bulk.waiting(JOBS, one) == one
        allocated.append(work_of(lambda: bulk.waiting(JOBS, one)).bytes)  # noqa: B023  # called at once

    assert allocated[1] < 2 * allocated[0]


@pytest.mark.parametrize("is_behind", [False, True])
def test_settled_messages_are_forgotten_in_turns_while_the_queue_goes_on(is_behind: bool) -> None:
    count = 5 * FORGOTTEN_AT_ONCE
    node = Node()
    node.queues.owned.has_stored = is_behind
    for number in range(count):
        node.send(str(number).encode(), durable=False)
    bulk = node.broker.bulk_settlement
    odd = [message for message in waiting(node) if int(message.body) % 2]
    node.decide(lambda out: bulk.purge(odd, out))
    (level,) = node.queues.by_name[JOBS].levels

    turns = 0
    for _ in bulk.forgetting(JOBS):
        turns += 1
        if turns == 2:
            node.send(str(count).encode(), durable=False)
            if not is_behind:
                level.ready.popleft()

    assert turns >= 5
    left = [str(number).encode() for number in range(0, count + 2, 2)]
    assert [one.body for one in (*level.ready, *(level.tail or ()))] == left[not is_behind :]


def test_what_another_node_serves_since_a_page_was_read_is_left_to_it() -> None:
    node = Node()
    node.send()
    bulk = node.broker.bulk_settlement
    page = bulk.in_memory(JOBS)
    assert bulk.waiting(JOBS, page) == page

    node.broker.queues.handoff.cede(page[0].origin.node, "b")

    assert not bulk.waiting(JOBS, page)


def test_a_purge_settles_what_waits_and_leaves_what_is_in_flight() -> None:
    node = Node()
    client = node.client()
    client.subscribe(credit=1)
    for body in (b"in flight", b"2", b"3"):
        node.send(body)

    records = purge(node)

    (settle,) = records
    assert isinstance(settle, Settle) and [dot.sequence for dot in settle.dots] == [2, 3]
    assert node.depth() == 1
    client.ack(client.inbox[0])
    client.leave()
    check_empty(node)


def test_a_purge_takes_delayed_and_memory_only_messages() -> None:
    node = Node()
    node.send(b"later", headers=b"delay:60000\n")
    node.send(b"memory", durable=False)

    purge(node)
    node.later(120 * SECOND_US)

    assert node.depth() == 0
    client = node.client()
    client.subscribe()
    assert client.inbox == []
    check_accounts(node)


def test_what_is_lent_to_a_peer_is_left_to_its_consumer() -> None:
    node = Node()
    node.lending.borrower_connected("b")
    node.offer("b", 1)
    node.send(b"lent")
    node.send(b"waits")

    assert bodies(node, JOBS) == [b"waits"]
    purge(node)

    assert node.depth() == 1


def test_a_move_settles_and_accepts_in_one_record_and_keeps_the_order() -> None:
    node = Node()
    for body in (b"1", b"2", b"3"):
        node.send(body)
    before = len(node.journal)

    assert move(node) == (3, None)

    records = node.journal[before:]
    assert [type(record) for record in records] == [DeadLetter] * 3
    assert bodies(node, OTHER) == [b"1", b"2", b"3"]
    assert (node.depth(), node.depth(OTHER)) == (0, 3)
    check_accounts(node)


def test_a_moved_message_keeps_its_headers_its_expiry_and_the_rest_of_its_delay() -> None:
    node = Node()
    node.send(b"x", headers=b"ttl:60000\ncolour:red\ndelay:20000\ndedup-id:7\n")
    node.later(5 * SECOND_US)

    move(node)

    assert headers(node, OTHER) == ["expires:61000", "delay:15001", "colour:red"]


def test_a_moved_message_is_young_again() -> None:
    node = Node(rules=QueueRules(delivery_limit=3, redelivery_us_min=0))
    client = node.client()
    client.subscribe()
    node.send(b"x")
    client.nack(client.inbox[-1])
    client.leave()

    move(node)

    (message,) = waiting(node, OTHER)
    assert message.attempts == 0


def test_a_move_stops_at_a_full_queue_and_says_so() -> None:
    node = Node(rules_of=lambda name: QueueRules(messages_max=2) if name == OTHER else QueueRules())
    for body in (b"1", b"2", b"3"):
        node.send(body)

    assert move(node) == (2, "queue-full")

    assert (bodies(node, JOBS), bodies(node, OTHER)) == ([b"3"], [b"1", b"2"])


def test_a_move_into_a_queue_that_drops_what_does_not_fit_loses_nothing() -> None:
    rules = QueueRules(messages_max=1, overflow="drop-newest", dead_letter="")
    node = Node(rules_of=lambda name: rules if name == OTHER else QueueRules())
    for body in (b"1", b"2"):
        node.send(body)

    assert move(node) == (1, "queue-full")

    assert (bodies(node, JOBS), bodies(node, OTHER)) == ([b"2"], [b"1"])


def test_a_move_on_a_full_disk_is_refused() -> None:
    node = Node()
    node.send(b"1")
    node.broker.send_limits.disk_full = True

    assert move(node) == (0, "disk-full")
    assert bodies(node, JOBS) == [b"1"]


@pytest.mark.parametrize("name", ["/queue/jobs", "/queue/a:b"])
def test_a_redriven_message_is_where_it_came_from_without_what_its_dead_letter_said(name: str) -> None:
    node = Node()
    client = node.client()
    client.subscribe(name)
    node.send(b"x", name, headers=b"colour:red\n")
    client.nack(client.inbox[-1], Back.REJECTED)
    client.leave()
    assert node.depth(DEAD_LETTERS) == 1

    assert move(node, "", DEAD_LETTERS) == (1, None)

    assert node.depth(DEAD_LETTERS) == 0
    assert headers(node, name) == ["colour:red"]


def test_a_redrive_leaves_what_is_no_dead_letter() -> None:
    node = Node()
    node.send(b"sent here", DEAD_LETTERS)

    assert move(node, "", DEAD_LETTERS) == (0, "no-source")
    assert bodies(node, DEAD_LETTERS) == [b"sent here"]


def test_a_consumer_of_the_new_queue_gets_a_moved_message_at_once() -> None:
    node = Node()
    node.send(b"x")
    client = node.client()
    client.subscribe(OTHER)

    move(node)

    assert [delivery.message.body for delivery in client.inbox] == [b"x"]


def test_memory_holds_nothing_of_purged_messages() -> None:
    node = Node()
    for number in range(100):
        node.send(b"%d" % number)
    node.lending.borrower_connected("b")
    node.offer("b", 0)

    purge(node)

    assert not any(level.ready for level in node.queues.by_name[JOBS].levels)


def test_a_delayed_message_becomes_ready_at_once_and_stays_so() -> None:
    node = Node()
    client = node.client()
    client.subscribe()
    node.send(b"late", headers=b"delay:100000\nkind:x\n")
    (message,) = waiting(node)
    done: list[bool] = []

    node.decide(lambda out: done.append(node.broker.bulk_settlement.hasten(message, b"was:1\n", out)))

    assert done == [True]
    assert client.bodies == [b"late"]
    letter = node.journal[-1]
    assert isinstance(letter, DeadLetter) and letter.dot == message.dot
    assert client.inbox[0].message.envelope.headers == b"was:1\nkind:x\n"
    node.decide(lambda out: node.broker.bulk_settlement.finish(JOBS, out))
    client.ack_all()
    client.leave()
    check_empty(node)
