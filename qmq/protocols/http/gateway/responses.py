"""The encoder of requests and responses: what a session is answered becomes the one response to its request.

`call` is the request that waits for it. The response is written when its answer is as durable as asked, because the
node writes receipts only then. A session of requests has no subscription, so it gets no messages.
"""

import json
from collections.abc import Callable, Mapping
from typing import Final

from qmq.broker.messages.message import Message
from qmq.broker.messages.receipt_levels import disks_of
from qmq.errors import ProtocolError, Refused
from qmq.gateways.encoder import Lines, NoMessages
from qmq.model.dots import Origin
from qmq.protocols.http.codec import HttpConnection, HttpRefusal

JSON: Final = ("content-type", "application/json")
COMMON: Final = (
    ("cache-control", "no-store"),
    ("x-content-type-options", "nosniff"),
    ("cross-origin-resource-policy", "same-origin"),
)
COMPACT: Final = json.JSONEncoder(separators=(",", ":"))
CHALLENGE: Final = ("www-authenticate", 'Basic realm="qmq", charset="UTF-8"')
RETRY_AFTER: Final = ("retry-after", "1")

STATUSES: Final[Mapping[str, int]] = {
    "login-required": 401,
    "login-failed": 401,
    "login-timeout": 401,
    "token-expired": 401,
    "user-removed": 401,
    "passcode-changed": 401,
    "not-allowed": 403,
    "bad-csrf": 403,
    "resource-locked": 409,
    "change-under-way": 409,
    "declared-otherwise": 409,
    "exchange-differs": 409,
    "has-consumers": 409,
    "no-administrator": 409,
    "not-empty": 409,
    "already-retired": 409,
    "durable-in-use": 409,
    "exchange-in-use": 409,
    "schema-in-use": 409,
    "vhost-in-use": 409,
    "body-too-large": 413,
    "transaction-too-large": 413,
    "transaction-too-long": 413,
    "header-line-too-long": 431,
    "headers-too-large": 431,
    "too-many-headers": 431,
    "unroutable": 422,
    "queue-full": 429,
    "queue-paused": 429,
    "user-full": 429,
    "disk-full": 507,
    "memory-full": 507,
    "stopping": 503,
    "authentication-unavailable": 503,
    "not-caught-up": 503,
    "not-serving": 503,
    "too-few-copies": 503,
    "schema-missing": 503,
    "log-unreadable": 503,
    "slow-consumer": 503,
    "node-paused": 503,
    "kicked": 403,
}
"""Codes of errors that are not 400. `unknown-…` is 404, and `too-many-…` is 429."""


def status_of(code: str) -> int:
    """The status of HTTP for an error code."""
    if code in STATUSES:
        return STATUSES[code]
    if code.startswith("unknown-") and code != "unknown-ack":
        return 404
    return 429 if code.startswith("too-many-") else 400


def error_facts(error: ProtocolError | Refused) -> dict[str, str]:
    """An error in JSON, with the parts of STOMP's ERROR."""
    facts = {"code": error.code, "message": error.message}
    return {**facts, "detail": error.detail} if error.detail else facts


def encode_refusal(refused: Refused) -> bytes:
    """What a connection is sent that is not accepted, before it has sent a request."""
    body = json.dumps(error_facts(refused)).encode()
    form = b"HTTP/1.1 503 Service Unavailable\r\n%b: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
    return form % (JSON[0].encode(), JSON[1].encode(), len(body), body)


class HttpEncoder(NoMessages):
    """`Encoder` of one connection. `sent` collects the messages that the request has sent."""

    protocol = "HTTP/1.1"

    def __init__(self, http: HttpConnection) -> None:
        self._http = http
        self.is_due = False
        """A response is due: the request was read."""
        self.sent: list[tuple[Message | None, bool]] = []
        """What became of them; empty where all of them were appended before. See `Outcome`."""
        self.on_response: Callable[[], object] = bool
        """Called when the response is written."""
        self.cors: Lines = ()
        """Headers that let a page of another origin read the response."""
        self.is_for_page = False
        """The client is a page that has a form for logins: a browser that is challenged shows its own."""

    def begin(self) -> None:
        """A request was read."""
        self.is_due = True
        self.sent = []
        self.cors = ()

    def respond(self, status: int, facts: object = None, *, headers: Lines = (), body: bytes | None = None) -> bytes:
        """The response: `facts` in JSON, or a body of its own with its headers. Nothing when none is due."""
        if not self.is_due:
            return b""
        self.is_due = False
        self.on_response()
        lines = [*headers, *COMMON, *self.cors]
        if body is None:
            lines.append(JSON)
            body = b"" if facts is None else COMPACT.encode(facts).encode()
        return self._http.respond(status, lines, body)

    def receipts(self, receipts: list[str], lines: Lines = (), level: int = 0) -> bytes:
        if not receipts:
            return b""
        said = dict(lines)
        copies = int(said["copies"]) if "copies" in said else max(0, 1 + disks_of(level))
        return self.respond(201, headers=[JSON], body=b'{"messages":[%b]}' % ",".join(self._rows(copies)).encode())

    def _rows(self, copies: int) -> list[str]:
        """One row for each SEND, in order, as JSON. An id needs no escape."""
        rows: list[str] = []
        # Of a batch all ids begin with the same origin.
        origin: Origin | None = None
        before = ""
        for message, is_duplicate in self.sent or [(None, True)]:
            if message is None:
                said = "true" if is_duplicate else "false"
                rows.append(f'{{"id":null,"copies":{copies if is_duplicate else 0},"duplicate":{said}}}')
            elif message.sequence > 0 and message.origin is origin:
                rows.append(f'{before}{message.sequence}","copies":{copies},"duplicate":false}}')
            else:
                disks = copies if message.sequence > 0 else 0
                rows.append(f'{{"id":"{message.message_id}","copies":{disks},"duplicate":false}}')
                origin, before = message.origin, f'{{"id":"{message.origin}-'
        return rows

    def response(self, receipt: str, lines: Lines, body: bytes) -> bytes:
        return self.respond(200, headers=[JSON], body=body)

    def error(
        self, error: ProtocolError | Refused, receipt: str | None = None, subscription: str | None = None
    ) -> bytes:
        headers: list[tuple[str, str]] = []
        if isinstance(error, HttpRefusal):
            status = error.status
            headers += error.headers
        else:
            status = status_of(error.code)
        if status == 401 and not self.is_for_page:
            headers.append(CHALLENGE)
        elif status in (429, 503):
            headers.append(RETRY_AFTER)
        return self.respond(status, error_facts(error), headers=headers)
