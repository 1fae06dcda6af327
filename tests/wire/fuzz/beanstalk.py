"""Connections of beanstalkd clients with mistakes: in words, numbers, names, sizes, and ends of lines and bodies."""

import random

from qmq.protocols.beanstalk.codec.commands import ID_MAX, BeanstalkCommand, BeanstalkVerb, WrongCommand
from qmq.protocols.beanstalk.codec.reader import DISCARDED_BYTES_MAX, LINE_BYTES_MAX, BeanstalkReader
from qmq.protocols.beanstalk.codec.replies import BAD_FORMAT, EXPECTED_CRLF, JOB_TOO_BIG, UNKNOWN_COMMAND
from tests.wire.fuzz.figures import Figures, cut

JOB_BYTES_MAX = 300
HELD_BYTES_MAX = JOB_BYTES_MAX + LINE_BYTES_MAX + 2
FRAMES_OF_CONNECTION = 60
TUBE_BYTES_MAX = 200
"""Of a tube's name, by the text of the protocol."""
REPLIES = {BAD_FORMAT, EXPECTED_CRLF, JOB_TOO_BIG, UNKNOWN_COMMAND}
VERBS = [verb.value.encode() for verb in BeanstalkVerb]
NUMBERS = [b"%d" % number for number in (0, 1, 7, 99, 300, 301, 1000, 2**32 - 1, 2**32, 2**64 - 1, 2**64, -1, 10**180)]
LINES = [
    *(b"%b %d" % (verb, 2**40) for verb in (b"peek", b"reserve-job", b"delete", b"kick-job", b"touch", b"stats-job")),
    *(b"%b tube;a-1" % verb for verb in (b"stats-tube", b"use", b"watch", b"ignore")),
    *(
        b"release 7 0 0",
        b"bury 7 1024",
        b"kick 100",
        b"reserve-with-timeout 0",
        b"pause-tube a 60",
        b"reserve",
        b"stats",
    ),
    *(b"peek-ready", b"peek-delayed", b"peek-buried", b"list-tubes", b"list-tube-used", b"list-tubes-watched"),
]
ARGUMENTS = [b"", b" ", b" a", b" -a", b" a b", b" \xff", b" \0", b" " + b"t" * 200, b" " + b"t" * 201, b" +1", b" 1 x"]


def connection(rng: random.Random, figures: Figures) -> None:
    """One connection until its end, read frame by frame and in other cuts. Raises what breaks a rule."""
    frames = [_frame(rng) for _ in range(FRAMES_OF_CONNECTION)]
    reader, found = BeanstalkReader(JOB_BYTES_MAX), list[BeanstalkCommand | WrongCommand]()
    for data in frames:
        found += reader.receive(data)
        figures.frames += 1
        figures.hold(reader.unfinished_bytes, HELD_BYTES_MAX)
        if _is_over(found):
            break
    other, again = BeanstalkReader(JOB_BYTES_MAX), list[BeanstalkCommand | WrongCommand]()
    for part in cut(b"".join(frames), rng):
        again += other.receive(part)
        figures.hold(other.unfinished_bytes, HELD_BYTES_MAX)
    assert again == found, "the cuts of reads change the commands"
    for one in found:
        _judge(one)
        figures.results[one.verb if isinstance(one, BeanstalkCommand) else one.reply.decode().strip()] += 1


def _is_over(found: list[BeanstalkCommand | WrongCommand]) -> bool:
    if not found:
        return False
    last = found[-1]
    return last.is_last if isinstance(last, WrongCommand) else last.verb is BeanstalkVerb.QUIT


def _judge(one: BeanstalkCommand | WrongCommand) -> None:
    """What a command may hold."""
    if isinstance(one, WrongCommand):
        assert one.reply in REPLIES
        return
    assert all(0 <= number <= ID_MAX for number in one.numbers)
    assert len(one.tube) <= TUBE_BYTES_MAX and one.tube.isascii()
    assert len(one.body) <= JOB_BYTES_MAX
    assert one.verb is not BeanstalkVerb.PUT or len(one.body) == one.numbers[3]


def _frame(rng: random.Random) -> bytes:
    """A command, well-formed or not."""
    kind = rng.randrange(20)
    if kind < 7:
        return _put(rng)
    if kind < 11:
        return rng.choice(LINES) + b"\r\n"
    if kind < 15:
        verb = rng.choice(VERBS)
        if verb == b"quit" and rng.random() < 0.8:
            verb = b"stats"
        count = rng.randrange(5)
        rest = b" " + b" ".join(rng.choices(NUMBERS, k=count)) if rng.random() < 0.7 else rng.choice(ARGUMENTS)
        return _misspelt(verb, rng) + rest + rng.choice((b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b" \r\n"))
    if kind < 17:
        return rng.randbytes(rng.randrange(40)) + rng.choice((b"\r\n", b"\r", b"\n", b""))
    return b"x" * rng.choice((221, 222, 223, 224, 225, 500)) + rng.choice((b"\r\n", b"\r", b"\r\r\n"))


def _put(rng: random.Random) -> bytes:
    size = rng.choice((0, 1, 5, 5, 20, 20, 99, 300, 301, 900))
    said = size if rng.random() < 0.9 else rng.choice((0, size + 1, 300, 301, 2000))
    if rng.random() < 0.003:
        said = DISCARDED_BYTES_MAX + rng.randint(0, 1)
    body = rng.choice((b"a", b"a", b"\0", b"\r", b"\r\n" if size < 100 else b"b")) * size
    if size > 20 and rng.random() < 0.3:
        body = b"\r\nput 1 0 60 5\r\n" + body
    body = body[:size]
    end = rng.choice((b"\r\n",) * 8 + (b"\r\r", b"xx", b"\n", b""))
    priority = rng.choice(NUMBERS[:8])
    return b"put %b %b %b %d\r\n%b%b" % (priority, rng.choice(NUMBERS[:8]), rng.choice(NUMBERS[:8]), said, body, end)


def _misspelt(verb: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.85:
        return verb
    at = rng.randrange(len(verb) + 1)
    return verb[:at] + rng.choice((b"", b"-", b"\0", b"\xff", b" ", b"with")) + verb[at:]
