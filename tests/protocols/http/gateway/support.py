"""Requests as the codec hands them out."""

from qmq.protocols.http.codec import HttpConnection, HttpLimits, HttpRequest


def request_of(method: str, target: str, body: bytes = b"", **headers: str) -> HttpRequest:
    """A request; names of headers have underscores for hyphens."""
    lines = {"host": "localhost:61680", **{name.replace("_", "-"): value for name, value in headers.items()}}
    if body:
        lines["content-length"] = str(len(body))
    head = f"{method} {target} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    connection = HttpConnection(HttpLimits())
    connection.receive(head.encode() + b"\r\n" + body)
    request = connection.next_request()
    assert request is not None
    return request
