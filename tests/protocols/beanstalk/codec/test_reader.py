"""Bytes of a beanstalkd client: bounds, and that it does not matter how they are cut into reads."""

import random

import pytest

from qmq.protocols.beanstalk.codec.commands import BeanstalkCommand, BeanstalkVerb, WrongCommand
from qmq.protocols.beanstalk.codec.reader import DISCARDED_BYTES_MAX, LINE_BYTES_MAX, BeanstalkReader
from qmq.protocols.beanstalk.codec.replies import (
    BAD_FORMAT,
    EXPECTED_CRLF,
    JOB_TOO_BIG,
    UNKNOWN_COMMAND,
    yaml_list,
    yaml_map,
)

JOB_BYTES_MAX = 100
FUZZED_FRAMES = 3_000


def begun() -> BeanstalkReader:
    """The reader of a connection whose first line was a command."""
    reader = BeanstalkReader(JOB_BYTES_MAX)
    assert reader.receive(b"list-tubes\r\n") == [BeanstalkCommand(BeanstalkVerb.LIST_TUBES)]
    return reader


def read(data: bytes) -> list[BeanstalkCommand | WrongCommand]:
    return begun().receive(data)


def test_a_body_may_contain_anything() -> None:
    body = b"\r\nput 1 1 1 1\r\n\0\xff"

    found = read(b"put 1 0 60 %d\r\n%b\r\nreserve\r\n" % (len(body), body))

    assert found == [
        BeanstalkCommand(BeanstalkVerb.PUT, (1, 0, 60, len(body)), "", body),
        BeanstalkCommand(BeanstalkVerb.RESERVE),
    ]


def test_the_longest_line_is_read_and_a_longer_one_is_discarded() -> None:
    fits = b"x" * (LINE_BYTES_MAX - 2) + b"\r\n"
    longer = b"x" * (LINE_BYTES_MAX - 1) + b"\r\n"

    assert read(fits + b"reserve\r\n") == [WrongCommand(UNKNOWN_COMMAND), BeanstalkCommand(BeanstalkVerb.RESERVE)]
    assert read(longer + b"reserve\r\n") == [WrongCommand(BAD_FORMAT), BeanstalkCommand(BeanstalkVerb.RESERVE)]


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        (b"GET / HTTP/1.1", UNKNOWN_COMMAND),
        (b"PUT / HTTP/1.1", UNKNOWN_COMMAND),
        (b"stats / HTTP/1.1", UNKNOWN_COMMAND),
        (b"reserve-with-timeout / HTTP/1.1", UNKNOWN_COMMAND),
        (b"what", UNKNOWN_COMMAND),
        (b"stats a", BAD_FORMAT),
        (b"put a b c d", BAD_FORMAT),
        (b"use -", BAD_FORMAT),
        (b"stats\0", BAD_FORMAT),
        (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + b"r" * 32 + b"\x20", BAD_FORMAT),
        (b"", UNKNOWN_COMMAND),
        (b"x" * (LINE_BYTES_MAX - 2), UNKNOWN_COMMAND),
        (b"x" * (LINE_BYTES_MAX - 1), BAD_FORMAT),
        (b"GET /" + b"x" * 4000, BAD_FORMAT),
    ],
)
def test_nothing_is_read_behind_a_first_line_that_is_no_command(line: bytes, reply: bytes) -> None:
    data = line + b"\r\nreserve\r\n"
    reader = BeanstalkReader(JOB_BYTES_MAX)

    found = [one for at in range(len(data)) for one in reader.receive(data[at : at + 1])]

    assert found == BeanstalkReader(JOB_BYTES_MAX).receive(data) == [WrongCommand(reply, is_last=True)]
    assert reader.unfinished_bytes == 0


def test_a_wrong_line_behind_the_first_one_is_not_the_last() -> None:
    found = BeanstalkReader(JOB_BYTES_MAX).receive(b"stats\r\nput a b c d\r\nstats\0\r\nwhat\r\nreserve\r\n")

    assert found == [
        BeanstalkCommand(BeanstalkVerb.STATS),
        WrongCommand(BAD_FORMAT),
        WrongCommand(BAD_FORMAT),
        WrongCommand(UNKNOWN_COMMAND),
        BeanstalkCommand(BeanstalkVerb.RESERVE),
    ]


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/1.1",
        b"post /a?b=%20 HTTP/1.0",
        b"GET http://a/ b HTTP/2",
        b"GET /\0 HTTP/1.1",
        b"stats / HTTP/1.1",
        b"reserve-with-timeout / HTTP/1.1",
        b"kick 5 HTTP/1.1",
    ],
)
def test_nothing_is_read_behind_a_request_line_of_http(line: bytes) -> None:
    assert read(line + b"\r\nreserve\r\n") == [WrongCommand(UNKNOWN_COMMAND, is_last=True)]


def test_a_line_without_end_is_not_held() -> None:
    reader = begun()

    for _ in range(1000):
        assert reader.receive(b"x" * 1000) == []
        assert reader.unfinished_bytes <= LINE_BYTES_MAX

    assert reader.receive(b"\r") == []
    assert reader.receive(b"\nreserve\r\n") == [WrongCommand(BAD_FORMAT), BeanstalkCommand(BeanstalkVerb.RESERVE)]


def test_a_job_that_is_too_big_is_discarded_without_being_held() -> None:
    reader = BeanstalkReader(JOB_BYTES_MAX)
    size = 1_000_000

    assert reader.receive(b"put 1 0 60 %d\r\n" % size) == []
    for _ in range(1000):
        assert reader.receive(b"a" * 1000) == []
        assert reader.unfinished_bytes == 0

    assert reader.receive(b"\r\nreserve\r\n") == [WrongCommand(JOB_TOO_BIG), BeanstalkCommand(BeanstalkVerb.RESERVE)]


def test_a_job_of_the_largest_size_is_read() -> None:
    found = read(b"put 1 0 60 100\r\n" + b"a" * 100 + b"\r\nput 1 0 60 101\r\n" + b"a" * 101 + b"\r\n")

    assert [one.body if isinstance(one, BeanstalkCommand) else one.reply for one in found] == [b"a" * 100, JOB_TOO_BIG]


def test_nothing_is_read_behind_a_job_that_is_far_too_big() -> None:
    found = read(b"put 1 0 60 %d\r\nreserve\r\n" % (DISCARDED_BYTES_MAX + 1))

    assert found == [WrongCommand(JOB_TOO_BIG, is_last=True)]


def test_a_body_must_be_followed_by_crlf() -> None:
    assert read(b"put 1 0 60 2\r\nabcdreserve\r\n") == [
        WrongCommand(EXPECTED_CRLF),
        BeanstalkCommand(BeanstalkVerb.RESERVE),
    ]


def test_nothing_is_read_behind_quit() -> None:
    reader = BeanstalkReader(JOB_BYTES_MAX)

    assert reader.receive(b"quit\r\nreserve\r\n") == [BeanstalkCommand(BeanstalkVerb.QUIT)]
    assert reader.receive(b"reserve\r\n") == []
    assert reader.unfinished_bytes == 0


def test_a_command_under_way_is_known() -> None:
    reader = BeanstalkReader(JOB_BYTES_MAX)
    assert not reader.is_amid_command

    for part in (b"pu", b"t 1 0 60 2\r\n", b"a", b"b\r"):
        reader.receive(part)
        assert reader.is_amid_command, part

    assert len(reader.receive(b"\n")) == 1
    assert not reader.is_amid_command


def _frame(rng: random.Random) -> bytes:
    """A command, well-formed or not."""
    number = rng.choice([0, 1, 7, 99, 100, 101, 1000, 2**32 - 1, 2**32, 2**64])
    kind = rng.randrange(12)
    if kind < 4:
        size = rng.choice([0, 1, 5, 99, 100, 101, 300])
        body = rng.choice([b"a", b"\r\n", b"\0", b"\r"]) * size
        end = rng.choice([b"\r\n", b"\r\n", b"\r\n", b"\r\r", b"xx"])
        return b"put %d 0 60 %d\r\n%b%b" % (number, size, body[:size], end)
    if kind < 8:
        verb = rng.choice(list(BeanstalkVerb)).value.encode()
        rest = rng.choice([b"", b" ", b" a", b" %d" % number, b" %d 1" % number, b" %d 1 2" % number, b" a 1"])
        # What follows a `quit` is not read.
        return b"" if verb == b"quit" else verb + rest + b"\r\n"
    if kind < 10:
        return rng.randbytes(rng.randrange(40)).replace(b"q", b"") + rng.choice([b"\r\n", b"\r", b"\n", b""])
    return b"x" * rng.choice([221, 222, 223, 224, 225, 500]) + rng.choice([b"\r\n", b"\r", b"\r\r\n"])


@pytest.mark.parametrize("seed", range(4))
def test_it_does_not_matter_how_the_bytes_are_cut(seed: int) -> None:
    rng = random.Random(seed)
    data = b"".join([_frame(rng) for _ in range(FUZZED_FRAMES)])
    whole = read(data)

    for sizes in ((1,), (1, 2, 3, 5), (223, 224, 225), (1, 4096)):
        reader = begun()
        found: list[BeanstalkCommand | WrongCommand] = []
        at = 0
        while at < len(data):
            size = rng.choice(sizes)
            found += reader.receive(data[at : at + size])
            at += size
            assert reader.unfinished_bytes <= JOB_BYTES_MAX + LINE_BYTES_MAX + 2

        assert found == whole, f"seed {seed}, reads of {sizes}"
    assert len(whole) > FUZZED_FRAMES / 3


def test_facts_are_written_as_yaml() -> None:
    facts = {"id": 7, "tube": "a", "rusage-utime": 1.5, "draining": False}

    assert yaml_map(facts) == b"OK 57\r\n---\nid: 7\ntube: a\nrusage-utime: 1.500000\ndraining: false\n\r\n"
    assert yaml_list(["default", "a"]) == b"OK 18\r\n---\n- default\n- a\n\r\n"
