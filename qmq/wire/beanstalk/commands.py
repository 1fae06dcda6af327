"""Command lines of the beanstalkd protocol: their words, and what each of them may be followed by.

What beanstalkd takes counts, so a line is read as it reads one. A word is known by its beginning: `quitting` is `quit`.
Numbers may have further spaces before them. Only `kick` and `reserve-with-timeout` may have more behind the number, and
a negative time means to wait for ever.
"""

import re
from enum import StrEnum
from typing import Final, NamedTuple

from qmq.wire.beanstalk.replies import BAD_FORMAT, UNKNOWN_COMMAND

NUMBER_MAX: Final = (1 << 32) - 1
"""Of priorities, times, sizes and bounds."""

ID_MAX: Final = (1 << 64) - 1
TUBE_BYTES_MAX: Final = 200


class Verb(StrEnum):
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


class Command(NamedTuple):
    """One complete command. `numbers` in the order of the line; `tube` and `body` where the verb has them."""

    verb: Verb
    numbers: tuple[int, ...] = ()
    tube: str = ""
    body: bytes = b""


class Wrong(NamedTuple):
    """What stands in place of a command that is none: the reply, and whether nothing more is read."""

    reply: bytes
    is_last: bool = False


_NAME = rb"[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]{0,199}"
_TUBE: Final = re.compile(rb"(%b)\Z" % _NAME)
_LENIENT: Final = re.compile(rb" *(-?[0-9]+)")
_PAUSE: Final = re.compile(rb" +(%b) +([0-9]+)\Z" % _NAME)
_NUMBERS: Final = {count: re.compile(rb" *([0-9]+)" + rb" +([0-9]+)" * (count - 1) + rb"\Z") for count in (1, 2, 3, 4)}

# How many numbers follow; the first of those in `_OF_JOBS` is a job id.
_COUNTS: Final = {
    Verb.PUT: 4,
    Verb.PEEK: 1,
    Verb.RESERVE_JOB: 1,
    Verb.DELETE: 1,
    Verb.RELEASE: 3,
    Verb.BURY: 2,
    Verb.KICK_JOB: 1,
    Verb.TOUCH: 1,
    Verb.STATS_JOB: 1,
}
_OF_JOBS: Final = frozenset(_COUNTS) - {Verb.PUT}
_WITH_NUMBER: Final = frozenset({Verb.KICK, Verb.RESERVE_WITH_TIMEOUT})
_WITH_TUBE: Final = frozenset({Verb.STATS_TUBE, Verb.USE, Verb.WATCH, Verb.IGNORE})

# In this order: the first that the line begins with is meant.
_BEGINNINGS: Final = tuple(
    [(verb, verb.encode() + (b" " if verb in {*_COUNTS, *_WITH_NUMBER, *_WITH_TUBE} else b"")) for verb in Verb]
)
_BY_WORD: Final = {verb.encode(): (verb, beginning) for verb, beginning in _BEGINNINGS}


def parse_line(line: bytes) -> Command | Wrong:
    """The command in a line without its CR LF. That of `put` still lacks its body, whose size is its last number."""
    if b"\0" in line:
        return Wrong(BAD_FORMAT)
    word = line.partition(b" ")[0]
    known = _BY_WORD.get(word)
    if known is None or not line.startswith(known[1]):
        known = next((one for one in _BEGINNINGS if line.startswith(one[1])), None)
    if known is None:
        return Wrong(UNKNOWN_COMMAND)
    verb, beginning = known
    if verb is Verb.QUIT:
        return Command(verb)
    rest = line[len(beginning) :]
    count = _COUNTS.get(verb)
    if count is not None:
        found = _NUMBERS[count].match(rest)
        return Wrong(BAD_FORMAT) if found is None else _with_numbers(verb, found.groups())
    if verb in _WITH_NUMBER:
        lenient = _LENIENT.match(rest)
        number = NUMBER_MAX + 1 if lenient is None else int(lenient[1])
        if number > NUMBER_MAX or (number < 0 and verb is Verb.KICK):
            return Wrong(BAD_FORMAT)
        return Command(verb, (number,)) if number >= 0 else Command(Verb.RESERVE)
    if verb in _WITH_TUBE:
        named = _TUBE.match(rest)
        return Wrong(BAD_FORMAT) if named is None else Command(verb, (), named[1].decode())
    if verb is Verb.PAUSE_TUBE:
        paused = _PAUSE.match(rest)
        if paused is None or int(paused[2]) > NUMBER_MAX:
            return Wrong(BAD_FORMAT)
        return Command(verb, (int(paused[2]),), paused[1].decode())
    return Wrong(BAD_FORMAT) if rest else Command(verb)


def _with_numbers(verb: Verb, texts: tuple[bytes, ...]) -> Command | Wrong:
    numbers = tuple([int(text) for text in texts])
    for index, number in enumerate(numbers):
        if number > (ID_MAX if index == 0 and verb in _OF_JOBS else NUMBER_MAX):
            return Wrong(BAD_FORMAT)
    return Command(verb, numbers)
