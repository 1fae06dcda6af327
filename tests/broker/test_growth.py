"""What one action costs does not grow faster than docs/growth.md says, by work that is counted and not by time."""

import pytest

from benchmarks.growth import CASES, SLACK_BYTES, Case, Order, sizes
from benchmarks.work import Work, work_of

SIZES = (10, 100, 1000)
FEW = (1, 2, 8)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.action)
def test_an_action_costs_what_its_order_allows(case: Case) -> None:
    numbers = SIZES if case.most > 10 else FEW
    works = {number: case.work(number) for number in numbers}

    for small, large in zip(numbers, numbers[1:], strict=False):
        assert case.order.allows(small, large, works[small], works[large]), (case.order.value, works)


def test_a_walk_through_all_that_is_held_is_seen() -> None:
    works = [work_of(lambda n=n: [number for number in range(n)]) for n in (10, 100)]

    assert works[1].steps > 2 * works[0].steps
    assert not Order.CONSTANT.allows(10, 100, *works)
    assert Order.LINEAR.allows(10, 100, *works)


def test_a_copy_of_all_that_is_held_is_seen_though_it_is_one_step() -> None:
    held = {n: dict.fromkeys(range(n)) for n in (100, 10_000)}
    works = [work_of(lambda n=n: sorted(held[n])) for n in held]

    assert works[0].steps == works[1].steps
    assert not Order.CONSTANT.allows(100, 10_000, *works)
    assert Order.COPIED.allows(100, 10_000, *works)


def test_a_walk_for_each_of_all_is_more_than_linear() -> None:
    works = [work_of(lambda n=n: [other for number in range(n) for other in range(n)]) for n in (10, 100)]

    assert not Order.LINEAR.allows(10, 100, *works)


def test_the_same_work_is_counted_the_same() -> None:
    assert work_of(lambda: sum(range(5))) == work_of(lambda: sum(range(5)))


def test_a_little_more_for_longer_names_is_no_growth() -> None:
    assert Order.CONSTANT.allows(10, 1000, Work(1000, 0), Work(1050, SLACK_BYTES))
    assert not Order.CONSTANT.allows(10, 1000, Work(1000, 0), Work(1150, 0))


def test_numbers_go_up_by_tens_and_few_are_all_taken() -> None:
    assert sizes(1000) == [1, 10, 100, 1000]
    assert sizes(1000, 100) == [100, 1000]
    assert sizes(4) == [1, 2, 3, 4]
