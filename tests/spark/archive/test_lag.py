"""How far an archive is behind, and which of several archivers works."""

from qmq.spark.archive.lag import Behind, Lag, Turn
from tests.spark.rig import A, B


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


def test_an_archiver_works_until_another_one_was_quicker() -> None:
    turn = Turn(30.0)

    assert turn.take(1, 0.0) and turn.take(2, 1000.0) and not turn.is_standby
    turn.lose(3, 1000.0)

    assert turn.is_standby and not turn.take(3, 1001.0)


def test_one_that_stands_by_takes_over_when_the_table_has_not_moved_for_a_while() -> None:
    turn = Turn(30.0)
    turn.lose(3, 0.0)

    assert not turn.take(3, 29.0)
    assert not turn.take(4, 31.0), "the other one has committed"
    assert not turn.take(4, 60.0)
    assert turn.take(4, 61.0) and not turn.is_standby
