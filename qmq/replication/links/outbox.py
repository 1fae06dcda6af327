"""Data that waits for one link, and the order in which it is sent.

The writer pulls: queue and topic messages are encoded when their turn comes, so waiting costs no second copy.
Six kinds wait separately, so a long catch-up delays no credit and a flood of topics delays no records. Last values of
topics wait in the broker alone (`RetainedSync`), and interest in `InterestPublisher`. Bounds: topics by
`TOPIC_BYTES_MAX`, those for one node that are passed on by `PASSED_BYTES_MAX`, replies by `REPLY_BYTES_MAX`, beyond
which new ones are dropped and counted; responses by `ANSWERS_BYTES_MAX`; lent messages by the credit of the peer;
journal frames by the feed's window; offers by `OFFERS_BYTES_MAX` and other small frames by `SMALL_BYTES_MAX`, beyond
which the peer is not reading and the link ends.

Pure: `wake` is called when something was added, and the caller decides what that means.
"""

from collections import deque
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Final

from qmq.broker.consumers.consumer_class import offer_name
from qmq.broker.messages.destination import DestinationKind
from qmq.broker.messages.message import Message
from qmq.broker.topics.retained_sync import VALUE_BYTES_MAX, RetainedSync
from qmq.replication.links.interest_publisher import InterestPublisher
from qmq.replication.protocol import frames
from qmq.replication.protocol.frame_table import BATCH_TYPE, JOURNAL, MESSAGES, MSGPACK_TYPE, OPAQUE, pack
from qmq.wire.stomp.writer import encode_frame

TOPIC_BYTES_MAX: Final = 4 << 20
"""Topic messages waiting for one link, in bytes of bodies and headers."""

PASSED_BYTES_MAX: Final = 2 << 20
"""Topic messages waiting for one link that it relays to one node, likewise."""

REPLY_BYTES_MAX: Final = 16 << 20
"""Replies waiting for one link, likewise. More than of topics: a client waits for each of them."""

SMALL_BYTES_MAX: Final = 16 << 20
"""Acks, interest, settles, questions and the like waiting for one link."""

OFFERS_BYTES_MAX: Final = 64 << 20
"""Credit and withdrawn offers waiting for one link: those of a million queues may be due at once."""

ANSWERS_BYTES_MAX: Final = 16 << 20
"""Responses waiting for one link. One that is larger by itself, with a large message, may wait alone."""

SINGLE_ANSWER_BYTES_MAX: Final = OPAQUE.body_bytes_max - (64 << 10)
"""Of that one: what still fits into a frame."""

SINGLE_BYTES_MAX: Final = MESSAGES.body_bytes_max - (64 << 10)
"""Of one topic message or reply: what still fits into a frame together with its envelope."""

assert VALUE_BYTES_MAX <= SINGLE_BYTES_MAX

TURN_BYTES: Final = 256 << 10
"""About how many bytes of each kind are sent in one turn, unless the link is slow."""

MESSAGE_OVERHEAD_BYTES: Final = 64

BATCHES: Final = (
    f"MESSAGE\ndestination:{JOURNAL}\nsubscription:0\nmessage-id:%d\ncontent-type:{BATCH_TYPE}\n".encode()
    + b"content-length:%d\n\n%b\0\n"
)
"""The frame of batches: its number, the length of its body, and the body, as it lies in the journal."""


class Lossy:
    """Messages that promise no delivery: what does not fit into `bytes_max` is dropped and counted."""

    __slots__ = ("_bytes", "_bytes_max", "dropped", "waiting")

    def __init__(self, bytes_max: int) -> None:
        self.waiting: deque[Message] = deque()
        self.dropped = 0
        self._bytes = 0
        self._bytes_max = bytes_max

    def put(self, messages: list[Message]) -> list[Message]:
        """Add what fits; returns what was dropped."""
        dropped: list[Message] = []
        for message in messages:
            size = _size(message)
            # One that is over the bound by itself may pass while nothing else waits.
            if (self.waiting and self._bytes + size > self._bytes_max) or size > SINGLE_BYTES_MAX:
                dropped.append(message)
                continue
            self._bytes += size
            self.waiting.append(message)
        self.dropped += len(dropped)
        return dropped

    def turn(self, bytes_max: int) -> list[Message]:
        messages = _turn(self.waiting, bytes_max)
        self._bytes -= sum(map(_size, messages))
        return messages


class LinkOutbox:
    """See the module's opening. `encode` makes the bytes of one mesh frame, as SEND or as MESSAGE."""

    def __init__(self, encode: Callable[[frames.MeshFrame], bytes], wake: Callable[[], None]) -> None:
        self._encode = encode
        self.wake = wake
        self._small: list[bytes] = []
        self._small_bytes = 0
        self._offers_bytes = 0
        self._answers_bytes = 0
        self._journal: deque[bytes] = deque()
        self._lends: deque[Message] = deque()
        self._topics = Lossy(TOPIC_BYTES_MAX)
        self._replies = Lossy(REPLY_BYTES_MAX)
        self._passed: dict[str, Lossy] = {}
        self.publisher: InterestPublisher | None = None
        """The interest that is still to be sent to the peer, if it has the feature."""
        self.spread: RetainedSync | None = None
        """The retained values that are still to be sent to the peer, if it has the feature."""
        self.node = ""
        """This node, for lent messages: those of others name theirs."""
        self.terms: Mapping[str, int] = {}
        """Owner → term in which this node serves it, where that is not term 0; for a peer that understands terms."""
        self.is_lent: Callable[[Message], bool] = _always
        """Whether a message that waits here is still lent to the peer."""
        self.overflowed = False
        self.now_us: Callable[[], int] = _no_clock
        """This node's clock, for frames that carry it."""
        self.quantum_bytes = TURN_BYTES
        """About how many bytes of each kind are sent in one turn; fewer on a slow link (`pace`)."""

    @property
    def has_short(self) -> bool:
        """Whether frames wait that are no part of a stream."""
        return bool(self._small)

    def put(self, frame: frames.MeshFrame) -> None:
        """Add a small frame. When too many wait, nothing more is added: the link must end (`overflowed`)."""
        self.put_bytes(self._encode(frame))

    def put_answer(self, frame: frames.ResponseFrame) -> bool:
        """Add a response, if there is room for it; whether there is. No response is promised."""
        data = self._encode(frame)
        most = ANSWERS_BYTES_MAX if self._answers_bytes else SINGLE_ANSWER_BYTES_MAX
        if self._answers_bytes + len(data) > most:
            return False
        self._answers_bytes += len(data)
        self._add(data)
        return True

    def put_offers(self, frame: frames.Credit | frames.Forgotten) -> None:
        """As `put`, within a bound of its own, because it grows with the number of queues."""
        data = self._encode(frame)
        if self._offers_bytes + len(data) > OFFERS_BYTES_MAX:
            self.overflowed = True
            return
        self._offers_bytes += len(data)
        self._add(data)

    def put_bytes(self, data: bytes) -> None:
        """As `put`, for bytes that are no mesh frame: a step of the handshake."""
        if self._small_bytes + len(data) > SMALL_BYTES_MAX:
            self.overflowed = True
            return
        self._small_bytes += len(data)
        self._add(data)

    def _add(self, data: bytes) -> None:
        self._small.append(data)
        self.wake()

    def put_journal(self, frame: frames.Batches | frames.Gap | frames.Hole) -> None:
        """Add journal batches, or the notice of a gap or hole: these keep their order."""
        self._journal.append(self._encode(frame))
        self.wake()

    def put_lends(self, messages: list[Message]) -> None:
        """Add messages lent to the peer."""
        self._lends.extend(messages)
        self.wake()

    def put_topics(self, messages: list[Message]) -> None:
        """Add topic messages, or drop and count them when too many wait."""
        for message in self._topics.put(messages):
            if message.envelope.retain and self.spread is not None:
                self.spread.mark(message.envelope.destination)
        self.wake()

    def put_passed(self, target: str, messages: list[Message]) -> int:
        """Add topic messages or replies for `target`, which the peer is or can reach; returns how many were dropped."""
        waiting = self._passed.get(target)
        if waiting is None:
            waiting = self._passed[target] = Lossy(PASSED_BYTES_MAX)
        dropped = len(waiting.put(messages))
        if not waiting.waiting:
            del self._passed[target]
        self.wake()
        return dropped

    def put_replies(self, messages: list[Message]) -> None:
        """Add replies to sessions of the peer, or drop and count them when too many wait."""
        self._replies.put(messages)
        self.wake()

    def unlend(self, names: set[str]) -> list[Message]:
        """Take out what is lent under these offers and has not left."""
        waiting, self._lends = self._lends, deque()
        unlent: list[Message] = []
        for message in waiting:
            is_named = offer_name(message.envelope.destination, message.lent_as) in names
            (unlent if is_named else self._lends).append(message)
        return unlent

    @property
    def topics_dropped(self) -> int:
        return self._topics.dropped

    @property
    def replies_dropped(self) -> int:
        return self._replies.dropped

    def take(self) -> bytes:
        """What to write next; b"" when nothing waits."""
        parts = self._small
        self._small = []
        self._small_bytes = self._offers_bytes = self._answers_bytes = 0
        publisher = self.publisher
        if publisher is not None and publisher.is_due:
            parts += [self._encode(frame) for frame in publisher.take(self.quantum_bytes)]
            if publisher.is_due:
                self.wake()
        if self._lends:
            parts += [self._encode(lend) for lend in self._loans(_turn(self._lends, self.quantum_bytes))]
        if self._replies.waiting:
            parts.append(self._encode(frames.Replies(self._replies.turn(self.quantum_bytes))))
        if self._journal:
            parts.append(self._journal.popleft())
        if self._topics.waiting:
            parts.append(self._encode(frames.Topics(self._topics.turn(self.quantum_bytes))))
        for target in list(self._passed):
            # In the order in which they came, split where another node's begin, or another kind.
            for _, run in groupby(self._passed[target].turn(self.quantum_bytes), _belongs_with):
                parts.append(self._encode(frames.Passed(target, list(run))))
            if not self._passed[target].waiting:
                del self._passed[target]
        spread = self.spread
        if spread is not None and spread.is_due:
            values = spread.take(self.quantum_bytes)
            if values:
                parts.append(self._encode(frames.Retained(values)))
            if spread.is_due:
                self.wake()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _loans(self, messages: list[Message]) -> list[frames.Lend]:
        """One as a rule. What was lent before this node ceased to serve its owner goes without a term, also when it
        serves that owner again: the peer counts it as come, and lets it go."""
        lent: list[Message] = []
        over: list[Message] = []
        for message in messages:
            (lent if self.is_lent(message) else over).append(message)
        parts: list[tuple[list[Message], Mapping[str, int]]] = [(lent, self.terms), (over, {})]
        return [frames.Lend(part, self.now_us(), terms, self.node) for part, terms in parts if part]

    def unsent_lends(self) -> list[Message]:
        """Lent messages that never left, taken out: the link has ended."""
        messages = list(self._lends)
        self._lends.clear()
        return messages


def _belongs_with(message: Message) -> tuple[str, DestinationKind]:
    return message.origin.node, message.envelope.kind


def _size(message: Message) -> int:
    return len(message.body) + len(message.envelope.headers) + MESSAGE_OVERHEAD_BYTES


def _turn(waiting: deque[Message], bytes_max: int) -> list[Message]:
    """Messages of one turn, at least one."""
    messages = [waiting.popleft()]
    size = _size(messages[0])
    while waiting and size < bytes_max:
        message = waiting.popleft()
        size += _size(message)
        messages.append(message)
    return messages


def encode_send(frame: frames.MeshFrame) -> bytes:
    """As the follower sends it."""
    destination, body = pack(frame)
    return encode_frame("SEND", [("destination", destination), ("content-type", MSGPACK_TYPE)], body)


def encode_message(frame: frames.MeshFrame) -> bytes:
    """As the serving node sends it. Only batches have an id of their own: they alone are acknowledged."""
    if isinstance(frame, frames.Batches):
        return BATCHES % (frame.number, len(frame.body), frame.body)
    destination, body = pack(frame)
    headers = [("destination", destination), ("subscription", "0"), ("message-id", "0"), ("content-type", MSGPACK_TYPE)]
    return encode_frame("MESSAGE", headers, body)


def _always(message: Message) -> bool:
    return True


def _no_clock() -> int:
    return 0
