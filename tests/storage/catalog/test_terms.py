"""Terms and votes on disk: in the journal, in the catalog after a checkpoint, and there again after a start."""

from pathlib import Path

import pytest

from qmq.broker.takeover.elections import Elections
from qmq.broker.takeover.leases import Bid, Ownership, Term
from qmq.errors import CorruptLog
from qmq.model.members import Listing, Membership
from qmq.storage.format.record import RecordKind
from qmq.storage.format.term_record import StoredTerms, TermNote, pack_term, unpack_term
from qmq.storage.store import Store, open_store
from tests.fakes.disk import MemoryDisk

from ..rig import NOW, A, B, Writer, open_small

NODE = "a"
"""The node of the rig."""


def said(writer: Writer, kind: RecordKind, owner: str, number: int, server: str) -> bytes:
    writer.record(kind, pack_term(owner, number, server))
    return writer.batch()


def histories(store: Store) -> None:
    own, other = Writer(A), Writer(B)
    store.journal.append(
        [
            said(own, RecordKind.VOTE, "c", 1, "b"),
            said(other, RecordKind.TERM, "c", 1, "b"),
            said(other, RecordKind.VOTE, "c", 7, "b"),
            said(own, RecordKind.VOTE, "c", 2, "a"),
            said(own, RecordKind.TERM, "c", 2, "a"),
        ]
    )


EXPECTED = {TermNote("c", 2, "a", False), TermNote("c", 2, "a", True)}


def test_the_highest_terms_and_the_own_votes_are_there_again_from_the_journal_and_from_the_catalog() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    histories(store)
    for _ in range(2):
        store.close()
        store = open_small(disk)
        assert set(store.recovered.terms) == EXPECTED
        store.checkpoint(store.journal.end, NOW, {})


def test_they_outlive_the_journal_that_held_them() -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    histories(store)
    filler = Writer(A, have=3)
    for _ in range(20):
        store.journal.append([filler.published("/queue/q", b"x" * 500)])
    store.checkpoint(store.journal.end, NOW, {})
    assert store.journal.start > 0

    store.close()

    assert set(open_small(disk).recovered.terms) == EXPECTED


def test_the_sqlite_catalog_keeps_them(tmp_path: Path) -> None:
    store = open_store(tmp_path, node=NODE)
    histories(store)
    store.checkpoint(store.journal.end, NOW, {})
    store.close()

    store = open_store(tmp_path, node=NODE)

    assert set(store.catalog.terms()) == set(store.recovered.terms) == EXPECTED
    store.close()


def test_a_lower_term_changes_nothing_and_of_equals_the_later_counts() -> None:
    terms = StoredTerms.of([TermNote("c", 3, "a", False)])

    assert not terms.take(TermNote("c", 2, "b", False))
    assert not terms.take(TermNote("c", 3, "a", False))
    assert terms.take(TermNote("c", 3, "", False))


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x92\xa1a\x01", b"\x93\xa1a\xa1x\xa1b"])
def test_what_is_no_term_is_refused(body: bytes) -> None:
    with pytest.raises(CorruptLog):
        unpack_term(RecordKind.TERM, body)


@pytest.mark.parametrize("kind", [RecordKind.VOTE, RecordKind.TERM])
def test_a_vote_is_read_back_as_a_vote_and_a_term_as_a_term(kind: RecordKind) -> None:
    note = unpack_term(kind, pack_term("c", 2, "a"))

    assert note == TermNote("c", 2, "a", is_vote=kind == RecordKind.VOTE)


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_node_that_has_started_again_votes_for_no_other_node_in_a_term_in_which_it_has_voted(
    is_checkpointed: bool,
) -> None:
    disk = MemoryDisk()
    store = open_small(disk)
    store.journal.append([said(Writer(A), RecordKind.VOTE, "c", 2, "a")])
    if is_checkpointed:
        store.checkpoint(store.journal.end, NOW, {})
    store.close()

    (note,) = open_small(disk).recovered.terms
    membership = Membership("a", Listing(1, frozenset("abc")))
    rules = Ownership("a", "abc", 10.0, 0.0, is_majority=membership.is_majority)
    started = Elections(rules, membership, is_wanted=True, draw=lambda: 0.5)
    started.term_recorded(note.owner, Term(note.number, note.server), is_vote=note.is_vote)

    assert started.vote_requested("b", Bid("c", 2, "b"), 100.0) == []
    assert rules.term_of("c") == Term(0, "c"), "a vote is no term: nothing says yet who serves c"
    assert started.vote_requested("b", Bid("c", 3, "b"), 100.0) != []
