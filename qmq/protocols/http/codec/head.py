"""The head of a request: raw rules, then h11, then the rules that h11 leaves to its user.

Request smuggling needs two servers that read one request differently. h11 is lenient where RFC 9112 allows it: lines
that end with LF alone, folded lines, control characters, a content-length beside a transfer-encoding, equal lengths
repeated. Nothing that talks to this server needs that, so each of it is refused.
"""

import re
from dataclasses import replace

import h11

from qmq.protocols.http.codec.limits import HttpLimits
from qmq.protocols.http.codec.refusals import HttpRefusal, bad_request, body_too_large, head_too_large
from qmq.protocols.http.codec.request import HttpRequest
from qmq.protocols.http.codec.target import origin_form, split_target

METHOD_BYTES_MAX = 32

ALLOWED = bytes(octet for octet in range(256) if octet in b"\t\r\n" or (octet >= 0x20 and octet != 0x7F))
"""No control characters; CR and LF only together, as `_is_clean` checks."""

LENGTH_NAME = b"\ncontent-length:"

LENGTH_DIGITS_MAX = 20

HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+;=%-]*)(?::[0-9]{0,5})?")

SINGLE = frozenset(
    {
        "authorization",
        "content-encoding",
        "content-length",
        "content-type",
        "cookie",
        "expect",
        "host",
        "last-event-id",
        "origin",
        "referer",
        "sec-websocket-key",
        "sec-websocket-version",
        "transfer-encoding",
        "upgrade",
    }
)
"""Two programs that take different ones of a repeated header decide differently. These are refused when repeated."""


def check_arriving(buffer: bytearray, checked: int, end: int, limits: HttpLimits) -> None:
    """Refuse what `buffer` has of a head, as early as that can be known.

    The first `checked` bytes were checked before. `end` is the length of the head, or -1 while its end is missing.
    """
    size = len(buffer) if end < 0 else end
    begin = min(size, METHOD_BYTES_MAX + limits.target_bytes_max + 2)
    line_end = buffer.find(b"\r\n", 0, begin)
    method, _, target = buffer[: begin if line_end < 0 else line_end].partition(b" ")
    if len(method) > METHOD_BYTES_MAX:
        raise bad_request("the bytes are no HTTP request")
    if len(target.partition(b" ")[0]) > limits.target_bytes_max:
        raise HttpRefusal(414, "target-too-long", f"the request target has at most {limits.target_bytes_max} bytes")
    start = max(0, checked - 1)
    if start and buffer[start] == 0x0A:  # not between CR and LF
        start -= 1
    if not _is_clean(buffer[start : min(size, limits.head_bytes_max + 1)]):
        raise bad_request(
            "the head of the request has a bare CR or LF, a folded line or a control character",
            "Lines end with CRLF; a header has one line.",
        )
    if size > limits.head_bytes_max:
        raise head_too_large(limits.head_bytes_max)


def _is_clean(part: bytearray) -> bool:
    """Whether no bare CR or LF, folded line or control character is in a part of a head. A CR at its end is clean: LF
    may follow.
    """
    if part.endswith(b"\r"):
        del part[-1]
    line_ends = part.count(b"\r\n")
    return (
        line_ends == part.count(b"\n") == part.count(b"\r")
        and b"\n " not in part
        and b"\n\t" not in part
        and not part.translate(None, ALLOWED)
    )


def parse_head(head: bytes, limits: HttpLimits) -> HttpRequest:
    """The request of a head that `check_arriving` has checked, without its body. Raises HttpRefusal."""
    if head.count(b"\n") - 2 > limits.header_count_max:
        raise HttpRefusal(431, "too-many-headers", f"a request has at most {limits.header_count_max} headers")
    parser = h11.Connection(h11.SERVER)
    parser.receive_data(head)
    try:
        event = parser.next_event()
    except h11.RemoteProtocolError as error:
        # The text of h11 may quote the head after a colon.
        message = str(error).partition(":")[0]
        if error.error_status_hint == 501:
            raise HttpRefusal(501, "encoding-not-implemented", message) from None
        raise bad_request(message) from None
    assert isinstance(event, h11.Request)  # the head is complete
    version = event.http_version.decode("ascii")
    if version not in ("1.0", "1.1"):
        raise HttpRefusal(505, "version-not-supported", "this server supports HTTP/1.1 and HTTP/1.0")
    headers: dict[str, str] = {}
    for raw, value in event.headers.raw_items():
        name = raw.decode("ascii").lower()
        if name not in headers:
            headers[name] = _text(value)
        elif name in SINGLE:
            raise bad_request(f"the header {name} is repeated")
        else:
            headers[name] += ", " + _text(value)
    _check_framing(head, headers, version, limits)
    method, target = event.method.decode("ascii"), event.target.decode("ascii")
    host = headers.get("host")
    if host is not None and not HOST.fullmatch(host):
        raise bad_request("the Host header is no host and port")
    path, pairs = split_target(origin_form(method, target, host))
    expect = headers.get("expect")
    if expect is not None and expect.lower() != "100-continue":
        raise HttpRefusal(417, "expectation-failed", "the only expectation is 100-continue")
    return HttpRequest(
        method=method,
        target=target,
        path=path,
        query=dict(reversed(pairs)),
        query_pairs=pairs,
        headers=headers,
        version=version,
        keep_alive=version == "1.1" and "close" not in tokens(headers.get("connection", "")),
        expects_continue=expect is not None and version == "1.1",
    )


def _check_framing(head: bytes, headers: dict[str, str], version: str, limits: HttpLimits) -> None:
    """Refuse a head after which it is not certain where the body ends (RFC 9112, 6.3)."""
    if "transfer-encoding" in headers:
        if "content-length" in headers:
            raise bad_request("content-length and transfer-encoding in one request")
        if version == "1.0":
            raise bad_request("transfer-encoding in a request of HTTP/1.0")
    elif "content-length" in headers:
        # h11 has joined equal lengths into one.
        begin, end = length_place(head)
        if not head[begin:end].isdigit() or head.lower().find(LENGTH_NAME, end) >= 0:
            raise bad_request("content-length must be one number")
        if int(head[begin:end]) > limits.body_bytes_max:
            raise body_too_large(limits.body_bytes_max)


def length_place(head: bytes) -> tuple[int, int]:
    """Where the value of the first content-length begins and ends; twice the end of the head if there is none."""
    at = head.lower().find(LENGTH_NAME)
    if at < 0:
        return len(head), len(head)
    line = head[at + len(LENGTH_NAME) : head.find(b"\r", at)]
    value = line.lstrip(b" \t")
    begin = at + len(LENGTH_NAME) + len(line) - len(value)
    return begin, begin + len(value.rstrip(b" \t"))


class KnownHead:
    """A head that was parsed, and its request. It also stands for every head that differs in the content-length."""

    __slots__ = ("_after", "_before", "_length", "request")

    def __init__(self, head: bytes, request: HttpRequest) -> None:
        begin, end = length_place(head)
        self._before = head[:begin]
        self._length = head[begin:end]
        self._after = head[end:]
        self.request = request

    def parse(self, head: bytes, limits: HttpLimits) -> HttpRequest | None:
        """The request of `head`, or None if it has to be parsed. Raises HttpRefusal."""
        if not head.startswith(self._before) or not head.endswith(self._after):
            return None
        length = head[len(self._before) : len(head) - len(self._after)]
        if length == self._length:
            return self.request
        if not length.isdigit() or len(length) > LENGTH_DIGITS_MAX:
            return None
        if int(length) > limits.body_bytes_max:
            raise body_too_large(limits.body_bytes_max)
        request = self.request
        return replace(request, headers={**request.headers, "content-length": length.decode("ascii")})


def tokens(value: str) -> list[str]:
    """The words of a header that is a list, in lower case."""
    return [token.strip() for token in value.lower().split(",")]


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")
