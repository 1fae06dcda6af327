"""`reply-to:/temp-queue/NAME`: a name of one session, written so that any client can answer it.

The first `reply-to` with a name makes the queue and subscribes the session to it; its messages then come with
`subscription:/temp-queue/NAME`, as from RabbitMQ. A session that wants another subscription id says SUBSCRIBE, before
or after, as to ActiveMQ.
"""

from collections.abc import Mapping

from qmq.broker.broker import Broker
from qmq.broker.consumers.replies import check_address
from qmq.broker.consumers.subscription import Ack, Subscription
from qmq.broker.messages.destination import DestinationKind, kind_of
from qmq.broker.messages.message import Envelope
from qmq.errors import Refused
from qmq.gateways.encoder import Encoder
from qmq.gateways.headers import OWN_HEADERS
from qmq.wire.stomp import Version, encode_headers

TEMP_PREFIX = "/temp-queue/"


class ReplyTo:
    """The temporary queues of one session. Of the node's own headers, its SENDs may set those in `sets`."""

    __slots__ = ("_broker", "_encoder", "_own_headers", "_session_id")

    def __init__(self, session_id: int, broker: Broker, encoder: Encoder, sets: frozenset[str] = frozenset()) -> None:
        # Each session having a set of its own would take 1,200 bytes.
        self._own_headers = OWN_HEADERS - sets if sets else OWN_HEADERS
        self._session_id = session_id
        self._broker = broker
        self._encoder = encoder

    def travelling(self, headers: Mapping[str, str]) -> tuple[list[tuple[str, str]], bool]:
        """The headers of a SEND that go with its message, and whether they name a queue of this session.

        That one is made on first use. Raises Refused.
        """
        found = [(name, value) for name, value in headers.items() if name not in self._own_headers]
        if not headers.get("reply-to", "").startswith(TEMP_PREFIX):
            return found, False
        return [(name, self._make(value) if name == "reply-to" else value) for name, value in found], True

    def envelope_to(self, destination: str, kind: DestinationKind, headers: Mapping[str, str]) -> Envelope:
        """The envelope of a reply to an address, or of a message to a queue of this session. Raises Refused."""
        if kind is DestinationKind.TEMP:
            queue = self._broker.replies.find(self._session_id, destination)
            if queue is None:
                raise Refused("unknown-destination", "This connection has no temporary queue with that name.")
            destination = queue.address
        else:
            check_address(destination)
        return Envelope(
            destination, DestinationKind.REPLY, encode_headers(self.travelling(headers)[0], Version.V12), False
        )

    def envelope_of_answer(self, asked: Mapping[str, str]) -> Envelope:
        """The envelope of the node's own answer to a question with these headers. Raises Refused."""
        address = asked["reply-to"]
        kind = kind_of(address)
        if kind is not DestinationKind.TEMP and kind is not DestinationKind.REPLY:
            raise Refused("bad-destination", f"A node answers to {TEMP_PREFIX}NAME in reply-to, and nowhere else.")
        headers = [("content-type", "application/json")]
        if "correlation-id" in asked:
            headers.append(("correlation-id", asked["correlation-id"]))
        if kind is DestinationKind.TEMP:
            address = self._make(address)
        else:
            check_address(address)
        return Envelope(address, DestinationKind.REPLY, encode_headers(headers, Version.V12), False)

    def _make(self, name: str) -> str:
        kind_of(name)
        queue = self._broker.replies.find(self._session_id, name)
        if queue is not None:
            return queue.address
        prefix = self._encoder.prefix(name, False)
        subscription = Subscription(self._session_id, name, name, Ack.AUTO, 1, prefix)
        return self._broker.subscriptions.subscribe_replies(subscription, is_implicit=True)
