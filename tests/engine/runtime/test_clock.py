"""A node's clock under a wall clock that is set, forward and back."""

from random import Random

import pytest

from qmq.engine.runtime.clock import FOLLOWS_PARTS, POLL_US, SteadyClock, system_clock

HOUR_US = 3600 * 1_000_000
EPOCH_US = 1_700_000_000_000_000


class Machine:
    """`passed_us` of true time, and a wall clock that is wrong by `wrong_us`."""

    def __init__(self, wrong_us: int = 0) -> None:
        self.passed_us = 5_000_000
        self.wrong_us = wrong_us
        self.clock = SteadyClock(lambda: EPOCH_US + self.passed_us + self.wrong_us, lambda: self.passed_us)

    def go_on(self, microseconds: int) -> int:
        self.passed_us += microseconds
        return self.clock()

    @property
    def error_us(self) -> int:
        """How far the node's clock is from the wall clock."""
        return self.clock() - (EPOCH_US + self.passed_us + self.wrong_us)


def test_it_begins_as_the_wall_clock_stands_and_goes_with_it() -> None:
    machine = Machine(wrong_us=-HOUR_US)
    assert machine.error_us == 0

    for step in (1, 999, 1000, 1001, 60_000_000, HOUR_US):
        machine.go_on(step)
        assert machine.error_us == 0


@pytest.mark.parametrize("jump_us", [HOUR_US, -HOUR_US])
def test_a_jump_of_the_wall_clock_is_followed_slowly_and_to_the_end(jump_us: int) -> None:
    machine = Machine()
    before = machine.clock()

    machine.wrong_us += jump_us
    assert machine.go_on(POLL_US) == before + POLL_US
    after = machine.go_on(HOUR_US)
    assert abs(after - before - POLL_US - HOUR_US) == HOUR_US // FOLLOWS_PARTS

    for _ in range(FOLLOWS_PARTS):
        machine.go_on(HOUR_US)
    assert machine.error_us == 0


def test_it_never_goes_back_and_never_runs_faster_or_slower_than_its_bound() -> None:
    random = Random("steps")
    machine = Machine()
    last = machine.clock()
    for _ in range(5000):
        if random.random() < 0.1:
            machine.wrong_us += random.randint(-HOUR_US, HOUR_US)
        step = random.choice([0, 1, 7, 999, 1_000, 50_000, 3_000_000])
        now = machine.go_on(step)
        assert now >= last
        assert abs(now - last - step) <= step // FOLLOWS_PARTS + 1
        last = now


def test_looking_all_the_time_does_not_keep_it_from_following() -> None:
    machine = Machine()
    machine.clock()
    machine.wrong_us += 1_000_000

    for _ in range(100_000):
        machine.go_on(100)

    assert machine.error_us == 0


def test_the_machine_s_own_clock_goes() -> None:
    clock = system_clock()
    first, second = clock(), clock()

    assert EPOCH_US < first <= second
