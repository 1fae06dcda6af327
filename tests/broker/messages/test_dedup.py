"""What a node knows by dedup id: keys, the window, and what peers have asked about."""

import pytest

from qmq.broker.messages.dedup import ASKED_MAX, KEY_BYTES, REMOVED_MAX, Dedup, dedup_key
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope
from qmq.model.dots import Dot, Origin

A = Origin("a", 1)
SECOND = 1_000_000


def key(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "big")


def test_a_key_is_of_destination_and_id_whatever_the_word_and_the_other_headers() -> None:
    one = dedup_key("/queue/q", b"a:1\ndedup-id:x\nb:2\n")

    assert one is not None
    assert len(one) == KEY_BYTES
    assert dedup_key("/queue/q", b"_AMQ_DUPL_ID:x\n") == dedup_key("/queue/q", b"qmq-dedup-id:x\n") == one
    assert dedup_key("/queue/r", b"dedup-id:x\n") != one
    assert dedup_key("/queue/q", b"dedup-id:y\n") != one


@pytest.mark.parametrize("headers", [b"", b"a:dedup-id:x\n", b"my-dedup-id:x\n", b"dedup-id:\n", b"x:1\n"])
def test_other_headers_name_nothing(headers: bytes) -> None:
    assert dedup_key("/queue/q", headers) is None


def test_the_first_of_repeated_headers_counts() -> None:
    assert dedup_key("/queue/q", b"dedup-id:x\ndedup-id:y\n") == dedup_key("/queue/q", b"dedup-id:x\n")


@pytest.mark.parametrize(
    ("kind", "known"), [(DestinationKind.QUEUE, True), (DestinationKind.FANOUT, True), (DestinationKind.TOPIC, False)]
)
def test_only_what_is_kept_has_a_key(kind: DestinationKind, known: bool) -> None:
    envelope = Envelope(f"/{kind.name.lower()}/x", kind, b"dedup-id:x\n", kind is not DestinationKind.TOPIC)

    assert (envelope.key is not None) is known


def test_the_first_message_with_a_key_counts() -> None:
    dedup = Dedup()
    dedup.learn(key(1), Dot(A, 1), 0)
    dedup.learn(key(1), Dot(A, 2), 0)

    assert dedup.find(key(1), 0) == Dot(A, 1)
    assert dedup.find(key(2), 0) is None


def test_the_oldest_are_forgotten_beyond_the_number() -> None:
    dedup = Dedup(ids_max=3)
    for number in range(5):
        dedup.learn(key(number), Dot(A, number), 0)

    assert [dedup.find(key(number), 0) is not None for number in range(5)] == [False, False, True, True, True]
    assert len(dedup) == 3


def test_each_is_forgotten_when_its_time_is_over_and_may_be_learned_again() -> None:
    dedup = Dedup(seconds=10)
    dedup.learn(key(1), Dot(A, 1), 0)
    dedup.learn(key(2), Dot(A, 2), 5 * SECOND)

    assert dedup.find(key(1), 10 * SECOND) == Dot(A, 1)
    assert dedup.find(key(1), 11 * SECOND) is None
    assert dedup.find(key(2), 11 * SECOND) == Dot(A, 2)
    dedup.learn(key(1), Dot(A, 3), 11 * SECOND)
    assert dedup.find(key(1), 20 * SECOND) == Dot(A, 3)


def test_retries_are_forgotten_with_their_ids() -> None:
    dedup = Dedup(ids_max=2, seconds=10)
    for number in range(3):
        dedup.learn(key(number), Dot(A, number), 0)
        dedup.learn_retry(key(number), "a", number)
    assert dedup.retries == {key(1): ("a", 1), key(2): ("a", 2)}

    dedup.find(key(1), 11 * SECOND)

    assert dedup.retries == {}


def test_what_peers_have_asked_about_is_remembered_within_a_bound() -> None:
    dedup = Dedup()
    for number in range(ASKED_MAX + 2):
        dedup.note_asked(key(number))
        dedup.note_asked(key(number))

    assert not dedup.was_asked(key(1))
    assert dedup.was_asked(key(2))
    assert dedup.was_asked(key(ASKED_MAX + 1))
    assert len(dedup) == 0


def test_a_removed_message_is_forgotten_and_a_later_one_with_its_key_is_known() -> None:
    dedup = Dedup(seconds=10)
    dedup.learn(key(1), Dot(A, 1), 0)
    dedup.learn(key(1), Dot(A, 2), SECOND)
    dedup.learn_retry(key(1), "a", 5)

    dedup.forget({Dot(A, 1): key(1)})
    assert (dedup.find(key(1), SECOND), dedup.retries) == (Dot(A, 2), {})
    dedup.forget({Dot(A, 1): key(1)})
    assert dedup.find(key(1), SECOND) == Dot(A, 2)
    dedup.forget({Dot(A, 2): key(1)})
    assert dedup.find(key(1), SECOND) is None

    dedup.learn(key(1), Dot(A, 3), 5 * SECOND)
    assert dedup.find(key(1), 12 * SECOND) == Dot(A, 3), "the age of the first one is not that of this one"


def test_a_message_that_was_removed_before_its_record_came_is_not_learned() -> None:
    dedup = Dedup()
    for number in range(REMOVED_MAX + 1):
        dedup.forget({Dot(A, number): key(number)})

    for number in range(REMOVED_MAX + 1):
        dedup.learn(key(number), Dot(A, number), 0)

    assert dedup.find(key(0), 0) == Dot(A, 0), "one too many"
    assert len(dedup) == 1


def test_a_deleted_fanout_is_forgotten_up_to_the_deletion() -> None:
    dedup = Dedup()
    for number in range(1, 4):
        dedup.learn(key(number), Dot(A, number), 0, "/fanout/f" if number != 2 else "/fanout/other")
    dedup.learn(key(5), Dot(A, 5), 0)

    dedup.forget_fanout("/fanout/f", {A: 2})

    assert [dedup.find(key(number), 0) is not None for number in (1, 2, 3, 5)] == [False, True, True, True]


def test_a_deleted_fanout_is_forgotten_with_all_messages_of_one_key() -> None:
    """Two sides of a cut can take one id. Before, the second message stayed known: a third one was confirmed, and not
    kept."""
    dedup = Dedup()
    for number in (1, 2, 3):
        for sequence in (number, number + 10):
            dedup.learn(key(number), Dot(A, sequence), 0, "/fanout/f")

    dedup.forget_fanout("/fanout/f", {A: 12})
    assert [dedup.find(key(number), 0) for number in (1, 2, 3)] == [None, None, Dot(A, 13)]

    dedup.forget_fanout("/fanout/f", {A: 13})
    assert len(dedup) == 0


def test_a_message_is_known_for_exactly_ten_minutes() -> None:
    dedup = Dedup()
    dedup.learn(key(1), Dot(A, 1), 0)

    assert dedup.find(key(1), 600 * SECOND) == Dot(A, 1)
    assert dedup.find(key(1), 600 * SECOND + 1) is None
