"""What a checkpoint hands over to the queue store: messages in runs."""

import random

import pytest

from qmq.model.dots import Dot
from qmq.storage.checkpoints.compaction import Compaction
from qmq.storage.format.batch import verify_batch
from qmq.storage.format.queue_store import QueueRow
from qmq.storage.format.record import EXACT, TIMED, level_of, with_priority
from qmq.storage.format.settings import StoreSettings
from tests.fakes.queue_store import rows_in

from ..rig import NOW, A, B, Writer

HEADERS = (b"k:v\n", b"k:w\nlonger:yes\n", b"beanstalk-priority:1027\n")
FLAGS = (0, 7, with_priority(0, 9), with_priority(TIMED, 4), with_priority(EXACT, 6), with_priority(EXACT | TIMED, 6))


def times_of(headers: bytes, timestamp_us: int) -> tuple[int, int]:
    return (timestamp_us + 5, 0) if len(headers) % 2 else (0, timestamp_us + 9)


SETTINGS = StoreSettings(times_of=times_of)


def compacted(*batches: bytes) -> Compaction:
    reduction = Compaction(SETTINGS, "a", {}, set(), queue_position=0, fanout_position=0)
    for position, data in enumerate(batches):
        reduction.take(position, verify_batch(data), data)
    return reduction


def test_messages_of_one_queue_and_level_share_a_run_whatever_comes_between() -> None:
    a = Writer(A)
    for body, queue, flags in (
        (b"1", "/queue/q", 0),
        (b"2", "/queue/p", 0),
        (b"3", "/queue/q", 7),
        (b"4", "/queue/q", 0),
    ):
        a.publish(queue, body, flags)
    settled = a.publish("/queue/q", b"5")
    a.settle("/queue/q", [settled])

    runs = compacted(a.batch()).runs()

    assert [(run.queue, run.flags, [record[5] for record in run.records]) for run in runs] == [
        ("/queue/q", 0, [b"1", b"4"]),
        ("/queue/p", 0, [b"2"]),
        ("/queue/q", 7, [b"3"]),
    ]


def test_a_message_with_times_a_number_or_failures_is_a_run_of_its_own() -> None:
    a = Writer(A)
    a.publish("/queue/q", b"plain")
    a.publish("/queue/q", b"timed", with_priority(TIMED, 4), b"k:v\n")
    a.publish("/queue/q", b"exact", with_priority(EXACT, 6), HEADERS[2])
    failed = a.publish("/queue/q", b"failed")
    a.publish("/queue/q", b"plain again")
    a.attempts("/queue/q", {failed: 3})

    runs = compacted(a.batch()).runs()

    assert {(tuple(record[5] for record in run.records), *run[5:]) for run in runs} == {
        ((b"plain", b"plain again"), 0, 0, 0, 0),
        ((b"timed",), 0, NOW + 2 + 9, 0, 0),
        ((b"exact",), 0, 0, 0, level_of(with_priority(EXACT, 6), HEADERS[2])[1]),
        ((b"failed",), 0, 0, 3, 0),
    }


def test_a_run_whose_first_message_has_failed_is_not_empty() -> None:
    a = Writer(A)
    a.attempts("/queue/q", {a.publish("/queue/q", b"failed"): 1})

    assert [len(run.records) for run in compacted(a.batch()).runs()] == [1]


@pytest.mark.parametrize("seed", range(60))
def test_runs_hold_what_is_unsettled_and_each_message_as_it_was_sent(seed: int) -> None:
    rng = random.Random(seed)
    writers = [Writer(A), Writer(B)]
    expected: dict[Dot, QueueRow] = {}
    batches: list[bytes] = []
    for _ in range(12):
        writer = rng.choice(writers)
        for _ in range(rng.randrange(1, 9)):
            queue = rng.choice(("/queue/q", "/queue/p"))
            open_dots = [dot for dot, row in expected.items() if row.queue == queue]
            if open_dots and rng.random() < 0.3:
                settled = rng.sample(open_dots, rng.randrange(1, len(open_dots) + 1))
                writer.settle(queue, settled)
                for dot in settled:
                    del expected[dot]
            elif open_dots and rng.random() < 0.1:
                dot = rng.choice(open_dots)
                count = rng.randrange(1, 9)
                writer.attempts(queue, {dot: count})
                expected[dot] = expected[dot]._replace(attempts=max(count, expected[dot].attempts))
            else:
                flags, headers, body = rng.choice(FLAGS), rng.choice(HEADERS), rng.randbytes(rng.randrange(40))
                dot = writer.publish(queue, body, flags, headers)
                sent_us = NOW + dot.sequence
                times = times_of(headers, sent_us) if flags & TIMED else (0, 0)
                level, exact = level_of(flags, headers)
                expected[dot] = QueueRow(dot, queue, sent_us, flags, level, *times, headers, body, 0, exact)
        batches.append(writer.batch())

    runs = compacted(*batches).runs()

    assert sorted(row for run in runs for row in rows_in(run)) == sorted(expected.values())
    for run in runs:
        sequences = [record[0] for record in run.records]
        assert sequences and sequences == sorted(sequences)
    plain = [run for run in runs if not run.flags & (EXACT | TIMED) and not run.attempts]
    assert len({(run.origin, run.queue, run.flags) for run in plain}) == len(plain)
