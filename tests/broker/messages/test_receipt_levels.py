"""Words of receipt levels, and levels of the receipts in one Outcome."""

import pytest

from qmq.broker.consumers.outcome import Outcome
from qmq.broker.messages.receipt_levels import (
    ACCEPTED,
    FSYNC,
    asked_level,
    asks_quorum,
    level_of,
    strongest,
    with_quorum,
)
from qmq.errors import Refused


@pytest.mark.parametrize(
    ("word", "level"), [("accepted", ACCEPTED), ("fsync", FSYNC), ("replicas=1", 1), ("replicas=7", 7)]
)
def test_every_level_has_a_word(word: str, level: int) -> None:
    assert level_of(word) == level


@pytest.mark.parametrize(
    "word", ["", "none", "replicas", "replicas=0", "replicas=8", "replicas=01", "replicas=²", "replicas=1 "]
)
def test_other_words_are_refused_with_those_that_count(word: str) -> None:
    with pytest.raises(Refused) as refused:
        asked_level(word, 2)

    assert refused.value.code == "bad-receipt-level"
    assert "accepted, fsync, replicas=1 up to replicas=2" in refused.value.message


def test_more_disks_than_the_mesh_has_are_refused_with_the_most() -> None:
    assert asked_level("replicas=2", 2) == 2
    with pytest.raises(Refused, match="up to replicas=2: the mesh has 3 nodes"):
        asked_level("replicas=3", 2)
    with pytest.raises(Refused, match="one of accepted, fsync: the mesh has 1 node\\."):
        asked_level("replicas=1", 0)


def test_receipts_of_an_outcome_remember_where_another_level_begins() -> None:
    out = Outcome(1)

    for receipt, level in (("a", FSYNC), ("b", 1), ("c", 1), ("d", FSYNC), ("e", ACCEPTED)):
        out.receipt(receipt, level)

    assert out.receipts == ["a", "b", "c", "d", "e"]
    assert out.levels == [(1, 1), (3, FSYNC), (4, ACCEPTED)]


def test_the_strongest_level_has_what_any_of_them_asks_for() -> None:
    assert strongest([]) == FSYNC
    assert strongest([ACCEPTED]) == ACCEPTED
    assert strongest([ACCEPTED, 2, 1]) == 2
    assert strongest([with_quorum(1), 2]) == with_quorum(2)
    assert with_quorum(ACCEPTED) == with_quorum(FSYNC)


def test_an_ack_level_is_edge_or_quorum() -> None:
    assert asks_quorum("quorum") and not asks_quorum("edge")
    with pytest.raises(Refused) as refused:
        asks_quorum("majority")
    assert refused.value.code == "bad-ack-level"
