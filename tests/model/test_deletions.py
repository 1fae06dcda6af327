"""Which messages a deletion of a fanout covers, and how long it is remembered."""

from qmq.model.deletions import Deletion, Deletions
from qmq.model.dots import Dot, Origin, Vector

A, B = Origin("a", 1), Origin("b", 1)
F = "/fanout/f"


def deletion(writer: Origin, sequence: int, before: Vector, timestamp_us: int = 100) -> Deletion:
    return Deletion(F, Dot(writer, sequence), timestamp_us, before)


def test_messages_that_the_vector_covers_are_deleted_and_later_ones_live() -> None:
    deletions = Deletions([deletion(A, 6, {A: 5, B: 2})])

    assert deletions.covers(F, A, 5)
    assert not deletions.covers(F, A, 6)
    assert not deletions.covers(F, B, 3)
    assert not deletions.covers(F, Origin("c", 1), 1)
    assert not deletions.covers("/fanout/other", A, 5)


def test_deletions_of_two_nodes_that_did_not_know_of_each_other_add_up() -> None:
    deletions = Deletions([deletion(A, 6, {A: 5, B: 2}), deletion(B, 9, {A: 3, B: 8})])

    assert deletions.before(F) == {A: 5, B: 8}
    assert deletions.count == 2


def test_a_later_deletion_takes_the_place_of_one_that_its_node_knew() -> None:
    deletions = Deletions([deletion(A, 6, {A: 5, B: 2})])

    assert deletions.add(deletion(B, 9, {A: 6, B: 8}))
    assert not deletions.add(deletion(A, 6, {A: 5, B: 2}))

    assert deletions.count == 1
    assert deletions.before(F) == {A: 6, B: 8}


def test_a_deletion_is_obsolete_when_it_is_old_and_every_member_has_it_and_all_that_it_deletes() -> None:
    deletions = Deletions([deletion(A, 6, {A: 5, B: 2})])
    have = {A: 6, B: 2}

    assert not deletions.obsolete([have], 100, ())
    assert not deletions.obsolete([have, {A: 6, B: 1}], 101, ())
    assert not deletions.obsolete([have, {A: 5, B: 2}], 101, ())
    obsolete = deletions.obsolete([have, {A: 7, B: 3}], 101, ())
    deletions.forget(obsolete)

    assert deletions.count == 0
    assert deletions.before(F) == {}


def test_no_member_is_asked_about_an_origin_that_the_mesh_has_forgotten() -> None:
    deletions = Deletions([deletion(A, 6, {A: 5, B: 2})])

    assert deletions.obsolete([{B: 2}], 101, {A})
    assert deletions.forget_origins({A}) == [F]
    assert deletions.before(F) == {B: 2}
    assert deletions.forget_origins({A}) == []


def test_forgetting_what_another_copy_found_obsolete_keeps_later_deletions() -> None:
    live = Deletions([deletion(A, 6, {A: 5})])
    obsolete = live.obsolete([], 101, ())
    live.add(deletion(B, 1, {A: 2}))

    live.forget(obsolete)

    assert live.before(F) == {A: 2}
