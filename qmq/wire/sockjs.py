"""The SockJS protocol 0.3.3: one session over many HTTP responses, or over one WebSocket.

The server sends frames: `o` opens, `h` is a heartbeat, `a[…]` has messages, `c[code,reason]` closes. The client sends
arrays of strings. `SockJsSession` has the messages that wait for a receiving response, and decides what each response
gets; it reads no clock and never waits.

Surprising: a response that breaks closes the session (1002). What was written to it may be lost, and a stream with a
hole in it is worse than none.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf

from qmq.wire.http import HttpRefusal

INTERRUPTED = (1002, "Connection interrupted")
NOT_TEXT = (1003, "SockJS carries only text, and a message is not UTF-8")
SECOND_CONNECTION = (2010, "Another connection still open")

HEARTBEAT_FRAME = "h"

CHECKED_BYTES = 65536
"""A larger payload is checked before it is parsed: as JSON, 16 MiB of empty lists would take 400 MB and two seconds."""

TEXT = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
MESSAGES = re.compile(rf"\s*+(?:\[\s*+(?:{TEXT}(?:\s*+,\s*+{TEXT}){{0,9999}}+)?+\s*+\]|{TEXT})\s*+".encode(), re.DOTALL)
"""One string, or an array of at most 10,000."""

SockJsClose = tuple[int, str]


@dataclass(frozen=True, slots=True)
class SockJsLimits:
    """Limits of one session."""

    waiting_bytes_max: int = 65536
    """Messages to the client that wait for a response; one larger message may wait alone."""

    received_bytes_max: int = 65536
    """Bytes of the client that its session has not read. Beyond it, `xhr_send` is answered later."""

    response_bytes_max: int = 128 * 1024
    """Of one streaming response. The client then opens the next one, and its memory of the last one is freed."""

    disconnect_seconds: float = 5.0
    """How long a session lives without a receiving response."""

    heartbeat_seconds: float = 25.0
    """A response on which nothing was sent for so long gets a heartbeat. Proxies close silent ones after 30 s."""


class SockJsTransport(Enum):
    """How frames get to the client: content type, what precedes all frames, and what each is put between."""

    XHR = ("application/javascript; charset=UTF-8", "", "", "\n")
    """One frame for each response."""
    XHR_STREAMING = ("application/javascript; charset=UTF-8", "h" * 2048 + "\n", "", "\n")
    EVENTSOURCE = ("text/event-stream; charset=UTF-8", "\r\n", "data: ", "\r\n\r\n")
    WEBSOCKET = ("", "", "", "")
    """Each frame is one message."""

    @property
    def content_type(self) -> str:
        return self.value[0]


TRANSPORTS = {
    "xhr": SockJsTransport.XHR,
    "xhr_streaming": SockJsTransport.XHR_STREAMING,
    "eventsource": SockJsTransport.EVENTSOURCE,
    "websocket": SockJsTransport.WEBSOCKET,
}
"""The last segment of a path → its transport. `xhr_send` is the other direction of the first three."""


def split_route(path: Sequence[str]) -> tuple[str, str] | None:
    """The session and the last segment of the path below the base, `SERVER/SESSION/xhr`; None for other paths."""
    if len(path) != 3 or not path[0] or not path[1] or "." in path[0] or "." in path[1]:
        return None
    return (path[1], path[2]) if path[2] in TRANSPORTS or path[2] == "xhr_send" else None


def encode_info(entropy: int, *, has_websocket: bool = True) -> bytes:
    """The body of `/info`. `entropy` is a random number of 32 bits, with which clients seed their session ids."""
    info = {"websocket": has_websocket, "origins": ["*:*"], "cookie_needed": False, "entropy": entropy}
    return json.dumps(info).encode()


def decode_messages(body: bytes) -> bytes:
    """The payload of an `xhr_send`, or of a WebSocket message: an array of strings, or one string, joined as UTF-8.

    Raises HttpRefusal with the status and text that the protocol demands.
    """
    if not body:
        raise HttpRefusal(500, "bad-sockjs", "Payload expected.")
    try:
        if len(body) > CHECKED_BYTES and not MESSAGES.fullmatch(body):
            raise ValueError("other JSON, or too much of it")
        messages = json.loads(body)
        if isinstance(messages, str):
            messages = [messages]
        if not isinstance(messages, list):
            raise HttpRefusal(500, "bad-sockjs", "Payload expected.")
        # str.join refuses what is no string.
        return "".join(messages).encode("utf-8")
    except (ValueError, TypeError, RecursionError):
        raise HttpRefusal(500, "bad-sockjs", "Broken JSON encoding.") from None


class SockJsResponse:
    """One receiving response. `is_done` once it ends: its last bytes were taken."""

    __slots__ = ("_begun", "_bytes_max", "_sent_bytes", "_transport", "is_done")

    def __init__(self, transport: SockJsTransport, limits: SockJsLimits) -> None:
        self.is_done = False
        self._transport = transport
        # A poll ends with its first frame.
        self._bytes_max = {SockJsTransport.XHR: 1, SockJsTransport.WEBSOCKET: inf}.get(
            transport, limits.response_bytes_max
        )
        self._sent_bytes = 0
        self._begun = False

    def encode(self, frame: str) -> bytes:
        """The bytes of `frame` on this response, with the prelude if it is the first one."""
        _, prelude, before, after = self._transport.value
        if self._transport is SockJsTransport.EVENTSOURCE:
            frame = frame.replace("%", "%25")  # sockjs-client decodes these frames as a URI.
        data = f"{'' if self._begun else prelude}{before}{frame}{after}".encode()
        self._begun = True
        self._sent_bytes += len(data)
        self.is_done = self.is_done or self._sent_bytes >= self._bytes_max
        return data


class SockJsSession:
    """What one client is sent. It is open from its first response on, until `close`, `interrupt` or `expire`."""

    __slots__ = ("_limits", "_opened", "_response", "_waiting", "closed", "deadline", "waiting_bytes")

    def __init__(self, limits: SockJsLimits, now: float) -> None:
        self.closed: SockJsClose | None = None
        """Code and reason; later responses get what still waits, and then these."""
        self.deadline = now + limits.disconnect_seconds
        """When `expire` is due; infinite while there is a response."""
        self.waiting_bytes = 0
        self._limits = limits
        self._opened = False
        self._response: SockJsResponse | None = None
        self._waiting: list[str] = []

    def attach(self, transport: SockJsTransport) -> SockJsResponse:
        """A receiving response begins. `take` returns what it is sent.

        A second one gets only a close frame, and the session goes on with the first.
        """
        response = SockJsResponse(transport, self._limits)
        if self._response is None:
            self._response = response
            self.deadline = inf
        return response

    def take(self, response: SockJsResponse) -> bytes:
        """What to send on `response` now, a frame at most; b"" for nothing yet. See `is_done` after it."""
        if response.is_done:
            return b""
        if response is not self._response:
            return self._last(response, SECOND_CONNECTION)
        if not self._opened:
            self._opened = True
            return response.encode("o")
        if self._waiting:
            # json escapes all but ASCII, so no character is left that some browsers damage.
            frame = "a" + json.dumps(self._waiting, separators=(",", ":"))
            self._waiting = []
            self.waiting_bytes = 0
            return response.encode(frame)
        if self.closed is not None:
            return self._last(response, self.closed)
        return b""

    @staticmethod
    def _last(response: SockJsResponse, close: SockJsClose) -> bytes:
        response.is_done = True
        return response.encode("c" + json.dumps(close, separators=(",", ":")))

    def detach(self, response: SockJsResponse, now: float) -> None:
        """`response` was sent and has ended in order; the client has `disconnect_seconds` to open the next one."""
        if response is self._response:
            self._response = None
            self.deadline = now + self._limits.disconnect_seconds

    def interrupt(self, response: SockJsResponse, now: float) -> None:
        """The connection of `response` broke. What was taken for it may be lost, so the session closes."""
        if response is self._response:
            self.drop_waiting()
            self.close(*INTERRUPTED)
            self.detach(response, now)

    def has_room(self, size: int) -> bool:
        """Whether `size` bytes more may wait."""
        return not self.waiting_bytes or self.waiting_bytes + size <= self._limits.waiting_bytes_max

    def send(self, data: bytes) -> bool:
        """Add a message; False if its bytes are not UTF-8, which closes the session, or if it is closed."""
        if self.closed is not None:
            return False
        try:
            self._waiting.append(data.decode("utf-8"))
        except UnicodeDecodeError:
            self.close(*NOT_TEXT)
            return False
        self.waiting_bytes += len(data)
        return True

    def close(self, code: int, reason: str) -> None:
        """Take no more messages. The client gets those that wait, and then a close frame; the first one counts."""
        if self.closed is None:
            self.closed = (code, reason)

    def drop_waiting(self) -> None:
        """Drop what waits: the client gets only a close frame."""
        self._waiting = []
        self.waiting_bytes = 0

    def expire(self, now: float) -> bool:
        """Whether the session is over, because no response was there for too long. It then closes."""
        if now < self.deadline:
            return False
        self.drop_waiting()
        self.close(*INTERRUPTED)
        return True
