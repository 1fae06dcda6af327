"""Requests as bytes, and what a connection makes of them."""

from collections.abc import Iterable

from qmq.protocols.http.codec import HttpConnection, HttpLimits, HttpRefusal, HttpRequest

SMALL = HttpLimits(
    target_bytes_max=40, head_bytes_max=200, header_count_max=5, body_bytes_max=1000, unread_bytes_max=64
)


def request(line: str = "GET / HTTP/1.1", *headers: str, body: bytes = b"", host: bool = True) -> bytes:
    lines = [line, *(["Host: a"] if host else []), *headers]
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1") + b"\r\n" + body


def post(body: bytes, *headers: str, target: str = "/") -> bytes:
    return request(f"POST {target} HTTP/1.1", f"Content-Length: {len(body)}", *headers, body=body)


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + end
    return request("POST / HTTP/1.1", "Transfer-Encoding: chunked", body=body)


def connection(data: bytes = b"", limits: HttpLimits | None = None) -> HttpConnection:
    made = HttpConnection(limits or HttpLimits())
    if data:
        made.receive(data)
    return made


def only(data: bytes, limits: HttpLimits | None = None) -> HttpRequest:
    """The request that `data` is."""
    got = connection(data, limits).next_request()
    assert got is not None
    return got


def refused(data: bytes, limits: HttpLimits | None = None, *, ends: bool = False) -> HttpRefusal:
    """The refusal that `data` gets."""
    reader = connection(data, limits)
    if ends:
        reader.receive(b"")
    try:
        got = reader.next_request()
    except HttpRefusal as refusal:
        return refusal
    raise AssertionError(f"not refused: {got}")


Outcome = list[HttpRequest | str]


def outcome(pieces: Iterable[bytes], limits: HttpLimits) -> Outcome:
    """All requests of a stream, each answered at once, and whether the stream is refused."""
    reader = HttpConnection(limits)
    found: Outcome = []
    try:
        for piece in pieces:
            reader.receive(piece)
            while (got := reader.next_request()) is not None:
                found.append(got)
                reader.respond(200)
    except HttpRefusal:
        found.append("refused")
    return found
