"""What a node refuses, and what ends a connection, as errors of this package."""

import ssl

from qmq.errors import Refused, TlsFailed
from qmq.wire.stomp import Frame


def error_of(frame: Frame) -> Refused:
    """What an ERROR frame says. Nodes of other kinds may leave out the code, or write the message into the body."""
    headers = frame.head.headers
    detail = frame.body.decode("utf-8", "backslashreplace").strip()
    message = headers.get("message") or detail or "an ERROR without a message"
    return Refused(headers.get("error-code", "error"), message, detail)


TLS_RECORDS = (b"\x15\x03", b"\x16\x03")
"""How an alert and a handshake of TLS begin."""


def other_protocol(answer: bytes) -> Exception | None:
    """The error to raise if the first bytes of a plain connection are those of a server that is no STOMP node."""
    if answer.startswith(TLS_RECORDS):
        return TlsFailed("the node speaks TLS at this address: connect with `tls`")
    return ConnectionError("answers HTTP, not STOMP") if answer.startswith(b"HTTP/") else None


def tls_failure(error: BaseException | None) -> Exception:
    """The error to raise for one of a connection: TlsFailed if it comes whenever this node is tried."""
    if not isinstance(error, ssl.SSLError):
        return ConnectionError("connection lost")
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailed(f"its certificate is not trusted: {error.verify_message}")
    text = f"{error.strerror or error}; is TLS on at this address?"
    # A node that stops in the middle of a handshake ends it like this, too.
    return (ConnectionError if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) else TlsFailed)(text)
