"""The frames of one WebSocket: payload bytes in and out, control frames answered.

Payload is passed on as it arrives, also in the middle of a message. So nothing is held here but an incomplete frame
head or control frame: STOMP is a stream of bytes, and does not need to know where messages end.

Surprising: only the last of several pings in one read is answered (RFC 6455, 5.5.3 allows it), so a client that sends
pings and reads nothing makes the node hold one pong.
"""

from codecs import IncrementalDecoder, getincrementaldecoder
from dataclasses import dataclass

try:
    from websockets.speedups import apply_mask
except ImportError:
    # Where there is no wheel for the platform.
    from websockets.utils import apply_mask

NORMAL_CLOSURE = 1000
PROTOCOL_ERROR = 1002
NO_STATUS = 1005
INVALID_DATA = 1007
TOO_BIG = 1009

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
FIN = 0x80
MASKED = 0x80
WHOLE = (FIN | TEXT, FIN | BINARY)
"""First bytes of a message that is one frame."""
HEAD_BYTES = 6
"""Of a short frame of a client, with its mask."""

CONTROL_BYTES_MAX = 125
REASON_BYTES_MAX = CONTROL_BYTES_MAX - 2

Utf8Decoder = getincrementaldecoder("utf-8")


@dataclass(frozen=True, slots=True)
class WebSocketLimits:
    """Limits of one connection."""

    message_bytes_max: int = 16 * 1024 * 1024 + 128 * 1024
    """One message, with all its fragments: the largest STOMP frame. Beyond it the connection closes with 1009."""


@dataclass(frozen=True, slots=True)
class WebSocketInput:
    """What one read has brought."""

    payload: bytes = b""
    """Of text and binary messages, in order."""
    reply: bytes = b""
    """Frames to send: a pong, and a close frame."""
    close_code: int | None = None
    """Nothing more is read: the client has sent a close frame (1005: without a code), or `is_broken`."""
    reason: str = ""
    is_broken: bool = False
    """The client broke the protocol. `reply` has the close frame with the code and reason."""


NOTHING = WebSocketInput()


class _Broken(Exception):
    """The client broke the protocol."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class WebSocketFrames:
    """The codec of one connection. With `is_text`, messages are sent as text if their bytes are UTF-8."""

    __slots__ = (
        "_close_sent",
        "_decoder",
        "_fin",
        "_in_message",
        "_left",
        "_limits",
        "_mask",
        "_message_bytes",
        "_unread",
        "is_closed",
        "is_text",
    )

    def __init__(self, limits: WebSocketLimits, *, is_text: bool) -> None:
        self.is_text = is_text
        self.is_closed = False
        """The client has closed or broken the connection; what it still sends is dropped."""
        self._limits = limits
        self._unread = b""
        """The beginning of a frame head or control frame."""
        self._in_message = False
        """A message has begun, and its last frame has not."""
        self._left = 0
        """Payload bytes of the current data frame that have not arrived."""
        self._mask = b""
        self._fin = False
        self._decoder: IncrementalDecoder | None = None
        """Of the current message, if it is text."""
        self._message_bytes = 0
        self._close_sent = False

    def receive(self, data: bytes) -> WebSocketInput:
        """Take bytes of the client. Never raises; a client that breaks the protocol is answered with a close frame."""
        if self.is_closed:
            return NOTHING
        if self._unread:
            data, self._unread = self._unread + data, b""
        parts: list[bytes] = []
        reply = b""
        code, reason, broken = None, "", False
        try:
            reply, code, reason = self._read(data, parts)
        except _Broken as error:
            code, reason, broken = error.code, error.reason, True
        if code is not None:
            reply += self.close(code, reason if broken else "")
            self.is_closed = True
        return WebSocketInput(parts[0] if len(parts) == 1 else b"".join(parts), reply, code, reason, broken)

    def _read(self, data: bytes, parts: list[bytes]) -> tuple[bytes, int | None, str]:
        """Add payload to `parts`; returns pong, and code and reason of a close frame. Raises _Broken."""
        at, size = 0, len(data)
        pong = b""
        while True:
            if self._left:
                piece = data[at : at + self._left]
                if not piece:
                    break
                at += len(piece)
                parts.append(self._take(piece))
                if not self._left:
                    self._end_frame()
                continue
            if size - at < 2:
                break
            first, length = data[at], data[at + 1]
            if first in WHOLE and not self._in_message:
                behind = self._read_whole(data, at, parts)
                if behind > at:
                    at = behind
                    continue
            opcode = first & 0x0F
            self._check(first, length)
            length &= 0x7F
            begin = at + 6
            if length >= 126:
                extended = 2 if length == 126 else 8
                begin += extended
                if size - at < 2 + extended:
                    break
                length = int.from_bytes(data[at + 2 : at + 2 + extended], "big")
                if length < (126 if extended == 2 else 1 << 16):
                    raise _Broken(PROTOCOL_ERROR, "a length is not in its shortest form")
            if opcode < CLOSE:
                bytes_before = 0 if opcode else self._message_bytes
                if bytes_before + length > self._limits.message_bytes_max:
                    raise _Broken(TOO_BIG, f"a message has at most {self._limits.message_bytes_max} bytes")
            if size < (begin if opcode < CLOSE else begin + length):
                break
            mask = data[begin - 4 : begin]
            at = begin
            if opcode < CLOSE:
                self._begin(opcode, first, length, mask)
                if not length:
                    self._end_frame()
                continue
            at += length
            if opcode == PING:
                pong = bytes((FIN | PONG, length)) + apply_mask(data[begin:at], mask)
            elif opcode == CLOSE:
                return pong, *_close_of(apply_mask(data[begin:at], mask))
        self._unread = data[at:]
        return pong, None, ""

    def _read_whole(self, data: bytes, at: int, parts: list[bytes]) -> int:
        """Take the messages from `at` on that are whole in `data`, each in one frame; returns where they end.

        All others, and those that are wrong, are left to `_read`. Clients in browsers send each small frame of STOMP as
        a message, so what is done for one message is as little as possible.
        """
        size, most = len(data), self._limits.message_bytes_max
        kind = data[at]
        while size - at >= HEAD_BYTES and data[at] == kind:
            length = data[at + 1] - MASKED
            begin = at + HEAD_BYTES
            if length == 126:
                begin += 2
                length = data[at + 2] << 8 | data[at + 3]
                if length < 126:
                    break
            elif not 0 <= length < 126:
                break
            end = begin + length
            if end > size or length > most:
                break
            payload = apply_mask(data[begin:end], data[begin - 4 : begin])
            if kind == FIN | TEXT and not payload.isascii() and not _is_utf8(payload):
                raise _Broken(INVALID_DATA, "a text message is not UTF-8")
            parts.append(payload)
            at = end
        return at

    def _check(self, first: int, second: int) -> None:
        """Refuse a frame by its first two bytes."""
        opcode, length = first & 0x0F, second & 0x7F
        if first & 0x70:
            raise _Broken(PROTOCOL_ERROR, "a reserved bit is set")
        if not second & 0x80:
            raise _Broken(PROTOCOL_ERROR, "a frame of a client is not masked")
        if opcode >= CLOSE:
            if opcode > PONG:
                raise _Broken(PROTOCOL_ERROR, "an unknown opcode")
            if not first & FIN or length > CONTROL_BYTES_MAX:
                raise _Broken(PROTOCOL_ERROR, "a control frame is fragmented or too long")
        elif opcode > BINARY:
            raise _Broken(PROTOCOL_ERROR, "an unknown opcode")
        elif (opcode == CONTINUATION) is not self._in_message:
            raise _Broken(PROTOCOL_ERROR, "a fragment is out of order")

    def _begin(self, opcode: int, first: int, length: int, mask: bytes) -> None:
        if opcode != CONTINUATION:
            self._message_bytes = 0
            self._decoder = Utf8Decoder() if opcode == TEXT else None
        self._message_bytes += length
        self._fin = bool(first & FIN)
        self._in_message = True
        self._left = length
        self._mask = mask

    def _take(self, piece: bytes) -> bytes:
        """The payload of `piece`, a part of the current frame."""
        payload = apply_mask(piece, self._mask)
        self._left -= len(piece)
        if self._left:
            turn = len(piece) & 3
            self._mask = self._mask[turn:] + self._mask[:turn]
        if self._decoder is not None:
            try:
                self._decoder.decode(payload)
            except UnicodeDecodeError:
                raise _Broken(INVALID_DATA, "a text message is not UTF-8") from None
        return payload

    def _end_frame(self) -> None:
        """The current frame is complete, and perhaps its message."""
        if not self._fin:
            return
        self._in_message = False
        if self._decoder is not None and self._decoder.getstate()[0]:
            raise _Broken(INVALID_DATA, "a text message is not UTF-8")
        self._decoder = None

    def encode(self, data: bytes) -> bytes:
        """One message with `data`."""
        opcode = FIN | BINARY
        if self.is_text and (data.isascii() or _is_utf8(data)):
            opcode = FIN | TEXT
        size = len(data)
        if size < 126:
            return bytes((opcode, size)) + data
        if size < 1 << 16:
            return bytes((opcode, 126, size >> 8, size & 0xFF)) + data
        return bytes((opcode, 127)) + size.to_bytes(8, "big") + data

    def close(self, code: int, reason: str = "") -> bytes:
        """A close frame, after which nothing may be sent; b"" when one was sent before.

        `reason` is cut to 123 bytes. The code 1005 is sent as none.
        """
        if self._close_sent:
            return b""
        self._close_sent = True
        payload = b""
        if code != NO_STATUS:
            text = reason.encode("utf-8")[:REASON_BYTES_MAX].decode("utf-8", "ignore")
            payload = code.to_bytes(2, "big") + text.encode("utf-8")
        return bytes((FIN | CLOSE, len(payload))) + payload


def _close_of(payload: bytes) -> tuple[int, str]:
    """Code and reason of a close frame (RFC 6455, 7.4)."""
    if not payload:
        return NO_STATUS, ""
    code = int.from_bytes(payload[:2], "big")
    if len(payload) == 1 or not (1000 <= code <= 1014 or 3000 <= code <= 4999) or code in (1004, 1005, 1006):
        raise _Broken(PROTOCOL_ERROR, "a close frame has no valid code")
    try:
        return code, payload[2:].decode("utf-8")
    except UnicodeDecodeError:
        raise _Broken(INVALID_DATA, "the reason of a close frame is not UTF-8") from None


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
