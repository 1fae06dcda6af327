"""Messages in JSON, and the half of an encoder that a protocol without messages does not have."""

import base64
from typing import Any, Final

from qmq.broker.consumers.light_subscriptions import LightSubscriptions
from qmq.broker.consumers.subscription import Delivery, FanoutDelivery, Subscription
from qmq.broker.messages.copy_budget import COPIES_LEFT
from qmq.broker.messages.dedup import RETRY, SENDER
from qmq.broker.messages.message import Message
from qmq.broker.messages.totals import Totals
from qmq.broker.selectors import properties_of
from qmq.gateways.encoder import Lines

CONTENT_TYPE: Final = "content-type"

NOT_SHOWN: Final = frozenset({"destination", "persistent", COPIES_LEFT, RETRY, SENDER})
"""What a selector sees beside the headers of the sender, and headers of the node itself."""


def facts_of(message: Message) -> dict[str, Any]:
    """A message as JSON shows it: its body as text if it is UTF-8, else in base64."""
    headers = {name: value for name, value in properties_of(message.envelope).items() if name not in NOT_SHOWN}
    facts: dict[str, Any] = {"id": message.message_id, "destination": message.envelope.destination}
    content_type = headers.pop(CONTENT_TYPE, None)
    facts["headers"] = headers
    if content_type is not None:
        facts["content_type"] = content_type
    try:
        facts["body"] = message.body.decode()
    except UnicodeDecodeError:
        facts["body_base64"] = base64.b64encode(message.body).decode()
    return facts


class NoMessages:
    """The part of `Encoder` about subscriptions, for sessions that have none: nothing is written."""

    def prefix(self, subscription_id: str | None, needs_no_ack: bool) -> bytes:
        return b""

    def listener_prefix(self, listener: LightSubscriptions, topic: str) -> bytes:
        return b""

    def tails(self, messages: list[Message]) -> list[bytes]:
        return []

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
