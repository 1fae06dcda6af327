"""Which responses wait for which copies, and for how long, without a node."""

from collections.abc import Mapping

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.receipt_levels import ACCEPTED, FSYNC, QUORUM, with_quorum
from qmq.engine.commit.receipts import answers_of
from qmq.engine.commit.replica_acks import PendingReceipt, ReplicaAcks

ANN, BOB = 1, 2


def copies() -> ReplicaAcks:
    return ReplicaAcks(("b", "c", "d"), 1.0)


def answer(receipt: str, sequence: int, level: int = 1, session: int = ANN) -> PendingReceipt:
    return PendingReceipt(session, [receipt], level=level, sequence=sequence)


def told(answers: list[PendingReceipt]) -> list[str]:
    return [receipt for answer in answers for receipt in answer.receipts]


def test_an_answer_waits_until_one_peer_has_its_record() -> None:
    waiting = copies()
    assert not waiting.ask(answer("r", 5), 0.0)

    assert waiting.peer_durable("b", 4, 0.1) == []
    freed = waiting.peer_durable("b", 5, 0.2)

    assert told(freed) == ["r"]
    assert freed[0].copies is None
    assert waiting.waiting_bytes == 0 and waiting.next_deadline is None and not waiting.holds(ANN)


def test_two_copies_are_those_of_two_peers() -> None:
    waiting = copies()
    waiting.ask(answer("r", 5, level=2), 0.0)

    assert waiting.peer_durable("b", 9, 0.1) == []
    assert waiting.peer_durable("b", 10, 0.1) == []
    assert told(waiting.peer_durable("d", 5, 0.2)) == ["r"]


def test_what_enough_peers_have_already_is_confirmed_at_once() -> None:
    waiting = copies()
    waiting.peer_durable("b", 7, 0.0)

    assert waiting.ask(answer("r", 7), 0.0)
    assert not waiting.ask(answer("s", 7, level=2), 0.0)


def test_a_report_frees_no_more_than_it_covers() -> None:
    waiting = copies()
    for sequence in range(1, 6):
        waiting.ask(answer(f"r{sequence}", sequence, session=sequence), 0.0)

    assert told(waiting.peer_durable("c", 3, 0.1)) == ["r1", "r2", "r3"]
    assert told(waiting.peer_durable("c", 5, 0.1)) == ["r4", "r5"]


def test_a_new_disk_of_a_peer_has_only_what_it_says() -> None:
    waiting = copies()
    waiting.peer_durable("b", 9, 0.0)
    waiting.peer_durable("b", 0, 0.1)

    assert not waiting.ask(answer("r", 5), 0.2)


def test_answers_of_one_session_keep_their_order_whatever_their_levels() -> None:
    waiting = copies()
    assert not waiting.ask(answer("strong", 1, level=2), 0.0)
    assert not waiting.ask(answer("weak", 2, level=FSYNC), 0.0)
    assert not waiting.ask(answer("weaker", 2, level=ACCEPTED), 0.0)
    assert not waiting.ask(answer("middle", 3, level=1), 0.0)
    assert waiting.ask(answer("of another", 4, level=FSYNC, session=BOB), 0.0)

    assert waiting.peer_durable("b", 3, 0.1) == []
    assert told(waiting.peer_durable("c", 1, 0.1)) == ["strong", "weak", "weaker", "middle"]


def test_too_few_copies_are_reported_after_the_time_with_their_number() -> None:
    waiting = copies()
    waiting.ask(answer("r", 5, level=2), 0.0)
    waiting.peer_durable("c", 5, 0.1)
    assert waiting.next_deadline == 1.0
    assert waiting.expire(0.9) == []

    freed = waiting.expire(1.0)

    assert told(freed) == ["r"]
    assert freed[0].copies == 2


def test_a_shortage_costs_its_time_once() -> None:
    waiting = copies()
    waiting.ask(answer("first", 1), 0.0)
    waiting.ask(answer("second", 2), 0.9)

    freed = waiting.expire(1.0)
    late = answer("third", 3)

    assert told(freed) == ["first", "second"]
    assert waiting.ask(late, 1.1)
    assert late.copies == 1


def test_a_shortage_of_two_copies_is_none_of_one() -> None:
    waiting = copies()
    waiting.peer_durable("b", 1, 0.0)
    waiting.ask(answer("r", 2, level=2), 0.0)
    waiting.expire(1.0)

    assert waiting.short[0] == 2
    assert not waiting.ask(answer("s", 3, level=1), 1.1)
    assert waiting.ask(answer("of another", 4, level=3, session=BOB), 1.1)


def test_a_shortage_ends_when_a_record_is_confirmed_in_time() -> None:
    waiting = copies()
    waiting.ask(answer("r", 1), 0.0)
    waiting.expire(1.0)

    waiting.peer_durable("b", 1, 1.2)

    assert waiting.short == [2, 3, 4, 5, 6, 7]
    assert not waiting.ask(answer("s", 2), 1.3)


def test_a_peer_that_is_always_late_does_not_end_a_shortage() -> None:
    waiting = copies()
    waiting.ask(answer("r", 1), 0.0)
    waiting.expire(1.0)

    for second in range(2, 10):
        assert waiting.ask(answer(f"r{second}", second), float(second))
        waiting.peer_durable("b", second - 1, second + 0.7)

    assert 1 in waiting.short


def test_a_peer_that_returns_after_a_long_quiet_ends_a_shortage() -> None:
    waiting = copies()
    waiting.ask(answer("r", 8), 0.0)
    waiting.expire(1.0)

    waiting.peer_durable("b", 3, 600.0)
    assert 1 in waiting.short
    waiting.peer_durable("b", 8, 600.1)

    assert 1 not in waiting.short


def test_what_waits_costs_bytes_until_it_is_delivered() -> None:
    waiting = copies()
    waiting.ask(answer("x" * 1000, 1), 0.0)
    behind = answer("y", 0, level=FSYNC)
    behind.frames = [bytes(5000)]
    waiting.ask(behind, 0.0)
    assert waiting.waiting_bytes > 6000

    waiting.expire(1.0)

    assert waiting.waiting_bytes == 0


def test_an_outcome_is_answered_level_by_level_and_its_frames_come_last() -> None:
    out = Outcome(ANN)
    out.sequence = 9
    for receipt, level in (("a", FSYNC), ("b", 1), ("c", 1), ("d", ACCEPTED)):
        out.receipt(receipt, level)
    out.frames.append(b"frame")
    out.ending = True

    answers = answers_of(out)

    assert [(a.receipts, a.level, a.frames, a.ending) for a in answers] == [
        (["a"], FSYNC, [], False),
        (["b", "c"], 1, [], False),
        (["d"], ACCEPTED, [b"frame"], True),
    ]


# ACKs at level `quorum`


class Servers:
    """Stands for the rule: a settle of an owner's message is for good up to what its server has."""

    def __init__(self, **server_of: str) -> None:
        self.server_of = server_of

    def settled_through(self, owner: str, marks: Mapping[str, int]) -> int:
        return marks.get(self.server_of[owner], 0)

    def copies(self) -> ReplicaAcks:
        return ReplicaAcks(("b", "c", "d"), 1.0, settled_through=self.settled_through)


def ack(receipt: str, sequence: int, *owners: str, level: int = FSYNC, session: int = ANN) -> PendingReceipt:
    return PendingReceipt(session, [receipt], level=level, sequence=sequence, owners=owners)


def test_an_ack_at_quorum_waits_for_the_servers_of_all_whose_messages_it_settles() -> None:
    waiting = Servers(b="b", c="c").copies()
    assert not waiting.ask(ack("r", 5, "b", "c"), 0.0)

    assert waiting.peer_durable("d", 9, 0.1) == []
    assert waiting.peer_durable("b", 5, 0.2) == []
    freed = waiting.peer_durable("c", 5, 0.3)

    assert told(freed) == ["r"]
    assert freed[0].copies is None
    assert waiting.waiting_bytes == 0 and waiting.next_deadline is None and not waiting.holds(ANN)


def test_an_ack_at_quorum_waits_for_its_number_of_disks_too() -> None:
    waiting = Servers(b="b").copies()
    assert not waiting.ask(ack("r", 5, "b", level=2), 0.0)

    assert waiting.peer_durable("b", 5, 0.1) == []
    assert told(waiting.peer_durable("c", 5, 0.2)) == ["r"]


def test_an_ack_at_quorum_is_confirmed_when_its_new_server_has_it_already() -> None:
    servers = Servers(b="b")
    waiting = servers.copies()
    waiting.peer_durable("c", 5, 0.0)
    assert not waiting.ask(ack("r", 5, "b"), 0.1)
    assert waiting.terms_changed(0.2) == []

    servers.server_of["b"] = "c"

    assert told(waiting.terms_changed(0.3)) == ["r"]


def test_an_owner_whose_server_is_silent_is_short_for_itself_only() -> None:
    waiting = Servers(b="b", c="c").copies()
    waiting.ask(ack("r", 5, "b"), 0.0)

    freed = waiting.expire(1.0)

    assert told(freed) == ["r"]
    assert freed[0].copies == 1 and freed[0].misses == QUORUM
    assert waiting.short_owners == ["b"] and waiting.short == []
    late = ack("s", 6, "b")
    assert waiting.ask(late, 1.1) and late.misses == QUORUM
    assert not waiting.ask(ack("t", 7, "c"), 1.1)
    assert told(waiting.peer_durable("c", 7, 1.2)) == ["t"]


def test_what_an_ack_misses_is_said_of_each() -> None:
    waiting = Servers(b="b").copies()
    waiting.ask(ack("r", 5, "b", level=2), 0.0)

    freed = waiting.expire(1.0)

    assert told(freed) == ["r"]
    assert freed[0].misses == QUORUM | 2


def test_a_shortage_of_an_owner_ends_when_its_server_confirms_in_time() -> None:
    waiting = Servers(b="b").copies()
    waiting.ask(ack("r", 5, "b"), 0.0)
    waiting.expire(1.0)

    waiting.peer_durable("b", 5, 1.2)

    assert waiting.short_owners == []
    assert not waiting.ask(ack("s", 6, "b"), 1.3)


def test_answers_of_an_outcome_wait_for_owners_only_where_they_ask_for_quorum() -> None:
    out = Outcome(ANN)
    out.receipt("edge", 1)
    out.receipt("quorum", with_quorum(1))
    out.owners = {"b"}

    edge, quorum = [found for found in answers_of(out) if found.receipts]

    assert (edge.level, set(edge.owners)) == (1, set())
    assert (quorum.level, set(quorum.owners)) == (1, {"b"})
