"""`POST …/receive` and `POST /v1/acks`: their bodies, and the encoder that collects what a client receives.

An **ack token** names a delivery for ever: the node that has it, its session there, a random key, and the tag of the
delivery. Any node can be sent the token; it asks the node that is named.
"""

import base64
import binascii
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from qmq.broker.consumers.subscription import Ack, Delivery, Subscription
from qmq.broker.messages.lifecycle import Back
from qmq.broker.messages.totals import Totals
from qmq.broker.selectors import compile_selector
from qmq.errors import ProtocolError, Refused
from qmq.gateways.encoder import Lines, NoMessages
from qmq.protocols.http.codec import HttpRequest
from qmq.protocols.http.gateway.bodies import AcksBody, Receive, read_body
from qmq.protocols.http.gateway.messages import facts_of

EXPIRED: Final = "expired"
"""The message was acknowledged, or its time was over: another consumer may have it."""

UNREACHABLE: Final = "unreachable"
"""The node that has the delivery did not respond; the same request may succeed later."""


class AckToken(NamedTuple):
    """What an ack token says."""

    node: str
    session: int
    key: str
    tag: int

    @property
    def text(self) -> str:
        plain = f"{self.node}/{self.session}/{self.key}/{self.tag}"
        return base64.urlsafe_b64encode(plain.encode()).decode().rstrip("=")


class AckRequest(NamedTuple):
    """What is to be done with one delivery. `token` is None for a text that is no token."""

    text: str
    token: AckToken | None
    action: str
    requeue: bool

    @property
    def why(self) -> Back | None:
        """Why the message comes back, if it does."""
        return None if self.action == "ack" else Back.FAILED if self.requeue else Back.REJECTED

    @property
    def result(self) -> str:
        """The result if the token is valid."""
        if self.action == "nack":
            return "requeued" if self.requeue else "rejected"
        return "acknowledged" if self.action == "ack" else "extended"


def subscription_of(wanted: Receive, session: int, queue: str, id: str) -> Subscription:
    """The subscription that receives it. Raises Refused."""
    made = Subscription(session, id, queue, Ack.CLIENT_INDIVIDUAL, 0, b"")
    made.is_pull = True
    made.ack_timeout_us = round(wanted.ack_timeout_seconds * 1_000_000)
    text = (wanted.selector or "").strip()
    if text:
        made.selector = compile_selector(text)
    return made


def receive_of(request: HttpRequest) -> Receive:
    """The body of a receive, with its defaults. Raises Refused."""
    return read_body(request.body, Receive)


def acks_of(request: HttpRequest) -> list[AckRequest]:
    """The body of a request about deliveries. Raises Refused."""
    acks = read_body(request.body, AcksBody).acks
    return [AckRequest(one.ack_token, _token_of(one.ack_token), one.action, one.requeue) for one in acks]


def _token_of(text: str) -> AckToken | None:
    try:
        plain = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode()
        node, session, key, tag = plain.split("/")
        return AckToken(node, int(session), key, int(tag))
    except (ValueError, binascii.Error):
        return None


class PullEncoder(NoMessages):
    """`Encoder` of a session without a connection. `delivered` is called with what its receives get."""

    protocol = "HTTP pull"

    def __init__(
        self, changed: Callable[[], object], delivered: Callable[[list[Delivery], Totals | None], object]
    ) -> None:
        self._changed = changed
        self._delivered = delivered
        self.receipts_due: set[str] = set()
        self.receipts_refused: set[str] = set()
        """Of those that were due."""
        self.refused: ProtocolError | Refused | None = None

    def deliveries(self, subscription: Subscription, deliveries: list[Delivery], totals: Totals | None = None) -> bytes:
        self._delivered(deliveries, totals)
        return b""

    def receipts(self, receipts: list[str], lines: Lines = (), level: int = 0) -> bytes:
        self.receipts_due.difference_update(receipts)
        self._changed()
        return b""

    def response(self, receipt: str, lines: Lines, body: bytes) -> bytes:
        return b""

    def error(
        self, error: ProtocolError | Refused, receipt: str | None = None, subscription: str | None = None
    ) -> bytes:
        if receipt in self.receipts_due:
            self.receipts_due.discard(receipt)
            self.receipts_refused.add(receipt)
        else:
            self.refused = error
        self._changed()
        return b""


def received_facts(delivery: Delivery, token: AckToken) -> dict[str, Any]:
    """One received message in JSON."""
    message = delivery.message
    count = max(message.attempts, 0) + 1
    return {
        **facts_of(message),
        "ack_token": token.text,
        "redelivered": message.attempts != 0,
        "delivery_count": count,
    }
