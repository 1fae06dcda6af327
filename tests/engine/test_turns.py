"""Long work in turns."""

import trio

from qmq.engine.turns import in_turns


async def test_parts_are_of_the_size_that_was_asked_for_and_together_are_all() -> None:
    assert [part async for part in in_turns(range(7), 3)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [part async for part in in_turns((), 3)] == []


async def test_others_go_on_between_two_parts_and_what_they_add_is_not_visited() -> None:
    items, seen = [1, 2, 3, 4, 5, 6], list[object]()

    async def other() -> None:
        seen.append("other")
        items.append(7)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        async for part in in_turns(items, 2):
            seen.append(part)

    assert seen.index("other") in (1, 2), "after the first part, and before the last one"
    seen.remove("other")
    assert seen == [[1, 2], [3, 4], [5, 6]]


async def test_one_part_needs_no_other_turn() -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        assert [part async for part in in_turns([1, 2], 2)] == [[1, 2]]
