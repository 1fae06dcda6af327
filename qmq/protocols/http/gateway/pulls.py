"""`POST …/receive` and `POST /v1/acks`: their bodies, and the encoder that collects what a client receives.

An **ack token** names a delivery for ever: the node that has it, its session there, a random key, and the tag of the
delivery. Any node can be sent the token; it asks the node that is named.
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from qmq.broker.consumers.subscription import Delivery, Subscription
from qmq.broker.messages.totals import Totals
from qmq.errors import ProtocolError, Refused
from qmq.gateways.encoder import Lines, NoMessages
from qmq.protocols.http.codec import HttpRequest
from qmq.protocols.http.gateway.messages import facts_of
from qmq.wire.stomp import Frame, Head, Version

RECEIVE_MAX: Final = 1000
"""Messages of one response."""

RECEIVE_BYTES_MAX: Final = 16 << 20
"""Of the bodies of one response, which is made and held as a whole; one larger message comes alone."""

WAIT_SECONDS_MAX: Final = 60.0
ACK_TIMEOUT_SECONDS: Final = 30.0
ACK_TIMEOUT_SECONDS_MAX: Final = 43_200.0
"""Twelve hours, as long as other services allow."""

ACKS_MAX: Final = 1000
"""Of one request."""

ACTIONS: Final = ("ack", "nack", "extend")

EXPIRED: Final = "expired"
"""The message was acknowledged, or its time was over: another consumer may have it."""

UNREACHABLE: Final = "unreachable"
"""The node that has the delivery did not respond; the same request may succeed later."""


class Receive(NamedTuple):
    """What a client wants to receive."""

    most: int
    wait_seconds: float
    ack_timeout_seconds: float
    selector: str | None

    def subscribe(self, queue: str, id: str) -> Frame:
        """The SUBSCRIBE that receives it."""
        headers = {
            "destination": queue,
            "id": id,
            "ack": "client-individual",
            "prefetch-count": str(self.most),
            "ack-timeout": f"{self.ack_timeout_seconds:g}",
        }
        if self.selector is not None:
            headers["selector"] = self.selector
        return Frame(Head("SUBSCRIBE", headers, Version.V12), b"", None)


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
    def result(self) -> str:
        """The result if the token is valid."""
        if self.action == "nack":
            return "requeued" if self.requeue else "rejected"
        return "acknowledged" if self.action == "ack" else "extended"


def receive_of(request: HttpRequest) -> Receive:
    """The body of a receive, with its defaults. Raises Refused."""
    body = _object_in(request, ("max", "wait_seconds", "ack_timeout_seconds", "selector"))
    most = body.get("max", 1)
    if type(most) is float and most.is_integer():
        most = int(most)  # JSON knows only numbers.
    if type(most) is not int or not 1 <= most <= RECEIVE_MAX:
        raise Refused("bad-body", f"The member max is a number of messages from 1 to {RECEIVE_MAX}.")
    selector = body.get("selector")
    if selector is not None and not (isinstance(selector, str) and is_unicode(selector)):
        raise Refused("bad-body", "The member selector is text.")
    return Receive(
        most,
        _seconds(body, "wait_seconds", 0.0, 0.0, WAIT_SECONDS_MAX),
        _seconds(body, "ack_timeout_seconds", ACK_TIMEOUT_SECONDS, 1.0, ACK_TIMEOUT_SECONDS_MAX),
        selector,
    )


def acks_of(request: HttpRequest) -> list[AckRequest]:
    """The body of a request about deliveries. Raises Refused."""
    acks = _object_in(request, ("acks",)).get("acks")
    if not isinstance(acks, list) or not 1 <= len(acks) <= ACKS_MAX:
        raise Refused("bad-body", f"The member acks is a list of 1 to {ACKS_MAX} objects.")
    return [_ack_of(number, one) for number, one in enumerate(acks)]


def _ack_of(number: int, one: object) -> AckRequest:
    what = f"acks[{number}]"
    if not isinstance(one, dict) or not one.keys() <= {"ack_token", "action", "requeue"}:
        raise Refused("bad-body", f"{what} is an object with ack_token and action, and requeue if it is a nack.")
    text, action, requeue = one.get("ack_token"), one.get("action", "ack"), one.get("requeue", True)
    if not isinstance(text, str) or action not in ACTIONS or not isinstance(requeue, bool):
        raise Refused(
            "bad-body", f"{what} has ack_token, the text from a receive, and action, one of {', '.join(ACTIONS)}."
        )
    return AckRequest(text, _token_of(text), action, requeue)


def _token_of(text: str) -> AckToken | None:
    try:
        plain = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode()
        node, session, key, tag = plain.split("/")
        return AckToken(node, int(session), key, int(tag))
    except (ValueError, binascii.Error):
        return None


def is_unicode(text: str) -> bool:
    """Whether a text from JSON has no surrogate by itself, which no other protocol can carry."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _object_in(request: HttpRequest, names: tuple[str, ...]) -> dict[str, Any]:
    try:
        body = json.loads(request.body or b"{}")
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict) or not body.keys() <= set(names):
        raise Refused("bad-body", f"The body is a JSON object with {', '.join(names)}.")
    return body


def _seconds(body: Mapping[str, Any], name: str, default: float, least: float, most: float) -> float:
    seconds = body.get(name, default)
    if type(seconds) not in (int, float) or not least <= seconds <= most:
        raise Refused("bad-body", f"The member {name} is a number of seconds from {least:g} to {most:g}.")
    return float(seconds)


class PullEncoder(NoMessages):
    """`Encoder` of a session without a connection: it keeps deliveries for the response that takes them."""

    protocol = "HTTP pull"

    def __init__(self, changed: Callable[[], object]) -> None:
        self._changed = changed
        self.received: dict[str, list[Delivery]] = {}
        """Subscription → what it was given, in order. Only of those that still receive."""
        self.receipts_due: set[str] = set()
        self.receipts_refused: set[str] = set()
        """Of those that were due."""
        self.refused: ProtocolError | Refused | None = None

    def deliveries(self, subscription: Subscription, deliveries: list[Delivery], totals: Totals | None = None) -> bytes:
        self.received[subscription.id].extend(deliveries)
        if totals is not None:
            totals.delivered += len(deliveries)
            totals.redelivered += sum([delivery.message.attempts != 0 for delivery in deliveries])
        self._changed()
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
    """One received message in JSON. It counts as sent now."""
    delivery.sent = True
    message = delivery.message
    count = max(message.attempts, 0) + 1
    return {
        **facts_of(message),
        "ack_token": token.text,
        "redelivered": message.attempts != 0,
        "delivery_count": count,
    }


def settling(tag: int, ack: AckRequest, receipt: str) -> Frame:
    """The ACK or NACK of a delivery."""
    headers = {"id": str(tag)}
    if ack.action == "ack":
        return Frame(Head("ACK", headers, Version.V12), b"", receipt)
    return Frame(Head("NACK", {**headers, "requeue": "true" if ack.requeue else "false"}, Version.V12), b"", receipt)
