"""Which of several archivers works."""

from qmq.spark.archive.turn import Turn


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
