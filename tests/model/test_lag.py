"""How far a reader is behind, in records and in seconds."""

from qmq.model.dots import Origin
from qmq.model.lag import Behind, Lag

A, B = Origin("a", 1), Origin("b", 2)


def test_seconds_are_unknown_until_the_table_was_once_level() -> None:
    lag = Lag()

    assert lag.look(0.0, {A: 10}, {}) == Behind(10, None)
    assert lag.look(5.0, {A: 20, B: 5}, {A: 9}) == Behind(16, None)
    assert lag.look(9.0, {A: 20, B: 5}, {A: 20, B: 5}) == Behind(0, 0.0)


def test_seconds_are_counted_from_a_moment_before_which_all_is_in_the_table() -> None:
    lag = Lag()
    lag.look(0.0, {A: 10}, {A: 10})

    assert lag.look(4.0, {A: 20}, {A: 10}) == Behind(10, 4.0)
    assert lag.look(8.0, {A: 30}, {A: 19}) == Behind(11, 8.0)
    assert lag.look(12.0, {A: 40}, {A: 30}) == Behind(10, 8.0), "what there was at 4 is in the table"


def test_a_table_that_is_never_level_under_load_is_not_further_behind_each_time() -> None:
    lag = Lag()
    lag.look(0.0, {A: 0}, {})

    found = [lag.look(float(now), {A: now * 10}, {A: now * 10 - 15}) for now in range(1, 100)]

    assert {one.records for one in found} == {15}
    assert max(one.seconds or 0.0 for one in found) <= 5.0


def test_a_table_that_is_ahead_of_the_nodes_that_answer_is_not_behind() -> None:
    assert Lag().look(0.0, {A: 10}, {A: 20, B: 3}).records == 0
