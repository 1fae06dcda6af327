"""What waits for one link: whose turn it is, and what happens at each bound."""

from qmq.broker.destination import Kind
from qmq.broker.message import Envelope, Message
from qmq.dots import Origin
from qmq.replication.frames import Batches, Lend, MeshFrame, Topics, Welcome
from qmq.replication.outbox import SINGLE_BYTES_MAX, SMALL_BYTES_MAX, TOPIC_BYTES_MAX, TURN_BYTES, Outbox

A = Origin("a", 1)


class Wakes:
    """Counts wake-ups, and keeps the frames in the order they were encoded."""

    def __init__(self) -> None:
        self.count = 0
        self.frames: list[MeshFrame] = []
        self.outbox = Outbox(self.encode, self.wake)

    def wake(self) -> None:
        self.count += 1

    def encode(self, frame: MeshFrame) -> bytes:
        self.frames.append(frame)
        return type(frame).__name__.encode() + b";"


def messages(count: int, size: int = 10) -> list[Message]:
    envelope = Envelope("/topic/t", Kind.TOPIC, b"", durable=False)
    return [Message(envelope, b"x" * size, A, -number - 1, 0) for number in range(count)]


def test_everything_that_is_put_wakes_the_writer_and_is_taken_once() -> None:
    wakes = Wakes()
    outbox = wakes.outbox

    outbox.put(Welcome({}))
    outbox.put_lends(messages(1))
    outbox.put_journal(Batches(1, b""))
    outbox.put_topics(messages(1))

    assert wakes.count == 4
    assert outbox.take() == b"Welcome;Lend;Batches;Topics;"
    assert outbox.take() == b""


def test_a_long_catching_up_delays_nothing_else() -> None:
    wakes = Wakes()
    for number in range(3):
        wakes.outbox.put_journal(Batches(number, b""))
    assert wakes.outbox.take() == b"Batches;"

    wakes.outbox.put(Welcome({}))

    assert wakes.outbox.take() == b"Welcome;Batches;"


def test_many_messages_leave_in_turns() -> None:
    wakes = Wakes()
    wakes.outbox.put_lends(messages(10, TURN_BYTES // 2))

    wakes.outbox.take()

    first = wakes.frames[0]
    assert isinstance(first, Lend)
    assert len(first.messages) == 2


def test_topics_beyond_the_bound_are_dropped_and_counted_until_some_have_left() -> None:
    wakes = Wakes()
    size = TOPIC_BYTES_MAX // 4 - 64

    wakes.outbox.put_topics(messages(4, size))
    assert wakes.outbox.topics_dropped == 0
    wakes.outbox.put_topics(messages(1, 0))
    assert wakes.outbox.topics_dropped == 1

    wakes.outbox.take()
    wakes.outbox.put_topics(messages(1, 0))
    assert wakes.outbox.topics_dropped == 1


def test_one_topic_message_over_the_bound_passes_alone_but_none_that_no_frame_can_hold() -> None:
    wakes = Wakes()

    wakes.outbox.put_topics(messages(1, TOPIC_BYTES_MAX + 1))
    wakes.outbox.take()
    assert isinstance(wakes.frames[0], Topics)

    wakes.outbox.put_topics(messages(1, SINGLE_BYTES_MAX))
    assert wakes.outbox.topics_dropped == 1
    assert wakes.outbox.take() == b""


def test_a_peer_that_does_not_read_overflows_and_costs_no_more() -> None:
    wakes = Wakes()
    wakes.outbox.put_bytes(b"x" * SMALL_BYTES_MAX)
    assert not wakes.outbox.overflowed

    wakes.outbox.put(Welcome({}))

    assert wakes.outbox.overflowed
    assert len(wakes.outbox.take()) == SMALL_BYTES_MAX


def test_lent_messages_that_never_left_can_be_had_back() -> None:
    wakes = Wakes()
    wakes.outbox.put_lends(messages(3, TURN_BYTES))
    wakes.outbox.take()

    assert [message.sequence for message in wakes.outbox.unsent_lends()] == [-2, -3]
    assert wakes.outbox.take() == b""
