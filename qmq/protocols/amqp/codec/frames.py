"""Frames of AMQP 0-9-1 (4.2): bytes of a client to its commands, and commands to bytes.

A command is a method; that of a publish has a content behind it, in a header frame and body frames. Every length is
checked when its frame begins, before the frame is kept. A body that is longer than allowed is skipped, and its command
says so: its channel ends, and the connection does not.

Surprising: the payload of a method is not decoded here, so frames of a channel that is closing cost little.
"""

from dataclasses import dataclass, field
from struct import Struct
from typing import Final, NamedTuple

from qmq.protocols.amqp.codec.refusals import AmqpRefusal, ReplyCode

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT_TYPE: Final = 8
FRAME_END: Final = 0xCE
FRAME_END_BYTE: Final = b"\xce"

HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

BASIC: Final = 60
PUBLISH: Final = 40

OVERHEAD_BYTES: Final = 8
"""Of a frame besides its payload: type, channel, size, and the end octet."""

FRAME_BYTES_MIN: Final = 4096
"""Each peer accepts frames of this size before others are agreed (4.2.3)."""

LOGIN_FRAME_BYTES_MAX: Final = 16 << 10
"""Until `connection.tune`: `start-ok` has the properties of the client, and RabbitMQ accepts more than 4096, too."""

PART_BYTES_MIN: Final = 1024
"""A part of a body that is smaller is joined with others: each object would occupy more than its bytes."""

_HEAD: Final = Struct(">BHI")
_METHOD: Final = Struct(">HH")
_CONTENT: Final = Struct(">HHQ")


class Command(NamedTuple):
    """One method of the client. `arguments` are its bytes behind class and method.

    `properties` and `body` are of a publish: the property flags and values as they came, and the body. `body` is None
    if it was longer than allowed; `size` is its length in any case.
    """

    channel: int
    class_id: int
    method_id: int
    arguments: bytes
    properties: bytes = b""
    body: bytes | None = b""
    size: int = 0


@dataclass(slots=True)
class _Content:
    """A publish whose content is not complete. `left` bytes are missing; -1 before its header frame."""

    arguments: bytes
    properties: bytes = b""
    size: int = 0
    left: int = -1
    parts: list[bytes | bytearray] | None = field(default_factory=list)
    """Small ones are joined. None: the body is too long, and skipped."""

    @property
    def held(self) -> int:
        """Its bytes that are kept, once it is complete."""
        return len(self.arguments) + len(self.properties) + (0 if self.parts is None else self.size)


class AmqpReader:
    """Bytes of one client to commands. `error` is set when the protocol is broken; then nothing more is read."""

    def __init__(self, body_bytes_max: int) -> None:
        self.frame_bytes_max = LOGIN_FRAME_BYTES_MAX
        self.channel_max = 0
        self.body_bytes_max = body_bytes_max
        self.error: AmqpRefusal | None = None
        self.is_greeted = False
        """The client has sent the protocol header of AMQP 0-9-1."""
        self.one_by_one = False
        """Until the login is done: each command may change the bounds of the next, which is read by `receive(b"")`."""
        self._unread = bytearray()
        self._needed = 0
        self._contents: dict[int, _Content] = {}
        self._content_bytes = 0

    @property
    def unfinished_bytes(self) -> int:
        """What is held of commands that are not complete."""
        return len(self._unread) + self._content_bytes

    def forget(self) -> None:
        """Drop what is not complete."""
        self._unread = bytearray()
        self._contents = {}
        self._content_bytes = 0

    def receive(self, data: bytes) -> list[Command]:
        """The commands that are complete with `data`, in order. `error` is behind the last of them."""
        if self.error is not None:
            return []
        if self._unread:
            self._unread += data
            if len(self._unread) < self._needed:
                return []
            data = bytes(self._unread)
            self._unread = bytearray()
        commands: list[Command] = []
        at = 0
        try:
            if not self.is_greeted:
                at = self._greet(data)
            if self.is_greeted:
                at = self._take(data, at, commands)
        except AmqpRefusal as refusal:
            self.error = refusal
            self.forget()
            return commands
        if at < len(data):
            self._unread = bytearray(data[at:])
        return commands

    def _greet(self, data: bytes) -> int:
        """Take the protocol header. Raises AmqpRefusal for another one."""
        if not PROTOCOL_HEADER.startswith(data[: len(PROTOCOL_HEADER)]):
            raise AmqpRefusal(ReplyCode.FRAME_ERROR, "the client does not speak AMQP 0-9-1")
        self._needed = len(PROTOCOL_HEADER)
        if len(data) < self._needed:
            return 0
        self.is_greeted = True
        return len(PROTOCOL_HEADER)

    def _take(self, data: bytes, at: int, commands: list[Command]) -> int:
        """Read all whole frames from `at` on; returns where the next one begins."""
        end = len(data)
        unpack = _HEAD.unpack_from
        while end - at >= 7 and not (commands and self.one_by_one):
            kind, channel, size = unpack(data, at)
            whole = size + OVERHEAD_BYTES
            if whole > self.frame_bytes_max:
                raise AmqpRefusal(
                    ReplyCode.FRAME_ERROR, f"a frame of {whole} bytes; at most {self.frame_bytes_max} are agreed"
                )
            if end - at < whole:
                self._needed = whole
                return at
            begin, at = at + 7, at + whole
            if channel > self.channel_max:
                # As RabbitMQ. Before the login only channel 0 is agreed.
                code = ReplyCode.NOT_ALLOWED if self.channel_max else ReplyCode.CHANNEL_ERROR
                raise AmqpRefusal(code, f"channel {channel}; at most {self.channel_max} is agreed")
            if data[at - 1] != FRAME_END:
                raise AmqpRefusal(ReplyCode.FRAME_ERROR, "a frame does not end with the octet CE")
            command = self._frame(kind, channel, data[begin : at - 1])
            if command is not None:
                commands.append(command)
        self._needed = 7
        return at

    def _frame(self, kind: int, channel: int, payload: bytes) -> Command | None:
        """The command that is complete with this frame, if one is."""
        contents = self._contents
        if kind == METHOD:
            if len(payload) < 4:
                raise AmqpRefusal(ReplyCode.FRAME_ERROR, "a method frame has no class and method")
            if channel in contents:
                raise AmqpRefusal(ReplyCode.UNEXPECTED_FRAME, f"a method within a content, on channel {channel}")
            class_id, method_id = _METHOD.unpack_from(payload)
            if class_id != BASIC or method_id != PUBLISH:
                return Command(channel, class_id, method_id, payload[4:])
            contents[channel] = _Content(payload[4:])
            self._content_bytes += len(payload) - 4
            return None
        if kind == HEARTBEAT_TYPE:
            return None
        if kind != HEADER and kind != BODY:
            raise AmqpRefusal(ReplyCode.FRAME_ERROR, f"a frame of the unknown type {kind}")
        content = contents.get(channel)
        if content is None or (content.left < 0) is not (kind == HEADER):
            raise AmqpRefusal(ReplyCode.UNEXPECTED_FRAME, f"a content frame that no method announced, on {channel}")
        if kind == HEADER:
            self._begin(content, payload)
        else:
            self._continue(content, payload)
        if content.left:
            return None
        del contents[channel]
        self._content_bytes -= content.held
        parts = content.parts
        body = None if parts is None else bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
        return Command(channel, BASIC, PUBLISH, content.arguments, content.properties, body, content.size)

    def _begin(self, content: _Content, payload: bytes) -> None:
        if len(payload) < _CONTENT.size + 2:
            raise AmqpRefusal(ReplyCode.FRAME_ERROR, "a content header has no size and property flags")
        class_id, _, size = _CONTENT.unpack_from(payload)
        if class_id != BASIC:
            raise AmqpRefusal(ReplyCode.FRAME_ERROR, f"a content header of the class {class_id}, not {BASIC}")
        content.size = content.left = size
        content.properties = payload[_CONTENT.size :]
        self._content_bytes += len(content.properties)
        if size > self.body_bytes_max:
            content.parts = None

    def _continue(self, content: _Content, payload: bytes) -> None:
        if not payload or len(payload) > content.left:
            raise AmqpRefusal(ReplyCode.FRAME_ERROR, "a body frame is empty, or longer than its content header says")
        content.left -= len(payload)
        parts = content.parts
        if parts is None:
            return
        self._content_bytes += len(payload)
        if len(payload) >= PART_BYTES_MIN or (not parts and not content.left):
            parts.append(payload)
        elif parts and isinstance(parts[-1], bytearray):
            parts[-1] += payload
        else:
            parts.append(bytearray(payload))


def method_frame(channel: int, payload: bytes) -> bytes:
    """A method: its class, its number and its arguments."""
    return b"%b%b\xce" % (_HEAD.pack(METHOD, channel, len(payload)), payload)


def content_frames(channel: int, properties: bytes, body: bytes, frame_bytes_max: int) -> bytes:
    """A content: its header frame, and as many body frames as `frame_bytes_max` demands."""
    size = len(body)
    header = b"%b%b%b\xce" % (
        _HEAD.pack(HEADER, channel, _CONTENT.size + len(properties)),
        _CONTENT.pack(BASIC, 0, size),
        properties,
    )
    if not size:
        return header
    most = frame_bytes_max - OVERHEAD_BYTES
    if size <= most:
        return b"%b%b%b\xce" % (header, _HEAD.pack(BODY, channel, size), body)
    parts = [header]
    for at in range(0, size, most):
        part = body[at : at + most]
        parts += (_HEAD.pack(BODY, channel, len(part)), part, FRAME_END_BYTE)
    return b"".join(parts)
