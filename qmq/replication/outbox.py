"""What waits to be written to one link, and in which turns it goes out.

The writer pulls: queue and topic messages stay messages until their turn comes, so what waits costs no second copy.
Four kinds wait apart, so that a long catching-up delays no credit and a flood of topics no records. Bounds: topics by
`TOPIC_BYTES_MAX`, beyond which new ones are dropped and counted; lent messages by the credit of the peer; journal
frames by the feed's window; small frames by `SMALL_BYTES_MAX`, beyond which the peer is not reading and the link ends.

Pure: `wake` is called when something was added, and the caller decides what that means.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from qmq.broker.message import Message
from qmq.replication.frames import BATCH_TYPE, MSGPACK_TYPE, Batches, Gap, Hole, Lend, MeshFrame, Topics, pack
from qmq.wire.stomp.limits import BODY_BYTES_CEILING
from qmq.wire.stomp.writer import encode_frame

TOPIC_BYTES_MAX: Final = 4 << 20
"""Topic messages waiting for one link, in bytes of bodies and headers."""

SMALL_BYTES_MAX: Final = 16 << 20
"""Acks, credit, interest, settles and the like waiting for one link."""

SINGLE_BYTES_MAX: Final = BODY_BYTES_CEILING - (64 << 10)
"""Of one topic message: what still fits into a frame together with its envelope."""

TURN_BYTES: Final = 256 << 10
"""About how much of each kind goes out in one turn."""

MESSAGE_OVERHEAD_BYTES: Final = 64


class Outbox:
    """See the module's opening. `encode` makes the bytes of one mesh frame, as SEND or as MESSAGE."""

    def __init__(self, encode: Callable[[MeshFrame], bytes], wake: Callable[[], None]) -> None:
        self._encode = encode
        self.wake = wake
        self._small: list[bytes] = []
        self._small_bytes = 0
        self._journal: deque[bytes] = deque()
        self._lends: deque[Message] = deque()
        self._topics: deque[Message] = deque()
        self._topic_bytes = 0
        self.topics_dropped = 0
        self.overflowed = False

    def put(self, frame: MeshFrame) -> None:
        """Add a small frame. When too many wait, nothing more is added: the link must end (`overflowed`)."""
        self.put_bytes(self._encode(frame))

    def put_bytes(self, data: bytes) -> None:
        """As `put`, for bytes that are no mesh frame: a step of the handshake."""
        if self._small_bytes + len(data) > SMALL_BYTES_MAX:
            self.overflowed = True
            return
        self._small_bytes += len(data)
        self._small.append(data)
        self.wake()

    def put_journal(self, frame: Batches | Gap | Hole) -> None:
        """Add journal batches, or the notice of a gap or hole: these keep their order."""
        self._journal.append(self._encode(frame))
        self.wake()

    def put_lends(self, messages: list[Message]) -> None:
        """Add messages lent to the peer."""
        self._lends.extend(messages)
        self.wake()

    def put_topics(self, messages: list[Message]) -> None:
        """Add topic messages, or drop and count them when too many wait."""
        for message in messages:
            size = _size(message)
            # One that is over the bound by itself may pass while nothing else waits.
            if (self._topics and self._topic_bytes + size > TOPIC_BYTES_MAX) or size > SINGLE_BYTES_MAX:
                self.topics_dropped += 1
                continue
            self._topic_bytes += size
            self._topics.append(message)
        self.wake()

    def take(self) -> bytes:
        """What to write next; b"" when nothing waits."""
        parts = self._small
        self._small = []
        self._small_bytes = 0
        if self._lends:
            parts.append(self._encode(Lend(_turn(self._lends))))
        if self._journal:
            parts.append(self._journal.popleft())
        if self._topics:
            messages = _turn(self._topics)
            self._topic_bytes -= sum(map(_size, messages))
            parts.append(self._encode(Topics(messages)))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def unsent_lends(self) -> list[Message]:
        """Lent messages that never left, taken out: the link has ended."""
        messages = list(self._lends)
        self._lends.clear()
        return messages


def _size(message: Message) -> int:
    return len(message.body) + len(message.envelope.headers) + MESSAGE_OVERHEAD_BYTES


def _turn(waiting: deque[Message]) -> list[Message]:
    """Messages of one turn, at least one."""
    messages = [waiting.popleft()]
    size = _size(messages[0])
    while waiting and size < TURN_BYTES:
        message = waiting.popleft()
        size += _size(message)
        messages.append(message)
    return messages


def encode_send(frame: MeshFrame) -> bytes:
    """As the follower sends it."""
    destination, body = pack(frame)
    return encode_frame("SEND", [("destination", destination), ("content-type", MSGPACK_TYPE)], body)


def encode_message(frame: MeshFrame) -> bytes:
    """As the serving node sends it. Only batches have an id of their own: they alone are acknowledged."""
    destination, body = pack(frame)
    if isinstance(frame, Batches):
        number, kind = str(frame.number), BATCH_TYPE
    else:
        number, kind = "0", MSGPACK_TYPE
    headers = [("destination", destination), ("subscription", "0"), ("message-id", number), ("content-type", kind)]
    return encode_frame("MESSAGE", headers, body)
