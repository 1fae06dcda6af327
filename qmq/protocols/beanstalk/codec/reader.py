"""Bytes of a beanstalkd client → commands, however the bytes are cut into reads.

Bounds: a line has at most 224 bytes with its CR LF, and a longer one is discarded up to its end. A body that is larger
than allowed is discarded, too, without being held; if even that would be too much, nothing more is read.

Surprising: nothing is read behind a first line with anything wrong, or behind a request line of HTTP. A web page can
make a browser send such lines to any port, with commands behind them.
"""

from enum import IntEnum
from typing import Final

from qmq.protocols.beanstalk.codec.commands import BeanstalkCommand, BeanstalkVerb, WrongCommand, parse_line
from qmq.protocols.beanstalk.codec.replies import BAD_FORMAT, EXPECTED_CRLF, JOB_TOO_BIG

LINE_BYTES_MAX: Final = 224
"""With CR LF, as in beanstalkd."""

DISCARDED_BYTES_MAX: Final = 64 << 20
"""Of one body that is too large. For a larger one the connection ends."""

CRLF: Final = b"\r\n"


class _ReaderState(IntEnum):
    LINE = 0
    LONG_LINE = 1
    """A line that is too long is discarded up to its CR LF."""
    BODY = 2
    DISCARDED = 3
    """A body that is too large is discarded."""
    OVER = 4
    """Nothing that follows is read."""


class BeanstalkReader:
    """The reading half of one connection. `job_bytes_max` bounds the body of a job."""

    __slots__ = ("_buffer", "_command", "_is_first", "_left", "_state", "job_bytes_max")

    def __init__(self, job_bytes_max: int) -> None:
        self.job_bytes_max = job_bytes_max
        self._buffer = bytearray()
        self._state = _ReaderState.LINE
        self._command: BeanstalkCommand | None = None
        # Of a body that is discarded, with its CR LF.
        self._left = 0
        # Whether no line was read yet.
        self._is_first = True

    @property
    def unfinished_bytes(self) -> int:
        """What is held of a command that is not complete."""
        return len(self._buffer)

    @property
    def is_amid_command(self) -> bool:
        """Whether the client has sent a part of a command."""
        return bool(self._buffer) or self._state is not _ReaderState.LINE

    def forget(self) -> None:
        """Nothing more is read."""
        self._buffer = bytearray()
        self._state = _ReaderState.OVER

    def receive(self, data: bytes) -> list[BeanstalkCommand | WrongCommand]:
        """Take bytes; returns what is complete now, in order."""
        buffer = self._buffer
        buffer += data
        found: list[BeanstalkCommand | WrongCommand] = []
        at = 0
        while True:
            end = self._step(at, found)
            if end < 0:
                break
            at = end
        if self._state is _ReaderState.OVER:
            at = len(buffer)
        if at:
            del buffer[:at]
        return found

    def _step(self, at: int, found: list[BeanstalkCommand | WrongCommand]) -> int:
        """Read on from index `at`; returns where the next step begins, or -1 where bytes are missing."""
        state = self._state
        if state is _ReaderState.LINE:
            return self._line(at, found)
        if state is _ReaderState.BODY:
            return self._body(at, found)
        if state is _ReaderState.LONG_LINE:
            end = self._buffer.find(CRLF, at)
            if end >= 0:
                self._state = _ReaderState.LINE
                found.append(WrongCommand(BAD_FORMAT))
                return end + 2
            # Its CR may be here already.
            del self._buffer[at : -1 if self._buffer.endswith(b"\r") else None]
            return -1
        if state is _ReaderState.DISCARDED:
            taken = min(self._left, len(self._buffer) - at)
            self._left -= taken
            if not self._left:
                self._state = _ReaderState.LINE
                found.append(WrongCommand(JOB_TOO_BIG))
                return at + taken
            del self._buffer[at:]
        return -1

    def _line(self, at: int, found: list[BeanstalkCommand | WrongCommand]) -> int:
        buffer = self._buffer
        end = buffer.find(CRLF, at, at + LINE_BYTES_MAX)
        if end < 0:
            if len(buffer) - at < LINE_BYTES_MAX:
                return -1
            if self._is_first:
                found.append(WrongCommand(BAD_FORMAT, is_last=True))
                self._state = _ReaderState.OVER
                return len(buffer)
            self._state = _ReaderState.LONG_LINE
            # The last byte may be the CR of its end.
            return at + LINE_BYTES_MAX - 1
        command = parse_line(bytes(buffer[at:end]))
        if isinstance(command, WrongCommand):
            if command.is_last or self._is_first:
                command = command._replace(is_last=True)
                self._state = _ReaderState.OVER
            found.append(command)
        elif command.verb is not BeanstalkVerb.PUT:
            found.append(command)
            if command.verb is BeanstalkVerb.QUIT:
                self._state = _ReaderState.OVER
        elif command.numbers[3] <= self.job_bytes_max:
            self._command = command
            self._state = _ReaderState.BODY
        elif command.numbers[3] <= DISCARDED_BYTES_MAX:
            self._left = command.numbers[3] + len(CRLF)
            self._state = _ReaderState.DISCARDED
        else:
            found.append(WrongCommand(JOB_TOO_BIG, is_last=True))
            self._state = _ReaderState.OVER
        self._is_first = False
        return end + 2

    def _body(self, at: int, found: list[BeanstalkCommand | WrongCommand]) -> int:
        command, buffer = self._command, self._buffer
        assert command is not None
        end = at + command.numbers[3]
        if len(buffer) < end + 2:
            return -1
        if buffer[end : end + 2] == CRLF:
            found.append(command._replace(body=bytes(buffer[at:end])))
        else:
            found.append(WrongCommand(EXPECTED_CRLF))
        self._command = None
        self._state = _ReaderState.LINE
        return end + 2
