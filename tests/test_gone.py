"""Records of an origin that no node has any more, and which reader is notified."""

from hypothesis import given
from hypothesis import strategies as st

from qmq.model.dots import Dot, Origin
from qmq.model.lost_ranges import ENDS_MAX, LostRanges

A = Origin("a", 1)
B = Origin("b", 1)
ENDS = st.lists(st.integers(1, 50))


@given(ENDS, st.integers(0, 60), st.integers(0, 60))
def test_a_reader_gets_the_gap_between_what_it_has_and_what_comes(ends: list[int], after: int, to: int) -> None:
    gone = LostRanges()
    for end in ends:
        gone.add(A, end)

    assert gone.before(A, after, to) == [Dot(A, end) for end in sorted(set(ends)) if after < end < to]
    assert gone.within({A: to, B: 99}) == [Dot(A, end) for end in sorted(set(ends)) if end <= to]
    assert gone.before(B, 0, 99) == []


def test_what_is_known_is_no_news() -> None:
    gone = LostRanges({A: [3, 1]})

    assert not gone.add(A, 3)
    assert gone.add(A, 2)
    assert gone.ends == {A: [1, 2, 3]}


def test_the_oldest_of_very_many_are_forgotten() -> None:
    gone = LostRanges({B: [1]})
    for end in range(1, ENDS_MAX + 2):
        gone.add(A, end)

    assert len(gone.ends[A]) == ENDS_MAX and gone.ends[A][0] == 2
    gone.forget({A})
    assert gone.ends == {B: [1]}
