"""Command lines of the beanstalkd protocol: what each word may be followed by."""

import pytest

from qmq.wire.beanstalk import BAD_FORMAT, UNKNOWN_COMMAND, Command, Verb, Wrong, parse_line
from qmq.wire.beanstalk.commands import ID_MAX, NUMBER_MAX

BAD = Wrong(BAD_FORMAT)
UNKNOWN = Wrong(UNKNOWN_COMMAND)


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (b"put 1 2 3 4", Command(Verb.PUT, (1, 2, 3, 4))),
        (b"put  1 0   60 1", Command(Verb.PUT, (1, 0, 60, 1))),
        (b"put 4294967295 4294967295 4294967295 0", Command(Verb.PUT, (NUMBER_MAX, NUMBER_MAX, NUMBER_MAX, 0))),
        (b"use a", Command(Verb.USE, (), "a")),
        (b"use " + b"a" * 200, Command(Verb.USE, (), "a" * 200)),
        (b"watch A9+/;.$_()-", Command(Verb.WATCH, (), "A9+/;.$_()-")),
        (b"ignore a", Command(Verb.IGNORE, (), "a")),
        (b"reserve", Command(Verb.RESERVE)),
        (b"reserve-with-timeout 0", Command(Verb.RESERVE_WITH_TIMEOUT, (0,))),
        (b"reserve-with-timeout 5x", Command(Verb.RESERVE_WITH_TIMEOUT, (5,))),
        (b"reserve-with-timeout -1", Command(Verb.RESERVE)),
        (b"reserve-job 7", Command(Verb.RESERVE_JOB, (7,))),
        (b"delete 18446744073709551615", Command(Verb.DELETE, (ID_MAX,))),
        (b"release 1 2 3", Command(Verb.RELEASE, (1, 2, 3))),
        (b"bury 1 2", Command(Verb.BURY, (1, 2))),
        (b"touch 1", Command(Verb.TOUCH, (1,))),
        (b"kick 5x", Command(Verb.KICK, (5,))),
        (b"kick-job 1", Command(Verb.KICK_JOB, (1,))),
        (b"peek 1", Command(Verb.PEEK, (1,))),
        (b"peek-ready", Command(Verb.PEEK_READY)),
        (b"peek-delayed", Command(Verb.PEEK_DELAYED)),
        (b"peek-buried", Command(Verb.PEEK_BURIED)),
        (b"stats", Command(Verb.STATS)),
        (b"stats-job 1", Command(Verb.STATS_JOB, (1,))),
        (b"stats-tube a", Command(Verb.STATS_TUBE, (), "a")),
        (b"list-tubes", Command(Verb.LIST_TUBES)),
        (b"list-tube-used", Command(Verb.LIST_TUBE_USED)),
        (b"list-tubes-watched", Command(Verb.LIST_TUBES_WATCHED)),
        (b"pause-tube a 60", Command(Verb.PAUSE_TUBE, (60,), "a")),
        (b"quit", Command(Verb.QUIT)),
        (b"quitting", Command(Verb.QUIT)),
    ],
)
def test_a_command_is_read(line: bytes, command: Command) -> None:
    assert parse_line(line) == command


def test_every_verb_can_be_read() -> None:
    rests = {"tube": b" a", "numbers": b" 1 2 3 4"}

    for verb in Verb:
        read = [parse_line(verb.encode() + rest) for rest in (b"", *rests.values(), b" 1", b" 1 2", b" 1 2 3", b" a 1")]

        assert verb in [one.verb for one in read if isinstance(one, Command)], verb


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        (b"", UNKNOWN),
        (b"put", UNKNOWN),
        (b"use", UNKNOWN),
        (b"PUT 1 2 3 4", UNKNOWN),
        (b"watching a", UNKNOWN),
        (b"put 1", BAD),
        (b"put 1 2 3 4 ", BAD),
        (b"put 1 2 3 4 5", BAD),
        (b"put 4294967296 2 3 4", BAD),
        (b"put -1 2 3 4", BAD),
        (b"put 1 2 3 0x4", BAD),
        (b"put \xd9\xa1 2 3 4", BAD),
        (b"use  a", BAD),
        (b"use a ", BAD),
        (b"use -a", BAD),
        (b"use a b", BAD),
        (b"use " + b"a" * 201, BAD),
        (b"use caf\xc3\xa9", BAD),
        (b"watch\0x", BAD),
        (b"reservexyz", BAD),
        (b"reserve ", BAD),
        (b"list-tubesx", BAD),
        (b"delete 18446744073709551616", BAD),
        (b"delete 1 2", BAD),
        (b"delete x", BAD),
        (b"release 1 2", BAD),
        (b"release 1 4294967296 0", BAD),
        (b"kick x", BAD),
        (b"kick -1", BAD),
        (b"kick 4294967296", BAD),
        (b"pause-tube a", BAD),
        (b"pause-tube a -1", BAD),
        (b"pause-tube a 4294967296", BAD),
    ],
)
def test_what_is_no_command_is_answered_as_by_beanstalkd(line: bytes, wrong: Wrong) -> None:
    assert parse_line(line) == wrong
