"""Cursors: ranges, and what comes of moves that arrive in any order, twice, or from two sides of a cut."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmq.errors import CorruptLog
from qmq.model.cursors import Cursor, Move, Name, Range, add_range
from qmq.model.dots import Origin
from qmq.storage.format.cursor_record import pack_move, unpack_move

A, B = Origin("a", 1), Origin("b", (1 << 64) - 1)
NAME = Name("/fanout/f", "ann", "mail")


def cursor_of(*moves: Move) -> Cursor:
    cursor = Cursor(NAME)
    for move in moves:
        cursor.apply(move)
    return cursor


def picture(cursor: Cursor) -> tuple[object, ...]:
    done = {origin: ranges for origin, ranges in cursor.done.items() if ranges}
    return (cursor.created_us, cursor.deleted_us, cursor.start, done, cursor.credit, cursor.delivered_up_to)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30))))
def test_ranges_are_the_plain_union(added: list[Range]) -> None:
    ranges: list[Range] = []
    for after, through in added:
        add_range(ranges, after, through)

    plain = {sequence for after, through in added for sequence in range(after + 1, through + 1)}
    assert {sequence for after, through in ranges for sequence in range(after + 1, through + 1)} == plain
    edges = [edge for one in ranges for edge in one]
    assert edges == sorted(set(edges)), "sorted, disjoint, and not touching"


def test_what_was_acknowledged_out_of_order_is_done_and_the_rest_is_not() -> None:
    cursor = cursor_of(Move(NAME, 10, start={A: 4}), Move(NAME, 10, done={A: [(9, 12), (4, 5)]}))

    assert [sequence for sequence in range(1, 16) if cursor.is_done(A, sequence)] == [1, 2, 3, 4, 5, 10, 11, 12]
    assert cursor.vector() == {A: 5}
    assert not cursor.is_done(B, 1)


def test_the_order_of_moves_does_not_matter() -> None:
    moves = [
        Move(NAME, 10, start={A: 4, B: 2}),
        Move(NAME, 10, done={A: [(4, 6)]}),
        Move(NAME, 10, done={A: [(6, 9)], B: [(5, 6)]}),
        Move(NAME, 12, start={A: 7}, done={A: [(7, 8)]}),
    ]

    results = {str(picture(cursor_of(*order))) for order in permutations(moves)}

    assert len(results) == 1


def test_of_two_creations_on_two_sides_of_a_cut_the_earlier_beginning_counts() -> None:
    cursor = cursor_of(Move(NAME, 10, start={A: 4, B: 9}), Move(NAME, 12, start={A: 6}))

    assert not cursor.is_done(A, 5)
    assert not cursor.is_done(B, 1)


def test_an_unknown_beginning_changes_no_other() -> None:
    lacking = cursor_of(Move(NAME, 10, done={A: [(4, 6)]}))

    cursor = cursor_of(Move(NAME, 10, start={A: 4}), lacking.snapshot(credit=5))

    assert cursor.vector() == {A: 6}
    assert lacking.vector() == {A: 0}


def test_a_deletion_ends_what_was_created_before_it_and_nothing_later() -> None:
    old = [Move(NAME, 10, start={A: 4}), Move(NAME, 10, done={A: [(4, 6)]})]
    new = Move(NAME, 30, 20, start={A: 9})
    deletion = Move(NAME, 0, 20)

    for order in permutations([*old, deletion, new]):
        cursor = cursor_of(*order)

        assert (cursor.created_us, cursor.start, cursor.done) == (30, {A: 9}, {}), order


def test_a_deletion_says_that_it_ended_something() -> None:
    cursor = cursor_of(Move(NAME, 10, start={}))

    assert cursor.apply(Move(NAME, 0, 20))
    assert not cursor.apply(Move(NAME, 0, 20))
    assert not cursor.apply(Move(NAME, 10, done={A: [(0, 3)]}))
    assert not cursor.created_us


@pytest.mark.parametrize(
    "move",
    [
        Move(NAME, 10, start={A: 4, B: 1 << 40}, done={A: [(4, 6), (8, 9)]}, credit=100),
        Move(NAME, 10, 5, done={B: [(1, 2)]}),
        Move(NAME, 10, delivered_up_to={A: 7}),
        Move(NAME, 10, start={}, delivered_up_to={}),
        Move(NAME, 0, 20),
    ],
)
def test_a_move_survives_its_record(move: Move) -> None:
    found = unpack_move(NAME.destination, pack_move(move))

    assert [getattr(found, field) for field in Move.__slots__] == [getattr(move, field) for field in Move.__slots__]


@pytest.mark.parametrize("body", [b"", b"\xc0", b"\x80", b"\x81\xa6client\xa1x", b"\xff" * 9])
def test_what_is_no_move_is_refused(body: bytes) -> None:
    with pytest.raises(CorruptLog):
        unpack_move(NAME.destination, body)


def test_the_greatest_holder_counts_in_any_order_and_the_next_is_greater_whatever_the_clock_says() -> None:
    moves = [Move(NAME, 10, start={}, holder=holder) for holder in ((50, A), (70, A), (70, B))]

    for order in permutations(moves):
        cursor = cursor_of(*order)
        assert cursor.holder == (70, B)
        assert cursor.new_holder(A, 60) == (71, A)
        assert cursor.new_holder(A, 99) == (99, A)


def test_a_deletion_forgets_the_holder() -> None:
    cursor = cursor_of(Move(NAME, 10, holder=(50, A)), Move(NAME, 0, 20), Move(NAME, 10, holder=(60, B)))

    assert cursor.holder is None


def test_the_earliest_owner_counts_in_any_order_and_a_move_without_one_changes_nothing() -> None:
    moves = [Move(NAME, 10, owner=owner) for owner in ((50, "ann"), (40, "bob"), (40, "cat"), None)]

    for order in permutations(moves):
        cursor = cursor_of(*order)
        assert cursor.owner == cursor.snapshot().owner == cursor.copy().owner == (40, "bob")


def test_a_deletion_forgets_the_owner_and_a_late_record_brings_none_back() -> None:
    cursor = cursor_of(Move(NAME, 10, owner=(10, "ann")), Move(NAME, 0, 20), Move(NAME, 10, owner=(10, "ann")))
    assert cursor.owner is None

    cursor.apply(Move(NAME, 30, owner=(30, "bob")))
    assert cursor.owner == (30, "bob")


def test_a_record_has_its_owner_and_one_of_before_has_none() -> None:
    move = Move(NAME, 10, start={}, owner=(10, "ann"))

    assert unpack_move(NAME.destination, pack_move(move)).owner == (10, "ann")
    assert b"owner" not in pack_move(Move(NAME, 10, start={}))
