"""One HTTP connection of a server: bytes in, whole requests out; responses in, bytes out.

Requests are handed out one at a time. The bytes of the next request are parsed only after the response to this one was
made, so responses are in order, and a client that pipelines makes the node hold no more than one read.

Surprising: a head that is equal to the last one of its connection is not parsed again, also if its content-length is
another. A program that posts in a loop sends such heads.
"""

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from http import HTTPStatus

from qmq.errors import LocalProtocolError
from qmq.protocols.http.codec.chunked import ChunkedBody
from qmq.protocols.http.codec.head import KnownHead, check_arriving, parse_head
from qmq.protocols.http.codec.limits import HttpLimits
from qmq.protocols.http.codec.refusals import HttpRefusal, bad_request, body_too_large
from qmq.protocols.http.codec.request import HttpRequest

STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

CLOSE = ("connection", "close")

REMEMBERED_HEAD_BYTES_MAX = 1024
"""A longer head is parsed each time, so an idle connection keeps little."""

HEAD_END = b"\r\n\r\n"

BODILESS = frozenset({204, 304})


class HttpState(Enum):
    """Where a connection is in the exchange of one request and its response."""

    HEAD = auto()
    """It waits for a head, or for the rest of one."""
    BODY = auto()
    """The head is complete, the body is not."""
    ANSWER = auto()
    """The request was handed out."""
    REFUSED = auto()
    """The client broke the protocol. One response can be made, and nothing of the client is read any more."""
    STREAM = auto()
    """A response without a length has begun, which the end of the connection ends."""
    CLOSING = auto()
    """The last response was made."""
    SWITCHED = auto()
    """The connection speaks another protocol."""


class HttpConnection:
    """The codec of one connection. `limits` bound what it holds."""

    __slots__ = (
        "_body_bytes",
        "_buffer",
        "_checked",
        "_chunked",
        "_ended",
        "_interim",
        "_known",
        "_limits",
        "_request",
        "_skipped",
        "_state",
    )

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._state = HttpState.HEAD
        self._buffer = bytearray()
        self._checked = 0
        """Bytes of the head in which its end was searched."""
        self._skipped = False
        """The blank line that some clients send after a body was skipped."""
        self._request: HttpRequest | None = None
        """Whose body is arriving, or whose response is due."""
        self._body_bytes = 0
        self._chunked: ChunkedBody | None = None
        self._interim = b""
        self._ended = False
        self._known: KnownHead | None = None

    def receive(self, data: bytes) -> None:
        """Take bytes of the client; b"" when it has ended its half. `next_request` parses them.

        Raises LocalProtocolError when the caller reads on although `unread_bytes_max` wait for a response that is due,
        or after `switch`.
        """
        if not data:
            self._ended = True
        elif self._state in (HttpState.HEAD, HttpState.BODY):
            self._buffer += data
        elif self._state is HttpState.ANSWER:
            if len(self._buffer) >= self._limits.unread_bytes_max:
                raise LocalProtocolError("read-ahead", "bytes were read that must wait for the response")
            self._buffer += data
        elif self._state is HttpState.SWITCHED:
            raise LocalProtocolError("switched", "the connection speaks another protocol")

    def next_request(self) -> HttpRequest | None:
        """The next complete request; None while it is incomplete, or while a response is due.

        Raises HttpRefusal for a client that breaks the protocol, also when it ends its half within a request. Then make
        one response, and close.
        """
        try:
            if self._state is HttpState.HEAD:
                self._take_head()
            if self._state is HttpState.BODY:
                return self._take_body()
        except HttpRefusal:
            self._forget()
            self._state = HttpState.REFUSED
            raise
        return None

    def refuse(self) -> None:
        """The caller refuses a request of which a part has arrived: one response can be made, and nothing is read."""
        self._forget()
        self._state = HttpState.REFUSED

    def bound_body(self, bytes_max: int) -> None:
        """The body of this request, which is arriving or was handed out, has at most so many bytes.

        Raises HttpRefusal; then the request is due its response, as any other that is refused.
        """
        request = self._request
        assert request is not None
        if self._chunked is not None:
            self._chunked.bound(bytes_max)
        elif self._body_bytes > bytes_max:
            raise body_too_large(bytes_max)

    def interim(self) -> bytes:
        """Bytes to send now, so that the client sends the body; b"" when none are due."""
        data, self._interim = self._interim, b""
        return data

    def respond(self, status: int, headers: Sequence[tuple[str, str]] = (), body: bytes = b"") -> bytes:
        """One whole response, as bytes. Then the next request can be parsed, unless `must_close` is True.

        `headers` is without content-length and connection, which are added. The body of a response to HEAD, and of 204
        and 304, is not sent. While a body is still arriving, the request of `head` is answered and the connection
        closes.

        Raises LocalProtocolError when no response is due, or a header has a line end in it; nothing has changed.
        """
        request = self._answered()
        closes = self._state is not HttpState.ANSWER or request is None or not request.keep_alive
        closes = closes or (self._ended and not self._buffer)
        lines = list(headers)
        if status in BODILESS:
            body = b""
        else:
            lines.append(("content-length", str(len(body))))
        if closes:
            lines.append(CLOSE)
        head = encode_head(status, lines)
        self._finish(HttpState.CLOSING if closes else HttpState.HEAD)
        return head if request is not None and request.method == "HEAD" else head + body

    def begin_stream(self, status: int, headers: Sequence[tuple[str, str]] = ()) -> bytes:
        """The head of a response without a length. What the caller sends next is its body; closing ends it.

        The method of the request must not be HEAD. Bytes that the client still sends are dropped. Raises as `respond`.
        """
        self._answered()
        head = encode_head(status, [*headers, CLOSE])
        self._finish(HttpState.STREAM)
        return head

    def switch(self, headers: Sequence[tuple[str, str]]) -> bytes:
        """The response 101. The connection then speaks another protocol, of which `take_leftover` has the first bytes.

        `headers` has `connection` and `upgrade`. Raises as `respond`, and also when the request was not handed out.
        """
        self._answered()
        if self._state is not HttpState.ANSWER:
            raise LocalProtocolError("no-request", "only a complete request can switch the protocol")
        head = encode_head(101, headers)
        self._request = self._known = None
        self._state = HttpState.SWITCHED
        return head

    def take_leftover(self) -> bytes:
        """The bytes after the request that switched the protocol."""
        data = bytes(self._buffer)
        self._buffer.clear()
        return data

    @property
    def head(self) -> HttpRequest | None:
        """The request whose body is arriving, without its body: it can be refused before the body is held."""
        return self._request if self._state is HttpState.BODY else None

    @property
    def known(self) -> HttpRequest | None:
        """What stands for the head of the request that was handed out last: the same object for each request whose head
        differs at most in the content-length, so what follows from the others may be remembered with it. None: nothing.
        """
        return None if self._known is None else self._known.request

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of the client that this holds."""
        return len(self._buffer) + (self._chunked.held_bytes if self._chunked is not None else 0)

    @property
    def is_idle(self) -> bool:
        """Nothing of a request has arrived, and no response is due."""
        return self._state is HttpState.HEAD and not self._buffer

    @property
    def is_amid_request(self) -> bool:
        """A part of a request has arrived, and the rest is missing or not parsed yet."""
        return self._state is HttpState.BODY or (self._state is HttpState.HEAD and bool(self._buffer))

    @property
    def must_close(self) -> bool:
        """Whether no further request follows. Close when the bytes of the response are sent."""
        if self._state is HttpState.HEAD:
            return self._ended and not self._buffer
        return self._state in (HttpState.REFUSED, HttpState.STREAM, HttpState.CLOSING)

    def _answered(self) -> HttpRequest | None:
        if self._state not in (HttpState.BODY, HttpState.ANSWER, HttpState.REFUSED):
            raise LocalProtocolError("no-request", "no response is due")
        return self._request

    def _finish(self, state: HttpState) -> None:
        if state is HttpState.HEAD:
            self._request = None
        else:
            self._forget()
        self._state = state

    def _forget(self) -> None:
        self._buffer.clear()
        self._request = self._chunked = self._known = None
        self._interim = b""

    def _take_head(self) -> None:
        buffer, limits = self._buffer, self._limits
        if not buffer:
            return
        if not self._skipped and buffer.startswith(b"\r\n"):
            del buffer[:2]
            self._skipped = True
            self._checked = 0
        end = buffer.find(HEAD_END, max(0, self._checked - 3))
        if end < 0:
            check_arriving(buffer, self._checked, -1, limits)
            self._checked = len(buffer)
            if self._ended and buffer:
                raise bad_request("the connection ended within a request")
            return
        end += 4
        head = bytes(buffer[:end])
        request = self._known.parse(head, limits) if self._known is not None else None
        if request is None:
            check_arriving(buffer, self._checked, end, limits)
            request = parse_head(head, limits)
            self._known = KnownHead(head, request) if end <= REMEMBERED_HEAD_BYTES_MAX else None
        del buffer[:end]
        self._checked = 0
        self._skipped = False
        self._request = request
        self._body_bytes = int(request.headers.get("content-length", "0"))
        if "transfer-encoding" in request.headers:
            self._chunked = ChunkedBody(limits.body_bytes_max)
        if request.expects_continue:
            self._interim = CONTINUE
        self._state = HttpState.BODY

    def _take_body(self) -> HttpRequest | None:
        buffer, request, chunked = self._buffer, self._request, self._chunked
        assert request is not None
        if chunked is not None:
            if not chunked.take(buffer):
                self._await_body()
                return None
            body = chunked.join()
            self._body_bytes = len(body)
            self._chunked = None
        elif len(buffer) < self._body_bytes:
            self._await_body()
            return None
        elif len(buffer) == self._body_bytes:
            body = bytes(buffer)
            buffer.clear()
        else:
            with memoryview(buffer) as view:
                body = bytes(view[: self._body_bytes])
            del buffer[: self._body_bytes]
        self._interim = b""
        self._state = HttpState.ANSWER
        return request.with_body(body) if body else request

    def _await_body(self) -> None:
        """Refuse a body that cannot be completed any more."""
        if self._ended:
            raise bad_request("the connection ended within a request")


def encode_head(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    """A status line, header lines and the blank line.

    Raises LocalProtocolError when a name or value would end its line: values may come from other clients.
    """
    lines = [f"{name}: {value}\r\n" for name, value in headers]
    head = STATUS_LINES[status] + "".join(lines) + "\r\n"
    if head.count("\n") != len(lines) + 2 or head.count("\r") != len(lines) + 2 or "\0" in head:
        raise LocalProtocolError("bad-response", "a header of a response has a line end or NUL in it")
    return head.encode("utf-8", "surrogateescape")
