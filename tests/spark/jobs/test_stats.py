"""Statistics of destinations, counted from records whose answers are known."""

import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from qmq.model.dots import Dot, Origin
from qmq.spark.jobs.stats import read_records, stats
from qmq.storage.format.failure_records import pack_attempts, pack_dead
from qmq.storage.format.record import RecordKind, pack_dots
from tests.spark.rig import START_US, A, B, batch, node, record

MINUTE_US = 60_000_000


def at(minute: float) -> int:
    return START_US - START_US % MINUTE_US + round(minute * MINUTE_US)


def test_what_went_through_and_what_waits_is_counted(spark: Any, tmp_path: Path) -> None:
    """Six jobs: two acked after 6 s on another node, one dead after three failures, three waiting since minute 2."""
    jobs = [record(n, b"x" * n, at_us=at(0 if n < 4 else 2)) for n in range(1, 7)]
    failed = record(7, pack_attempts([(Dot(A, 3), 3)]), at_us=at(2), kind=RecordKind.ATTEMPTS)
    headers = b"dead-letter-reason:delivery-limit\ndead-letter-from:/queue/jobs\n"
    letter = pack_dead("/queue/jobs", Dot(A, 3), b"poison")
    dead = record(8, letter, "/queue/dead-letters", headers=headers, at_us=at(2.5), kind=RecordKind.DEAD)
    topic = record(9, b"late", "/fanout/news", at_us=at(4))
    done = record(1, pack_dots([Dot(A, 1), Dot(A, 2)]), at_us=at(0.1), kind=RecordKind.SETTLE)
    for name in "ab":
        node(tmp_path, name).segment([batch(A, 1, [*jobs, failed, dead, topic]), batch(B, 1, [done])])

    found = stats(read_records(spark, {"path": f"{tmp_path}/*"}))

    totals = {total.destination: total for total in found.totals}
    queue = totals["/queue/jobs"]
    assert (queue.messages, queue.bytes, queue.size_max) == (6, 21, 6)
    assert (queue.settled, queue.settle_p50, queue.consumers) == (3, 6.0, 2)
    assert (queue.waiting, queue.oldest_seconds) == (3, 120.0)
    assert (queue.failures, queue.dead_letters) == (3, 1)
    assert totals["/queue/dead-letters"].bytes == len(b"poison")
    assert totals["/fanout/news"].waiting == 0
    first = found.windows[0]
    assert (first.start.astimezone(UTC), first.destination, first.messages) == (
        datetime.fromtimestamp(at(0) / 1e6, UTC),
        "/queue/jobs",
        3,
    )


def test_each_window_says_what_was_done_in_it_and_what_waited_at_its_end(spark: Any, tmp_path: Path) -> None:
    """Minute 0: three jobs come, and one is done. 1: nothing. 2: one fails twice. 3: it is dead, another is done, and
    one of long ago, which is not in the log any more. 4: one more comes."""
    jobs = [record(n, b"x" * n, at_us=at(0.25 * n)) for n in (1, 2, 3)]
    done = [
        record(1, pack_dots([Dot(A, 1)]), at_us=at(0.75), kind=RecordKind.SETTLE),
        record(2, pack_dots([Dot(A, 2), Dot(Origin("c", 0xC1), 9)]), at_us=at(3.5), kind=RecordKind.SETTLE),
    ]
    failed = [
        record(4 + n, pack_attempts([(Dot(A, 3), 1 + n)]), at_us=at(2.5), kind=RecordKind.ATTEMPTS) for n in (0, 1)
    ]
    headers = b"dead-letter-reason:delivery-limit\ndead-letter-from:/queue/jobs\n"
    letter = pack_dead("/queue/jobs", Dot(A, 3), b"poison")
    dead = record(6, letter, "/queue/dead-letters", headers=headers, at_us=at(3.25), kind=RecordKind.DEAD)
    late = record(7, b"x" * 7, at_us=at(4.5))
    node(tmp_path, "a").segment([batch(A, 1, [*jobs, *failed, dead, late]), batch(B, 1, done)])

    found = stats(read_records(spark, {"path": f"{tmp_path}/a", "subscribe": "/queue/jobs"}))

    said = {
        round((one.start.timestamp() * 1e6 - at(0)) / MINUTE_US): {
            name: value
            for name, value in asdict(one).items()
            if value and name not in ("start", "destination", "size_p50", "size_p99", "settle_p50")
        }
        for one in found.windows
    }
    assert said == {
        0: {"messages": 3, "bytes": 6, "size_max": 3, "settled": 1, "settle_p99": 30.0, "consumers": 1}
        | {"waiting": 2, "oldest_seconds": 30.0},
        2: {"failures": 2, "waiting": 2, "oldest_seconds": 150.0},
        3: {"settled": 3, "settle_p99": 180.0, "consumers": 2, "dead_letters": 1},
        4: {"messages": 1, "bytes": 7, "size_max": 7, "waiting": 1, "oldest_seconds": 30.0},
    }
    assert not found.is_cut


def test_windows_that_are_shown_are_right_although_there_are_too_many(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two queues, the first window and half of the second: what is settled later waited in these, too."""
    monkeypatch.setattr("qmq.spark.jobs.windows.WINDOWS_MAX", 3)
    jobs = [record(n, b"x", at_us=at(0.1 * n)) for n in (1, 2, 3, 4)]
    mails = [record(n, b"x", "/queue/mails", at_us=at(0.9)) for n in range(5, 15)]
    more = [record(15, b"x", at_us=at(1.5)), *(record(n, b"x", "/queue/mails", at_us=at(1.5)) for n in range(16, 30))]
    done = [
        record(number, pack_dots([Dot(A, of)]), at_us=at(minute), kind=RecordKind.SETTLE)
        for number, (of, minute) in enumerate([(2, 1.5), (15, 1.9), (3, 2.5), (4, 3.5), (1, 5.5)], 1)
    ]
    node(tmp_path, "a").segment([batch(A, 1, [*jobs, *mails, *more]), batch(B, 1, done)])

    found = stats(read_records(spark, {"path": f"{tmp_path}/a"}))

    assert found.is_cut
    assert [
        (round((one.start.timestamp() * 1e6 - at(0)) / MINUTE_US), one.destination, one.waiting, one.oldest_seconds)
        for one in found.windows
    ] == [
        (0, "/queue/mails", 10, pytest.approx(6.0)),
        (0, "/queue/jobs", 4, pytest.approx(54.0)),
        (1, "/queue/jobs", 3, pytest.approx(114.0)),
    ]


def test_of_a_message_that_came_before_what_is_read_only_failures_that_are_read_count(
    spark: Any, tmp_path: Path
) -> None:
    """It failed for the fourth time, and the fifth; the other came and failed three times, in one record."""
    old = Dot(Origin("c", 0xC1), 7)
    noted = [
        record(2, pack_attempts([(old, 4), (Dot(A, 1), 3)]), at_us=at(1), kind=RecordKind.ATTEMPTS),
        record(3, pack_attempts([(old, 5)]), at_us=at(2), kind=RecordKind.ATTEMPTS),
    ]
    mentioned = record(1, pack_attempts([(old, 5), (Dot(A, 1), 3)]), at_us=at(3), kind=RecordKind.ATTEMPTS)
    node(tmp_path, "a").segment([batch(A, 1, [record(1, b"x", at_us=at(0)), *noted]), batch(B, 1, [mentioned])])

    found = stats(read_records(spark, {"path": f"{tmp_path}/a"}))

    assert [one.failures for one in found.windows] == [0, 4, 1]
    assert [total.failures for total in found.totals] == [5]


@pytest.fixture
def far_away(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This machine has another time zone."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("far_away")
def test_messages_count_in_their_windows_and_times_are_utc(spark: Any, tmp_path: Path) -> None:
    """120 messages in ten minutes, and as many an hour later."""
    stamped = [record(n, b"x", at_us=at(0 if n <= 120 else 60)) for n in range(1, 241)]
    node(tmp_path, "a").segment([batch(A, 1, stamped)])

    found = stats(read_records(spark, {"path": f"{tmp_path}/a"}), window="10 minutes")

    begin = datetime.fromtimestamp(at(0) // (10 * MINUTE_US) * 600, UTC)
    assert [window.start for window in found.windows] == [begin, begin + timedelta(hours=1)]
    assert [window.messages for window in found.windows] == [120, 120]


def test_two_lives_of_a_node_are_one_node(spark: Any, tmp_path: Path) -> None:
    jobs = [record(n, b"x", at_us=at(0)) for n in (1, 2)]
    done = [record(1, pack_dots([Dot(A, n)]), at_us=at(n), kind=RecordKind.SETTLE) for n in (1, 2)]
    again = Origin("b", 0xB2)
    node(tmp_path, "a").segment([batch(A, 1, jobs), batch(B, 1, done[:1]), batch(again, 1, done[1:])])

    (queue,) = stats(read_records(spark, {"path": f"{tmp_path}/a"})).totals

    assert (queue.settled, queue.consumers) == (2, 1)


@pytest.mark.parametrize("chosen", [{"subscribe": "/queue/jobs"}, {"subscribePattern": "/queue/j.*"}])
def test_dead_letters_in_another_queue_are_known_to_their_own(
    spark: Any, tmp_path: Path, chosen: dict[str, str]
) -> None:
    """The record of a dead letter settles its message, and stands under the queue that the letter is in."""
    headers = b"dead-letter-reason:delivery-limit\ndead-letter-from:/queue/jobs\n"
    letter = pack_dead("/queue/jobs", Dot(A, 1), b"poison")
    dead = record(2, letter, "/queue/dead-letters", headers=headers, at_us=at(1), kind=RecordKind.DEAD)
    node(tmp_path, "a").segment([batch(A, 1, [record(1, b"x", at_us=at(0)), dead])])

    found = stats(read_records(spark, {"path": f"{tmp_path}/a", **chosen}))

    (queue,) = found.totals
    assert (queue.destination, queue.settled, queue.waiting, queue.dead_letters) == ("/queue/jobs", 1, 0, 1)
    assert [(one.messages, one.settled, one.dead_letters) for one in found.windows] == [(1, 0, 0), (0, 1, 1)]


@pytest.mark.parametrize("chosen", [{"subscribe": "/queue/jobs"}, {"subscribePattern": "/queue/j.*"}])
def test_a_message_waits_until_the_newest_record_of_all(spark: Any, tmp_path: Path, chosen: dict[str, str]) -> None:
    """Its own queue stands still: nothing comes, and nobody takes anything."""
    waits, other = record(1, b"x", at_us=at(0)), record(2, b"x", "/fanout/news", at_us=at(10))
    node(tmp_path, "a").segment([batch(A, 1, [waits, other])])

    (queue,) = stats(read_records(spark, {"path": f"{tmp_path}/a", **chosen})).totals

    assert (queue.destination, queue.waiting, queue.oldest_seconds) == ("/queue/jobs", 1, 600.0)


def test_a_letter_of_what_found_no_room_settles_nothing(spark: Any, tmp_path: Path) -> None:
    """It was never in its queue, so no record settles it."""
    headers = b"dead-letter-reason:overflow\ndead-letter-from:/queue/jobs\n"
    letter = record(1, b"one too many", "/queue/dead-letters", headers=headers, at_us=at(0))
    node(tmp_path, "a").segment([batch(A, 1, [letter])])

    (window,) = stats(read_records(spark, {"path": f"{tmp_path}/a", "subscribe": "/queue/jobs"})).windows

    assert (window.dead_letters, window.settled, window.consumers) == (1, 0, 0)


def test_of_more_destinations_the_busiest_have_their_letters_and_failures(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qmq.spark.jobs.windows.DESTINATIONS_MAX", 2)
    records, sequence = [], 0
    for queue in range(6):
        name = f"/queue/q{queue}"
        first = sequence + 1
        for _ in range(queue + 1):
            sequence += 1
            records.append(record(sequence, b"x", name, at_us=at(0)))
        sequence += 2
        attempts = pack_attempts([(Dot(A, first), 1)])
        records.append(record(sequence - 1, attempts, name, at_us=at(0), kind=RecordKind.ATTEMPTS))
        headers = f"dead-letter-reason:delivery-limit\ndead-letter-from:{name}\n".encode()
        letter = pack_dead(name, Dot(A, first), b"poison")
        records.append(record(sequence, letter, "/queue/dead", headers=headers, at_us=at(0), kind=RecordKind.DEAD))
    node(tmp_path, "a").segment([batch(A, 1, records)])

    found = stats(read_records(spark, {"path": f"{tmp_path}/a", "subscribePattern": "/queue/q.*"}))

    said = [(one.destination, one.messages, one.dead_letters, one.failures) for one in found.totals]
    assert said == [("/queue/q5", 6, 1, 1), ("/queue/q4", 5, 1, 1)]
