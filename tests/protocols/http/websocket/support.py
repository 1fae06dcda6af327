"""Frames of a client as bytes."""

from collections.abc import Iterable

from qmq.protocols.http.websocket import WebSocketFrames, WebSocketInput, WebSocketLimits

SMALL = WebSocketLimits(message_bytes_max=300)
MASK = b"\x12\x34\x56\x78"
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def frame(payload: bytes, opcode: int = TEXT, *, fin: bool = True, mask: bytes | None = MASK, bits: int = 0) -> bytes:
    """One frame, masked unless `mask` is None; `bits` are the reserved ones."""
    size = len(payload)
    flag = 0 if mask is None else 0x80
    head = bytes([(0x80 if fin else 0) | bits | opcode])
    if size < 126:
        head += bytes([flag | size])
    elif size < 1 << 16:
        head += bytes([flag | 126]) + size.to_bytes(2, "big")
    else:
        head += bytes([flag | 127]) + size.to_bytes(8, "big")
    if mask is None:
        return head + payload
    return head + mask + bytes(octet ^ mask[at % 4] for at, octet in enumerate(payload))


def opened(limits: WebSocketLimits = SMALL, *, is_text: bool = True) -> WebSocketFrames:
    return WebSocketFrames(limits, is_text=is_text)


def close_frame(code: int, reason: str = "") -> bytes:
    """As the server sends it."""
    payload = code.to_bytes(2, "big") + reason.encode()
    return bytes([0x88, len(payload)]) + payload


def payload_of(inputs: Iterable[WebSocketInput]) -> bytes:
    """What several reads have brought."""
    return b"".join(got.payload for got in inputs)
