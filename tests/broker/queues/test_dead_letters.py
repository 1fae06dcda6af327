"""Messages that no consumer takes, and the headers of their dead letters."""

import pytest

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.session import HeldFrame
from qmq.broker.consumers.subscription import Ack, Asks
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.message import Attempts, DeadLetter, Message, Settle
from qmq.broker.messages.rules import DEAD_LETTERS, DELIVERY_LIMIT_DEFAULT, QueueRules
from qmq.gateways.encode import encode_deliveries
from qmq.model.dots import Dot, Origin
from qmq.wire.stomp import Version

from ..rig import (
    AT_ONCE,
    JOBS,
    SECOND_US,
    Client,
    Node,
    check_accounts,
    check_empty,
    envelope,
    message_of,
    parts,
)

A = Origin("a", 1)
OTHER = "/queue/other"
THREE = QueueRules(delivery_limit=3, redelivery_us_min=0)


def with_consumer(rules: QueueRules, headers: bytes = b"", *, asks: Asks | None = None) -> tuple[Node, Client]:
    """A node with one message `x` in the hands of its only consumer."""
    node = Node(rules=rules)
    client = node.client()
    client.subscribe(asks=asks)
    node.send(b"x", headers=headers)
    return node, client


def letters_in(out: Outcome) -> list[Message]:
    return [part for record in out.records for part in parts(record) if isinstance(part, Message)]


def headers_of(letter: Message) -> list[str]:
    return letter.envelope.headers.decode().splitlines()


def test_message_that_failed_as_often_as_its_limit_allows_becomes_a_dead_letter() -> None:
    node, client = with_consumer(THREE)

    outs = [client.nack(client.inbox[-1]) for _ in range(3)]

    assert client.attempts == [3, 3, 3]
    assert [len(letters_in(out)) for out in outs] == [0, 0, 1]
    assert (node.depth(), node.depth(DEAD_LETTERS)) == (0, 1)
    check_accounts(node)


def test_letter_and_settle_are_one_record() -> None:
    node, client = with_consumer(THREE)

    out = client.nack(client.inbox[0], Back.REJECTED)

    (burial,) = out.records
    assert isinstance(burial, DeadLetter)
    assert (burial.queue, burial.dot) == (JOBS, Dot(A, 1))
    assert (burial.sequence, burial.dead_letter.sequence) == (2, 2)
    assert out.needs_commit


def test_letter_that_is_dropped_where_it_should_go_leaves_a_settle() -> None:
    full = QueueRules(messages_max=1, overflow="drop-newest")
    node = Node(rules_of=lambda name: full if name == DEAD_LETTERS else THREE)
    node.send(b"letter", DEAD_LETTERS)
    client = node.client()
    client.subscribe()
    node.send(b"x")

    (settle,) = client.nack(client.inbox[0], Back.REJECTED).records

    assert isinstance(settle, Settle)
    assert settle.dots == [Dot(A, 2)]
    assert node.ready(DEAD_LETTERS) == [b"letter"]


# How often a message has failed is recorded


def counts_in(out: Outcome) -> dict[Dot, int]:
    return {dot: n for record in out.records if isinstance(record, Attempts) for dot, n in record.counts.items()}


def test_every_failure_is_recorded_in_the_decision_that_counts_it() -> None:
    node, client = with_consumer(THREE)

    outs = [client.nack(client.inbox[-1]) for _ in range(3)]

    assert [counts_in(out) for out in outs] == [{Dot(A, 1): 1}, {Dot(A, 1): 2}, {}]
    assert all(out.needs_commit for out in outs)


def test_messages_of_a_consumer_that_ends_are_counted_in_one_record() -> None:
    node = Node()
    for body in (b"1", b"2", b"3"):
        node.send(body)
    client = node.client()
    client.subscribe(credit=2)

    out = client.leave()

    (record,) = out.records
    assert isinstance(record, Attempts)
    assert (record.queue, record.counts) == (JOBS, {Dot(A, 1): 1, Dot(A, 2): 1})


def test_what_is_settled_the_first_time_or_lives_in_memory_only_is_not_counted_anywhere() -> None:
    node = Node(rules=AT_ONCE)
    client = node.client()
    client.subscribe()
    node.send(b"x")
    node.send(b"y", durable=False)

    assert counts_in(client.ack(client.inbox[0])) == {}
    assert client.nack(client.inbox[1]).records == []


def test_failure_on_a_full_disk_is_counted_in_memory_only() -> None:
    node, client = with_consumer(AT_ONCE)
    node.broker.send_limits.disk_full = True

    out = client.nack(client.inbox[0])

    assert out.records == []
    assert client.attempts == [1, 1]


def test_what_an_earlier_life_has_counted_goes_on() -> None:
    node = Node(rules=THREE)
    old = Origin("a", 0)
    node.decide(lambda out: node.broker.accept(message_of(old, 1), out))

    node.queues.redelivery.failed_before({Dot(old, 1): 2, Dot(old, 9): 5})
    node.queues.redelivery.failed_before({Dot(old, 1): 1})
    client = node.client()
    client.subscribe()

    assert client.attempts == [2]
    (letter,) = letters_in(client.nack(client.inbox[0]))
    assert headers_of(letter)[0] == "dead-letter-reason:delivery-limit"


def test_letter_says_why_where_from_which_and_how_often() -> None:
    node, client = with_consumer(THREE, b"colour:red\n")
    client.nack(client.inbox[-1])

    (letter,) = letters_in(client.nack(client.inbox[-1], Back.REJECTED))

    assert letter.envelope.destination == DEAD_LETTERS
    assert letter.body == b"x"
    assert headers_of(letter) == [
        "dead-letter-reason:rejected",
        "dead-letter-from:/queue/jobs",
        f"dead-letter-id:{A}-1",
        "dead-letter-deliveries:2",
        "colour:red",
    ]


def test_letter_of_a_message_at_its_limit_says_so() -> None:
    node, client = with_consumer(QueueRules(delivery_limit=1))

    (letter,) = letters_in(client.nack(client.inbox[0]))

    assert headers_of(letter)[0] == "dead-letter-reason:delivery-limit"
    assert headers_of(letter)[3] == "dead-letter-deliveries:1"


def test_letter_keeps_what_the_sender_said_but_not_what_limited_its_life() -> None:
    gone = b"expires:9000000\nexpiration:9000\nttl:9000\ndelay:0\nAMQ_SCHEDULED_DELAY:0\n"
    node, client = with_consumer(THREE, b"a:1\n" + gone + b"priority:9\nack-timeout:30\nz:2\n")

    (letter,) = letters_in(client.nack(client.inbox[0], Back.REJECTED))

    assert headers_of(letter)[4:] == ["a:1", "priority:9", "ack-timeout:30", "z:2"]


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (b"", ["ttl:5000", "priority:9"]),
        (b"priority:2\nttl:70\n", ["priority:2", "ttl:5000"]),
        (b"not-priority:2\nexpires:9000000\n", ["not-priority:2", "ttl:5000", "priority:9"]),
    ],
)
def test_letter_gets_what_its_queue_gives_to_messages_that_do_not_say(said: bytes, kept: list[str]) -> None:
    defaults = {DEAD_LETTERS: {"ttl": "5000", "priority": "9"}, JOBS: {"ttl": "70"}}
    node = Node(rules=THREE, defaults_of=lambda name: defaults.get(name, {}))
    client = node.client()
    client.subscribe()
    node.send(b"x", headers=said)

    (letter,) = letters_in(client.nack(client.inbox[0], Back.REJECTED))

    assert headers_of(letter)[4:] == kept
    node.later(4 * SECOND_US)
    assert node.depth(DEAD_LETTERS) == 1
    node.later(2 * SECOND_US)
    assert node.depth(DEAD_LETTERS) == 0


def test_letter_of_a_letter_names_the_last_time_and_has_the_others_in_its_history() -> None:
    node = Node(rules_of=lambda name: QueueRules(dead_letter=OTHER if name == DEAD_LETTERS else DEAD_LETTERS))
    client = node.client()
    for queue in (JOBS, DEAD_LETTERS):
        client.subscribe(queue, id=queue)
    node.send(b"x")
    client.nack(client.inbox[0], Back.REJECTED)

    (letter,) = letters_in(client.nack(client.inbox[1], Back.REJECTED))

    assert headers_of(letter) == [
        "dead-letter-reason:rejected",
        f"dead-letter-from:{DEAD_LETTERS}",
        f"dead-letter-id:{A}-2",
        "dead-letter-deliveries:1",
        'dead-letter-history:[["rejected","/queue/jobs",1,"","jobs"],'
        '["rejected","/queue/dead-letters",1,"","dead-letters"],["rejected","/queue/jobs",1,"","jobs"]]',
    ]


def test_names_in_the_headers_of_a_letter_are_escaped() -> None:
    odd = "/queue/a:b\\c"
    node = Node()
    client = node.client()
    client.subscribe(odd)
    node.send(b"x", odd)

    (letter,) = letters_in(client.nack(client.inbox[0], Back.REJECTED))

    assert headers_of(letter)[1] == "dead-letter-from:/queue/a\\cb\\\\c"


def test_letter_is_as_durable_as_its_message() -> None:
    node = Node()
    client = node.client()
    client.subscribe()
    node.send(b"x", durable=False)

    out = client.nack(client.inbox[0], Back.REJECTED)

    assert out.records == []
    assert node.depth(DEAD_LETTERS) == 1
    reader = node.client()
    reader.subscribe(DEAD_LETTERS)
    assert headers_of(reader.inbox[0].message)[2] == f"dead-letter-id:{A}-m1"
    check_accounts(node)


def test_letter_goes_to_a_waiting_consumer_at_once() -> None:
    node, client = with_consumer(THREE)
    reader = node.client()
    reader.subscribe(DEAD_LETTERS)

    client.nack(client.inbox[0], Back.REJECTED)

    assert reader.bodies == [b"x"]
    assert reader.attempts == [0]


def test_letter_is_accepted_where_it_does_not_fit() -> None:
    full = QueueRules(messages_max=1)
    node = Node(rules_of=lambda name: full if name == DEAD_LETTERS else THREE)
    node.send(b"letter", DEAD_LETTERS)
    client = node.client()
    client.subscribe()
    node.send(b"x")

    client.nack(client.inbox[0], Back.REJECTED)

    assert node.ready(DEAD_LETTERS) == [b"letter", b"x"]


def test_where_no_dead_letter_queue_is_named_the_message_is_dropped() -> None:
    node, client = with_consumer(QueueRules(dead_letter=""))

    out = client.nack(client.inbox[0], Back.REJECTED)

    assert letters_in(out) == []
    assert node.settled_dots() == [Dot(A, 1)]
    client.leave()
    check_empty(node)


@pytest.mark.parametrize("why", [Back.REJECTED, Back.FAILED])
def test_letter_that_is_refused_stays_among_the_dead_letters_and_comes_again_after_a_pause(why: Back) -> None:
    node = Node(rules=QueueRules(delivery_limit=1))
    client = node.client()
    client.subscribe(DEAD_LETTERS)
    node.send(b"letter", DEAD_LETTERS)

    out = client.nack(client.inbox[0], why)

    assert (letters_in(out), counts_in(out)) == ([], {Dot(A, 1): 1})
    assert node.depth(DEAD_LETTERS) == 1
    assert len(client.inbox) == 1
    node.later(SECOND_US)
    assert client.bodies == [b"letter", b"letter"]


def test_without_a_limit_a_message_may_fail_for_ever() -> None:
    node, client = with_consumer(QueueRules(delivery_limit=0, redelivery_us_min=0))

    for _ in range(3 * DELIVERY_LIMIT_DEFAULT):
        client.nack(client.inbox[-1])

    assert len(client.inbox) == 3 * DELIVERY_LIMIT_DEFAULT + 1
    assert node.depth(DEAD_LETTERS) == 0


def test_consumer_that_is_lost_without_an_ack_counts_as_a_delivery() -> None:
    node = Node(rules=THREE)
    node.send(b"x")

    for _ in range(3):
        client = node.client()
        client.subscribe()
        client.leave()

    assert node.depth() == 0
    (letter,) = node.queues.by_name[DEAD_LETTERS].ready
    assert headers_of(letter)[0] == "dead-letter-reason:delivery-limit"


def test_consumer_that_leaves_in_order_brings_no_message_nearer_to_the_dead_letters() -> None:
    node = Node(rules=THREE)
    node.send(b"x")

    for _ in range(4):
        client = node.client()
        client.subscribe()
        client.unsubscribe()
    last = node.client()
    last.subscribe()

    assert last.bodies == [b"x"]
    assert encode_deliveries(last.inbox[0].subscription, last.inbox, Version.V12).count(b"redelivered:true") == 1
    assert not [record for record in node.journal if isinstance(record, Attempts)]


def test_failures_count_from_one_after_a_consumer_has_left_in_order() -> None:
    node = Node(rules=THREE)
    node.send(b"x")
    client = node.client()
    client.subscribe()
    client.unsubscribe()

    lost = node.client()
    lost.subscribe()
    lost.leave()
    again = node.client()
    again.subscribe()

    assert again.attempts == [1]


def test_what_was_given_to_a_lost_consumer_and_never_sent_to_it_counts_no_delivery() -> None:
    node = Node(rules=QueueRules(delivery_limit=1))
    client = node.client()
    client.subscribe()
    node.send(b"x")
    client.inbox[0].sent = False

    client.leave()

    assert [(message.body, message.attempts) for message in node.queues.by_name[JOBS].ready] == [(b"x", 0)]


def test_what_was_sent_to_an_auto_consumer_that_leaves_in_order_is_settled() -> None:
    node = Node()
    client = node.client()
    client.subscribe(ack=Ack.AUTO)
    node.send(b"x")

    client.unsubscribe()

    assert node.depth() == 0


def test_message_that_no_client_has_seen_counts_no_delivery() -> None:
    node = Node(rules=QueueRules(delivery_limit=1))
    node.lending.borrower_connected("b")
    node.send(b"x")

    for turn in range(1, 4):
        node.offer("b", turn)
        node.decide(lambda out: node.lending.returned("b", [(Dot(A, 1), Back.UNSEEN, None)], out))

    assert node.ready() == [b"x"]
    assert node.queues.by_name[JOBS].ready[0].attempts == 0


def test_message_that_fails_on_a_peer_is_dead_lettered_by_its_owner() -> None:
    node = Node(rules=THREE)
    node.lending.borrower_connected("b")
    node.send(b"x")
    node.offer("b", 1)

    out = node.decide(lambda out: node.lending.returned("b", [(Dot(A, 1), Back.REJECTED, None)], out))

    assert headers_of(letters_in(out)[0])[0] == "dead-letter-reason:rejected"
    assert node.settled_dots() == [Dot(A, 1)]
    assert not node.lending.lent["b"]


def test_borrowed_message_is_not_dead_lettered_here_but_returned_with_what_its_consumer_asks() -> None:
    node = Node(rules=QueueRules(delivery_limit=1))
    node.borrowing.owner_connected("b")
    asks = Asks(delivery_limit=7)
    client = node.client()
    client.subscribe(asks=asks)
    node.borrow(message_of(Origin("b", 1), 1, owner="b"))

    out = client.nack(client.inbox[0], Back.REJECTED)

    assert [(m.dot, why, asked) for m, why, asked in out.peer_returns["b"]] == [
        (Dot(Origin("b", 1), 1), Back.REJECTED, asks)
    ]
    assert out.records == []
    assert node.depth(DEAD_LETTERS) == 0


# What a consumer asks for comes before the policy


def test_consumer_may_ask_for_a_limit_of_its_own() -> None:
    node, client = with_consumer(THREE, asks=Asks(delivery_limit=1))

    (letter,) = letters_in(client.nack(client.inbox[0]))

    assert headers_of(letter)[0] == "dead-letter-reason:delivery-limit"


def test_consumer_may_ask_for_no_limit() -> None:
    node, client = with_consumer(THREE, asks=Asks(delivery_limit=0))

    for _ in range(5):
        client.nack(client.inbox[-1])

    assert len(client.inbox) == 6


def test_consumer_may_ask_for_another_dead_letter_queue_or_none() -> None:
    node, client = with_consumer(THREE, asks=Asks(dead_letter=OTHER))
    (letter,) = letters_in(client.nack(client.inbox[0], Back.REJECTED))
    assert letter.envelope.destination == OTHER

    node, client = with_consumer(THREE, asks=Asks(dead_letter=""))
    assert letters_in(client.nack(client.inbox[0], Back.REJECTED)) == []
    assert node.settled_dots() == [Dot(A, 1)]


def test_consumer_may_ask_for_a_pause_of_its_own_or_none() -> None:
    node, client = with_consumer(QueueRules(), asks=Asks(redelivery_us=5 * SECOND_US))
    client.nack(client.inbox[0])
    node.later(5 * SECOND_US - 1)
    assert len(client.inbox) == 1
    node.later(1)
    assert len(client.inbox) == 2

    node, client = with_consumer(QueueRules(), asks=Asks(redelivery_us=0))
    client.nack(client.inbox[0])
    assert len(client.inbox) == 2


def test_what_a_peers_consumer_asks_counts_at_the_owner() -> None:
    node = Node(rules=THREE)
    node.lending.borrower_connected("b")
    node.send(b"x")
    node.offer("b", 1)
    asks = Asks(delivery_limit=1, dead_letter=OTHER)

    out = node.decide(lambda out: node.lending.returned("b", [(Dot(A, 1), Back.FAILED, asks)], out))

    (letter,) = letters_in(out)
    assert letter.envelope.destination == OTHER


# The pause after a failure


def test_failed_message_waits_longer_each_time() -> None:
    node, client = with_consumer(QueueRules(redelivery_us_min=100, redelivery_us_max=250))

    for pause in (100, 200, 250, 250):
        count = len(client.inbox)
        client.nack(client.inbox[-1])
        node.later(pause - 1)
        assert len(client.inbox) == count
        node.later(1)
        assert len(client.inbox) == count + 1
        check_accounts(node)


def test_failed_message_does_not_hold_up_the_others_and_stands_at_its_old_place_when_it_is_back() -> None:
    node = Node(rules=QueueRules(redelivery_us_min=SECOND_US))
    client = node.client()
    client.subscribe(credit=1)
    for body in (b"1", b"2", b"3"):
        node.send(body)

    client.nack(client.inbox[0])
    assert client.bodies == [b"1", b"2"]
    node.later(SECOND_US)
    client.ack(client.inbox[1])

    assert client.bodies == [b"1", b"2", b"1"]


def test_failed_message_that_is_settled_elsewhere_during_its_pause_stays_gone() -> None:
    node, client = with_consumer(QueueRules())
    client.nack(client.inbox[0])

    node.broker.accept_settles(JOBS, [Dot(A, 1)], {A: 1}, Dot(Origin("b", 1), 1))
    node.later(60 * SECOND_US)

    assert len(client.inbox) == 1
    client.leave()
    check_empty(node)


def test_rejection_in_a_transaction_counts_at_commit_only() -> None:
    node, client = with_consumer(AT_ONCE)
    client.begin()
    client.hold(HeldFrame(delivery=client.inbox[0], is_ack=False, why=Back.REJECTED))
    client.hold(HeldFrame(envelope=envelope(OTHER), body=b"new"))
    assert node.depth() == 1

    out = client.commit()

    assert {letter.envelope.destination for letter in letters_in(out)} == {DEAD_LETTERS, OTHER}
    assert node.settled_dots() == [Dot(A, 1)]


def test_on_a_full_disk_no_letter_is_written_and_the_message_waits_until_there_is_room() -> None:
    node = Node()
    client = node.client()
    client.subscribe(credit=1)
    node.send(b"x")
    node.broker.send_limits.disk_full = True

    client.nack(client.inbox[0], Back.REJECTED)
    client.leave()
    node.later(3600 * SECOND_US)
    assert (node.depth(), node.depth(DEAD_LETTERS)) == (1, 0)

    node.broker.send_limits.disk_full = False
    again = node.client()
    again.subscribe(credit=1)
    again.nack(again.inbox[0], Back.REJECTED)
    assert (node.depth(), node.depth(DEAD_LETTERS)) == (0, 1)


def test_on_a_full_disk_what_expired_waits_for_its_letter() -> None:
    node = Node(rules=QueueRules(keeps_dropped=True))
    node.send(b"x", headers=b"ttl:1000\n")
    node.broker.send_limits.disk_full = True
    node.later(10 * SECOND_US)
    assert (node.depth(), node.depth(DEAD_LETTERS)) == (1, 0)

    node.broker.send_limits.disk_full = False
    node.later(10 * SECOND_US)

    assert (node.depth(), node.depth(DEAD_LETTERS)) == (0, 1)


# While another node may serve


@pytest.mark.parametrize("why", [Back.FAILED, Back.REJECTED, Back.RELEASED])
def test_node_that_may_not_serve_counts_the_failure_and_buries_when_it_may(why: Back) -> None:
    node, client = with_consumer(QueueRules(delivery_limit=1))
    node.queues.held = True

    out = client.leave() if why is Back.RELEASED else client.nack(client.inbox[0], why)

    assert (letters_in(out), counts_in(out)) == ([], {Dot(A, 1): 1})
    assert node.depth() == 1
    check_accounts(node)
    after = node.decide(node.queues.release_hold)
    assert len(letters_in(after)) == 1
    assert (node.depth(), node.depth(DEAD_LETTERS)) == (0, 1)
    assert len(client.inbox) == 1
    check_accounts(node)


def test_message_that_another_node_serves_by_then_is_not_dead_lettered_beside_it() -> None:
    node, client = with_consumer(QueueRules(delivery_limit=1))
    node.queues.held = True
    client.nack(client.inbox[0], Back.REJECTED)

    node.queues.handoff.cede("a", "b")

    assert letters_in(node.decide(node.queues.release_hold)) == []
    check_accounts(node)


def test_message_that_the_other_node_has_settled_by_then_is_not_dead_lettered() -> None:
    node, client = with_consumer(QueueRules(delivery_limit=1))
    node.queues.held = True
    client.nack(client.inbox[0], Back.REJECTED)
    node.broker.accept_settles(JOBS, [Dot(A, 1)], {A: 1}, Dot(Origin("b", 1), 1))

    assert letters_in(node.decide(node.queues.release_hold)) == []
    client.leave()
    check_empty(node)


def test_node_without_any_link_buries_what_no_other_can_have() -> None:
    node = Node(rules=QueueRules(delivery_limit=1))
    node.queues.held = True
    node.queues.isolated_mode.begin(node.broker.next_sequence - 1)
    client = node.client()
    client.subscribe()
    node.send(b"x")

    assert len(letters_in(client.nack(client.inbox[0]))) == 1
