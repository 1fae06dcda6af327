"""Subscriptions with a declared buffer: unread messages wait in this buffer, not in the outbox of the connection.

While the socket accepts bytes, messages pass straight through. When more than STRAIGHT_BYTES_MAX are in the
connection's outbox, messages of such a subscription wait in its own buffer, whose bound it chose. As soon as the outbox
is empty, the buffers of the connection are emptied into it in turn. So a slow subscription costs what it declared. Its
client is disconnected only if it requested that.

All buffers of a connection together hold at most what an outbox may (`outbox_bytes_max`).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from qmq.broker.consumers.buffer import Buffer
from qmq.broker.consumers.subscription import Subscription
from qmq.errors import Refused
from qmq.gateways.encoder import Encoder
from qmq.sessions.clients.session import ClientSession

STRAIGHT_BYTES_MAX = 128 << 10
"""The size of a connection's outbox above which messages wait in a buffer: two reads of a busy publisher, so that a
burst does not make a fast client look slow.
"""

TURN_BYTES = 32 << 10


@dataclass(frozen=True, slots=True)
class SlowSubscription:
    """A subscription whose client does not read at the moment: what waits for it, and what it has missed."""

    session: int
    destination: str
    messages: int
    bytes: int
    dropped: int


class SubscriberBuffers:
    """Delivers to subscriptions with a buffer. `bytes_max` bounds all buffers of one connection together; `grew` is
    called with each change of their sum.
    """

    def __init__(
        self, bytes_max: int, grew: Callable[[ClientSession, int], None] = lambda session, delta: None
    ) -> None:
        self._bytes_max = bytes_max
        self._grew = grew
        self.dropped = 0
        """Messages that subscriptions missed because they requested that."""

    def deliver(self, session: ClientSession, subscription: Subscription, tails: list[bytes]) -> None:
        """Deliver messages, given without the subscription's prefix. The caller flushes the outbox later.

        Disconnects the client when its bound is reached and it requested that.
        """
        buffer, outbox, encoder = subscription.buffer, session.outbox, session.encoder
        assert buffer is not None
        for index, tail in enumerate(tails):
            if buffer:
                return self._wait(session, subscription, buffer, tails[index:])
            if outbox.size > STRAIGHT_BYTES_MAX:
                outbox.flush()
                if outbox.size > STRAIGHT_BYTES_MAX:
                    return self._wait(session, subscription, buffer, tails[index:])
            outbox.put(encoder.run(subscription.prefix, [marked(encoder, buffer.unsaid, tail)]))
            buffer.unsaid = 0
        return None

    def _wait(self, session: ClientSession, subscription: Subscription, buffer: Buffer, tails: list[bytes]) -> None:
        began = not buffer
        dropped = buffer.dropped
        held = session.buffered_bytes
        for tail in tails:
            bytes_before = buffer.bytes
            if not buffer.add(tail, self._bytes_max - session.buffered_bytes):
                session.evict(too_far_behind(subscription, buffer))
                break
            session.buffered_bytes += buffer.bytes - bytes_before
        self._grew(session, session.buffered_bytes - held)
        self.dropped += buffer.dropped - dropped
        if began and buffer:
            if session.buffered is None:
                session.buffered = deque()
                session.outbox.when_written(partial(self._drain, session, session.buffered))
            session.buffered.append(subscription)

    def _drain(self, session: ClientSession, line: deque[Subscription]) -> None:
        """The outbox has become empty: send as much as fits, a little of each subscription in turn."""
        outbox = session.outbox
        while line:
            if outbox.size > STRAIGHT_BYTES_MAX:
                outbox.flush()
                if outbox.size > STRAIGHT_BYTES_MAX:
                    outbox.when_written(partial(self._drain, session, line))
                    return
            subscription = line.popleft()
            buffer = subscription.buffer
            assert buffer is not None
            if not session.owns(subscription):
                cleared = buffer.clear()
                session.buffered_bytes -= cleared
                self._grew(session, -cleared)
                continue
            bytes_before = buffer.bytes
            taken = buffer.take(TURN_BYTES)
            session.buffered_bytes -= bytes_before - buffer.bytes
            self._grew(session, buffer.bytes - bytes_before)
            tails = [marked(session.encoder, missed, tail) for missed, tail in taken]
            outbox.put(session.encoder.run(subscription.prefix, tails))
            if buffer:
                line.append(subscription)
        session.buffered = None
        outbox.flush()


def marked(encoder: Encoder, missed: int, tail: bytes) -> bytes:
    """A message without its prefix, with the number of messages missed just before it."""
    return encoder.marked(tail, "dropped", str(missed)) if missed else tail


def too_far_behind(subscription: Subscription, buffer: Buffer) -> Refused:
    """The error for a client that requested to be disconnected."""
    if len(buffer) >= buffer.messages_max:
        bound = f"{buffer.messages_max} messages (buffer-messages)"
    else:
        bound = f"{buffer.bytes_max} bytes (buffer-bytes; fewer when other subscriptions of the connection wait too)"
    return Refused(
        "slow-consumer",
        f"The client does not read: subscription {subscription.id} to {subscription.destination} has its most of"
        f" {bound} waiting.",
    )
