"""Sets of sequences, against Python's own sets."""

from hypothesis import given
from hypothesis import strategies as st

from qmq.cursors import Range, add_range
from qmq.spark.ranges import RangeMap, common, minus

from .rig import A


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


def test_maps_compare_origin_by_origin() -> None:
    wanted = RangeMap.between({A: 3}, {A: 9})

    assert wanted.count() == 6
    assert not wanted.minus(RangeMap({A: [(0, 20)]}))
    assert list(wanted.minus(RangeMap({A: [(4, 6)]})).items()) == [(A, [(3, 4), (6, 9)])]
