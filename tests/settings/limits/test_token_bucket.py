"""The token bucket: what is within a rate, and when the rest is."""

import pytest

from qmq.settings.limits.usage import BURST_SECONDS, TokenBucket


def test_what_a_second_allows_may_be_used_at_once_and_more_waits_for_its_time() -> None:
    bucket = TokenBucket(10)

    assert bucket.take(10, now=100.0) <= 100.0
    assert bucket.take(1, now=100.0) == pytest.approx(100.1)
    assert bucket.take(1, now=100.0) == pytest.approx(100.2)


def test_an_idle_client_saves_no_more_than_the_burst() -> None:
    bucket = TokenBucket(10)
    bucket.take(10, now=100.0)

    assert bucket.take(10, now=200.0) <= 200.0
    assert bucket.take(10, now=200.0) == pytest.approx(201.0)


@pytest.mark.parametrize("rate", [1, 3, 1000])
@pytest.mark.parametrize("amount", [1, 7, 5000])
def test_over_a_long_time_a_client_that_waits_gets_its_rate_and_no_more(rate: int, amount: int) -> None:
    bucket, now, taken = TokenBucket(rate), 0.0, 0
    for _ in range(200):
        now = max(now, bucket.take(amount, now))
        taken += amount

    assert taken <= rate * (now + BURST_SECONDS) * 1.000001
    assert taken >= rate * now


def test_it_is_full_when_all_that_was_taken_is_paid_for() -> None:
    bucket = TokenBucket(10)
    assert bucket.paid_at < 0

    bucket.take(25, now=100.0)

    assert bucket.paid_at == pytest.approx(102.5)
