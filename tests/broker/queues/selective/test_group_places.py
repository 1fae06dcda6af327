"""What one `GroupOrder` knows of the places where groups wait, and of those that searches return to."""

from qmq.broker.queues.selective.group_order import GroupOrder, Seen

G, H = b"g", b"h"


def waiting(*places: int, seen: Seen | None = None) -> GroupOrder:
    """In level 4, in a dispatch of its own."""
    order = GroupOrder({} if seen is None else seen)
    order.begin()
    for place in places:
        order.waits(G, 4, place)
    order.begin()
    return order


def test_message_that_leaves_from_the_middle_is_never_the_first_that_waits() -> None:
    order = waiting(1, 2, 3)

    assert not order.leaves(G, 4, 2)
    assert order.leaves(G, 4, 1)

    assert order.first(G, 4) == 3
    assert order.leaves(G, 4, 3)
    assert order.first(G, 4) == 0


def test_place_is_known_from_the_first_that_waits_to_the_last() -> None:
    assert [waiting(2, 4).knows(G, 4, place) for place in range(1, 6)] == [False, True, True, True, False]
    assert not waiting(2, 4).knows(G, 5, 3)
    assert not waiting(2, 4).knows(H, 4, 3)


def test_group_with_a_message_that_waits_stops_for_the_rest_of_the_dispatch_only() -> None:
    order = waiting()

    order.waits(G, 4, 1)

    assert not order.is_next(G)
    assert order.is_next(H)
    order.begin()
    assert order.is_next(G)


def test_search_holds_a_group_of_which_the_first_that_waits_is_at_its_place_or_before_it() -> None:
    order = waiting(2)

    order.search(4, 1)
    assert order.is_next(G)
    order.search(4, 2)
    assert not order.is_next(G)

    order.begin()
    assert order.is_next(G)
    order.search(5, 2)
    assert order.is_next(G)


def test_places_that_consumers_return_to_are_taken_once_and_the_lowest_first() -> None:
    keys: list[tuple[int, object]] = [(4, "x"), (4, "y")]
    order = waiting(seen=dict.fromkeys(keys, 9))

    for key, place in ((keys[0], 5), (keys[1], 3), (keys[0], 5), (keys[0], 9), (keys[0], 10)):
        order.aim(key[0], key[1], place)

    assert [order.take_aim(keys) for _ in range(4)] == [3, 5, 9, 0]
    assert not order.has_aims


def test_searches_that_have_been_at_a_place_begin_again_at_it() -> None:
    seen: Seen = {(4, "before"): 2, (4, "at"): 3, (4, "behind"): 7, (5, "other"): 7}

    waiting(seen=seen).restart_from(4, 3)

    assert seen == {(4, "before"): 2, (4, "at"): 2, (4, "behind"): 2, (5, "other"): 7}


def test_level_begins_again_at_its_first_message_and_no_other_level_does() -> None:
    seen: Seen = {(4, "x"): 1, (5, "x"): 1}
    order = waiting(1, seen=seen)
    order.waits(G, 5, 1)

    order.restart(4)

    assert seen == {(4, "x"): 0, (5, "x"): 1}
    assert (order.first(G, 4), order.first(G, 5)) == (0, 1)


def test_no_place_is_left_when_all_searches_begin_again() -> None:
    seen: Seen = {(4, "x"): 3}
    order = waiting(1, seen=seen)
    order.aim(4, "x", 2)

    order.clear()

    assert (seen, order.has_aims, order.first(G, 4)) == ({}, False, 0)
