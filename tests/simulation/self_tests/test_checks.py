"""The checks themselves: every invariant is broken once by hand, and found. What is right is not accused."""

import random

import pytest
import trio
from trio.testing import MockClock

from qmq.model.dots import Dot, Origin
from qmq.storage.format.batch import HEAD_BYTES, BatchHead, encode_batch, read_head
from qmq.storage.format.record import RecordKind, pack_envelope, pack_record
from tests.simulation.checks import can_decide, fanouts, members, moves, poison, queues, records, reports, topics, turns
from tests.simulation.evidence import AllowedLosses, Loss, destroyed, published
from tests.simulation.ledger import Given, Ledger, Place, Sent, Stream, dot_of, id_of, resume_header
from tests.simulation.workloads.names import TUBE, TUBES

N1, N2 = Origin("n1", 1), Origin("n2", 2)
FANOUT, QUEUE = "/fanout/a", "/queue/x"


def batch(origin: Origin, first: int, *messages: Sent) -> tuple[BatchHead, bytes]:
    """One batch of PUBLISH records that begins at `first`."""
    records = [
        pack_record(first + number, 1, RecordKind.PUBLISH, 0, pack_envelope(message.destination, b""), message.body)
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
        rng = random.Random(1)
        return [ledger.send("p0", number, "n1", name, rng) for number, name in enumerate(destinations, 1)]

    sent = trio.run(send, clock=MockClock())
    for message in sent:
        message.receipted_by = N1 if receipted else None
    return ledger, sent


def test_a_hole_in_a_log_is_found() -> None:
    _, (one, two) = ledger_with(FANOUT, FANOUT)
    whole = {N1: [batch(N1, 1, one), batch(N1, 2, two)]}
    holed = {N1: [batch(N1, 1, one), batch(N1, 3, two)]}

    assert records.holes("n1", whole, {N1: 2}) == []
    assert [wrong.split(":")[0] for wrong in records.holes("n1", holed, {N1: 3})] == ["I3 hole"]
    assert [wrong.split(":")[0] for wrong in records.holes("n1", whole, {N1: 5})] == ["I3 vector"]


def test_a_session_may_fail_of_a_disk_that_was_made_to_fail_and_of_nothing_else() -> None:
    failed = "! 16 session failed: commit failed: [Errno 5] made to fail"
    other = "! 16 session failed; its connection is closed, others continue"

    assert reports.unexplained([failed, other], AllowedLosses()) == [other]


def test_only_what_a_lost_disk_had_may_be_reported_as_lost() -> None:
    line = f"! EVENT lost: the message {Dot(N1, 3)} of {QUEUE} cannot be restored: it was damaged here"

    assert reports.unexplained([line], AllowedLosses(dots={Dot(N1, 3)})) == []
    assert reports.unexplained([line, "! else"], AllowedLosses(dots={Dot(N1, 4)})) == [line, "! else"]


def test_logs_that_differ_in_a_byte_are_found_and_a_shorter_one_is_fine() -> None:
    _, (one, two) = ledger_with(FANOUT, FANOUT)
    long = {N1: [batch(N1, 1, one), batch(N1, 2, two)]}
    short = {N1: [batch(N1, 1, one)]}
    other = {N1: [batch(N1, 1, two)]}

    assert records.differences({"n1": long, "n2": short}) == []
    assert [wrong.split(":")[0] for wrong in records.differences({"n1": long, "n2": other})] == ["I3 divergence"]


def test_what_no_client_sent_or_what_stands_twice_or_out_of_order_is_found() -> None:
    ledger, (one, two) = ledger_with(FANOUT, FANOUT)
    stranger = Sent("p9.1", "p9", 1, FANOUT, b"p9.1\0", 0.0, "n1")

    def wrongs(*messages: Sent) -> list[str]:
        log = {N1: [batch(N1, 1, *messages)]}
        return [" ".join(wrong.split()[:2]) for wrong in records.inventions(published([log]), ledger)]

    assert wrongs(one, two) == []
    assert wrongs(one, stranger) == ["I2 log:"]
    assert wrongs(two, one) == ["I4 log:"]
    assert "I2 twice:" in wrongs(one, one)
    one.body += b"!"
    changed = Sent(one.id, "p0", 1, FANOUT, one.body[:-1], 0.0, "n1")
    assert wrongs(changed) == ["I2 log:"]


def test_what_has_no_receipt_may_come_after_what_its_publisher_sent_over_the_next_connection() -> None:
    ledger, (one, two, three) = ledger_with(QUEUE, QUEUE, QUEUE)
    two.receipted_by = three.receipted_by = None
    log = published([{N1: [batch(N1, 1, three, one, two)]}])

    assert [wrong.split(":")[0] for wrong in records.inventions(log, ledger)] == ["I4 log"]
    three.connected_at = 1.5
    assert records.inventions(log, ledger) == []


def test_what_stands_in_the_log_of_another_node_than_it_was_sent_to_is_found_unless_it_is_adopted() -> None:
    ledger, (one, two) = ledger_with(QUEUE, QUEUE)
    logged = published([{N2: [batch(N2, 1, two, one)]}])  # adopted in the order of their priorities
    adopted = members.adopted(logged, ledger, "n1")

    assert [wrong.split(":")[0] for wrong in records.inventions(logged, ledger)] == [
        "I2 elsewhere",
        "I2 elsewhere",
        "I4 log",
    ]
    assert records.inventions(logged, ledger, adopted) == []
    assert members.adopted_twice(adopted) == []


def test_adopted_messages_are_known_without_the_journal_of_their_first_life_and_judged_beside_it() -> None:
    ledger, (one, two) = ledger_with(QUEUE, QUEUE)
    first = {N1: [batch(N1, 1, one, two)]}
    twice = {N2: [batch(N2, 1, two, one, two)]}

    for logs in ([twice], [first, twice]):
        logged = published(logs)
        adopted = members.adopted(logged, ledger, "n1")
        assert members.adopted_twice(adopted) == [f"I24 adopted 2 times: {two.id}"]
        assert records.inventions(logged, ledger, adopted) == []


def test_of_adopted_messages_the_body_is_judged_and_of_their_first_life_the_order() -> None:
    ledger, (one, two) = ledger_with(QUEUE, QUEUE)
    logged = published([{N1: [batch(N1, 1, two, one)], N2: [batch(N2, 1, two)]}])
    adopted = members.adopted(logged, ledger, "n1")

    assert list(adopted) == [Dot(N2, 1)]
    assert [wrong.split(":")[0] for wrong in records.inventions(logged, ledger, adopted)] == ["I4 log"]
    two.body += b"!"
    wrongs = records.inventions(logged, ledger, adopted)
    assert [wrong.split(" holds")[0] for wrong in wrongs] == [f"I2 log: {Dot(N1, 1)}", f"I2 log: {Dot(N2, 1)}"]


def test_only_queue_messages_of_the_node_that_left_are_adopted() -> None:
    ledger, (one, two) = ledger_with(FANOUT, QUEUE)
    logged = published([{N2: [batch(N2, 1, one, two)]}])

    assert list(members.adopted(logged, ledger, "n1")) == [Dot(N2, 2)]
    assert members.adopted(logged, ledger, "n3") == {}


def test_a_receipted_message_that_a_log_lacks_is_found_unless_its_only_disk_was_wiped() -> None:
    ledger, (one, two) = ledger_with(FANOUT, FANOUT)
    rows = {FANOUT: [(Dot(N1, 1), one.id)]}
    allowed_losses = AllowedLosses()

    assert [wrong.split(":")[0] for wrong in fanouts.lost_in_logs("n1", rows, ledger, allowed_losses)] == ["I1 log"]
    allowed_losses.ids[two.id] = Dot(N1, 2)
    assert fanouts.lost_in_logs("n1", rows, ledger, allowed_losses) == []


def test_a_message_without_a_receipt_may_be_missing() -> None:
    ledger, _ = ledger_with(FANOUT, QUEUE, receipted=False)

    assert fanouts.lost_in_logs("n1", {FANOUT: []}, ledger, AllowedLosses()) == []
    assert queues.lost(ledger, AllowedLosses()) == []


def test_a_subscriber_must_get_exactly_the_log() -> None:
    ledger, (one, two) = ledger_with(FANOUT, FANOUT)
    stream = Stream("s0", FANOUT)
    ledger.streams.append(stream)
    rows = {FANOUT: [(Dot(N1, 1), one.id), (Dot(N1, 2), two.id)]}
    ledger.follow(stream, Dot(N1, 1), one.id)
    allowed_losses = AllowedLosses()

    assert [wrong.split(":")[0] for wrong in fanouts.streams_against(rows, ledger, allowed_losses)] == ["I1 subscriber"]
    ledger.follow(stream, Dot(N1, 2), two.id)
    assert fanouts.streams_against(rows, ledger, allowed_losses) == []
    ledger.follow(stream, Dot(N2, 1), "p0.3")
    assert [wrong.split(":")[0] for wrong in fanouts.streams_against(rows, ledger, allowed_losses)] == ["I5 ghost"]
    allowed_losses.dots.add(Dot(N2, 1))
    assert fanouts.streams_against(rows, ledger, allowed_losses) == []
    assert ledger.wrongs == []


def test_a_subscriber_notices_repeats_and_the_wrong_order() -> None:
    ledger, (one, two) = ledger_with(FANOUT, FANOUT)
    stream = Stream("s0", FANOUT)

    for dot, message in ((Dot(N1, 5), two), (Dot(N1, 5), two), (Dot(N1, 4), one)):
        ledger.follow(stream, dot, message.id)

    assert [wrong.split(":")[0] for wrong in ledger.wrongs] == ["I5 twice", "I4 order"]
    assert stream.vector == {N1: 5}


def test_what_a_log_has_is_not_missing() -> None:
    ledger, (one, two) = ledger_with(FANOUT, FANOUT)
    rows = {"n1": {FANOUT: [(Dot(N1, 1), one.id), (Dot(N1, 4), two.id)]}}

    assert ledger.miss("s0", FANOUT, f"{N1}=2-3") == {N1: 3}
    assert fanouts.gaps_that_are_none(rows, ledger) == []
    ledger.miss("s0", FANOUT, f"{N1}=2-4,{N2}=1-1")

    assert len(fanouts.gaps_that_are_none(rows, ledger)) == 1


def test_a_receipt_for_two_disks_is_excused_only_by_the_loss_of_two_that_had_the_message() -> None:
    ledger, (one, two) = ledger_with(QUEUE, QUEUE)
    one.copies, two.copies = 1, 2
    first, second = Dot(N1, 1), Dot(N1, 2)
    allowed_losses = AllowedLosses(
        ids={one.id: first, two.id: second},
        losses=[
            Loss("n2", frozenset([first]), was_on_disk=True),
            Loss("n1", frozenset([first, second]), was_on_disk=True),
            Loss("n1", frozenset([second]), was_on_disk=True),
        ],
    )

    wrongs = queues.lost_copies(ledger, allowed_losses)

    assert len(wrongs) == 1 and two.id in wrongs[0]
    assert queues.lost_copies(ledger, allowed_losses, {two.id}) == [], "another attempt stands in a log"
    allowed_losses.losses.append(Loss("n3", frozenset([second]), was_on_disk=False))
    assert len(queues.lost_copies(ledger, allowed_losses)) == 1, "a node without a disk had no copy"
    allowed_losses.losses.append(Loss("n4", frozenset([second]), was_on_disk=True))
    assert queues.lost_copies(ledger, allowed_losses) == []


def test_a_hole_is_excused_by_damage_to_just_what_is_missing() -> None:
    _, (one, two, three) = ledger_with(FANOUT, FANOUT, FANOUT)
    holed = {N1: [batch(N1, 1, one), batch(N1, 3, three)]}

    assert records.holes("n1", holed, {N1: 3}, {Dot(N1, 2)}) == []
    assert len(records.holes("n1", holed, {N1: 3}, {Dot(N1, 3)})) == 1
    assert records.holes("n1", holed, {N1: 4}, {Dot(N1, 2), Dot(N1, 4)}) == []
    assert len(records.holes("n1", holed, {N1: 5}, {Dot(N1, 2), Dot(N1, 4)})) == 1
    astray = {N1: [holed[N1][1], *holed[N1]]}
    assert records.holes("n1", astray, {N1: 3}, {Dot(N1, 2)}) == []
    assert records.holes("n1", astray, {N1: 3}) != []


def test_of_a_damaged_file_only_the_batches_whose_bytes_are_gone_are_lost() -> None:
    _, (one, two, three) = ledger_with(QUEUE, QUEUE, QUEUE)
    (_, first), (_, both) = batch(N1, 1, one), batch(N1, 2, two, three)
    elsewhere = batch(N1, 4, one)[1]
    spoilt = bytearray(first + both)
    spoilt[len(first) + 20] ^= 1

    gone = destroyed([first, both, elsewhere], first + both, bytes(spoilt))

    assert gone == {Dot(N1, 2): two.id, Dot(N1, 3): three.id}


def test_what_a_misplaced_head_reaches_over_is_lost_too_and_what_stands_behind_it_is_not() -> None:
    _, sent = ledger_with(*[QUEUE] * 12)
    head, long = batch(N1, 1, *sent[:6])
    short = [batch(N1, 7 + number, message)[1] for number, message in enumerate(sent[6:])]
    whole = b"".join([long, *short])
    # A write went astray: a whole batch, and the beginning of a long one.
    copied = short[0] + long[: HEAD_BYTES + 4 * head.count]
    at = len(long) + 10
    spoilt = whole[:at] + copied + whole[at + len(copied) :]
    reaches = at + len(short[0]) + head.size
    within = [message.id for message, data in zip(sent[6:], short, strict=True) if whole.index(data) < reaches]
    assert spoilt.find(short[3]) + len(short[3]) < reaches, "one stands there as it was"

    gone = destroyed([long, *short], whole, spoilt)

    assert list(gone.values()) == within
    assert sent[-1].id not in within


def test_a_queue_message_that_reached_no_consumer_is_found() -> None:
    ledger, (one, two) = ledger_with(QUEUE, QUEUE)
    ledger.consumed.add(one.id)

    wrongs = queues.lost(ledger, AllowedLosses())

    assert len(wrongs) == 1 and two.id in wrongs[0]
    assert queues.lost(ledger, AllowedLosses(ids={two.id: Dot(N1, 2)})) == []


def test_a_second_delivery_after_the_receipt_of_its_ack_is_counted_by_the_level_of_the_receipt() -> None:
    ledger, (one, two) = ledger_with(QUEUE, QUEUE)

    ledger.give(one.id, "n1")
    ledger.give(one.id, "n2")
    assert ledger.again_after_edge == []
    ledger.receipt_of_ack(one.id, "n1")
    ledger.give(one.id, "n2")

    assert ledger.again_after_edge == [one.id]
    assert ledger.again_at_same_node == []
    ledger.give(one.id, "n1")
    assert ledger.again_at_same_node == [("n1", one.id)]
    assert ledger.delivered == {one.id: 4}
    ledger.settled_for_good[two.id] = 0.0
    ledger.ack_receipted[two.id] = {"n1"}
    ledger.give(two.id, "n2")
    assert (ledger.again_after_edge, ledger.again_after_quorum) == ([one.id, one.id], [two.id])


def test_a_torn_transaction_is_found() -> None:
    ledger, (one, two, isolated_mode) = ledger_with(FANOUT, QUEUE, QUEUE)
    one.transaction = two.transaction = 1

    def wrongs(*messages: Sent) -> int:
        logged = published([{N1: [batch(N1, 1, *messages)]}])
        return len(records.torn_transactions(logged, ledger, AllowedLosses()))

    assert (wrongs(one, two), wrongs(isolated_mode), wrongs(one, isolated_mode)) == (0, 0, 1)


def test_a_topic_message_that_a_listener_missed_is_found_once_interest_has_spread() -> None:
    ledger, (early, late) = ledger_with("/topic/t", "/topic/t")
    late.at = topics.TOPICS_SECONDS
    seen = ledger.listeners.setdefault("l0", set())

    assert len(topics.unseen(ledger)) == 1
    seen.add(late.id)
    assert topics.unseen(ledger) == []


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


INSISTED = "/fanout/insisted"


def test_a_message_that_was_sent_again_and_stands_twice_is_found() -> None:
    once = {INSISTED: [(Dot(N1, 1), "i0.1"), (Dot(N2, 4), "i0.2")]}
    twice = {INSISTED: [*once[INSISTED], (Dot(N2, 5), "i0.1")]}

    assert moves.appended_without_a_fault(once) == []
    assert len(moves.appended_without_a_fault(twice)) == 1


def test_what_was_insisted_on_and_is_in_no_log_is_found() -> None:
    ledger, (one,) = ledger_with(INSISTED)

    assert moves.lost_when_insisted("n1", {INSISTED: [(Dot(N1, 1), one.id)]}, ledger, AllowedLosses()) == []
    assert len(moves.lost_when_insisted("n1", {INSISTED: []}, ledger, AllowedLosses())) == 1
    assert moves.lost_when_insisted("n1", {INSISTED: []}, ledger, AllowedLosses(ids={one.id: Dot(N1, 1)})) == []


def test_what_a_durable_subscription_was_never_given_is_found() -> None:
    place = Place(FANOUT, given={"p0.1": 1})
    ledger = Ledger(places=[place])

    assert moves.places_against({FANOUT: [(Dot(N1, 1), "p0.1")]}, ledger, AllowedLosses()) == []
    missed = {FANOUT: [(Dot(N1, 1), "p0.1"), (Dot(N1, 2), "p0.2")]}
    assert len(moves.places_against(missed, ledger, AllowedLosses())) == 1
    assert moves.places_against(missed, ledger, AllowedLosses(dots={Dot(N1, 2)})) == []


def test_what_comes_again_after_its_ack_is_found_at_the_same_node_and_after_a_moment_at_others() -> None:
    place = Place(FANOUT)
    ledger = Ledger(places=[place])

    async def live() -> None:
        before = trio.current_time()
        place.give("p0.1", "n1", before)
        place.acknowledge("p0.1", "n1")
        place.give("p0.1", "n2", trio.current_time())
        assert moves.given_again_without_a_fault(ledger) == []
        await trio.sleep(1)
        place.give("p0.1", "n1", before)
        assert moves.given_again_where_acknowledged(ledger, ()) == []
        place.give("p0.1", "n2", trio.current_time())
        assert len(moves.given_again_without_a_fault(ledger)) == 1
        assert moves.given_again_where_acknowledged(ledger, ()) == []
        place.give("p0.1", "n1", trio.current_time())

    trio.run(live, clock=MockClock(autojump_threshold=0))

    assert len(moves.given_again_where_acknowledged(ledger, ())) == 1
    assert moves.given_again_where_acknowledged(ledger, {"n1"}) == []


@pytest.mark.parametrize(
    ("nodes", "core", "learners", "decides"),
    [
        (3, 2, 0, True),
        (3, 2, 1, False),  # it needs both others, and one is away
        (3, 3, 1, True),
        (4, 3, 1, True),
        (4, 3, 2, False),  # each needs the one that is away: the other one has forgotten as much
        (4, 4, 2, True),
        (5, 3, 0, True),
        (5, 3, 1, False),
        (5, 4, 1, True),
        (3, 1, 0, False),
    ],
)
def test_a_core_must_run_its_queues_dry_only_if_its_learners_can_learn_without_the_rest(
    nodes: int, core: int, learners: int, decides: bool
) -> None:
    assert can_decide(nodes, core, learners) == decides


def test_what_comes_again_after_an_ack_for_good_is_found_unless_its_consumer_was_there_before() -> None:
    ledger = Ledger()

    async def live() -> None:
        before = trio.current_time()
        ledger.receipt_of_ack("p0.1", "n1", for_good=True)
        ledger.receipt_of_ack("p0.2", "n1")
        await trio.sleep(1)
        ledger.give("p0.1", "n2", before)
        ledger.give("p0.2", "n2", trio.current_time())
        assert queues.given_again_for_good(ledger) == []
        ledger.give("p0.1", "n2", trio.current_time())

    trio.run(live, clock=MockClock(autojump_threshold=0))

    assert len(queues.given_again_for_good(ledger)) == 1


def test_logs_of_which_one_lacks_what_another_holds_are_found_unless_only_a_lost_disk_had_it() -> None:
    rows = {"n1": {FANOUT: [(Dot(N1, 1), "p0.1")]}, "n2": {FANOUT: [(Dot(N1, 1), "p0.1"), (Dot(N2, 1), "p0.2")]}}

    assert [wrong.split(":")[0] for wrong in fanouts.unlike(rows, AllowedLosses())] == ["I13 log"]
    assert fanouts.unlike(rows, AllowedLosses(dots={Dot(N2, 1)})) == []
    assert fanouts.unlike({"n1": rows["n1"], "n2": rows["n1"]}, AllowedLosses()) == []


def test_what_expires_long_before_its_time_is_found() -> None:
    assert poison.early(Ledger(expired={"t0.1": 3.9, "t0.2": 3.1})) == []
    assert len(poison.early(Ledger(expired={"t0.1": 2.9}))) == 1


def test_two_consumers_of_what_only_one_may_have_are_found_but_for_a_moment_after_a_change() -> None:
    ledger = Ledger()
    exclusive, groups = ("/queue/exclusive", "n1", 0.5), [("g1", "n1", 0.5), ("g2", "n1", 0.5), ("g2", "n2", 0.5)]

    def give(of: tuple[str, str, float], who: str, at: float, changed_at: float) -> None:
        what, owner, sent_at = of
        ledger.turns.given.append(Given(what, who, at, changed_at, sent_at, owner))

    give(exclusive, "e0", 1.1, 1.0)
    give(exclusive, "e1", 1.2, 1.0)
    give(exclusive, "e1", 1.8, 1.0)
    give(exclusive, "e0", 9.0, 2.0)
    give(groups[0], "e0", 9.0, 2.0)
    give(groups[1], "e1", 9.0, 2.0)
    give(groups[0], "e1", 9.1, 2.0)
    give(groups[2], "e0", 9.2, 2.0)
    give(groups[1], "e1", 9.3, 2.0)
    assert turns.shared(ledger) == [], "a group may move once, of each owner when its old consumer is done"

    give(groups[0], "e0", 9.4, 2.0)
    give(exclusive, "e1", 9.4, 2.0)
    assert _shared(ledger) == ["/queue/exclusive", "g1"]

    ledger.turns.given.clear()
    give(("g3", "n1", 5.0), "e0", 9.0, 2.0)
    give(("g3", "n2", 5.0), "e1", 9.0, 2.0)
    assert _shared(ledger) == ["g3"], "owners chose differently long after the change"


def _shared(ledger: Ledger) -> list[str]:
    return sorted(wrong.split(" of ")[1].split(" ")[0] for wrong in turns.shared(ledger))


def test_a_message_that_is_given_to_a_second_consumer_while_the_first_has_it_is_found() -> None:
    ledger = Ledger()
    ledger.take_in_hand("p.1", "h0")
    ledger.take_in_hand("p.2", "h1")
    assert ledger.wrongs == []

    ledger.take_in_hand("p.1", "h1")

    assert [wrong.split(":")[0] for wrong in ledger.wrongs] == ["I24 two hands"]


@pytest.mark.parametrize(("mark", "wrongs"), [("true", 0), ("", 1)])
async def test_a_message_that_is_read_again_without_the_mark_is_found(mark: str, wrongs: int) -> None:
    ledger = Ledger()
    ledger.note_mark({"message-id": "n1-1-1", "destination": QUEUE})
    ledger.note_mark({"message-id": "n1-1-2", "destination": QUEUE})
    assert queues.unmarked(ledger) == []

    ledger.note_mark({"message-id": "n1-1-1", "destination": QUEUE, "redelivered": mark})

    assert [wrong.split(":")[0] for wrong in queues.unmarked(ledger)] == ["I25 unmarked"] * wrongs


@pytest.mark.parametrize(
    ("records", "wrongs"),
    [
        ({"n1-1": False}, 0),
        ({"n2-1": True}, 0),
        ({"n2-1": True, "n3-1": True}, 0),
        ({"n1-1": False, "n4-1": False}, 0),
        ({"n1-1": False, "n2-1": True}, 1),
    ],
)
def test_a_first_attempt_that_is_given_beside_a_retry_is_noticed(records: dict[str, bool], wrongs: int) -> None:
    ledger = Ledger(records_given={"j0.1": records})

    assert [wrong.split(":")[0] for wrong in queues.given_as_two_records(ledger)] == ["I26 twice"] * wrongs


def test_only_a_job_that_was_released_or_buried_may_be_in_a_second_message() -> None:
    ledger, (job,) = ledger_with(TUBE)
    moved = Sent(job.id, job.publisher, job.number, TUBES[1], job.body, job.at, job.node)
    logs = {"n1": {N1: [batch(N1, 1, job)], N2: [batch(N2, 1, moved)]}}

    wrongs = records.inventions(published(logs.values()), ledger)
    ledger.rewritten.add(job.id)

    assert [wrong.split(":")[0] for wrong in wrongs] == ["I2 log"]
    assert records.inventions(published(logs.values()), ledger) == []


def test_a_job_has_one_id_for_good() -> None:
    ledger = Ledger()
    ledger.name_job("bp0.1", 7, "n1")
    ledger.name_job("bp0.1", 7, "n2")
    assert ledger.wrongs == []

    ledger.name_job("bp0.1", 8, "n2")
    ledger.name_job("bp0.2", 7, "n1")

    assert [wrong.split(":")[0] for wrong in ledger.wrongs] == ["B1 id", "B1 id"]
