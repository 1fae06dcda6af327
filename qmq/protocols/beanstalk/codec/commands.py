"""Command lines of the beanstalkd protocol: their words, and what each of them may be followed by.

What beanstalkd takes counts, so a line is read as it reads one. A word is known by its beginning: `quitting` is `quit`.
Numbers may have further spaces before them. Only `kick` and `reserve-with-timeout` may have more behind the number, and
a negative time means to wait for ever.
"""

import re
from enum import StrEnum
from typing import Final, NamedTuple

from qmq.protocols.beanstalk.codec.replies import BAD_FORMAT, UNKNOWN_COMMAND

NUMBER_MAX: Final = (1 << 32) - 1
"""Of priorities, times, sizes and bounds."""

ID_MAX: Final = (1 << 64) - 1


class BeanstalkVerb(StrEnum):
    """What a client can ask for."""

    PUT = "put"
    PEEK = "peek"
    PEEK_READY = "peek-ready"
    PEEK_DELAYED = "peek-delayed"
    PEEK_BURIED = "peek-buried"
    RESERVE_WITH_TIMEOUT = "reserve-with-timeout"
    RESERVE_JOB = "reserve-job"
    RESERVE = "reserve"
    DELETE = "delete"
    RELEASE = "release"
    BURY = "bury"
    KICK = "kick"
    KICK_JOB = "kick-job"
    TOUCH = "touch"
    STATS_JOB = "stats-job"
    STATS_TUBE = "stats-tube"
    STATS = "stats"
    USE = "use"
    WATCH = "watch"
    IGNORE = "ignore"
    LIST_TUBES_WATCHED = "list-tubes-watched"
    LIST_TUBE_USED = "list-tube-used"
    LIST_TUBES = "list-tubes"
    QUIT = "quit"
    PAUSE_TUBE = "pause-tube"


class BeanstalkCommand(NamedTuple):
    """One complete command. `numbers` in the order of the line; `tube` and `body` where the verb has them."""

    verb: BeanstalkVerb
    numbers: tuple[int, ...] = ()
    tube: str = ""
    body: bytes = b""


class WrongCommand(NamedTuple):
    """What stands in place of a command that is none: the reply, and whether nothing more is read."""

    reply: bytes
    is_last: bool = False


_REQUEST_LINE: Final = re.compile(rb"[^ ]+ .* HTTP/[0-9.]+\Z", re.DOTALL)
"""Of HTTP, with any method: a browser sends it, and behind it what some web page wants."""

_NAME = rb"[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]{0,199}"
_TUBE: Final = re.compile(rb"(%b)\Z" % _NAME)
_LENIENT: Final = re.compile(rb" *(-?[0-9]+)")
_PAUSE: Final = re.compile(rb" +(%b) +([0-9]+)\Z" % _NAME)
_NUMBERS: Final = {count: re.compile(rb" *([0-9]+)" + rb" +([0-9]+)" * (count - 1) + rb"\Z") for count in (1, 2, 3, 4)}

# How many numbers follow; the first of those in `_OF_JOBS` is a job id.
_COUNTS: Final = {
    BeanstalkVerb.PUT: 4,
    BeanstalkVerb.PEEK: 1,
    BeanstalkVerb.RESERVE_JOB: 1,
    BeanstalkVerb.DELETE: 1,
    BeanstalkVerb.RELEASE: 3,
    BeanstalkVerb.BURY: 2,
    BeanstalkVerb.KICK_JOB: 1,
    BeanstalkVerb.TOUCH: 1,
    BeanstalkVerb.STATS_JOB: 1,
}
_OF_JOBS: Final = frozenset(_COUNTS) - {BeanstalkVerb.PUT}
_WITH_NUMBER: Final = frozenset({BeanstalkVerb.KICK, BeanstalkVerb.RESERVE_WITH_TIMEOUT})
_WITH_TUBE: Final = frozenset({BeanstalkVerb.STATS_TUBE, BeanstalkVerb.USE, BeanstalkVerb.WATCH, BeanstalkVerb.IGNORE})

# In this order: the first that the line begins with is meant.
_BEGINNINGS: Final = tuple(
    [
        (verb, verb.encode() + (b" " if verb in {*_COUNTS, *_WITH_NUMBER, *_WITH_TUBE} else b""))
        for verb in BeanstalkVerb
    ]
)
_BY_WORD: Final = {verb.encode(): (verb, beginning) for verb, beginning in _BEGINNINGS}


def parse_line(line: bytes) -> BeanstalkCommand | WrongCommand:
    """The command in a line without its CR LF. That of `put` still lacks its body, whose size is its last number."""
    if b" HTTP/" in line and _REQUEST_LINE.match(line):
        return WrongCommand(UNKNOWN_COMMAND, is_last=True)
    if b"\0" in line:
        return WrongCommand(BAD_FORMAT)
    word = line.partition(b" ")[0]
    known = _BY_WORD.get(word)
    if known is None or not line.startswith(known[1]):
        known = next((one for one in _BEGINNINGS if line.startswith(one[1])), None)
    if known is None:
        return WrongCommand(UNKNOWN_COMMAND)
    verb, beginning = known
    if verb is BeanstalkVerb.QUIT:
        return BeanstalkCommand(verb)
    arguments = line[len(beginning) :]
    count = _COUNTS.get(verb)
    if count is not None:
        found = _NUMBERS[count].match(arguments)
        return WrongCommand(BAD_FORMAT) if found is None else _with_numbers(verb, found.groups())
    if verb in _WITH_NUMBER:
        lenient = _LENIENT.match(arguments)
        if lenient is not None:
            # To beanstalkd there are no jobs in a negative number of them.
            number = max(0, int(lenient[1])) if verb is BeanstalkVerb.KICK else int(lenient[1])
        else:
            # To beanstalkd any other time is none.
            number = -1 if verb is BeanstalkVerb.KICK else 0
        if number > NUMBER_MAX or (number < 0 and verb is BeanstalkVerb.KICK):
            return WrongCommand(BAD_FORMAT)
        return BeanstalkCommand(verb, (number,)) if number >= 0 else BeanstalkCommand(BeanstalkVerb.RESERVE)
    if verb in _WITH_TUBE:
        named = _TUBE.match(arguments)
        return WrongCommand(BAD_FORMAT) if named is None else BeanstalkCommand(verb, (), named[1].decode())
    if verb is BeanstalkVerb.PAUSE_TUBE:
        paused = _PAUSE.match(arguments)
        if paused is None or int(paused[2]) > NUMBER_MAX:
            return WrongCommand(BAD_FORMAT)
        return BeanstalkCommand(verb, (int(paused[2]),), paused[1].decode())
    return WrongCommand(BAD_FORMAT) if arguments else BeanstalkCommand(verb)


def _with_numbers(verb: BeanstalkVerb, texts: tuple[bytes, ...]) -> BeanstalkCommand | WrongCommand:
    numbers = tuple([int(text) for text in texts])
    for index, number in enumerate(numbers):
        if number > (ID_MAX if index == 0 and verb in _OF_JOBS else NUMBER_MAX):
            return WrongCommand(BAD_FORMAT)
    return BeanstalkCommand(verb, numbers)
