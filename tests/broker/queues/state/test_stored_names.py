"""Names of queues that are only in the store, counted in a table that does not grow."""

from hypothesis import given
from hypothesis import strategies as st

from qmq.broker.queues.state.stored_names import StoredNames


@given(st.lists(st.text(max_size=3)))
def test_a_name_that_is_there_is_never_taken_for_a_new_one(steps: list[str]) -> None:
    names = StoredNames(10)
    there: set[str] = set()

    for name in steps:
        if name in there:
            names.discard(name)
            there.remove(name)
        else:
            names.add(name)
            there.add(name)

        assert names.count == len(there)
        assert all(one in names for one in there)


def test_a_name_that_was_never_there_is_seldom_taken_for_one_that_is() -> None:
    names = StoredNames(10_000)
    for number in range(10_000):
        names.add(f"/queue/{number}")

    assert sum(f"/queue/other-{number}" in names for number in range(10_000)) < 500


def test_a_place_that_many_names_share_stays_when_they_go() -> None:
    names = StoredNames(0)
    for number in range(10_000):
        names.add(f"/queue/{number}")

    for number in range(1, 10_000):
        names.discard(f"/queue/{number}")

    assert (names.count, "/queue/0" in names) == (1, True)
