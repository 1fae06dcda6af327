"""Command lines of the beanstalkd protocol: what each word may be followed by."""

import pytest

from qmq.protocols.beanstalk.codec.commands import (
    ID_MAX,
    NUMBER_MAX,
    BeanstalkCommand,
    BeanstalkVerb,
    WrongCommand,
    parse_line,
)
from qmq.protocols.beanstalk.codec.replies import BAD_FORMAT, UNKNOWN_COMMAND

BAD = WrongCommand(BAD_FORMAT)
UNKNOWN = WrongCommand(UNKNOWN_COMMAND)


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (b"put 1 2 3 4", BeanstalkCommand(BeanstalkVerb.PUT, (1, 2, 3, 4))),
        (b"put  1 0   60 1", BeanstalkCommand(BeanstalkVerb.PUT, (1, 0, 60, 1))),
        (
            b"put 4294967295 4294967295 4294967295 0",
            BeanstalkCommand(BeanstalkVerb.PUT, (NUMBER_MAX, NUMBER_MAX, NUMBER_MAX, 0)),
        ),
        (b"use a", BeanstalkCommand(BeanstalkVerb.USE, (), "a")),
        (b"use " + b"a" * 200, BeanstalkCommand(BeanstalkVerb.USE, (), "a" * 200)),
        (b"watch A9+/;.$_()-", BeanstalkCommand(BeanstalkVerb.WATCH, (), "A9+/;.$_()-")),
        (b"ignore a", BeanstalkCommand(BeanstalkVerb.IGNORE, (), "a")),
        (b"reserve", BeanstalkCommand(BeanstalkVerb.RESERVE)),
        (b"reserve-with-timeout 0", BeanstalkCommand(BeanstalkVerb.RESERVE_WITH_TIMEOUT, (0,))),
        (b"reserve-with-timeout 5x", BeanstalkCommand(BeanstalkVerb.RESERVE_WITH_TIMEOUT, (5,))),
        (b"reserve-with-timeout x", BeanstalkCommand(BeanstalkVerb.RESERVE_WITH_TIMEOUT, (0,))),
        (b"reserve-with-timeout -1", BeanstalkCommand(BeanstalkVerb.RESERVE)),
        (b"reserve-job 7", BeanstalkCommand(BeanstalkVerb.RESERVE_JOB, (7,))),
        (b"delete 18446744073709551615", BeanstalkCommand(BeanstalkVerb.DELETE, (ID_MAX,))),
        (b"release 1 2 3", BeanstalkCommand(BeanstalkVerb.RELEASE, (1, 2, 3))),
        (b"bury 1 2", BeanstalkCommand(BeanstalkVerb.BURY, (1, 2))),
        (b"touch 1", BeanstalkCommand(BeanstalkVerb.TOUCH, (1,))),
        (b"kick 5x", BeanstalkCommand(BeanstalkVerb.KICK, (5,))),
        (b"kick -1", BeanstalkCommand(BeanstalkVerb.KICK, (0,))),
        (b"kick-job 1", BeanstalkCommand(BeanstalkVerb.KICK_JOB, (1,))),
        (b"peek 1", BeanstalkCommand(BeanstalkVerb.PEEK, (1,))),
        (b"peek-ready", BeanstalkCommand(BeanstalkVerb.PEEK_READY)),
        (b"peek-delayed", BeanstalkCommand(BeanstalkVerb.PEEK_DELAYED)),
        (b"peek-buried", BeanstalkCommand(BeanstalkVerb.PEEK_BURIED)),
        (b"stats", BeanstalkCommand(BeanstalkVerb.STATS)),
        (b"stats-job 1", BeanstalkCommand(BeanstalkVerb.STATS_JOB, (1,))),
        (b"stats-tube a", BeanstalkCommand(BeanstalkVerb.STATS_TUBE, (), "a")),
        (b"list-tubes", BeanstalkCommand(BeanstalkVerb.LIST_TUBES)),
        (b"list-tube-used", BeanstalkCommand(BeanstalkVerb.LIST_TUBE_USED)),
        (b"list-tubes-watched", BeanstalkCommand(BeanstalkVerb.LIST_TUBES_WATCHED)),
        (b"pause-tube a 60", BeanstalkCommand(BeanstalkVerb.PAUSE_TUBE, (60,), "a")),
        (b"quit", BeanstalkCommand(BeanstalkVerb.QUIT)),
        (b"quitting", BeanstalkCommand(BeanstalkVerb.QUIT)),
    ],
)
def test_a_command_is_read(line: bytes, command: BeanstalkCommand) -> None:
    assert parse_line(line) == command


def test_every_verb_can_be_read() -> None:
    rests = {"tube": b" a", "numbers": b" 1 2 3 4"}

    for verb in BeanstalkVerb:
        read = [parse_line(verb.encode() + rest) for rest in (b"", *rests.values(), b" 1", b" 1 2", b" 1 2 3", b" a 1")]

        assert verb in [one.verb for one in read if isinstance(one, BeanstalkCommand)], verb


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
        (b"kick 4294967296", BAD),
        (b"pause-tube a", BAD),
        (b"pause-tube a -1", BAD),
        (b"pause-tube a 4294967296", BAD),
    ],
)
def test_what_is_no_command_is_answered_as_by_beanstalkd(line: bytes, wrong: WrongCommand) -> None:
    assert parse_line(line) == wrong
