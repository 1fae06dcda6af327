"""The judge itself: every invariant is broken once by hand, and found. What is right is not accused."""

import random

import trio
from trio.testing import MockClock

from qmq.dots import Dot, Origin
from qmq.storage.batch import BatchHead, encode_batch, read_head
from qmq.storage.record import Kind, pack_envelope, pack_record
from tests.simulation import checks
from tests.simulation.ledger import Ledger, Sent, Stream, dot_of, id_of, resume_header

N1, N2 = Origin("n1", 1), Origin("n2", 2)
FANOUT, QUEUE = "/fanout/a", "/queue/x"


def batch(origin: Origin, first: int, *messages: Sent) -> tuple[BatchHead, bytes]:
    """One batch of PUBLISH records that begins at `first`."""
    records = [
        pack_record(first + number, 1, Kind.PUBLISH, 0, pack_envelope(message.destination, b""), message.body)
        for number, message in enumerate(messages)
    ]
    data = encode_batch(origin, records, first, first + len(records) - 1, 1, 1)
    head = read_head(data)
    assert head is not None
    return head, data


def ledger_with(*destinations: str, receipted: bool = True) -> tuple[Ledger, list[Sent]]:
    """Messages of one publisher, numbered from 1."""
    ledger = Ledger()

    async def send() -> list[Sent]:
        chance = random.Random(1)
        return [ledger.send("p0", number, name, chance) for number, name in enumerate(destinations, 1)]

    sent = trio.run(send, clock=MockClock())
    for message in sent:
        message.receipted_by = N1 if receipted else None
    return ledger, sent


def test_a_hole_in_a_log_is_found() -> None:
    _, (one, two) = ledger_with(FANOUT, FANOUT)
    whole = {N1: [batch(N1, 1, one), batch(N1, 2, two)]}
    holed = {N1: [batch(N1, 1, one), batch(N1, 3, two)]}

    assert checks.holes("n1", whole, {N1: 2}) == []
    assert [wrong.split(":")[0] for wrong in checks.holes("n1", holed, {N1: 3})] == ["I3 hole"]
    assert [wrong.split(":")[0] for wrong in checks.holes("n1", whole, {N1: 5})] == ["I3 vector"]


def test_logs_that_differ_in_a_byte_are_found_and_a_shorter_one_is_fine() -> None:
    _, (one, two) = ledger_with(FANOUT, FANOUT)
    long = {N1: [batch(N1, 1, one), batch(N1, 2, two)]}
    short = {N1: [batch(N1, 1, one)]}
    other = {N1: [batch(N1, 1, two)]}

    assert checks.differences({"n1": long, "n2": short}) == []
    assert [wrong.split(":")[0] for wrong in checks.differences({"n1": long, "n2": other})] == ["I3 divergence"]


def test_what_nobody_sent_or_what_stands_twice_or_out_of_order_is_found() -> None:
    ledger, (one, two) = ledger_with(FANOUT, FANOUT)
    stranger = Sent("p9.1", "p9", 1, FANOUT, b"p9.1\0", 0.0)

    def wrongs(*messages: Sent) -> list[str]:
        log = {N1: [batch(N1, 1, *messages)]}
        return [" ".join(wrong.split()[:2]) for wrong in checks.inventions(checks.published([log]), ledger)]

    assert wrongs(one, two) == []
    assert wrongs(one, stranger) == ["I2 log:"]
    assert wrongs(two, one) == ["I4 log:"]
    assert "I2 twice:" in wrongs(one, one)
    one.body += b"!"
    changed = Sent(one.id, "p0", 1, FANOUT, one.body[:-1], 0.0)
    assert wrongs(changed) == ["I2 log:"]


def test_a_receipted_message_that_a_log_lacks_is_found_unless_its_only_disk_was_wiped() -> None:
    ledger, (one, two) = ledger_with(FANOUT, FANOUT)
    rows = {FANOUT: [(Dot(N1, 1), one.id)]}
    excuses = checks.Excuses()

    assert [wrong.split(":")[0] for wrong in checks.lost_in_logs("n1", rows, ledger, excuses)] == ["I1 log"]
    excuses.ids.add(two.id)
    assert checks.lost_in_logs("n1", rows, ledger, excuses) == []


def test_a_message_without_a_receipt_may_be_missing() -> None:
    ledger, _ = ledger_with(FANOUT, QUEUE, receipted=False)

    assert checks.lost_in_logs("n1", {FANOUT: []}, ledger, checks.Excuses()) == []
    assert checks.lost_from_queues(ledger, checks.Excuses()) == []


def test_a_subscriber_must_be_told_exactly_the_log() -> None:
    ledger, (one, two) = ledger_with(FANOUT, FANOUT)
    stream = Stream("s0", FANOUT)
    ledger.streams.append(stream)
    rows = {FANOUT: [(Dot(N1, 1), one.id), (Dot(N1, 2), two.id)]}
    ledger.follow(stream, Dot(N1, 1), one.id)
    excuses = checks.Excuses()

    assert [wrong.split(":")[0] for wrong in checks.streams_against(rows, ledger, excuses)] == ["I1 subscriber"]
    ledger.follow(stream, Dot(N1, 2), two.id)
    assert checks.streams_against(rows, ledger, excuses) == []
    ledger.follow(stream, Dot(N2, 1), "p0.3")
    assert [wrong.split(":")[0] for wrong in checks.streams_against(rows, ledger, excuses)] == ["I5 ghost"]
    excuses.dots.add(Dot(N2, 1))
    assert checks.streams_against(rows, ledger, excuses) == []
    assert ledger.wrongs == []


def test_a_subscriber_notices_repeats_and_the_wrong_order() -> None:
    ledger, (one, two) = ledger_with(FANOUT, FANOUT)
    stream = Stream("s0", FANOUT)

    for dot, message in ((Dot(N1, 5), two), (Dot(N1, 5), two), (Dot(N1, 4), one)):
        ledger.follow(stream, dot, message.id)

    assert [wrong.split(":")[0] for wrong in ledger.wrongs] == ["I5 twice", "I4 order"]
    assert stream.vector == {N1: 5}


def test_a_queue_message_that_reached_nobody_is_found() -> None:
    ledger, (one, two) = ledger_with(QUEUE, QUEUE)
    ledger.consumed.add(one.id)

    wrongs = checks.lost_from_queues(ledger, checks.Excuses())

    assert len(wrongs) == 1 and two.id in wrongs[0]
    assert checks.lost_from_queues(ledger, checks.Excuses(ids={two.id})) == []


def test_a_second_delivery_after_the_receipt_of_its_ack_is_counted() -> None:
    ledger, (one,) = ledger_with(QUEUE)

    ledger.give(one.id, "n1")
    ledger.give(one.id, "n2")
    assert ledger.redelivered_after_ack == []
    ledger.receipt_of_ack(one.id, "n1")
    ledger.give(one.id, "n2")

    assert ledger.redelivered_after_ack == [one.id]
    assert ledger.again_at_same_node == []
    ledger.give(one.id, "n1")
    assert ledger.again_at_same_node == [("n1", one.id)]
    assert ledger.delivered == {one.id: 4}


def test_a_torn_transaction_is_found() -> None:
    ledger, (one, two, alone) = ledger_with(FANOUT, QUEUE, QUEUE)
    one.transaction = two.transaction = 1

    def wrongs(*messages: Sent) -> int:
        records = checks.published([{N1: [batch(N1, 1, *messages)]}])
        return len(checks.torn_transactions(records, ledger, checks.Excuses()))

    assert (wrongs(one, two), wrongs(alone), wrongs(one, alone)) == (0, 0, 1)


def test_a_topic_message_that_a_listener_missed_is_found_once_interest_has_spread() -> None:
    ledger, (early, late) = ledger_with("/topic/t", "/topic/t")
    late.at = checks.TOPICS_SECONDS
    seen = ledger.listeners.setdefault("l0", set())

    assert len(checks.unseen_topics(ledger)) == 1
    seen.add(late.id)
    assert checks.unseen_topics(ledger) == []


def test_a_changed_or_invented_body_is_noticed_at_the_client() -> None:
    ledger, (one,) = ledger_with(FANOUT)

    assert ledger.match("s0", FANOUT, one.body) == one.id
    assert ledger.wrongs == []
    assert ledger.match("s0", FANOUT, one.body + b"x") is None
    assert ledger.match("s0", QUEUE, one.body) is None
    assert ledger.match("s0", FANOUT, b"p7.1\0") is None
    assert [wrong.split(":")[0] for wrong in ledger.wrongs] == ["I2 changed", "I2 changed", "I2 invented"]


def test_message_ids_become_dots_and_vectors_a_resume_header() -> None:
    assert dot_of("node-with-hyphens-00000000000000ff-12") == Dot(Origin("node-with-hyphens", 255), 12)
    assert resume_header({N1: 3, N2: 4}) == "n1-0000000000000001=3,n2-0000000000000002=4"
    assert id_of(b"p0.1\0\xff\0") == "p0.1"
