"""Heads of responses, as bytes."""

from collections.abc import Iterable
from http import HTTPStatus

from qmq.errors import LocalProtocolError

STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

CLOSE = ("connection", "close")


def encode_head(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    """A status line, header lines and the blank line.

    Raises LocalProtocolError when a name or value would end its line: values may come from other clients.
    """
    lines = [f"{name}: {value}\r\n" for name, value in headers]
    head = STATUS_LINES[status] + "".join(lines) + "\r\n"
    if head.count("\n") != len(lines) + 2 or head.count("\r") != len(lines) + 2 or "\0" in head:
        raise LocalProtocolError("bad-response", "a header of a response has a line end or NUL in it")
    return head.encode("utf-8", "surrogateescape")
