"""What one frame may be: its command, the size of its body, and where a login must end.

The slow path of `Reader` asks these before it keeps anything.
"""

from qmq.wire.stomp.limits import Limits
from qmq.wire.stomp.refusals import body_not_allowed, too_large, unknown_command
from qmq.wire.stomp.states import COMMANDS, Dialogue

BODY_COMMANDS = frozenset({"SEND", "MESSAGE", "ERROR"})
"""STOMP 1.2, "Body": only these may have one."""

INTERNED: dict[bytes, str] = {
    name.encode(): name
    for name in (
        "CONNECT", "STOMP", "SEND", "SUBSCRIBE", "UNSUBSCRIBE", "ACK", "NACK", "BEGIN", "COMMIT", "ABORT",
        "DISCONNECT", "CONNECTED", "MESSAGE", "RECEIPT", "ERROR",
    )
}  # fmt: skip
"""One string object per command, shared by all heads."""


class FrameChecks:
    """Those of one connection; each raises RemoteProtocolError."""

    __slots__ = ("_body_bytes_max", "_dialogue", "_limits")

    def __init__(self, dialogue: Dialogue, limits: Limits) -> None:
        self._dialogue = dialogue
        self._limits = limits
        self._body_bytes_max = limits.body_bytes_max

    def command(self, block: bytes) -> str:
        """The command that `block` begins with, if it may come now."""
        line = first_line(block, 0).removesuffix(b"\r")
        command = INTERNED.get(line)
        if command is None or len(line) > self._limits.command_bytes_max:
            raise unknown_command(line, COMMANDS[self._dialogue.role])
        self._dialogue.check(command)
        return command

    def body(self, command: str, size: int) -> None:
        """Refuse a body of `size` bytes, declared or found; called before anything is kept for it."""
        if size > 0 and command not in BODY_COMMANDS:
            raise body_not_allowed(command)
        if size > self._body_bytes_max:
            raise too_large("body-too-large", "body_bytes_max", self._body_bytes_max)

    def undeclared(self, command: str, kept: int, chunk: bytes, start: int, stop: int) -> None:
        """As `body`, for what a NUL ends: `kept` bytes and `chunk[start:stop]`.

        Some clients end a line behind the headers of a frame that has no body. That is none.
        """
        if command in BODY_COMMANDS or chunk[start:stop].strip(b"\r\n"):
            self.body(command, kept + stop - start)
        elif kept + stop - start > self._body_bytes_max:
            raise too_large("body-too-large", "body_bytes_max", self._body_bytes_max)

    def login(self, end: int) -> None:
        """Refuse a login whose CONNECT frame ends at byte `end` of the stream, or not before it."""
        if end > self._limits.login_bytes_max:
            raise too_large("login-too-large", "login_bytes_max", self._limits.login_bytes_max)


def first_line(block: bytes, start: int) -> bytes:
    """From `start` up to the end of that line, without its LF."""
    end = block.find(b"\n", start)
    return block[start:] if end < 0 else block[start:end]
