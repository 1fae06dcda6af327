"""Two runs beside each other: which figures are compared, and what is better."""

import pytest

from qmq.bench.compare import Better, NotComparable, compare, direction
from qmq.bench.progress import SHOW_SECONDS, Live

RUN: dict[str, object] = {
    "workload": "latency",
    "rate": 1000.0,
    "seconds": 5.0,
    "per_second": 1000,
    "p99_us": 400,
    "generator_lag_p99_us": 100,
    "server_cpu_share": 0.2,
    "server_rss_mib": 40.0,
    "limited_by": "waiting",
    "missing": 0,
    "python": "3.11",
}


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("per_second", Better.MORE),
        ("drain_per_second", Better.MORE),
        ("wakeups_per_second", Better.LESS),
        ("connected_wakeups_per_second", Better.LESS),
        ("p99_us", Better.LESS),
        ("send_server_cpu_us_per_message", Better.LESS),
        ("create_server_cpu_us_per_queue", Better.LESS),
        ("server_rss_growth_mib", Better.LESS),
        ("bytes_per_connection", Better.LESS),
        ("missing", Better.LESS),
        ("server_cpu_share", None),
        ("generator_lag_p99_us", None),
        ("body_bytes", None),
    ],
)
def test_the_unit_says_which_direction_is_better(name: str, better: Better | None) -> None:
    assert direction(name) is better


def test_each_figure_has_its_ratio_and_its_verdict() -> None:
    found = {
        difference.name: (difference.ratio, difference.verdict)
        for difference in compare(RUN, {**RUN, "per_second": 2000, "p99_us": 800, "server_rss_mib": 40.1})
    }

    assert found["per_second"] == (2.0, "better")
    assert found["p99_us"] == (2.0, "worse")
    assert found["server_rss_mib"][1] == ""
    assert found["missing"] == (None, "")
    assert set(found) == {"per_second", "p99_us", "server_rss_mib", "missing"}


def test_what_only_explains_a_run_may_differ() -> None:
    compare(RUN, {**RUN, "python": "3.13", "seconds": 1.0, "limited_by": "server", "server_cpu_share": 0.9})


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"workload": "topic"}, "workload is 'latency' there and 'topic' here"),
        ({"rate": 5.0}, "rate is 1000.0 there and 5.0 here"),
        ({"subscribers": 10}, "subscribers is not given there and 10 here"),
    ],
)
def test_another_load_is_not_compared(now: dict[str, object], said: str) -> None:
    with pytest.raises(NotComparable, match=said):
        compare(RUN, {**RUN, **now})


def test_runs_without_a_figure_in_common_are_not_compared() -> None:
    with pytest.raises(NotComparable, match="no figure in common"):
        compare({"workload": "idle"}, {"workload": "idle", "per_second": 5})


def test_a_line_of_progress_shows_the_rate_since_it_was_last_changed() -> None:
    written: list[str] = []
    now = [0.0]
    live = Live(written.append, lambda: now[0])

    live.phase("measuring")
    live.saw(1000)
    now[0] += SHOW_SECONDS / 2
    live.saw(1500)
    now[0] += SHOW_SECONDS / 2
    live.saw(2000)
    live.end()

    assert [text.replace("\r\x1b[K", "") for text in written] == [
        "measuring …",
        f"measuring … {SHOW_SECONDS:.1f} s, {1000 / SHOW_SECONDS:,.0f}/s",
        "",
    ]
