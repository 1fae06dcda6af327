"""Dead letters that go to an exchange: which queues get one, in which records, and what never goes round."""

from collections.abc import Callable

import pytest

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.consumers.session import HeldFrame
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.limits import COPIES_BYTES_MAX, COPIES_MAX
from qmq.broker.messages.message import DeadLetter, Message, Settle
from qmq.broker.messages.rules import DEAD_LETTERS, DEFAULT_RULES, QueueRules
from qmq.broker.queues.dead_letters import PATH_MAX
from qmq.broker.routing.binding import Binding, Exchange
from qmq.broker.routing.table import RoutingTable
from qmq.errors import Refused
from qmq.model.dots import Dot, Origin
from qmq.record_codec import encode_records
from qmq.storage.format.batch import batch_records
from qmq.storage.format.record import RecordKind

from ..rig import JOBS, SECOND_US, Client, Node, check_accounts

A = Origin("a", 1)
AUDIT, BAD, WAIT = "/queue/audit", "/queue/bad", "/queue/wait"
TO_X = QueueRules(dead_letter="/exchange/x/k", keeps_dropped=True)


def routes(*bindings: Binding, type: str = "direct") -> RoutingTable:
    table = RoutingTable()
    table.put_exchange(Exchange("x", type))
    for binding in bindings:
        table.add(binding)
    return table


def node_with(
    *queues: str,
    key: str = "k",
    rules: QueueRules = TO_X,
    of: Callable[[str], QueueRules | None] = lambda name: None,
) -> Node:
    """A node whose exchange `x` leads messages with `key` to `queues`; JOBS has `rules`."""
    table = routes(*(Binding("/exchange/x", queue, key, {}) for queue in queues))
    return Node(rules_of=lambda name: of(name) or (rules if name == JOBS else DEFAULT_RULES), route=table.route)


def reject(node: Node, *, headers: bytes = b"", body: bytes = b"m") -> Outcome:
    client = node.client()
    client.subscribe()
    node.send(body, headers=headers)
    return client.nack(client.inbox[-1], Back.REJECTED)


def depths(node: Node, *queues: str) -> dict[str, int]:
    return {queue: node.depth(queue) for queue in queues if node.depth(queue)}


def headers_of(node: Node, queue: str) -> list[str]:
    (message,) = node.queues.by_name[queue].ready
    return message.envelope.headers.decode().splitlines()


def test_each_queue_that_the_exchange_leads_to_gets_a_letter() -> None:
    node = node_with(AUDIT, BAD)

    reject(node, headers=b"n:1\n")

    assert depths(node, JOBS, AUDIT, BAD, DEAD_LETTERS) == {AUDIT: 1, BAD: 1}
    said = ["dead-letter-reason:rejected", f"dead-letter-from:{JOBS}", f"dead-letter-id:{A}-1"]
    assert (
        headers_of(node, AUDIT)
        == headers_of(node, BAD)
        == [
            *said,
            "dead-letter-deliveries:1",
            "dead-letter-through:/exchange/x/k",
            "qmq-copies-left:500",
            "n:1",
        ]
    )
    check_accounts(node)


def test_letters_are_records_of_one_batch_and_the_last_one_settles_the_message() -> None:
    node = node_with(AUDIT, BAD)

    out = reject(node)

    first, last = out.records
    assert isinstance(first, Message) and isinstance(last, DeadLetter)
    assert (first.envelope.destination, last.dead_letter.envelope.destination) == (AUDIT, BAD)
    assert (first.sequence, last.sequence, last.dot) == (2, 3, Dot(A, 1))
    (batch,) = encode_records(A, [out])
    assert [record.kind for record in batch_records(batch)] == [RecordKind.PUBLISH, RecordKind.DEAD]


def test_letters_of_one_message_stay_in_one_batch_when_a_decision_is_too_large_for_one() -> None:
    node = node_with(*(f"/queue/{number}" for number in range(8)))
    client = node.client()
    client.subscribe(credit=100)
    for number in range(26):
        node.send(bytes([number]) * (1 << 18))
    out = Outcome(now_us=node.now_us)

    for delivery in list(client.inbox):
        node.broker.refuse(delivery, out, Back.REJECTED)
    node.broker.finish(out, node.now_us)
    batches = encode_records(A, [out])

    assert len(batches) > 1
    assert all(record.kind == RecordKind.DEAD for batch in batches for record in batch_records(batch)[-1:])


def test_a_message_that_no_binding_chooses_is_kept_among_the_default_dead_letters() -> None:
    node = node_with(BAD, key="other")

    reject(node)

    assert depths(node, JOBS, BAD, DEAD_LETTERS) == {DEAD_LETTERS: 1}


def test_an_exchange_that_does_not_exist_leads_to_the_default_dead_letters() -> None:
    node = node_with(BAD, rules=QueueRules(dead_letter="/exchange/missing/k"))

    reject(node)

    assert depths(node, JOBS, DEAD_LETTERS) == {DEAD_LETTERS: 1}


@pytest.mark.parametrize(
    ("target", "headers", "key"),
    [
        ("/exchange/x/a/b", b"routing-key:own\n", "a/b"),
        ("/exchange/x/", b"routing-key:own\n", ""),
        ("/exchange/x", b"routing-key:own\n", "own"),
        ("/exchange/x", b"", "jobs"),
    ],
)
def test_the_key_is_that_of_the_policy_or_of_the_message_or_the_name_of_its_queue(
    target: str, headers: bytes, key: str
) -> None:
    node = node_with(BAD, key=key, rules=QueueRules(dead_letter=target))

    reject(node, headers=headers)

    assert depths(node, BAD, DEAD_LETTERS) == {BAD: 1}


def test_a_headers_exchange_compares_the_headers_of_the_sender_and_why_it_is_a_letter() -> None:
    by_reason = Binding("/exchange/x", BAD, "", {"dead-letter-reason": "rejected", "n": "1"})
    not_sent = Binding("/exchange/x", AUDIT, "", {"destination": None})
    table = routes(by_reason, not_sent, type="headers")
    node = Node(rules=TO_X, route=table.route)

    reject(node, headers=b"n:1\n")

    assert depths(node, AUDIT, BAD, DEAD_LETTERS) == {BAD: 1}


def test_letters_of_what_is_in_memory_only_are_in_memory_only() -> None:
    node = node_with(AUDIT, BAD)
    client = node.client()
    client.subscribe()
    node.send(durable=False)

    out = client.nack(client.inbox[0], Back.REJECTED)

    assert out.records == []
    assert depths(node, JOBS, AUDIT, BAD) == {AUDIT: 1, BAD: 1}


def test_what_expires_or_does_not_fit_goes_there_too() -> None:
    node = node_with(
        AUDIT,
        BAD,
        rules=QueueRules(dead_letter="/exchange/x/k", keeps_dropped=True, messages_max=1, overflow="drop-oldest"),
    )
    node.send(b"old", headers=b"ttl:1000\n")
    node.send(b"new", headers=b"ttl:1000\n")
    assert (node.ready(AUDIT), node.ready(BAD)) == ([b"old"], [b"old"])

    node.later(2 * SECOND_US)

    assert (node.ready(AUDIT), node.ready(BAD), node.ready()) == ([b"old", b"new"], [b"old", b"new"], [])
    check_accounts(node)


# What goes round


def test_a_letter_does_not_go_to_the_queue_that_it_leaves() -> None:
    node = node_with(JOBS, BAD)

    reject(node)

    assert depths(node, JOBS, BAD, DEAD_LETTERS) == {BAD: 1}


def test_a_message_that_only_its_own_queue_would_get_is_kept_among_the_default_dead_letters() -> None:
    node = node_with(JOBS)

    reject(node)

    assert depths(node, JOBS, DEAD_LETTERS) == {DEAD_LETTERS: 1}


def waits_and_returns() -> Node:
    """JOBS → x → WAIT, where messages live for a second; WAIT → x → JOBS."""
    table = routes(Binding("/exchange/x", WAIT, "wait", {}), Binding("/exchange/x", JOBS, "jobs", {}))
    rules = {
        JOBS: QueueRules(dead_letter="/exchange/x/wait", keeps_dropped=True),
        WAIT: QueueRules(dead_letter="/exchange/x/jobs", keeps_dropped=True),
    }
    return Node(
        rules_of=lambda name: rules.get(name, DEFAULT_RULES),
        defaults_of=lambda name: {"ttl": "1000"} if name == WAIT else {},
        route=table.route,
    )


def test_a_consumer_may_refuse_a_message_again_each_time_that_it_has_waited_elsewhere() -> None:
    node = waits_and_returns()
    client = node.client()
    client.subscribe()
    node.send()

    for count in range(1, 4):
        client.nack(client.inbox[-1], Back.REJECTED)
        assert depths(node, JOBS, WAIT, DEAD_LETTERS) == {WAIT: 1}
        assert b"dead-letter-path" not in node.queues.by_name[WAIT].ready[0].envelope.headers
        node.later(2 * SECOND_US)
        assert len(client.inbox) == count + 1
        assert client.inbox[-1].message.envelope.headers.count(b"dead-letter-path:") == 1


def test_a_message_does_not_go_round_without_a_consumer() -> None:
    node = waits_and_returns()
    node.send(headers=b"ttl:1000\n", destination=WAIT)

    node.later(2 * SECOND_US)
    assert depths(node, JOBS, WAIT, DEAD_LETTERS) == {JOBS: 1}
    assert f"dead-letter-path:{WAIT}" in headers_of(node, JOBS)

    # As with a policy that has changed: what came from WAIT by itself expires here.
    (message,) = node.queues.by_name[JOBS].ready
    node.decide(lambda out: node.queues.redelivery.drop(node.queues.by_name[JOBS], message, "expired", out))
    assert depths(node, JOBS, WAIT, DEAD_LETTERS) == {DEAD_LETTERS: 1}


def test_full_queues_that_drop_into_each_other_lose_nothing_and_come_to_an_end() -> None:
    table = routes(Binding("/exchange/x", JOBS, "jobs", {}), Binding("/exchange/x", BAD, "bad", {}))
    full = [
        QueueRules(messages_max=2, overflow="drop-oldest", keeps_dropped=True, dead_letter=f"/exchange/x/{key}")
        for key in ("bad", "jobs")
    ]
    node = Node(rules_of=lambda name: {JOBS: full[0], BAD: full[1]}.get(name, DEFAULT_RULES), route=table.route)

    for number in range(10):
        node.send(b"%d" % number)

    assert node.ready() == [b"8", b"9"]
    assert node.depth(BAD) + node.depth(DEAD_LETTERS) == 8
    check_accounts(node)


def test_full_queues_whose_policies_form_a_cycle_come_to_an_end() -> None:
    """Two sides of a cut can make such policies."""
    full = [
        QueueRules(messages_max=1, overflow="drop-oldest", keeps_dropped=True, dead_letter=target)
        for target in (BAD, JOBS)
    ]
    node = Node(rules_of=lambda name: {JOBS: full[0], BAD: full[1]}.get(name, DEFAULT_RULES))

    for number in range(5):
        node.send(b"%d" % number)

    assert (node.ready(), node.depth(BAD), node.depth(DEAD_LETTERS)) == ([b"4"], 1, 3)


def test_a_letter_that_leaves_very_many_queues_by_itself_is_kept_among_the_default_dead_letters() -> None:
    path = b"".join(b"dead-letter-path:/queue/%d\n" % number for number in range(PATH_MAX))
    node = node_with(BAD)

    node.send(headers=path + b"ttl:1\n")
    node.later(SECOND_US)

    assert depths(node, JOBS, BAD, DEAD_LETTERS) == {DEAD_LETTERS: 1}


# Bounds


def test_more_letters_than_a_message_may_have_copies_are_one_among_the_default_dead_letters() -> None:
    node = node_with(*(f"/queue/{number}" for number in range(COPIES_MAX + 1)))

    reject(node)

    assert depths(node, "/queue/0", DEAD_LETTERS) == {DEAD_LETTERS: 1}


def test_letters_too_large_for_one_batch_are_one_among_the_default_dead_letters() -> None:
    node = node_with(AUDIT, BAD)

    reject(node, body=bytes(COPIES_BYTES_MAX // 2))

    assert depths(node, AUDIT, BAD, DEAD_LETTERS) == {DEAD_LETTERS: 1}


def test_all_letters_of_a_message_count_for_its_transaction() -> None:
    node = node_with(AUDIT, BAD)
    client = node.client()
    client.subscribe()
    client.begin()
    for _ in range(4):
        node.send(bytes(3 << 20))
        client.hold(held_reject(client))

    with pytest.raises(Refused, match="dead-letters"):
        client.commit()


def held_reject(client: Client) -> HeldFrame:
    return HeldFrame(delivery=client.inbox[-1], is_ack=False, why=Back.REJECTED)


def test_a_letter_that_one_queue_drops_is_kept_in_the_others() -> None:
    full = QueueRules(messages_max=1, overflow="drop-newest")
    node = node_with(AUDIT, BAD, of=lambda name: full if name == BAD else None)
    node.send(b"first", BAD)

    out = reject(node, body=b"x")

    (letter,) = out.records
    assert isinstance(letter, DeadLetter)
    assert (node.ready(AUDIT), node.ready(BAD)) == ([b"x"], [b"first"])


def test_a_letter_that_all_queues_drop_leaves_a_settle() -> None:
    full = QueueRules(messages_max=1, overflow="drop-newest")
    node = node_with(AUDIT, BAD, of=lambda name: full if name in (AUDIT, BAD) else None)
    node.send(b"first", AUDIT)
    node.send(b"first", BAD)

    (settle,) = reject(node, body=b"x").records

    assert isinstance(settle, Settle)


def test_a_letter_of_an_exchange_is_redriven_to_the_queue_that_it_comes_from() -> None:
    node = node_with(AUDIT, BAD)
    client = node.client()
    client.subscribe()
    node.send(b"x", headers=b"n:1\nrouting-key:own\n")
    client.nack(client.inbox[-1], Back.REJECTED)
    waiting = node.broker.bulk_settlement.waiting(BAD, list(node.queues.by_name[BAD].ready))

    node.decide(lambda out: node.broker.bulk_settlement.move(waiting, "", out))

    assert client.inbox[-1].message.envelope.headers == b"n:1\nrouting-key:own\n"
    assert depths(node, AUDIT, BAD) == {AUDIT: 1}
