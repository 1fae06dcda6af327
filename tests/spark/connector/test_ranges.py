"""Sets of sequences, against Python's own sets."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmq.model.cursors import Range, add_range
from qmq.spark.reading.ranges import RangeMap, common, minus
from tests.spark.rig import A


@st.composite
def ranges(draw: st.DrawFn) -> list[Range]:
    found: list[Range] = []
    for after, size in draw(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8)), max_size=6)):
        add_range(found, after, after + size)
    return found


def plain(found: list[Range]) -> set[int]:
    return {number for after, through in found for number in range(after + 1, through + 1)}


@given(ranges(), ranges())
def test_difference_and_intersection_are_those_of_sets(one: list[Range], other: list[Range]) -> None:
    assert plain(minus(one, other)) == plain(one) - plain(other)
    assert plain(common(one, other)) == plain(one) & plain(other)
    assert sum(through - after for after, through in minus(one, other)) == len(plain(one) - plain(other))


class Counted(list[Range]):
    """Ranges that know how often one of them was looked at."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        self.looks += 1
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[Range]:
        for one in super().__iter__():
            self.looks += 1
            yield one


@pytest.mark.parametrize("operation", [minus, common])
def test_sets_of_many_ranges_are_compared_in_one_pass(operation: Any) -> None:
    """The log of a fanout has a range per batch: hundreds of thousands."""
    others = Counted((2 * number, 2 * number + 1) for number in range(1000))

    operation(list(others), others)

    assert others.looks < 10_000


@given(ranges(), st.integers(1, 40), st.integers(0, 8))
def test_only_ranges_that_hold_something_of_a_range_overlap_it(one: list[Range], first: int, more: int) -> None:
    stretch = set(range(first, first + more + 1))

    found = list(RangeMap({A: one}).overlapping(A, first, first + more))

    assert found == [one_range for one_range in one if plain([one_range]) & stretch]


def test_maps_compare_origin_by_origin() -> None:
    wanted = RangeMap.between({A: 3}, {A: 9})

    assert wanted.count() == 6
    assert not wanted.minus(RangeMap({A: [(0, 20)]}))
    assert list(wanted.minus(RangeMap({A: [(4, 6)]})).items()) == [(A, [(3, 4), (6, 9)])]
