from qmq.broker.messages.deadline_heap import Deadlines


class Thing:
    def __init__(self) -> None:
        self.check_us = 0


def test_nothing_is_due_where_nothing_waits() -> None:
    deadlines = Deadlines()

    assert deadlines.next_us == 0
    assert deadlines.due(10**18, 100) == []


def test_thing_is_due_once_at_its_time_and_not_before() -> None:
    deadlines, thing = Deadlines(), Thing()
    deadlines.watch(thing, 100)

    assert deadlines.next_us == 100
    assert deadlines.due(99, 100) == []
    assert deadlines.due(100, 100) == [thing]
    assert deadlines.due(101, 100) == []
    assert (thing.check_us, deadlines.next_us) == (0, 0)


def test_things_are_due_in_order_of_time_and_then_of_asking() -> None:
    deadlines, things = Deadlines(), [Thing(), Thing(), Thing()]
    for thing, at_us in zip(things, (200, 100, 100), strict=True):
        deadlines.watch(thing, at_us)

    assert deadlines.due(300, 100) == [things[1], things[2], things[0]]


def test_earlier_time_replaces_a_later_one_and_a_later_one_changes_nothing() -> None:
    deadlines, thing = Deadlines(), Thing()

    deadlines.watch(thing, 200)
    deadlines.watch(thing, 100)
    deadlines.watch(thing, 300)

    assert deadlines.next_us == 100
    assert deadlines.due(1000, 100) == [thing]


def test_stale_entries_are_skipped_and_leave() -> None:
    deadlines, thing, other = Deadlines(), Thing(), Thing()
    deadlines.watch(thing, 200)
    deadlines.watch(thing, 100)
    deadlines.watch(other, 300)
    deadlines.due(100, 100)

    assert deadlines.next_us == 300
    assert deadlines.due(250, 100) == []
    assert len(deadlines) == 1


def test_thing_that_does_not_want_to_be_looked_at_any_more_is_passed_over() -> None:
    deadlines, thing = Deadlines(), Thing()
    deadlines.watch(thing, 100)

    thing.check_us = 0

    assert deadlines.next_us == 0
    assert deadlines.due(100, 100) == []


def test_same_time_asked_for_again_costs_no_second_entry() -> None:
    deadlines, thing = Deadlines(), Thing()

    for _ in range(10):
        deadlines.watch(thing, 100)

    assert len(deadlines) == 1


def test_no_more_than_so_many_are_returned_and_the_next_ones_follow() -> None:
    deadlines = Deadlines()
    things = [Thing() for _ in range(3)]
    for at_us, thing in enumerate(things, 1):
        deadlines.watch(thing, at_us)

    assert deadlines.due(10, 2) == things[:2]
    assert deadlines.next_us == 3
    assert deadlines.due(10, 2) == things[2:]
