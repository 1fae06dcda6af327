"""How messages, receipts and errors are written for a client: the contract between the node and a protocol's bytes.

A session has one encoder. Sessions with the same encoder share the bytes of messages that they all get, so an encoder
without a state of its own is one object for all of them.
"""

from collections.abc import Sequence
from typing import Protocol

from qmq.broker.consumers.light_subscriptions import LightSubscriptions
from qmq.broker.consumers.subscription import Delivery, FanoutDelivery, Subscription
from qmq.broker.messages.message import Message
from qmq.broker.messages.receipt_levels import FSYNC
from qmq.broker.messages.sent_run import SentRun
from qmq.broker.messages.totals import Totals
from qmq.errors import ProtocolError, Refused

Lines = Sequence[tuple[str, str]]
"""Header lines: names and values."""


class Encoder(Protocol):
    """A MESSAGE is a prefix of its subscription and a **tail** of its own; `run` joins them."""

    @property
    def protocol(self) -> str:
        """Name and version, for lists of connections."""

    def prefix(self, subscription_id: str | None, needs_no_ack: bool) -> bytes:
        """What comes before every message of a subscription. `needs_no_ack`: see `subscription_prefix`."""

    def listener_prefix(self, listener: LightSubscriptions, topic: str) -> bytes:
        """As `prefix`, for one topic of a listener; empty when it does not hear the topic any more."""

    def tails(self, messages: list[Message]) -> list[bytes]:
        """Each message without the prefix of its subscription, in the order in which the client gets them."""

    def tails_of(self, sent: SentRun) -> list[bytes]:
        """As `tails`, of messages that were sent as one."""

    def marked(self, tail: bytes, name: str, value: str) -> bytes:
        """A tail with one more header line."""

    def run(self, prefix: bytes, tails: list[bytes]) -> bytes:
        """All messages of a run for one subscription."""

    def deliveries(self, subscription: Subscription, deliveries: list[Delivery], totals: Totals | None = None) -> bytes:
        """Queue messages for one subscription, with what its client needs to settle them. They count as sent now."""

    def durable_deliveries(self, subscription: Subscription, run: list[FanoutDelivery]) -> bytes:
        """Fanout messages for a durable subscription, with what its client needs to settle them."""

    def notice(self, subscription: Subscription, lines: Lines, body: bytes = b"") -> bytes:
        """A message of the node itself, which has these headers and no dot."""

    def receipts(self, receipts: list[str], lines: Lines = (), level: int = FSYNC) -> bytes:
        """The answers to frames with these receipts, each with further header lines. `level` was asked for."""

    def response(self, receipt: str, lines: Lines, body: bytes) -> bytes:
        """The answer to a control request: as the receipt of its SEND. STOMP has the body only at its `reply-to`."""

    def error(
        self, error: ProtocolError | Refused, receipt: str | None = None, subscription: str | None = None
    ) -> bytes:
        """Why a request, or the session, is refused."""


class NoMessages:
    """The part of `Encoder` about subscriptions, for sessions that have none: nothing is written."""

    def prefix(self, subscription_id: str | None, needs_no_ack: bool) -> bytes:
        return b""

    def listener_prefix(self, listener: LightSubscriptions, topic: str) -> bytes:
        return b""

    def tails(self, messages: list[Message]) -> list[bytes]:
        return []

    def tails_of(self, sent: SentRun) -> list[bytes]:
        return self.tails(sent.messages)

    def marked(self, tail: bytes, name: str, value: str) -> bytes:
        return tail

    def run(self, prefix: bytes, tails: list[bytes]) -> bytes:
        return b"".join(tails)

    def deliveries(self, subscription: Subscription, deliveries: list[Delivery], totals: Totals | None = None) -> bytes:
        return b""

    def durable_deliveries(self, subscription: Subscription, run: list[FanoutDelivery]) -> bytes:
        return b""

    def notice(self, subscription: Subscription, lines: Lines, body: bytes = b"") -> bytes:
        return b""
