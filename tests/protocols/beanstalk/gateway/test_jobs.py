"""Jobs as messages: ids, priorities, and the headers of what is put, released and buried."""

import pytest

from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Envelope, Message
from qmq.model.dots import Dot, Origin
from qmq.model.levels import EXACT_TOPS
from qmq.protocols.beanstalk.gateway.jobs import (
    SECONDS_MAX,
    JobCounts,
    buried_queue_of,
    counts_of,
    delay_seconds_of,
    dots_of,
    id_of,
    id_of_dot,
    is_buried,
    job_priority,
    kick_lines,
    next_head,
    put_at_us,
    put_head,
    queue_of,
    queue_priority,
    ttr_us,
    tube_of,
)
from qmq.wire.stomp import Head, Version, encode_headers

HERE = Origin("a", 1)
ORIGINS = [Origin(name, incarnation) for name in ("a", "b", "c") for incarnation in range(1, 50)]
PUT_US = 5_000_000


def message(head: Head, *, sequence: int = 7, origin: Origin = HERE, at_us: int = PUT_US) -> Message:
    """What a SEND with this header block becomes."""
    lines = [(name, value) for name, value in head.headers.items() if name not in ("destination", "transaction")]
    block = encode_headers(lines, Version.V12)
    envelope = Envelope(head.headers["destination"], DestinationKind.QUEUE, block, True)
    return Message(envelope, b"job", origin, sequence, at_us)


def test_any_node_that_knows_the_origins_finds_the_message_of_an_id() -> None:
    dots = [Dot(origin, sequence) for origin in ORIGINS for sequence in (1, 1000, (1 << 40) - 1)]

    for dot in dots:
        assert dots_of(id_of_dot(dot), ORIGINS) == [dot]
    assert len({id_of_dot(dot) for dot in dots}) == len(dots)


def test_ids_are_positive_numbers_of_63_bits() -> None:
    for sequence in (1, (1 << 40) - 1, -1, -((1 << 40) - 1)):
        for origin in ORIGINS:
            assert 0 < id_of_dot(Dot(origin, sequence)) < 1 << 63


def test_a_memory_only_message_has_an_id_of_its_own() -> None:
    assert id_of_dot(Dot(HERE, -7)) != id_of_dot(Dot(HERE, 7))
    assert dots_of(id_of_dot(Dot(HERE, -7)), ORIGINS) == []
    assert dots_of(0, ORIGINS) == []


def test_two_origins_may_share_a_hash() -> None:
    dot = Dot(HERE, 5)

    assert dots_of(id_of_dot(dot), [HERE, HERE]) == [dot, dot]


@pytest.mark.parametrize(
    ("priority", "expected"),
    [
        (0, 9),
        (1, 8),
        (3, 8),
        (4, 7),
        (15, 7),
        (100, 6),
        (1023, 5),
        (1024, 4),
        (65_535, 3),
        (65536, 2),
        (1 << 20, 2),
        (1 << 24, 1),
    ]
    + [((1 << 31) - 1, 1), (1 << 31, 0), ((1 << 32) - 1, 0)],
)
def test_a_priority_becomes_one_of_ten(priority: int, expected: int) -> None:
    assert queue_priority(priority) == expected


def test_the_order_of_priorities_is_kept() -> None:
    edges = sorted({edge + step for edge in EXACT_TOPS for step in (-1, 0, 1) if 0 <= edge + step < 1 << 32})

    found = [queue_priority(edge) for edge in edges]

    assert found == sorted(found, reverse=True)
    assert set(found) == set(range(10))


@pytest.mark.parametrize("priority", [0, 1, 1024, 65536, (1 << 32) - 1])
def test_the_exact_priority_is_shown(priority: int) -> None:
    assert job_priority(message(put_head("t", priority, 0, 60))) == priority


@pytest.mark.parametrize(("said", "shown"), [("9", 0), ("4", 1024), ("0", 1 << 31), (None, 1024)])
def test_the_priority_of_a_stomp_message_is_the_first_of_its_own(said: str | None, shown: int) -> None:
    headers = {"destination": "/queue/t"} | ({} if said is None else {"priority": said})

    found = job_priority(message(Head("SEND", headers, Version.V12)))

    assert found == shown
    assert queue_priority(found) == int(said or 4)


@pytest.mark.parametrize(
    ("headers", "exact", "shown"),
    [
        (b"priority:6\nbeanstalk-priority:20\n", 20, 20),
        (b"priority:6\nbeanstalk-priority:16\n", 0, 16),
        (b"priority:6\nbeanstalk-priority:15\n", 0, 16),
        (b"priority:6\nbeanstalk-priority:128\n", 0, 16),
        (b"priority:9\nbeanstalk-priority:4000000000\n", 0, 0),
        (b"priority:0\nbeanstalk-priority:4294967295\n", 4294967295, 4294967295),
        (b"priority:0\nbeanstalk-priority:4294967296\n", 0, 1 << 31),
        (b"priority:0\nbeanstalk-priority:99999999999\n", 0, 1 << 31),
        (b"priority:6\nbeanstalk-priority:-20\n", 0, 16),
        (b"priority:6\nbeanstalk-priority:x\nbeanstalk-priority:20\n", 0, 16),
        (b"priority:6\nbeanstalk-priority:20\nbeanstalk-priority:30\n", 20, 20),
        (b"beanstalk-priority:2000\n", 0, 1024),
        (b"ttl:1000\nbeanstalk-priority:2000\n", 0, 1024),
    ],
)
def test_an_exact_priority_counts_beside_the_priority_that_it_belongs_to(
    headers: bytes, exact: int, shown: int
) -> None:
    envelope = Envelope("/queue/t", DestinationKind.QUEUE, headers, durable=True)

    one = Message(envelope, b"", Origin("a", 1), 1, PUT_US)

    assert (0 if envelope.options is None else envelope.options.exact) == exact
    assert job_priority(one) == shown


def test_a_put_says_what_a_stomp_client_would_say() -> None:
    assert put_head("t", 100, 2, 60).headers == {
        "destination": "/queue/t",
        "priority": "6",
        "ack-timeout": "60",
        "delay": "2000",
        "beanstalk-priority": "100",
        "beanstalk-delay": "2",
    }
    assert "delay" not in put_head("t", 100, 0, 60).headers


def test_times_are_cut_to_a_hundred_years_and_a_second_at_least() -> None:
    headers = put_head("t", 0, (1 << 32) - 1, (1 << 32) - 1).headers

    assert (headers["delay"], headers["ack-timeout"]) == (str(SECONDS_MAX * 1000), str(SECONDS_MAX))
    assert put_head("t", 0, 0, 0).headers["ack-timeout"] == "1"


def test_the_next_message_of_a_job_has_its_id_its_age_and_what_its_sender_said() -> None:
    headers = {**put_head("t", 100, 9, 60).headers, "kind": "letter", "content-type": "text/plain", "dedup-id": "x"}
    first = message(Head("SEND", headers, Version.V12))
    counts = JobCounts(1, 2, 3, 4, 5)

    second = message(next_head(first, buried_queue_of("t"), 7, 0, counts), sequence=99, at_us=2 * PUT_US)
    third = message(next_head(second, queue_of("t"), 8, 3, counts), sequence=100, at_us=3 * PUT_US)

    for one, priority, delay in ((second, 7, 9), (third, 8, 3)):
        assert id_of(one) == id_of(first) == id_of_dot(first.dot)
        assert (put_at_us(one), ttr_us(one), job_priority(one)) == (PUT_US, 60_000_000, priority)
        assert (counts_of(one.envelope), delay_seconds_of(one)) == (counts, delay)
        assert b"kind:letter\n" in one.envelope.headers and b"content-type:text/plain\n" in one.envelope.headers
        assert b"dedup-id" not in one.envelope.headers
    assert second.envelope.options is not None and second.envelope.options.delay_us == 0
    assert third.envelope.options is not None and third.envelope.options.delay_us == 3_000_000


def test_a_job_expires_when_it_would_have_expired() -> None:
    head = Head("SEND", {"destination": "/queue/t", "ttl": "60000"}, Version.V12)
    first = message(head)

    second = message(next_head(first, queue_of("t"), 1, 0, JobCounts()), at_us=2 * PUT_US)

    for one in (first, second):
        assert one.envelope.options is not None
        assert one.envelope.options.expiry(one.timestamp_us) == PUT_US + 60_000_000
    # As above, by a clock that is ahead.
    assert next_head(first, queue_of("t"), 1, 0, JobCounts(), 3_000_000).headers["expires"] == "68000"


def test_a_job_that_is_kicked_early_keeps_its_id() -> None:
    first = message(put_head("t", 1, 100, 60))

    assert kick_lines(first) == b"beanstalk-id:%d\nbeanstalk-put-at:%d\n" % (id_of(first), PUT_US)
    assert kick_lines(message(next_head(first, queue_of("t"), 1, 5, JobCounts()))) == b""


@pytest.mark.parametrize("text", ["", "x", "1 2 3", "1 2 3 4 -5", "1 2 3 4 ٣"])
def test_headers_that_a_stomp_client_made_up_mean_nothing(text: str) -> None:
    names = ("beanstalk-counts", "beanstalk-priority", "beanstalk-delay", "beanstalk-put-at", "beanstalk-id")
    one = message(Head("SEND", {"destination": "/queue/t", **dict.fromkeys(names, text)}, Version.V12))

    assert (counts_of(one.envelope), job_priority(one), delay_seconds_of(one)) == (JobCounts(), 1024, 0)
    assert (put_at_us(one), id_of(one)) == (PUT_US, id_of_dot(one.dot))


@pytest.mark.parametrize("tube", ["t", "a/b", "x.buried.y", "-"])
def test_a_tube_has_two_queues(tube: str) -> None:
    assert not is_buried(queue_of(tube))
    assert is_buried(buried_queue_of(tube))
    assert tube_of(queue_of(tube)) == tube_of(buried_queue_of(tube)) == tube
