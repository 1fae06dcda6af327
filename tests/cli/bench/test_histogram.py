"""Percentiles out of buckets, beside the same of a sorted list."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qmq.bench.histogram import SUB_BUCKETS, UNIT_SECONDS, Histogram

SECONDS = st.floats(0, 1000, allow_nan=False)


def counted(seconds: list[float]) -> Histogram:
    histogram = Histogram()
    for value in seconds:
        histogram.add(value)
    return histogram


@given(seconds=st.lists(SECONDS, min_size=1, max_size=200), share=st.floats(0.001, 1))
def test_a_percentile_is_that_of_the_sorted_list_but_for_the_width_of_a_bucket(
    seconds: list[float], share: float
) -> None:
    exact = sorted(seconds)[max(int(-(-len(seconds) * share // 1)), 1) - 1]

    found = counted(seconds).percentile(share)

    assert exact - UNIT_SECONDS <= found <= exact * (1 + 2 / SUB_BUCKETS) + 2 * UNIT_SECONDS


@given(seconds=st.lists(SECONDS, min_size=1, max_size=50))
def test_the_highest_is_exact(seconds: list[float]) -> None:
    assert counted(seconds).percentile(1.0) == max(seconds)


def test_no_values_have_no_percentile() -> None:
    assert Histogram().percentile(0.99) == 0
    assert Histogram().micros("")["p99_us"] == 0


def test_a_time_before_it_was_due_counts_as_none() -> None:
    histogram = counted([-0.001])

    assert (histogram.count, histogram.percentile(0.5)) == (1, 0)


@pytest.mark.parametrize("number", [1_000, 100_000])
def test_memory_does_not_grow_with_the_number_of_values(number: int) -> None:
    histogram = counted([(turn % 1000) * 1e-6 for turn in range(number)])

    assert histogram.count == number
    assert len(histogram._buckets) <= 1000


def test_figures_are_named_by_share_in_microseconds() -> None:
    figures = counted([turn * 1e-3 for turn in range(1, 1001)]).micros("lag_")

    assert list(figures) == ["lag_p50_us", "lag_p90_us", "lag_p99_us", "lag_p999_us", "lag_p9999_us", "lag_max_us"]
    assert figures["lag_p50_us"] == pytest.approx(500_000, rel=0.002)
    assert figures["lag_max_us"] == 1_000_000
