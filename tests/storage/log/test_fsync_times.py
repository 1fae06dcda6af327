"""How long syncs of the journal took."""

from qmq.storage.format.settings import no_clock
from qmq.storage.log.fsync_times import BOUNDS_SECONDS, RECENT, SyncStatistics, SyncTimes


def test_without_a_sync_all_times_are_zero() -> None:
    assert SyncTimes(no_clock).statistics() == SyncStatistics(0, 0, 0, 0)


def test_the_last_the_mean_and_the_longest_sync_are_known() -> None:
    times = SyncTimes(no_clock)

    for seconds in (0.001, 0.005, 0.003):
        times.note(seconds)

    assert times.statistics() == SyncStatistics(3, 3000, 3000, 5000)


def test_the_mean_is_that_of_the_last_syncs() -> None:
    times = SyncTimes(no_clock)
    times.note(1.0)

    for _ in range(RECENT):
        times.note(0.002)

    assert times.statistics() == SyncStatistics(RECENT + 1, 2000, 2000, 1_000_000)


def test_each_sync_is_in_the_bucket_of_the_next_bound() -> None:
    times = SyncTimes(no_clock)

    for seconds in (0.0, BOUNDS_SECONDS[0], BOUNDS_SECONDS[0] * 1.01, 60.0):
        times.note(seconds)

    assert times.buckets() == [2, 1, *[0] * (len(BOUNDS_SECONDS) - 2), 1]
    assert times.seconds == sum((0.0, BOUNDS_SECONDS[0], BOUNDS_SECONDS[0] * 1.01, 60.0))
